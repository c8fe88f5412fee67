"""What happened, as rows of the store; and back: history for a tuner."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from codegen.c import PRELUDE
from codegen.environment import Environment, environment
from codegen.toolchain import flags
from data.query import Connection
from data.query import run as question
from data.store import Store
from ir.key import dag_text
from ir.schedule import Program
from ir.timing import Timing
from ir.workload import Workload
from search.evolve import Space
from search.tuner import Origin, Proposal, Result
from tasks.build import kernel_of
from tasks.lane import Lane, Round
from tasks.space import sketch_text
from tasks.workbench import Workbench

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """One tuning of one model."""

    key: str
    model: str
    seed: int
    trials: int
    budget_seconds: float | None
    started: datetime
    settings: str


def record_run(
    store: Store, run: Run, bench: Workbench, version: str, state: str, before: float | None, after: float | None
) -> None:
    now = environment(bench.compiler, bench.target, version, bench.runner.harness.path)
    if state == "running":  # the same at the end
        record_environments(store, [now])
    store.append("runs", [{
        "key": run.key, "model": run.model, "target": bench.target.key, "threads": bench.target.threads, "seed": run.seed,
        "trials": run.trials, "budget_seconds": run.budget_seconds, "started": run.started,
        "finished": None if state == "running" else datetime.now(UTC), "state": state, "latency_before": before,
        "latency_after": after, "version": version, "settings": run.settings, "environment": now.key,
    }])  # fmt: skip


def record_environments(store: Store, found: Iterable[Environment]) -> None:
    store.append("environments", [{"key": e.key, **asdict(e)} for e in dict.fromkeys(found)])


def record_device(store: Store, bench: Workbench) -> None:
    m = bench.machine
    sizes = {"l1": m.l1_bytes, "l2": m.l2_bytes, "l3": m.l3_bytes}
    memory = [{"level": k, "bytes": sizes.get(k), "gb_per_second": v} for k, v in m.bandwidth.items()]
    store.append("devices", [{
        "key": m.key, "isa": list(m.features), "vector_bytes": m.vector_bytes, "cores": m.cores,
        "peak_gflops": m.peak_gflops, "memory": memory, "compiler": bench.compiler.version, "measured": datetime.now(UTC),
    }])  # fmt: skip


def record_workloads(store: Store, model: str, lanes: Sequence[Lane]) -> None:
    """Each workload and its sketches, before anything is measured."""
    store.append("workloads", [_workload(lane.workload, lane.space, model) for lane in lanes])
    store.append("sketches", [
        {"key": key, "workload": lane.workload.key, "text": sketch_text(s), "rules": list(s.rules),
         "holes": json.dumps([[h.name, list(h.options)] for h in s.holes])}
        for lane in lanes for key, s in zip(lane.space.keys, lane.space.sketches, strict=True)
    ])  # fmt: skip


def _workload(w: Workload, space: Space, model: str) -> Row:
    def signature(names: Sequence[str]) -> str:
        tensors = [w.dag[n] for n in names]
        return "; ".join(f"{t.name}: {t.dtype}[{', '.join(map(str, t.shape))}]" for t in tensors)

    return {
        "key": w.key, "name": w.name, "dag_text": dag_text(w.dag), "flops": w.dag.flops, "bytes": w.dag.bytes,
        "space_size": float(space.size), "inputs": signature([i.name for i in w.dag.inputs]),
        "outputs": signature(w.dag.outputs), "model": model, "weight": w.weight,
        "origin": [n for nodes in w.origin for n in nodes],
    }  # fmt: skip


def record_round(store: Store, run: Run, bench: Workbench, lane: Lane, turn: Round) -> None:
    """Programs, then measurements, then the round: a kill in between leaves proposals without a time, no more."""
    store.append("programs", [_program(p, run, bench, lane, turn.number) for p in turn.proposals])
    store.append("measurements", [
        _measurement(t, s, run, bench, lane, turn.number, turn.peak_gflops, confirmed=False)
        for t, s in zip(turn.timings, turn.scores, strict=True)
    ])  # fmt: skip
    quality = lane.tuner.quality
    store.append("rounds", [{
        "run": run.key, "round": turn.number, "workload": lane.workload.key, "proposed": len(turn.proposals),
        "measured": len(turn.timings), "failed": sum(s is None for s in turn.scores),
        "search_seconds": turn.search_seconds, "train_seconds": turn.train_seconds, "build_seconds": turn.build_seconds,
        "measure_seconds": turn.measure_seconds, "model_rank_correlation": quality.rank if quality else None,
        "model_recall": quality.recall if quality else None, "best_seconds": lane.best_seconds,
        "incumbent_seconds": turn.incumbent_seconds,
    }])  # fmt: skip


def record_finalists(
    store: Store, run: Run, bench: Workbench, lane: Lane, found: Sequence[tuple[Proposal, Timing]], number: int
) -> None:
    """The default of today's rules may win although no search has proposed it: without its row nobody finds it again."""
    proposed = {result.proposal.key for result in lane.tuner.state.history}
    store.append("programs", [_program(p, run, bench, lane, number) for p, _ in found if p.key not in proposed])
    store.append("measurements", [
        _measurement(t, None, run, bench, lane, number, None, confirmed=True) for _, t in found
    ])  # fmt: skip


def record_source(store: Store, bench: Workbench, program: Program, key: str, sketch: str) -> None:
    """The C of a winner, to be read and built when no rule makes its sketch any more."""
    made = kernel_of(program, key)
    store.append("sources", [{
        "program": key, "sketch": sketch, "choices": list(program.choices), "target": bench.target.key,
        "language": made.language, "entry": made.entry, "text": f"{PRELUDE}\n{made.text}",
    }])  # fmt: skip


def _program(p: Proposal, run: Run, bench: Workbench, lane: Lane, number: int) -> Row:
    return {
        "key": p.key, "workload": lane.workload.key, "sketch": p.sketch_key, "choices": list(p.choices), "run": run.key,
        "round": number, "parents": list(p.parents) or None, "mutation": _mutation(p),
        "prediction": p.predicted, "seed": run.seed, "target": bench.target.key,
    }  # fmt: skip


def _mutation(p: Proposal) -> str | None:
    return " ".join(step.replace(" ", "-") for step in p.trail) or _ORIGINS[p.origin]


_ORIGINS: dict[str, str | None] = {"random": None, "preferred": "preferred", "evolved": "evolved"}


def _measurement(
    t: Timing,
    score: float | None,
    run: Run,
    bench: Workbench,
    lane: Lane,
    number: int,
    peak: float | None,
    confirmed: bool,
) -> Row:
    best = sorted(t.warm)[len(t.warm) // 2] if confirmed and t.warm else t.best
    return {
        "program": t.key, "workload": lane.workload.key, "run": run.key, "round": number, "target": bench.target.key,
        "threads": bench.target.threads, "compiler": bench.compiler.version, "flags": " ".join(flags(bench.target)),
        "seconds_warm": list(t.warm), "seconds_cold": list(t.cold), "best_seconds": best if t.verified else None,
        "score": score, "verified": t.verified, "max_error": t.error, "error_bound": t.bound,
        "error_kind": t.failure.kind if t.failure else None, "error_message": t.failure.message if t.failure else None,
        "peak_gflops": peak, "build_seconds": t.build_seconds, "measure_seconds": t.measure_seconds,
        "confirmed": confirmed, "far_bytes": lane.far_bytes, "device": bench.machine.key,
    }  # fmt: skip


# --- and back


def history(store: Store | Connection, workload: str, bench: Workbench) -> list[Result]:
    """What the tuner of a workload was told on this kind of machine, in order."""
    answer = question(store, "told", workload=workload, target=bench.target.key, device=bench.machine.key)
    return [_result(row) for row in answer.to_pylist()]


def _result(row: Row) -> Result:
    trail = row["mutation"].split() if row["mutation"] not in (None, "preferred", "evolved") else []
    proposal = Proposal(
        row["program"], row["sketch"], tuple(row["choices"]), row["round"], _origin(row["mutation"]), row["prediction"],
        tuple(row["parents"] or ()), tuple(trail),
    )  # fmt: skip
    return Result(proposal, row["seconds"])


def _origin(mutation: str | None) -> Origin:
    if mutation is None:
        return "random"
    return "preferred" if mutation == "preferred" else "evolved"


def champions(store: Store | Connection, bench: Workbench) -> dict[str, Proposal]:
    """Workload key -> the winner of its last finalists' round on this kind of machine."""
    return {
        key: Proposal(row["program"], row["sketch"], tuple(row["choices"]), row["round"], "preferred")
        for key, row in confirmed(store, bench).items() if row["confirmed"]
    }  # fmt: skip


def confirmed(store: Store | Connection, bench: Workbench) -> dict[str, Row]:
    """Workload key -> its best program on this kind of machine, confirmed figures first."""
    answer = question(store, "best_program", workload=None, target=bench.target.key, device=bench.machine.key)
    return {row["workload"]: row for row in answer.to_pylist()}
