"""Partition of a graph + a kernel for each workload -> Network."""

from __future__ import annotations

from collections.abc import Mapping

from codegen.bundle.network import Call, Choice, Indices, Network, NetworkError
from codegen.kernel import Kernel
from ir.fuse import Call as Fused
from ir.fuse import Partition


def network(partition: Partition, kernels: Mapping[str, Kernel], report: tuple[Choice, ...] = ()) -> Network:
    """kernels: by workload key; their arguments are called like the tensors of the workload's DAG.

    Raises NetworkError when a workload has no kernel, or a kernel does not fit.
    """
    graph = partition.graph
    missing = [w for w in partition.workloads if w.key not in kernels]
    if missing:
        raise NetworkError(f"workload {missing[0].name!r} ({missing[0].key}) has no kernel")
    calls = tuple(_call(c, kernels[c.workload.key]) for c in partition.calls)
    read = {n for c in partition.calls for n in (*c.inputs, *(b.value for b in c.bounds))} | {*graph.outputs}
    needed = {partition.aliases.get(n, n) for n in read}
    return Network(
        inputs=tuple(graph.values[n] for n in graph.inputs),
        outputs=tuple(graph.values[n] for n in graph.outputs),
        calls=calls,
        constants={n: a for n, a in graph.constants.items() if n in needed},
        aliases={n: root for n, root in partition.aliases.items() if n in read},
        report=report,
    )


def _call(call: Fused, kernel: Kernel) -> Call:
    dag = call.workload.dag
    values = dict(zip((i.name for i in dag.inputs), call.inputs, strict=True))
    values |= dict(zip(dag.outputs, call.outputs, strict=True))
    indices = tuple(Indices(b.value, b.low, b.high, b.first, b.step) for b in call.bounds)
    return Call.of(kernel, values, call.workload.key, " + ".join(call.nodes), indices)
