"""What a night saw and decided, as rows of the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from codegen.environment import Environment
from data.store import Store
from ir.timing import Failure
from tasks.standing import Role, Watched
from tasks.workbench import Workbench

Row = dict[str, Any]
FIRST, AGAIN, DUEL = 1, 2, 3  # looks
ORDER: tuple[Role, ...] = ("kept", "built", "challenger")  # of rows: who was there first comes first


@dataclass(frozen=True, slots=True)
class Place:
    """Where a night is: the same in all its rows."""

    night: str
    target: str
    device: str

    @property
    def row(self) -> Row:
        return {"night": self.night, "target": self.target, "device": self.device}


@dataclass(frozen=True, slots=True)
class Change:
    """A standing program that takes another time, or failed. changed: what may be the cause. Times in seconds."""

    workload: str
    name: str
    program: str
    ratio: float | None
    confidence: float | None
    changed: tuple[str, ...]
    before_seconds: float | None
    seconds: float | None
    rounds: int
    before: Environment | None
    now: Environment
    message: str = ""

    @property
    def slower(self) -> bool:
        return self.ratio is None or self.ratio > 1


@dataclass(frozen=True, slots=True)
class Decision:
    """Which program stands from now on, and why. rival: the other one."""

    workload: str
    name: str
    program: str
    rival: str | None
    promoted: bool
    ratio: float | None
    confidence: float | None
    reason: str


Seen = tuple[Watched, Mapping[Role, Mapping[str, Any]]]  # role -> its program and environment


def record_checks(store: Store, place: Place, look: int, seen: Iterable[Seen]) -> None:
    """The rounds of one look."""
    store.append("checks", [
        {**place.row, "workload": w.workload.key, "role": role, "look": look, "round": n, "seconds": s.seconds,
         "peak_gflops": s.peak_gflops, **who[role]}
        for role in ORDER for w, who in seen if role in who for n, s in enumerate(w.samples(look, role))
    ])  # fmt: skip


def record_changes(store: Store, place: Place, found: Iterable[Change]) -> None:
    store.append("shifts", [
        {**place.row, "workload": c.workload, "program": c.program, "ratio": c.ratio, "confidence": c.confidence,
         "changed": ", ".join(c.changed), "before_seconds": c.before_seconds, "seconds": c.seconds, "rounds": c.rounds,
         "before_environment": c.before.key if c.before else None, "environment": c.now.key}
        for c in found
    ])  # fmt: skip


def record_decisions(store: Store, place: Place, found: Iterable[Decision]) -> None:
    store.append("promotions", [
        {**place.row, "workload": d.workload, "program": d.program, "rival": d.rival, "promoted": d.promoted,
         "ratio": d.ratio, "confidence": d.confidence, "reason": d.reason}
        for d in found
    ])  # fmt: skip


def record_failure(
    store: Store, place: Place, bench: Workbench, w: Watched, failure: Failure, now: Environment
) -> None:
    """A program that failed is measured history: one that was wrong never stands again."""
    store.append("measurements", [{
        "program": w.key, "workload": w.workload.key, "run": place.night, "round": 0, "target": place.target,
        "threads": bench.target.threads, "compiler": now.compiler, "flags": now.flags, "seconds_warm": [],
        "seconds_cold": [], "best_seconds": None, "verified": False, "error_kind": failure.kind,
        "error_message": failure.message, "build_seconds": 0.0, "measure_seconds": 0.0, "confirmed": False,
        "far_bytes": w.far_bytes, "device": place.device,
    }])  # fmt: skip


def record_night(store: Store, place: Place, started: datetime, figures: Row) -> None:
    store.append("nights", [
        {"key": place.night, "target": place.target, "device": place.device, "started": started,
         "finished": datetime.now(UTC), **figures}
    ])  # fmt: skip
