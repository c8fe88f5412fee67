"""What a night of one registered model knows while it goes on, and what remains of it.

Nothing is in memory between two nights: what was normal, what stands and what was built is in the store and beside it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from codegen.environment import Environment, environment
from codegen.machine import harness_text
from codegen.runner import Runner, Settings
from codegen.toolchain import Binary, Compiler
from data.store import Store
from ir.target import Target
from tasks.command import Answer, ours
from tasks.diary import AGAIN, DUEL, FIRST, Change, Decision, Place, record_night
from tasks.kept import keep, kept, text_of
from tasks.lease import Say, leased, warn
from tasks.model import Model
from tasks.registry import Registration
from tasks.regression import RULE, Rule
from tasks.standing import PROBE, Watched, folder_of
from tasks.workbench import Workbench, workbench

Document = dict[str, Any]  # JSON-able
Bench = Callable[[Path, int, Mapping[str, str]], AbstractContextManager[Workbench]]

CALM = Settings(workers=1, budget_seconds=0.02, cold_samples=0)  # one core for all, so that rounds are side by side


@contextmanager
def calm_bench(directory: Path, threads: int, environ: Mapping[str, str]) -> Iterator[Workbench]:
    """A bench for comparisons with other nights: the peak probe is the binary that they measured with, for what another
    compiler makes of it attains another peak."""
    bench = workbench(directory, threads, environ, CALM)
    bench.runner.close()
    with Runner(bench.target, _kept_probe(bench), CALM) as runner:
        yield replace(bench, runner=runner)


def _kept_probe(bench: Workbench) -> Binary:
    folder, prelude = folder_of(bench, PROBE), harness_text(bench.target)
    old, new = kept(folder), bench.runner.harness
    if old is not None and old.text == text_of(new.kernel, prelude):
        return old.binary
    built = environment(bench.compiler, bench.target, "", new.path)
    return keep(folder, new, built, prelude).binary


@dataclass
class Night:
    """One model on one night, in this process. `place` and `now` are known once the bench was open."""

    store: Store
    registration: Registration
    model: Model
    release: str  # of Tilewright
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    say: Say = warn
    bench: Bench = calm_bench
    surroundings: Callable[[Compiler, Target, str, Path], Environment] = environment
    compare: Callable[[list[str], Mapping[str, str]], Answer | None] = ours
    key: str = field(default_factory=lambda: blake2b(uuid4().bytes, digest_size=6).hexdigest())
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    place: Place = Place("", "", "")
    now: Environment = Environment(*[""] * 7)
    watched: dict[str, Watched] = field(default_factory=dict)
    decided: dict[str, str] = field(default_factory=dict)  # workload -> program, by earlier nights
    rule: Rule = RULE  # what counts as a change on this machine
    suspects: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    tuned: Document | None = None  # the report of the tuning
    weighed: Document = field(default_factory=dict)

    def name(self, workload: str) -> str:
        return next(w.name for w in self.model.workloads if w.key == workload)

    @contextmanager
    def measuring(self) -> Iterator[Workbench]:
        """The device for us alone, with children of its own: what a process has by chance is drawn anew."""
        with (
            leased(f"the night of {self.registration.key}", self.environ, self.say),
            self.bench(self.store.root.parent / "work", self.registration.threads, self.environ) as bench,
        ):
            yield bench


def close(night: Night) -> Document:
    """The night's row, and the same in words and figures."""
    spent = night.tuned or {}
    stood = {d.workload: d for d in night.decisions}
    figures = {
        "registration": night.registration.key, "model": night.registration.label, "run": spent.get("run"),
        "environment": night.now.key, "trials": spent.get("trials", 0), "watched": len(night.watched),
        "slower": sum(c.slower for c in night.changes), "faster": sum(not c.slower for c in night.changes),
        "promoted": sum(d.promoted for d in stood.values()), "latency_seconds": _latency(night), "model_seconds": None,
        "library": None, "library_seconds": None, **night.weighed,
    }  # fmt: skip
    record_night(night.store, night.place, night.started, figures)
    return {
        **figures, "night": night.key, "target": night.place.target, "device": night.place.device,
        "environment": asdict(night.now), "suspects": len(night.suspects),
        "changes": [_told(c) for c in night.changes], "decisions": [asdict(d) for d in night.decisions],
    }  # fmt: skip


def _told(c: Change) -> Document:
    """With what each cause was before and is now."""
    columns = [name for name in c.changed if name in Environment.__dataclass_fields__]
    causes = {name: [getattr(c.before, name), getattr(c.now, name)] for name in columns} if c.before else {}
    kept = {name: value for name, value in asdict(c).items() if name not in ("before", "now")}
    return {**kept, "causes": causes}


def _latency(night: Night) -> float | None:
    """Weighted sum over what stands; where something has no time yet, what the tuning says; None where that says nothing."""
    promoted = {d.workload: d.promoted for d in night.decisions}
    seconds = [_seconds(night.watched.get(w.key), promoted.get(w.key, False)) for w in night.model.workloads]
    if any(s is None for s in seconds):
        return (night.tuned or {}).get("latency_after_seconds")
    return sum(w.weight * (s or 0.0) for w, s in zip(night.model.workloads, seconds, strict=True))


def _seconds(w: Watched | None, promoted: bool) -> float | None:
    if w is None:
        return None
    found = w.samples(DUEL, "challenger") if promoted else []
    samples = found or w.samples(AGAIN, w.role) or w.samples(FIRST, w.role)
    return median(s.seconds for s in samples) if samples else None
