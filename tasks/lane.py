"""One workload under tuning: its space, what is known, the program to beat, and the verbs of a round.

propose -> build -> measure -> (record) -> learn
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from time import perf_counter

import numpy as np

from codegen.oracle import Case
from codegen.runner import Batch
from codegen.toolchain import Binary
from ir.schedule import Program
from ir.timing import Failure, Timing
from ir.workload import Workload
from search.budget import Progress
from search.cost_model import Rows
from search.evolve import Space, program_keys
from search.tuner import Proposal, Result, Tuner
from tasks.build import build_batch
from tasks.deploy import guess
from tasks.workbench import Workbench

HEATS = ((2, 1.0), (3, 0.4))  # of the finalists' round: rounds, and the share of the finalists that runs in them
FEWEST = 4  # finalists that run to the end
PROMISING = 1.3  # times the fastest of the batch: what deserves a second look
CHECK_SEED = 20240  # inputs of the oracle's case: the same for every program of a workload


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The program to beat. seconds: drift-corrected, see `Round.scores`. binary: None until it is built here.

    untried: nobody has measured it again since it was chosen, the luckiest of a batch. before: what the former one took,
    known and on its visits in that batch; None: it is the first.
    """

    key: str
    seconds: float
    proposal: Proposal
    binary: Binary | None = None
    untried: bool = False
    before: tuple[float, float] | None = None

    def tried(self, visits: float) -> Incumbent:
        """What it takes once it was measured again, `visits` seconds. The best of many noisy ratios is a lucky one, and
        a chain of such would sink by itself, a quarter each round on a machine that others share; so the ratio of two
        programs is that of their visits, a round apart. It is no better than it was thought to be."""
        if not self.untried:
            return self
        known, then = self.before or (visits, visits)
        return replace(self, seconds=max(self.seconds, known * visits / then), untried=False, before=None)


@dataclass(frozen=True, slots=True)
class Round:
    """What one round of one workload brought. `scores`: seconds a call chained through the incumbent, None: failed."""

    workload: str
    number: int
    proposals: tuple[Proposal, ...]
    timings: tuple[Timing, ...]
    scores: tuple[float | None, ...]
    peak_gflops: float | None
    incumbent_seconds: float | None
    search_seconds: float
    train_seconds: float
    build_seconds: float
    measure_seconds: float


@dataclass
class Lane:
    """State of one workload in this process; everything in it follows from the store."""

    workload: Workload
    space: Space
    tuner: Tuner
    roofline_seconds: float
    far_bytes: int = 0  # constants that the model reads between two calls of this workload
    champion: Proposal | None = None  # of the last finalists' round that the store knows
    incumbent: Incumbent | None = None
    case: Case | None = None
    default_seconds: float | None = None  # of the program that runs when nothing was ever measured
    confirmed_seconds: float | None = None
    errors: dict[str, int] = field(default_factory=dict)
    broken: str = ""  # why this workload cannot be tuned at all
    taught: Rows | None = None  # what its programs teach other workloads

    def program(self, proposal: Proposal) -> Program:
        return Program(self.space.sketches[self.space.keys.index(proposal.sketch_key)], proposal.choices)

    @property
    def constant_bytes(self) -> int:
        """What one call reads of constants: as the program to beat holds them (a transform may need several times the
        room), else as the workload has them."""
        binary = self.incumbent.binary if self.incumbent else None
        if binary is None:
            return constant_bytes(self.workload)
        return sum(prod(a.shape) * np.dtype(a.dtype).itemsize for a in binary.kernel.arguments if a.role == "constant")

    @cached_property
    def default(self) -> Proposal:
        """What runs when nothing was ever measured: the first to be proposed, so that tuning cannot end behind it."""
        program = guess(self.space)
        sketch = next(i for i, s in enumerate(self.space.sketches) if s is program.sketch)
        [key] = program_keys(self.space, sketch, np.array([program.choices], dtype=np.int32).reshape(1, -1))
        return Proposal(key, self.space.keys[sketch], program.choices, 0, "preferred")

    def progress(self) -> Progress:
        w = self.workload
        return self.tuner.progress(w.key, w.weight, self.roofline_seconds, w.dag.flops, w.name.split("_")[0])

    @property
    def best_seconds(self) -> float | None:
        return self.confirmed_seconds or (self.incumbent.seconds if self.incumbent else None)


def constant_bytes(workload: Workload) -> int:
    """Of the constants that one call reads."""
    return sum(prod(i.shape) * np.dtype(i.dtype).itemsize for i in workload.dag.inputs if i.constant)


def far_bytes(lanes: Iterable[Lane], lane: Lane) -> int:
    """Constants that the model reads between two calls of one of the lane's workloads."""
    return sum(other.workload.weight * other.constant_bytes for other in lanes) - lane.constant_bytes


def propose(lane: Lane, n: int) -> tuple[list[Proposal], float, float]:
    """Proposals, and the seconds it took to train the model and to search."""
    start = perf_counter()
    _ = lane.tuner.model
    trained = perf_counter()
    found = lane.tuner.ask(n)
    if found and not lane.tuner.state.history:
        default = lane.default
        found = [default, *(p for p in found if p.key != default.key)][:n]
    return found, trained - start, perf_counter() - trained


def build(lane: Lane, bench: Workbench, proposals: Sequence[Proposal]) -> list[Binary | Failure]:
    """Binaries in the order of the proposals. An incumbent known from the store alone is built with them."""
    wanted = [(p.key, lane.program(p)) for p in proposals]
    beat = lane.incumbent
    rebuild = beat is not None and beat.binary is None
    if beat is not None and rebuild:
        wanted.append((beat.key, lane.program(beat.proposal)))
    built = build_batch(bench, wanted)
    if beat is not None and rebuild:
        again = built.pop()
        lane.incumbent = Incumbent(beat.key, beat.seconds, beat.proposal, again) if isinstance(again, Binary) else None
    return built


def measure(lane: Lane, bench: Workbench, built: Sequence[Binary | Failure], proposals: Sequence[Proposal]) -> Batch:
    """Timings in the order of the proposals; what was not built keeps its failure."""
    if lane.case is None:
        lane.case = bench.oracle.case(lane.workload.dag, CHECK_SEED)
    binaries = [b for b in built if isinstance(b, Binary)]
    beat = lane.incumbent.binary if lane.incumbent else None
    batch = _twice(lane, bench, binaries, beat) if binaries else Batch([])
    answers = iter(batch.timings)
    timings = [
        next(answers) if isinstance(b, Binary) else Timing(p.key, failure=b)
        for b, p in zip(built, proposals, strict=True)
    ]
    return Batch(timings, batch.peak_gflops, batch.incumbent_seconds)


def _twice(lane: Lane, bench: Workbench, binaries: Sequence[Binary], beat: Binary | None) -> Batch:
    """Every program once, the promising ones that something disturbed again: a burst of other load on the machine
    lasts longer than a program's turn, and would bury a fast one for good."""
    assert lane.case is not None
    first = bench.runner.measure(binaries, lane.case, beat, lane.far_bytes)
    times = [t.best for t in first.timings if t.best is not None]
    if not times:
        return first
    doubtful = [(i, t.best) for i, t in enumerate(first.timings) if t.best is not None and not t.undisturbed]
    again = [i for i, seconds in doubtful if seconds <= PROMISING * min(times)]
    if not again:
        return first
    second = bench.runner.measure([binaries[i] for i in again], lane.case, beat, lane.far_bytes)
    timings = list(first.timings)
    for i, t in zip(again, second.timings, strict=True):
        timings[i] = _better(timings[i], t)
    bases = [b for b in (first.incumbent_seconds, second.incumbent_seconds) if b is not None]
    return Batch(timings, first.peak_gflops, min(bases) if bases else None)


def _better(one: Timing, other: Timing) -> Timing:
    """Both looks at a program: all samples, the better ratio; a failure in either stays."""
    if other.failure is not None:
        return other
    ratios = [r for r in (one.relative, other.relative) if r is not None]
    return replace(
        one,
        warm=(*one.warm, *other.warm),
        cold=(*one.cold, *other.cold),
        relative=min(ratios) if ratios else None,
        measure_seconds=one.measure_seconds + other.measure_seconds,
    )


def scored(lane: Lane, batch: Batch) -> list[float | None]:
    """Seconds of each program as if the machine had always run as in the first batch: the ratio to the incumbent of
    the same batch times what the incumbent is known to take."""
    if lane.incumbent and batch.incumbent_seconds:
        lane.incumbent = lane.incumbent.tried(batch.incumbent_seconds)
    base = lane.incumbent.seconds if lane.incumbent and batch.incumbent_seconds else None
    return [t.relative * base if t.relative is not None and base else t.best for t in batch.timings]


def learn(lane: Lane, turn: Round, built: Sequence[Binary | Failure]) -> None:
    """The tuner hears the results; the fastest program becomes the one to beat."""
    pairs = list(zip(turn.proposals, turn.scores, strict=True))
    lane.tuner.tell([Result(p, s) for p, s in pairs])
    for t in turn.timings:
        if t.failure is not None:
            lane.errors[t.failure.kind] = lane.errors.get(t.failure.kind, 0) + 1
    timed = [(s, i) for i, (_, s) in enumerate(pairs) if s is not None]
    if not timed:
        return
    seconds, i = min(timed)
    binary = built[i]
    if isinstance(binary, Binary) and (lane.incumbent is None or seconds < lane.incumbent.seconds):
        former, visits = lane.incumbent, turn.incumbent_seconds
        before = (former.seconds, visits) if former is not None and visits else None
        lane.incumbent = Incumbent(binary.key, seconds, turn.proposals[i], binary, True, before)


def finalists(lane: Lane, bench: Workbench, n: int, seconds: float) -> list[tuple[Proposal, Timing]]:
    """The n fastest, rebuilt and measured side by side in shuffled rounds; fastest first by the median of the rounds.

    The best of many noisy minima is a lucky one: only this round's figures are reported. The default and the last
    champion take part, so that the winner of the latest round is the best program known.
    """
    proposals = lane.tuner.finalists(n)
    if not proposals:
        return []
    for p in (lane.default, lane.champion):
        if p is not None and p.key not in {q.key for q in proposals}:
            proposals.append(p)
    built = build_batch(bench, [(p.key, lane.program(p)) for p in proposals])
    ready = [(p, b) for p, b in zip(proposals, built, strict=True) if isinstance(b, Binary)]
    if lane.case is None:
        lane.case = bench.oracle.case(lane.workload.dag, CHECK_SEED)
    found = {p.key: (p, b, Timing(p.key)) for p, b in ready}
    for number, (rounds, share) in enumerate(HEATS):
        running = sorted(found.values(), key=lambda x: middle(x[2]))[: max(round(share * len(found)), FEWEST)]
        timings = bench.runner.confirm(
            [b for _, b, _ in running], lane.case, rounds, seconds, seed=number, far_bytes=lane.far_bytes
        )
        found |= {p.key: (p, b, _joined(t, new)) for (p, b, t), new in zip(running, timings, strict=True)}
    pairs = [(p, t) for p, _, t in found.values() if t.verified and len(t.warm) == sum(r for r, _ in HEATS)]
    return sorted(pairs, key=lambda x: middle(x[1]))


def _joined(one: Timing, other: Timing) -> Timing:
    """The rounds of two heats; a failure in either stays."""
    if other.failure is not None or not one.warm:
        return other
    seconds = one.measure_seconds + other.measure_seconds
    return replace(other, warm=(*one.warm, *other.warm), measure_seconds=seconds)


def middle(timing: Timing) -> float:
    """Median over the rounds of a confirmed timing."""
    ordered = sorted(timing.warm)
    return ordered[len(ordered) // 2] if ordered else float("inf")
