"""Graph -> Graph: what needs no computing at run time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from ir.evaluate import run_node
from ir.graph import Attribute, Graph, Node
from ir.passes.rewrite import Rewrite, renamed

LARGEST_GROWTH = 1 << 20  # folding may add this many elements to a constant's own: no expanded zeros in the bundle


def fold_constants(graph: Graph) -> Graph:
    """y = reshape(w)  (w constant)      -->      y constant"""
    new = Rewrite.of(graph)
    for node in graph.nodes:
        if all(i in new.constants for i in node.inputs if i) and not _grows(graph, node):
            new.constants.update(run_node(graph.values, node, new.constants))
        else:
            new.nodes.append(node)
    return _copy_constant_outputs(new.graph())


def _grows(graph: Graph, node: Node) -> bool:
    before = sum(prod(graph.values[i].shape) for i in node.inputs if i)
    after = sum(prod(graph.values[o].shape) for o in node.outputs if o)
    return after > before + LARGEST_GROWTH


def _copy_constant_outputs(graph: Graph) -> Graph:
    """An output is always computed: a folded one becomes a copy of a constant."""
    new = Rewrite.of(graph)
    new.nodes.extend(graph.nodes)
    made = {o for n in graph.nodes for o in n.outputs}
    for name in dict.fromkeys(graph.outputs):
        if name in graph.constants and name not in made:
            source = new.constant(graph.constants[name], f"{name}.value")
            del new.constants[name]
            new.add("identity", (source,), {}, name, output=name)
    return new.graph()


def remove_dead(graph: Graph) -> Graph:
    """Nodes, constants and values that no output needs."""
    needed, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            kept.append(node)
            needed |= set(node.inputs)
    produced = {o for n in kept for o in n.outputs}
    names = needed | produced | set(graph.inputs)
    return replace(
        graph,
        nodes=tuple(reversed(kept)),
        values={n: v for n, v in graph.values.items() if n in names},
        constants={n: c for n, c in graph.constants.items() if n in needed},
    )


def merge_equal(graph: Graph) -> Graph:
    """a = f(x); b = f(x); y = a + b      -->      a = f(x); y = a + a"""
    new: dict[str, str] = _equal_constants(graph)
    seen: dict[object, Node] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node = renamed(node, new)
        form = (node.operator, node.inputs, len(node.outputs), tuple(sorted(node.attributes.items())))
        first = seen.setdefault(form, node)
        if first is node or any(o in graph.outputs for o in node.outputs):
            kept.append(node)
        else:
            new |= {b: a for a, b in zip(first.outputs, node.outputs, strict=True) if a and b}
    return graph.with_nodes(tuple(kept))


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Small constants of equal bytes; comparing large ones would cost more than it finds."""
    seen: dict[object, str] = {}
    small = ((n, c) for n, c in graph.constants.items() if c.nbytes <= 1 << 12)
    return {n: seen.setdefault((c.shape, str(c.dtype), c.tobytes()), n) for n, c in small}


# --- identities ---------------------------------------------------------------------------------------------------


def remove_identities(graph: Graph) -> Graph:
    """y = transpose(x, (0, 1)); z = f(y)      -->      z = f(x)

    A node that makes a graph's output stays, as what it copies has a name of its own.
    """
    new: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node = renamed(node, new)
        if is_identity(graph, node) and node.outputs[0] not in graph.outputs:
            new[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    return graph.with_nodes(tuple(kept))


def _same_shape(graph: Graph, node: Node) -> bool:
    return graph.values[node.inputs[0]].shape == graph.values[node.outputs[0]].shape


def _same_dtype(graph: Graph, node: Node) -> bool:
    return graph.values[node.inputs[0]].dtype == graph.values[node.outputs[0]].dtype


def _in_order(graph: Graph, node: Node) -> bool:
    perm = node.attributes.get("perm")
    return isinstance(perm, tuple) and perm == tuple(range(len(perm)))


def _whole(graph: Graph, node: Node) -> bool:
    """The same extents and no backward step: a slice of everything."""
    steps = node.attributes.get("steps", ())
    return _same_shape(graph, node) and isinstance(steps, tuple) and all(s == 1 for s in steps)


def _no_padding(graph: Graph, node: Node) -> bool:
    pads = node.attributes.get("pads", ())
    return isinstance(pads, tuple) and not any(pads)


IDENTITIES: Mapping[str, Callable[[Graph, Node], bool]] = {
    "identity":  lambda graph, node: True,
    "reshape":   _same_shape,
    "expand":    _same_shape,
    "tile":      _same_shape,
    "cast":      _same_dtype,
    "transpose": _in_order,
    "slice":     _whole,
    "pad":       _no_padding,
    "concat":    lambda graph, node: len(node.inputs) == 1,
}  # fmt: skip


def is_identity(graph: Graph, node: Node) -> bool:
    return node.operator in IDENTITIES and IDENTITIES[node.operator](graph, node)


# --- reshapes and transposes in a row -----------------------------------------------------------------------------


def join_moves(graph: Graph) -> Graph:
    """z = reshape(reshape(x))      -->      z = reshape(x)        transpose(transpose(x))      -->      transpose(x)"""
    producer = graph.producer()
    joined: dict[str, Node] = {}
    for node in graph.nodes:
        before = joined.get(node.inputs[0], producer.get(node.inputs[0])) if node.inputs else None
        if before is not None and before.operator == node.operator and node.operator in JOINS:
            attributes = JOINS[node.operator](before, node)
            joined[node.outputs[0]] = replace(node, inputs=before.inputs, attributes=attributes)
    return graph.with_nodes(tuple(joined.get(n.outputs[0], n) for n in graph.nodes))


def _permuted_twice(before: Node, after: Node) -> dict[str, Attribute]:
    first, second = before.attributes["perm"], after.attributes["perm"]
    assert isinstance(first, tuple) and isinstance(second, tuple)
    return {"perm": tuple(int(first[int(p)]) for p in second)}


JOINS: Mapping[str, Callable[[Node, Node], Mapping[str, Attribute]]] = {
    "reshape":   lambda before, after: after.attributes,
    "transpose": _permuted_twice,
}  # fmt: skip


# --- constants in the form that kernels like ----------------------------------------------------------------------


def turn_gemm_constants(graph: Graph) -> Graph:
    """gemm(x, w, trans_b)  (w constant)      -->      gemm(x, w.T)"""
    new = Rewrite.of(graph)
    for node in graph.nodes:
        if node.operator == "gemm" and node.attributes.get("trans_b") and node.inputs[1] in graph.constants:
            turned = new.constant(np.ascontiguousarray(graph.constants[node.inputs[1]].T), f"{node.inputs[1]}.T")
            attributes = {**node.attributes, "trans_b": False}
            node = replace(node, inputs=(node.inputs[0], turned, *node.inputs[2:]), attributes=attributes)
        new.nodes.append(node)
    return new.graph()
