"""Where in a tensor: boxes that producers must fill, and where local copies lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ir.affine import ZERO, Affine, affine, bounds, expression, plus, scale, simplify
from ir.compute import Compute
from ir.expr import Axis, Const, Expr, Op, Read


@dataclass(frozen=True, slots=True)
class Region:
    """A box of a tensor: base + 0..size along each dimension. `clipped`: may reach over the tensor's edge."""

    base: tuple[Affine, ...]
    size: tuple[int, ...]
    clipped: tuple[bool, ...]


def whole(shape: tuple[int, ...]) -> Region:
    return Region((ZERO,) * len(shape), shape, (False,) * len(shape))


@dataclass(frozen=True, slots=True)
class Where:
    """Ranges of axes at one place of a nest: axis -> (first index, number of indices)."""

    ranges: Mapping[Axis, tuple[Affine, int]]


def _span(index: Expr, where: Where, extent: int) -> tuple[Affine, int]:
    """First index and number of indices; the whole dimension where that is not known."""
    form = affine(index)
    if form is None:
        return _quotients(index, where, extent)
    base, reach = Affine((), form.constant), 0
    for a, c in form.terms:
        first, n = where.ranges.get(a, (Affine(((a, 1),), 0), 1))
        last = scale(first, c)
        assert last is not None
        base = plus(base, last if c > 0 else plus(last, Affine((), c * (n - 1)))) or ZERO
        reach += abs(c) * (n - 1)
    return base, reach + 1


def _quotients(index: Expr, where: Where, extent: int) -> tuple[Affine, int]:
    """Of i / by. Loops whose steps are no multiples of `by` count with all their turns: a region further in never
    reaches out of one further out."""
    match index:
        case Op("floordiv", (inner, Const(by, _))) if by > 0 and affine(inner) is not None:
            base, n = _span(inner, where, extent)
            by = int(by)
            rest = Affine(tuple((a, c) for a, c in base.terms if c % by), base.constant % by)
            low, high = bounds(rest)
            if low >= 0:
                first = Affine(tuple((a, c // by) for a, c in base.terms if c % by == 0), base.constant // by)
                return first, (high + n - 1) // by + 1
    return ZERO, extent


def region_of(read: Read, where: Where, shape: tuple[int, ...]) -> Region:
    """The box that a read touches while the axes run over their ranges."""
    base, size, clipped = [], [], []
    for i, extent in zip(read.index, shape, strict=True):
        b, n = _span(i, where, extent)
        low, high = bounds(b)
        if low < 0 or n >= extent:
            b, n, low, high = ZERO, extent, 0, 0
        base.append(b)
        size.append(n)
        clipped.append(high + n > extent)
    return Region(tuple(base), tuple(size), tuple(clipped))


def union(one: Region, other: Region, shape: tuple[int, ...]) -> Region:
    """Smallest box of ours that holds both: exact where the bases differ by a number, else the whole dimension."""
    dims: list[tuple[Affine, int, bool]] = []
    for b1, n1, c1, b2, n2, c2, extent in zip(
        one.base, one.size, one.clipped, other.base, other.size, other.clipped, shape, strict=True
    ):
        apart = plus(b2, scale(b1, -1)) or ZERO
        size = max(n1, apart.constant + n2) - min(0, apart.constant)
        fits = not apart.terms and size < extent
        dims.append((b1 if apart.constant >= 0 else b2, size, c1 or c2) if fits else (ZERO, extent, False))
    base, size, clipped = zip(*dims, strict=True) if dims else ((), (), ())
    return Region(tuple(base), tuple(size), tuple(clipped))


def inside_of(stage: Compute, region: Region) -> Where:
    ranges = {a: (b, n) for a, b, n in zip(stage.space, region.base, region.size, strict=True)}
    return Where(ranges | {a: (ZERO, a.extent) for a in stage.reduce})


@dataclass(frozen=True, slots=True)
class Local:
    """Where a tensor's elements lie at this place: buffer[index - base]."""

    buffer: str
    base: tuple[Affine, ...]


def relative(local: Local, read: Read) -> Expr:
    index = tuple(_less(i, b) if b != ZERO else i for i, b in zip(read.index, local.base, strict=True))
    return Read(local.buffer, index, read.dtype)


def _less(index: Expr, base: Affine) -> Expr:
    """index - base; i / by - b is (i - b * by) / by, which the linear forms of both make short."""
    match index:
        case Op("floordiv", (inner, Const(by, _) as divisor)):
            whole = scale(base, int(by))
            assert whole is not None
            return simplify(Op("floordiv", (Op("sub", (inner, expression(whole))), divisor)))
        case _:
            return simplify(Op("sub", (index, expression(base))))


@dataclass(frozen=True, slots=True)
class Place:
    """A point in a nest: where its tile starts, and how far it reaches, along each axis.

    offset: from the start of the region. inner: the same without the loops outside the first reduction level, the
    coordinates of a tile's partial results. span: extent of the tile that is still to be covered.
    """

    offset: Mapping[Axis, Affine]
    inner: Mapping[Axis, Affine]
    span: Mapping[Axis, int]

    def moved(self, a: Axis, var: Axis | None, step: int, inside: bool) -> Place:
        span = {**self.span, a: min(step, self.span[a])}
        if var is None:
            return Place(self.offset, self.inner, span)
        by = Affine(((var, step),), 0)
        offset = {**self.offset, a: plus(self.offset[a], by) or ZERO}
        inner = {**self.inner, a: plus(self.inner[a], by) or ZERO} if inside else self.inner
        return Place(offset, inner, span)
