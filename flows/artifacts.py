"""What the Prefect UI shows of a run besides its state: progress, tables, links. Importing this imports Prefect."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)  # fmt: skip
from prefect.logging import get_run_logger

from data.query import connect
from data.store import Store
from tasks.roofline import roofline
from tasks.session import Session
from tasks.subject import SubjectError, subjects

Row = Mapping[str, Any]
EVERY_SECONDS = 5.0  # between two updates of a progress: they are answered by the cores that measure
LONGEST = 100  # characters of a key


def key(kind: str, name: str) -> str:
    """What an artifact is called: Prefect allows lower-case letters, digits and dashes."""
    return f"{kind}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}"[:LONGEST].rstrip("-")


def table(name: str, rows: Sequence[Row], description: str) -> None:
    create_table_artifact([dict(row) for row in rows], name, description)


class Progress:
    """Who watches a tuning that nobody sits in front of: a line a round in its log, and its progress in per cent."""

    def __init__(self) -> None:
        self.artifact: UUID | None = None
        self.last = 0.0

    def __call__(self, event: str, session: Session, about: Any) -> None:
        if event == "start":
            name = session.run.model
            made = create_progress_artifact(0.0, key("progress", name), f"programs measured of {name}")
            self.artifact = cast(UUID, made)  # a coroutine only where an event loop calls
        elif event == "round":
            self._log(session, about.lane)
            self._show(session)
        elif event == "end" and self.artifact is not None:
            update_progress_artifact(self.artifact, 100.0)

    def _log(self, session: Session, lane: Any) -> None:
        w, best = lane.workload, lane.best_seconds
        speed = f"{best * 1e6:.1f} us, {w.dag.flops / best / 1e9:.1f} GFLOP/s" if best else "no valid program yet"
        get_run_logger().info("%s: %s (%d of %d trials)", w.name, speed, session.spent, session.request.trials)

    def _show(self, session: Session) -> None:
        now = time.monotonic()
        if self.artifact is not None and now - self.last >= EVERY_SECONDS:
            self.last = now
            update_progress_artifact(self.artifact, min(99.0, 100.0 * done(session)))


def done(session: Session) -> float:
    """The share of trials or of time that is used up, whichever is more."""
    budget = session.request.budget_seconds
    return max(session.spent / session.request.trials, session.elapsed / budget if budget else 0.0)


def show_tuning(report: Row) -> None:
    """Workloads before and after, and where the report lies."""
    name = report["model"]
    state = f"{name} on {report['target']}: {report['state']}, {report['trials']} programs"
    table(key("workloads", name), [_workload(w) for w in report["workloads"]], state)
    create_link_artifact(
        Path(report["report"]).as_uri(), "report.json", key("report", name), f"{name}, run {report['run']}"
    )


def _workload(w: Row) -> dict[str, Any]:
    before, after = w["default_seconds"], w["best_seconds"]
    return {
        "workload": w["name"], "times": w["weight"], "before": duration(before), "after": duration(after),
        "faster": f"{before / after:.2f}x" if before and after else "-", "GFLOP/s": rounded(w["gflops"]),
        "% of roof": rounded(w["percent_of_roof"]), "programs": w["trials"], "program": w["program"] or w["broken"] or "-",
    }  # fmt: skip


def show_rooflines(store: Path) -> None:
    """A table of each model that the report has: how far from the roof its programs are, and what holds them back."""
    with connect(Store(store)) as source:
        for subject in subjects(source):
            try:
                found = roofline(source, subject)
            except SubjectError:  # of a target that this version does not know: the report says so
                continue
            rows = [_placed(p) for p in found.workloads]
            table(key("roofline", subject.model), rows, f"{subject.model} on {subject.target}")


def _placed(p: Any) -> dict[str, Any]:
    return {
        "workload": p.name, "times": p.weight, "time": duration(p.seconds), "GFLOP/s": rounded(p.gflops),
        "flop/byte": rounded(p.intensity), "% of roof": rounded(100 * p.roof_share if p.roof_share else None),
        "bound by": p.bound or "-",
    }  # fmt: skip


def show_page(document: Row) -> None:
    if document["report"]:
        create_link_artifact(
            Path(document["report"]).as_uri(), "the report", "report", "one page of all that was tuned"
        )
    else:
        create_markdown_artifact(f"No report: {document['report_error']}", "report", "why there is no report")


def show_night(document: Row) -> None:
    """Models, and what changed or was promoted."""
    models: Sequence[Row] = document["models"]
    table("nightly-models", [_model(m) for m in models], "models of the night")
    changes = [{"model": m["model"], **_change(c)} for m in models for c in m["changes"]]
    table("nightly-changes", changes, f"programs that take another time than before: {len(changes)}")
    decisions = [{"model": m["model"], **_decision(d)} for m in models for d in m["decisions"]]
    table("nightly-promotions", decisions, "who stands, and why")


def _model(m: Row) -> dict[str, Any]:
    return {
        "model": m["registration"], "watched": m["watched"], "slower": m["slower"], "faster": m["faster"],
        "promoted": m["promoted"], "latency": duration(m["latency_seconds"]), "whole model": duration(m["model_seconds"]),
        m["library"] or "library": duration(m["library_seconds"]), "programs": m["trials"],
    }  # fmt: skip


def _change(c: Row) -> dict[str, Any]:
    return {
        "workload": c["name"], "ratio": f"{c['ratio']:.3f}" if c["ratio"] else "failed", "before": duration(c["before_seconds"]),
        "now": duration(c["seconds"]), "confidence": f"{100 * c['confidence']:.2f} %" if c["confidence"] else "-",
        "changed": ", ".join(c["changed"]), "program": c["program"],
    }  # fmt: skip


def _decision(d: Row) -> dict[str, Any]:
    return {
        "workload": d["name"], "program": d["program"], "rival": d["rival"] or "-", "new": "yes" if d["promoted"] else "no",
        "ratio": f"{d['ratio']:.3f}" if d["ratio"] else "-", "why": d["reason"],
    }  # fmt: skip


def duration(seconds: float | None) -> str:
    return f"{seconds * 1e6:,.1f} us" if seconds else "-"


def rounded(value: float | None) -> float | str:
    return round(value, 1) if value is not None else "-"
