"""What nights leave in the store: decisions count, causes are named, and a store from before there were nights answers."""

from __future__ import annotations

import shutil

import pyarrow.parquet as pq
import pytest

from data.files import publish
from data.parts import encode, new_part
from data.query import ask, names, params_of, run
from data.schema import TABLES, conform
from data.store import Store

TARGET = "cpu-x86_64-v64-t1"
W = {"workload": "w", "target": TARGET, "device": "d"}
NEW = ("environments", "registrations", "checks", "shifts", "promotions", "nights")


def best(store: Store) -> str:
    (found,) = run(store, "best_program", **W).to_pylist()
    return str(found["program"])


def test_the_last_decision_counts_a_nights_or_a_finalists_round(store, make_row):
    def confirmed(minute, program, ms, name):
        row = make_row("measurements", minute, program=program, run=name, best_seconds=ms * 1e-3, confirmed=True)
        store.append("measurements", [row])

    store.append("programs", [make_row("programs", key=key) for key in "abc"])
    confirmed(1, "a", 2.0, "r1")
    confirmed(1, "b", 3.0, "r1")
    assert best(store) == "a"
    store.append("promotions", [make_row("promotions", 5, program="b", rival="a", promoted=False)])
    assert best(store) == "b", "a night has decided"
    store.append("promotions", [make_row("promotions", 6, program="c", target="other"),
                                make_row("promotions", 6, program="c", device="e")])  # fmt: skip
    assert best(store) == "b", "not for another place"
    confirmed(9, "a", 2.0, "r2")
    assert best(store) == "a", "a finalists' round came later"
    store.append("promotions", [make_row("promotions", 10, program="b")])
    wrong = {"best_seconds": None, "verified": False, "error_kind": "wrong"}
    store.append("measurements", [make_row("measurements", 11, program="b", **wrong)])
    assert best(store) == "a", "what was ever wrong stands nowhere"
    (standing,) = run(store, "standing", target=TARGET, device="d").to_pylist()
    assert (standing["program"], standing["choices"]) == ("b", [1, 2, 3])


def test_regressions_name_the_columns_of_the_environment(store, make_row):
    store.append("environments", [
        make_row("environments", key="e1"), make_row("environments", key="e2", kernel="Linux 7", microcode="0x2"),
        make_row("environments", key="e3", kernel="Linux 7", microcode="0x2", code="0.2 b", libraries="libc 3"),
    ])  # fmt: skip
    for minute, ms, environment in ((1, 1.0, "e1"), (2, 1.2, "e2"), (3, 1.5, "e3")):
        night = f"n{minute}"
        store.append("checks", [
            make_row("checks", minute, night=night, round=n, seconds=(ms + n / 100) * 1e-3, environment=environment)
            for n in range(3)
        ])  # fmt: skip
    store.append("runs", [make_row("runs", key="r9", environment="e3")])
    confirmed = {"run": "r9", "best_seconds": 3e-3, "confirmed": True, "compiler": "cc 1", "flags": "-O3"}
    store.append("measurements", [make_row("measurements", 9, **confirmed)])
    found = run(store, "regressions", target=TARGET, workload="w", ratio=None).to_pylist()
    assert {r["run"]: r["changed"] for r in found} == {"n2": "kernel, microcode", "n3": "code, libraries", "r9": "time"}
    assert {r["run"]: r["samples"] for r in found} == {"n2": 3, "n3": 3, "r9": 1}


def test_what_is_normal_begins_anew_with_a_change(store, make_row):
    store.append("environments", [make_row("environments")])

    def checked(minute, night, **values):
        store.append("checks", [make_row("checks", minute, night=night, **values)])

    def nights():
        given = {"workload": "w", "program": "p", "target": TARGET, "device": "d"}
        return run(store, "checked", **given)["night"].to_pylist()

    checked(1, "a")
    checked(2, "b")
    checked(2, "b", program="other")
    checked(2, "b", device="e")
    assert nights() == ["a", "b"]
    store.append("shifts", [make_row("shifts", 3, night="b", program="other")])
    assert nights() == ["a", "b"]
    store.append("shifts", [make_row("shifts", 3, night="b")])
    assert nights() == ["b"], "the night that saw it is the first of the new ones"
    checked(4, "c")
    assert nights() == ["b", "c"]


def test_weighed_nights_the_latest_first(store, make_row):
    store.append("nights", [
        make_row("nights", 1, key="a", model_seconds=1e-3, library="lib 1", library_seconds=2e-3),
        make_row("nights", 2, key="unweighed"),
        make_row("nights", 3, key="elsewhere", device="e", model_seconds=1e-3, library="lib 1", library_seconds=2e-3),
    ])  # fmt: skip
    (found,) = run(store, "weighed", registration="m t1", device="d").to_pylist()
    assert (found["night"], found["ratio"]) == ("a", pytest.approx(2.0))


# ---------------------------------------------------------------------------------------------- older stores


@pytest.fixture
def old(whole_store) -> Store:
    """As a Tilewright without nights has left it: six tables and a column of `runs` are missing."""
    for name in NEW:
        shutil.rmtree(whole_store.folder(name))
    for path in list(whole_store.folder("runs").glob("*.parquet")):
        rows = pq.read_table(path).drop_columns(["environment"])
        path.unlink()
        if path.name == "seed.parquet":
            pq.write_table(rows, path)
        else:
            payload = encode(TABLES["runs"], rows)
            publish(new_part(whole_store.folder("runs"), payload), payload)
    return whole_store


def test_an_older_store_answers_every_question(old):
    given = {"run": "r", "workload": "w", "target": TARGET, "device": "d", "key": "", "program": "fast", "model": "m"}
    for name in names():
        run(old, name, **{param: given.get(param) for param in params_of(name)})
    assert run(old, "run_summary", run=None).num_rows == 2
    assert ask(old, "SELECT environment FROM runs").to_pylist() == [{"environment": None}] * 3
    assert ask(old, "SELECT * FROM nights").to_pylist() == []
    assert not old.folder("nights").exists(), "asking makes nothing"


def test_an_older_store_is_made_whole_when_it_is_opened(old, make_row):
    Store.open(old.root)
    for name in NEW:
        old.append(name, [make_row(name)])
        assert ask(old, f"SELECT count(*) AS n FROM {name}").to_pylist() == [{"n": 1}]
    assert conform(TABLES["runs"], [make_row("runs", environment="e")]).num_rows == 1
    for table in TABLES:
        old.compact(table)
        assert not old.parts(table).skipped
    assert run(old, "run_summary", run=None).num_rows == 2
