"""Resizing by nearest neighbour or linear interpolation, positions in exact integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ir.dsl import Handle, cast, compute, maximum, minimum
from ir.expr import Expr, dtype_of
from ir.operators.operator import (
    Attributes,
    Inputs,
    Operator,
    choice,
    ints,
    narrowed,
    need,
    replaced,
    scaled,
    shifted,
    wide,
)

# Rounding p / c as (factor * p + bias) // divisor.
ROUNDINGS: Mapping[str, Callable[[int], tuple[int, int, int]]] = {
    "floor":              lambda c: (1, 0, c),
    "ceil":               lambda c: (1, c - 1, c),
    "round_prefer_ceil":  lambda c: (2, c, 2 * c),
    "round_prefer_floor": lambda c: (2, c - 1, 2 * c),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """Output i of one dimension stands at (i * numerator + offset) / denominator of the input, in exact integers."""

    extent: int
    size: int
    numerator: int
    offset: int
    denominator: int

    @property
    def plain(self) -> bool:
        return self.extent == self.size and self.numerator == self.denominator and self.offset == 0

    def position(self, i: Expr) -> Expr:
        """The numerator, clamped to the input where any output needs it."""
        top = self.denominator * (self.extent - 1)
        at = shifted(scaled(i, self.numerator), self.offset)
        at = minimum(at, top) if (self.size - 1) * self.numerator + self.offset > top else at
        return maximum(at, 0) if self.offset < 0 else at

    def nearest(self, i: Expr, rounding: str) -> Expr:
        """Rounding commutes with the clamp, because it is monotone and keeps integers."""
        factor, bias, divisor = ROUNDINGS[rounding](self.denominator)
        numerator = shifted(scaled(self.position(i), factor), bias)
        return numerator if divisor == 1 else numerator // divisor


def _scales(x: Handle, attributes: Attributes) -> list[Scale]:
    rank = len(x.shape)
    columns = [ints(attributes, n) for n in ("sizes", "numerator", "offset", "denominator")]
    if any(len(c) != rank for c in columns) or any(n < 1 or d < 1 for n, d in zip(columns[1], columns[3], strict=True)):
        raise ValueError(f"resize of {x.shape}: sizes, numerator, offset, denominator need {rank} entries each")
    return [Scale(*row) for row in zip(x.shape, *columns, strict=True)]


def _resize(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Nearest neighbour, or linear interpolation one dimension after the other. Positions are rational: see `Scale`.

    mode "nearest": `rounding` floor, ceil, round_prefer_floor, round_prefer_ceil. mode "linear".
    """
    x, scales = need(inputs, 0), _scales(need(inputs, 0), attributes)
    if choice(attributes, "mode", ("nearest", "linear"), "nearest") == "nearest":
        rounding = choice(attributes, "rounding", ROUNDINGS, "round_prefer_floor")
        sizes = [s.size for s in scales]
        return [
            compute(
                sizes,
                lambda *i: x[tuple(j if s.plain else s.nearest(j, rounding) for s, j in zip(scales, i, strict=True))],
                "resize",
            )
        ]
    out: Handle = x
    for d, scale in enumerate(scales):
        out = out if scale.plain else _resized_linearly(out, d, scale)
    same = out is x
    return [compute(x.shape, lambda *i: x[i], "resize") if same else narrowed(out, x.dtype, "resize_cast")]


def _resized_linearly(x: Handle, d: int, scale: Scale) -> Handle:
    """x[low] + (x[high] - x[low]) * fraction would lose x[low] next to infinities: two weights instead."""

    def element(*i: Expr) -> Expr:
        position = scale.position(i[d])
        low = position if scale.denominator == 1 else position // scale.denominator
        high = minimum(low + 1, scale.extent - 1)
        a, b = wide(x[replaced(i, d, low)]), wide(x[replaced(i, d, high)])
        if scale.denominator == 1:
            return a
        share = cast(position % scale.denominator, dtype_of(a)) / float(scale.denominator)
        return a * (1 - share) + b * share

    return compute((*x.shape[:d], scale.size, *x.shape[d + 1 :]), element, "resize")


OPERATORS = (Operator("resize", _resize),)
