"""Fetching ahead: while one pass over a packed constant goes on, its next part comes from memory.

for tile of pass: reduce over pack[j, r]      -->      for tile of pass: fetch a share of pack[j, r + 1]; reduce over pack[j, r]

The tiles of a pass read the same part again and again, and memory has all that time. The part that follows in memory is
the one that follows in time, because constants are packed in the order of the loops.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from typing import TYPE_CHECKING

from ir.affine import ZERO, Affine, expression, plus, scale
from ir.expr import Axis, Const, Expr, Op, Read, axes, reads
from ir.loop import Fetch, If, Stmt
from ir.lower.region import Place

if TYPE_CHECKING:
    from ir.lower.nest import StageNest

FAR_BYTES = 1 << 18  # a packed constant of this size is not in the caches when a network comes to it
FEWEST_TILES = 4  # of a pass: fewer would wait for what they fetch
LINE = 16  # elements of four bytes in a cache line


def ahead(nest: StageNest, place: Place) -> tuple[Stmt, ...]:
    """What a tile fetches before it begins."""
    if nest.kind != "root" or (one := _pass(nest, place)) is None:
        return ()
    found = dict.fromkeys(r for r in reads(nest.stage.body) if _is_far(nest, r))
    return tuple(s for r in found for s in _fetches(r, nest, place, one))


@dataclass(frozen=True, slots=True)
class _Pass:
    """Register tiles that read one part of a packed constant, one after the other.

    tiles: how many, number: of the tile at hand. panels: passes over as many panels follow each other, panel: which.
    """

    tiles: int
    number: Affine
    panels: int
    panel: Affine


def _pass(nest: StageNest, place: Place) -> _Pass | None:
    """None where tiles of different panels alternate, or where few share a part."""
    plan, tiles, number = nest.plan, 1, ZERO
    if plan.vector not in nest.stage.space:
        return None
    counts = {a: int(plan.sizes[a][nest.outer_s - 1]) // int(plan.register(a)) for a in nest.stage.space}
    at = {a: _divided(place.inner[a], int(plan.register(a))) for a in nest.stage.space}
    for a in reversed(nest.stage.space):
        form = at[a]
        if form is None:
            return None
        if a != plan.vector:
            number = plus(number, scale(form, tiles)) or ZERO
            tiles *= counts[a]
    panels, panel = counts[plan.vector], at[plan.vector]
    if tiles < FEWEST_TILES or panel is None or (panels > 1 and not plan.vector_first):
        return None
    return _Pass(tiles, number, panels, panel)


def _is_far(nest: StageNest, read: Read) -> bool:
    tensor = nest.scene.dag[read.tensor]
    known = any(i.name == read.tensor and i.constant for i in nest.scene.dag.inputs)
    return known and read.tensor.endswith(".pack") and 4 * prod(tensor.shape) >= FAR_BYTES


def _fetches(read: Read, nest: StageNest, place: Place, one: _Pass) -> Iterator[Stmt]:
    """A share of the part that the next pass reads: of the next panel, or, behind the last one, the part that follows
    the first panel's in memory. Nothing where it is not known where the parts lie."""
    shape = nest.scene.dag[read.tensor].shape
    start = list(takewhile(lambda x: x is not None, (_start(i, place) for i in read.index)))
    if not 0 < len(start) < len(shape):
        return
    part = prod(shape[len(start) :])
    share = -(-part // one.tiles // LINE) * LINE

    def fetch(panels: int, elements: int) -> Fetch:
        v = nest.plan.vector
        moved = [_moved(x, panels if _runs_along(i, v) else 0) for i, x in zip(read.index, start, strict=False)]
        rest = [Const(0, "int64")] * (len(shape) - len(start) - 1)
        last = expression(_moved(scale(one.number, share), elements))
        return Fetch(read.tensor, (*map(expression, moved), *rest, last), share)

    if one.panels == 1 or not nest.partial:
        yield fetch(0, part)
    else:
        more = Op("lt", (expression(one.panel), Const(one.panels - 1, "int64")))
        yield If(more, (fetch(1, 0),), (fetch(1 - one.panels, part),))


def _runs_along(index: Expr, axis: Axis | None) -> bool:
    return isinstance(index, Op) and axis in axes(index)


def _moved(form: Affine | None, by: int) -> Affine:
    return plus(form, Affine((), by)) or ZERO


def _start(index: Expr, place: Place) -> Affine | None:
    """Where an outer dimension stands during the whole pass; None for the dimensions within a part."""
    match index:
        case Axis():
            return place.offset[index]
        case Op("floordiv", (Axis() as a, Const(size, _))):
            return _divided(place.offset[a], int(size))
        case _:
            return None


def _divided(form: Affine, by: int) -> Affine | None:
    """form / by, where nothing is left over."""
    if form.constant % by or any(c % by for _, c in form.terms):
        return None
    return Affine(tuple((a, c // by) for a, c in form.terms), form.constant // by)
