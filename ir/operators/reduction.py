"""Reductions. Sums of float16 are kept in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from ir import dsl
from ir.dsl import Handle, Reduction, Stage, any_of, call, cast, compute, le, lt, reduce_axis, select
from ir.expr import Axis, Expr, dtype_of, eq
from ir.operators.operator import (
    Attributes,
    Index,
    Inputs,
    Operator,
    at,
    flag,
    integer,
    ints,
    is_float,
    narrowed,
    need,
    normal_axes,
    normal_axis,
    wide,
)

Combine = Callable[[Any, Sequence[Axis]], Reduction]


def over_axes(
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    body: Callable[[Index], Expr],
    combine: Combine,
    name: str,
    keepdims: bool = True,
) -> Stage:
    """Combine body(index) over some dimensions of a virtual tensor of `shape`; kept ones have extent 1.

    Output axes are i0, i1, ... after the dimensions of the input, reduce axes k1, ... likewise.
    """
    kept = [d for d in range(len(shape)) if keepdims or d not in axes]
    extents = [1 if d in axes else shape[d] for d in kept]
    inner = {d: reduce_axis(shape[d], f"k{d}") for d in axes}

    def element(*i: Expr) -> Expr | Reduction:
        outer = dict(zip(kept, i, strict=True))
        value = body([inner.get(d, outer.get(d)) for d in range(len(shape))])  # type: ignore[misc]
        return combine(value, list(inner.values())) if inner else value

    return compute(extents, element, name, [f"i{d}" for d in kept])


def _reduce_axes(x: Handle, attributes: Attributes) -> tuple[int, ...]:
    return normal_axes(ints(attributes, "axes", tuple(range(len(x.shape)))), len(x.shape))


def _reduction(name: str, combine: Combine, term: Callable[[Expr], Expr], finish: Callable[[Expr, float], Expr] | None,
               sums: bool = True) -> Operator:  # fmt: skip
    """combine(term(x)) over `axes`, then finish(result, number of terms). `sums`: float16 needs a wider accumulator."""

    def define(inputs: Inputs, attributes: Attributes) -> list[Handle]:
        x = need(inputs, 0)
        axes, keep = _reduce_axes(x, attributes), flag(attributes, "keepdims", True)
        count = float(prod(x.shape[a] for a in axes))

        def body(i: Index) -> Expr:
            return term(wide(x[tuple(i)]) if sums else x[tuple(i)])

        total = over_axes(x.shape, axes, body, combine, name if finish is None else f"{name}_total", keep)
        if finish is None:
            return [narrowed(total, x.dtype, f"{name}_cast")]
        return [compute(total.shape, lambda *i: cast(finish(total[i], count), x.dtype), name)]

    return Operator(f"reduce_{name}", define)


def _mean_of(total: Expr, count: float) -> Expr:
    return total / (count if is_float(dtype_of(total)) else int(count))


def _floating(x: Expr) -> Expr:
    """Functions of integers are computed in double, then truncated back."""
    return wide(x) if is_float(dtype_of(x)) else cast(x, "float64")


def square(x: Expr) -> Expr:
    return x * x


def _same(x: Expr) -> Expr:
    return x


def _log_sum_exp(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """log(sum(exp(x - m))) + m with m = max(x), or 0 where that is infinite (else inf - inf would be NaN)."""
    x = need(inputs, 0)
    axes = _reduce_axes(x, attributes)
    top = over_axes(x.shape, axes, lambda i: _floating(x[tuple(i)]), dsl.max, "logsumexp_max")
    finite = compute(top.shape, lambda *i: select(lt(call("abs", top[i]), float("inf")), top[i], 0), "logsumexp_shift")
    total = over_axes(
        x.shape, axes, lambda i: call("exp", _floating(x[tuple(i)]) - at(finite, i)), dsl.sum, "logsumexp_total"
    )
    out = compute(total.shape, lambda *i: cast(call("log", total[i]) + finite[i], x.dtype), "logsumexp")
    return [out if flag(attributes, "keepdims", True) else _squeezed(out, axes, "logsumexp_squeeze")]


def _squeezed(x: Handle, axes: tuple[int, ...], name: str) -> Handle:
    shape = [e for d, e in enumerate(x.shape) if d not in axes]

    def element(*i: Expr) -> Expr:
        rest = iter(i)
        return x[tuple(0 if d in axes else next(rest) for d in range(len(x.shape)))]

    return compute(shape, element, name)


def _arg(name: str, extreme: Combine) -> Operator:
    """The index of the extreme: the first, or the last, where it occurs; a NaN is the extreme, as in NumPy."""

    def define(inputs: Inputs, attributes: Attributes) -> list[Handle]:
        x, last = need(inputs, 0), flag(attributes, "select_last")
        axis = normal_axis(integer(attributes, "axis", 0), len(x.shape))
        best = over_axes(x.shape, (axis,), lambda i: x[tuple(i)], extreme, f"{name}_value")

        def candidate(i: Index) -> Expr:
            value = x[tuple(i)]
            hit = eq(value, at(best, i))
            if is_float(x.dtype):
                hit = any_of(hit, call("isnan", value))
            return select(hit, i[axis], -1 if last else x.shape[axis])

        pick = dsl.max if last else dsl.min
        return [over_axes(x.shape, (axis,), candidate, pick, name, flag(attributes, "keepdims", True))]

    return Operator(name, define)


def _cumulative(name: str, combine: Combine, neutral: int) -> Operator:
    """All partial results along `axis`, each computed on its own: n^2 work, but parallel and exact to define."""

    def define(inputs: Inputs, attributes: Attributes) -> list[Handle]:
        x = need(inputs, 0)
        axis = normal_axis(integer(attributes, "axis", 0), len(x.shape))
        exclusive, reverse = flag(attributes, "exclusive"), flag(attributes, "reverse")
        k = reduce_axis(x.shape[axis], "k")
        before = lt if exclusive else le

        def element(*i: Expr) -> Reduction:
            counts = before(i[axis], k) if reverse else before(k, i[axis])
            return combine(select(counts, wide(x[(*i[:axis], k, *i[axis + 1 :])]), neutral), [k])

        return [narrowed(compute(x.shape, element, name), x.dtype, f"{name}_cast")]

    return Operator(name, define)


REDUCTIONS: Mapping[str, tuple[Combine, Callable[[Expr], Expr], Callable[[Expr, float], Expr] | None, bool]] = {
    "sum":        (dsl.sum,  _same,                     None,                          True),
    "mean":       (dsl.sum,  _same,                     _mean_of,                      True),
    "max":        (dsl.max,  _same,                     None,                          False),
    "min":        (dsl.min,  _same,                     None,                          False),
    "prod":       (dsl.prod, _same,                     None,                          True),
    "l1":         (dsl.sum,  lambda x: call("abs", x),  None,                          True),
    "l2":         (dsl.sum,  square,                   lambda t, n: call("sqrt", _floating(t)), True),
    "log_sum":    (dsl.sum,  _same,                     lambda t, n: call("log", _floating(t)),  True),
    "sum_square": (dsl.sum,  square,                   None,                          True),
}  # fmt: skip

OPERATORS = (
    *(_reduction(name, *row) for name, row in REDUCTIONS.items()),
    Operator("reduce_log_sum_exp", _log_sum_exp),
    _arg("argmax", dsl.max),
    _arg("argmin", dsl.min),
    _cumulative("cumsum", dsl.sum, 0),
    _cumulative("cumprod", dsl.prod, 1),
)
