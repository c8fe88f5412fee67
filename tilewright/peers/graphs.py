"""What libraries have no word for, in words that they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ir.graph import Graph, ModelError, Node, Value
from tilewright.peers.contender import Case, Unsupported


def onnx_of(case: Case) -> str | bytes:
    """The user's own file, else the graph written out. Raises Unsupported."""
    if Path(case.model).is_file():
        return case.model
    from ir.frontends.onnx.writer import write

    try:
        return write(spelt_out(case.graph()))
    except ModelError as error:
        raise Unsupported(str(error)) from error


def spelt_out(graph: Graph) -> Graph:
    """The graph without operators that only we have. Raises Unsupported."""
    for node in graph.nodes:
        if node.operator in SPELLINGS:
            graph = SPELLINGS[node.operator](graph, node)
    return graph


def _capsules(graph: Graph, node: Node) -> Graph:
    """capsule_conv  -->  transpose, reshape, conv, reshape, transpose

    Rows of the matrices go with the batch, columns with the channels: N, H, W, I, K, CI become N I images of K CI
    channels, and the weight KH, KW, K, J, CI, CO becomes J CO filters.
    """
    (data, weight), (out,) = node.inputs, node.outputs
    if weight not in graph.constants:
        raise Unsupported(f"capsule_conv ({node.name}) with a weight that is no constant")
    n, h, w, i, k, ci = graph.values[data].shape
    _, oh, ow, _, j, co = graph.values[out].shape
    kernel = graph.constants[weight]
    filters = np.ascontiguousarray(kernel.transpose(3, 5, 2, 4, 0, 1).reshape(j * co, k * ci, *kernel.shape[:2]))
    shapes = {
        "filters":  filters.shape,
        "turned":   (n, i, k, ci, h, w),
        "images":   (n * i, k * ci, h, w),
        "conv":     (n * i, j * co, oh, ow),
        "matrices": (n, i, j, co, oh, ow),
    }  # fmt: skip
    names = {what: f"{node.name}.{what}" for what in shapes}
    made = {names[what]: Value(names[what], shape, graph.values[out].dtype) for what, shape in shapes.items()}

    def step(operator: str, what: str, *sources: str, **attributes: tuple[int, ...]) -> Node:
        return Node(names[what], operator, tuple(names[s] for s in sources), (names[what],), attributes)

    nodes = (
        replace(step("transpose", "turned", perm=(0, 3, 4, 5, 1, 2)), inputs=(data,)),
        step("reshape", "images", "turned", shape=shapes["images"]),
        replace(step("conv", "conv", "images", "filters"), attributes=node.attributes),
        step("reshape", "matrices", "conv", shape=shapes["matrices"]),
        Node(node.name, "transpose", (names["matrices"],), (out,), {"perm": (0, 4, 5, 1, 2, 3)}),
    )
    return replace(
        graph,
        nodes=tuple(new for old in graph.nodes for new in (nodes if old is node else (old,))),
        values={**graph.values, **made},
        constants={**graph.constants, names["filters"]: filters},
    )


SPELLINGS: Mapping[str, Callable[[Graph, Node], Graph]] = {"capsule_conv": _capsules}
