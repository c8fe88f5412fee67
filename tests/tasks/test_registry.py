"""Registrations: rows that say so, rows that say no longer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from data.query import run
from data.store import Store
from tasks.registry import Registration, RegistryError, chosen, register, registered, unregister
from tests.data.conftest import NOON, row

FULL = Registration("/models/m.onnx", "m batch=4", 2, 4, 16, {"n": 3}, 500, 60.0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def test_a_registration_comes_back_as_it_went_in(store: Store) -> None:
    register(store, FULL)
    register(store, Registration("resnet", "resnet50"))
    assert registered(store) == [FULL, Registration("resnet", "resnet50")]


def test_a_second_time_changes_how_much(store: Store) -> None:
    register(store, Registration("m", "m", trials=10))
    register(store, Registration("m", "m", trials=20))
    register(store, Registration("m", "m", threads=2))
    assert [(r.key, r.trials) for r in registered(store)] == [("m t1", 20), ("m t2", 256)]


@pytest.mark.parametrize(("name", "threads"), [("m t2", None), ("m", 2)])
def test_unregister_by_any_name(store: Store, name: str, threads: int | None) -> None:
    for n in (1, 2):
        register(store, Registration("m", "m", threads=n))
    assert unregister(store, name, threads).key == "m t2"
    assert [r.key for r in registered(store)] == ["m t1"]
    register(store, Registration("m", "m", threads=2))
    assert len(registered(store)) == 2


def test_what_is_not_clear_is_refused(store: Store) -> None:
    with pytest.raises(RegistryError, match="no model is registered as 'm'; there are: none"):
        unregister(store, "m", None)
    with pytest.raises(RegistryError, match=r"no model is registered in .*; tilewright register MODEL adds one"):
        chosen(store, None)
    for n in (1, 2):
        register(store, Registration("m", "m", threads=n))
    with pytest.raises(RegistryError, match="'m' is registered as m t1, m t2; write one of these"):
        unregister(store, "m", None)
    with pytest.raises(RegistryError, match=re.escape("no model is registered as 'n'; there are: m t1, m t2")):
        chosen(store, ["m", "n"])
    assert [r.key for r in chosen(store, ["m t2"])] == ["m t2"] and len(chosen(store, ["m"])) == 2


def test_how_a_model_stands(store: Store) -> None:
    """Its last run, its last night, and what nights promoted; another number of threads is another registration."""
    for n in (1, 2):
        register(store, Registration("m", "m", threads=n))
    store.append("runs", [
        row("runs", 1, key="a", state="finished", latency_after=5e-3),
        row("runs", 2, key="b", state="running", started=NOON.replace(hour=13)),
        row("runs", 2, key="other", threads=2, started=NOON.replace(hour=14)),
    ])  # fmt: skip
    first, second = run(store, "registered", registration=None).to_pylist()
    assert (first["last_run"].hour, first["last_state"], first["latency_seconds"]) == (13, "running", 5e-3)
    assert (first["promotions"], first["last_night"], second["last_run"].hour) == (0, None, 14)
    store.append("nights", [row("nights", key="n"), row("nights", key="x", registration="m t2")])
    store.append("promotions", [
        row("promotions", 1), row("promotions", 2), row("promotions", 3, promoted=False), row("promotions", 4, night="x"),
    ])  # fmt: skip
    (found,) = run(store, "registered", registration="m t1").to_pylist()
    assert (found["promotions"], found["latency_seconds"], found["watched"]) == (2, 2e-3, 2)
    assert found["last_promotion"].minute == 2
