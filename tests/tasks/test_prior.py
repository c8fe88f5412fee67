"""What ships is used where it fits, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ir.target import Target
from search.cost_model import Schema, fit, rows
from search.features import NAMES, WIDTH
from search.heuristic import heuristic
from tasks import prior as room
from tasks.lessons import PriorError, ship
from tasks.prior import BALANCE, KIND, PLACE, prior, shipped
from tasks.space import SCHEMA

HOME = Target(vector_bytes=64, vector_registers=32)


@pytest.fixture
def learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that likes large tiles, learnt on 32 registers of 64 bytes."""
    features = np.random.default_rng(0).uniform(0, 4, (400, WIDTH)).astype(np.float32)
    labels = (features[:, NAMES.index("tile.size")] / 4).astype(np.float64)
    model = fit(rows(features, labels, np.arange(400)), SCHEMA)
    kind = {"kind": "cpu", "vector_bytes": 64, "vector_registers": 32}
    model.booster.set_attr(**{KIND: json.dumps(kind)})
    place = tmp_path / "prior.json"
    place.write_bytes(bytes(model.booster.save_raw("json")))
    monkeypatch.setattr(room, "PLACE", place)
    shipped.cache_clear()
    return place


def favours(score: room.Score, name: str) -> bool:
    low, high = (np.ones((1, WIDTH), np.float32) for _ in range(2))
    low[0, NAMES.index(name)], high[0, NAMES.index(name)] = 0.1, 3.9
    return bool(score(high)[0] > score(low)[0])


def test_it_ranks_on_registers_that_it_knows(learnt: Path) -> None:
    assert favours(prior(HOME), "tile.size")
    assert prior(replace(HOME, vector_registers=16)) is heuristic
    assert prior(replace(HOME, vector_bytes=32)) is heuristic


def test_idle_threads_count_against_a_program(learnt: Path) -> None:
    score = prior(replace(HOME, threads=4))
    busy, idle = np.ones((1, WIDTH), np.float32), np.ones((1, WIDTH), np.float32)
    idle[0, BALANCE] = np.log2(1.25)  # a quarter of the threads
    assert score(idle)[0] == pytest.approx(score(busy)[0] / 4)


def test_day_one_works_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PLACE", tmp_path / "none.json")
    assert prior(HOME) is heuristic


def test_a_model_of_other_features_is_left_alone(learnt: Path) -> None:
    features = np.random.default_rng(0).uniform(0, 4, (64, 3)).astype(np.float32)
    other = fit(rows(features, features[:, 0].astype(np.float64), np.arange(64)), Schema(0, ("a", "b", "c")))
    learnt.write_bytes(bytes(other.booster.save_raw("json")))
    shipped.cache_clear()
    assert prior(HOME) is heuristic


def test_nothing_measured_is_nothing_to_ship(tmp_path: Path) -> None:
    with pytest.raises(PriorError, match="tune some models first"):
        ship([], {}, tmp_path / "prior.json")
    assert not (tmp_path / "prior.json").exists()


@pytest.mark.skipif(not PLACE.is_file(), reason="no prior ships with this checkout")
def test_what_ships_is_of_these_features() -> None:
    shipped.cache_clear()
    model = shipped(PLACE)
    assert model is not None and json.loads(model.booster.attr(KIND) or "null")["kind"] == "cpu"
