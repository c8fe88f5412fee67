"""The paper's operators and subgraphs (Ansor, OSDI 2020, section 7.1 and 7.2): shapes, definitions, flops.

Shapes are those of Ansor's scripts (TVM's `te_workload.CONFIGS`). Definitions are channels-last, weights are
constants, and only useful multiplications count as flops: none by the zeros that a transposed convolution inserts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ir.compute import Dag
from ir.dsl import Handle, Stage, cast, compute, dag, exp, max, maximum, placeholder, reduce_axis, sqrt, sum
from ir.expr import Axis, Expr, all_of, le, lt, select

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PaperOperator:
    """One row: configurations at batch 1 (the first number is the batch), what it computes, what that costs."""

    shapes: tuple[Shape, ...]
    define: Callable[[Shape], Dag]
    flops: Callable[[Shape], float]
    title: str


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution's numbers; `size` and `out` are spatial, without batch and channels."""

    batch: int
    size: Shape
    inputs: int
    outputs: int
    kernel: int
    stride: int
    pad: int
    dilation: int = 1
    groups: int = 1

    @property
    def out(self) -> Shape:
        reach = self.dilation * (self.kernel - 1) + 1
        return tuple((h + 2 * self.pad - reach) // self.stride + 1 for h in self.size)

    @property
    def flops(self) -> float:
        taps = self.kernel ** len(self.size)
        return 2.0 * self.batch * self.outputs * (self.inputs // self.groups) * prod(self.out) * taps

    @property
    def transposed_out(self) -> Shape:
        return tuple((h - 1) * self.stride - 2 * self.pad + self.kernel for h in self.size)

    @property
    def transposed_flops(self) -> float:
        taps = self.kernel ** len(self.size)
        return 2.0 * self.batch * self.inputs * self.outputs * prod(self.size) * taps


def conv_of(shape: Shape, rank: int) -> Conv:
    """N, *spatial, CI, CO, k, s, p[, dilation[, groups]]"""
    return Conv(shape[0], shape[1 : 1 + rank], *shape[1 + rank :])


def depthwise_of(shape: Shape) -> Conv:
    """N, H, W, C, k, s, p"""
    n, h, w, c, k, s, p = shape
    return Conv(n, (h, w), c, c, k, s, p, groups=c)


# --- definitions ------------------------------------------------------------------------------------------------


def padded(x: Handle, before: Sequence[int], after: Sequence[int]) -> Handle:
    """x with zeros around it, dimension by dimension; x itself where there is nothing to add."""
    if not any((*before, *after)):
        return x
    shape = [b + e + a for b, e, a in zip(before, x.extents, after, strict=True)]
    moved = list(zip(before, after, x.extents, strict=True))

    def element(*i: Axis) -> Expr:
        inside = [c for a, m in zip(i, moved, strict=True) for c in _inside(a, *m)]
        return select(all_of(*inside), x[tuple(a - b if b else a for a, b in zip(i, before, strict=True))], 0.0)

    return compute(shape, element, "pad")


def _inside(a: Axis, before: int, after: int, extent: int) -> list[Expr]:
    return [le(before, a)] * bool(before) + [lt(a, before + extent)] * bool(after)


def windows(conv: Conv, y: Sequence[Axis], k: Sequence[Axis]) -> list[Expr]:
    return [a * conv.stride + b * conv.dilation for a, b in zip(y, k, strict=True)]


def convolution(x: Handle, w: Handle, conv: Conv) -> Stage:
    """x[n, *size, c], w[*kernel, c, o]      -->      y[n, *out, o]"""
    rank = len(conv.size)
    border = [0, *[conv.pad] * rank, 0]
    source = padded(x, border, border)
    k = [reduce_axis(conv.kernel) for _ in range(rank)]
    c = reduce_axis(conv.inputs)

    def element(n: Axis, *rest: Axis) -> object:
        *y, o = rest
        return sum(source[(n, *windows(conv, y, k), c)] * w[(*k, c, o)], [*k, c])

    return compute((conv.batch, *conv.out, conv.outputs), element, "conv", _axes("n", "yx"[-rank:] if rank < 3 else "zyx", "o"))


def _axes(*parts: str) -> tuple[str, ...]:
    return tuple(letter for part in parts for letter in part)


def weights(conv: Conv) -> Handle:
    shape = (*[conv.kernel] * len(conv.size), conv.inputs // conv.groups, conv.outputs)
    return placeholder(shape, "w", constant=True)


def image(conv: Conv) -> Handle:
    return placeholder((conv.batch, *conv.size, conv.inputs), "x")


def define_conv(conv: Conv) -> Dag:
    return dag([convolution(image(conv), weights(conv), conv)])


def define_grouped(shape: Shape) -> Dag:
    """w[*k, c, g, o]: the output channels of a group lie together, so y[n, y, x, g, o] is y[n, y, x, g * O + o]."""
    conv = conv_of(shape, 2)
    inner, outer = conv.inputs // conv.groups, conv.outputs // conv.groups
    border = (0, conv.pad, conv.pad, 0)
    source = padded(image(conv), border, border)
    w = placeholder((conv.kernel, conv.kernel, inner, conv.groups, outer), "w", constant=True)
    k, c = [reduce_axis(conv.kernel) for _ in range(2)], reduce_axis(inner)
    return dag([
        compute(
            (conv.batch, *conv.out, conv.groups, outer),
            lambda n, y, x, g, o: sum(source[(n, *windows(conv, (y, x), k), g * inner + c)] * w[(*k, c, g, o)], [*k, c]),
            "conv",
        )
    ])


def define_depthwise(shape: Shape) -> Dag:
    conv = depthwise_of(shape)
    border = (0, conv.pad, conv.pad, 0)
    source = padded(image(conv), border, border)
    w = placeholder((conv.kernel, conv.kernel, conv.outputs), "w", constant=True)
    k = [reduce_axis(conv.kernel) for _ in range(2)]
    return dag([
        compute(
            (conv.batch, *conv.out, conv.outputs),
            lambda n, y, x, c: sum(source[(n, *windows(conv, (y, x), k), c)] * w[(*k, c)], k),
            "depthwise",
        )
    ])


def define_gemm(shape: Shape) -> Dag:
    batch, n, m, k = shape
    a, b = placeholder((batch, n, k), "a"), placeholder((batch, k, m), "b")
    r = reduce_axis(k)
    return dag([compute((batch, n, m), lambda b_, i, j: sum(a[b_, i, r] * b[b_, r, j], r), "gemm")], [a, b])  # type: ignore[list-item]


def define_capsule(shape: Shape) -> Dag:
    """4 x 4 matrices as channels: y[.., i, j, o] = sum over taps, k, c of x[.., i, k, c] * w[taps, k, j, c, o]."""
    n, h, w_, ci, co, size, stride, pad = shape
    conv = Conv(n, (h, w_), ci, co, size, stride, pad)
    x = placeholder((n, h, w_, 4, 4, ci), "x")
    w = placeholder((size, size, 4, 4, ci, co), "w", constant=True)
    border = (0, pad, pad, 0, 0, 0)
    source = padded(x, border, border)
    t, k, c = [reduce_axis(size) for _ in range(2)], reduce_axis(4), reduce_axis(ci)
    return dag([
        compute(
            (n, *conv.out, 4, 4, co),
            lambda n, y, x, i, j, o: sum(source[(n, *windows(conv, (y, x), t), i, k, c)] * w[(*t, k, j, c, o)], [*t, k, c]),
            "capsule",
        )
    ])


def define_norm(shape: Shape) -> Dag:
    b, m, n = shape
    a = placeholder((b, m, n), "a")
    i, j = reduce_axis(m), reduce_axis(n)
    squares = compute((b,), lambda b_: sum(a[b_, i, j] * a[b_, i, j], [i, j]), "squares")
    return dag([compute((b,), lambda b_: sqrt(squares[b_]), "norm")])


def define_layer(shape: Shape) -> Dag:
    """Convolution with bias, batch normalisation as scale and offset, relu."""
    conv = conv_of(shape, 2)
    per_channel = [placeholder((conv.outputs,), name, constant=True) for name in ("bias", "scale", "offset")]
    bias, scale, offset = per_channel
    y = convolution(image(conv), weights(conv), conv)
    biased = compute(y.shape, lambda n, y_, x, o: y[n, y_, x, o] + bias[o], "bias_add")
    normed = compute(y.shape, lambda n, y_, x, o: biased[n, y_, x, o] * scale[o] + offset[o], "bn")
    return dag([compute(y.shape, lambda n, y_, x, o: maximum(normed[n, y_, x, o], 0), "relu")])


def scores(shape: Shape) -> tuple[list[Handle], Stage]:
    """Queries and keys as (batch, sequence, head, dimension): transposes fused into a batched product."""
    batch, length, heads, size = shape
    q, v = (placeholder((batch, length, heads, size), name) for name in ("q", "v"))
    d = reduce_axis(size)
    y = compute((batch, heads, length, length), lambda b, h, i, j: sum(q[b, i, h, d] * v[b, j, h, d], d), "scores")
    return [q, v], y


def define_scores(shape: Shape) -> Dag:
    inputs, y = scores(shape)
    return dag([y], inputs)  # type: ignore[arg-type]


def define_softmax_scores(shape: Shape) -> Dag:
    inputs, y = scores(shape)
    return dag([softmax(y)], inputs)  # type: ignore[arg-type]


def softmax(x: Handle) -> Stage:
    """Over the last dimension, shifted by the maximum."""
    *outer, length = x.extents
    j, k = reduce_axis(length), reduce_axis(length)
    names = [f"i{n}" for n in range(len(outer))]
    largest = compute(outer, lambda *i: max(x[(*i, j)], j), "largest", names)
    e = compute(x.extents, lambda *i: exp(x[i] - largest[i[:-1]]), "exp", [*names, "j"])
    total = compute(outer, lambda *i: sum(e[(*i, k)], k), "total", names)
    return compute(x.extents, lambda *i: e[i] / total[i[:-1]], "softmax", [*names, "j"])


def define_transposed(shape: Shape) -> Dag:
    conv = conv_of(shape, 2)
    phases = Phases(conv.kernel, conv.stride, conv.pad)
    s, taps = conv.stride, phases.taps
    w = placeholder((s, s, taps, taps, conv.inputs, conv.outputs), "w", constant=True)
    return dag([transposed(image(conv), w, conv, phases)])
