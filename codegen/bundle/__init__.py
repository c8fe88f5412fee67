"""One C library for a whole network: calls of kernels, a memory plan, the C text, packed constants, a description.

Network  ->  MemoryPlan  ->  Bundle (C text + Manifest) + Weights  ->  shared object, or a directory for others
"""
