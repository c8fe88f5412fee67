"""Graph -> Graph: batch normalisation becomes part of the weights before it, or a multiplication and an addition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ir.graph import Graph, Node
from ir.passes.rewrite import Rewrite, is_channels_last

Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Affine:
    """y = x * scale + shift by channel, in double."""

    scale: Array
    shift: Array


def fold_batch_norms(graph: Graph) -> Graph:
    """batch_norm(conv(x, w, b))      -->      conv(x, w * scale, b * scale + shift)

    scale = gamma / sqrt(variance + epsilon), shift = beta - mean * scale (Ioffe and Szegedy 2015, algorithm 2), in
    double, rounded once. Where the value has other readers, or nothing before it has constant weights,
    x * scale + shift stays.
    """
    new, readers = Rewrite.of(graph), graph.consumers()
    place: dict[str, int] = {}
    for node in graph.nodes:
        affine = _affine(graph, node)
        x = node.inputs[0] if node.inputs else ""
        if affine is not None and x in place and len(readers[x]) == 1 and x not in graph.outputs:
            before = new.nodes[place[x]]
            if _takes(graph, before, node):
                new.nodes[place[x]] = _folded(new, before, affine, node)
                place[node.outputs[0]] = place[x]
                continue
        if affine is None:
            new.nodes.append(node)
        else:
            _spell_out(new, node, affine)
        place[node.outputs[0]] = len(new.nodes) - 1
    return new.graph()


def _affine(graph: Graph, node: Node) -> Affine | None:
    """What a batch norm with known statistics does; None for any other node."""
    if node.operator != "batch_norm" or any(i not in graph.constants for i in node.inputs[1:]):
        return None
    scale, bias, mean, variance = (graph.constants[i].astype(np.float64) for i in node.inputs[1:])
    epsilon = node.attributes.get("epsilon", 1e-5)
    assert isinstance(epsilon, int | float)
    scale = scale / np.sqrt(variance + epsilon)
    return Affine(scale, bias - mean * scale)


def _takes(graph: Graph, before: Node, norm: Node) -> bool:
    """The node before has constant weights, and its channels are those that the norm runs over."""
    if before.operator not in SCALES or any(i not in graph.constants for i in before.inputs[1:] if i):
        return False
    rank = len(graph.values[norm.inputs[0]].shape)
    return _axis(norm, rank) == CHANNEL[before.operator](before, rank) and before.attributes.get("beta", 1.0) == 1.0


def _axis(norm: Node, rank: int) -> int:
    axis = norm.attributes.get("axis", 1)
    assert isinstance(axis, int)
    return axis % rank


def _folded(new: Rewrite, before: Node, affine: Affine, norm: Node) -> Node:
    w = new.constants[before.inputs[1]]
    scaled = (w * SCALES[before.operator](before, w, affine.scale)).astype(w.dtype)
    old = new.constants[before.inputs[2]].astype(np.float64) if len(before.inputs) > 2 and before.inputs[2] else 0.0
    shift = np.asarray(old * affine.scale + affine.shift).astype(w.dtype)
    inputs = (before.inputs[0], new.constant(scaled, before.inputs[1]), new.constant(shift, f"{before.name}.bias"))
    return replace(before, inputs=inputs, outputs=norm.outputs)


def _spell_out(new: Rewrite, norm: Node, affine: Affine) -> None:
    value = new.values[norm.inputs[0]]
    rank = len(value.shape)
    spread = (-1, *(1,) * (rank - 1 - _axis(norm, rank)))
    scale, shift = (a.astype(value.dtype).reshape(spread) for a in (affine.scale, affine.shift))
    product = new.add("mul", (norm.inputs[0], new.constant(scale, f"{norm.name}.scale")), {}, f"{norm.name}.scaled")
    new.add("add", (product, new.constant(shift, f"{norm.name}.shift")), {}, norm.name, output=norm.outputs[0])


# --- where the output channels of a weight are ----------------------------------------------------------------------


def _channel(node: Node, rank: int) -> int:
    return rank - 1 if is_channels_last(node) else 1


def _conv_scale(node: Node, w: Array, scale: Array) -> Array:
    return scale if is_channels_last(node) else scale.reshape(-1, *(1,) * (w.ndim - 1))


def _transposed_scale(node: Node, w: Array, scale: Array) -> Array:
    """Weights are I, O / groups, space (or space, O / groups, I): input channel i belongs to group i // (I / groups)."""
    groups = node.attributes.get("groups", 1)
    assert isinstance(groups, int)
    ins = w.shape[-1] if is_channels_last(node) else w.shape[0]
    by_input = np.repeat(scale.reshape(groups, -1), ins // groups, axis=0)
    return by_input.T if is_channels_last(node) else by_input.reshape(*by_input.shape, *(1,) * (w.ndim - 2))


def _gemm_scale(node: Node, w: Array, scale: Array) -> Array:
    return scale.reshape(-1, 1) if node.attributes.get("trans_b") else scale


SCALES: Mapping[str, Callable[[Node, Array, Array], Array]] = {
    "conv":           _conv_scale,
    "conv_transpose": _transposed_scale,
    "gemm":           _gemm_scale,
}  # fmt: skip

CHANNEL: Mapping[str, Callable[[Node, int], int]] = {
    "conv":           _channel,
    "conv_transpose": _channel,
    "gemm":           lambda node, rank: 1,
}  # fmt: skip
