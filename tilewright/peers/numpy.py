"""NumPy and its BLAS, for graphs of products, transpositions and the like; results go to arrays made before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.peers.contender import Array, Case, Given, Ready, Unsupported


def load(case: Case, given: Given) -> Ready:
    graph = case.graph()
    unknown = sorted({n.operator for n in graph.nodes} - set(TABLE))
    if unknown:
        raise Unsupported(f"NumPy has no {unknown[0]}")
    values = {**graph.constants, **given}
    made = [graph.values[n.outputs[0]] for n in graph.nodes]
    steps = [
        (TABLE[n.operator], dict(n.attributes), np.empty(v.shape, v.dtype), n.inputs, v.name)
        for n, v in zip(graph.nodes, made, strict=True)
    ]

    def run() -> Sequence[Array]:
        for function, attributes, out, sources, name in steps:
            values[name] = function(attributes, out, *(values[s] for s in sources))
        return [values[o] for o in graph.outputs]

    return Ready(run, run)


def _softmax(a: dict[str, Any], out: Array, x: Array) -> Array:
    axes = a.get("axes", (-1,))
    np.exp(np.subtract(x, x.max(axes, keepdims=True), out=out), out=out)
    out /= out.sum(axes, keepdims=True)
    return out


def _root_of_squares(a: dict[str, Any], out: Array, x: Array) -> Array:
    """In one pass, without an array of squares."""
    every = list(range(x.ndim))
    kept = [d for d in every if d not in {axis % x.ndim for axis in a.get("axes", every)}]
    np.sqrt(np.einsum(x, every, x, every, kept).reshape(out.shape), out=out)
    return out


# What a row computes from attributes, an array for the result (views need none) and the inputs.
TABLE: dict[str, Callable[..., Array]] = {
    "add":       lambda a, out, x, y: np.add(x, y, out=out),
    "matmul":    lambda a, out, x, y: np.matmul(x, y, out=out),
    "mul":       lambda a, out, x, y: np.multiply(x, y, out=out),
    "reduce_l2": _root_of_squares,
    "relu":      lambda a, out, x: np.maximum(x, 0, out=out),
    "reshape":   lambda a, out, x: x.reshape(a["shape"]),
    "softmax":   _softmax,
    "tanh":      lambda a, out, x: np.tanh(x, out=out),
    "transpose": lambda a, out, x: x.transpose(a.get("perm")),
}  # fmt: skip
