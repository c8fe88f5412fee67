"""Choosing numbers for sketches: sample, mutate, cross, select.

Everything here is columns. A population is one integer matrix and each verb acts on all of its rows at once; loops
run over holes, mutators, sketches and generations, never over programs. Nothing reads a clock, a file or a global
random state: what is random comes in as `rng`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np

from ir.schedule import HoleKind, Population, Sketch
from ir.target import Target

Score = Callable[[Population], np.ndarray]
"""Population of n programs -> n predicted throughputs relative to the best (float, higher is better)."""


@dataclass(frozen=True, slots=True)
class Core:
    """Holes that are valid or not together, whatever the others hold: columns int64 (c), and all choices of theirs that
    are, int32 (n x c)."""

    columns: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class Space:
    """All programs of one workload on one target.

    sketches:  the structures; `keys` are their stable keys, in the same order
    valid:     (population, target) -> bool (n): the program may be built
    canonical: population -> integers (n x c), the effective values: equal rows are equal programs
    features:  (population, target) -> float32 (n x width)
    cores:     (sketch, target) -> holes to draw together: where one program in a hundred is valid, most fail for these
    """

    keys: tuple[str, ...]
    sketches: tuple[Sketch, ...]
    target: Target
    valid: Callable[[Population, Target], np.ndarray]
    canonical: Callable[[Population], np.ndarray]
    features: Callable[[Population, Target], np.ndarray]
    cores: Callable[[Sketch, Target], Sequence[Core]]

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.sketches) or not self.sketches:
            raise ValueError(f"{len(self.keys)} keys for {len(self.sketches)} sketches: one each, and at least one")

    @property
    def size(self) -> int:
        """Raw number of programs, valid or not, equivalent ones counted apart."""
        return sum(s.size for s in self.sketches)

    def prints(self, population: Population) -> np.ndarray:
        return fingerprint(self.canonical(population))

    @cached_property
    def everything(self) -> tuple[Population, ...]:
        """Every distinct valid program, a population a sketch. Ask `size` first."""
        return tuple(enumerate_all(self, s) for s in self.sketches)

    def draw(self, sketch: Sketch, n: int, rng: np.random.Generator) -> Population:
        """n programs: every core uniform over its valid choices, every other hole over its domain."""
        choices = sample(sketch, n, rng).choices
        for core in self.cores(sketch, self.target):
            choices[:, core.columns] = core.rows[rng.integers(0, len(core.rows), size=n)]
        return Population(sketch, choices)

    def legal(self, population: Population) -> Population:
        return population.take(np.flatnonzero(self.valid(population, self.target)))


# -- identity -----------------------------------------------------------------------------------------------------


def key(sketch_key: str, canonical_row: Sequence[int] | np.ndarray) -> str:
    """The stable name of a program: 32 hex digits of blake2b over the sketch's key and the effective values."""
    values = np.asarray(canonical_row, dtype="<i8").tobytes()
    return blake2b(sketch_key.encode() + b"\0" + values, digest_size=16).hexdigest()


def fingerprint(canonical: np.ndarray) -> np.ndarray:
    """Integers (n x c) -> uint64 (n): equal rows agree; unequal ones collide with probability about n^2 / 2^65.

    The finaliser of splitmix64 (Steele, Lea, Flood 2014), one column after the other. Only for comparing programs
    of one sketch within one process; `key` is what is recorded.
    """
    state = np.zeros(canonical.shape[0], dtype=np.uint64)
    for column in canonical.T.astype(np.int64).view(np.uint64):
        state += column + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def first_of_each(prints: np.ndarray, banned: np.ndarray | None = None) -> np.ndarray:
    """Rows of the first occurrence of every distinct print that is not banned, ascending."""
    rows = np.sort(np.unique(prints, return_index=True)[1])
    return rows if banned is None or not len(banned) else rows[~np.isin(prints[rows], banned)]


# -- sampling -----------------------------------------------------------------------------------------------------


def counts(sketch: Sketch) -> np.ndarray:
    """Number of options of every hole, int64 (holes)."""
    return np.array([len(h.options) for h in sketch.holes], dtype=np.int64)


def sample(sketch: Sketch, n: int, rng: np.random.Generator) -> Population:
    """n programs, uniform over every hole's domain; validity is not asked."""
    choices = rng.integers(0, counts(sketch), size=(n, len(sketch.holes)), dtype=np.int64)
    return Population(sketch, choices.astype(np.int32))


@dataclass(frozen=True)
class Sampled:
    """Distinct valid programs, and what it took: `accepted` of `drawn` rows were valid."""

    population: Population
    drawn: int
    accepted: int

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drawn if self.drawn else 0.0


def sample_valid(
    space: Space, sketch: Sketch, n: int, rng: np.random.Generator, banned: np.ndarray | None = None, batches: int = 16
) -> Sampled:
    """Up to n distinct valid programs, none with a banned print, from at most `batches` draws of max(2n, 256) rows.

    Fewer come back when the space is small or nearly everything is invalid; `acceptance` says which.
    """
    found, prints = sample(sketch, 0, rng), np.empty(0, dtype=np.uint64)
    drawn = accepted = 0
    for _ in range(batches if n > 0 else 0):
        draw = space.draw(sketch, max(2 * n, 256), rng)
        fresh = space.legal(draw)
        drawn, accepted = drawn + len(draw), accepted + len(fresh)
        prints = np.concatenate([prints, space.prints(fresh)])
        rows = first_of_each(prints, banned)[:n]
        found = Population(sketch, np.concatenate([found.choices, fresh.choices])[rows])
        prints = prints[rows]
        if len(found) == n:
            break
    return Sampled(found, drawn, accepted)


def enumerate_all(space: Space, sketch: Sketch) -> Population:
    """Every distinct valid program, in ascending order of choices. Ask `sketch.size` first."""
    rows = np.unravel_index(np.arange(sketch.size), tuple(counts(sketch))) if sketch.holes else ()
    choices = np.stack(rows, axis=1) if sketch.holes else np.zeros((1, 0))
    legal = space.legal(Population(sketch, choices.astype(np.int32)))
    return legal.take(first_of_each(space.prints(legal)))


# -- mutation -----------------------------------------------------------------------------------------------------

Change = Callable[[Sketch, np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""(sketch, choices (n x holes), columns it may touch, rng) -> new choices; every hole stays in its domain."""


def redraw(sketch: Sketch, choices: np.ndarray, columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(.., a, ..)      -->      (.., any option but a, ..)      in one column, drawn for every row"""
    out, rows = choices.copy(), np.arange(len(choices))
    column = columns[rng.integers(0, len(columns), size=len(choices))]
    options = counts(sketch)[column]
    out[rows, column] = (choices[rows, column] + rng.integers(1, options)) % options
    return out


def move_factor(sketch: Sketch, choices: np.ndarray, columns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """i: (.., 4, 8)      -->      (.., 2, 16)      one factor from one level of one axis to another

    The outermost level has no hole (it takes what is left), yet gives and takes like the others: then one hole
    alone shrinks or grows. Which axis is drawn for every row.
    """
    out, axes = choices.copy(), _axes(sketch, columns)
    drawn = rng.integers(0, len(axes), size=len(choices))
    for i, levels in enumerate(axes):
        rows = np.flatnonzero(drawn == i)
        if len(rows):
            options = [np.asarray(sketch.holes[c].options, dtype=np.float64) for c in levels]
            out[np.ix_(rows, levels)] = _move(options, choices[np.ix_(rows, levels)], rng)
    return out


def _axes(sketch: Sketch, columns: np.ndarray) -> list[np.ndarray]:
    """Columns of the tile holes, those of one (group, axis) together."""
    found: dict[tuple[str, str], list[int]] = {}
    for c in columns:
        found.setdefault((sketch.holes[c].group, sketch.holes[c].axis), []).append(int(c))
    return [np.array(levels) for levels in found.values()]


def _move(options: list[np.ndarray], choices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The levels of one axis (n x levels). The factor is log-uniform in 2 .. what the giver has: small ones prevail."""
    rows, levels = np.arange(len(choices)), choices.shape[1]
    last = np.array([len(o) - 1 for o in options])
    always = np.ones((len(choices), 1), dtype=bool)
    giver = _draw(np.hstack([choices > 0, always]), rng)
    able = np.hstack([choices < last, always])
    able[rows, giver] = False
    taker = _draw(able, rng)

    sizes = np.stack([o[choices[:, j]] for j, o in enumerate(options)] + [np.ones(len(choices))], axis=1)
    largest = np.array([o[-1] for o in options] + [1.0])
    outside = giver == levels
    room = np.where(outside, largest[taker] / sizes[rows, taker], sizes[rows, giver])
    factor = np.maximum(2.0, np.rint(room ** rng.random(len(choices))))

    out = choices.copy()
    for j, o in enumerate(options):
        gives = np.flatnonzero(giver == j)
        out[gives, j] = snap(o, sizes[gives, j] / factor[gives])
        factor[gives] = sizes[gives, j] / o[out[gives, j]]  # what was truly given: options need not divide
    for j, o in enumerate(options):
        takes = np.flatnonzero((taker == j) & able[rows, taker])
        out[takes, j] = snap(o, sizes[takes, j] * factor[takes])
    return out


def _draw(able: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One column of every row, uniform among the able ones."""
    return np.asarray(np.argmax(np.where(able, rng.random(able.shape), -1.0), axis=1))


def snap(options: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Index of the option nearest to each size, by ratio: options ascend and are positive."""
    return np.asarray(np.searchsorted(np.sqrt(options[1:] * options[:-1]), sizes))


@dataclass(frozen=True, slots=True)
class Mutator:
    """One way to change a program: drawn in proportion to `weight` among those the sketch has holes for."""

    name: str
    weight: float
    kinds: tuple[HoleKind, ...]
    change: Change


# Ansor's weights (OSDI'20 implementation, TVM v0.16: tile size 0.90, location 0.05, unroll 0.04, parallel 0.01), its
# tile size shared by two moves. Vector width, loop order and split position are holes it does not have; their weights
# are ours: a wrong vector width costs most of the performance, an order a few percent.
MUTATORS = (
    Mutator("tile factor", 0.60, ("tile",), move_factor),
    Mutator("tile redraw", 0.30, ("tile",), redraw),
    Mutator("location", 0.05, ("location",), redraw),
    Mutator("unroll", 0.04, ("unroll",), redraw),
    Mutator("parallel", 0.01, ("parallel",), redraw),
    Mutator("vector", 0.10, ("vector",), redraw),
    Mutator("order", 0.04, ("order",), redraw),
    Mutator("split", 0.04, ("split",), redraw),
)


def mutate(
    sketch: Sketch, choices: np.ndarray, rng: np.random.Generator, mutators: Sequence[Mutator] = MUTATORS
) -> tuple[np.ndarray, np.ndarray]:
    """One mutation for every row: new choices (n x holes), and the index of its mutator, int16 (n), -1 for none."""
    columns = [_columns(sketch, m) for m in mutators]
    weights = np.array([m.weight if len(c) else 0.0 for m, c in zip(mutators, columns, strict=True)])
    if not weights.sum():
        return choices.copy(), np.full(len(choices), -1, dtype=np.int16)
    drawn = rng.choice(len(mutators), size=len(choices), p=weights / weights.sum()).astype(np.int16)
    out = choices.copy()
    for i, (mutator, own) in enumerate(zip(mutators, columns, strict=True)):
        rows = np.flatnonzero(drawn == i)
        if len(rows):
            out[rows] = mutator.change(sketch, choices[rows], own, rng)
    return out, drawn


def _columns(sketch: Sketch, mutator: Mutator) -> np.ndarray:
    """Holes of the mutator's kinds that leave a choice."""
    mine = [i for i, h in enumerate(sketch.holes) if h.kind in mutator.kinds and len(h.options) > 1]
    return np.array(mine, dtype=np.int64)


# -- crossover ----------------------------------------------------------------------------------------------------


def groups(sketch: Sketch) -> np.ndarray:
    """The group of every hole, numbered in order of appearance, int64 (holes)."""
    number = {g: i for i, g in enumerate(dict.fromkeys(h.group for h in sketch.holes))}
    return np.array([number[h.group] for h in sketch.holes], dtype=np.int64)


def cross(sketch: Sketch, mothers: np.ndarray, fathers: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(A1 B1 C1), (A2 B2 C2)      -->      (A1 B2 C1)      stage by stage, a group whole (Ansor, OSDI'20, section 5.1)

    Both (n x holes), row by row a pair. With a single group there is nothing to exchange: the mothers come back.
    """
    group = groups(sketch)
    if not len(group) or not group.max():
        return mothers.copy()
    take = rng.random((len(mothers), int(group.max()) + 1)) < 0.5
    return np.where(take[:, group], fathers, mothers)


# -- evolution ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evolution:
    """How a population evolves.

    generations, size, mutation, elite: Ansor's defaults (4, 2048, 0.85, 128; TVM v0.16 sketch policy).
    crossover: share of children with two parents; ours, the paper gives none and the shipped code has no crossover.
    floor:     share of the children dealt to the sketches in turn whatever their scores; ours.
    """

    generations: int = 4
    size: int = 2048
    mutation: float = 0.85
    crossover: float = 0.30
    elite: int = 128
    floor: float = 0.10
    mutators: tuple[Mutator, ...] = MUTATORS


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program worth measuring.

    score:   predicted throughput relative to the best
    parents: keys of the founders it descends from: its own line's, then that of the last crossover partner
    trail:   what happened on the way, a name for each generation that changed it, such as "crossover+tile factor"
    """

    key: str
    sketch: int
    choices: tuple[int, ...]
    score: float
    parents: tuple[str, ...] = ()
    trail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cohort:
    """The living programs of one sketch, all columns of equal length n.

    founder, donor: rows of the first population (donor -1: none). trail: int16 (n x generations), what each
    generation did: 0 nothing, else mutator + 1, plus CROSSED for two parents.
    """

    population: Population
    prints: np.ndarray
    score: np.ndarray
    founder: np.ndarray
    donor: np.ndarray
    trail: np.ndarray

    def __len__(self) -> int:
        return len(self.population)

    def take(self, rows: np.ndarray) -> Cohort:
        columns = (self.prints, self.score, self.founder, self.donor, self.trail)
        return Cohort(self.population.take(rows), *(c[rows] for c in columns))

    def join(self, other: Cohort) -> Cohort:
        """Both, equal programs once."""
        choices = np.concatenate([self.population.choices, other.population.choices])
        pairs = zip(self._columns, other._columns, strict=True)
        both = Cohort(Population(self.population.sketch, choices), *(np.concatenate(p) for p in pairs))
        return both.take(first_of_each(both.prints))

    @property
    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.prints, self.score, self.founder, self.donor, self.trail

    def best(self, n: int) -> Cohort:
        """The n highest scores, best first. Trees tie often: ties go by print, which favours nobody."""
        return self.take(np.lexsort((self.prints, -self.score))[:n])


CROSSED = 1024


def evolve(
    space: Space,
    founders: Sequence[Population],
    score: Score,
    n: int,
    rng: np.random.Generator,
    evolution: Evolution = Evolution(),
    measured: Sequence[Population] = (),
) -> list[Candidate]:
    """The n distinct programs of highest score that a few generations find and nobody measured, best first.

    founders, measured: one population a sketch, in the order of the sketches. Founders may be empty or measured;
    they must be valid.
    """
    banned = [space.prints(p) for p in measured] or [np.empty(0, dtype=np.uint64)] * len(space.sketches)
    start = [_found(space, p, score, evolution.generations) for p in founders]
    turns = int(rng.integers(len(space.sketches)))  # whose turn it is first
    living, elite = start, [_elite(c, None, b, evolution) for c, b in zip(start, banned, strict=True)]
    for generation in range(evolution.generations):
        parents = [c.join(e) for c, e in zip(living, elite, strict=True)]
        turn = turns + generation
        sizes = shares([p.score for p in parents], evolution.size, evolution.floor, n, turn)
        living = [
            _breed(space, p, score, size, generation, rng, evolution) for p, size in zip(parents, sizes, strict=True)
        ]
        elite = [_elite(c, e, b, evolution) for c, e, b in zip(living, elite, banned, strict=True)]
    return _chosen(space, start, elite, n, evolution)


def shares(scores: Sequence[np.ndarray], size: int, floor: float, among: int, turn: int) -> list[int]:
    """Children a sketch: in proportion to the fitness of its programs among the best of all, and `floor` of them to one
    sketch in turn. A sketch without any costs nothing: what a few columns cost is mostly the number of the operations."""
    alive = [i for i, s in enumerate(scores) if len(s)]
    if not alive:
        return [0] * len(scores)
    fit = [fitness(s) for s in scores]
    every = np.concatenate([fit[i] for i in alive])
    least = np.partition(every, -among)[-among] if len(every) > among else 0.0
    sums = np.array([f[f >= least].sum() for f in fit])
    earned = sums / sums.sum() if sums.sum() > 0 else np.array([len(s) > 0 for s in scores]) / len(alive)
    given = np.zeros(len(scores))
    given[alive[turn % len(alive)]] = floor
    return [int(x) for x in np.ceil(size * (given + (1 - floor) * earned))]


def fitness(score: np.ndarray) -> np.ndarray:
    """max(score, 0); what is not finite counts as nothing."""
    return np.maximum(np.nan_to_num(np.asarray(score, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0), 0.0)


def select(score: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """n rows with replacement, proportional to fitness; uniform when nothing is fit."""
    weights = fitness(score)
    if not weights.sum():
        return rng.integers(0, len(score), size=n)
    edges = np.cumsum(weights)
    drawn = np.searchsorted(edges, rng.random(n) * edges[-1], side="right")
    return np.asarray(np.minimum(drawn, len(score) - 1))


def _found(space: Space, population: Population, score: Score, generations: int) -> Cohort:
    """Founders descend from themselves."""
    n = len(population)
    return Cohort(
        population,
        space.prints(population),
        _scored(population, score),
        np.arange(n, dtype=np.int32),
        np.full(n, -1, dtype=np.int32),
        np.zeros((n, generations), dtype=np.int16),
    )


def _scored(population: Population, score: Score) -> np.ndarray:
    return np.asarray(score(population), dtype=np.float64) if len(population) else np.empty(0)


def _breed(
    space: Space, parents: Cohort, score: Score, n: int, generation: int, rng: np.random.Generator, evolution: Evolution
) -> Cohort:
    """The next generation: up to n valid, distinct children of parents drawn by fitness."""
    if not len(parents) or not n:
        return parents.take(np.arange(0))
    children = parents.take(select(parents.score, n, rng))
    partners = parents.take(select(parents.score, n, rng))
    children = _crossed(children, partners, generation, rng, evolution.crossover)
    children = _mutated(children, generation, rng, evolution)
    children = children.take(np.flatnonzero(space.valid(children.population, space.target)))
    children = replace(children, prints=space.prints(children.population))
    children = children.take(first_of_each(children.prints))
    return replace(children, score=_scored(children.population, score))


def _crossed(children: Cohort, partners: Cohort, generation: int, rng: np.random.Generator, share: float) -> Cohort:
    sketch, mothers = children.population.sketch, children.population.choices
    pair = rng.random(len(children)) < share
    crossed = cross(sketch, mothers, partners.population.choices, rng)
    choices = np.where(pair[:, None], crossed, mothers)
    changed = (choices != mothers).any(axis=1)
    trail = children.trail.copy()
    trail[:, generation] += np.where(changed, CROSSED, 0).astype(np.int16)
    donor = np.where(changed, partners.founder, children.donor)
    return replace(children, population=Population(sketch, choices), donor=donor, trail=trail)


def _mutated(children: Cohort, generation: int, rng: np.random.Generator, evolution: Evolution) -> Cohort:
    sketch, before = children.population.sketch, children.population.choices
    after, how = mutate(sketch, before, rng, evolution.mutators)
    keep = rng.random(len(children)) >= evolution.mutation
    choices = np.where(keep[:, None], before, after)
    trail = children.trail.copy()
    trail[:, generation] += np.where((choices != before).any(axis=1), how + 1, 0).astype(np.int16)
    return replace(children, population=Population(sketch, choices), trail=trail)


def _elite(cohort: Cohort, elite: Cohort | None, banned: np.ndarray, evolution: Evolution) -> Cohort:
    """The best unmeasured programs seen so far."""
    fresh = cohort.take(first_of_each(cohort.prints, banned))
    return (fresh if elite is None else elite.join(fresh)).best(evolution.elite)


def _chosen(
    space: Space, founders: Sequence[Cohort], elite: Sequence[Cohort], n: int, evolution: Evolution
) -> list[Candidate]:
    """The n best of all sketches' elites, named."""
    order = np.lexsort((np.concatenate([e.prints for e in elite]), -np.concatenate([e.score for e in elite])))[:n]
    first = np.cumsum([0, *(len(e) for e in elite)])
    out: list[Candidate] = []
    for s, mine in enumerate(elite):
        rows = order[(order >= first[s]) & (order < first[s + 1])] - first[s]
        out += _named(space, s, founders[s], mine.take(rows), evolution.mutators)
    return sorted(out, key=lambda c: -c.score)


def _named(space: Space, s: int, founders: Cohort, chosen: Cohort, mutators: Sequence[Mutator]) -> list[Candidate]:
    """Columns become candidates: a few dozen, so a loop over rows may be."""
    own = program_keys(space, s, chosen.population.choices)
    line = program_keys(space, s, founders.population.choices[chosen.founder])
    other = program_keys(space, s, founders.population.choices[np.maximum(chosen.donor, 0)])
    out = []
    for r in range(len(chosen)):
        trail = tuple(_step(int(code), mutators) for code in chosen.trail[r] if code)
        parents = dict.fromkeys([line[r]] + [other[r]] * bool(chosen.donor[r] >= 0)) if trail else ()
        choices = tuple(int(c) for c in chosen.population.choices[r])
        out.append(Candidate(own[r], s, choices, float(chosen.score[r]), tuple(parents), trail))
    return out


def _step(code: int, mutators: Sequence[Mutator]) -> str:
    crossed, mutator = divmod(code, CROSSED)
    return "+".join(["crossover"] * crossed + ([mutators[mutator - 1].name] if mutator else []))


def program_keys(space: Space, sketch: int, choices: np.ndarray) -> list[str]:
    """Keys of the programs (n x holes) of one sketch."""
    rows = space.canonical(Population(space.sketches[sketch], choices))
    return [key(space.keys[sketch], row) for row in rows]
