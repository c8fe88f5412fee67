"""`tilewright register`, `models`, `unregister` and `nightly`, as a newcomer and a script meet them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from data.store import Store
from flows import night as flow
from tests.data.conftest import NOON, row
from tests.tilewright.test_cli import MODEL
from tilewright.cli import app
from tilewright.commands.nightly import change
from tilewright.errors import BAD_INPUT


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(w) for w in words])


def complaint(done: Result) -> str:
    assert done.exit_code == BAD_INPUT and done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def test_a_model_is_registered_listed_and_taken_away(store: Path) -> None:
    done = invoke("register", MODEL, "--trials", 32, "--store", store)
    assert done.exit_code == 0 and f"{MODEL} t1: 1 workloads, 32 programs a night" in done.stdout
    again = invoke("register", MODEL, "--budget", "1m30s", "--store", store, "--json")
    assert json.loads(again.stdout) == {"registration": f"{MODEL} t1", "model": MODEL, "workloads": 1}
    (known,) = json.loads(invoke("models", "--store", store, "--json").stdout)
    assert (known["registration"], known["budget_seconds"], known["last_run"]) == (f"{MODEL} t1", 90.0, None)
    shown = invoke("models", "--store", store).stdout
    assert f"{MODEL} t1" in shown and "1m30s" in shown and "never" in shown and "none yet" in shown
    assert "no longer tuned at night" in invoke("unregister", MODEL, "--store", store).stdout
    assert "no model is registered" in invoke("models", "--store", store).stdout


def test_how_models_are(store: Path) -> None:
    invoke("register", MODEL, "--store", store)
    key = f"{MODEL} t1"
    weighed = {"model_seconds": 2e-3, "library": "onnxruntime 1", "library_seconds": 3e-3}
    Store(store).append("nights", [row("nights", registration=key, slower=1, **weighed)])
    Store(store).append("runs", [row("runs", model=MODEL, state="finished", finished=NOON)])
    Store(store).append("promotions", [row("promotions")])
    shown = invoke("models", "--store", store).stdout
    for part in (
        "2024-01-01 12:00, finished",
        "2024-01-01: 1 slower, 0 faster of 2",
        "1, last 2024-01-01",
        "2 ms",
        "3 ms",
    ):
        assert part in shown, shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["register"], "Missing argument 'MODEL'"),
        (["register", "nope"], "no model is called 'nope'"),
        (["register", MODEL, "--trials", "0"], "0 trials: at least one"),
        (["register", MODEL, "--threads", "4096"], "cores may be used here"),
        (["register", MODEL, "--budget", "soon"], "--budget 'soon': write a time"),
        (["register", MODEL, "--dim", "x"], "--dim 'x': write NAME=N"),
        (["unregister", "nope"], "there is no store at"),
        (["models"], "there is no store at"),
        (["nightly"], "there is no store at"),
    ],
)
def test_a_mistake_is_one_line_and_makes_nothing(words: list[str], said: str, store: Path) -> None:
    assert said in complaint(invoke(*words, "--store", store))
    assert not store.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nightly", "--plain"], "no model is registered in"),
        (["unregister", "nope"], "no model is registered as 'nope'; there are: none"),
    ],
)
def test_a_store_without_registrations_says_so(words: list[str], said: str, store: Path) -> None:
    Store.open(store)
    assert said in complaint(invoke(*words, "--store", store))


def test_the_mistakes_of_a_night(store: Path) -> None:
    invoke("register", MODEL, "--store", store)
    assert "no model is registered as 'nope'; there are: " in complaint(
        invoke("nightly", "nope", "--plain", "--store", store)
    )
    assert "-1 trials" in complaint(invoke("nightly", "--trials", "-1", "--plain", "--store", store))


# ---------------------------------------------------------------------------------------------- what is printed

SLOWER = {
    "workload": "abc", "name": "matmul_8", "program": "p1", "ratio": 1.124, "confidence": 0.9987, "changed": ["compiler"],
    "before_seconds": 1e-3, "seconds": 1.124e-3, "rounds": 15, "message": "", "causes": {"compiler": ["gcc 12", "gcc 13"]},
}  # fmt: skip


def test_a_change_is_one_line_with_all_that_matters() -> None:
    assert change(SLOWER) == (
        "SLOWER: matmul_8 (abc): 1.12 times its time, 1 ms -> 1.12 ms, 99.87 % sure, 15 rounds; "
        "changed: compiler (gcc 12 -> gcc 13)"
    )
    assert "changed: time" in change({**SLOWER, "changed": ["time"], "causes": {}})
    assert change({**SLOWER, "ratio": 0.8}).startswith("faster: matmul_8 (abc): 1.25 times as fast")
    failed = {**SLOWER, "ratio": None, "changed": ["wrong"], "message": "y[3] is 1, not 2"}
    assert change(failed) == "FAILED: matmul_8 (abc), program p1: wrong: y[3] is 1, not 2"


def test_a_night_with_a_slower_program_ends_with_one(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("register", MODEL, "--store", store)
    figures: dict[str, Any] = {
        "registration": "m t1", "watched": 2, "slower": 1, "faster": 0, "promoted": 1, "trials": 64, "latency_seconds": 2e-3,
        "model_seconds": None, "library_seconds": None, "changes": [SLOWER],
        "decisions": [{"promoted": True, "rival": "p0", "program": "p9", "name": "relu", "ratio": 0.8, "reason": "faster"}],
    }  # fmt: skip
    document = {"models": [figures], "failed": [], "report": None, "report_error": "no plotly"}
    monkeypatch.setattr(flow, "plain_night", lambda **_: document)
    done = invoke("nightly", "--plain", "--store", store)
    assert done.exit_code == 1 and "SLOWER: matmul_8" in done.stdout and "report: no plotly" in done.stdout
    assert "promoted: relu: p9, 1.25 times as fast; faster" in done.stdout
    assert json.loads(invoke("nightly", "--plain", "--json", "--store", store).stdout) == document
    calm = {**document, "models": [{**figures, "slower": 0, "changes": []}]}
    monkeypatch.setattr(flow, "plain_night", lambda **_: calm)
    assert invoke("nightly", "--plain", "--store", store).exit_code == 0
    gone = {**calm, "failed": [{"registration": "m t1", "error": "the file is gone"}]}
    monkeypatch.setattr(flow, "plain_night", lambda **_: gone)
    done = invoke("nightly", "--plain", "--store", store)
    assert done.exit_code == 1 and "not looked at: m t1: the file is gone" in done.stdout
