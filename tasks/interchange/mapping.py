"""What another tuner computed, as a workload of ours.

A task has a name and arguments, and its definition is a program that nobody sees; so only names are mapped whose
definition is public and fixed. Everything else stays unmapped, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ir.fuse import workloads
from ir.graph import Graph, ModelError
from ir.passes import optimise
from ir.zoo.builder import Builder
from tasks.interchange.formats import Record

MOST_ELEMENTS = 1 << 26  # of a tensor: what is larger is no operator of a network
DIMENSION = 1 << 20

Shape = tuple[int, ...]


class Unmapped(ValueError):
    """Why there is no workload: a few words that are alike for tasks that fail alike."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """key: workloads.key of the part that does the arithmetic. flops: of one call of that."""

    key: str
    flops: float


@dataclass(frozen=True, slots=True)
class Task:
    """One public definition. name: a pattern for the task's. graph: writes it; raises Unmapped, LookupError, ..."""

    tool: str
    name: re.Pattern[str]
    graph: Callable[[Builder, Sequence[Any]], str]


def mapped(record: Record) -> Mapped:
    """The workload that computes the same. Unmapped: there is none, or nobody can say."""
    if record.tool == "metaschedule":
        raise Unmapped("MetaSchedule keeps what it computes in a binary form of its own")
    task = next((t for t in TASKS if t.tool == record.tool and t.name.fullmatch(record.task)), None)
    if task is None:
        hashed = re.fullmatch(r"[0-9a-f]{32}", record.task)
        raise Unmapped("named by a hash alone" if hashed else f"no definition of {record.task[:60]}")
    b = Builder(record.task)
    try:
        graph = b.graph(task.graph(b, record.arguments))
        return _heaviest(graph)
    except Unmapped:
        raise
    except (LookupError, TypeError, ValueError, ModelError, AssertionError) as error:
        raise Unmapped(f"arguments that are not those of {record.task[:60]}") from error


def _heaviest(graph: Graph) -> Mapped:
    """Layout changes at the border are workloads of their own; the arithmetic is in one."""
    found = max(workloads(optimise(graph)).workloads, key=lambda w: w.dag.flops)
    return Mapped(found.key, found.dag.flops)


# --- AutoTVM: tensors are ["TENSOR", shape, dtype]; definitions are those of TVM's operator inventory (topi)


def _convolution(b: Builder, arguments: Sequence[Any]) -> str:
    """data NCHW, kernel OIHW, strides, padding (top, left, bottom, right), dilation, layouts, dtype"""
    data, kernel, strides, padding, dilation = arguments[:5]
    _only("NCHW", [a for a in arguments[5:] if isinstance(a, str) and re.fullmatch(r"N\w*C\w*", a)])
    return _conv(b, _shape(data), _shape(kernel), _pair(strides), _pads(padding), _pair(dilation), 1)


def _depthwise(b: Builder, arguments: Sequence[Any]) -> str:
    """kernel: channels, multiplier, height, width"""
    data, kernel, strides, padding, dilation = arguments[:5]
    _only("NCHW", [a for a in arguments[5:] if isinstance(a, str) and re.fullmatch(r"N\w*C\w*", a)])
    channels, multiplier, *taps = _shape(kernel)
    weight = (channels * multiplier, 1, *taps)
    return _conv(b, _shape(data), weight, _pair(strides), _pads(padding), _pair(dilation), channels)


def _grouped(b: Builder, arguments: Sequence[Any]) -> str:
    data, kernel, strides, padding, dilation, groups = arguments[:6]
    return _conv(b, _shape(data), _shape(kernel), _pair(strides), _pads(padding), _pair(dilation), int(groups))


def _dense(b: Builder, arguments: Sequence[Any]) -> str:
    """x (M, K) times the transposed constant (N, K)"""
    (m, k), (n, inner) = _shape(arguments[0]), _shape(arguments[1])
    if k != inner or arguments[2] is not None:
        raise Unmapped("a dense layer with a bias of its own")
    return b.node("matmul", b.input("x", (m, k)), b.weight((k, n), k), name="y")


def _batched(b: Builder, arguments: Sequence[Any]) -> str:
    """x (B, M, K) times the transposed y (B, N, K)"""
    x, y = b.input("x", _shape(arguments[0])), b.input("z", _shape(arguments[1]))
    return b.node("matmul", x, b.node("transpose", y, perm=(0, 2, 1)), name="y")


def _conv(b: Builder, data: Shape, kernel: Shape, strides: Shape, pads: Shape, dilations: Shape, groups: int) -> str:
    if len(data) != 4 or len(kernel) != 4:
        raise Unmapped("a blocked layout")
    weight = b.uniform(kernel, -1.0, 1.0)
    return b.convolution(
        b.input("x", data), weight, name="y", strides=strides, pads=pads, dilations=dilations, groups=groups
    )


def _shape(tensor: Any) -> Shape:
    kind, shape, dtype = tensor
    if kind != "TENSOR" or dtype != "float32":
        raise Unmapped(f"tensors of {str(dtype)[:20]}")
    return _bounded(shape)


def _bounded(shape: Sequence[Any]) -> Shape:
    if not all(isinstance(n, int) and 0 < n <= DIMENSION for n in shape) or prod(shape) > MOST_ELEMENTS:
        raise Unmapped("tensors that are too large, or of no fixed size")
    return tuple(shape)


def _pair(value: Any) -> Shape:
    return (int(value),) * 2 if isinstance(value, int) else (int(value[0]), int(value[1]))


def _pads(value: Any) -> Shape:
    if isinstance(value, str):
        raise Unmapped("padding by name")
    return tuple(map(int, value)) if not isinstance(value, int) and len(value) == 4 else _pair(value) * 2


def _only(layout: str, found: Sequence[str]) -> None:
    if any(f != layout for f in found):
        raise Unmapped(
            "a blocked layout" if any(re.search(r"\d", f) for f in found) else f"layouts other than {layout}"
        )


# --- Ansor: [name, arguments..]; definitions are those of TVM's tests and tutorials


def _matmul(b: Builder, arguments: Sequence[Any]) -> str:
    """(N, M, K) of matmul_auto_scheduler_test"""
    n, m, k = arguments[:3]
    return b.node("matmul", b.input("x", _bounded((n, k))), b.input("z", _bounded((k, m))), name="y")


def _layer(b: Builder, arguments: Sequence[Any]) -> str:
    """conv2d_layer of the tutorial on convolutions: N, H, W, CO, CI, KH, KW, strides, padding; with bias and relu"""
    n, h, w, co, ci, kh, kw, strides, padding = arguments
    x, kernel = b.input("x", _bounded((n, ci, h, w))), b.uniform(_bounded((co, ci, kh, kw)), -1.0, 1.0)
    bias = b.constant(b.uniform((co,), -1.0, 1.0), "bias")
    y = b.convolution(x, kernel, bias, name="c", strides=_pair(strides), pads=_pads(padding))
    return b.node("relu", y, name="y")


TASKS = (
    Task("autotvm", re.compile(r"conv2d_nchwc?(_\w+)?\.\w+", re.IGNORECASE), _convolution),
    Task("autotvm", re.compile(r"depthwise_conv2d_nchwc?(_\w+)?\.\w+", re.IGNORECASE), _depthwise),
    Task("autotvm", re.compile(r"group_conv2d_nchw(_\w+)?\.\w+", re.IGNORECASE), _grouped),
    Task("autotvm", re.compile(r"dense_\w+\.\w+"), _dense),
    Task("autotvm", re.compile(r"batch_matmul(_\w+)?\.\w+"), _batched),
    Task("ansor", re.compile(r"matmul_auto_scheduler_test"), _matmul),
    Task("ansor", re.compile(r"conv2d_layer"), _layer),
)
