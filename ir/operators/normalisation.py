"""Softmax and the normalisations. Sums of float16 are kept in float32."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from ir import dsl
from ir.dsl import Handle, Reduction, Stage, call, cast, compute, le, lt, reduce_axis, select
from ir.expr import Expr, all_of, eq
from ir.operators.operator import (
    Attributes,
    Index,
    Inputs,
    Operator,
    at,
    integer,
    ints,
    maybe,
    need,
    normal_axes,
    normal_axis,
    real,
    wide,
)
from ir.operators.reduction import over_axes, square


def _softmax(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """exp(x - max) / sum over `axes`; the maximum is subtracted so that nothing overflows."""
    x = need(inputs, 0)
    axes = normal_axes(ints(attributes, "axes", (-1,)), len(x.shape))
    top = over_axes(x.shape, axes, lambda i: x[tuple(i)], dsl.max, "softmax_max")
    power = compute(x.shape, lambda *i: call("exp", wide(x[i]) - wide(at(top, i))), "softmax_exp")
    total = over_axes(x.shape, axes, lambda i: power[tuple(i)], dsl.sum, "softmax_sum")
    return [compute(x.shape, lambda *i: cast(power[i] / at(total, i), x.dtype), "softmax")]


def _log_softmax(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    x = need(inputs, 0)
    axes = normal_axes(ints(attributes, "axes", (-1,)), len(x.shape))
    top = over_axes(x.shape, axes, lambda i: x[tuple(i)], dsl.max, "softmax_max")

    def shifted(i: Index) -> Expr:
        return wide(x[tuple(i)]) - wide(at(top, i))

    total = over_axes(x.shape, axes, lambda i: call("exp", shifted(i)), dsl.sum, "softmax_sum")
    return [compute(x.shape, lambda *i: cast(shifted(i) - call("log", at(total, i)), x.dtype), "log_softmax")]


def _moments(x: Handle, axes: tuple[int, ...], epsilon: float, name: str) -> tuple[Stage, Stage]:
    """(mean, 1 / sqrt(variance + epsilon)) with kept dimensions, in two passes: no cancellation of squares."""
    count = float(prod(x.shape[a] for a in axes))
    total = over_axes(x.shape, axes, lambda i: wide(x[tuple(i)]), dsl.sum, f"{name}_sum")
    mean = compute(total.shape, lambda *i: total[i] / count, f"{name}_mean")
    squares = over_axes(x.shape, axes, lambda i: square(wide(x[tuple(i)]) - at(mean, i)), dsl.sum, f"{name}_squares")
    inverse = compute(squares.shape, lambda *i: call("rsqrt", squares[i] / count + epsilon), f"{name}_inverse")
    return mean, inverse


def _layer_norm(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Ba, Kiros, Hinton 2016, over the dimensions from `axis` on. Outputs: y, mean, 1 / standard deviation."""
    x, scale, bias = need(inputs, 0), maybe(inputs, 1), maybe(inputs, 2)
    first = normal_axis(integer(attributes, "axis", -1), len(x.shape))
    axes = tuple(range(first, len(x.shape)))
    mean, inverse = _moments(x, axes, real(attributes, "epsilon", 1e-5), "layer_norm")

    def element(*i: Expr) -> Expr:
        out = (wide(x[i]) - at(mean, i)) * at(inverse, i)
        out = out if scale is None else out * wide(at(scale, i))
        return cast(out if bias is None else out + wide(at(bias, i)), x.dtype)

    return [compute(x.shape, element, "layer_norm"), mean, inverse]


def _rms_norm(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Zhang and Sennrich 2019: x / sqrt(mean(x^2) + epsilon) * scale, over the dimensions from `axis` on."""
    x, scale = need(inputs, 0), maybe(inputs, 1)
    first = normal_axis(integer(attributes, "axis", -1), len(x.shape))
    axes = tuple(range(first, len(x.shape)))
    count, epsilon = float(prod(x.shape[first:])), real(attributes, "epsilon", 1e-5)
    squares = over_axes(x.shape, axes, lambda i: square(wide(x[tuple(i)])), dsl.sum, "rms_norm_squares")
    inverse = compute(squares.shape, lambda *i: call("rsqrt", squares[i] / count + epsilon), "rms_norm_inverse")

    def element(*i: Expr) -> Expr:
        out = wide(x[i]) * at(inverse, i)
        return cast(out if scale is None else out * wide(at(scale, i)), x.dtype)

    return [compute(x.shape, element, "rms_norm")]


def _batch_norm(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Inference: (x - mean) * scale / sqrt(variance + epsilon) + bias by channel (`axis`)."""
    x, scale, bias, mean, variance = (need(inputs, p) for p in range(5))
    axis, epsilon = normal_axis(integer(attributes, "axis", 1), len(x.shape)), real(attributes, "epsilon", 1e-5)

    def element(*i: Expr) -> Expr:
        c = i[axis]
        factor = wide(scale[c]) * call("rsqrt", wide(variance[c]) + epsilon)
        return cast((wide(x[i]) - wide(mean[c])) * factor + wide(bias[c]), x.dtype)

    return [compute(x.shape, element, "batch_norm")]


def _instance_norm(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Each (sample, channel) by its own moments; scale and bias by channel (`axis`)."""
    x, scale, bias = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    axis = normal_axis(integer(attributes, "axis", 1), len(x.shape))
    axes = tuple(d for d in range(len(x.shape)) if d not in (0, axis))
    mean, inverse = _moments(x, axes, real(attributes, "epsilon", 1e-5), "instance_norm")

    def element(*i: Expr) -> Expr:
        out = (wide(x[i]) - at(mean, i)) * at(inverse, i) * wide(scale[i[axis]]) + wide(bias[i[axis]])
        return cast(out, x.dtype)

    return [compute(x.shape, element, "instance_norm")]


def _group_norm(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Wu and He 2018: moments of each (sample, group of channels); scale and bias by channel (`axis`)."""
    x, scale, bias = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    axis, groups = normal_axis(integer(attributes, "axis", 1), len(x.shape)), integer(attributes, "groups")
    if x.shape[axis] % groups:
        raise ValueError(f"{x.shape[axis]} channels do not divide into {groups} groups")
    size = x.shape[axis] // groups
    split = (*x.shape[:axis], groups, size, *x.shape[axis + 1 :])
    grouped = compute(
        split, lambda *i: x[(*i[:axis], i[axis] * size + i[axis + 1], *i[axis + 2 :])], "group_norm_split"
    )
    axes = tuple(d for d in range(1, len(split)) if d != axis)
    mean, inverse = _moments(grouped, axes, real(attributes, "epsilon", 1e-5), "group_norm")

    def element(*i: Expr) -> Expr:
        where = (i[0], *(i[axis] // size if d == axis else 0 for d in range(1, len(split))))
        out = (wide(x[i]) - mean[where]) * inverse[where]
        return cast(out * wide(scale[i[axis]]) + wide(bias[i[axis]]), x.dtype)

    return [compute(x.shape, element, "group_norm")]


def _lp_normalize(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """x / |x|_p along `axis`; 0 where the norm is 0 (ONNX LpNormalization)."""
    x, p = need(inputs, 0), integer(attributes, "p", 2)
    axis = normal_axis(integer(attributes, "axis", -1), len(x.shape))
    size: Callable[[Expr], Expr] = square if p == 2 else lambda v: call("abs", v)
    total = over_axes(x.shape, (axis,), lambda i: size(wide(x[tuple(i)])), dsl.sum, "lp_total")

    def element(*i: Expr) -> Expr:
        norm = call("sqrt", at(total, i)) if p == 2 else at(total, i)
        return cast(select(eq(norm, 0), 0, wide(x[i]) / norm), x.dtype)

    return [compute(x.shape, element, "lp_normalize")]


def _lrn(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """x / (bias + alpha / size * sum of squares of `size` neighbouring channels)^beta (Krizhevsky 2012, 3.3)."""
    x, size = need(inputs, 0), integer(attributes, "size")
    axis = normal_axis(integer(attributes, "axis", 1), len(x.shape))
    alpha, beta = real(attributes, "alpha", 1e-4), real(attributes, "beta", 0.75)
    bias, before = real(attributes, "bias", 1.0), (size - 1) // 2
    k = reduce_axis(size, "k")

    def squares(*i: Expr) -> Reduction:
        c = i[axis] + k
        value = wide(x[(*i[:axis], c - before, *i[axis + 1 :])])
        return dsl.sum(select(all_of(le(before, c), lt(c, x.shape[axis] + before)), value * value, 0), k)

    total = compute(x.shape, squares, "lrn_squares")

    def element(*i: Expr) -> Expr:
        return cast(wide(x[i]) / call("pow", bias + alpha / size * total[i], beta), x.dtype)

    return [compute(x.shape, element, "lrn")]


OPERATORS = (
    Operator("softmax",       _softmax),
    Operator("log_softmax",   _log_softmax),
    Operator("layer_norm",    _layer_norm),
    Operator("rms_norm",      _rms_norm),
    Operator("batch_norm",    _batch_norm),
    Operator("instance_norm", _instance_norm),
    Operator("group_norm",    _group_norm),
    Operator("lp_normalize",  _lp_normalize),
    Operator("lrn",           _lrn),
)  # fmt: skip
