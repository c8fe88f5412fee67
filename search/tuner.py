"""One workload, ask and tell.

    tuner = Tuner(space, schema, seed=1, history=recorded)
    while proposals := tuner.ask(64):
        tuner.tell(measure(proposals))

What a tuner proposes is a function of (space, history, seed) alone: asking changes nothing, and a tuner made from a
recorded history is the tuner that was told it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from statistics import median
from typing import Literal

import numpy as np

from ir.schedule import Population
from search.budget import Progress
from search.cost_model import (
    Model,
    Predictor,
    Prior,
    Quality,
    Rows,
    Schema,
    Training,
    fit,
    hold_out,
    indifferent,
    no_rows,
    rows,
    throughput_labels,
)
from search.evolve import (
    Candidate,
    Evolution,
    Space,
    evolve,
    first_of_each,
    program_keys,
    sample,
    sample_valid,
)

LEADING, GUESTS = 16, 2  # fastest programs whose sketches breed, and sketches that do besides

Origin = Literal["random", "preferred", "evolved"]
Strategy = Literal["search", "random only", "no crossover", "no model"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A program to measure, and where it comes from.

    key, sketch_key, choices: which program
    round:     from 0
    origin:    "random" (uniform), "preferred" (the best of many random ones, or of an enumerated space), "evolved"
    predicted: expected throughput relative to the best; None when nothing was learnt yet
    parents, trail: see `Candidate`
    """

    key: str
    sketch_key: str
    choices: tuple[int, ...]
    round: int
    origin: Origin
    predicted: float | None = None
    parents: tuple[str, ...] = ()
    trail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A proposal and its time.

    seconds:   best verified time of a call; None when it failed
    relative:  seconds / seconds of the incumbent measured beside it, whose key is `incumbent`; None without one
    """

    proposal: Proposal
    seconds: float | None
    relative: float | None = None
    incumbent: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a workload is searched.

    strategy:   "search", or a control: "random only"; "no crossover"; "no model" (one generation from the fastest)
    epsilon:    share of uniformly random programs in every batch (Ansor's eps_greedy 0.05)
    first:      the same share in the first batch, where the rest is the prior's preference; ours
    pool:       random programs drawn for each preferred one; ours
    inherited:  share of an initial population that was measured (Ansor's sample_init_use_measured_ratio 0.2)
    exhaustive: spaces of no more raw programs are enumerated; ours, as many as one evolution looks at (4 x 2,048)
    judging:    most of the own rows that may be kept from training; ours
    others:     most rows of other workloads to train with, and their weight; ours: bounds a round's training time
    """

    strategy: Strategy = "search"
    epsilon: float = 0.05
    first: float = 0.50
    pool: int = 16
    inherited: float = 0.20
    exhaustive: int = 8192
    judging: float = 0.35
    others: int = 1024
    others_weight: float = 0.25
    evolution: Evolution = Evolution()
    training: Training = Training()


@dataclass(frozen=True)
class Known:
    """What was measured: one row a distinct program of this space, in the order of first measurement.

    sketch: index of each row's sketch. seconds: float64 (n), NaN where it failed. exploring: bool (n), proposed
    uniformly after the first round, so an unbiased judge of the model.
    """

    proposals: tuple[Proposal, ...]
    sketch: np.ndarray
    seconds: np.ndarray
    exploring: np.ndarray

    def __len__(self) -> int:
        return len(self.proposals)

    @cached_property
    def labels(self) -> np.ndarray:
        """Throughput relative to the best, 0..1; 0 where failed."""
        return throughput_labels(self.seconds, np.zeros(len(self), dtype=np.int64))

    @cached_property
    def fastest(self) -> np.ndarray:
        """Rows that have a time, fastest first; ties in order of measurement."""
        return np.argsort(self.seconds, kind="stable")[: int(np.isfinite(self.seconds).sum())]


def known(space: Space, history: Sequence[Result]) -> Known:
    """History as columns. Results of sketches that the space no longer has are left out."""
    index = {k: i for i, k in enumerate(space.keys)}
    told = [r for r in history if r.proposal.sketch_key in index]
    first = {r.proposal.key: r.proposal for r in reversed(told)}
    order = tuple(dict.fromkeys(r.proposal.key for r in told))
    times = chained_seconds(told)
    return Known(
        tuple(first[k] for k in order),
        np.array([index[first[k].sketch_key] for k in order], dtype=np.int64),
        np.array([times.get(k, np.nan) for k in order], dtype=np.float64),
        np.array([first[k].origin == "random" and first[k].round > 0 for k in order], dtype=bool),
    )


def chained_seconds(history: Sequence[Result]) -> dict[str, float]:
    """Key -> seconds, failed programs absent; the median where a program was measured more than once.

    A time that was taken beside an incumbent counts as its ratio to it, times what the incumbent is known to take:
    else a lucky minute of the machine makes a best that nothing can beat (seen: for 384 trials).
    """
    told: dict[str, list[float]] = {}
    for r in history:
        if r.seconds is None:
            continue
        beside = told.get(r.incumbent) if r.relative is not None else None
        seconds = r.relative * median(beside) if beside and r.relative is not None else r.seconds
        told.setdefault(r.proposal.key, []).append(seconds)
    return {k: median(v) for k, v in told.items()}


@dataclass(frozen=True)
class State:
    """All that a tuner knows, and what follows from it."""

    space: Space
    schema: Schema
    settings: Settings
    seed: int
    history: tuple[Result, ...]
    others: Rows
    prior: Prior

    @cached_property
    def known(self) -> Known:
        return known(self.space, self.history)

    @cached_property
    def round(self) -> int:
        return 1 + max((r.proposal.round for r in self.history), default=-1)

    @cached_property
    def model(self) -> Model | None:
        """Trained on everything that is known; None with too few rows, or where the strategy has no model."""
        own, others = self.own_rows(), self.other_rows()
        both = own.join(others)
        if self.settings.strategy in ("random only", "no model") or len(both) < self.settings.training.least:
            return None
        return fit(both, self.schema, self.settings.training, self.held(own, others))

    @property
    def predictor(self) -> Predictor:
        return self.model or self.prior

    @property
    def informed(self) -> bool:
        """Is there a reason to prefer one program to another?"""
        if self.settings.strategy == "random only":
            return False
        return self.model is not None or self.prior.heuristic is not indifferent

    @property
    def enumerable(self) -> bool:
        return self.space.size <= self.settings.exhaustive

    def own_rows(self) -> Rows:
        return lessons(self.space, self.schema, self.known)

    def other_rows(self) -> Rows:
        """A seeded part of what other workloads taught, at their weight."""
        most, n = self.settings.others, len(self.others)
        keep = np.arange(n) if n <= most else np.sort(np.random.default_rng(self.seed).permutation(n)[:most])
        taken = self.others.take(keep)
        return replace(taken, weights=taken.weights * self.settings.others_weight)

    def held(self, own: Rows, others: Rows) -> np.ndarray:
        """Bool (own, then others): which rows judge the model instead of training it.

        Own programs alone where there are any, other workloads say little about this one's ranking: a seeded part of
        all, and all that were explored after the first round, unless those are most of what there is to learn from.
        """
        training = self.settings.training
        if not len(own):
            return hold_out(others.groups, training.held, training.seed)
        mine = hold_out(own.groups, training.held, training.seed)
        explored = mine | self.known.exploring
        mine = explored if explored.mean() <= self.settings.judging else mine
        return np.concatenate([mine, np.zeros(len(others), dtype=bool)])


def lessons(space: Space, schema: Schema, told: Known) -> Rows:
    """What one workload teaches: a row a program, each its own group.

    For the `others` of another tuner, put one workload's rows into one group.
    """
    features = np.empty((len(told), len(schema.names)), dtype=np.float32)
    for s, population in enumerate(gathered(space, told.proposals)):
        if len(population):
            features[told.sketch == s] = space.features(population, space.target)
    return rows(features, told.labels, np.array([int(p.key[:15], 16) for p in told.proposals], dtype=np.int64))


def gathered(space: Space, proposals: Sequence[Proposal]) -> tuple[Population, ...]:
    """Proposals as one population a sketch, order kept."""
    out = []
    for sketch_key, sketch in zip(space.keys, space.sketches, strict=True):
        choices = [p.choices for p in proposals if p.sketch_key == sketch_key]
        out.append(Population(sketch, np.array(choices, dtype=np.int32).reshape(len(choices), len(sketch.holes))))
    return tuple(out)


# -- asking -------------------------------------------------------------------------------------------------------


def propose(state: State, n: int, pending: Sequence[Proposal] = ()) -> list[Proposal]:
    """Up to n programs neither measured nor pending; fewer when the space ends or no valid one can be sampled.

    The guided ones come first, best first; then the uniformly random ones.
    """
    taken = (*state.known.proposals, *pending)
    rng = _generator(state, len(pending))
    share = state.settings.epsilon if taken else state.settings.first
    guide = n - int(n * share + rng.random())  # rounded at random, so that small batches keep the share
    guided = _guided(state, guide, rng, taken) if guide > 0 else []
    left = _fresh(state, n - len(guided), rng, (*taken, *guided))
    return [*guided, *_named(state, left, "random")]


def _generator(state: State, pending: int) -> np.random.Generator:
    """What is random in a round follows from seed, workload, target and how much is known."""
    text = repr((state.seed, state.space.keys, state.space.target.key, len(state.history), pending))
    return np.random.default_rng(int.from_bytes(blake2b(text.encode(), digest_size=16).digest()))


def _guided(state: State, n: int, rng: np.random.Generator, taken: Sequence[Proposal]) -> list[Proposal]:
    """The first batch prefers, later ones evolve; a space that was enumerated needs no evolution."""
    if state.settings.strategy == "random only":
        return []
    if not taken:
        return _preferred(state, n, rng, _fresh(state, n * state.settings.pool, rng, ())) if state.informed else []
    if state.model is None:
        return _descended(state, n, rng, taken)
    if state.enumerable:
        return _preferred(state, n, rng, _untaken(state, taken))
    return _evolved(state, state.model, n, rng, taken)


def _preferred(state: State, n: int, rng: np.random.Generator, populations: Sequence[Population]) -> list[Proposal]:
    """The n best of many by the predictor; ties are drawn, so that no sketch is favoured."""
    space = state.space
    scores = [state.predictor.predict(space.features(p, space.target)) if len(p) else np.empty(0) for p in populations]
    score = np.concatenate(scores)
    order = np.lexsort((rng.random(len(score)), -score))[:n]
    first = np.cumsum([0, *(len(p) for p in populations)])
    kept = [order[(order >= a) & (order < b)] - a for a, b in pairwise(first)]
    found = _named(state, [p.take(k) for p, k in zip(populations, kept, strict=True)], "preferred")
    return sorted(found, key=lambda p: -(p.predicted or 0.0))


def _evolved(state: State, model: Model, n: int, rng: np.random.Generator, taken: Sequence[Proposal]) -> list[Proposal]:
    """Generations of the fastest and of fresh blood, judged by the model."""
    evolution, space = _evolution(state, n), state.space
    fastest = state.known.fastest[: int(evolution.size * state.settings.inherited)]
    inherited = gathered(space, [state.known.proposals[i] for i in fastest])
    fresh = _fresh(state, evolution.size - len(fastest), rng, taken, _hopeful(state, rng))
    pairs = zip(inherited, fresh, strict=True)
    founders = [Population(a.sketch, np.concatenate([a.choices, b.choices])) for a, b in pairs]

    def score(population: Population) -> np.ndarray:
        return model.predict(space.features(population, space.target))

    found = evolve(space, founders, score, n, rng, evolution, gathered(space, taken))
    return _as_proposals(state, found, judged=True)


def _descended(state: State, n: int, rng: np.random.Generator, taken: Sequence[Proposal]) -> list[Proposal]:
    """Without a model: children of the fastest quarter, none better than another."""
    known = state.known
    founders = gathered(state.space, [known.proposals[i] for i in known.fastest[: max(8, len(known) // 4)]])
    evolution = replace(_evolution(state, n), generations=1)
    found = evolve(state.space, founders, lambda p: np.ones(len(p)), n, rng, evolution, gathered(state.space, taken))
    return _as_proposals(state, found, judged=False)


def _evolution(state: State, n: int) -> Evolution:
    evolution = state.settings.evolution
    crossover = 0.0 if state.settings.strategy == "no crossover" else evolution.crossover
    return replace(evolution, crossover=crossover, elite=max(n, evolution.elite))


def _untaken(state: State, taken: Sequence[Proposal]) -> list[Population]:
    """All that is left of an enumerated space."""
    space = state.space
    pairs = zip(space.everything, gathered(space, taken), strict=True)
    return [p.take(first_of_each(space.prints(p), space.prints(t))) for p, t in pairs]


def _fresh(
    state: State, n: int, rng: np.random.Generator, taken: Sequence[Proposal], among: Sequence[int] = ()
) -> list[Population]:
    """n random valid programs, as many of one sketch as of another where it has them. among: of these sketches alone."""
    space = state.space
    if state.enumerable:
        piles = [p.take(rng.permutation(len(p))) for p in _untaken(state, taken)]
    else:
        chosen = list(among) or list(range(len(space.sketches)))
        if n < len(chosen):
            chosen = sorted(rng.choice(chosen, size=n, replace=False).tolist())
        banned = [space.prints(t) for t in gathered(space, taken)]

        def drawn(share: int) -> list[Population]:
            return [
                sample_valid(space, s, share if i in chosen else 0, rng, banned[i]).population
                for i, s in enumerate(space.sketches)
            ]

        share = -(-n // max(len(chosen), 1))
        piles = drawn(share)
        if sum(map(len, piles)) < n:  # some sketch has too few: the others stand in
            chosen = list(range(len(space.sketches)))
            piles = [p if 0 < len(p) < share else more for p, more in zip(piles, drawn(min(n, 2 * share)), strict=True)]
    quotas = dealt([len(p) for p in piles], n, rng)
    return [p.take(np.arange(q)) for p, q in zip(piles, quotas, strict=True)]


def _hopeful(state: State, rng: np.random.Generator) -> list[int]:
    """The sketches of the fastest programs, and two others: blood of the rest would die out within one generation."""
    leading = set(state.known.sketch[state.known.fastest[:LEADING]].tolist())
    rest = [s for s in range(len(state.space.sketches)) if s not in leading]
    return sorted(leading | set(rng.permutation(rest)[:GUESTS].tolist()))


def dealt(piles: Sequence[int], n: int, rng: np.random.Generator) -> list[int]:
    """How many to take of each pile to have n, as evenly as the piles allow; who gives the odd one is drawn."""
    quotas, left = [0] * len(piles), n
    for i, pile in enumerate(np.lexsort((rng.random(len(piles)), np.asarray(piles)))):
        quotas[pile] = min(piles[pile], -(-left // (len(piles) - i)))
        left -= quotas[pile]
    return quotas


def _named(state: State, populations: Sequence[Population], origin: Origin) -> list[Proposal]:
    """Every program of the populations as a proposal, with the model's opinion where there is a model."""
    space, out = state.space, []
    for s, population in enumerate(populations):
        if not len(population):
            continue
        said = state.model.predict(space.features(population, space.target)).tolist() if state.model else None
        keys = program_keys(space, s, population.choices)
        for r, (name, choices) in enumerate(zip(keys, population.choices.tolist(), strict=True)):
            predicted = said[r] if said else None
            out.append(Proposal(name, space.keys[s], tuple(choices), state.round, origin, predicted))
    return out


def _as_proposals(state: State, candidates: Sequence[Candidate], judged: bool) -> list[Proposal]:
    return [
        Proposal(
            c.key,
            state.space.keys[c.sketch],
            c.choices,
            state.round,
            "evolved",
            c.score if judged else None,
            c.parents,
            c.trail,
        )
        for c in candidates
    ]


# -- the tuner ----------------------------------------------------------------------------------------------------


class Tuner:
    """Proposes programs of one space and learns from their times.

    others:    rows of other workloads, labels relative to their own best, to train with from the start
    heuristic: ranks feature rows (n x width) as long as there is nothing to train on
    """

    def __init__(
        self,
        space: Space,
        schema: Schema,
        settings: Settings = Settings(),
        seed: int = 0,
        history: Sequence[Result] = (),
        others: Rows | None = None,
        heuristic: Callable[[np.ndarray], np.ndarray] = indifferent,
    ) -> None:
        known_elsewhere = no_rows(schema) if others is None else others
        schema.check(known_elsewhere.features)
        self.state = State(space, schema, settings, seed, tuple(history), known_elsewhere, Prior(heuristic))

    def ask(self, n: int, pending: Sequence[Proposal] = ()) -> list[Proposal]:
        """Up to n programs to measure, none of them measured or pending (asked for and not yet told).

        The same answer until something is told. Empty: the space is exhausted, or no valid program was found
        (`acceptance` tells which).
        """
        return propose(self.state, n, pending)

    def tell(self, results: Sequence[Result]) -> None:
        """What was measured, failures included; the order counts."""
        self.state = replace(self.state, history=(*self.state.history, *results))

    def hear(self, others: Rows) -> None:
        """What other workloads have taught by now, in place of what was known before."""
        self.state.schema.check(others.features)
        self.state = replace(self.state, others=others)

    @property
    def quality(self) -> Quality | None:
        """Of the model that the history makes, on programs it did not learn from; None without a model or judges."""
        return self.state.model.quality if self.state.model else None

    @property
    def model(self) -> Model | None:
        return self.state.model

    @property
    def space_left(self) -> int | None:
        """Valid programs not yet measured; None where the space is too large to count."""
        left = _untaken(self.state, self.state.known.proposals) if self.state.enumerable else None
        return None if left is None else sum(len(p) for p in left)

    def acceptance(self, n: int = 2048) -> float:
        """Share of valid programs among n uniformly drawn of each sketch."""
        rng, space = _generator(self.state, 0), self.state.space
        draws = [sample(s, n, rng) for s in space.sketches]
        return float(np.mean(np.concatenate([space.valid(d, space.target) for d in draws])))

    def finalists(self, n: int) -> list[Proposal]:
        """The n fastest so far, fastest first: to be measured again, side by side, before one is called best."""
        return [self.state.known.proposals[i] for i in self.state.known.fastest[:n]]

    @property
    def best_seconds(self) -> float | None:
        fastest = self.state.known.fastest
        return float(self.state.known.seconds[fastest[0]]) if len(fastest) else None

    def progress(
        self, key: str, weight: float = 1.0, roofline_seconds: float = 0.0, flops: float = 0.0, family: str = ""
    ) -> Progress:
        """What the budget asks about this workload."""
        known = self.state.known
        rounds = np.array([p.round for p in known.proposals], dtype=np.int64)
        best, failures = best_by_round(rounds, known.seconds)
        return Progress(key, weight, len(known), best, roofline_seconds, self.space_left, failures, flops, family)


def best_by_round(rounds: np.ndarray, seconds: np.ndarray) -> tuple[tuple[float | None, ...], int]:
    """Rounds int64 (n), seconds float64 (n; NaN: failed) -> best so far after each round; last rounds without a time."""
    best: list[float | None] = []
    barren = 0
    for r in np.unique(rounds):
        times = seconds[(rounds == r) & np.isfinite(seconds)]
        before = best[-1] if best else None
        barren = 0 if len(times) else barren + 1
        found = [t for t in (before, *times.tolist()) if t is not None]
        best.append(min(found) if found else None)
    return tuple(best), barren
