"""What a tuning brought: the model before it, and the report after it."""

from __future__ import annotations

from typing import Any

from codegen.oracle import OracleError
from codegen.toolchain import Binary
from data.query import run as question
from tasks.build import build_batch
from tasks.deploy import guess
from tasks.lane import CHECK_SEED, Lane, middle
from tasks.session import Session

Report = dict[str, Any]  # JSON-able


def baseline(session: Session) -> dict[str, float | None]:
    """Workload key -> seconds of the program that runs when nothing was ever measured; None: it has no valid one.

    Measured like the finalists, so that before and after may be compared. A workload without a right answer to
    compare with is taken out here, with the reason.
    """
    lanes = [lane for lane in session.lanes.values() if _has_case(session, lane)]
    wanted = [(f"default-{lane.workload.key}", guess(lane.space)) for lane in lanes]
    built = build_batch(session.bench, wanted)
    return {lane.workload.key: _seconds(session, lane, b) for lane, b in zip(lanes, built, strict=True)}


def _has_case(session: Session, lane: Lane) -> bool:
    try:
        lane.case = lane.case or session.bench.oracle.case(lane.workload.dag, CHECK_SEED)
    except OracleError as error:
        lane.broken = str(error)
    return not lane.broken


def _seconds(session: Session, lane: Lane, built: object) -> float | None:
    if not isinstance(built, Binary) or lane.case is None:
        return None
    (timing,) = session.bench.runner.confirm([built], lane.case, seconds=session.request.final_seconds)
    return middle(timing) if timing.verified else None


def latency(session: Session, seconds: dict[str, float | None]) -> float | None:
    """Of the model: the weighted sum over its workloads, in seconds; None while one has no time."""
    return session.latency(lambda lane: seconds.get(lane.workload.key))


def best_latency(session: Session) -> float | None:
    return session.latency(lambda lane: lane.best_seconds)


def report(session: Session, before: dict[str, float | None], state: str) -> Report:
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
        "latency_before_seconds": latency(session, before), "latency_after_seconds": best_latency(session),
        "verified": all(lane.confirmed_seconds is not None for lane in session.lanes.values()),
        "programs_per_second": measured / spent if spent else None, **stages,
        "errors": {row["kind"]: row["count"] for row in errors},
        "peak_gflops": session.bench.peak_gflops,
        "workloads": [_workload(session, lane, before, trials) for lane in session.lanes.values()],
    }  # fmt: skip


def _workload(session: Session, lane: Lane, before: dict[str, float | None], trials: dict[str, int]) -> Report:
    w, seconds = lane.workload, lane.best_seconds
    gflops = w.dag.flops / seconds / 1e9 if seconds else None
    return {
        "key": w.key, "name": w.name, "weight": w.weight, "flops": w.dag.flops, "default_seconds": before.get(w.key),
        "best_seconds": seconds, "confirmed": lane.confirmed_seconds is not None,
        "program": lane.incumbent.key if lane.incumbent else None, "gflops": gflops,
        "percent_of_peak": 100 * gflops / session.bench.peak_gflops if gflops else None,
        "percent_of_roof": 100 * lane.roofline_seconds / seconds if seconds else None,
        "trials": trials.get(w.key, 0), "broken": lane.broken or None,
    }  # fmt: skip
