"""The order of a night: every registered model in turn, then the upkeep of the store. The steps come in as a table, so
that the same order runs them as plain functions or as Prefect tasks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codegen.oracle import OracleError
from codegen.runner import RunnerError
from data.store import Store
from flows.plain import STORE, RequestError, plain, release
from ir.graph import ModelError
from tasks import command, nightly, upkeep
from tasks.command import CommandError
from tasks.lease import Say, warn
from tasks.model import load
from tasks.night import Night
from tasks.registry import Registration, chosen

Document = dict[str, Any]  # JSON-able
Step = Callable[[Night], Night]

TROUBLES = (
    ModelError,
    OracleError,
    RunnerError,
    CommandError,
)  # of one model: the others have their night all the same


@dataclass(frozen=True, slots=True)
class Steps:
    """The verbs of a night. tune: what `flows.plain.plain` takes and gives."""

    look: Step = nightly.look
    tune: Callable[..., Document] = plain
    settle: Step = nightly.settle
    weigh: Step = nightly.weigh
    close: Callable[[Night], Document] = nightly.close
    compact: Callable[[Path], list[Document]] = upkeep.compacted
    retrain: Callable[[Path, Mapping[str, str]], Document] = upkeep.retrained
    report: Callable[[Sequence[str], Mapping[str, str]], Document] = command.ours


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a night is asked for. models: registrations by key, label or model; None: all. trials, budget_seconds: of each
    model, instead of what it was registered with."""

    store: Path
    models: tuple[str, ...] | None = None
    trials: int | None = None
    budget_seconds: float | None = None


def wanted(store: str, models: Sequence[str] | None, trials: int | None, budget_seconds: float | None) -> Wanted:
    """Raises RequestError."""
    if trials is not None and trials < 0:
        raise RequestError(f"{trials} trials: it must be 0 or more; 0 measures again and tunes nothing")
    if budget_seconds is not None and not 0 < budget_seconds < math.inf:
        raise RequestError(f"a budget of {budget_seconds} s: it must be positive")
    return Wanted(Path(store).absolute(), tuple(models) if models else None, trials, budget_seconds)


def plain_night(
    store: str = STORE,
    models: list[str] | None = None,
    trials: int | None = None,
    budget_seconds: float | None = None,
    say: Say = warn,
) -> Document:
    """As `flows.nightly.nightly`, without Prefect."""
    return night(wanted(store, models, trials, budget_seconds), Steps(), say)


def night(asked: Wanted, steps: Steps, say: Say) -> Document:
    """Every model, then compaction, the model of costs and the report. Raises RegistryError, StoreError, ToolchainError."""
    store = Store.open(asked.store)
    documents, failed = [], []
    for registration in chosen(store, list(asked.models) if asked.models else None):
        try:
            documents.append(_of_model(asked, registration, steps, say))
        except TROUBLES as error:
            failed.append({"registration": registration.key, "error": " ".join(str(error).split())})
            say(f"{registration.key}: {error}")
    return {
        "store": str(asked.store), "models": documents, "failed": failed,
        "compacted": steps.compact(asked.store), "prior": steps.retrain(asked.store, os.environ),
        **page(asked.store, steps.report),
    }  # fmt: skip


def _of_model(asked: Wanted, r: Registration, steps: Steps, say: Say) -> Document:
    model = load(r.model, r.batch, r.seq, r.dims)
    night = steps.look(Night(Store(asked.store), r, model, release(), say=say))
    say(f"{r.key}: {len(night.watched)} programs measured again, {len(night.suspects)} of them look changed")
    trials = r.trials if asked.trials is None else asked.trials
    if trials:
        night.tuned = steps.tune(
            r.model, trials, asked.budget_seconds or r.budget_seconds, r.threads, str(asked.store), 0, r.batch, r.seq,
            True, dict(r.dims) if r.dims else None,
        )  # fmt: skip
        if night.tuned["state"] == "stopped":
            raise KeyboardInterrupt
    return steps.close(steps.weigh(steps.settle(night)))


def page(store: Path, report: Callable[[Sequence[str], Mapping[str, str]], Document]) -> Document:
    """Where the report lies, or why there is none: a machine that tunes need not be able to draw."""
    try:
        written = report(["report", "--store", str(store), "--json"], os.environ)
    except CommandError as error:
        return {"report": None, "report_error": str(error)}
    return {"report": written["file"], "report_error": None}


__all__ = ["STORE", "Steps", "Wanted", "night", "page", "plain_night", "wanted"]
