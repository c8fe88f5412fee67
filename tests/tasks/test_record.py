"""What a tuning writes is found again."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from data.store import Store
from ir.timing import Timing
from search.tuner import Settings, Tuner
from tasks.lane import Lane
from tasks.record import Run, confirmed, record_finalists
from tasks.space import SCHEMA
from tasks.workbench import workbench
from tests.tasks.test_replay import workload


@pytest.mark.compiler
def test_a_default_that_wins_without_having_been_proposed_is_found_again(tmp_path: Path) -> None:
    """The sketch rules may have changed since a workload's first round."""
    store = Store.open(tmp_path / "store")
    bench = workbench(tmp_path / "work", 1, os.environ)
    bench.runner.close()
    w, space = workload("GMM.0.b1")
    lane = Lane(w, space, Tuner(space, SCHEMA, Settings(), 0), 1e-5)
    run = Run("r", "m", 0, 8, None, datetime.now(UTC), "{}")
    record_finalists(store, run, bench, lane, [(lane.default, Timing(lane.default.key, (2e-3,), verified=True))], 3)
    (best,) = confirmed(store, bench).values()
    assert (best["program"], best["seconds"]) == (lane.default.key, 2e-3)
    assert tuple(best["choices"]) == lane.default.choices
