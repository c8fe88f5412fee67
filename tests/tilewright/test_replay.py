"""`tilewright replay`, as a newcomer and a script meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from data.store import Store
from tests.tasks.test_replay import store
from tilewright.cli import app
from tilewright.errors import BAD_INPUT

__all__ = ["store"]  # the fixture


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, words)])


def complaint(done: Result) -> str:
    assert done.exit_code == BAD_INPUT and done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_a_table_for_people(store: Store) -> None:
    words = ("--store", store.root, "--strategy", "evolution,random,no-budget-rule", "--trials", 32, "--seeds", 2)
    done = invoke("product", *words)
    assert done.exit_code == 0, done.stderr
    assert "mode surrogate: fitted to the recorded programs" in done.stdout and "rank correlation" in done.stdout
    assert "no-budget-rule is evolution here" in done.stdout and "after 32" in done.stdout
    many = invoke("pair", *words, "--mode", "pool")
    assert many.exit_code == 0 and "mode pool: only recorded programs" in many.stdout
    assert "latency after so many trials" in many.stdout


def test_json_is_one_document(store: Store) -> None:
    words = ("--store", store.root, "--strategy", "random", "--seeds", 1, "--mode", "pool", "--json")
    done = invoke(*words)
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and found["trials"] == 128 and found["mode"] == "pool"
    assert [s["name"] for s in found["strategies"]] == ["random"]
    assert json.loads(invoke("pair", *words).stdout)["trials"] == 64


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--strategy", "nope"], "no strategy is called 'nope'; there are evolution, no-crossover,"),
        (["--strategy", ","], "no strategy is named; there are evolution"),
        (["--trials", "0"], "--trials 0: it must be at least 1"),
        (["--seeds", "-1"], "--seeds -1: it must be at least 1"),
        (["--mode", "guess"], "guess"),
        (["nope"], "nothing measured is called 'nope'; there are the models p"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, store: Store) -> None:
    assert said in complaint(invoke(*words, "--store", store.root))


def test_a_store_without_rows_and_none_at_all(tmp_path: Path) -> None:
    Store.open(tmp_path / "empty")
    assert "no measured program" in complaint(invoke("--store", tmp_path / "empty"))
    assert "there is no store at" in complaint(invoke("--store", tmp_path / "none"))
    (tmp_path / "folder").mkdir()
    assert complaint(invoke("--store", tmp_path / "folder"))
    assert not (tmp_path / "none").exists() and not list((tmp_path / "folder").iterdir())
