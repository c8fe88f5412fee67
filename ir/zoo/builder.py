"""Writes graphs node by node; shapes and dtypes follow from the definitions of the operators."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod, sqrt

import numpy as np

from ir.graph import Attribute, Graph, Node, Value
from ir.operators import infer

LETTERS = {1: "W", 2: "HW", 3: "DHW"}


class Builder:
    """A graph under construction: methods add a node and return the name of its value.

    Random weights come from `seed`. `last`: convolutions are written channels-last, weights and all; the default is
    channels-first, as ONNX exports are.
    """

    def __init__(self, name: str, seed: int = 0, last: bool = False) -> None:
        self.name, self.seed, self.last = name, seed, last
        self.rng = np.random.default_rng(seed)
        self.values: dict[str, Value] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: list[str] = []
        self.nodes: list[Node] = []

    def graph(self, *outputs: str) -> Graph:
        return Graph(self.name, tuple(self.inputs), outputs, tuple(self.nodes), self.values, self.constants)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        self.values[name] = Value(name, tuple(shape), dtype)
        self.inputs.append(name)
        return name

    def constant(self, array: np.ndarray, name: str = "") -> str:
        name = name or f"c{len(self.constants)}"
        self.values[name] = Value(name, array.shape, str(array.dtype))
        self.constants[name] = array
        return name

    def node(self, operator: str, *inputs: str, name: str = "", **attributes: Attribute) -> str:
        """Add a node with one output, called like the node."""
        name = name or f"{operator}_{len(self.nodes)}"
        shape, dtype = infer(operator, [self.values[i] for i in inputs], attributes)[0]
        self.values[name] = Value(name, shape, dtype)
        self.nodes.append(Node(name, operator, inputs, (name,), attributes))
        return name

    # --- weights ------------------------------------------------------------------------------------------------

    def uniform(self, shape: Sequence[int], low: float, high: float) -> np.ndarray:
        values = self.rng.random(tuple(shape), dtype=np.float32)
        values *= np.float32(high - low)
        values += np.float32(low)
        return values

    def weight(self, shape: Sequence[int], fan_in: int) -> str:
        """Uniform within 1 / sqrt(fan_in), as PyTorch initialises convolutions and linear layers."""
        bound = 1 / sqrt(fan_in)
        return self.constant(self.uniform(shape, -bound, bound))

    # --- layers -------------------------------------------------------------------------------------------------

    def convolution(self, x: str, w: np.ndarray, *bias: str, name: str = "", **attributes: Attribute) -> str:
        """Weights come as O, I, space; `last` turns them."""
        rank = w.ndim - 2
        if self.last:
            w = np.ascontiguousarray(w.transpose(*range(2, rank + 2), 1, 0))
            attributes["layout"] = f"N{LETTERS[rank]}C"
        return self.node("conv", x, self.constant(w, name and f"{name}.w"), *bias, name=name, **attributes)

    def transposed(self, x: str, w: np.ndarray, *bias: str, name: str = "", **attributes: Attribute) -> str:
        """Weights come as I, O, space; `last` turns them."""
        rank = w.ndim - 2
        if self.last:
            w = np.ascontiguousarray(w.transpose(*range(2, rank + 2), 1, 0))
            attributes["layout"] = f"N{LETTERS[rank]}C"
        return self.node("conv_transpose", x, self.constant(w, name and f"{name}.w"), *bias, name=name, **attributes)

    def conv(
        self,
        x: str,
        outputs: int,
        kernel: Sequence[int],
        stride: Sequence[int],
        pad: Sequence[int] | None = None,
        groups: int = 1,
        bias: bool = False,
    ) -> str:
        """Half-padded unless `pad` says otherwise."""
        channels = self.shape(x)[-1 if self.last else 1]
        each = channels // groups
        bound = 1 / sqrt(each * prod(kernel))
        w = self.uniform((outputs, each, *kernel), -bound, bound)
        pads = tuple(k // 2 for k in kernel) if pad is None else tuple(pad)
        extra = [self.weight((outputs,), each * prod(kernel))] if bias else []
        return self.convolution(x, w, *extra, strides=tuple(stride), pads=pads * 2, groups=groups)

    def batch_norm(self, x: str) -> str:
        """Statistics and parameters vary, so that folding them into weights changes every channel."""
        axis = len(self.shape(x)) - 1 if self.last else 1
        c = self.shape(x)[axis]
        ranges = ((0.5, 1.0), (-0.2, 0.2), (-0.2, 0.2), (0.5, 1.5))  # scale, bias, mean, variance
        return self.node("batch_norm", x, *(self.constant(self.uniform((c,), *r)) for r in ranges), axis=axis)

    def linear(self, x: str, outputs: int) -> str:
        """x of rank 2 as a Gemm with a transposed weight, else as MatMul and Add: what exporters write."""
        size = self.shape(x)[-1]
        if len(self.shape(x)) == 2:
            return self.node("gemm", x, self.weight((outputs, size), size), self.weight((outputs,), size), trans_b=True)
        product = self.node("matmul", x, self.weight((size, outputs), size))
        return self.node("add", product, self.weight((outputs,), size))

    def layer_norm(self, x: str) -> str:
        d = self.shape(x)[-1]
        return self.node("layer_norm", x, self.constant(self.uniform((d,), 0.5, 1.0)), self.weight((d,), d), axis=-1)
