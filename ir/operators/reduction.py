"""Reductions, normalisations, matrix products. Sums of float16 are kept in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from ir import dsl
from ir.dsl import Handle, Reduction, Stage, any_of, call, cast, compute, le, lt, reduce_axis, select
from ir.expr import Axis, Expr, all_of, dtype_of, eq
from ir.operators.operator import (
    Attributes,
    Index,
    Inputs,
    Operator,
    at,
    broadcast,
    flag,
    integer,
    ints,
    is_float,
    maybe,
    narrowed,
    need,
    normal_axes,
    normal_axis,
    real,
    text,
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


def _square(x: Expr) -> Expr:
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


# --- softmax and normalisation ----------------------------------------------------------------------------------


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
    squares = over_axes(
        x.shape, axes, lambda i: _square(wide(x[tuple(i)]) - at(mean, i)), dsl.sum, f"{name}_squares"
    )
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
    squares = over_axes(x.shape, axes, lambda i: _square(wide(x[tuple(i)])), dsl.sum, "rms_norm_squares")
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
    size: Callable[[Expr], Expr] = _square if p == 2 else lambda v: call("abs", v)
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


# --- matrix products --------------------------------------------------------------------------------------------


def _matmul(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """NumPy's matmul: leading dimensions broadcast, a rank-1 operand is a row or a column that disappears."""
    a, b = need(inputs, 0), need(inputs, 1)
    if not a.shape or not b.shape:
        raise ValueError("matmul of a scalar")
    if a.dtype != b.dtype:
        raise ValueError(f"matmul of {a.dtype} and {b.dtype}: cast one of them")
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(f"matmul of {a.shape} and {b.shape}: the inner dimensions {a.shape[-1]} and {inner} differ")
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    k = reduce_axis(inner, "k")

    def element(*i: Expr) -> Reduction:
        lead, rest = i[: len(batch)], i[len(batch) :]
        row, column = rest[: len(rows)], rest[len(rows) :]
        left = _batched(a, lead, (*row, k))
        right = _batched(b, lead, (k, *column))
        return dsl.sum(wide(left) * wide(right), k)

    names = [*(f"b{d}" for d in range(len(batch))), *"i"[: len(rows)], *"j"[: len(columns)]]
    out = compute((*batch, *rows, *columns), element, "matmul", names)
    return [narrowed(out, a.dtype, "matmul_cast")]


def _batched(x: Handle, lead: Sequence[Expr], own: tuple[Expr, ...]) -> Expr:
    extents = x.shape[: len(x.shape) - len(own)]
    mine = lead[len(lead) - len(extents) :]
    return x[(*(0 if e == 1 else i for i, e in zip(mine, extents, strict=True)), *own)]


def _gemm(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """alpha * op(a) @ op(b) + beta * c, op a transposition if `trans_a`, `trans_b`; c broadcasts."""
    a, b, c = need(inputs, 0), need(inputs, 1), maybe(inputs, 2)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ValueError(f"gemm of {a.shape} and {b.shape}: both must be matrices")
    turn_a, turn_b = flag(attributes, "trans_a"), flag(attributes, "trans_b")
    alpha, beta = real(attributes, "alpha", 1.0), real(attributes, "beta", 1.0)
    (m, ka) = a.shape[::-1] if turn_a else a.shape
    (kb, n) = b.shape[::-1] if turn_b else b.shape
    if ka != kb:
        raise ValueError(f"gemm of {a.shape} and {b.shape}: the inner dimensions {ka} and {kb} differ")
    k = reduce_axis(ka, "k")

    def product(i: Expr, j: Expr) -> Reduction:
        return dsl.sum(wide(a[(k, i) if turn_a else (i, k)]) * wide(b[(j, k) if turn_b else (k, j)]), k)

    out = compute((m, n), product, "gemm")
    if alpha == 1.0 and (c is None or beta == 0.0):
        return [narrowed(out, a.dtype, "gemm_cast")]
    if c is not None and broadcast((m, n), c.shape) != (m, n):
        raise ValueError(f"gemm adds {c.shape} to {(m, n)}")

    def finished(i: Expr, j: Expr) -> Expr:
        scaled = _weighted(out[i, j], alpha)
        addend = None if c is None or beta == 0.0 else _weighted(wide(at(c, (i, j))), beta)
        return cast(scaled if addend is None else scaled + addend, a.dtype)

    return [compute((m, n), finished, "gemm_bias")]


def _weighted(x: Expr, factor: float) -> Expr:
    if factor == 1.0:
        return x
    return x * (factor if is_float(dtype_of(x)) else int(factor))


def _einsum(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """NumPy's einsum: repeated labels are diagonals, "..." broadcasts, no arrow means sorted single labels."""
    operands = [need(inputs, p) for p in range(len(inputs))]
    equation = text(attributes, "equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum {equation} names {len(terms)} operands, not {len(operands)}")
    labels = [_labels(t, len(x.shape), equation) for t, x in zip(terms, operands, strict=True)]
    extents = _label_extents(labels, operands, equation)
    out = _output_labels(labels, arrow, right, equation)
    summed = [name for name in extents if name not in out]
    axis = {name: reduce_axis(extents[name], name) for name in summed}

    def element(*i: Expr) -> Expr | Reduction:
        place: dict[str, Expr] = {**dict(zip(out, i, strict=True)), **axis}
        factors = [
            wide(x[tuple(0 if e == 1 and extents[n] != 1 else place[n] for n, e in zip(ls, x.shape, strict=True))])
            for x, ls in zip(operands, labels, strict=True)
        ]
        body = factors[0]
        for f in factors[1:]:
            body = body * f
        return dsl.sum(body, list(axis.values())) if axis else body

    made = compute([extents[name] for name in out], element, "einsum", out)
    return [narrowed(made, operands[0].dtype, "einsum_cast")]


def _labels(term: str, rank: int, equation: str) -> list[str]:
    """One label a dimension; those of an ellipsis are _1, _2, ... counted from the right."""
    head, dots, tail = term.partition("...")
    missing = rank - len(head) - len(tail)
    if missing < 0 or (missing and not dots) or (not (head + tail).isalpha() and head + tail):
        raise ValueError(f"einsum {equation}: {term!r} does not describe {rank} dimensions")
    return [*head, *(f"_{n}" for n in range(missing, 0, -1)), *tail]


def _label_extents(labels: list[list[str]], operands: list[Handle], equation: str) -> dict[str, int]:
    extents: dict[str, int] = {}
    for names, x in zip(labels, operands, strict=True):
        for name, extent in zip(names, x.shape, strict=True):
            known = extents.setdefault(name, extent)
            if known != extent and 1 not in (known, extent):
                raise ValueError(f"einsum {equation}: {name} is both {known} and {extent}")
            extents[name] = extent if known == 1 else known
    return extents


def _output_labels(labels: list[list[str]], arrow: str, right: str, equation: str) -> list[str]:
    every = [name for names in labels for name in names]
    dots = sorted({n for n in every if n.startswith("_")}, key=lambda n: -int(n[1:]))
    if not arrow:
        return [*dots, *sorted(n for n in set(every) if every.count(n) == 1 and n not in dots)]
    head, ellipsis, tail = right.partition("...")
    out = [*head, *(dots if ellipsis else []), *tail]
    if len(set(out)) != len(out) or not set(out) <= set(every):
        raise ValueError(f"einsum {equation}: the output {right!r} is not made of distinct input labels")
    return out


REDUCTIONS: Mapping[str, tuple[Combine, Callable[[Expr], Expr], Callable[[Expr, float], Expr] | None, bool]] = {
    "sum":        (dsl.sum,  _same,                     None,                          True),
    "mean":       (dsl.sum,  _same,                     _mean_of,                      True),
    "max":        (dsl.max,  _same,                     None,                          False),
    "min":        (dsl.min,  _same,                     None,                          False),
    "prod":       (dsl.prod, _same,                     None,                          True),
    "l1":         (dsl.sum,  lambda x: call("abs", x),  None,                          True),
    "l2":         (dsl.sum,  _square,                   lambda t, n: call("sqrt", _floating(t)), True),
    "log_sum":    (dsl.sum,  _same,                     lambda t, n: call("log", _floating(t)),  True),
    "sum_square": (dsl.sum,  _square,                   None,                          True),
}  # fmt: skip

OPERATORS = (
    *(_reduction(name, *row) for name, row in REDUCTIONS.items()),
    Operator("reduce_log_sum_exp", _log_sum_exp),
    _arg("argmax", dsl.max),
    _arg("argmin", dsl.min),
    _cumulative("cumsum", dsl.sum, 0),
    _cumulative("cumprod", dsl.prod, 1),
    Operator("softmax",       _softmax),
    Operator("log_softmax",   _log_softmax),
    Operator("layer_norm",    _layer_norm),
    Operator("rms_norm",      _rms_norm),
    Operator("batch_norm",    _batch_norm),
    Operator("instance_norm", _instance_norm),
    Operator("group_norm",    _group_norm),
    Operator("lp_normalize",  _lp_normalize),
    Operator("lrn",           _lrn),
    Operator("matmul",        _matmul),
    Operator("gemm",          _gemm),
    Operator("einsum",        _einsum),
)  # fmt: skip
