"""Graphs as ONNX files: what the zoo is made of, so that others can run it too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ir.graph import Attribute, Graph, ModelError, Node, Value

OPSET, IR_VERSION = 20, 9  # the first opset with Gelu, the first IR version that has it


class Writer:
    """A model under construction; some attributes of ours are inputs there."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.initialisers = [numpy_helper.from_array(array, name) for name, array in graph.constants.items()]
        self.nodes = [self.node(n) for n in graph.nodes]

    def node(self, n: Node) -> NodeProto:
        if n.operator not in ROWS:
            raise ModelError(f"{n.operator} ({n.name}) cannot be written as ONNX; there is {', '.join(ROWS)}")
        kind, turn = ROWS[n.operator]
        inputs, attributes = turn(self, n)
        return helper.make_node(kind, [*n.inputs, *inputs], list(n.outputs), n.name, **attributes)

    def constant(self, n: Node, what: str, values: Attribute, dtype: str = "int64") -> str:
        name = f"{n.name}.{what}"
        self.initialisers.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name


Turned = tuple[list[str], dict[str, Any]]  # more inputs, and attributes by their ONNX names
Turn = Callable[[Writer, Node], Turned]


def renamed(**names: str) -> Turn:
    """Attributes of ours under their ONNX names; any other one is refused."""

    def turn(_: Writer, n: Node) -> Turned:
        unknown = set(n.attributes) - set(names)
        if unknown:
            raise ModelError(f"{n.operator} ({n.name}) with {min(unknown)} cannot be written as ONNX")
        values = {names[k]: int(v) if isinstance(v, bool) else v for k, v in n.attributes.items()}
        return [], values

    return turn


def as_input(what: str, **names: str) -> Turn:
    """The attribute `what` becomes the last input."""

    def turn(w: Writer, n: Node) -> Turned:
        rest = {names[k]: int(v) for k, v in n.attributes.items() if k != what and isinstance(v, bool | int)}
        return [w.constant(n, what, n.attributes[what])], rest

    return turn


def _conv(_: Writer, n: Node) -> Turned:
    if "layout" in n.attributes:
        raise ModelError(f"{n.operator} ({n.name}) is channels-last, which ONNX has not")
    names = {"groups": "group", "strides": "strides", "pads": "pads", "dilations": "dilations"}
    return [], {names[k]: v for k, v in n.attributes.items()}


def _clip(w: Writer, n: Node) -> Turned:
    dtype = w.graph.values[n.inputs[0]].dtype
    return [w.constant(n, k, n.attributes[k], dtype) if k in n.attributes else "" for k in ("low", "high")], {}


def _slice(w: Writer, n: Node) -> Turned:
    starts, sizes, steps = (np.asarray(n.attributes[k]) for k in ("starts", "sizes", "steps"))
    if (steps < 1).any():
        raise ModelError(f"slice ({n.name}) with a negative step cannot be written as ONNX")
    every = tuple(range(len(starts)))
    parts = {"starts": starts, "ends": starts + (sizes - 1) * steps + 1, "axes": every, "steps": steps}
    return [w.constant(n, k, tuple(int(v) for v in values)) for k, values in parts.items()], {}


def _softmax(w: Writer, n: Node) -> Turned:
    axes = n.attributes.get("axes", (-1,))
    if not isinstance(axes, tuple) or len(axes) != 1:
        raise ModelError(f"softmax ({n.name}) over {axes} cannot be written as ONNX: it has one axis")
    return [], {"axis": int(axes[0])}


def _batch_norm(w: Writer, n: Node) -> Turned:
    if n.attributes.get("axis", 1) != 1:
        raise ModelError(f"batch_norm ({n.name}) is channels-last, which ONNX has not")
    return [], {k: v for k, v in n.attributes.items() if k == "epsilon"}


ROWS: dict[str, tuple[str, Turn]] = {
    "add":            ("Add",                renamed()),
    "batch_norm":     ("BatchNormalization", _batch_norm),
    "clip":           ("Clip",               _clip),
    "concat":         ("Concat",             renamed(axis="axis")),
    "conv":           ("Conv",               _conv),
    "conv_transpose": ("ConvTranspose",      _conv),
    "expand":         ("Expand",             as_input("shape")),
    "gather":         ("Gather",             renamed(axis="axis")),
    "gelu":           ("Gelu",               renamed(approximate="approximate")),
    "gemm":           ("Gemm",               renamed(trans_a="transA", trans_b="transB", alpha="alpha", beta="beta")),
    "layer_norm":     ("LayerNormalization", renamed(axis="axis", epsilon="epsilon")),
    "matmul":         ("MatMul",             renamed()),
    "max_pool":       ("MaxPool",            renamed(kernel="kernel_shape", strides="strides", pads="pads")),
    "mul":            ("Mul",                renamed()),
    "reduce_l2":      ("ReduceL2",           as_input("axes", keepdims="keepdims")),
    "reduce_mean":    ("ReduceMean",         as_input("axes", keepdims="keepdims")),
    "relu":           ("Relu",               renamed()),
    "reshape":        ("Reshape",            as_input("shape")),
    "slice":          ("Slice",              _slice),
    "softmax":        ("Softmax",            _softmax),
    "tanh":           ("Tanh",               renamed()),
    "transpose":      ("Transpose",          renamed(perm="perm")),
}  # fmt: skip


def write(graph: Graph) -> bytes:
    """The graph as an ONNX model, weights inside. Raises ModelError for what ONNX, or this table, does not have."""
    writer = Writer(graph)

    def infos(names: Sequence[str]) -> list[ValueInfoProto]:
        return [_info(graph.values[n]) for n in names]

    made = helper.make_graph(writer.nodes, graph.name, infos(graph.inputs), infos(graph.outputs), writer.initialisers)
    opset = [helper.make_opsetid("", OPSET)]
    data: bytes = helper.make_model(made, opset_imports=opset, ir_version=IR_VERSION).SerializeToString()
    return data


def _info(v: Value) -> ValueInfoProto:
    return helper.make_tensor_value_info(v.name, _element_type(v.dtype), v.shape)


def _element_type(dtype: str) -> int:
    if dtype == "bfloat16":
        return int(TensorProto.BFLOAT16)
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
