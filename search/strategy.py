"""Strategies as a table, and what answers for a program when there is no machine.

A strategy is a row: what it changes in the full search. Two things answer for programs:

    pool       the recorded programs are the whole space, and each answers with its recorded time
    surrogate  the whole space; recorded programs answer with their time, all others with a smooth guess fitted to them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from ir.schedule import Population, Sketch
from ir.target import Target
from search.budget import Grant, Policy, Progress, next_round, round_robin
from search.cost_model import indifferent, spearman
from search.evolve import Core, Space, first_of_each
from search.heuristic import heuristic
from search.tuner import Known, Proposal, Result, Settings, gathered

Mode = Literal["surrogate", "pool"]
Deal = Callable[[Sequence[Progress], int, Policy], Grant | None]
Heuristic = Callable[[np.ndarray], np.ndarray]
Answer = Callable[[Sequence[Proposal]], list[float | None]]
"""Proposals -> seconds of a call, None where the program fails."""

# Nothing is ever settled: all spend the same trials, else they cannot be compared. A pool holds a few dozen programs, of
# which a batch as large as a tuning's would be most.
POLICIES: dict[Mode, Policy] = {
    "surrogate": Policy(noise=-1.0, rounds=1 << 30),
    "pool": Policy(noise=-1.0, rounds=1 << 30, batch=16, warm=8, shared=16),
}
BOUNDLESS = 1 << 62


# -- the table ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to search, by what it changes in the full one.

    settings: of the tuner. lessons: does it hear what other workloads taught? heuristic: what it believes before
    anything was measured. deal: who gets the next trials.
    """

    name: str
    says: str
    settings: Settings = Settings()
    lessons: bool = True
    heuristic: Heuristic = heuristic
    deal: Deal = next_round


STRATEGIES = (
    Strategy("evolution",      "the full search"),
    Strategy("no-crossover",   "every child has one parent",                Settings(strategy="no crossover")),
    Strategy("no-model",       "children of the fastest, none preferred",   Settings(strategy="no model")),
    Strategy("no-lessons",     "nothing heard of other workloads",          lessons=False),
    Strategy("no-prior",       "neither lessons nor the heuristic",         lessons=False, heuristic=indifferent),
    Strategy("no-exploration", "no random share after the first batch",     Settings(epsilon=0.0)),
    Strategy("random",         "uniformly random programs",                 Settings(strategy="random only")),
    Strategy("no-budget-rule", "workloads in turns, not by their gain",     deal=round_robin),
)  # fmt: skip


class UnknownStrategy(ValueError):
    """The message lists those that exist."""


def strategies(names: Sequence[str]) -> list[Strategy]:
    """The rows of these names, each once, in the order given. Raises UnknownStrategy."""
    table = {s.name: s for s in STRATEGIES}
    unknown = [n for n in names if n not in table]
    if unknown or not names:
        wrong = f"no strategy is called {unknown[0]!r}" if unknown else "no strategy is named"
        raise UnknownStrategy(f"{wrong}; there are {', '.join(table)}")
    return [table[n] for n in dict.fromkeys(names)]


def effective(strategy: Strategy, mode: Mode, workloads: int) -> Strategy:
    """The strategy without what cannot matter here; two that are equal then need one replay.

    Over a pool the programs are ranked, not bred, so that crossover does nothing, except where no model ranks them.
    One workload has the budget to itself, whatever the rule. Random programs hear no lesson and prefer nothing.
    """
    settings = strategy.settings
    if mode == "pool":
        kept = "search" if settings.strategy == "no crossover" else settings.strategy
        settings = replace(settings, strategy=kept, exhaustive=BOUNDLESS)
    deaf = settings.strategy in ("random only", "no model")
    return replace(
        strategy,
        name="",
        says="",
        settings=settings,
        lessons=strategy.lessons and not deaf,
        deal=strategy.deal if workloads > 1 else next_round,
    )


# -- the pool -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pool(Space):
    """A space in which nothing exists but the recorded programs, one population a sketch."""

    recorded: tuple[Population, ...]

    @property
    def size(self) -> int:
        return sum(len(p) for p in self.recorded)

    @cached_property
    def everything(self) -> tuple[Population, ...]:
        return self.recorded


def pool(space: Space, told: Known) -> Pool:
    """A tuner of it ranks what was recorded; what it breeds is valid only where it was recorded."""
    recorded = tuple(p.take(first_of_each(space.prints(p))) for p in gathered(space, told.proposals))
    prints = {id(p.sketch): space.prints(p) for p in recorded}

    def valid(population: Population, target: Target) -> np.ndarray:
        return np.isin(space.prints(population), prints[id(population.sketch)])

    return Pool(space.keys, space.sketches, space.target, valid, space.canonical, space.features, no_cores, recorded)


def no_cores(_sketch: Sketch, _target: Target) -> tuple[Core, ...]:
    """Nothing is drawn together: everything is listed."""
    return ()


# -- the surrogate ------------------------------------------------------------------------------------------------

# Length scales in typical distances between rows; noise over the variance of what is to be explained.
LENGTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
NOISES = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
FEWEST, MOST = 8, 2048  # rows: fewer say nothing, the time grows with their cube
EXPLORED = 4  # random programs that are enough to say what a random one takes


@dataclass(frozen=True, slots=True)
class Held:
    """How well each row is guessed from all the others.

    rank: Spearman's correlation of guessed and recorded seconds, None when they are all alike. error: median relative
    error of the seconds.
    """

    rows: int
    rank: float | None
    error: float


@dataclass(frozen=True)
class Surrogate:
    """Seconds of any program from its features: Gaussian process regression of log(seconds) with a Matern 3/2 kernel
    (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2 and 4.2.1).

    Not the trees that the strategies learn with, which would be judged by their like. Far from every row it says what
    random programs take. centre, scale: of the used columns. rows: float64 (n x used), standardised. failed: the same
    of programs without a time: what is nearest to one of those fails.
    """

    used: np.ndarray
    centre: np.ndarray
    scale: np.ndarray
    rows: np.ndarray
    failed: np.ndarray
    weights: np.ndarray
    length: float
    mean: float
    held: Held

    def seconds(self, features: np.ndarray) -> np.ndarray:
        """Features (n x width) -> float64 (n), NaN: fails."""
        points = (features[:, self.used].astype(np.float64) - self.centre) / self.scale
        away = distances(points, self.rows)
        said = np.exp(self.mean + matern(away / self.length) @ self.weights)
        if not len(self.failed):
            return np.asarray(said)
        return np.where(distances(points, self.failed).min(axis=1) < away.min(axis=1), np.nan, said)


class TooFewRows(ValueError):
    """Nothing can be fitted to so few timed programs."""


def fit_surrogate(features: np.ndarray, seconds: np.ndarray, random: np.ndarray) -> Surrogate:
    """Features float32 (n x width), seconds float64 (n, NaN: failed), random: bool (n), drawn uniformly. Raises
    TooFewRows.

    Length and noise are those with the smallest error of guessing each row from all others, which has a closed form:
    residual = weight / diagonal of the inverse (section 5.4.2). More than MOST rows are thinned evenly.
    """
    keep = np.unique(np.linspace(0, len(seconds) - 1, min(len(seconds), MOST)).astype(np.int64))
    features, seconds, random = features[keep].astype(np.float64), seconds[keep], random[keep]
    timed = np.isfinite(seconds)
    if timed.sum() < FEWEST:
        raise TooFewRows(f"{int(timed.sum())} timed programs; a surrogate needs at least {FEWEST}")
    used = np.flatnonzero(features.std(axis=0) > 1e-9)
    centre, scale = features[:, used].mean(axis=0), features[:, used].std(axis=0)
    points = (features[:, used] - centre) / scale
    logs = np.log(seconds[timed])
    drawn = random[timed] if random[timed].sum() >= EXPLORED else np.ones(len(logs), dtype=bool)
    mean = float(logs[drawn].mean())
    length, weights, residuals = _fitted(distances(points[timed], points[timed]), logs - mean)
    held = Held(len(logs), spearman(logs - residuals, logs), float(np.median(np.abs(np.expm1(-residuals)))))
    return Surrogate(used, centre, scale, points[timed], points[~timed], weights, length, mean, held)


def _fitted(away: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Distances (n x n), values (n) -> length, weights (n) and the residuals (n) of guessing each from the others."""
    found: list[tuple[float, float, np.ndarray, np.ndarray]] = []
    for length in LENGTHS:
        values, vectors = np.linalg.eigh(matern(away / length))
        values, turned = np.maximum(values, 0.0), vectors.T @ y
        for noise in NOISES:
            weights = vectors @ (turned / (values + noise))
            residuals = weights / (vectors**2 @ (1.0 / (values + noise)))
            found.append((float(np.mean(residuals**2)), length, weights, residuals))
    _, length, weights, residuals = min(found, key=lambda f: f[0])
    return length, weights, residuals


def distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(n x w), (m x w) -> (n x m): root of the mean squared difference a column."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None] - 2 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0) / max(left.shape[1], 1)))


def matern(x: np.ndarray) -> np.ndarray:
    """Of smoothness 3/2 and variance 1, at distances in units of the length."""
    return np.asarray((1 + np.sqrt(3.0) * x) * np.exp(-np.sqrt(3.0) * x))


# -- answers ------------------------------------------------------------------------------------------------------


def recorded_seconds(told: Known) -> dict[str, float | None]:
    """Key -> recorded seconds; None: failed."""
    times = (float(t) if np.isfinite(t) else None for t in told.seconds)
    return {p.key: t for p, t in zip(told.proposals, times, strict=True)}


def exactly(recorded: Mapping[str, float | None]) -> Answer:
    """Answers for what was recorded; KeyError for anything else."""
    return lambda proposals: [recorded[p.key] for p in proposals]


def smoothly(space: Space, surrogate: Surrogate, recorded: Mapping[str, float | None]) -> Answer:
    """Answers for every program of the space: exactly where it was recorded, else by the surrogate."""

    def answer(proposals: Sequence[Proposal]) -> list[float | None]:
        guessed: dict[str, float] = {}
        for name, population in zip(space.keys, gathered(space, proposals), strict=True):
            if len(population):
                said = surrogate.seconds(space.features(population, space.target)).tolist()
                guessed |= zip((p.key for p in proposals if p.sketch_key == name), said, strict=True)
        said_of = {k: t if np.isfinite(t) else None for k, t in guessed.items()} | dict(recorded)
        return [said_of[p.key] for p in proposals]

    return answer


# -- what came of it ----------------------------------------------------------------------------------------------


def milestones(trials: int) -> list[int]:
    """16, 32, 64, ... and the last."""
    powers = [1 << n for n in range(4, trials.bit_length()) if 1 << n < trials]
    return [*powers, trials]


def best_after(latency: np.ndarray, trials: int) -> float:
    """Seconds after so many trials, NaN while something has no time; the last ones stay when no more were made."""
    return float(latency[min(trials, len(latency)) - 1]) if len(latency) else float("nan")


def trials_to(latency: np.ndarray, seconds: float) -> float:
    """Trials until it was as fast as that; infinite when it never was. Latency never rises (NaN: not yet)."""
    there = np.flatnonzero(latency <= seconds)
    return float(there[0] + 1) if len(there) else float("inf")


def results(proposals: Sequence[Proposal], seconds: Sequence[float | None]) -> list[Result]:
    return [Result(p, s) for p, s in zip(proposals, seconds, strict=True)]
