"""The scale bar at a small size: what it draws is a store like any other, and every question has an answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.query import connect, names
from data.scale import fill, params, wide
from data.store import Store

ROOT = Path(__file__).parents[2]
ROWS = 11_000  # a whole run and a part of one


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Store:
    store = Store.open(tmp_path_factory.mktemp("drawn") / "store")
    fill(store, ROWS, seed=3)
    return store


def test_what_is_drawn_looks_like_tuning(drawn):
    with connect(drawn) as connection:
        (row,) = connection.duckdb.sql(
            "SELECT count(*), count(DISTINCT run), count(DISTINCT error_kind), avg(confirmed::INT), avg(len(seconds_warm)) "
            "FROM measurements"
        ).fetchall()
        assert row[:3] == (ROWS, 2, 4)
        assert row[3] == pytest.approx(0.12, abs=0.01) and row[4] == pytest.approx(6.7, abs=0.5)
        lost = (
            "SELECT count(*) FROM measurements m ANTI JOIN programs p ON p.key = m.program AND p.workload = m.workload"
        )
        assert connection.duckdb.sql(lost).fetchall() == [(0,)]


def test_the_same_seed_draws_the_same(drawn, store):
    fill(store, ROWS, seed=3)
    for table in ("measurements", "programs", "rounds"):
        ours, theirs = ([path.name[-16:] for path in s.parts(table).files] for s in (store, drawn))
        assert ours == theirs, "the checksums of the parts"


EMPTY = ("regressions", "imported_keys", "others")  # the runs share no workload; nothing is imported


def test_every_question_has_an_answer(drawn):
    with connect(drawn) as connection:
        given = params(connection)
        assert set(given) == set(names())
        for name, chosen in given.items():
            if name not in EMPTY:
                assert connection.run(name, **chosen).num_rows, name
            everything = wide(name, chosen)
            assert everything is None or None in everything.values()


@pytest.mark.slow
def test_the_command_prints_the_bars(tmp_path):
    command = [sys.executable, "-m", "data.scale", "--rows", "2000", "--store", str(tmp_path / "store")]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert "2000 measurements: drawn in" in done.stdout, done.stderr
    assert "bytes a measurement" in done.stdout and "slowest question" in done.stdout
    again = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert "2000 measurements: drawn in 0 s" in again.stdout, again.stderr
