"""What the cost model sees of a program: one row of numbers of a fixed width, whatever the DAG.

The stage with the most work (the anchor) shows itself in full; the others as sums and extremes. Everything that
depends on the sketch alone is computed once a sketch; per population there is only arithmetic on whole columns. The
choice of features follows measurements: register tile, footprints against the caches and estimated traffic carry
most of the gain. Trees split at thresholds, so a footprint is given once, as a share of the cache it competes for:
a second copy of it over another cache would be the same feature again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd, prod
from typing import Literal

import numpy as np

from ir.affine import affine
from ir.compute import Compute, Dag
from ir.expr import OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read, axes, reads
from ir.schedule import ComputeAt, Fuse, Pack, Population, Sketch
from ir.target import Target
from ir.tiling import Tiling
from ir.transform import apply, constant_stages, unit_axes
from search.validity import attached_region, registers, rows_and_vectors, structure, tilings

VERSION = 1

NAMES: tuple[str, ...] = (
    # the workload, so that one model serves all of them
    "work.flops", "work.bytes", "work.flops_per_byte", "work.stages", "work.anchor_share", "work.element_bytes",
    "work.threads", "work.reduce", "work.space", "work.rank", "work.guards", "work.math_per_point",
    # the anchor's register tile
    "tile.rows", "tile.vectors", "tile.size", "tile.registers", "tile.intensity", "tile.lanes", "tile.vector_bytes",
    "tile.row_axes", "tile.lane_waste", "tile.row_waste", "tile.tail_share", "tile.variants", "tile.unroll",
    "tile.statements", "tile.lanes_reduce",
    # its loops
    "loop.s0", "loop.s1", "loop.s2", "loop.r0", "loop.r1", "loop.s2_vector", "loop.s1_vector", "loop.s0_vector",
    "loop.vector_first", "loop.partial_bytes",
    # bytes that one pass of a loop touches, as a share of a cache: operands that lanes run along, others, output, all
    "fit.tile_along", "fit.tile_other", "fit.tile_out", "fit.tile",
    "fit.s2_along", "fit.s2_other", "fit.s2_out", "fit.s2",
    "fit.s1_along", "fit.s1_other", "fit.s1_out", "fit.s1",
    "fit.s0_along", "fit.s0_other", "fit.s0_out", "fit.s0",
    "fit.all",
    # estimated bytes a flop into each cache
    "traffic.l1_along", "traffic.l1_other", "traffic.l1_out", "traffic.l1",
    "traffic.l2_along", "traffic.l2_other", "traffic.l2_out", "traffic.l2", "traffic.l3",
    # instructions
    "issue.vector_loads", "issue.broadcasts", "issue.strided", "issue.stores", "issue.operations", "issue.unaligned",
    "issue.conflicts", "issue.cycles",
    # threads
    "parallel.degree", "parallel.chunks", "parallel.balance", "parallel.depth",
    # where producers are computed, and copies
    "place.attached", "place.redundancy", "place.buffer_l1", "place.buffer_l2", "place.runs", "place.workspace",
    "place.packed", "place.pack_waste",
    # the other stages
    "others.flops", "others.points", "others.cycles", "others.registers", "others.intensity", "others.size",
    "others.traffic_l1", "others.traffic_l2", "others.statements", "others.math", "others.scalar", "others.strided",
    "others.waste", "others.degree", "others.balance",
)  # fmt: skip

WIDTH = len(NAMES)

LINE = 64  # bytes of a cache line
PAGE = 4096  # addresses this far apart fall into the same set of a 64-set first-level cache
# Throughputs of a recent x86 core, a cycle (Agner Fog, instruction tables): 2 fused multiply-adds of latency 4, 2
# loads, 1 store; bytes into L1 and L2. They shape one estimate; the trees find its scale.
FMA, LATENCY, LOADS, STORES, INTO_L1, INTO_L2 = 2, 4, 2, 1, 32, 8

Column = np.ndarray


def features(population: Population, target: Target) -> np.ndarray:
    """float32 (programs x WIDTH), every entry log2(1 + count)."""
    out = np.empty((WIDTH, len(population)), dtype=np.float32)
    for rows, part in by_split(population):
        columns = _columns(part, target)
        for i, name in enumerate(NAMES):
            out[i, rows] = columns[name]
    np.log2(1 + out, out=out)
    return np.ascontiguousarray(out.T)


def by_split(population: Population) -> Iterator[tuple[np.ndarray | slice, Population]]:
    """Rows that share the choices of all "split" holes: only there does the sketch's DAG have one set of extents."""
    sketch = population.sketch
    columns = [i for i, h in enumerate(sketch.holes) if h.kind == "split" and len(h.options) > 1]
    if not columns:
        yield slice(None), population
        return
    chosen, which = np.unique(population.choices[:, columns], axis=0, return_inverse=True)
    for n, choices in enumerate(chosen):
        rows = np.flatnonzero(which.ravel() == n)
        picked = dict(zip(columns, (int(c) for c in choices), strict=True))
        part = population.choices[rows].copy()
        part[:, columns] = 0
        yield rows, Population(_specialised(sketch, tuple(picked.items())), part)


@lru_cache(maxsize=1024)
def _specialised(sketch: Sketch, picked: tuple[tuple[int, int], ...]) -> Sketch:
    """The same sketch with one option left in some holes (column -> choice)."""
    chosen = dict(picked)
    holes = tuple(
        replace(h, options=(h.options[chosen[i]],)) if i in chosen else h for i, h in enumerate(sketch.holes)
    )
    return replace(sketch, holes=holes)


# --- structure: once a sketch -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Dimension:
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
        if not self.linear or self.step == 1 and len(self.terms) == 1:
            return self.distinct(span)
        return sum(((span(a) - 1) * (c * self.step) for a, c in self.terms), start=np.float32(1))


@dataclass(frozen=True, slots=True)
class _Access:
    """A read or the store of a stage.

    lanes: what the vector axis does to it: the elements of a vector are "adjacent", all the "same", or "strided".
    """

    tensor: str
    dims: tuple[_Dimension, ...]
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
class _Stage:
    """What is known of a tiled stage before its numbers are."""

    stage: Compute
    accesses: tuple[_Access, ...]
    output: _Access
    points: float
    operations: int  # a point, a multiply-add as two
    math: float  # calls a point of the space
    guards: int
    consumer_bytes: int

    @property
    def flops(self) -> float:
        return max(self.points * max(self.operations, 1), 1.0)

    def part(self, access: _Access) -> Literal["along", "other", "out"]:
        """What an access counts as: an operand that lanes run along, another one, the output."""
        return "out" if access is self.output else "other" if access.lanes == "same" else "along"


@dataclass(frozen=True, slots=True)
class _Plan:
    """A sketch's tiled stages, its anchor, and what else does not depend on the choices."""

    dag: Dag
    stages: Mapping[str, _Stage]
    anchor: str
    attached: tuple[ComputeAt, ...]
    packs: tuple[tuple[str, Axis, float], ...]  # packed at run time: stage, axis, bytes a full axis
    flops: float
    bytes: float


@lru_cache(maxsize=1024)
def _plan(sketch: Sketch) -> _Plan:
    packed, tiles = structure(sketch)
    dag = _unpacked(sketch)
    constant = frozenset(constant_stages(packed)) | {i.name for i in dag.inputs if i.constant}
    behind = {s.stage: dag.stage(s.consumer) for s in sketch.steps if isinstance(s, Fuse)}
    copies = {(s.stage, s.tensor) for s in sketch.steps if isinstance(s, Pack)}
    stages = {
        n: _stage(dag, dag.stage(n), t.vector, behind.get(n), copies) for n, t in tiles.items() if n in dag.tensors
    }
    return _Plan(
        dag=dag,
        stages=stages,
        anchor=max(stages, key=lambda n: stages[n].flops),
        attached=tuple(s for s in sketch.steps if isinstance(s, ComputeAt) and s.stage in dag.tensors),
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
            dag = apply(dag, step, known, lambda stage, axis: 1)
    return dag


def _packs(sketch: Sketch, dag: Dag, constant: frozenset[str]) -> Iterator[tuple[str, Axis, float]]:
    for s in sketch.steps:
        if isinstance(s, Pack) and s.tensor not in constant:
            axis = next(a for a in dag.stage(s.stage).space if a.name == s.axis)
            used = next(r for r in reads(dag.stage(s.stage).body) if r.tensor == s.tensor)
            size = prod((a.extent for i in used.index for a in axes(i)), start=np.dtype(used.dtype).itemsize)
            yield s.stage, axis, float(size)


def _stage(
    dag: Dag, stage: Compute, vector: str, consumer: Compute | None, copies: set[tuple[str, str]]
) -> _Stage:
    lanes = next((a for a in stage.axes if a.name == vector), None)
    found = tuple(
        _access(r, dag[r.tensor].shape, lanes, (stage.name, r.tensor) in copies)
        for r in dict.fromkeys(reads(stage.body))
    )
    kinds = _operations(stage.body)
    behind = _operations(consumer.body) if consumer is not None else Counter[str]()
    output = _access(Read(stage.name, stage.space, stage.dtype), stage.shape, lanes, False)
    beside = [r for r in reads(consumer.body) if r.tensor != stage.name] if consumer is not None else []
    reduced = prod(a.extent for a in stage.reduce)
    return _Stage(
        stage, found, output,
        points=float(prod(a.extent for a in stage.axes)),
        operations=kinds.total() + bool(stage.reduce),
        math=float(kinds["math"] * reduced + behind["math"]),
        guards=kinds["select"],
        consumer_bytes=sum(np.dtype(r.dtype).itemsize for r in beside),
    )  # fmt: skip


def _access(read: Read, shape: tuple[int, ...], lanes: Axis | None, packed: bool) -> _Access:
    size = np.dtype(read.dtype).itemsize
    strides = [size * prod(shape[d + 1 :]) for d in range(len(shape))]
    dims = tuple(_dimension(i, n, s) for i, n, s in zip(read.index, shape, strides, strict=True))
    used = frozenset(a for d in dims for a, _ in d.terms)
    aligned = packed or (bool(shape) and shape[-1] * size % LINE == 0)
    return _Access(read.tensor, dims, used, size, _lanes(read, dims, lanes, packed), packed, aligned)


def _lanes(
    read: Read, dims: tuple[_Dimension, ...], lanes: Axis | None, packed: bool
) -> Literal["adjacent", "same", "strided"]:
    if lanes is None or all(lanes not in axes(i) for i in read.index):
        return "same"
    if packed:
        return "adjacent"
    last = affine(read.index[-1])
    alone = all(lanes not in axes(i) for i in read.index[:-1])
    return "adjacent" if alone and last is not None and last.coefficient(lanes) == 1 else "strided"


def _dimension(index: Expr, extent: int, stride: int) -> _Dimension:
    form = affine(index)
    if form is None:
        return _Dimension(tuple((a, 1) for a in sorted(axes(index), key=lambda a: a.name)), 1, False, extent, stride)
    step = gcd(*(c for _, c in form.terms)) or 1
    terms = tuple(sorted(((a, abs(c) // step) for a, c in form.terms), key=lambda t: (t[1], t[0].name)))
    return _Dimension(terms, step, True, extent, stride)


def _operations(e: Expr) -> Counter[str]:
    """Kinds of the operations on values; what stands in an index or a condition does not count."""
    match e:
        case Op("select", (_, then, otherwise)):
            return Counter(select=1) + max(_operations(then), _operations(otherwise), key=Counter.total)
        case Op(name, args):
            return sum(map(_operations, args), Counter([OPERATIONS[name].kind]))
        case Cast(_, arg):
            return _operations(arg)
        case Read() | Const() | Axis() | Param():
            return Counter()


# --- loops of a stage, as columns -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loops:
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


def _loops(t: Tiling, n: int) -> _Loops:
    todo = list(_order(t))
    spans = {a: np.full((len(todo) + 1, n), a.extent, np.float32) for a in t.stage.axes}
    trips = np.empty((len(todo), n), np.float32)
    for l, (a, _, size) in enumerate(todo):
        around = spans[a][l]
        inside = np.minimum(size, around)
        np.ceil(around / inside, out=trips[l])
        spans[a][l + 1 :] = inside
    return _Loops(tuple(a for a, _, _ in todo), tuple(n for _, n, _ in todo), trips, spans)


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
            step = _step(t) if last else None
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


def _step(t: Tiling) -> Column:
    """Indices of a reduced vector axis that one step takes."""
    if t.vector is None:
        return np.float32(1)
    return np.asarray(np.maximum(t.sizes[t.vector][0] // t.lanes, 1) * t.lanes)


def _unrolled(t: Tiling) -> dict[Axis, Column]:
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
        fully = _divides(n, a.extent) & (n > 1) & (n <= budget)
        partly = _divides(n, a.extent) & (budget > 1) & (n > budget) & _divides(budget, n)
        out[a] = np.where(fully, n, np.where(partly, budget, 1))
        budget = np.where(fully, np.floor(budget / np.maximum(n, 1)), 1)
    return out


def _divides(n: Column, whole: Column) -> Column:
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
    a sketch with "split" holes are those of their first options: see `by_split`.
    """
    found = _plan(population.sketch).stages[stage]
    t = tilings(population)[stage]
    blocks = _blocks(t, _unrolled(t))
    out: dict[str, Loads] = {}
    for access in found.accesses:
        name = f"{access.tensor}.pack" if access.packed else access.tensor
        distinct = access.elements(lambda a: np.float64(a.extent))
        new = Loads(_issued(access, blocks), np.broadcast_to(distinct, len(population)))
        old = out.get(name)
        out[name] = new if old is None else Loads(old.issued + new.issued, np.maximum(old.distinct, new.distinct))
    return {n: Loads(np.broadcast_to(x.issued, len(population)), x.distinct) for n, x in out.items()}


Blocks = Mapping[Axis, tuple[tuple[Column, Column], ...]]


def _blocks(t: Tiling, unrolled: Mapping[Axis, Column]) -> Blocks:
    """Axis -> (how many, of how many indices): the straight-line blocks that together cover it."""
    out: dict[Axis, tuple[tuple[Column, Column], ...]] = {}
    for a in t.stage.axes:
        if a in unrolled and a != t.vector:
            out[a] = ((a.extent / unrolled[a], unrolled[a]),)
            continue
        tile = _step(t) if a in unrolled else t.register(a)
        tile = np.clip(np.asarray(tile, np.float64), 1, max(a.extent, 1))
        whole = np.floor(a.extent / tile)
        rest = a.extent - whole * tile
        out[a] = ((whole, tile), (rest > 0, rest)) if np.any(rest) else ((whole, tile),)
    return out


def _issued(access: _Access, blocks: Blocks) -> Column:
    """Sum over the kinds of blocks: how many there are x the elements that one touches."""
    around = prod((sum(n for n, _ in parts) for a, parts in blocks.items() if a not in access.axes), start=np.float64(1))
    own = [a for a in blocks if a in access.axes]
    total: Column = np.float64(0)
    for chosen in product(*(blocks[a] for a in own)):
        size = {a: extent for a, (_, extent) in zip(own, chosen, strict=True)}
        count = prod((n for n, _ in chosen), start=around)
        total = total + count * access.elements(size.__getitem__)
    return total


# --- features of one stage --------------------------------------------------------------


@dataclass(frozen=True)
class _View:
    """One stage of a population, and what its features share."""

    known: _Stage
    tiling: Tiling
    target: Target
    loops: _Loops
    rows: Column
    vectors: Column
    unrolled: Column
    loads: Mapping[str, Column]  # "adjacent", "same", "strided" -> instructions a flop
    boxes: tuple[np.ndarray, ...]  # bytes (L + 1, n or 1) of every access, the output last
    parts: Mapping[str, np.ndarray]  # "along", "other", "out", "all" -> bytes (L + 1, n)

    @property
    def stage(self) -> Compute:
        return self.known.stage

    @property
    def steps(self) -> Column:
        """Vector operations of the register tiles, tails rounded up to whole vectors: a multiply-add each."""
        return self.known.points / np.asarray(self.tiling.lanes, np.float64) * _lane_waste(self.tiling)


def _view(known: _Stage, t: Tiling, target: Target, n: int) -> _View:
    loops = _loops(t, n)
    rows, vectors = (np.asarray(x, np.float64) for x in rows_and_vectors(t))
    unrolled = _unrolled(t)
    straight = np.asarray(prod(unrolled.values(), start=np.float64(1)))
    loads = _instructions(known, t, _blocks(t, unrolled))
    flat = np.zeros((len(loops.axis) + 1, 1), np.float32)
    boxes = tuple(a.footprint(loops.spans.__getitem__) + flat for a in (*known.accesses, known.output))
    return _View(known, t, target, loops, rows, vectors, straight, loads, boxes, _parts(known, boxes, n))


def _instructions(known: _Stage, t: Tiling, blocks: Blocks) -> dict[str, Column]:
    """Load instructions a flop; strided vectors are gathered lane by lane."""
    out: dict[str, Column] = {"adjacent": np.float64(0), "same": np.float64(0), "strided": np.float64(0)}
    for access in known.accesses:
        width = t.lanes if access.lanes == "adjacent" else 1
        out[access.lanes] = out[access.lanes] + _issued(access, blocks) / (width * known.flops)
    return out


def _parts(known: _Stage, boxes: tuple[np.ndarray, ...], n: int) -> dict[str, np.ndarray]:
    out = {part: np.zeros((len(boxes[-1]), n), np.float32) for part in ("along", "other", "out")}
    for access, box in zip((*known.accesses, known.output), boxes, strict=True):
        out[known.part(access)] += box
    return out | {"all": out["along"] + out["other"] + out["out"]}


def _traffic(v: _View, cache: int) -> dict[str, Column]:
    """Bytes a flop that enter a cache: "along", "other", "out".

    The outermost box that fits is loaded once per pass of the loops around it; an operand that the loops directly
    around do not index stays where it is.
    """
    large = v.parts["all"][:-1] > cache
    at = large.sum(axis=0)  # number of loops outside the box that fits: inner boxes are never larger
    outside = np.where(large, v.loops.trips, np.float32(1))
    out: dict[str, Column] = {"along": np.float64(0), "other": np.float64(0), "out": np.float64(0)}
    for access, box in zip((*v.known.accesses, v.known.output), v.boxes, strict=True):
        held = box[at, np.arange(len(at)) if box.shape[1] > 1 else 0]
        part = v.known.part(access)
        out[part] = out[part] + held * _passes(access, v.loops, outside) / v.known.flops
    out["out"] = out["out"] * 2 + v.known.consumer_bytes * prod(v.stage.shape) / v.known.flops  # read and written
    return out


def _passes(access: _Access, loops: _Loops, outside: np.ndarray) -> Column:
    """How often the loops outside a box bring it in again: from the innermost that moves it outward, all count."""
    moved = np.zeros(outside.shape[1], bool)
    out = np.ones(outside.shape[1], np.float32)
    for a, trips in zip(reversed(loops.axis), outside[::-1], strict=True):
        if a in access.axes:
            moved |= trips > 1
            out *= trips
        else:
            np.multiply(out, trips, out=out, where=moved)
    return out


def _lane_waste(t: Tiling) -> Column:
    """Lanes computed over lanes wanted."""
    if t.vector is None:
        return np.float64(1)
    return -(-t.vector.extent // t.lanes) * t.lanes / t.vector.extent


def _row_waste(t: Tiling) -> Column:
    """Register tiles entered over those that are full: a small tail tile keeps the units waiting as long."""
    return prod((np.ceil(n / r) * r / n for n, r in _tiles(t)), start=np.float64(1))


def _variants(t: Tiling) -> Column:
    """Kinds of register tiles that are emitted: each axis that does not divide doubles them."""
    return prod((2 - _divides(r, n) for n, r in _tiles(t)), start=np.float64(1))


def _tiles(t: Tiling) -> list[tuple[int, Column]]:
    """Extent and register tile of each space axis."""
    return [(a.extent, np.clip(t.register(a), 1, a.extent).astype(np.float64)) for a in t.stage.space if a.extent > 1]


def _cycles(v: _View, l1: Column, l2: Column) -> Column:
    """A flop's cycles by the narrowest of: arithmetic (its latency hidden by independent accumulators only), loads,
    stores, bytes into L1 and into L2."""
    hidden = np.minimum(v.rows * v.vectors, FMA * LATENCY) / (FMA * LATENCY) if v.stage.reduce else np.float64(1)
    arithmetic = v.steps * max(v.known.operations / 2, 0.5) * _row_waste(v.tiling) / FMA / hidden
    arithmetic = arithmetic + 8 * v.known.math * prod(v.stage.shape) / v.tiling.lanes  # a polynomial's length
    loads = (v.loads["adjacent"] + v.loads["same"] + v.loads["strided"]) / LOADS
    return np.maximum.reduce(np.broadcast_arrays(arithmetic / v.known.flops, loads, l1 / INTO_L1, l2 / INTO_L2))


# --- the anchor -------------------------------------------------------------------------


def _columns(population: Population, target: Target) -> dict[str, Column]:
    plan, found = _plan(population.sketch), tilings(population)
    views = {n: _view(s, found[n], target, len(population)) for n, s in plan.stages.items()}
    anchor = views[plan.anchor]
    l1, l2, l3 = (_traffic(anchor, c) for c in (target.l1_bytes, target.l2_bytes, target.l3_bytes))
    return {
        **_work(plan, target),
        **_tile(anchor),
        **_nest(anchor),
        **_fit(anchor),
        **{f"traffic.l1_{k}": x for k, x in l1.items()},
        **{f"traffic.l2_{k}": x for k, x in l2.items()},
        "traffic.l1": sum(l1.values()),
        "traffic.l2": sum(l2.values()),
        "traffic.l3": sum(l3.values()),
        **_issue(anchor, sum(l1.values()), sum(l2.values())),
        **{f"parallel.{k}": x for k, x in _parallel(anchor).items()},
        **_place(plan, population, found, target),
        **_others([v for n, v in views.items() if n != plan.anchor], plan.flops, len(population)),
    }


def _work(plan: _Plan, target: Target) -> dict[str, Column]:
    anchor = plan.stages[plan.anchor]
    return {
        "work.flops": np.float64(plan.flops),
        "work.bytes": np.float64(plan.bytes),
        "work.flops_per_byte": np.float64(plan.flops / max(plan.bytes, 1)),
        "work.stages": np.float64(len(plan.stages)),
        "work.anchor_share": np.float64(anchor.flops / max(sum(s.flops for s in plan.stages.values()), 1)),
        "work.element_bytes": np.float64(anchor.output.bytes),
        "work.threads": np.float64(target.threads),
        "work.reduce": np.float64(prod(a.extent for a in anchor.stage.reduce)),
        "work.space": np.float64(prod(anchor.stage.shape)),
        "work.rank": np.float64(sum(a.extent > 1 for a in anchor.stage.axes)),
        "work.guards": np.float64(anchor.guards),
        "work.math_per_point": np.float64(anchor.math),
    }


def _tile(v: _View) -> dict[str, Column]:
    t = v.tiling
    size = v.rows * v.vectors
    whole = prod((np.floor(n / r) * r / n for n, r in _tiles(t)), start=np.float64(1))
    return {
        "tile.rows": v.rows,
        "tile.vectors": v.vectors,
        "tile.size": size,
        "tile.registers": registers(t) / v.target.vector_registers,
        "tile.intensity": size / (v.rows + v.vectors),
        "tile.lanes": np.asarray(t.lanes),
        "tile.vector_bytes": np.asarray(t.lanes) * v.known.output.bytes / v.target.vector_bytes,
        "tile.row_axes": sum((np.asarray(t.register(a) > 1) * 1 for a in t.stage.space if a != t.vector), np.int64(0)),
        "tile.lane_waste": _lane_waste(t),
        "tile.row_waste": _row_waste(t),
        "tile.tail_share": 1 - whole,
        "tile.variants": _variants(t),
        "tile.unroll": v.unrolled,
        "tile.statements": size * _variants(t) * (2 + v.unrolled),
        "tile.lanes_reduce": np.float64(t.lanes_reduce),
    }


def _letters(t: Tiling) -> dict[str, int]:
    """Where the letters of the structure stand; -1 for those it lacks. The last R is r1, whatever comes before."""
    s = [i for i, letter in enumerate(t.structure[:-1]) if letter == "S"]
    r = [i for i, letter in enumerate(t.structure) if letter == "R"]
    out = {f"s{n}": s[n] if n < len(s) else -1 for n in range(3)}
    return out | {"r0": r[0] if len(r) > 1 else -1, "r1": r[-1] if r else -1}


def _nest(v: _View) -> dict[str, Column]:
    t, at = v.tiling, _letters(v.tiling)
    out = {f"loop.{name}": v.loops.of(level) for name, level in at.items()}
    for s in ("s0", "s1", "s2"):
        out[f"loop.{s}_vector"] = v.loops.of(at[s], t.vector) if t.vector is not None else np.float64(1)
    partial = np.float64(0)
    if t.structure.count("R") > 1:
        tile = prod((np.asarray(t.sizes[a][t.levels - 3], np.float64) for a in t.stage.space), start=np.float64(1))
        partial = np.where(out["loop.r0"] > 1, tile * v.known.output.bytes, 0)
    return out | {"loop.vector_first": np.asarray(t.vector_first), "loop.partial_bytes": partial}


def _fit(v: _View) -> dict[str, Column]:
    """Footprints of the register tile's whole reduction, of what stands inside R0, around R0, and inside S0."""
    at, target = _letters(v.tiling), v.target
    inner = v.loops.after(at["r1"] - 1) if at["r1"] >= 0 else len(v.loops.axis)
    inside_r0 = v.loops.after(at["r0"]) if at["r0"] >= 0 else inner
    around_r0 = v.loops.after(at["r0"] - 1) if at["r0"] >= 0 else inner
    levels = (
        ("tile", inner, target.l1_bytes),
        ("s2", inside_r0, target.l1_bytes),
        ("s1", around_r0, target.l2_bytes),
        ("s0", v.loops.after(at["s0"]), target.l2_bytes),
    )
    out = {"fit.all": v.parts["all"][0] / target.l3_bytes}
    for name, box, cache in levels:
        out[f"fit.{name}"] = v.parts["all"][box] / cache
        out |= {f"fit.{name}_{part}": v.parts[part][box] / cache for part in ("along", "other", "out")}
    return out


def _issue(v: _View, l1: Column, l2: Column) -> dict[str, Column]:
    """A flop's share, but for the count of operations and of conflicts."""
    box = v.loops.after(_letters(v.tiling)["r1"] - 1) if v.stage.reduce else len(v.loops.axis)
    return {
        "issue.vector_loads": v.loads["adjacent"],
        "issue.broadcasts": v.loads["same"],
        "issue.strided": v.loads["strided"],
        "issue.stores": _stores(v),
        "issue.operations": v.steps,
        "issue.unaligned": np.float64(sum(not a.aligned for a in v.known.accesses if a.lanes == "adjacent")),
        "issue.conflicts": _conflicts(v, box),
        "issue.cycles": _cycles(v, l1, l2),
    }


def _stores(v: _View) -> Column:
    """Vectors written, once per part of the reduction."""
    parts = v.loops.of(_letters(v.tiling)["r0"])
    lanes = 1 if v.tiling.lanes_reduce or v.known.output.lanes != "adjacent" else v.tiling.lanes
    return prod(v.stage.shape) * parts / lanes / v.known.flops


def _conflicts(v: _View, box: int) -> Column:
    """Lines of the tile's reduction that compete for the same set: indices a multiple of a page apart."""
    out: Column = np.float32(0)
    for access in (*v.known.accesses, v.known.output):
        far = [d for d in access.dims if d.terms and not access.packed and d.stride * d.step % PAGE == 0]
        if far:
            out = out + prod((d.distinct(lambda a: v.loops.spans[a][box]) for d in far), start=np.float32(1))
    return out


def _parallel(v: _View) -> dict[str, Column]:
    """The outermost loops that really turn, as many as the program marks."""
    degree, depth = np.ones(v.loops.trips.shape[1:]), np.zeros(v.loops.trips.shape[1:])
    marked, threads = np.asarray(v.tiling.parallel), v.target.threads
    for i in range(v.loops.after(_letters(v.tiling)["s0"])):
        turns = v.loops.trips[i] > 1
        degree = np.where(turns & (depth < marked), degree * v.loops.trips[i], degree)
        depth = depth + turns
    rounds = np.ceil(degree / threads)
    return {
        "degree": degree,
        "chunks": degree / threads,
        "balance": degree / (rounds * threads),
        "depth": np.minimum(depth, marked),
    }


# --- places and copies ------------------------------------------------------------------


def _place(plan: _Plan, population: Population, found: Mapping[str, Tiling], target: Target) -> dict[str, Column]:
    n = len(population)
    count, worst, most, local, root = np.zeros(n), np.ones(n), np.ones(n), np.zeros(n), np.zeros(n)
    for step in plan.attached:
        inside = population.get(f"{step.stage}.at", 0) > 0
        stage = plan.dag.stage(step.stage)
        size, runs = attached_region(population, step, plan.dag, found[step.consumer])
        size_bytes, whole = np.dtype(stage.dtype).itemsize, max(prod(stage.shape), 1)
        count += inside
        worst = np.where(inside, np.maximum(worst, runs * size / whole), worst)
        most = np.where(inside, np.maximum(most, runs), most)
        local += np.where(inside, size * size_bytes, 0)
        root += np.where(inside, 0, whole * size_bytes)
    return {
        "place.attached": count,
        "place.redundancy": worst,
        "place.runs": most,
        "place.buffer_l1": local / target.l1_bytes,
        "place.buffer_l2": local / target.l2_bytes,
        "place.workspace": root / target.l2_bytes,
        **_copies(plan, found),
    }


def _copies(plan: _Plan, found: Mapping[str, Tiling]) -> dict[str, Column]:
    """Bytes packed at run time, and how much of a padded panel is padding (constant panels too)."""
    packed = waste = np.float64(0)
    for stage, a, size in plan.packs:
        tile = np.asarray(found[stage].register(a), np.float64)
        packed = packed + size * np.ceil(a.extent / tile) * tile / a.extent
    for name, known in plan.stages.items():
        v = found[name].vector
        if v is not None and any(x.packed for x in known.accesses):
            tile = np.asarray(found[name].register(v), np.float64)
            waste = np.maximum(waste, np.ceil(v.extent / tile) * tile / v.extent - 1)
    return {"place.packed": packed, "place.pack_waste": waste}


# --- the other stages -------------------------------------------------------------------


def _others(views: list[_View], flops: float, n: int) -> dict[str, Column]:
    """Sums over all stages but the anchor; worst cases where a sum says nothing."""
    out = {name.removeprefix("others."): np.zeros(n) for name in NAMES if name.startswith("others.")}
    out["balance"] = np.ones(n)
    for v in views:
        l1 = sum(_traffic(v, v.target.l1_bytes).values(), np.float64(0))
        l2 = sum(_traffic(v, v.target.l2_bytes).values(), np.float64(0))
        share = v.known.flops / max(flops, 1)
        spread = _parallel(v)
        scalar = v.tiling.vector is None
        sums = {
            "flops": np.float64(v.known.flops),
            "points": np.float64(prod(v.stage.shape)),
            "cycles": _cycles(v, l1, l2) * share,
            "traffic_l1": l1 * share,
            "traffic_l2": l2 * share,
            "statements": v.rows * v.vectors * _variants(v.tiling) * (2 + v.unrolled),
            "math": np.float64(v.known.math * prod(v.stage.shape)),
            "scalar": np.float64(v.known.points if scalar else 0),
            "strided": v.loads["strided"] * v.known.flops,
        }
        most = {
            "registers": registers(v.tiling) / v.target.vector_registers if v.stage.reduce else np.float64(0),
            "intensity": v.rows * v.vectors / (v.rows + v.vectors) if v.stage.reduce else np.float64(0),
            "size": v.rows * v.vectors,
            "waste": _lane_waste(v.tiling) * _row_waste(v.tiling),
            "degree": spread["degree"],
        }
        out |= {k: out[k] + x for k, x in sums.items()} | {k: np.maximum(out[k], x) for k, x in most.items()}
        out["balance"] = np.minimum(out["balance"], spread["balance"])
    return {f"others.{k}": x for k, x in out.items()}
