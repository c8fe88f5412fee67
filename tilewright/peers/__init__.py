"""Side by side: our module and others run one model, each in a process of its own, all on the same cores, in turns.

contender    what a contender is given and what it makes of it
answers      seeded inputs, and when two answers are the same
registry     who there is, who is installed, which versions
process      a contender's process, from both sides
turns        the processes of a bench, and the order in which they are timed
house        our own: the module, the peak, the definitions
graphs       what libraries have no word for, in words that they have
onnxruntime, openvino, torch, numpy    the peers
"""
