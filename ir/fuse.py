"""Graph -> workloads: which nodes become one kernel, and the compute DAG of each.

    conv -> add -> relu -> max_pool      -->      call conv_add_relu, call max_pool

A group is an anchor (a convolution, a product, a reduction, ...) with the moves that feed it and the element-wise
nodes that follow it. Whatever fits nowhere is a workload of its own, so no graph is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ir.affine import simplify
from ir.compute import Dag
from ir.dsl import Handle, dag as dag_of, placeholder
from ir.expr import Const, Expr, Read, children, rebuild
from ir.graph import Graph, Node
from ir.key import canonical, dag_text, text_key
from ir.operators import OPERATORS
from ir.passes.axes import plain_axes
from ir.workload import Workload

VIEWS = frozenset({"reshape"})  # the same elements in the same order: no work


# --- one group -> one DAG -----------------------------------------------------------------------------------------


def compose(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str]) -> Dag:
    """The nodes' definitions strung together; inputs are called like the graph's values.

    Constants of one element become literals. Axes are the plainest possible, so that shapes of inputs and outputs
    equal those of the graph's values up to a reshape.
    """
    handles: dict[str, Handle] = {}
    for node in nodes:
        given = [_handle(graph, handles, name) if name else None for name in node.inputs]
        made = OPERATORS[node.operator].define(given, node.attributes)
        handles |= {name: h for name, h in zip(node.outputs, made, strict=False) if name}
    dag = dag_of([handles[o] for o in outputs])
    scalars = {i.name: graph.constants[i.name] for i in dag.inputs if i.constant and prod(i.shape) == 1}
    return plain_axes(bind(dag, scalars))


def _handle(graph: Graph, handles: dict[str, Handle], name: str) -> Handle:
    if name not in handles:
        v = graph.values[name]
        handles[name] = placeholder(v.shape, name, v.dtype, constant=name in graph.constants)
    return handles[name]


def bind(dag: Dag, scalars: Mapping[str, np.ndarray]) -> Dag:
    """y[i] = x[i] * s[0]  (s constant, 0.125)      -->      y[i] = x[i] * 0.125"""

    def rewrite(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in scalars:
            return Const(scalars[e.tensor].item(), e.dtype)
        kids = children(e)
        return rebuild(e, tuple(map(rewrite, kids))) if kids else e

    inputs = tuple(i for i in dag.inputs if i.name not in scalars)
    return replace(dag, inputs=inputs, computes=tuple(replace(c, body=rewrite(c.body)) for c in dag.computes))
