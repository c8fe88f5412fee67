"""The register tile: straight code around the last reduction, and how its results leave the registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ir.affine import ZERO, Affine, expression, place, plus, simplify
from ir.expr import Axis, Const, Expr, Op, Read, all_of, axes, conjuncts, lt, reads, select
from ir.loop import Alloc, For, If, LoopKind, Stmt, Store
from ir.lower.region import Local, Place, relative
from ir.transform import rewrite_reads

if TYPE_CHECKING:
    from ir.lower.nest import StageNest

Body = tuple[Stmt, ...]


@dataclass
class RegisterTile:
    """The innermost tile with `active` indices along each space axis: straight code around the last reduction."""

    nest: StageNest
    active: Mapping[Axis, int]
    place: Place

    def __post_init__(self) -> None:
        self.offset, self.inner = self.place.offset, self.place.inner
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
            return self._guarded(self.stage.body)
        dims = (*(self.active[a] for a in self.rows), self.vectors, self.plan.lanes)
        alloc = Alloc(self.acc, dims, self.stage.dtype, "register")
        return (alloc, *self._start(), *self._reduce(), *self._joined())

    def _guarded(self, body: Expr) -> Body:
        """for p: s = select(c, a, b)      -->      if c: for p: s = a; else for p: s = b      of what all points share"""
        match body:
            case Op("select", (c, then, otherwise)):
                shared = [k for k in conjuncts(c) if self._is_shared(k)]
                rest = [k for k in conjuncts(c) if k not in shared]
                if shared and (not rest or isinstance(otherwise, Const)):  # else `otherwise` would be written twice
                    inner = select(all_of(*rest), then, otherwise) if rest else then
                    holds = self._placed(all_of(*shared), {}, {})
                    return (If(holds, self._guarded(inner), self._guarded(otherwise)),)
        return self._each(lambda at, lane, acc: self._finish(at, self._placed(body, at, {})))

    def _is_shared(self, condition: Expr) -> bool:
        moving = {*self.rows, self.plan.vector}
        return not reads(condition) and not any(a in moving for a in axes(condition))

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

        if not self.nest.partial:
            return self._each(lambda at, lane, acc: (Store(self.acc, acc, start),))

        def load(at: dict[Axis, Affine], lane: Axis | None, acc: tuple[Expr, ...]) -> Body:
            return (Store(self.acc, acc, self._partial(at)),)

        return self._each(load)

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
        if self.nest.swept:
            return self._rest()
        if not self.nest.partial or self.nest.consumer is None:  # without a consumer, partial results rest in `out`
            return self._finished()
        last: Expr = Const(True, "bool")
        for a in self.stage.reduce:
            end = expression(plus(self.offset[a], Affine((), self.plan.sizes[a][0])) or ZERO)
            last = simplify(Op("and", (last, Op("le", (Const(a.extent, "int64"), end)))))
        return (If(last, self._finished(), self._rest()),)

    def _finished(self) -> Body:
        return self._each(lambda at, lane, acc: self._finish(at, Read(self.acc, acc, self.stage.dtype)))

    def _rest(self) -> Body:
        def rest(at: dict[Axis, Affine], lane: Axis | None, acc: tuple[Expr, ...]) -> Body:
            return (Store(self.nest.partial_name, self._partial_index(at), Read(self.acc, acc, self.stage.dtype)),)

        return self._each(rest)

    def neutral(self) -> Body:
        """The output before the reduction, where partial results rest in it."""
        out, start = self.nest.out, self.stage.combiner.start(self.stage.dtype)
        return self._each(lambda at, lane, acc: (Store(out.buffer, self._stored(self._index(at), out), start),))

    def passed_on(self) -> Body:
        """Straight from the partial results, behind the reduction."""
        return self._each(lambda at, lane, acc: self._finish(at, self._partial(at)))

    def _finish(self, at: dict[Axis, Affine], value: Expr) -> Body:
        """Store the stage, or what its fused consumer makes of it."""
        index = self._index(at)
        consumer = self.nest.consumer
        if consumer is not None:
            own = self._absolute(index)
            there = dict(zip(consumer.space, own, strict=True))
            body = self.nest.scene.epilogue(consumer, self.stage.name)
            value = fill(self._local(place(body, there, self.nest.scene.forms)), value)
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

    def _partial(self, at: dict[Axis, Affine]) -> Expr:
        return Read(self.nest.partial_name, self._partial_index(at), self.stage.dtype)

    def _partial_index(self, at: dict[Axis, Affine]) -> tuple[Expr, ...]:
        if self.nest.consumer is None:
            return self._stored(self._index(at), self.nest.out)
        return tuple(expression(plus(self.inner[a], at.get(a, ZERO)) or ZERO) for a in self.stage.space)

    def _value(self, at: dict[Axis, Affine], reduce: dict[Axis, Affine]) -> Expr:
        return self._placed(self.stage.body, at, reduce)

    def _placed(self, e: Expr, at: dict[Axis, Affine], reduce: dict[Axis, Affine]) -> Expr:
        where = dict(zip(self.stage.space, self._absolute(self._index(at)), strict=True))
        for a in self.stage.reduce:
            where[a] = plus(self.offset[a], reduce.get(a, ZERO)) or ZERO
        return self._local(place(e, where, self.nest.scene.forms))

    def _local(self, e: Expr) -> Expr:
        for name, local in self.nest.locals.items():
            e = rewrite_reads(e, name, partial(relative, local))
        return e

    def _join(self, old: Expr, new: Expr) -> Expr:
        return self.stage.combiner.join(old, new, self.stage.dtype)


def fill(e: Expr, value: Expr) -> Expr:
    return rewrite_reads(e, "", lambda r: value)
