"""Which rows of a population are worth building, and which are the same program.

All columns at once: no program object is made. The predicates are those that a prototype's measurements supported
(a register tile that spills, or one too small to hide latency, was never among the best tenth).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from math import prod

import numpy as np

from ir.affine import affine
from ir.compute import Compute, Dag
from ir.expr import Axis, Const, Expr, Op, reads
from ir.schedule import ComputeAt, Fuse, Population, Sketch, Tile
from ir.target import Target
from ir.tiling import Column, Tiling, tiling
from ir.transform import apply, unit_axes
from search.evolve import Core
from search.sketch import table_axes

MOST_ROWS, MOST_VECTORS = 14, 8  # of a register tile along one axis, as the sketch rules offer them
SMALL_TILE = 12  # vectors in a register tile: fewer cannot hide the latency of two fused multiply-adds a cycle
SHORT_SUM = 8  # terms of a reduction whose latency need not be hidden
MOST_STATEMENTS = 128  # unrolled statements of one stage, all tail variants together: bounds the compiler's time
MOST_STACK = 1 << 19  # bytes of local buffers: threads have small stacks
MOST_REDUNDANCY = 4  # times a producer may be recomputed
MOST_CORES = 1 << 16  # register tiles of a stage that are listed
NOMINAL = 16  # size of a packed or blocked tile where any size shows the same structure

Columns = Column  # an array with one entry a program, or one number for all of them


@lru_cache(maxsize=256)
def structure(sketch: Sketch) -> tuple[Dag, dict[str, Tile]]:
    """The DAG a sketch's steps lead to (numbers in it are nominal) and the tile step of each stage."""
    known = {h.name: h.options[0] for h in sketch.holes}
    dag = unit_axes(sketch.dag)
    for step in sketch.steps:
        dag = apply(dag, step, known, lambda stage, axis: NOMINAL)
    return dag, {s.stage: s for s in sketch.steps if isinstance(s, Tile)}


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
    holes = tuple(replace(h, options=(h.options[chosen[i]],)) if i in chosen else h for i, h in enumerate(sketch.holes))
    return replace(sketch, holes=holes)


def tilings(population: Population) -> dict[str, Tiling]:
    """Per tiled stage, sizes as columns. Extents are those of the first options of "split" holes: see `by_split`."""
    dag, tiles = structure(population.sketch)
    return {name: tiling(dag.stage(name), tile, population.get) for name, tile in tiles.items() if name in dag.tensors}


def canonical(population: Population) -> Columns:
    """int64 matrix of effective values: rows are equal when the programs are.

    Tile factors are clamped as in `ir.tiling`, places as in `ir.lower`; the other holes stand as chosen.
    """
    holes = population.sketch.holes
    out = np.empty((len(population), len(holes)), np.int64)
    for rows, part in by_split(population):
        effective = _effective_factors(part) | {f"{stage}.at": at for stage, at in places(part).items()}
        for i, h in enumerate(holes):
            out[rows, i] = effective[h.name] if h.name in effective else part.values(h.name)
    return out


def _effective_factors(population: Population) -> dict[str, Columns]:
    out: dict[str, Columns] = {}
    for name, t in tilings(population).items():
        for a, sizes in t.sizes.items():
            for n in range(1, len(sizes)):
                out[f"{name}.{a.name}.{n}"] = np.broadcast_to(sizes[n - 1] // sizes[n], len(population))
    return out


def valid(population: Population, target: Target) -> Columns:
    """bool column: fits the registers, is large enough, is not too much code, keeps its buffers small."""
    ok = np.empty(len(population), dtype=bool)
    for rows, part in by_split(population):
        ok[rows] = _valid(part, target)
    return ok


def _valid(population: Population, target: Target) -> Columns:
    ok = np.ones(len(population), dtype=bool)
    found = tilings(population)
    for t in found.values():
        ok &= _tile_fits(t, target)
    return ok & _buffers_fit(population, found)


def _tile_fits(t: Tiling, target: Target) -> Columns:
    """A question about the innermost tile alone."""
    little = statements(t) <= MOST_STATEMENTS
    return little & _registers_fit(t, target) & _large_enough(t, target) if t.stage.reduce else little


@lru_cache(maxsize=1024)
def cores(sketch: Sketch, target: Target) -> tuple[Core, ...]:
    """The register tile of every stage that reduces: with 16 registers one in two hundred fits, and a uniform draw over
    all holes would be thrown away for it."""
    if any(h.kind == "split" and len(h.options) > 1 for h in sketch.holes):
        return ()  # extents vary from row to row
    dag, tiles = structure(sketch)
    stages = [(dag.stage(name), tile) for name, tile in tiles.items() if name in dag.tensors]
    return tuple(c for s, tile in stages if s.reduce and (c := _core(sketch, s, tile, target)) is not None)


def _core(sketch: Sketch, stage: Compute, tile: Tile, target: Target) -> Core | None:
    """None where nothing fits, or where there are too many to list."""
    inner = tile.structure.count("S") - 1
    names = {f"{stage.name}.{a.name}.{inner}" for a in stage.space} | {f"{stage.name}.vector", f"{stage.name}.unroll"}
    if tile.vector in {a.name for a in stage.reduce}:
        names.add(f"{stage.name}.{tile.vector}.1")  # vectors of partial results
    columns = np.array(
        [i for i, h in enumerate(sketch.holes) if h.name in names and len(h.options) > 1], dtype=np.int64
    )
    sizes = [len(sketch.holes[i].options) for i in columns]
    if not sizes or prod(sizes) > MOST_CORES:
        return None
    every = np.zeros((prod(sizes), len(sketch.holes)), dtype=np.int32)
    every[:, columns] = np.stack(np.unravel_index(np.arange(prod(sizes)), sizes), axis=1)
    fits = _tile_fits(tilings(Population(sketch, every))[stage.name], target)
    rows = every[np.broadcast_to(fits, len(every))][:, columns]
    return Core(columns, rows) if len(rows) else None


def rows_and_vectors(t: Tiling) -> tuple[Columns, Columns]:
    """Register tile as rows x vectors."""
    rows = prod((np.minimum(t.register(a), a.extent) for a in t.stage.space if a != t.vector), start=np.int64(1))
    if t.vector is None:
        return rows, np.int64(1)
    size = t.sizes[t.vector][0] if t.lanes_reduce else t.register(t.vector)
    most = -(-t.vector.extent // t.lanes)
    return rows, np.clip(size // t.lanes, 1, most)


def registers(t: Tiling) -> Columns:
    """Accumulators, one row of vectors, one broadcast."""
    rows, vectors = rows_and_vectors(t)
    return rows * vectors + (0 if t.lanes_reduce else vectors) + 1


def _registers_fit(t: Tiling, target: Target) -> Columns:
    return registers(t) <= target.vector_registers


def _large_enough(t: Tiling, target: Target) -> Columns:
    """Half of what the space allows, up to SMALL_TILE. Plain nests (pooling, row sums) are bound by memory and may stay
    small, and so may short sums: the next tile's begin while one's last additions are under way."""
    if t.structure.count("S") < 3 or prod(a.extent for a in t.stage.reduce) <= SHORT_SUM:
        return np.asarray(True)
    rows, vectors = rows_and_vectors(t)
    most = np.minimum(-(-t.vector.extent // t.lanes), MOST_VECTORS) if t.vector in t.stage.space else 1
    possible = prod(min(a.extent, MOST_ROWS) for a in t.stage.space if a != t.vector) * most
    return np.asarray(rows * vectors >= np.minimum(SMALL_TILE, -(-possible // 2)))


def statements(t: Tiling) -> Columns:
    rows, vectors = rows_and_vectors(t)
    variants = prod((1 + (a.extent % np.maximum(t.register(a), 1) != 0) for a in t.stage.space), start=np.int64(1))
    return rows * vectors * variants * (1 + np.asarray(t.unroll))


def _buffers_fit(population: Population, found: dict[str, Tiling]) -> Columns:
    """Local buffers of attached stages and of partial sums; recomputation within bounds."""
    dag, _ = structure(population.sketch)
    at = places(population)
    bytes_, ok = np.zeros(len(population)), np.ones(len(population), dtype=bool)
    for step in population.sketch.steps:
        if isinstance(step, ComputeAt) and step.stage in dag.tensors and step.consumer in found:
            extents, runs = attached_extents(population, step, dag, found[step.consumer], at[step.stage])
            inside, size = at[step.stage] > 0, prod(extents, start=np.ones(len(population)))
            whole = prod(dag.stage(step.stage).shape)
            ok &= ~inside | (runs * size <= MOST_REDUNDANCY * whole) & _tables_whole(dag.stage(step.stage), extents)
            bytes_ += np.where(inside, size * 4, 0)
    for t in found.values():
        if t.structure.count("R") > 1:
            bytes_ += prod((t.sizes[a][t.levels - 3] for a in t.stage.space), start=np.int64(1)) * 4
    return ok & (bytes_ <= MOST_STACK)


def _tables_whole(stage: Compute, extents: Sequence[Columns]) -> Columns:
    """All rows of a table at once: of a part of them, which one it is would be looked up at run time."""
    tables = table_axes(stage)
    parts = (e >= a.extent for a, e in zip(stage.space, extents, strict=True) if tables.get(a) == a.extent)
    return reduce(np.logical_and, parts, np.asarray(True))


def places(population: Population) -> dict[str, Columns]:
    """Stage -> inside how many loops of its host it runs. As in lowering, it is 0 (at the root) where a consumer runs
    elsewhere or further out."""
    dag, _ = structure(population.sketch)
    steps = population.sketch.steps
    leads = {s.consumer: s.stage for s in steps if isinstance(s, Fuse)}
    hosts = {s.stage: leads.get(s.consumer, s.consumer) for s in steps if isinstance(s, ComputeAt)}
    out: dict[str, Columns] = {}
    for c in reversed(dag.computes):
        if c.name in hosts:
            at = population.get(f"{c.name}.at", 0)
            fits = out.get(hosts[c.name], np.int64(0)) == 0
            for user in {leads.get(u.name, u.name) for u in dag.consumers(c.name)} - {hosts[c.name]}:
                fits = fits & (out[user] >= at if hosts.get(user) == hosts[c.name] else False)
            out[c.name] = np.where(fits, at, 0)
    return out


def attached_region(
    population: Population, step: ComputeAt, dag: Dag, host: Tiling, at: Columns
) -> tuple[Columns, Columns]:
    """Elements of the region a producer computes inside `at` loops of its host, and how often it does."""
    extents, runs = attached_extents(population, step, dag, host, at)
    return prod(extents, start=np.ones(len(population))), runs


def attached_extents(
    population: Population, step: ComputeAt, dag: Dag, host: Tiling, at: Columns
) -> tuple[list[Columns], Columns]:
    """Extents of the region a producer computes inside `at` loops of its host, and how often it does. Per dimension
    the reach of the indices that its consumers there use; an estimate where several consumers reach differently."""
    span, runs = spans(host, at, len(population))
    steps = population.sketch.steps
    fused = next((s.consumer for s in steps if isinstance(s, Fuse) and s.stage == host.stage.name), "")
    inside = frozenset(s.stage for s in steps if isinstance(s, ComputeAt) and s.consumer == step.consumer)
    return _extents(dag, step.stage, _Nest(host.stage, fused, inside, span, reads_in(population.sketch))), runs


@dataclass(frozen=True, slots=True)
class Reach:
    """How many values an index takes while axes run: (1 + apart + sum of c * (extent - 1)) / by, (axis, c) in terms.

    terms: None where it is not linear, or the reads move apart: the whole dimension.
    """

    terms: tuple[tuple[Axis, int], ...] | None
    apart: int = 0
    by: int = 1


@dataclass(frozen=True, slots=True)
class _Nest:
    """Who runs in a host's nest, and the extents of the host's tile at the place in question.

    reads: (producer, user) -> each dimension of the producer.
    """

    host: Compute
    fused: str
    inside: frozenset[str]
    span: dict[Axis, Columns]
    reads: Mapping[tuple[str, str], tuple[Reach, ...]]


def _extents(dag: Dag, name: str, nest: _Nest) -> list[Columns]:
    """Extent of each dimension of the region that the consumers in the nest ask for; the whole for others."""
    stage = dag.stage(name)
    out: list[Columns] = []
    for user in dag.consumers(name):
        span = _span_of(dag, user, nest)
        if span is None:
            return [np.float64(n) for n in stage.shape]
        here = [_extent(r, n, span) for r, n in zip(nest.reads[name, user.name], stage.shape, strict=True)]
        out = [np.maximum(e, h) for e, h in zip(out, here, strict=True)] if out else here
    return out or [np.float64(1)] * len(stage.shape)


def _span_of(dag: Dag, user: Compute, nest: _Nest) -> dict[Axis, Columns] | None:
    if user.name == nest.host.name:
        return nest.span
    if user.name == nest.fused:
        return {c: nest.span[a] for c, a in zip(user.space, nest.host.space, strict=True)}
    if user.name in nest.inside:
        return dict(zip(user.space, _extents(dag, user.name, nest), strict=True))
    return None


@lru_cache(maxsize=256)
def reads_in(sketch: Sketch) -> Mapping[tuple[str, str], tuple[Reach, ...]]:
    """(producer, user) -> each dimension of the producer; found once, for a table of numbers is a long expression."""
    dag, _ = structure(sketch)
    found: dict[tuple[str, str], list[tuple[Expr, ...]]] = {}
    for user in dag.computes:
        for r in reads(user.body):
            found.setdefault((r.tensor, user.name), []).append(r.index)
    return {at: tuple(map(_reach, zip(*indices, strict=True))) for at, indices in found.items()}


def _reach(indices: Sequence[Expr]) -> Reach:
    """Of one dimension in all reads of a producer."""
    forms = [affine(e) for e, _ in map(_divided, indices)]
    known = [f for f in forms if f is not None]
    by = {d for _, d in map(_divided, indices)}
    if len({f.terms for f in known}) != 1 or len(known) < len(forms) or len(by) != 1:
        return Reach(None)
    starts = [f.constant for f in known]
    return Reach(tuple((a, abs(c)) for a, c in known[0].terms), max(starts) - min(starts), by.pop())


def _divided(e: Expr) -> tuple[Expr, int]:
    match e:
        case Op("floordiv", (inner, Const(by, _))) if by > 0:
            return inner, int(by)
        case _:
            return e, 1


def _extent(reach: Reach, extent: int, span: dict[Axis, Columns]) -> Columns:
    """Of one dimension of the region; the whole, too, where tiles of i in i / by do not begin at multiples."""
    if reach.terms is None:
        return np.float64(extent)
    tiles = [(c, span.get(a, a.extent), a.extent) for a, c in reach.terms]
    out = sum((c * (size - 1) for c, size, _ in tiles), start=np.float64(1 + reach.apart))
    if reach.by == 1:
        return np.minimum(out, extent)
    parted = ((c * size % reach.by != 0) & (size < most) for c, size, most in tiles)
    return np.where(
        reduce(np.logical_or, parted, np.asarray(False)), extent, np.minimum(np.ceil(out / reach.by), extent)
    )


def spans(host: Tiling, position: Columns, n: int) -> tuple[dict[Axis, Columns], Columns]:
    """Extent of the tile along each axis after `position` space loops of the host, and the trips made so far."""
    loops = [a for a in host.stage.space if a.extent > 1]
    span: dict[Axis, Columns] = {a: np.full(n, a.extent, dtype=np.float64) for a in host.stage.space}
    runs = np.ones(n)
    if host.vector not in loops:
        return _descend(host, [loops], [np.ones(n, bool)], position, span, runs)
    others = [a for a in loops if a != host.vector]
    first = np.broadcast_to(np.asarray(host.vector_first, dtype=bool), n)
    return _descend(host, [[host.vector, *others], [*others, host.vector]], [first, ~first], position, span, runs)


def _descend(
    host: Tiling,
    orders: list[list[Axis]],
    chosen: list[Columns],
    position: Columns,
    span: dict[Axis, Columns],
    runs: Columns,
) -> tuple[dict[Axis, Columns], Columns]:
    for order, mask in zip(orders, chosen, strict=True):
        for level in range(host.levels - 1):
            for i, a in enumerate(order):
                here = mask & (position >= level * len(order) + i + 1)
                size = np.minimum(host.sizes[a][level], span[a])
                np.multiply(runs, np.ceil(span[a] / size), out=runs, where=here)
                np.copyto(span[a], size, where=here)
    return span, runs
