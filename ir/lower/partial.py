"""Partial results of a reduction that is split: they rest in a local buffer between its outer loops.

partial = 0; for r: { tile: acc = partial; acc += ..; partial = acc }; out = epilogue(partial)

Every pass over the tile is the same straight code. What happens once, before and after, runs in loops of one vector.
Without a consumer the output itself holds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ir.affine import ZERO, Affine, expression
from ir.expr import Axis, Const, Expr
from ir.loop import Alloc, For, Stmt, Store
from ir.lower.region import Place

if TYPE_CHECKING:
    from ir.lower.nest import StageNest
    from ir.lower.tile import RegisterTile

Body = tuple[Stmt, ...]


def around(nest: StageNest, place: Place, reduction: Body) -> Body:
    """reduction      -->      partial = 0; reduction; out = epilogue(partial)"""
    stage = nest.stage
    if nest.consumer is None:
        return (*_swept(nest, list(stage.space), place, lambda tile: tile.neutral()), *reduction)
    behind = _swept(nest, list(stage.space), place, lambda tile: tile.passed_on()) if nest.swept else ()
    alloc = Alloc(nest.partial_name, nest.partial_shape(), stage.dtype, "stack")
    return (alloc, *_neutral(nest), *reduction, *behind)


def _neutral(nest: StageNest) -> Body:
    """partial[..] = the neutral element, vector by vector."""
    plan, stage = nest.plan, nest.stage
    body: Body = ()
    index: list[Expr] = []
    loops: list[Axis] = []
    for a, n in zip(stage.space, nest.partial_shape(), strict=True):
        step = plan.lanes if a == plan.vector else 1
        var = Axis(f"{stage.name}_{a.name}_z", n // step)
        at = Affine(((var, step),), 0) if var.extent > 1 else ZERO
        if a == plan.vector:
            at = Affine((*at.terms, (_lane(nest), 1)), 0)
        index.append(expression(at))
        loops.append(var)
    body = (Store(nest.partial_name, tuple(index), stage.combiner.start(stage.dtype)),)
    if plan.vector in stage.space:
        body = (For(_lane(nest), Const(plan.lanes, "int64"), body, "vector"),)
    for var in reversed(loops):
        if var.extent > 1:
            body = (For(var, Const(var.extent, "int64"), body),)
    return body


def _lane(nest: StageNest) -> Axis:
    v = nest.plan.vector
    assert v is not None
    return Axis(f"{nest.stage.name}_{v.name}_l", nest.plan.lanes)


def _swept(nest: StageNest, todo: list[Axis], place: Place, body: Callable[[RegisterTile], Body]) -> Body:
    """One vector after the other, over all that this place's tile has in the region."""
    plan, space = nest.plan, nest.stage.space
    if not todo:
        ends = [(a, plan.lanes) for a in space if a == plan.vector]
        return nest.variants(ends, dict.fromkeys(space, 1), place, body)
    a, more = todo[0], todo[1:]
    step = plan.lanes if a == plan.vector else 1
    count, extent = nest.steps(a, nest.partial_shape()[space.index(a)], step, place.offset[a])
    if count == 1 and extent == Const(1, "int64"):
        return _swept(nest, more, place, body)
    var = Axis(f"{nest.stage.name}_{a.name}_p", count)
    return (For(var, extent, _swept(nest, more, place.moved(a, var, step, True), body)),)
