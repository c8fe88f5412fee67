"""Records of other tuners in, records of ours out.

    formats   a line of a log -> Record         Ansor, AutoTVM, MetaSchedule
    mapping   Record -> a workload of ours, or why there is none
    imports   files -> rows of the table `imports`
    t4        measurements of a workload -> the JSON that Kernel Tuner and others exchange

Imported times are for comparison: they were taken elsewhere, by programs that nobody here has verified, so none of them
is ever the best of a workload, and no step of another tuner is ever replayed.
"""
