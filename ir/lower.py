"""Program -> loop nest.

Every stage that is left after inlining has a `Tiling`: sizes level by level. The nest of a stage is its levels,
outermost first; at the innermost S level stands the register tile, whose accumulators live across the last R level.
A tile that sticks out is a second, smaller register tile behind an `If`, never a scalar tail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from ir.affine import ZERO, Affine, affine, bounds, expression, plus, replace_axes, scale, simplify
from ir.compute import Compute, Dag
from ir.expr import Axis, Const, Expr, Op, Read, lt, reads, select
from ir.loop import Alloc, Buffer, For, If, LoopKind, Nest, Stmt, Store
from ir.schedule import ComputeAt, Fuse, Program, Tile
from ir.tiling import Tiling, tiling
from ir.transform import apply, hoist, rewrite_reads, unit_axes

Body = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A nest and the constants it wants prepared: argument name -> DAG over the workload's inputs."""

    nest: Nest
    prepare: tuple[tuple[str, Dag], ...]


def lower(program: Program) -> Lowered:
    values = program.values
    steps = program.sketch.steps
    dag = unit_axes(program.sketch.dag)
    tiles = {s.stage: s for s in steps if isinstance(s, Tile)}

    def innermost(stage: str, axis: str) -> int:
        s = dag.stage(stage)
        a = next(x for x in s.space if x.name == axis)
        return int(tiling(s, tiles[stage], values.get).register(a))

    for step in steps:
        dag = apply(dag, step, values, innermost)
    dag, prepare = hoist(dag)
    return Lowered(_Builder(dag, program, tiles).nest(), prepare)


# --- regions ----------------------------------------------------------------------------


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


def _span(index: Expr, where: Where, extent: int) -> tuple[Affine, int]:
    form = affine(index)
    if form is None:
        return ZERO, extent
    base, reach = Affine((), form.constant), 0
    for a, c in form.terms:
        first, n = where.ranges.get(a, (Affine(((a, 1),), 0), 1))
        last = scale(first, c)
        assert last is not None
        base = plus(base, last if c > 0 else plus(last, Affine((), c * (n - 1)))) or ZERO
        reach += abs(c) * (n - 1)
    return base, reach + 1


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


def positions(tiling: Tiling) -> int:
    """How many loops of a nest a producer can be computed inside."""
    return (tiling.levels - 1) * sum(a.extent > 1 for a in tiling.stage.space)


# --- the nest ---------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True)
class _Level:
    letter: str
    number: int
    after_reduction: bool


@dataclass(frozen=True, slots=True)
class Local:
    """Where a tensor's elements lie at this place: buffer[index - base]."""

    buffer: str
    base: tuple[Affine, ...]


@dataclass
class _Builder:
    """One program's stages, which of them run at the root, and which inside another's nest."""

    dag: Dag
    program: Program
    tiles: Mapping[str, Tile]
    consumer: dict[str, Compute] = field(default_factory=dict)  # producer -> the stage fused behind it
    host: dict[str, tuple[str, int]] = field(default_factory=dict)  # stage -> (nest it runs in, inside how many loops)

    def __post_init__(self) -> None:
        values = self.program.values
        for s in self.program.sketch.steps:
            match s:
                case Fuse(stage, consumer, _):
                    self.consumer[stage] = self.dag.stage(consumer)
                case ComputeAt(stage, consumer) if values.get(f"{stage}.at", 0):
                    self.host[stage] = (self._driver(consumer), values[f"{stage}.at"])
                case _:
                    pass
        self._drop_illegal_hosts()

    def _driver(self, stage: str) -> str:
        """The stage whose loops run `stage`: its fused producer, or itself."""
        return next((p for p, c in self.consumer.items() if c.name == stage), stage)

    def _drop_illegal_hosts(self) -> None:
        """A stage can be computed inside a nest only if every consumer runs there, no further out than it."""
        for c in reversed(self.dag.computes):
            if c.name not in self.host:
                continue
            nest, level = self.host[c.name]
            users = [self._driver(u.name) for u in self.dag.consumers(c.name)]
            fits = all(
                u == nest or (u in self.host and self.host[u][0] == nest and self.host[u][1] >= level) for u in users
            )
            if not fits or nest in self.host or level > positions(self.plans[nest]) or c.name in self.dag.outputs:
                del self.host[c.name]

    @cached_property
    def plans(self) -> dict[str, Tiling]:
        return {c.name: tiling(c, self.tiles.get(c.name), self.program.values.get) for c in self.dag.computes}

    def nest(self) -> Nest:
        behind = {c.name for c in self.consumer.values()}
        body: list[Stmt] = []
        for c in self.dag.computes:
            if c.name in self.host or c.name in behind:
                continue
            last = self.consumer.get(c.name, c)
            if last.name not in self.dag.outputs:
                body.append(Alloc(last.name, last.shape, last.dtype, "workspace"))
            body += _StageNest(
                self, self.plans[c.name], whole(c.shape), Local(last.name, (ZERO,) * len(c.shape)), {}
            ).build()
        outputs = [self.dag[o] for o in self.dag.outputs]
        return Nest(
            tuple(Buffer(i.name, i.shape, i.dtype) for i in self.dag.inputs),
            tuple(Buffer(o.name, o.shape, o.dtype) for o in outputs),
            tuple(body),
        )


@dataclass
class _StageNest:
    """The loops of one stage over one region."""

    builder: _Builder
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

    def _reduces_twice(self) -> bool:
        """Some reduction loop stands outside the register tile's own: partial results must rest in memory."""
        if self.plan.structure.count("R") < 2:
            return False
        return any(self.plan.sizes[a][0] < a.extent for a in self.stage.reduce)

    @property
    def consumer(self) -> Compute | None:
        return self.builder.consumer.get(self.stage.name)

    def build(self) -> Body:
        zero = dict.fromkeys(self.stage.axes, ZERO)
        return self._level(0, 0, 0, Place(zero, zero, {a: self._extent(a) for a in self.stage.axes}))

    def _level(self, at: int, s: int, r: int, place: Place) -> Body:
        """The loops of one letter of the structure, and everything inside them."""
        letter = self.plan.structure[at]
        if letter == "S" and s == self.levels - 1:
            return self._variants(list(self.stage.space), {}, place)
        if letter == "R" and r == self.plan.structure.count("R") - 1:
            return self._level(at + 1, s, r + 1, place)  # the register tile opens its own reduction
        level = _Level(letter, s if letter == "S" else r, self.first_r >= 0 and at > self.first_r)
        nested = (s + 1, r) if letter == "S" else (s, r + 1)
        axes = self._order() if letter == "S" else list(self.stage.reduce)
        body = self._loops(axes, level, place, lambda inside: self._level(at + 1, *nested, inside))
        if self.partial and at == self.first_r and self.consumer is not None:
            return (Alloc(self._partial_name, self._partial_shape(), self.stage.dtype, "stack"), *body)
        return body

    def _order(self) -> list[Axis]:
        """Space axes of one level; the vector axis first (its panel stays while rows pass by) or last."""
        v, space = self.plan.vector, list(self.stage.space)
        if v not in space:
            return space
        others = [a for a in space if a != v]
        return [v, *others] if self.plan.vector_first else [*others, v]

    def _loops(
        self, todo: list[Axis], level: _Level, place: Place, rest: Callable[[Place], Body], depth: int = 0
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

    def _position(self, level: _Level, a: Axis) -> int:
        """Number of the loop among the space loops that are not trivial; 0 for the others, where nothing attaches."""
        if level.letter == "R" or a.extent == 1:
            return 0
        loops = [x for x in self._order() if x.extent > 1]
        return level.number * len(loops) + loops.index(a) + 1

    def _trips(self, a: Axis, n: int, offset: Affine) -> tuple[int, Expr]:
        """Largest number of trips of level n, and the exact number here."""
        sizes, size = self.plan.sizes[a], self._extent(a)
        clip = self._clip(a)
        count = -(-size // sizes[0]) if n == 0 else sizes[n - 1] // sizes[n]
        if clip is None and (n == 0 or size % sizes[n - 1] == 0):
            return count, Const(count, "int64")
        left = Op("sub", (clip or Const(size, "int64"), expression(offset)))
        trips = Op("floordiv", (Op("add", (left, Const(sizes[n] - 1, "int64"))), Const(sizes[n], "int64")))
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
        b = self.builder
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
            before.append(Alloc(f"{c.name}_local", region.size, c.dtype, "stack"))
            local = Local(f"{c.name}_local", region.base)
            nest = _StageNest(b, b.plans[c.name], region, local, dict(self.locals), kind="attached")
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
            users = [(u, where) for u in own] + [(u, _inside(u, out[u.name])) for u in here if u.name in out]
            boxes = [region_of(r, w, c.shape) for u, w in users for r in reads(u.body) if r.tensor == c.name]
            box = boxes[0]
            for other in boxes[1:]:
                box = union(box, other, c.shape)
            out[c.name] = box
        return out

    # --- the register tile

    def _variants(self, todo: list[Axis], active: dict[Axis, int], place: Place) -> Body:
        """Full tile, and for each axis that does not divide a second one of the size that is left."""
        if not todo:
            return _RegisterTile(self, active, place.offset, place.inner).build()
        a, more = todo[0], todo[1:]
        tile, size, clip = self.plan.register(a), self._extent(a), self._clip(a)
        if clip is None and size < tile:
            return self._variants(more, {**active, a: size}, place)
        full = self._variants(more, {**active, a: tile}, place)
        if (clip is None and size % tile == 0) or (clip is not None and tile == 1):
            return full
        limit = clip or Const(size, "int64")
        fits = simplify(Op("le", (Op("add", (expression(place.offset[a]), Const(tile, "int64"))), limit)))
        if clip is None:
            return (If(fits, full, self._variants(more, {**active, a: size % tile}, place)),)
        return (If(fits, full, self._one_by_one(a, tile, more, active, place, limit)),)

    def _one_by_one(
        self, a: Axis, tile: int, more: list[Axis], active: dict[Axis, int], place: Place, limit: Expr
    ) -> Body:
        """What is left of a clipped tile, index by index: its length is known only at run time."""
        var = Axis(f"{self.stage.name}_{a.name}_t", tile - 1)
        body = self._variants(more, {**active, a: 1}, place.moved(a, var, 1, True))
        left = Op("sub", (limit, expression(place.offset[a])))
        return (For(var, Op("min", (Const(tile - 1, "int64"), left)), body),)

    @property
    def _partial_name(self) -> str:
        return f"{self.stage.name}_partial" if self.consumer is not None else self.out.buffer

    def _partial_shape(self) -> tuple[int, ...]:
        return tuple(self.plan.sizes[a][self.outer_s - 1] for a in self.stage.space)


def _inside(stage: Compute, region: Region) -> Where:
    ranges = {a: (b, n) for a, b, n in zip(stage.space, region.base, region.size, strict=True)}
    return Where(ranges | {a: (ZERO, a.extent) for a in stage.reduce})


@dataclass
class _RegisterTile:
    """The innermost tile with `active` indices along each space axis: straight code around the last reduction."""

    nest: _StageNest
    active: dict[Axis, int]
    offset: Mapping[Axis, Affine]
    inner: Mapping[Axis, Affine]

    def __post_init__(self) -> None:
        self.plan = self.nest.plan
        self.stage = self.plan.stage
        self.rows = [a for a in self.stage.space if a != self.plan.vector and self.active[a] > 1]
        self.acc = f"{self.stage.name}_acc"
        v = self.plan.vector
        lanes_space = v is not None and v in self.stage.space
        self.vectors = -(-self.active[v] // self.plan.lanes) if lanes_space and v else 1
        if self.plan.lanes_reduce and v:
            self.vectors = max(1, self.plan.sizes[v][0] // self.plan.lanes)

    def build(self) -> Body:
        if not self.stage.reduce:
            return self._each(lambda at, lane, acc: self._finish(at, self._value(at, {})))
        dims = (*(self.active[a] for a in self.rows), self.vectors, self.plan.lanes)
        alloc = Alloc(self.acc, dims, self.stage.dtype, "register")
        return (alloc, *self._start(), *self._reduce(), *self._joined())

    # --- points of the tile

    def _each(
        self, make: Callable[[dict[Axis, Affine], Axis | None, tuple[Expr, ...]], Body], lanes: bool = True
    ) -> Body:
        """One statement for every point: rows unrolled, vectors unrolled, lanes as one vector operation."""
        return self._rows(list(self.rows), {}, lambda at, row: self._vectors(at, row, make, lanes))

    def _rows(
        self, todo: list[Axis], at: dict[Axis, Affine], make: Callable[[dict[Axis, Affine], tuple[Expr, ...]], Body],
        row: tuple[Expr, ...] = (),
    ) -> Body:  # fmt: skip
        if not todo:
            return make(at, row)
        a = todo[0]
        var = Axis(f"{self.stage.name}_{a.name}_u", self.active[a])
        inner = self._rows(todo[1:], {**at, a: Affine(((var, 1),), 0)}, make, (*row, var))
        return (For(var, Const(var.extent, "int64"), inner, "unroll"),)

    def _vectors(
        self, at: dict[Axis, Affine], row: tuple[Expr, ...],
        make: Callable[[dict[Axis, Affine], Axis | None, tuple[Expr, ...]], Body], lanes: bool,
    ) -> Body:  # fmt: skip
        v, width = self.plan.vector, self.plan.lanes
        zero = Const(0, "int64")
        if v is None or self.plan.lanes_reduce or not lanes:
            return make(at, None, (*row, zero, zero))
        lane = Axis(f"{self.stage.name}_{v.name}_l", width)
        whole_vectors, rest = divmod(self.active[v], width)
        out: list[Stmt] = []
        if whole_vectors:
            var = Axis(f"{self.stage.name}_{v.name}_v", whole_vectors)
            here = {**at, v: Affine(((var, width), (lane, 1)), 0)}
            body = (For(lane, Const(width, "int64"), make(here, lane, (*row, var, lane)), "vector"),)
            out.append(For(var, Const(whole_vectors, "int64"), body, "unroll"))
        if rest:
            here = {**at, v: Affine(((lane, 1),), whole_vectors * width)}
            last = make(here, lane, (*row, Const(whole_vectors, "int64"), lane))
            out.append(For(lane, Const(rest, "int64"), last, "vector"))
        return tuple(out)

    # --- the reduction

    def _start(self) -> Body:
        start: Expr = self.stage.combiner.start(self.stage.dtype)
        if self.plan.lanes_reduce:
            return self._lane_partials(lambda acc: (Store(self.acc, acc, start),))

        def init(at: dict[Axis, Affine], lane: Axis | None, acc: tuple[Expr, ...]) -> Body:
            return (Store(self.acc, acc, start),)

        fresh = self._each(init)
        if not self.nest.partial:
            return fresh

        def load(at: dict[Axis, Affine], lane: Axis | None, acc: tuple[Expr, ...]) -> Body:
            return (Store(self.acc, acc, Read(self.nest._partial_name, self._partial_index(at), self.stage.dtype)),)

        first = _all_zero([self.offset[a] for a in self.stage.reduce])
        return (If(first, fresh, self._each(load)),)

    def _reduce(self) -> Body:
        if self.plan.lanes_reduce:
            return self._reduce_lanes()

        def update(reduce: dict[Axis, Affine]) -> Body:
            def one(at: dict[Axis, Affine], lane: Axis | None, acc: tuple[Expr, ...]) -> Body:
                old = Read(self.acc, acc, self.stage.dtype)
                return (Store(self.acc, acc, self._join(old, self._value(at, reduce))),)

            return self._each(one)

        return self._reduce_loops(self._reduce_axes(), {}, update)

    def _reduce_axes(self) -> list[tuple[Axis, int, LoopKind, int]]:
        """(axis, trips, kind, step) from the outermost in; the innermost are unrolled as far as the budget goes."""
        budget, out = self.plan.unroll, []
        for a in reversed(self.stage.reduce):
            n = min(self.plan.sizes[a][0] if self.nest.partial else a.extent, a.extent)
            exact = a.extent % n == 0
            if exact and 1 < n <= budget:
                out.append((a, n, "unroll", 1))
                budget //= n
            elif exact and budget > 1 and n % budget == 0 and n > budget:
                out.append((a, budget, "unroll", 1))
                out.append((a, n // budget, "serial", budget))
                budget = 1
            else:
                out.append((a, n, "serial", 1))
                budget = 1
        return out[::-1]  # type: ignore[return-value]

    def _reduce_loops(
        self, todo: list[tuple[Axis, int, LoopKind, int]], at: dict[Axis, Affine],
        body: Callable[[dict[Axis, Affine]], Body],
    ) -> Body:  # fmt: skip
        if not todo:
            return body(at)
        (a, n, kind, step), more = todo[0], todo[1:]
        if n == 1:
            return self._reduce_loops(more, at, body)
        var = Axis(f"{self.stage.name}_{a.name}_{'u' if kind == 'unroll' else 'k'}", n)
        moved = plus(at.get(a, ZERO), Affine(((var, step),), 0)) or ZERO
        inner = self._reduce_loops(more, {**at, a: moved}, body)
        extent: Expr = Const(n, "int64")
        if a.extent % (n * step) and self.nest.partial:
            left = Op("sub", (Const(a.extent, "int64"), expression(self.offset[a])))
            extent = Op("min", (extent, left))
        return (For(var, extent, inner, kind),)

    # --- lanes on a reduce axis: partial results side by side, joined at the end

    def _lane_partials(self, make: Callable[[tuple[Expr, ...]], Body]) -> Body:
        lane = Axis(f"{self.stage.name}_lane", self.plan.lanes)
        part = Axis(f"{self.stage.name}_part", self.vectors)

        def parts(at: dict[Axis, Affine], row: tuple[Expr, ...]) -> Body:
            body = (For(lane, Const(lane.extent, "int64"), make((*row, part, lane)), "vector"),)
            return (For(part, Const(self.vectors, "int64"), body, "unroll"),)

        return self._rows(list(self.rows), {}, parts)

    def _reduce_lanes(self) -> Body:
        v, width, count = self.plan.vector, self.plan.lanes, self.vectors
        assert v is not None
        chunk = width * count
        outer = [(a, a.extent, "serial", 1) for a in self.stage.reduce if a != v]
        trips, rest = divmod(v.extent, chunk)

        def body(at: dict[Axis, Affine]) -> Body:
            out: list[Stmt] = []
            if trips:
                var = Axis(f"{self.stage.name}_{v.name}_k", trips)
                full = self._lane_updates({**at, v: Affine(((var, chunk),), 0)}, chunk)
                out.append(For(var, Const(trips, "int64"), full))
            if rest:
                out += self._lane_updates({**at, v: Affine((), trips * chunk)}, rest)
            return tuple(out)

        return self._reduce_loops(outer, {}, body)  # type: ignore[arg-type]

    def _lane_updates(self, reduce: dict[Axis, Affine], active: int) -> Body:
        v, width = self.plan.vector, self.plan.lanes
        assert v is not None
        lane = Axis(f"{self.stage.name}_lane", width)

        def update(at: dict[Axis, Affine], row: tuple[Expr, ...]) -> Body:
            whole_vectors, rest = divmod(active, width)
            out: list[Stmt] = []
            if whole_vectors:
                part = Axis(f"{self.stage.name}_part", whole_vectors)
                here = {**reduce, v: plus(reduce[v], Affine(((part, width), (lane, 1)), 0)) or ZERO}
                out.append(For(part, Const(whole_vectors, "int64"), one(at, here, (*row, part, lane), width), "unroll"))
            if rest:
                here = {**reduce, v: plus(reduce[v], Affine(((lane, 1),), whole_vectors * width)) or ZERO}
                out += one(at, here, (*row, Const(whole_vectors, "int64"), lane), rest)
            return tuple(out)

        def one(at: dict[Axis, Affine], here: dict[Axis, Affine], acc: tuple[Expr, ...], n: int) -> Body:
            old = Read(self.acc, acc, self.stage.dtype)
            new = self._join(old, self._value(at, here))
            value = new if n == width else select(lt(lane, n), new, old)
            return (For(lane, Const(width, "int64"), (Store(self.acc, acc, value),), "vector"),)

        return self._rows(list(self.rows), {}, update)

    def _joined(self) -> Body:
        """Lanes first among themselves, then across, then the tile leaves its registers."""
        if not self.plan.lanes_reduce:
            return self._leave()
        lane = Axis(f"{self.stage.name}_lane", self.plan.lanes)
        one = f"{self.stage.name}_one"
        zero = Const(0, "int64")

        def join(at: dict[Axis, Affine], row: tuple[Expr, ...]) -> Body:
            out: list[Stmt] = []
            first = (*row, zero, lane)
            for i in range(1, self.vectors):
                both = self._join(Read(self.acc, first, self.stage.dtype),
                                  Read(self.acc, (*row, Const(i, "int64"), lane), self.stage.dtype))  # fmt: skip
                out.append(For(lane, Const(lane.extent, "int64"), (Store(self.acc, first, both),), "vector"))
            whole = Read(one, (*row, zero), self.stage.dtype)
            across = self._join(whole, Read(self.acc, first, self.stage.dtype))
            out.append(For(lane, Const(lane.extent, "int64"), (Store(one, whole.index, across),), "vector"))
            return (*out, *self._finish(at, whole))

        neutral = self.stage.combiner.start(self.stage.dtype)
        start = self._rows(list(self.rows), {}, lambda at, row: (Store(one, (*row, zero), neutral),))
        alloc = Alloc(one, (*(self.active[a] for a in self.rows), 1), self.stage.dtype, "register")
        return (alloc, *start, *self._rows(list(self.rows), {}, join))

    # --- leaving

    def _leave(self) -> Body:
        def finish(at: dict[Axis, Affine], lane: Axis | None, acc: tuple[Expr, ...]) -> Body:
            return self._finish(at, Read(self.acc, acc, self.stage.dtype))

        def rest(at: dict[Axis, Affine], lane: Axis | None, acc: tuple[Expr, ...]) -> Body:
            return (Store(self.nest._partial_name, self._partial_index(at), Read(self.acc, acc, self.stage.dtype)),)

        done = self._each(finish)
        if not self.nest.partial:
            return done
        last = [
            Op(
                "le",
                (Const(a.extent, "int64"), expression(plus(self.offset[a], Affine((), self.plan.sizes[a][0])) or ZERO)),
            )
            for a in self.stage.reduce
            if self.plan.sizes[a][0] < a.extent
        ]
        condition = last[0]
        for other in last[1:]:
            condition = Op("and", (condition, other))
        return (If(condition, done, self._each(rest)),)

    def _finish(self, at: dict[Axis, Affine], value: Expr) -> Body:
        """Store the stage, or what its fused consumer makes of it."""
        index = self._index(at)
        consumer = self.nest.consumer
        if consumer is not None:
            own = self._absolute(index)
            there = dict(zip(consumer.space, map(expression, own), strict=True))
            body = rewrite_reads(consumer.body, self.stage.name, lambda r: _Hole(r))
            value = _fill(self._local(replace_axes(body, there)), value)
        target = self.nest.out
        return (Store(target.buffer, self._stored(index, target), value),)

    def _stored(self, index: list[Affine], target: Local) -> tuple[Expr, ...]:
        if self.nest.kind == "root":
            return tuple(map(expression, self._absolute(index)))
        return tuple(map(expression, index))

    def _index(self, at: dict[Axis, Affine]) -> list[Affine]:
        """Indices of the point, relative to the region."""
        return [plus(self.offset[a], at.get(a, ZERO)) or ZERO for a in self.stage.space]

    def _absolute(self, index: list[Affine]) -> list[Affine]:
        return [plus(i, b) or ZERO for i, b in zip(index, self.nest.region.base, strict=True)]

    def _partial_index(self, at: dict[Axis, Affine]) -> tuple[Expr, ...]:
        if self.nest.consumer is None:
            return self._stored(self._index(at), self.nest.out)
        return tuple(expression(plus(self.inner[a], at.get(a, ZERO)) or ZERO) for a in self.stage.space)

    def _value(self, at: dict[Axis, Affine], reduce: dict[Axis, Affine]) -> Expr:
        where = dict(zip(self.stage.space, map(expression, self._absolute(self._index(at))), strict=True))
        for a in self.stage.reduce:
            where[a] = expression(plus(self.offset[a], reduce.get(a, ZERO)) or ZERO)
        return self._local(replace_axes(self.stage.body, where))

    def _local(self, e: Expr) -> Expr:
        for name, local in self.nest.locals.items():
            e = rewrite_reads(e, name, partial(_relative, local))
        return e

    def _join(self, old: Expr, new: Expr) -> Expr:
        return self.stage.combiner.join(old, new, self.stage.dtype)


def _Hole(read: Read) -> Expr:  # noqa: N802
    """Marks where a fused consumer reads its producer, so that index rewriting leaves the accumulator alone."""
    return Read("", (), read.dtype)


def _fill(e: Expr, value: Expr) -> Expr:
    return rewrite_reads(e, "", lambda r: value)


def _relative(local: Local, read: Read) -> Expr:
    index = tuple(
        simplify(Op("sub", (i, expression(b)))) if b != ZERO else i for i, b in zip(read.index, local.base, strict=True)
    )
    return Read(local.buffer, index, read.dtype)


def _all_zero(offsets: list[Affine]) -> Expr:
    moving = [o for o in offsets if o.terms]
    condition: Expr | None = None
    for o in moving:
        here = Op("le", (expression(o), Const(0, "int64")))
        condition = here if condition is None else Op("and", (condition, here))
    return condition or Const(True, "bool")
