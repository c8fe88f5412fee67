"""The loops of one stage over one region, level by level, and what is computed inside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from ir.affine import ZERO, Affine, expression, plus, scale, simplify
from ir.compute import Compute
from ir.expr import Axis, Const, Expr, Op, reads
from ir.loop import Alloc, For, If, Stmt
from ir.lower.fetch import ahead
from ir.lower.partial import around
from ir.lower.region import Local, Place, Region, Where, inside_of, region_of, union
from ir.lower.scene import Scene
from ir.lower.tile import RegisterTile
from ir.tiling import Tiling

Body = tuple[Stmt, ...]
MOST_LOCAL = 2 << 20  # bytes of one local buffer: threads have small stacks


def positions(tiling: Tiling) -> int:
    """How many loops of a nest a producer can be computed inside."""
    return (tiling.levels - 1) * sum(a.extent > 1 for a in tiling.stage.space)


def _check_size(c: Compute, region: Region) -> None:
    """Raises ValueError for a local buffer that a thread's stack may not hold."""
    size = prod(region.size) * np.dtype(c.dtype).itemsize
    if size > MOST_LOCAL:
        raise ValueError(f"{c.name}: its region of {size} bytes is too large for a local buffer")


@dataclass(frozen=True, slots=True)
class Level:
    letter: str
    number: int
    after_reduction: bool


@dataclass
class StageNest:
    """The loops of one stage over one region."""

    scene: Scene
    plan: Tiling
    region: Region
    out: Local
    locals: dict[str, Local]  # producers computed at a place around this one
    kind: str = "root"

    def __post_init__(self) -> None:
        p = self.plan
        self.stage = p.stage
        self.levels = p.structure.count("S")
        self.first_r = p.structure.find("R")
        self.outer_s = p.structure[: self.first_r].count("S") if self.first_r >= 0 else self.levels
        self.partial = self._reduces_twice()
        self.swept = self.partial and self._can_sweep()

    def _reduces_twice(self) -> bool:
        """Some reduction loop stands outside the register tile's own: partial results must rest in memory."""
        if self.plan.structure.count("R") < 2:
            return False
        return any(self.plan.sizes[a][0] < a.extent for a in self.stage.reduce)

    def _can_sweep(self) -> bool:
        """A fused consumer runs behind the reduction, unless it reads what is computed inside the reduction's loops."""
        if self.consumer is None:
            return False
        before = self.outer_s * sum(a.extent > 1 for a in self.stage.space)
        places = {name: at for name, (nest, at) in self.scene.host.items() if nest == self.stage.name}
        return all(places.get(r.tensor, 0) <= before for r in reads(self.consumer.body))

    @property
    def consumer(self) -> Compute | None:
        return self.scene.consumer.get(self.stage.name)

    def build(self) -> Body:
        zero = dict.fromkeys(self.stage.axes, ZERO)
        return self._level(0, 0, 0, Place(zero, zero, {a: self._extent(a) for a in self.stage.axes}))

    def _level(self, at: int, s: int, r: int, place: Place) -> Body:
        """The loops of one letter of the structure, and everything inside them."""
        letter = self.plan.structure[at]
        if letter == "S" and s == self.levels - 1:
            return self._register_tiles(place)
        if letter == "R" and r == self.plan.structure.count("R") - 1:
            return self._level(at + 1, s, r + 1, place)  # the register tile opens its own reduction
        level = Level(letter, s if letter == "S" else r, self.first_r >= 0 and at > self.first_r)
        nested = (s + 1, r) if letter == "S" else (s, r + 1)
        axes = self._order() if letter == "S" else list(self.stage.reduce)
        body = self._loops(axes, level, place, lambda inside: self._level(at + 1, *nested, inside))
        return around(self, place, body) if self.partial and at == self.first_r else body

    def _order(self) -> list[Axis]:
        """Space axes of one level; the vector axis first (its panel stays while rows pass by) or last."""
        v, space = self.plan.vector, list(self.stage.space)
        if v not in space:
            return space
        others = [a for a in space if a != v]
        return [v, *others] if self.plan.vector_first else [*others, v]

    def _loops(
        self, todo: list[Axis], level: Level, place: Place, rest: Callable[[Place], Body], depth: int = 0
    ) -> Body:
        if not todo:
            return rest(place)
        a, more = todo[0], todo[1:]
        n = level.number
        count, extent = self._trips(a, n, place.offset[a])
        var = None
        if count > 1 or self._clip(a) is not None:  # a tile that is entered is never empty
            var = Axis(f"{self.stage.name}_{a.name}_{n}{level.letter.lower()}", count)
        inside = place.moved(a, var, self.plan.sizes[a][n], level.after_reduction)
        deeper = depth + (var is not None)
        position = self._position(level, a)
        body = self._attached(position, inside, lambda: self._loops(more, level, inside, rest, deeper))
        if var is None:
            return body
        outermost = level.letter == "S" and n == 0 and self.kind == "root"
        return (For(var, extent, body, "parallel" if outermost and depth < self.plan.parallel else "serial"),)

    def _position(self, level: Level, a: Axis) -> int:
        """Number of the loop among the space loops that are not trivial; 0 for the others, where nothing attaches."""
        if level.letter == "R" or a.extent == 1:
            return 0
        loops = [x for x in self._order() if x.extent > 1]
        return level.number * len(loops) + loops.index(a) + 1

    def _trips(self, a: Axis, n: int, offset: Affine) -> tuple[int, Expr]:
        """Largest number of trips of level n, and the exact number here."""
        sizes = self.plan.sizes[a]
        return self.steps(a, self._extent(a) if n == 0 else sizes[n - 1], sizes[n], offset)

    def steps(self, a: Axis, reach: int, step: int, offset: Affine) -> tuple[int, Expr]:
        """Steps through the next `reach` indices: the largest number, and that of steps that start in the region."""
        size, clip = self._extent(a), self._clip(a)
        count = -(-reach // step)
        if clip is None and size % reach == 0:
            return count, Const(count, "int64")
        if clip is None and not offset.terms:
            count = -(-min(reach, size - offset.constant) // step)
            return count, Const(count, "int64")
        if clip is None:
            left = expression(plus(Affine((), size + step - 1), scale(offset, -1)) or ZERO)
        else:
            left = Op("add", (Op("sub", (clip, expression(offset))), Const(step - 1, "int64")))
        trips = left if step == 1 else Op("floordiv", (left, Const(step, "int64")))
        return count, Op("min", (Const(count, "int64"), trips))

    def _extent(self, a: Axis) -> int:
        return self.region.size[self.stage.space.index(a)] if a in self.stage.space else a.extent

    def _clip(self, a: Axis) -> Expr | None:
        """How many indices of the region exist, where that is not its size everywhere."""
        if a not in self.stage.space:
            return None
        i = self.stage.space.index(a)
        if not self.region.clipped[i]:
            return None
        exists = Op("sub", (Const(a.extent, "int64"), expression(self.region.base[i])))
        return Op("min", (Const(self.region.size[i], "int64"), exists))

    # --- producers inside this nest

    def _attached(self, position: int, place: Place, body: Callable[[], Body]) -> Body:
        """P is computed here, its region into a local buffer, before the code that reads it."""
        b = self.scene
        here = [c for c in b.dag.computes if position and b.host.get(c.name) == (self.stage.name, position)]
        if not here:
            return body()
        places = {name: at for name, (nest, at) in b.host.items() if nest == self.stage.name}
        inside = [c for c in b.dag.computes if places.get(c.name, 0) >= position]  # a consumer may run further in
        regions = self._regions(inside, self._where(place))
        before: list[Stmt] = []
        saved = dict(self.locals)
        for c in here:
            region = regions[c.name]
            _check_size(c, region)
            before.append(Alloc(f"{c.name}_local", region.size, c.dtype, "stack"))
            local = Local(f"{c.name}_local", region.base)
            nest = StageNest(b, b.plans[c.name], region, local, dict(self.locals), kind="attached")
            before += nest.build()
            self.locals[c.name] = local
        out = (*before, *body())
        self.locals = saved
        return out

    def _where(self, place: Place) -> Where:
        ranges: dict[Axis, tuple[Affine, int]] = {}
        for i, a in enumerate(self.stage.space):
            ranges[a] = (plus(place.offset[a], self.region.base[i]) or ZERO, place.span[a])
        if self.consumer is not None:
            ranges |= {c: ranges[a] for c, a in zip(self.consumer.space, self.stage.space, strict=True)}
        return Where(ranges | {a: (place.offset[a], place.span[a]) for a in self.stage.reduce})

    def _regions(self, here: list[Compute], where: Where) -> dict[str, Region]:
        """Boxes of the producers, last first: each serves this stage and the later ones beside it."""
        out: dict[str, Region] = {}
        own = [self.stage, *([self.consumer] if self.consumer is not None else [])]
        for c in reversed(here):
            users = [(u, where) for u in own] + [(u, inside_of(u, out[u.name])) for u in here if u.name in out]
            boxes = [region_of(r, w, c.shape) for u, w in users for r in reads(u.body) if r.tensor == c.name]
            box = boxes[0]
            for other in boxes[1:]:
                box = union(box, other, c.shape)
            out[c.name] = box
        return out

    # --- the register tile

    def _register_tiles(self, place: Place) -> Body:
        sizes = [(a, int(self.plan.register(a))) for a in self.stage.space]
        return (*ahead(self, place), *self.variants(sizes, {}, place, lambda tile: tile.build()))

    def variants(
        self, todo: list[tuple[Axis, int]], active: Mapping[Axis, int], place: Place,
        body: Callable[[RegisterTile], Body],
    ) -> Body:  # fmt: skip
        """Full tile, and for each axis that does not divide a second one of the size that is left."""
        if not todo:
            return body(RegisterTile(self, active, place))
        (a, tile), more = todo[0], todo[1:]
        size, clip = self._extent(a), self._clip(a)
        if clip is None and size < tile:
            return self.variants(more, {**active, a: size}, place, body)
        tile = min(tile, size)  # of a clipped region: a larger tile would never fit
        full = self.variants(more, {**active, a: tile}, place, body)
        if (clip is None and size % tile == 0) or (clip is not None and tile == 1):
            return full
        limit = clip or Const(size, "int64")
        fits = simplify(Op("le", (Op("add", (expression(place.offset[a]), Const(tile, "int64"))), limit)))
        if clip is None:
            return (If(fits, full, self.variants(more, {**active, a: size % tile}, place, body)),)
        # what is left of a clipped tile runs index by index: its length is known only at run time
        var = Axis(f"{self.stage.name}_{a.name}_t", tile - 1)
        one = self.variants(more, {**active, a: 1}, place.moved(a, var, 1, True), body)
        left = Op("sub", (limit, expression(place.offset[a])))
        return (If(fits, full, (For(var, Op("min", (Const(tile - 1, "int64"), left)), one),)),)

    @property
    def partial_name(self) -> str:
        return f"{self.stage.name}_partial" if self.consumer is not None else self.out.buffer

    def partial_shape(self) -> tuple[int, ...]:
        return tuple(self.plan.sizes[a][self.outer_s - 1] for a in self.stage.space)
