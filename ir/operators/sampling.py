"""Sampling at run-time positions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from ir.dsl import Handle, Stage, call, cast, compute, ge, maximum, minimum, select
from ir.expr import Expr, all_of, le, lt
from ir.operators.operator import Attributes, Inputs, Operator, accumulator, choice, clamped, flag, need, wide

Taps = list[tuple[Expr, Expr]]  # (cell, weight) of one dimension; the cell may lie outside


def _reflected(p: Expr, low: float, high: float) -> Expr:
    """The triangular wave between both borders."""
    span = high - low
    if span <= 0:
        return p * 0 + low
    phase = call("fmod", call("abs", p - low), 2 * span)
    return low + minimum(phase, 2 * span - phase)


def _nearest(p: Expr) -> Taps:
    return [(cast(p, "int64"), p * 0 + 1)]


def _linear(p: Expr) -> Taps:
    low = call("floor", p)
    cell, share = cast(low, "int64"), p - low
    return [(cell, 1 - share), (cell + 1, share)]


def _cubic(p: Expr) -> Taps:
    """Keys 1981 with a = -0.75, as in PyTorch and ONNX."""
    a, low = -0.75, call("floor", p)
    cell, t = cast(low, "int64"), p - low

    def near(d: Expr) -> Expr:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Expr) -> Expr:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [(cell - 1, far(t + 1)), (cell, near(t)), (cell + 1, near(1 - t)), (cell + 2, far(2 - t))]


MODES: Mapping[str, Callable[[Expr], Taps]] = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}


def _grid_sample(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """x (N, C, space) read at the positions grid (N, out, rank), whose last dimension is innermost first, in -1..1.

    mode: nearest, linear, cubic. padding: zeros, border, reflection. `align_corners`: -1 and 1 are the centres of the
    corner cells, not their outer edges.
    """
    x, grid = need(inputs, 0), need(inputs, 1)
    mode = choice(attributes, "mode", MODES, "linear")
    padding = choice(attributes, "padding", ("zeros", "border", "reflection"), "zeros")
    corners, sizes = flag(attributes, "align_corners"), x.shape[2:]
    if len(grid.shape) != len(x.shape) or grid.shape[-1] != len(sizes) or grid.shape[0] != x.shape[0]:
        raise ValueError(f"grid_sample of {x.shape} at positions of shape {grid.shape}")
    if 0 in sizes:
        raise ValueError(f"grid_sample of {x.shape} has no cell to read")
    borders = [(0.0, n - 1.0) if corners else (-0.5, n - 0.5) for n in sizes]
    dtype = accumulator(x.dtype)

    def position(d: int) -> Stage:
        """In cells, folded back where the padding says so."""
        size, (low, high) = sizes[d], borders[d]

        def element(*i: Expr) -> Expr:
            p = cast(grid[(*i, len(sizes) - 1 - d)], dtype)
            p = (p + 1) * (0.5 * (size - 1)) if corners else ((p + 1) * float(size) - 1) * 0.5
            p = call("round", p) if mode == "nearest" else p
            if padding == "border":
                inside = all_of(le(low, p), le(p, high))
                return select(inside, p, maximum(minimum(p, size - 1), 0))
            if padding == "reflection":
                return select(all_of(le(low, p), le(p, high)), p, _reflected(p, low, high))
            return p

        return compute(grid.shape[:-1], element, "grid_sample_at")

    at = [position(d) for d in range(len(sizes))]

    def cell(c: Expr, d: int) -> Expr:
        if padding == "reflection":
            c = cast(_reflected(cast(c, dtype), *borders[d]), "int64")
        return clamped(c, 0, sizes[d] - 1)

    def element(*i: Expr) -> Expr:
        taps = [MODES[mode](p[(i[0], *i[2:])]) for p in at]
        terms = []
        for combination in itertools.product(*taps):
            value = wide(x[(i[0], i[1], *(cell(c, d) for d, (c, _) in enumerate(combination)))])
            if padding == "zeros":
                inside = [b for d, (c, _) in enumerate(combination) for b in (ge(c, 0), lt(c, sizes[d]))]
                value = select(all_of(*inside), value, 0)
            for _, weight in combination:
                value = value * weight
            terms.append(value)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return cast(total, x.dtype)

    return [compute((*x.shape[:2], *grid.shape[1:-1]), element, "grid_sample")]


OPERATORS = (Operator("grid_sample", _grid_sample),)
