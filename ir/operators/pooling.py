"""Pools over any number of spatial dimensions; layouts and windows are those of the convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from ir import dsl
from ir.compute import identity
from ir.dsl import Handle, Reduction, cast, compute, maximum, minimum, reduce_axis, select
from ir.expr import Axis, Const, Expr, all_of, eq, le, lt
from ir.operators.convolution import Layout, Window, layout_of, padded, taps_of, window_of
from ir.operators.operator import Attributes, Inputs, Operator, flag, ints, need, real, scaled, shifted, wide


@dataclass(frozen=True, slots=True)
class Pool:
    """What the pools share: input padded as far as any window reaches, output shape, reduce axes."""

    x: Handle
    layout: Layout
    window: Window
    shape: tuple[int, ...]
    source: Handle
    taps: tuple[Axis | int, ...]

    @property
    def over(self) -> list[Axis]:
        return [t for t in self.taps if isinstance(t, Axis)]

    def value(self, i: Sequence[Expr]) -> Expr:
        n, c, at = self.layout.pick(i)
        place = [self.window.position(d, at[d], t) for d, t in enumerate(self.taps)]
        return self.source[self.layout.join(n, c, place)]  # type: ignore[index]

    @property
    def names(self) -> list[str]:
        return self.layout.axes


def _pool(inputs: Inputs, attributes: Attributes, fill: float) -> Pool:
    x = need(inputs, 0)
    layout = layout_of(x, attributes)
    window = window_of(attributes, ints(attributes, "kernel"))
    sizes = [x.shape[d] for d in layout.spatial]
    space = window.outputs(sizes, flag(attributes, "ceil_mode"))
    ends = [
        max((o - 1) * window.strides[d] + window.reach(d) - n - window.begins[d], 0)
        for d, (o, n) in enumerate(zip(space, sizes, strict=True))
    ]
    source = padded(x, layout.spatial, window.begins, ends, layout.axes, identity(fill, x.dtype))
    shape = layout.join(x.shape[0], x.shape[layout.channel], space)
    taps = taps_of(window, layout)
    if not any(isinstance(t, Axis) for t in taps):
        taps[-1] = reduce_axis(1, f"k{layout.names[-1]}")
    return Pool(x, layout, window, shape, source, tuple(taps))  # type: ignore[arg-type]


def _max_pool(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """The maximum of each window; padding never wins. A window without a real cell is -inf."""
    pool = _pool(inputs, attributes, -inf)
    return [compute(pool.shape, lambda *i: dsl.max(pool.value(i), pool.over), "max_pool", pool.names)]


def _max_pool_index(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Flat index into data in NC + spatial order of the first maximum of each window (ONNX's `Indices`).

    `column_major` numbers the spatial dimensions with the first running fastest (storage_order 1).
    """
    pool = _pool(inputs, attributes, -inf)
    layout, window, x = pool.layout, pool.window, pool.x
    best = compute(pool.shape, lambda *i: dsl.max(pool.value(i), pool.over), "max_pool", pool.names)
    sizes = [x.shape[d] for d in layout.spatial]
    steps = [prod(sizes[d + 1 :]) for d in range(len(sizes))]
    if flag(attributes, "column_major"):
        steps = [prod(sizes[:d]) for d in range(len(sizes))]
    nowhere = prod(x.shape)

    def element(*i: Expr) -> Reduction:
        n, c, at = layout.pick(i)
        place = [shifted(window.position(d, at[d], t), -window.begins[d]) for d, t in enumerate(pool.taps)]
        flat = n * x.shape[layout.channel] + c
        flat = flat * prod(sizes)
        for p, step in zip(place, steps, strict=True):
            flat = flat + scaled(p, step)
        inside = [c for d, p in enumerate(place) for c in (le(0, p), lt(p, sizes[d]))]
        return dsl.min(select(all_of(*inside, eq(pool.value(i), best[i])), flat, nowhere), pool.over)

    return [compute(pool.shape, element, "max_pool_index", pool.names)]


def _average_pool(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """The sum of each window over the number of cells that count.

    Those are the cells of the input, and with `count_include_pad` the declared padding too; never what only
    `ceil_mode` adds.
    """
    pool = _pool(inputs, attributes, 0.0)
    total = compute(pool.shape, lambda *i: dsl.sum(wide(pool.value(i)), pool.over), "average_pool_sum", pool.names)
    include = flag(attributes, "count_include_pad")

    def element(*i: Expr) -> Expr:
        _, _, at = pool.layout.pick(i)
        counts = [_count(pool, d, at[d], include) for d in range(len(at))]
        fixed = prod(c for c in counts if isinstance(c, int))
        divisor: Expr = Const(fixed, "int64")
        for c in counts:
            if not isinstance(c, int):
                divisor = c if divisor == Const(1, "int64") else divisor * c
        return cast(total[i] / _number(divisor, total.dtype), pool.x.dtype)

    return [compute(pool.shape, element, "average_pool", pool.names)]


def _number(e: Expr, dtype: str) -> Expr:
    return Const(float(e.value), dtype) if isinstance(e, Const) else cast(e, dtype)


def _count(pool: Pool, d: int, out: Expr, include: bool) -> int | Expr:
    """How many taps of window `out` count in spatial dimension d: a number where it is the same for all windows."""
    window, size = pool.window, pool.x.shape[pool.layout.spatial[d]]
    low = 0 if include else window.begins[d]
    high = size + window.begins[d] + (window.ends[d] if include else 0)
    kernel, stride, dilation = window.kernel[d], window.strides[d], window.dilations[d]
    last = (pool.shape[pool.layout.spatial[d]] - 1) * stride
    if low == 0 and last + window.reach(d) <= high:
        return kernel
    start = scaled(out, stride)
    # Taps stand at start + t * dilation; those in [low, high) are t0 <= t < t1. Numerators are never negative.
    t1 = minimum(_ceil_div(maximum(high - start, 0), dilation), kernel)
    return t1 if low == 0 else t1 - minimum(_ceil_div(maximum(low - start, 0), dilation), kernel)


def _ceil_div(e: Expr, divisor: int) -> Expr:
    return e if divisor == 1 else (e + (divisor - 1)) // divisor


def _lp_pool(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """(sum |x|^p)^(1/p) of each window."""
    pool, p = _pool(inputs, attributes, 0.0), real(attributes, "p", 2.0)

    def term(x: Expr) -> Expr:
        return x * x if p == 2 else dsl.call("pow", dsl.call("abs", x), p)

    total = compute(pool.shape, lambda *i: dsl.sum(term(wide(pool.value(i))), pool.over), "lp_pool_sum", pool.names)

    def element(*i: Expr) -> Expr:
        root = dsl.call("sqrt", total[i]) if p == 2 else dsl.call("pow", total[i], 1 / p)
        return cast(root, pool.x.dtype)

    return [compute(pool.shape, element, "lp_pool", pool.names)]


OPERATORS = (
    Operator("max_pool",       _max_pool),
    Operator("max_pool_index", _max_pool_index),
    Operator("average_pool",   _average_pool),
    Operator("lp_pool",        _lp_pool),
)  # fmt: skip
