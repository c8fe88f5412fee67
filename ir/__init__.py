"""The nouns: expressions, compute DAGs, graphs, workloads, schedules, loop nests, targets."""
