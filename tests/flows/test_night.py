"""A night as plain functions: the order, one model's trouble, and a compiler that really is worse."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from data.store import Store
from flows.night import Steps, night, page, plain_night, wanted
from flows.plain import RequestError
from ir.graph import ModelError
from tasks.command import CommandError, ours
from tasks.registry import Registration, RegistryError, register
from tests.flows.test_tune import MODEL, rows

LINES: list[str] = []


def nothing(*_: Any) -> Any:
    return []


def written(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
    return {"file": "/there/report.html"}


def calm(name: str) -> Any:
    def step(night: Any) -> Any:
        LINES.append(name)
        return night

    return step


def failing(night: Any) -> Any:
    if night.registration.label == "bad":
        raise ModelError("the file is gone")
    LINES.append("look")
    return night


STEPS = Steps(
    failing, lambda *words: {"state": "finished", "trials": words[1]}, calm("settle"), calm("weigh"),
    lambda night: {"model": night.registration.label, "trials": (night.tuned or {}).get("trials")}, nothing, nothing, written,
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.open(tmp_path / "store")
    for label in ("bad", "good"):
        register(made, Registration(MODEL, label, trials=7))
    return made


def test_the_order_and_one_models_trouble(store: Store) -> None:
    LINES.clear()
    said: list[str] = []
    document = night(wanted(str(store.root), None, None, None), STEPS, said.append)
    assert document["models"] == [{"model": "good", "trials": 7}] and LINES == ["look", "settle", "weigh"]
    assert document["failed"] == [{"registration": "bad t1", "error": "the file is gone"}]
    assert document["report"] == "/there/report.html" and "bad t1: the file is gone" in said
    few = night(wanted(str(store.root), ["good"], 0, None), STEPS, said.append)
    assert few["models"] == [{"model": "good", "trials": None}] and few["failed"] == []


def test_a_stopped_tuning_stops_the_night(store: Store) -> None:
    stopped = Steps(**{**{f: getattr(STEPS, f) for f in STEPS.__slots__}, "tune": lambda *_: {"state": "stopped"}})
    with pytest.raises(KeyboardInterrupt):
        night(wanted(str(store.root), ["good"], None, None), stopped, LINES.append)


@pytest.mark.parametrize(
    ("trials", "budget", "said"),
    [(-1, None, "-1 trials"), (None, 0.0, "a budget of 0.0 s"), (3, float("nan"), "nan s")],
)
def test_a_senseless_night_is_refused(trials: int | None, budget: float | None, said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=said):
        plain_night(str(tmp_path / "store"), None, trials, budget)
    assert not list(tmp_path.iterdir())


def test_a_night_without_registrations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="tilewright register MODEL"):
        plain_night(str(tmp_path / "store"))


def test_a_report_that_cannot_be_written_is_no_end_of_a_night(tmp_path: Path) -> None:
    def refuses(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, Any]:
        raise CommandError("the report needs plotly; pip install 'tilewright[report]'")

    assert page(tmp_path, refuses) == {
        "report": None, "report_error": "the report needs plotly; pip install 'tilewright[report]'",
    }  # fmt: skip


def test_our_own_command_line_answers_or_says_why(tmp_path: Path) -> None:
    import os

    listed = ours(["sql", "--list", "--json"], os.environ)
    assert "registered" in json.dumps(listed)
    with pytest.raises(CommandError, match="tilewright sql ended with 2: tilewright: there is no store at"):
        ours(["sql", "SELECT 1", "--store", str(tmp_path / "none"), "--json"], os.environ)


@pytest.mark.prefect
def test_steps_are_lifted_by_policy() -> None:
    """What measures is never repeated nor timed out by Prefect; upkeep may be both. Nothing is cached."""
    from prefect.cache_policies import NO_CACHE

    from tasks import policy

    names = ("look", "settle", "weigh", "close", "compact", "retrain", "report")
    lifted = {name: getattr(policy, name).__closure__[0].cell_contents for name in names}
    assert {n: (t.retries, t.timeout_seconds) for n, t in lifted.items()} == {
        **dict.fromkeys(("look", "settle", "weigh", "close"), (0, None)),
        "compact": (2, policy.HOUR), "retrain": (1, policy.HOUR), "report": (1, policy.HOUR),
    }  # fmt: skip
    assert all(t.cache_policy == NO_CACHE and t.persist_result is False for t in lifted.values())
    assert {n for n, t in lifted.items() if t.tags} == {"look", "settle", "weigh"}


@pytest.mark.prefect
def test_the_flow_takes_what_the_plain_way_takes() -> None:
    from flows.nightly import nightly

    flow, function = inspect.signature(nightly.fn).parameters, inspect.signature(plain_night).parameters
    assert {n: p.default for n, p in flow.items()} == {n: p.default for n, p in function.items() if n != "say"}
    assert nightly.parameters.required == []


@pytest.mark.slow
@pytest.mark.compiler
def test_a_compiler_that_optimises_less_is_noticed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really slower machine code from the same text, beside the binary of the night before. The probe of the peak is kept
    too: what this compiler makes of it would be slower as well."""
    store = Store.open(tmp_path / "store")
    register(store, Registration(MODEL, MODEL, trials=16))
    calls: list[str] = []
    first = plain_night(str(store.root), say=calls.append)
    (m,) = first["models"]
    assert (m["watched"], m["promoted"], m["trials"], first["failed"]) == (0, 1, 16, []) and m["run"]
    assert plain_night(str(store.root), trials=0, say=calls.append)["models"][0]["changes"] == []

    worse = tmp_path / "cc"
    real = shutil.which("gcc")
    assert real is not None
    worse.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "cc 0.1"; exit; fi\nexec {real} "$@" -O0\n')
    worse.chmod(0o755)
    monkeypatch.setenv("TILEWRIGHT_CC", str(worse))
    document = plain_night(str(store.root), trials=0, say=calls.append)
    (c,) = document["models"][0]["changes"]
    assert (
        c["name"].startswith("matmul") and list(c["changed"]) == ["compiler"] and c["causes"]["compiler"][1] == "cc 0.1"
    )
    assert c["ratio"] > 1.5 and c["confidence"] > 0.99
    (shift,) = rows(store.root, "SELECT changed, ratio FROM shifts")
    assert shift == {"changed": "compiler", "ratio": c["ratio"]}
    assert {d["table"] for d in document["compacted"]} >= {"measurements", "checks"}
    assert Path(document["report"] or first["report"] or tmp_path).exists()
