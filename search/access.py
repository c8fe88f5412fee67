"""What a program touches: the accesses of its tiled stages, their loops, and how many elements are loaded, as columns.

Everything that depends on the sketch alone is computed once a sketch; per population there is only arithmetic on
whole columns, in floats because integer division of columns is ten times slower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Literal

import numpy as np

from ir.affine import affine
from ir.compute import Compute, Dag
from ir.expr import OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read, axes, reads
from ir.schedule import Block, ComputeAt, Fuse, Pack, Population, Sketch
from ir.tiling import Column, Tiling
from ir.transform import apply, constants, unit_axes
from search.validity import NOMINAL, structure, tilings

LINE = 64  # bytes of a cache line


# --- structure: once a sketch -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dimension:
    """One index of an access. terms: (axis, |coefficient|), coefficients ascending, their common divisor `step` taken
    out. Not `linear`: any function of the axes. stride: bytes between neighbours."""

    terms: tuple[tuple[Axis, int], ...]
    step: int
    linear: bool
    extent: int
    stride: int

    def distinct(self, span: Callable[[Axis], Column]) -> Column:
        """How many values the index takes; exact for up to two axes."""
        if not self.linear:
            every: Column = prod((span(a) for a, _ in self.terms), start=np.float32(1))
            return np.minimum(every, self.extent)
        out: Column = np.float32(1)
        for i, (a, c) in enumerate(self.terms):
            out = span(a) if i == 0 else out + (span(a) - 1) * (np.minimum(c, out) if c > 1 else 1)
        return out

    def reach(self, span: Callable[[Axis], Column]) -> Column:
        """From its smallest value to its largest."""
        if not self.linear or (self.step == 1 and len(self.terms) == 1):
            return self.distinct(span)
        return sum(((span(a) - 1) * (c * self.step) for a, c in self.terms), start=np.float32(1))


@dataclass(frozen=True, slots=True)
class Access:
    """A read or the store of a stage.

    lanes: what the vector axis does to it: the elements of a vector are "adjacent", all the "same", or "strided".
    """

    tensor: str
    dims: tuple[Dimension, ...]
    axes: frozenset[Axis]
    bytes: int
    lanes: Literal["adjacent", "same", "strided"]
    packed: bool
    aligned: bool

    def elements(self, span: Callable[[Axis], Column]) -> Column:
        """Distinct elements touched while the axes run over `span`."""
        return np.asarray(prod((d.distinct(span) for d in self.dims), start=np.float32(1)))

    def footprint(self, span: Callable[[Axis], Column]) -> Column:
        """Bytes that occupy a cache: along the last dimension a gap is loaded with its line."""
        out: Column = np.float32(self.bytes)
        for d in self.dims[:-1]:
            out = out * d.distinct(span)
        if not self.dims:
            return out
        last = self.dims[-1]
        if self.packed:
            return out * last.distinct(span)
        return out * np.maximum(last.reach(span), min(LINE // self.bytes, last.extent))


@dataclass(frozen=True, slots=True)
class Stage:
    """What is known of a tiled stage before its numbers are."""

    stage: Compute
    accesses: tuple[Access, ...]
    output: Access
    points: float
    operations: int  # a point, a multiply-add as two
    math: float  # calls a point of the space
    guards: int
    consumer_bytes: int

    @property
    def flops(self) -> float:
        return max(self.points * max(self.operations, 1), 1.0)

    def part(self, access: Access) -> Literal["along", "other", "out"]:
        """What an access counts as: an operand that lanes run along, another one, the output."""
        return "out" if access is self.output else "other" if access.lanes == "same" else "along"


@dataclass(frozen=True, slots=True)
class Plan:
    """A sketch's tiled stages, its anchor, and what else does not depend on the choices."""

    dag: Dag
    stages: Mapping[str, Stage]
    anchor: str
    attached: tuple[ComputeAt, ...]
    packs: tuple[tuple[str, Axis, float], ...]  # packed at run time: stage, axis, bytes a full axis
    flops: float
    bytes: float


@lru_cache(maxsize=1024)
def plan_of(sketch: Sketch) -> Plan:
    packed, tiles = structure(sketch)
    dag = _unpacked(sketch)
    constant = constants(packed)
    behind = {s.stage: dag.stage(s.consumer) for s in sketch.steps if isinstance(s, Fuse)}
    copies = {(s.stage, s.tensor) for s in sketch.steps if isinstance(s, Pack)}
    copies |= {(s.stage, f"{s.tensor}.block") for s in sketch.steps if isinstance(s, Block)}
    stages = {
        n: _stage(dag, dag.stage(n), t.vector, behind.get(n), copies) for n, t in tiles.items() if n in dag.tensors
    }
    return Plan(
        dag=dag,
        stages=stages,
        anchor=max(stages, key=lambda n: stages[n].flops),
        attached=tuple(s for s in sketch.steps if isinstance(s, ComputeAt) and {s.stage, s.consumer} <= stages.keys()),
        packs=tuple(_packs(sketch, dag, constant)),
        flops=sketch.dag.flops,
        bytes=sketch.dag.bytes,
    )


def _unpacked(sketch: Sketch) -> Dag:
    """The DAG after all steps but packing: its indices say what is touched, a packed copy only where it lies."""
    known = {h.name: h.options[0] for h in sketch.holes}
    dag = unit_axes(sketch.dag)
    for step in sketch.steps:
        if not isinstance(step, Pack):
            dag = apply(dag, step, known, lambda stage, axis: NOMINAL)
    return dag


def _packs(sketch: Sketch, dag: Dag, constant: frozenset[str]) -> Iterator[tuple[str, Axis, float]]:
    for s in sketch.steps:
        if isinstance(s, Pack) and s.tensor not in constant:
            axis = next(a for a in dag.stage(s.stage).space if a.name == s.axis)
            packed = dag.tensors.get(s.tensor) or sketch.dag[s.tensor]  # a move that was inlined behind its copy
            yield s.stage, axis, float(prod(packed.shape, start=np.dtype(packed.dtype).itemsize))


def _stage(dag: Dag, stage: Compute, vector: str, consumer: Compute | None, copies: set[tuple[str, str]]) -> Stage:
    lanes = next((a for a in stage.axes if a.name == vector), None)
    found = tuple(
        _access(*_whole(r, dag[r.tensor].shape), lanes, (stage.name, r.tensor) in copies)
        for r in dict.fromkeys(reads(stage.body))
    )
    kinds = _operations(stage.body)
    behind = _operations(consumer.body) if consumer is not None else Counter[str]()
    output = _access(Read(stage.name, stage.space, stage.dtype), stage.shape, lanes, False)
    beside = [r for r in reads(consumer.body) if r.tensor != stage.name] if consumer is not None else []
    reduced = prod(a.extent for a in stage.reduce)
    return Stage(
        stage, found, output,
        points=float(prod(a.extent for a in stage.axes)),
        operations=kinds.total() + bool(stage.reduce),
        math=float(kinds["math"] * reduced + behind["math"]),
        guards=kinds["select"],
        consumer_bytes=sum(np.dtype(r.dtype).itemsize for r in beside),
    )  # fmt: skip


def _whole(read: Read, shape: tuple[int, ...]) -> tuple[Read, tuple[int, ...]]:
    """P.block[k / M, i, k % M]      -->      P.block[i, k]: the same elements, whatever M is."""
    match read.index:
        case (Op("floordiv", (Axis() as k, Const())), *rest, Op("mod", (Axis() as again, Const()))) if k == again:
            return Read(read.tensor, (*rest, k), read.dtype), (*shape[1:-1], shape[0] * shape[-1])
        case _:
            return read, shape


def _access(read: Read, shape: tuple[int, ...], lanes: Axis | None, packed: bool) -> Access:
    size = np.dtype(read.dtype).itemsize
    strides = [size * prod(shape[d + 1 :]) for d in range(len(shape))]
    dims = tuple(_dimension(i, n, s) for i, n, s in zip(read.index, shape, strides, strict=True))
    used = frozenset(a for d in dims for a, _ in d.terms)
    aligned = packed or (bool(shape) and shape[-1] * size % LINE == 0)
    return Access(read.tensor, dims, used, size, _lanes(read, dims, lanes, packed), packed, aligned)


def _lanes(
    read: Read, dims: tuple[Dimension, ...], lanes: Axis | None, packed: bool
) -> Literal["adjacent", "same", "strided"]:
    if lanes is None or all(lanes not in axes(i) for i in read.index):
        return "same"
    if packed:
        return "adjacent"
    last = affine(read.index[-1])
    alone = all(lanes not in axes(i) for i in read.index[:-1])
    return "adjacent" if alone and last is not None and last.coefficient(lanes) == 1 else "strided"


def _dimension(index: Expr, extent: int, stride: int) -> Dimension:
    form = affine(index)
    if form is None:
        return Dimension(tuple((a, 1) for a in sorted(axes(index), key=lambda a: a.name)), 1, False, extent, stride)
    step = gcd(*(c for _, c in form.terms)) or 1
    terms = tuple(sorted(((a, abs(c) // step) for a, c in form.terms), key=lambda t: (t[1], t[0].name)))
    return Dimension(terms, step, True, extent, stride)


def _operations(e: Expr) -> Counter[str]:
    """Kinds of the operations on values; what stands in an index or a condition does not count, nor does a choice of
    numbers, which unrolling makes (the tables of a transform), nor what passes over their zeros."""
    match e:
        case Op("select", (Op("ne", (entry, Const())), then, Const())) if _is_table(entry):
            return _operations(then)
        case Op("select") if _is_table(e):
            return Counter()
        case Op("select", (_, then, otherwise)):
            return Counter(select=1) + max(_operations(then), _operations(otherwise), key=Counter.total)
        case Op(name, args):
            return sum(map(_operations, args), Counter([OPERATIONS[name].kind]))
        case Cast(_, arg):
            return _operations(arg)
        case Read() | Const() | Axis() | Param():
            return Counter()


def _is_table(e: Expr) -> bool:
    """A choice of numbers."""
    match e:
        case Op("select", (_, then, otherwise)):
            return all(isinstance(side, Const) or _is_table(side) for side in (then, otherwise))
        case _:
            return False


# --- loops of a stage, as columns -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loops:
    """A stage's loops outermost first, L of them, over n programs.

    axis, level: of loop l; level counts the letters of the structure. trips: float32 (L, n). spans[a]: float32
    (L + 1, n), extent of the box along axis a after l loops are entered; row L is the register tile and one step.
    """

    axis: tuple[Axis, ...]
    level: tuple[int, ...]
    trips: np.ndarray
    spans: Mapping[Axis, np.ndarray]

    def after(self, level: int) -> int:
        """Number of loops down to and including a letter of the structure."""
        return sum(n <= level for n in self.level)

    def of(self, level: int, only: Axis | None = None) -> Column:
        """Trips of a level in all, or of one axis of it."""
        at = [i for i, (a, n) in enumerate(zip(self.axis, self.level, strict=True)) if n == level and only in (None, a)]
        return np.asarray(self.trips[at].prod(axis=0))


def loops_of(t: Tiling, n: int) -> Loops:
    todo = list(_order(t))
    spans = {a: np.full((len(todo) + 1, n), a.extent, np.float32) for a in t.stage.axes}
    trips = np.empty((len(todo), n), np.float32)
    for l, (a, _, size) in enumerate(todo):
        around = spans[a][l]
        inside = np.minimum(size, around)
        np.ceil(around / inside, out=trips[l])
        spans[a][l + 1 :] = inside
    return Loops(tuple(a for a, _, _ in todo), tuple(n for _, n, _ in todo), trips, spans)


def _order(t: Tiling) -> Iterator[tuple[Axis, int, Column]]:
    """(axis, letter, size inside). The vector axis stands first or last among the space loops of a letter, program by
    program: it appears at both ends, and at the wrong one it moves nothing."""
    s = r = 0
    for at, letter in enumerate(t.structure[:-1]):
        if letter == "S":
            yield from ((a, at, size) for a, size in _space_order(t, s))
            s += 1
        else:
            last = r == t.structure.count("R") - 1
            step = step_of(t) if last else None
            for a in t.stage.reduce:
                if a.extent > 1:
                    size = (step if a == t.vector else 1) if last else t.sizes[a][r]
                    yield a, at, np.asarray(size, np.float32)
            r += 1


def _space_order(t: Tiling, level: int) -> Iterator[tuple[Axis, Column]]:
    space = [a for a in t.stage.space if a.extent > 1]
    sizes = {a: np.asarray(t.sizes[a][level], np.float32) for a in space}
    v = t.vector
    if v not in sizes:
        yield from sizes.items()
        return
    first = np.asarray(t.vector_first, bool)
    yield v, np.where(first, sizes[v], np.float32(np.inf))
    yield from ((a, size) for a, size in sizes.items() if a != v)
    yield v, sizes[v]


def step_of(t: Tiling) -> Column:
    """Indices of a reduced vector axis that one step takes."""
    if t.vector is None:
        return np.float32(1)
    return np.asarray(np.maximum(t.sizes[t.vector][0] // t.lanes, 1) * t.lanes)


def unrolled_steps(t: Tiling) -> dict[Axis, Column]:
    """How many steps along each reduce axis are straight code: the innermost first, as far as the budget goes (see
    `ir.lower`)."""
    if t.lanes_reduce:
        return {a: np.float64(1) for a in t.stage.reduce}
    split = t.structure.count("R") > 1
    partial = np.asarray(False)
    for a in t.stage.reduce:
        partial = partial | (split and np.asarray(t.sizes[a][0]) < a.extent)
    budget, out = np.asarray(t.unroll, np.float64), {}
    for a in reversed(t.stage.reduce):
        n = np.minimum(np.where(partial, t.sizes[a][0], np.float64(a.extent)), a.extent)
        fully = divides(n, a.extent) & (n > 1) & (n <= budget)
        partly = divides(n, a.extent) & (budget > 1) & (n > budget) & divides(budget, n)
        out[a] = np.where(fully, n, np.where(partly, budget, 1))
        budget = np.where(fully, np.floor(budget / np.maximum(n, 1)), 1)
    return out


def divides(n: Column, whole: Column) -> Column:
    """In floats: integer division of columns is ten times slower."""
    share = whole / np.maximum(n, 1)
    return np.asarray(share == np.floor(share))


# --- loads ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loads:
    """Elements of an operand. issued: loads, each element once in a straight-line block, all blocks together.
    distinct: different elements. float64 (programs) both."""

    issued: Column
    distinct: Column


def accesses(population: Population, stage: str) -> dict[str, Loads]:
    """Tensor -> how often the register tiles of a stage load from it, over the whole run, reads behind guards
    included. Operands that a packed copy stands for go by the copy's name, "B.pack".

    Exact where the indices of a read are linear in at most two axes, and a tensor is read in one form. The numbers of
    a sketch with "split" holes are those of their first options: see `search.validity.by_split`.
    """
    found = plan_of(population.sketch).stages[stage]
    t = tilings(population)[stage]
    blocks = blocks_of(t, unrolled_steps(t))
    out: dict[str, Loads] = {}
    for access in found.accesses:
        name = f"{access.tensor}.pack" if access.packed else access.tensor
        distinct = access.elements(lambda a: np.float64(a.extent))
        new = Loads(issued(access, blocks), np.broadcast_to(distinct, len(population)))
        old = out.get(name)
        out[name] = new if old is None else Loads(old.issued + new.issued, np.maximum(old.distinct, new.distinct))
    return {n: Loads(np.broadcast_to(x.issued, len(population)), x.distinct) for n, x in out.items()}


Blocks = Mapping[Axis, tuple[tuple[Column, Column], ...]]


def blocks_of(t: Tiling, unrolled: Mapping[Axis, Column]) -> Blocks:
    """Axis -> (how many, of how many indices): the straight-line blocks that together cover it."""
    out: dict[Axis, tuple[tuple[Column, Column], ...]] = {}
    for a in t.stage.axes:
        if a in unrolled and a != t.vector:
            out[a] = ((a.extent / unrolled[a], unrolled[a]),)
            continue
        tile = step_of(t) if a in unrolled else t.register(a)
        tile = np.clip(np.asarray(tile, np.float64), 1, max(a.extent, 1))
        whole = np.floor(a.extent / tile)
        rest = a.extent - whole * tile
        out[a] = ((whole, tile), (rest > 0, rest)) if np.any(rest) else ((whole, tile),)
    return out


def issued(access: Access, blocks: Blocks) -> Column:
    """Sum over the kinds of blocks: how many there are x the elements that one touches."""
    around = prod(
        (sum(n for n, _ in parts) for a, parts in blocks.items() if a not in access.axes), start=np.float64(1)
    )
    own = [a for a in blocks if a in access.axes]
    total: Column = np.float64(0)
    for chosen in product(*(blocks[a] for a in own)):
        size = {a: extent for a, (_, extent) in zip(own, chosen, strict=True)}
        count = prod((n for n, _ in chosen), start=around)
        total = total + count * access.elements(size.__getitem__)
    return total
