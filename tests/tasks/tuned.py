"""A store as two tunings of a small model leave it: real workloads, sketches and programs, times by a formula.

pair: two matrix products, three times and twice in the model. The run "first" measures the first programs of each, "second"
the others; each confirms its three fastest, the second one the winner of the first again.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from data.store import Store
from ir.key import dag_text
from ir.timing import Timing
from search.tuner import Proposal
from tasks.space import sketch_text
from tests.data.conftest import NOON, row
from tests.tasks.test_replay import MEMORY, TARGET, told, workload

MODEL = "pair"
NAMES = ("GMM.0.b1", "GMM.1.b1")
PROGRAMS, EACH = 64, 32  # of a workload, and of one run
RUNS = ("first", "second")
HOSTILE = "<script>document.title='taken'</script>"
FAR_BYTES = 64 << 20  # behind every cache

Rows = list[dict[str, Any]]


def tuned(root: Path) -> Store:
    """Two finished runs."""
    store = Store.open(root)
    store.append("devices", [row("devices", memory=MEMORY)])
    for n in range(len(RUNS)):
        begun(store, n)
        searched(store, n)
        confirmed(store, n)
        latency = {"latency_before": 8e-4, "latency_after": 6e-4 / (n + 1)}
        ended = {"state": "finished", "finished": NOON + timedelta(hours=n, minutes=30)}
        store.append("runs", [row("runs", 60 * n + 30, **_run(n), **ended, **latency)])
    return store


def started(root: Path) -> Store:
    """A run that has just begun."""
    store = Store.open(root)
    begun(store, 0)
    return store


def begun(store: Store, n: int) -> None:
    """Workloads, sketches and the first word of run n."""
    for number, name in enumerate(NAMES):
        w, space = workload(name)
        store.append("workloads", [
            row("workloads", 60 * n + number / 60, key=w.key, name=w.name, dag_text=dag_text(w.dag), model=MODEL,
                weight=3 - number, flops=w.dag.flops, bytes=w.dag.bytes),
        ])  # fmt: skip
        store.append("sketches", [
            row("sketches", key=key, workload=w.key, text=sketch_text(s), rules=list(s.rules),
                holes=json.dumps([[h.name, list(h.options)] for h in s.holes]))
            for key, s in zip(space.keys, space.sketches, strict=True)
        ])  # fmt: skip
    store.append("runs", [row("runs", 60 * n, **_run(n))])


def searched(store: Store, n: int) -> None:
    """Programs, measurements and rounds of run n."""
    for number, name in enumerate(NAMES):
        w, _ = workload(name)
        mine = told(name, PROGRAMS)[EACH * n : EACH * (n + 1)]
        at = {"run": RUNS[n], "workload": w.key, "round": number}
        store.append("programs", [_program(p, t, at, i) for i, (p, t) in enumerate(mine)])
        store.append("measurements", [_measurement(p, t, at, 60 * n + i / 60) for i, (p, t) in enumerate(mine)])
        quality = {"model_rank_correlation": 0.5 + number / 4, "model_recall": 0.25}
        store.append("rounds", [row("rounds", 60 * n, **at, measured=EACH, **quality)])


def confirmed(store: Store, n: int) -> None:
    """The finalists' round of run n: five percent slower than the search said."""
    for name in NAMES:
        w, _ = workload(name)
        known = [(p, t) for p, t in told(name, PROGRAMS)[: EACH * (n + 1)] if t.best is not None]
        chosen = sorted(known, key=lambda x: x[1].best or 0.0)[:3]
        if n:
            before = [x for x in told(name, PROGRAMS)[:EACH] if x[1].best is not None]
            chosen.append(min(before, key=lambda x: x[1].best or 0.0))
        seconds = {p.key: 1.05 * (t.best or 0.0) for p, t in chosen}
        store.append("measurements", [
            row("measurements", 60 * n + 20, program=key, workload=w.key, run=RUNS[n], round=2, target=TARGET.key,
                best_seconds=t, confirmed=True, far_bytes=FAR_BYTES)
            for key, t in seconds.items()
        ])  # fmt: skip


def hostile(root: Path) -> Store:
    """What other people may write: tags in every name, a DAG that does not parse, a device without rates."""
    store = Store.open(root)
    store.append("workloads", [row("workloads", key="w", name=HOSTILE, model=f"</title>{HOSTILE}", origin=[HOSTILE])])
    store.append("sketches", [row("sketches", text=f"Tile(stage='{HOSTILE[:8]}')\n{HOSTILE}", holes="[]")])
    store.append("programs", [row("programs")])
    wrong = {"best_seconds": None, "verified": False, "error_kind": "crash", "error_message": HOSTILE}
    store.append("measurements", [row("measurements", 1), row("measurements", 2, program="q", **wrong)])
    store.append("runs", [row("runs", model=f"</title>{HOSTILE}")])
    store.append("devices", [row("devices", peak_gflops=None, memory=[], compiler=HOSTILE)])
    return store


def _run(n: int) -> dict[str, Any]:
    return {"key": RUNS[n], "model": MODEL, "target": TARGET.key, "started": NOON + timedelta(hours=n)}


def _program(p: Proposal, t: Timing, at: dict[str, Any], second: int) -> dict[str, Any]:
    said = 0.5 if t.best is not None else 0.1
    return row(
        "programs", second / 60, key=p.key, sketch=p.sketch_key, choices=list(p.choices), parents=list(p.parents),
        mutation=" ".join(p.trail).replace(" ", "-") or None, prediction=said, target=TARGET.key, **at,
    )  # fmt: skip


def _measurement(p: Proposal, t: Timing, at: dict[str, Any], minute: float) -> dict[str, Any]:
    failure = t.failure
    return row(
        "measurements", minute, program=p.key, target=TARGET.key, verified=t.verified, best_seconds=t.best,
        error_kind=failure.kind if failure else None, error_message=failure.message if failure else None,
        far_bytes=FAR_BYTES, **at,
    )  # fmt: skip
