"""A tuning from a request to a report. `plain` runs it with plain functions; `flows.tune.tune` with Prefect's tasks."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flows.tuning import Stages, Watch, silent, tune
from tasks.lease import Say, leased, warn
from tasks.model import Model, load
from tasks.outcome import Report, baseline, best_latency, compare, report, untuned_latency
from tasks.session import Request, Session, close, opened

STORE = ".tilewright/store"


class RequestError(ValueError):
    """What was asked for makes no sense: one line with the cause and the way out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model file or a name leaves open. dims: symbolic dimension of an ONNX file -> extent."""

    batch: int = 1
    seq: int | None = None
    dims: Mapping[str, int] | None = None

    def label(self, name: str) -> str:
        """What a run of the model is called in the store; other shapes are other runs."""
        parts = {"batch": self.batch if self.batch != 1 else None, "seq": self.seq, **(self.dims or {})}
        return " ".join([name, *(f"{k}={v}" for k, v in parts.items() if v is not None)])


def plain(
    model: str,
    trials: int = 1000,
    budget_seconds: float | None = None,
    threads: int = 1,
    store: str = STORE,
    seed: int = 0,
    batch: int = 1,
    seq: int | None = None,
    early_stop: bool = True,
    dims: dict[str, int] | None = None,
    watch: Watch = silent,
) -> Report:
    """As `flows.tune.tune`, without Prefect."""
    asked = request(model, trials, budget_seconds, threads, store, seed, early_stop)
    return carry_out(asked, shape(batch, seq, dims), Stages(), watch)


def request(
    model: str, trials: int, budget_seconds: float | None, threads: int, store: str, seed: int, early_stop: bool
) -> Request:
    """Raises RequestError."""
    cores = len(os.sched_getaffinity(0))
    checks = (
        (trials >= 1, f"{trials} trials: at least one program must be measured"),
        (
            budget_seconds is None or 0 < budget_seconds < math.inf,
            f"a budget of {budget_seconds} s: it must be positive",
        ),
        (threads >= 1, f"{threads} threads: at least one is needed"),
        (threads <= cores, f"{threads} threads, but only {cores} cores may be used here; ask for {cores} or fewer"),
        (0 <= seed < 1 << 63, f"seed {seed}: it must be a number from 0 to 2^63 - 1"),
    )
    for holds, complaint in checks:
        if not holds:
            raise RequestError(complaint)
    return Request(model, Path(store).absolute(), trials, budget_seconds, threads, seed, early_stop)


def shape(batch: int, seq: int | None, dims: Mapping[str, int] | None = None) -> Shape:
    """Raises RequestError."""
    for name, extent in {"batch": batch, "seq": seq, **(dims or {})}.items():
        if extent is not None and extent < 1:
            raise RequestError(f"{name} = {extent}: it must be at least 1")
    return Shape(batch, seq, dims)


def carry_out(asked: Request, shape: Shape, stages: Stages, watch: Watch, say: Say = warn) -> Report:
    """Load, open, tune, close; the device is ours meanwhile. After Ctrl-C the report is that of what was recorded, its
    state "stopped"."""
    model = load(asked.model, shape.batch, shape.seq, shape.dims)
    name = shape.label(model.name)
    with (
        leased(f"the tuning of {name}", os.environ, say),
        opened(asked, name, model.workloads, release(), os.environ) as session,
    ):
        return _tuned(session, stages, watch)


def _tuned(session: Session, stages: Stages, watch: Watch) -> Report:
    baseline(session)
    state = "finished"
    try:
        tune(session, stages, watch)
        compare(session)
    except KeyboardInterrupt:
        state = "stopped"
    close(session, release(), state, untuned_latency(session), best_latency(session))
    return _kept(report(session, state), session.store.root.parent / "reports")


def _kept(found: Report, folder: Path) -> Report:
    """The report, also as a file of the run."""
    path = folder / f"{found['run']}.json"
    found["report"] = str(path)
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=2))
    return found


def release() -> str:
    """Of the installed package; a bare checkout has none."""
    try:
        return version("tilewright")
    except PackageNotFoundError:
        return "checkout"


__all__ = ["STORE", "Model", "Report", "Request", "RequestError", "Shape", "carry_out", "plain", "request", "shape"]
