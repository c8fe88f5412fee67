"""Sketch generation: which loop structures are worth trying. The search space on one screen: the table at the end.

A rule asks a question about a stage (`when`) and answers with sketches (`then`); it appends steps and holes and never
picks a number. Stages are visited by name from the output back. Conditions and their order follow Ansor (OSDI'20,
Table 1 and section 4.1); what differs says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod

from ir.affine import affine
from ir.compute import Compute, Dag
from ir.expr import Axis, Const, Op, Read, axes, dtype_of, reads, walk
from ir.schedule import Block, CacheWrite, ComputeAt, Fuse, Hole, Inline, Pack, Rfactor, Sketch, Step, Tile, Winograd
from ir.target import Target
from ir.transform import apply, blockable, constant_stages, constants, packable, unit_axes
from ir.winograd import saving, sliding

When = Callable[["State", Compute], bool]
Then = Callable[["State", Compute], Iterable["State"]]

EXPENSIVE = frozenset({"exp", "log", "tanh", "erf", "sigmoid", "pow", "sin", "cos"})
REGISTER_ROWS = tuple(range(1, 15))  # rows of a register tile; more never fit beside two vectors
REGISTER_VECTORS = tuple(range(1, 9))
MULTIPLIERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
REDUCE_TILES = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
UNROLLS = (1, 2, 4, 9)
COPIES = (".pack", ".block")  # ends of the names of operands that are copied into another order
FILTER_TILES = (2, 4)  # results of a Winograd tile, each way
MOST_POINTS = 6  # with more, float32 loses another digit (Barabasz et al., TOMS 2020)
WORTH = 1.3  # times fewer steps, or it is not tried
SHORT_REDUCTION = 32  # terms that are summed in one go
SHORT_TURN = 4  # shorter rows are not worth turning in registers
LONG_BLOCK = 32  # a shorter reduction axis is not worth splitting


@dataclass(frozen=True)
class State:
    """A sketch under construction: its steps, the DAG they have led to, and what it is made for."""

    sketch: Sketch
    dag: Dag
    target: Target

    def then(self, step: Step, *holes: Hole, rule: str) -> State:
        known = {h.name: h.options[0] for h in (*self.sketch.holes, *holes)}
        dag = apply(self.dag, step, known, lambda stage, axis: 16)  # any number shows the same structure
        return replace(self, sketch=self.sketch.then(step, *holes, rule=rule), dag=dag)

    def has(self, kind: type[Step], stage: str) -> bool:
        return any(isinstance(s, kind) and s.stage == stage for s in self.sketch.steps)


@dataclass(frozen=True, slots=True)
class Rule:
    """name is recorded with each step. `last`: when it fires, no later rule is tried on this stage."""

    name: str
    when: When
    then: Then
    last: bool = False


def sketches(dag: Dag, target: Target, rules: tuple[Rule, ...] | None = None) -> list[Sketch]:
    """All sketches of a DAG, in the order of the rules; never empty."""
    start = State(Sketch(dag), unit_axes(dag), target)
    todo: list[tuple[State, frozenset[str]]] = [(start, frozenset(constant_stages(start.dag)))]
    found = []
    while todo:
        state, seen = todo.pop(0)
        stage = next((c for c in reversed(state.dag.computes) if c.name not in seen), None)
        if stage is None:
            found.append(finish(state).sketch)
        else:
            todo += [(new, seen | _visited(new, stage)) for new in derive(state, stage, rules or RULES[target.kind])]
    return found


def _visited(new: State, stage: Compute) -> frozenset[str]:
    """The stage is done, and so are the copies that its rule put before it: they were tiled, or need no rule. An
    algorithm that took its place is made of stages that no rule has seen; only what depends on constants needs none."""
    if new.sketch.steps and isinstance(new.sketch.steps[-1], Winograd):
        return frozenset(constant_stages(new.dag))
    copies = {c.name for c in new.dag.computes if c.name.endswith(COPIES)}
    return frozenset({stage.name, f"{stage.name}.cache", *copies})


def derive(state: State, stage: Compute, rules: tuple[Rule, ...]) -> Iterator[State]:
    for rule in rules:
        if rule.when(state, stage):
            yield from rule.then(state, stage)
            if rule.last:
                return


# --- when: questions about a stage ------------------------------------------------------


def is_inlinable(state: State, stage: Compute) -> bool:
    """Its value costs less than its place in memory: cheap index-for-index arithmetic, or whatever is used just once."""
    if stage.reduce or stage.name in state.dag.outputs:
        return False
    if turned_axis(stage) is not None and not all(c.name.endswith(COPIES) for c in state.dag.consumers(stage.name)):
        return False
    return _strictly_inlinable(stage) or _only_moves(stage) or _used_once(state.dag, stage)


def selects_constants(state: State, stage: Compute) -> bool:
    """It multiplies by a small table written as selects on its axes (a Winograd transform): unrolled, the zeros and
    ones of the table cost nothing."""
    return bool(table_axes(stage))


def reuses_data(state: State, stage: Compute) -> bool:
    """Some element is read more than once: an operand misses a loop over which the stage runs."""
    missing = sum(_misses_an_axis(stage, r) for r in _distinct_reads(stage))
    return missing >= 2 or (missing >= 1 and bool(stage.reduce))


def slides(state: State, stage: Compute) -> bool:
    """A window of several taps slides over its data a step at a time."""
    if any(isinstance(s, Winograd) for s in state.sketch.steps):
        return False
    return sliding(stage, constants(state.dag)) is not None


def fuses_into_consumer(state: State, stage: Compute) -> bool:
    """One consumer reads it element for element, so that it can be computed where a tile is ready."""
    return reuses_data(state, stage) and matched_consumer(state.dag, stage) is not None


def writes_far(state: State, stage: Compute) -> bool:
    """Nothing is there to fuse with: a local copy gives the tile a consumer."""
    return (
        reuses_data(state, stage)
        and matched_consumer(state.dag, stage) is None
        and not state.has(CacheWrite, stage.name)
    )


def reduces_much(state: State, stage: Compute) -> bool:
    """Too little space to keep the threads busy, or a long reduction without reuse: split it into partial results."""
    if not stage.reduce or not stage.combiner.reorders or _is_cache(stage) or stage.name.endswith(".rf"):
        return False
    space, length = prod(a.extent for a in stage.space), prod(a.extent for a in stage.reduce)
    threads = state.target.threads
    if reuses_data(state, stage):
        return space <= length and space <= 16 * threads
    return length > threads


def always(_state: State, _stage: Compute) -> bool:
    """Leaving a stage as it stands is always legal."""
    return True


# --- then: the sketches that follow -----------------------------------------------------


def inline(state: State, stage: Compute) -> Iterable[State]:
    yield state.then(Inline(stage.name), rule="inline")


def add_write_cache(state: State, stage: Compute) -> Iterable[State]:
    cached = state.then(CacheWrite(stage.name), rule="cache-write")
    yield from tile_and_fuse(cached, cached.dag.stage(f"{stage.name}.cache"))


def tile(state: State, stage: Compute) -> Iterable[State]:
    for vector in vector_axes(state.dag, stage):
        levels = _levels(stage, vector)
        for laid in _laid_out(state, stage, vector, levels):
            yield from _tilings(laid, stage, vector, levels, "tile")


def tile_and_fuse(state: State, stage: Compute) -> Iterable[State]:
    """Ansor fuses at two levels, into a local tile after the second or after the first S; here the consumer reads
    the accumulators themselves, which both levels amount to, so that there is one sketch."""
    consumer = matched_consumer(state.dag, stage)
    assert consumer is not None
    for vector in vector_axes(state.dag, stage):
        levels = _levels(stage, vector)
        for laid in _laid_out(
            state.then(Fuse(stage.name, consumer.name, 2), rule="tile-and-fuse"), stage, vector, levels
        ):
            yield from _tilings(laid, stage, vector, levels, "tile-and-fuse")


def _laid_out(state: State, stage: Compute, vector: str, structure: str) -> Iterator[State]:
    """As it is, and with a copied operand in the order of the outer reduction loop: the copy is made anyway. Not one that
    lanes run along: that is packed, into this very order."""
    yield state
    if structure.count("R") < 2:
        return
    for k in stage.reduce:
        for tensor in dict.fromkeys(r.tensor for r in reads(stage.body)):
            along = any(vector in {a.name for i in r.index for a in axes(i)} for r in reads_of(stage, tensor))
            if k.extent >= LONG_BLOCK and _is_copied(state, tensor) and blockable(stage, tensor, k) and not along:
                yield state.then(Block(stage.name, tensor, k.name), rule="block")


def reads_of(stage: Compute, tensor: str) -> list[Read]:
    return [r for r in reads(stage.body) if r.tensor == tensor]


def _is_copied(state: State, tensor: str) -> bool:
    """A stage of its own that is made for one reader at run time, such as a padded image."""
    stage = state.dag.tensors.get(tensor)
    if not isinstance(stage, Compute) or stage.reduce or tensor in state.dag.outputs:
        return False
    return tensor not in constant_stages(state.dag) and len(state.dag.consumers(tensor)) == 1


def filter_minimally(state: State, stage: Compute) -> Iterable[State]:
    """The same sums by fewer multiplications: Winograd's algorithm, in tiles of the sizes that save a good part of them
    and have few enough points to stay exact."""
    known = constants(state.dag)
    found = sliding(stage, known)
    assert found is not None
    taps = max(s.tap.extent for s in found.slides[-2:])
    for m in FILTER_TILES:
        if m + taps - 1 <= MOST_POINTS and saving(state.dag, stage.name, m, known) >= WORTH:
            yield state.then(Winograd(stage.name, m), rule="winograd")


def _levels(stage: Compute, vector: str) -> str:
    """Lanes along the reduction hold partial results until all of it is summed: it is not split again. Nor is a short
    one: its partial sums would cross memory for nothing."""
    lanes, length = any(a.name == vector for a in stage.reduce), prod(a.extent for a in stage.reduce)
    return "SSRS" if lanes or length <= SHORT_REDUCTION else "SSRSRS"


def unroll_constants(state: State, stage: Compute) -> Iterable[State]:
    vector = next((v for v in vector_axes(state.dag, stage) if v not in {a.name for a in table_axes(stage)}), "")
    consumer = matched_consumer(state.dag, stage) if stage.reduce else None
    if consumer is not None:
        state = state.then(Fuse(stage.name, consumer.name, 1), rule="fuse")
    structure = "SSRS" if _periods(stage) else "SRS"  # whole periods of a table's results, for producers to run inside
    yield _tiled(state, stage, vector, structure if stage.reduce else "SS", "unroll-constants")


def rfactor(state: State, stage: Compute) -> Iterable[State]:
    """Partial results side by side: contiguous chunks for threads. Lanes within a chunk are a tile's business: a
    plain nest with its vector axis on the reduction is Ansor's inner rfactor, held in registers."""
    length = prod(a.extent for a in stage.reduce)
    parts = tuple(p for p in (2, 4, 8, 16, 32, 64) if p <= length)
    if parts and state.target.threads > 1:
        yield state.then(
            Rfactor(stage.name, "outer"), Hole(f"{stage.name}.rfactor", parts, "split", stage.name), rule="rfactor"
        )


def skip(state: State, stage: Compute) -> Iterable[State]:
    yield state


# --- finishing: every stage that is left gets a plain nest, a place, and its marks ------


def finish(state: State) -> State:
    """Stages that no rule tiled: vector lanes, and where inside a consumer they may run."""
    known = constant_stages(state.dag)
    for stage in reversed(state.dag.computes):
        if stage.name in known or state.has(Tile, stage.name) or _is_fused(state, stage):
            continue
        consumer = matched_consumer(state.dag, stage)
        if stage.reduce and consumer is not None and not _hosts_fusion(state, consumer):
            state = state.then(Fuse(stage.name, consumer.name, 1), rule="fuse")
        vector = next(iter(vector_axes(state.dag, stage)), "")
        state = _tiled(state, stage, vector, "SRS" if stage.reduce else "SS", "plain")
    for stage in reversed(state.dag.computes):
        if stage.name not in known and (host := _host(state, stage)):
            places = Hole(f"{stage.name}.at", tuple(range(_places(state, host) + 1)), "location", stage.name)
            state = state.then(ComputeAt(stage.name, host), places, rule="compute-at")
    return state


def _places(state: State, host: str) -> int:
    """Loops of the host's nest that a producer may run inside, those before its reduction: further in, its region
    would be recomputed for every part of the reduction."""
    structure = next(s.structure for s in state.sketch.steps if isinstance(s, Tile) and s.stage == host)
    loops = sum(a.extent > 1 for a in state.dag.stage(host).space)
    return min(structure.count("S") - 1, max(structure.find("R"), 1)) * loops


def _is_fused(state: State, stage: Compute) -> bool:
    return any(isinstance(s, Fuse) and s.consumer == stage.name for s in state.sketch.steps)


def _hosts_fusion(state: State, stage: Compute) -> bool:
    """It is tiled itself, or already runs behind another stage."""
    return state.has(Tile, stage.name) or _is_fused(state, stage)


def _host(state: State, stage: Compute) -> str:
    """The nest a stage may run in: that of its last consumer. Stages that lead a nest of their own tile stay out."""
    dag = state.dag
    consumers = dag.consumers(stage.name)
    if stage.name in dag.outputs or not consumers or _is_fused(state, stage):
        return ""
    if any(isinstance(s, Fuse) and s.stage == stage.name for s in state.sketch.steps):
        return ""
    if stage.name.endswith(COPIES):
        return ""
    root = consumers[-1].name
    while (further := _host_of(state, root)) is not None:
        root = further
    return _driver(state, root)


def _host_of(state: State, name: str) -> str | None:
    return next((s.consumer for s in state.sketch.steps if isinstance(s, ComputeAt) and s.stage == name), None)


def _driver(state: State, name: str) -> str:
    return next((s.stage for s in state.sketch.steps if isinstance(s, Fuse) and s.consumer == name), name)


# --- holes ------------------------------------------------------------------------------


def _tilings(state: State, stage: Compute, vector: str, structure: str, rule: str) -> Iterator[State]:
    """With its operands packed; and where that copies at run time what lies well enough as it is, without."""
    yield _tiled(state, stage, vector, structure, rule)
    stage = state.dag.stage(stage.name)
    known, axis = constants(state.dag), next((a for a in stage.space if a.name == vector), None)
    if axis is None or structure.count("S") < 3:
        return
    wanted = _packed(state, stage, vector)
    if wanted and not any(t in known for t in wanted) and all(_in_rows(stage, t, axis) for t in wanted):
        yield _tiled(state, stage, vector, structure, rule, packs=False)


def _in_rows(stage: Compute, tensor: str, a: Axis) -> bool:
    """Lanes along the axis are neighbours in memory."""
    forms = [affine(r.index[-1]) for r in reads_of(stage, tensor)]
    return all(f is not None and f.coefficient(a) == 1 for f in forms)


def _tiled(state: State, stage: Compute, vector: str, structure: str, rule: str, packs: bool = True) -> State:
    """The Tile step with its holes, and the operands that it packs."""
    stage = state.dag.stage(stage.name)
    lanes = _lane_holes(stage, vector, state.target) if vector else ()
    holes = (
        *lanes,
        *_tile_holes(stage, vector, structure, state.target),
        *_marks(stage, vector, structure, state.target),
    )
    if structure.count("S") > 2 and vector in {a.name for a in stage.space}:
        for tensor in _packed(state, stage, vector) if packs else ():
            state = state.then(Pack(stage.name, tensor, vector), rule="pack")
    return state.then(Tile(stage.name, structure, vector), *holes, rule=rule)


def _lane_holes(stage: Compute, vector: str, target: Target) -> tuple[Hole, ...]:
    """Vector width in bytes: the target's; where the axis is shorter, what holds it and half of that."""
    return (Hole(f"{stage.name}.vector", _widths(stage, vector, target), "vector", stage.name),)


def _widths(stage: Compute, vector: str, target: Target) -> tuple[int, ...]:
    extent = next((a.extent for a in stage.axes if a.name == vector), 1)
    width = target.vector_bytes
    while width > 16 and extent * 4 <= width // 2:
        width //= 2
    return (width // 2, width) if width > 16 and extent * 4 < width else (width,)


def _tile_holes(stage: Compute, vector: str, structure: str, target: Target) -> Iterator[Hole]:
    s_levels, r_levels = structure.count("S"), structure.count("R")
    width = _widths(stage, vector, target)[0] // 4 if vector else 1
    for a in stage.space:
        if a.extent == 1:
            continue
        for level in range(1, s_levels):
            innermost = level == s_levels - 1
            options = (
                _register_options(stage, a, vector, width, structure)
                if innermost
                else _factors(stage, a, vector, width)
            )
            if options != (1,):
                yield Hole(f"{stage.name}.{a.name}.{level}", options, "tile", stage.name, a.name)
    for a in stage.reduce:
        if a.name == vector:
            options = tuple(n for n in (1, 2, 4) if n * width <= max(a.extent, width))
            yield Hole(f"{stage.name}.{a.name}.1", options, "tile", stage.name, a.name)
        elif r_levels > 1 and a.extent > 1:
            yield Hole(f"{stage.name}.{a.name}.1", _reduce_options(a.extent), "tile", stage.name, a.name)


def _register_options(stage: Compute, a: Axis, vector: str, width: int, structure: str) -> tuple[int, ...]:
    if a in table_axes(stage):
        return (table_axes(stage)[a],)
    turned = turned_axis(stage)
    if a == turned:
        return (min(width, a.extent),)
    if turned is not None:
        return (1,)
    if a.name == vector:
        most = -(-a.extent // width)
        return tuple(n for n in (REGISTER_VECTORS if stage.reduce else (1, 2, 4, 8)) if n <= most)
    if (
        structure == "SS"
        or table_axes(stage)
        or _shares_nothing(stage, a)
        or (a != _last_row(stage, vector) and structure == "SRS")
    ):
        return (1,)
    return tuple(n for n in REGISTER_ROWS if n <= a.extent)


def _shares_nothing(stage: Compute, a: Axis) -> bool:
    """A batch axis, of all operands: rows along it are products of their own."""
    found = _distinct_reads(stage)
    return len(found) > 1 and all(a in set().union(*(axes(i) for i in r.index), set()) for r in found)


def _last_row(stage: Compute, vector: str) -> Axis | None:
    rows = [a for a in stage.space if a.name != vector and a.extent > 1]
    return rows[-1] if rows else None


def _factors(stage: Compute, a: Axis, vector: str, width: int) -> tuple[int, ...]:
    """Of a level outside the register tile; of an axis that works in periods, only whole ones."""
    period = _periods(stage).get(a, 1)
    if period == 1 or a in table_axes(stage):
        return _multipliers(a, vector, width)
    return tuple(period * n for n in _multipliers(Axis(a.name, -(-a.extent // period)), vector, width))


def _multipliers(a: Axis, vector: str, width: int) -> tuple[int, ...]:
    most = -(-a.extent // width) if a.name == vector else a.extent
    return tuple(sorted({n for n in (*MULTIPLIERS, *_divisors(most)) if n <= most}))


def _reduce_options(extent: int) -> tuple[int, ...]:
    if extent <= 16:
        return _divisors(extent)
    return tuple(sorted({n for n in REDUCE_TILES if n < extent} | {d for d in _divisors(extent) if d >= 8}))


def _divisors(n: int) -> tuple[int, ...]:
    return tuple(d for d in range(1, n + 1) if n % d == 0) if n <= 4096 else (1, n)


def _marks(stage: Compute, vector: str, structure: str, target: Target) -> Iterator[Hole]:
    loops = sum(a.extent > 1 for a in stage.space)
    if stage.reduce:
        table = prod(a.extent for a in stage.reduce if a in table_axes(stage))
        yield Hole(f"{stage.name}.unroll", UNROLLS if table == 1 else (table,), "unroll", stage.name)
    if loops > 1 and vector in {a.name for a in stage.space}:
        yield Hole(f"{stage.name}.order", (0, 1), "order", stage.name)
    if target.threads > 1 and loops:
        yield Hole(f"{stage.name}.parallel", tuple(range(1, loops + 1)), "parallel", stage.name)


# --- structure of a stage ---------------------------------------------------------------


def vector_axes(dag: Dag, stage: Compute) -> list[str]:
    """Axes that lanes may run along, best first: the one with the fewest accesses that are neither the same for all
    lanes, nor adjacent, nor packable. A scalar type has none, and then a single scalar nest remains."""
    if stage.dtype != "float32" or any(dtype_of(r) not in ("float32", "bool", "int64") for r in reads(stage.body)):
        return [""]
    candidates = [a for a in stage.space if a.extent > 1]
    if stage.reduce and stage.combiner.reorders:
        candidates += [a for a in stage.reduce if a.extent > 1]
    ranked = sorted(candidates, key=lambda a: _awkwardness(dag, stage, a))
    return [ranked[0].name] if ranked else [""]


def _awkwardness(dag: Dag, stage: Compute, a: Axis) -> tuple[float, int]:
    accesses = [*_distinct_reads(stage), Read(stage.name, stage.space)] if a in stage.space else _distinct_reads(stage)
    bad = sum(not _friendly(dag, stage, r, a) for r in accesses)
    short = a.extent < 4
    last = stage.space.index(a) if a in stage.space else -1
    return (bad + 0.5 * short + 0.25 * (a in stage.reduce), -last)


def _friendly(dag: Dag, stage: Compute, read: Read, a: Axis) -> bool:
    if a not in set().union(*(axes(i) for i in read.index), set()):
        return True
    last = affine(read.index[-1])
    if last is not None and last.coefficient(a) in (1, 2) and all(a not in axes(i) for i in read.index[:-1]):
        return True
    return _packs(dag, stage, read, a)


def _packs(dag: Dag, stage: Compute, read: Read, a: Axis) -> bool:
    return (
        a in stage.space
        and bool(stage.reduce)
        and read.tensor in dag.tensors
        and _misses_an_axis(stage, read)
        and packable(stage, read, dag[read.tensor].shape)
    )


def _packed(state: State, stage: Compute, vector: str) -> list[str]:
    """Operands copied into tile order: those that lanes run along and that many tiles read again."""
    a = next(x for x in stage.space if x.name == vector)
    out = []
    for r in _distinct_reads(stage):
        only = sum(x.tensor == r.tensor for x in _distinct_reads(stage)) == 1
        if (
            only
            and any(a in axes(i) for i in r.index)
            and _packs(state.dag, stage, r, a)
            and not state.has(Pack, stage.name)
        ):
            out.append(r.tensor)
    return out


@cache
def table_axes(stage: Compute) -> dict[Axis, int]:
    """Axes that a condition of the body compares with a number, and after how many indices (8 at most) it repeats."""
    found: dict[Axis, int] = {}
    for node in walk(stage.body):
        match node:
            case Op("eq", (Axis() as a, Const())) if a in stage.axes and a.extent <= 8:
                found[a] = a.extent
            case Op("eq", (Op("mod") as remainder, Const())) if (period := _period(remainder)) and period[1] <= 8:
                found[period[0]] = period[1]
            case _:
                pass
    return found


@cache
def _periods(stage: Compute) -> dict[Axis, int]:
    """Axes of which only the remainder picks something out, and the divisor."""
    if not table_axes(stage):
        return {}
    return dict(p for n in walk(stage.body) if isinstance(n, Op) and (p := _period(n)) is not None)


def _period(e: Op) -> tuple[Axis, int] | None:
    """i % m, (i / d) % m: the axis, and after how many indices the values return."""
    match e:
        case Op("mod", (Axis() as a, Const(m, _))):
            return a, int(m)
        case Op("mod", (Op("floordiv", (Axis() as a, Const(d, _))), Const(m, _))):
            return a, int(d * m)
        case _:
            return None


def _misses_an_axis(stage: Compute, read: Read) -> bool:
    used = set().union(*(axes(i) for i in read.index), set())
    return any(a not in used for a in stage.space if a.extent > 1)


@cache
def _distinct_reads(stage: Compute) -> list[Read]:
    return list(dict.fromkeys(reads(stage.body)))


def matched_consumer(dag: Dag, stage: Compute) -> Compute | None:
    """The single consumer that reads the stage index for index, without reducing."""
    consumers = dag.consumers(stage.name)
    if len(consumers) != 1 or stage.name in dag.outputs or consumers[0].reduce:
        return None
    one = consumers[0]
    if one.shape != stage.shape or one.dtype != stage.dtype:
        return None
    index = tuple(a if a.extent > 1 else Const(0, "int64") for a in one.space)
    found = {tuple(i if not isinstance(i, Axis) or i.extent > 1 else Const(0, "int64") for i in r.index)
             for r in reads(one.body) if r.tensor == stage.name}  # fmt: skip
    return one if found == {index} else None


def _strictly_inlinable(stage: Compute) -> bool:
    """Reads are axis plus constant, in the order of the axes; nothing branches and nothing is expensive."""
    if any(isinstance(n, Op) and (n.name == "select" or n.name in EXPENSIVE) for n in walk(stage.body)):
        return False
    order = {a: i for i, a in enumerate(stage.space)}
    for r in reads(stage.body):
        forms = [affine(i) for i in r.index]
        if any(f is None or len(f.terms) > 1 or any(c != 1 for _, c in f.terms) for f in forms):
            return False
        used = [order[f.terms[0][0]] for f in forms if f is not None and f.terms]
        if used != sorted(set(used)):
            return False
    return True


@cache
def turned_axis(stage: Compute) -> Axis | None:
    """y[.., u, .., l] = x[.., l, .., u]: the axis u that runs along the rows of what is read, where lanes run along
    those that are written."""
    if stage.reduce or not isinstance(stage.body, Read) or not stage.space or stage.dtype != "float32":
        return None
    forms = [affine(i) for i in stage.body.index]
    last, lane = forms[-1] if forms else None, stage.space[-1]
    if last is None or any(f is None for f in forms) or last.coefficient(lane) or lane.extent < SHORT_TURN:
        return None
    along = [a for a, c in last.terms if c == 1 and a in stage.space and a.extent >= SHORT_TURN]
    used = [a for f in forms if f is not None for a, _ in f.terms]
    return next((a for a in along if used.count(a) == used.count(lane) == 1), None)


def _only_moves(stage: Compute) -> bool:
    """A transposition or a slice: reading through it costs nothing, and packing restores the order of the lanes."""
    return isinstance(stage.body, Read) and all(affine(i) is not None for i in stage.body.index)


def _used_once(dag: Dag, stage: Compute) -> bool:
    """Its single consumer, no reduction, asks for each element once."""
    consumers = dag.consumers(stage.name)
    if len(consumers) != 1 or consumers[0].reduce:
        return False
    one = consumers[0]
    found = {r for r in reads(one.body) if r.tensor == stage.name}
    return len(found) == 1 and prod(one.shape) <= prod(stage.shape)


def _is_cache(stage: Compute) -> bool:
    return stage.name.endswith(".cache")


# --- the tables -------------------------------------------------------------------------

CPU = (
    Rule("inline",           when=is_inlinable,        then=inline,           last=True),
    Rule("unroll-constants", when=selects_constants,   then=unroll_constants, last=True),
    Rule("winograd",         when=slides,              then=filter_minimally),
    Rule("rfactor",          when=reduces_much,        then=rfactor),
    Rule("cache-write",      when=writes_far,          then=add_write_cache),
    Rule("tile-and-fuse",    when=fuses_into_consumer, then=tile_and_fuse,    last=True),
    Rule("tile",             when=reuses_data,         then=tile,             last=True),
    Rule("skip",             when=always,              then=skip,             last=True),
)  # fmt: skip

RULES: dict[str, tuple[Rule, ...]] = {"cpu": CPU}
