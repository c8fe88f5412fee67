"""The best program is the winner of the last finalists' round: times of different days are not compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from data.query import run as question
from data.store import Store

EVERYWHERE = {"workload": None, "target": "cpu-x86_64-v64-t1", "device": None}


def test_the_last_round_decides_and_its_figures_are_given(store: Store, make_row: Any) -> None:
    """On a busy day b beats a at times that a never needed on a quiet one; c was never measured beside b."""
    quiet = {"a": 1.0e-3, "c": 0.9e-3}
    busy = {"a": 1.5e-3, "b": 1.3e-3}
    began = datetime(2024, 1, 1, tzinfo=UTC)
    for day, (run, times) in enumerate({"first": quiet, "second": busy}.items()):
        for minute, (program, seconds) in enumerate(times.items()):
            created = began + timedelta(days=day, minutes=minute)
            store.append("programs", [{**make_row("programs"), "key": program, "run": run}])
            store.append("measurements", [{
                **make_row("measurements"), "program": program, "run": run, "best_seconds": seconds, "confirmed": True,
                "created": created,
            }])  # fmt: skip
    (best,) = question(store, "best_program", **EVERYWHERE).to_pylist()
    assert (best["program"], best["seconds"]) == ("b", pytest.approx(1.3e-3))
