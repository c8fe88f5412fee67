"""One tuning from start to end, as verbs: open, grant, turn, confirm, close. The order is `flows.tuning`'s."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from uuid import uuid4

from codegen.toolchain import Binary
from data.query import connect
from data.query import run as question
from data.store import Store
from ir.timing import Failure, Timing
from ir.workload import Workload
from search.budget import Grant, Policy, next_round
from search.cost_model import Rows
from search.tuner import Proposal, Result, Settings, Tuner
from tasks import record
from tasks.lane import (
    Incumbent,
    Lane,
    Round,
    build,
    far_bytes,
    finalists,
    learn,
    measure,
    middle,
    propose,
    scored,
)
from tasks.lessons import elsewhere, joined, learnt
from tasks.prior import prior
from tasks.record import Run, history
from tasks.space import SCHEMA, least_flops, space_of
from tasks.workbench import Workbench, workbench


@dataclass(frozen=True, slots=True)
class Request:
    """What to tune and how much.

    store: folder of the store; artefacts lie beside it, in `work`. trials, budget_seconds: whichever is spent first.
    early_stop: stop a workload whose best no longer moves beyond the noise. finalists, final_seconds: programs a
    workload in the last round, and seconds of each of their samples. The defaults of the search name their sources
    in `search.tuner.Settings` and `search.budget.Policy`.
    """

    model: str
    store: Path
    trials: int = 1000
    budget_seconds: float | None = None
    threads: int = 1
    seed: int = 0
    early_stop: bool = True
    finalists: int = 12
    final_seconds: float = 0.02
    search: Settings = Settings()
    policy: Policy = Policy()

    @property
    def work(self) -> Path:
        return self.store.parent / "work"


@dataclass
class Session:
    """A tuning under way in this process. `lanes` in the order of the model's workloads."""

    request: Request
    run: Run
    store: Store
    bench: Workbench
    lanes: dict[str, Lane]
    rounds: int = 0
    spent: int = 0
    started: float = field(default_factory=monotonic)
    elsewhere: list[Rows] = field(default_factory=list)  # what earlier models taught

    @property
    def elapsed(self) -> float:
        return monotonic() - self.started

    @property
    def trials_left(self) -> int:
        return max(self.request.trials - self.spent, 0)

    def latency(self, seconds: Callable[[Lane], float | None]) -> float | None:
        """Weighted sum over the workloads; None while one of them has no time."""
        parts = [seconds(lane) for lane in self.lanes.values() if not lane.broken]
        if any(p is None for p in parts) or not parts:
            return None
        return sum(lane.workload.weight * (seconds(lane) or 0.0) for lane in self.lanes.values() if not lane.broken)


@contextmanager
def opened(
    request: Request, model: str, workloads: Sequence[Workload], version: str, environ: Mapping[str, str]
) -> Iterator[Session]:
    """Bench, store, lanes with their history, and the run: an unfinished one of the same request goes on."""
    store = Store.open(request.store)
    bench = workbench(request.work, request.threads, environ)
    try:
        with _run_of(request, model, store, bench) as (run, spent):
            lanes = lanes_of(workloads, bench, store, request)
            record.record_device(store, bench)
            record.record_workloads(store, model, list(lanes.values()))
            record.record_run(store, run, bench, version, "running", None, None)
            session = Session(request, run, store, bench, lanes, rounds=_rounds(store, run), spent=spent)
            session.elsewhere = elsewhere(store, bench, lanes)
            yield session
    finally:
        bench.runner.close()


def lanes_of(workloads: Sequence[Workload], bench: Workbench, store: Store, request: Request) -> dict[str, Lane]:
    with connect(store) as source:
        champions = record.champions(source, bench)
        lanes = {
            w.key: lane_of(w, bench, history(source, w.key, bench), champions.get(w.key), request) for w in workloads
        }
    for lane in lanes.values():
        lane.far_bytes = far_bytes(lanes.values(), lane)
    return lanes


def lane_of(
    workload: Workload,
    bench: Workbench,
    past: Sequence[Result],
    champion: Proposal | None,
    request: Request,
) -> Lane:
    """A workload with all that the store knows of it."""
    space = space_of(workload, bench.target)
    tuner = Tuner(space, SCHEMA, request.search, request.seed, past, heuristic=prior(bench.target))
    roofline = bench.roofline_seconds(least_flops(space), workload.dag.bytes)
    known = champion if champion is not None and champion.sketch_key in space.keys else None
    lane = Lane(workload, space, tuner, roofline, champion=known)
    lane.taught = learnt(workload.key, space, past) if past else None
    best = tuner.finalists(1)
    if best and tuner.best_seconds:
        lane.incumbent = Incumbent(best[0].key, tuner.best_seconds, best[0])
    return lane


@contextmanager
def _run_of(request: Request, model: str, store: Store, bench: Workbench) -> Iterator[tuple[Run, int]]:
    """The run to work on, locked: a killed run of the same request is continued, a live one is left alone."""
    settings = _settings(request)
    locks = request.store / "locks"
    locks.mkdir(exist_ok=True)
    for row in question(store, "run_summary", run=None).to_pylist():
        same = (row["model"], row["seed"], row["settings"], row["target"]) == (
            model,
            request.seed,
            settings,
            bench.target.key,
        )
        if row["state"] == "running" and same:
            handle = _lock(locks / row["run"])
            if handle is not None:
                run = Run(
                    row["run"], model, request.seed, request.trials, request.budget_seconds, row["started"], settings
                )
                yield run, int(row["measured"] - row["confirmed"])
                os.close(handle)
                return
    key = blake2b(uuid4().bytes, digest_size=6).hexdigest()
    handle = _lock(locks / key)
    yield Run(key, model, request.seed, request.trials, request.budget_seconds, datetime.now(UTC), settings), 0
    if handle is not None:
        os.close(handle)


def _settings(request: Request) -> str:
    """The same text for the same request in every process: a function by its name, never by its address."""
    plain = asdict(replace(request, store=Path("store")))
    return json.dumps(plain, default=lambda thing: getattr(thing, "__name__", str(thing)), sort_keys=True)


def _lock(path: Path) -> int | None:
    """An exclusive lock that dies with this process; None when another one holds it."""
    handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _rounds(store: Store, run: Run) -> int:
    rows = question(store, "run_summary", run=run.key).to_pylist()
    return int(rows[0]["rounds"] or 0) if rows else 0


# --- a round, stage by stage ------------------------------------------------------------


@dataclass
class Turn:
    """A round in the making: each stage adds what it found."""

    lane: Lane
    grant: Grant
    proposals: list[Proposal] = field(default_factory=list)
    built: list[Binary | Failure] = field(default_factory=list)
    round: Round | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def grant(session: Session) -> Turn | None:
    """Who goes next; None when trials, time or hope are used up."""
    budget = session.request.budget_seconds
    if budget is not None and session.elapsed >= budget:
        return None
    policy = session.request.policy
    if not session.request.early_stop:
        policy = replace(policy, noise=-1.0, rounds=1 << 30)  # nothing is ever good enough
    open_lanes = [lane.progress() for lane in session.lanes.values() if not lane.broken]
    found = next_round(open_lanes, session.trials_left, policy)
    return Turn(session.lanes[found.key], found) if found else None


def propose_turn(session: Session, turn: Turn) -> Turn:
    """Programs to measure. The model learns from the other workloads too, as far as they have come."""
    beside = [lane.taught for lane in session.lanes.values() if lane is not turn.lane and lane.taught is not None]
    turn.lane.tuner.hear(joined([*beside, *session.elsewhere]))
    turn.proposals, turn.seconds["train"], turn.seconds["search"] = propose(turn.lane, turn.grant.trials)
    if not turn.proposals:
        turn.lane.broken = "no valid program could be sampled" if turn.lane.incumbent is None else turn.lane.broken
    return turn


def build_turn(session: Session, turn: Turn) -> Turn:
    start = monotonic()
    turn.built = build(turn.lane, session.bench, turn.proposals)
    turn.seconds["build"] = monotonic() - start
    return turn


def measure_turn(session: Session, turn: Turn) -> Turn:
    """Verify and time; a workload without a right answer to compare with is taken out, with the reason."""
    start = monotonic()
    lane = turn.lane
    lane.far_bytes = far_bytes(session.lanes.values(), lane)
    batch = measure(lane, session.bench, turn.built, turn.proposals)
    turn.round = Round(
        lane.workload.key, session.rounds, tuple(turn.proposals), tuple(batch.timings), tuple(scored(lane, batch)),
        batch.peak_gflops, batch.incumbent_seconds, turn.seconds["search"], turn.seconds["train"],
        turn.seconds["build"], monotonic() - start,
    )  # fmt: skip
    return turn


def record_turn(session: Session, turn: Turn) -> Turn:
    """Learn, then write: what is not written was not learnt when a new process starts."""
    assert turn.round is not None
    learn(turn.lane, turn.round, turn.built)
    turn.lane.taught = learnt(turn.lane.workload.key, turn.lane.space, turn.lane.tuner.state.history)
    record.record_round(session.store, session.run, session.bench, turn.lane, turn.round)
    session.rounds += 1
    session.spent += len(turn.proposals)
    _forget(turn, session.bench)
    return turn


def _forget(turn: Turn, bench: Workbench) -> None:
    """Delete shared objects that no incumbent needs."""
    keep = {turn.lane.incumbent.binary.path} if turn.lane.incumbent and turn.lane.incumbent.binary else set()
    for path in {b.path for b in turn.built if isinstance(b, Binary)} - keep:
        path.unlink(missing_ok=True)


def confirm(session: Session, lane: Lane) -> list[tuple[Proposal, Timing]]:
    """The finalists' round of one workload; its figures are the ones reported."""
    lane.far_bytes = far_bytes(session.lanes.values(), lane)
    found = finalists(lane, session.bench, session.request.finalists, session.request.final_seconds)
    if found:
        record.record_finalists(session.store, session.run, session.bench, lane, found, session.rounds)
        best, timing = found[0]
        if lane.champion is None or best.key != lane.champion.key:
            record.record_source(session.store, session.bench, lane.program(best), best.key, best.sketch_key)
        lane.confirmed_seconds = middle(timing)
        lane.incumbent = Incumbent(best.key, middle(timing), best)
    return found


def close(session: Session, version: str, state: str, before: float | None, after: float | None) -> None:
    record.record_run(session.store, session.run, session.bench, version, state, before, after)
