"""What a tuning brought: the model before it, and the report after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codegen.oracle import OracleError
from codegen.toolchain import Binary
from data.query import run as question
from ir.schedule import Program
from ir.timing import Failure
from tasks.build import build_batch
from tasks.lane import CHECK_SEED, Lane, middle
from tasks.session import Session

Report = dict[str, Any]  # JSON-able


def baseline(session: Session) -> None:
    """Time the program of every workload that runs when nothing was ever measured.

    A workload without a right answer to compare with is taken out here, with the reason.
    """
    lanes = [lane for lane in session.lanes.values() if _has_case(session, lane)]
    built = build_batch(session.bench, [_default(lane) for lane in lanes])
    for lane, b in zip(lanes, built, strict=True):
        lane.default_seconds = _side_by_side(session, lane, [b])[0]
    _forget(built)


def compare(session: Session) -> None:
    """Time each confirmed program and its default in turns: a clock drifts by more than 10 % during a tuning.

    The confirmed time stays; the default's becomes that time times their ratio.
    """
    lanes = [lane for lane in session.lanes.values() if lane.incumbent and lane.confirmed_seconds]
    found = [(lane.incumbent.key, lane.program(lane.incumbent.proposal)) for lane in lanes if lane.incumbent]
    built = build_batch(session.bench, [*map(_default, lanes), *found])
    for i, lane in enumerate(lanes):
        default, best = _side_by_side(session, lane, [built[i], built[i + len(lanes)]])
        if default and best and lane.confirmed_seconds:
            lane.default_seconds = lane.confirmed_seconds * default / best
    _forget(built)


def _default(lane: Lane) -> tuple[str, Program]:
    return f"default-{lane.workload.key}", lane.program(lane.default)


def _has_case(session: Session, lane: Lane) -> bool:
    try:
        lane.case = lane.case or session.bench.oracle.case(lane.workload.dag, CHECK_SEED)
    except OracleError as error:
        lane.broken = str(error)
    return not lane.broken


def _side_by_side(session: Session, lane: Lane, built: Sequence[Binary | Failure]) -> list[float | None]:
    """Medians over shuffled rounds, as of finalists; None for what does not run or is wrong."""
    ready = [b for b in built if isinstance(b, Binary)]
    if lane.case is None or not ready:
        return [None] * len(built)
    timings = iter(session.bench.runner.confirm(ready, lane.case, seconds=session.request.final_seconds))
    measured = [next(timings) if isinstance(b, Binary) else None for b in built]
    return [middle(t) if t is not None and t.verified else None for t in measured]


def _forget(built: Sequence[Binary | Failure]) -> None:
    for path in {b.path for b in built if isinstance(b, Binary)}:
        path.unlink(missing_ok=True)


def untuned_latency(session: Session) -> float | None:
    return session.latency(lambda lane: lane.default_seconds)


def best_latency(session: Session) -> float | None:
    return session.latency(lambda lane: lane.best_seconds)


def report(session: Session, state: str) -> Report:
    """Counts and stage times are the store's, so those of a run that was resumed are whole."""
    key = session.run.key
    summary = question(session.store, "run_summary", run=key).to_pylist()[0]
    trials = {row["workload"]: row["measured"] for row in question(session.store, "tuning_cost", run=key).to_pylist()}
    measured = summary["measured"] - summary["confirmed"]
    stages = {f"{name}_seconds": summary[f"{name}_seconds"] or 0.0 for name in ("search", "train", "build", "measure")}
    spent = sum(stages.values())
    errors = question(session.store, "errors", run=key).to_pylist()
    return {
        "model": session.run.model, "target": session.bench.target.key, "threads": session.bench.target.threads,
        "state": state, "run": key, "store": str(session.store.root), "seed": session.run.seed,
        "trials": measured, "trials_allowed": session.request.trials, "rounds": summary["rounds"],
        "seconds": session.elapsed,
        "latency_before_seconds": untuned_latency(session), "latency_after_seconds": best_latency(session),
        "verified": all(lane.confirmed_seconds is not None for lane in session.lanes.values()),
        "programs_per_second": measured / spent if spent else None, **stages,
        "errors": {row["kind"]: row["count"] for row in errors},
        "peak_gflops": session.bench.peak_gflops,
        "workloads": [_workload(session, lane, trials) for lane in session.lanes.values()],
    }  # fmt: skip


def _workload(session: Session, lane: Lane, trials: dict[str, int]) -> Report:
    w, seconds = lane.workload, lane.best_seconds
    gflops = w.dag.flops / seconds / 1e9 if seconds else None
    return {
        "key": w.key, "name": w.name, "weight": w.weight, "flops": w.dag.flops, "default_seconds": lane.default_seconds,
        "best_seconds": seconds, "confirmed": lane.confirmed_seconds is not None,
        "program": lane.incumbent.key if lane.incumbent else None, "gflops": gflops,
        "percent_of_peak": 100 * gflops / session.bench.peak_gflops if gflops else None,
        "percent_of_roof": 100 * lane.roofline_seconds / seconds if seconds else None,
        "trials": trials.get(w.key, 0), "broken": lane.broken or None,
    }  # fmt: skip
