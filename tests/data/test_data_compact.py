"""Compaction loses no row and doubles none: for a reader beside it, for a kill at any step, for a full disk."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import threading
import time
from dataclasses import replace

import pyarrow as pa
import pytest

from data import compact as compaction_module
from data import parts as parts_module
from data import schema
from data.files import publish
from data.order import BITS, NOISY, depth, rounded
from data.parts import Manifest, encode, hide, new_part, read_manifest, read_part
from data.query import Connection, connect
from data.store import Store, StoreError

ASKED = {"workload": "w", "target": "cpu-x86_64-v64-t1", "device": None}


class Killed(BaseException):
    """Stands for SIGKILL at one call."""


def fill(store: Store, make_row, batches: int, rows: int = 3, start: int = 0) -> set[str]:
    names = {f"{batch}-{i}" for batch in range(start, start + batches) for i in range(rows)}
    for batch in range(start, start + batches):
        store.append("measurements", [make_row("measurements", program=f"{batch}-{i}") for i in range(rows)])
    return names


def rows_of(store: Store) -> list[dict]:
    """Every row that counts, by the listing that questions use."""
    return [row for path in store.parts("measurements").files for row in read_part(path).to_pylist()]


def by_program(store: Store) -> dict[str, dict]:
    return {row["program"]: row for row in rows_of(store)}


def programs(store: Store) -> list[str]:
    return sorted(row["program"] for row in rows_of(store))


def asked(connection: Connection) -> list[str]:
    return sorted(connection.run("history", **ASKED)["program"].to_pylist())


def test_small_parts_become_one_with_the_same_rows(store, make_row):
    names = fill(store, make_row, 6)
    before = by_program(store)
    report = store.compact("measurements")
    assert (report.replaced, len(report.merged), report.rows, report.quarantined) == (6, 1, 18, ())
    assert report.text == "measurements: 6 parts became 1, 18 rows"
    after = by_program(store)
    assert after.keys() == before.keys()
    for name, row in before.items():
        times = {column for column in row if column in NOISY}
        assert {k: v for k, v in after[name].items() if k not in times} == {
            k: v for k, v in row.items() if k not in times
        }
        for column in times:
            assert after[name][column] == (row[column] and pytest.approx(row[column], rel=2.0**-BITS))
    assert len(store.parts("measurements").files) == 2  # the seed stays
    with connect(store) as connection:
        assert asked(connection) == programs(store) == sorted(names)
    assert read_manifest(store.folder("measurements")).hidden == frozenset()


def test_nothing_to_do_is_nothing_done(store, make_row):
    fill(store, make_row, 2)
    store.compact("measurements")
    before = store.parts("measurements")
    assert store.compact("measurements").text == "measurements: 0 parts became 0, 0 rows"
    assert store.parts("measurements") == before


def test_large_parts_are_left_and_groups_are_bounded(store, make_row, monkeypatch):
    names = fill(store, make_row, 9)
    size = store.parts("measurements").files[1].stat().st_size
    monkeypatch.setattr(compaction_module, "MERGED_BYTES", int(size * 4.5))
    report = store.compact("measurements")
    assert (report.replaced, len(report.merged)) == (8, 2)
    monkeypatch.setattr(compaction_module, "SMALL_BYTES", 1)
    assert store.compact("measurements").replaced == 0
    assert programs(store) == sorted(names)


def test_rows_are_ordered_by_workload(store, make_row):
    for workload in "bac":
        store.append("measurements", [make_row("measurements", workload=workload)])
    (merged,) = store.compact("measurements").merged
    assert read_part(merged)["workload"].to_pylist() == ["a", "b", "c"]


def test_failures_and_confirmed_rows_lie_together_then_places(store, make_row):
    for target, workload, values in (
        ("t2", "a", {}), ("t1", "b", {}), ("t1", "a", {"confirmed": True}), ("t1", "a", {"error_kind": "wrong"}), ("t1", "a", {}),
    ):  # fmt: skip
        store.append("measurements", [make_row("measurements", target=target, workload=workload, **values)])
    (merged,) = store.compact("measurements").merged
    assert [(r["error_kind"], r["confirmed"], r["target"], r["workload"]) for r in read_part(merged).to_pylist()] == [
        ("wrong", False, "t1", "a"), (None, True, "t1", "a"), (None, False, "t1", "a"), (None, False, "t1", "b"),
        (None, False, "t2", "a"),
    ]  # fmt: skip


def test_many_parts_are_dealt_out_by_place(store, make_row, monkeypatch):
    """Twelve parts that each hold every workload become parts with workloads of their own."""
    for batch in range(12):
        rows = [make_row("measurements", program=f"{batch}-{w}-{i}", workload=w) for w in "abcdef" for i in range(20)]
        store.append("measurements", rows)
    before, parts = programs(store), store.parts("measurements").files[1:]
    assert depth(parts) == 12
    monkeypatch.setattr(compaction_module, "MERGED_BYTES", sum(path.stat().st_size for path in parts) // 3 + 100)
    monkeypatch.setattr(compaction_module, "DEPTH", 2)
    report = store.compact("measurements")
    assert (report.replaced, len(report.merged), report.rows) == (12, 3, 1440)
    assert [sorted(set(read_part(path)["workload"].to_pylist())) for path in report.merged] == [
        ["a", "b"], ["c", "d"], ["e", "f"],
    ]  # fmt: skip
    assert depth(report.merged) == 1
    assert programs(store) == before


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("call", ["replace", "write", "unlink"])
def test_dying_while_dealing_out_loses_and_doubles_nothing(store, make_row, failing, monkeypatch, call, step):
    for batch in range(6):
        store.append("measurements", [make_row("measurements", program=f"{batch}-{w}", workload=w) for w in "abc"])
    before = programs(store)
    monkeypatch.setattr(compaction_module, "MERGED_BYTES", store.parts("measurements").files[1].stat().st_size)
    monkeypatch.setattr(compaction_module, "DEPTH", 1)
    with failing(os, call, Killed(), after=step), pytest.raises(Killed):
        store.compact("measurements")
        raise Killed  # it needed fewer steps
    assert programs(store) == before
    store.compact("measurements")
    assert programs(store) == before


def test_times_keep_seventeen_bits_and_their_order():
    draw = random.Random(2)
    times = sorted(draw.uniform(1e-9, 1e3) for _ in range(1000))
    once = rounded(pa.table({"best_seconds": times, "seconds_warm": [[t, 2 * t] for t in times], "round": range(1000)}))
    kept = once["best_seconds"].to_pylist()
    assert kept == sorted(kept) and rounded(once) == once
    assert all(abs(a - b) <= b * 2.0**-(BITS) for a, b in zip(kept, times, strict=True))
    assert once["seconds_warm"].to_pylist() == [[t, 2 * t] for t in kept]
    gaps = pa.table({"score": [None, 1.5, None], "seconds_cold": [[], None, [0.1]]})
    assert rounded(gaps)["score"].to_pylist() == [None, 1.5, None]
    assert rounded(gaps)["seconds_cold"].to_pylist()[:2] == [[], None]


# ---------------------------------------------------------------- readers beside it


def test_a_reader_beside_it_sees_every_row_once(store, make_row):
    names = fill(store, make_row, 4)
    acknowledged, stop, answers = [len(names)], threading.Event(), []

    def read() -> None:
        with connect(store) as connection:
            while not stop.is_set():
                least = acknowledged[0]
                answers.append((least, asked(connection)))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for turn in range(8):
        fill(store, make_row, 3, start=100 * (turn + 1))
        acknowledged[0] += 9
        store.compact("measurements")
    stop.set()
    for reader in readers:
        reader.join()
    assert len(answers) > 10
    for least, seen in answers:
        assert len(seen) == len(set(seen)), "a row was doubled"
        assert len(seen) >= least, "a row was lost"


def test_a_listing_is_taken_again_when_the_manifest_changed_under_it(store, make_row, monkeypatch):
    fill(store, make_row, 2)
    manifests = itertools.chain([Manifest("old"), Manifest("new")], itertools.repeat(Manifest("new")))
    monkeypatch.setattr(parts_module, "read_manifest", lambda folder: next(manifests))
    assert len(store.parts("measurements").files) == 3


def test_two_compactions_at_once_take_turns(store, make_row):
    names = fill(store, make_row, 5)
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(store.compact("measurements"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(report.replaced for report in reports) == [0, 0, 5]
    assert programs(store) == sorted(names)


# ---------------------------------------------------------------- sudden death

CALLS = (
    [(os, "replace", step) for step in range(4)]
    + [(os, "write", step) for step in range(4)]
    + [(os, "unlink", step) for step in range(2)]
)


@pytest.mark.parametrize(("owner", "call", "step"), CALLS, ids=[f"{call}-{step}" for _, call, step in CALLS])
@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "full")], ids=["killed", "full"])
def test_dying_at_any_step_loses_and_doubles_nothing(store, make_row, failing, owner, call, step, error):
    names = fill(store, make_row, 3)
    with failing(owner, call, error, after=step) as calls:
        with pytest.raises((Killed, StoreError)) as death:
            store.compact("measurements")
        assert calls[0] > step
    assert isinstance(death.value, Killed) or str(death.value).startswith("disk full: cannot write ")
    assert programs(store) == sorted(names)
    names |= fill(store, make_row, 1, start=50)
    assert programs(store) == sorted(names)
    store.compact("measurements")
    assert programs(store) == sorted(names)
    assert len(store.parts("measurements").files) == 2
    assert len([path for path in store.folder("measurements").iterdir() if path.suffix == ".parquet"]) == 2


COMPACTOR = """
import sys
from pathlib import Path
from data.store import Store
store = Store(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    store.compact("measurements")
"""


def test_kill_9_of_a_compaction_loses_and_doubles_nothing(store, make_row, child):
    draw, connection = random.Random(1), connect(store)
    names = fill(store, make_row, 4)
    for turn in range(2):
        process = child(COMPACTOR, store.root)
        assert process.stdout.readline() == "ready\n"
        deadline = time.monotonic() + draw.uniform(0.05, 0.25)
        while time.monotonic() < deadline:  # there is always something to merge
            names |= fill(store, make_row, 2, start=1000 * (turn + 1) + len(names))
            assert asked(connection) == sorted(names)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert asked(connection) == sorted(names)
    store.compact("measurements")
    assert programs(store) == sorted(names)


def test_a_lost_manifest_at_rest_loses_nothing(store, make_row):
    names = fill(store, make_row, 3)
    store.compact("measurements")
    (store.folder("measurements") / "manifest.json").unlink()
    assert programs(store) == sorted(names)


def test_a_damaged_manifest_is_said(store):
    (store.folder("measurements") / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"^unreadable: .*measurements/manifest.json; remove it and check"):
        programs(store)


def test_what_the_manifest_hides_counts_for_nothing(store, make_row):
    path = store.append("measurements", [make_row("measurements", program="hidden")])
    names = fill(store, make_row, 2)
    hide(store.folder("measurements"), frozenset({path.name}))
    assert programs(store) == sorted(names)
    store.compact("measurements")
    assert not path.exists()
    assert programs(store) == sorted(names)


# ---------------------------------------------------------------- bad files


def test_bad_files_go_to_quarantine_with_their_reason(store, make_row):
    names = fill(store, make_row, 2)
    folder = store.folder("measurements")
    whole = store.append("measurements", [make_row("measurements", program="torn")])
    whole.write_bytes(whole.read_bytes()[:-40])
    flipped = store.append("measurements", [make_row("measurements", program="flipped")])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 4
    flipped.write_bytes(content)
    (folder / "foreign.parquet").write_bytes(b"not at all")
    (folder / "notes.txt").write_text("left alone")
    report = store.compact("measurements")
    assert {bad.path.name: bad.reason for bad in report.quarantined} == {
        whole.name: "damaged: not the bytes that were written",
        flipped.name: "damaged: not the bytes that were written",
        "foreign.parquet": "not a part: it has another kind of name",
    }
    assert "quarantined foreign.parquet: not a part" in report.text
    place = store.root / "quarantine" / "measurements"
    assert (place / f"{whole.name}.txt").read_text() == "damaged: not the bytes that were written\n"
    assert (place / flipped.name).read_bytes() == content
    assert (folder / "notes.txt").exists()
    assert store.parts("measurements").skipped == ()
    assert programs(store) == sorted(names)


# ---------------------------------------------------------------- versions


def publish_as(store: Store, table: schema.Table, rows: list[dict]) -> None:
    payload = encode(table, schema.conform(table, rows))
    publish(new_part(store.folder(table.name), payload), payload)


def test_columns_we_do_not_know_survive(store, make_row):
    extra = schema.Column("frequency_ghz", schema.REAL, "a column of tomorrow", null=True)
    tomorrow = replace(schema.RUNS, columns=(*schema.RUNS.columns, extra))
    store.append("runs", [make_row("runs", key="a")])
    publish_as(store, tomorrow, [make_row("runs", key="b", frequency_ghz=3.5)])
    for _ in range(2):
        with connect(store) as connection:
            found = connection.duckdb.sql("SELECT key, frequency_ghz FROM runs ORDER BY key").fetchall()
        assert found == [("a", None), ("b", 3.5)]
        store.compact("runs")
    assert len(store.parts("runs").files) == 2


def test_parts_of_an_older_version_are_migrated_at_opening(store, make_row, monkeypatch):
    for key in "ab":
        store.append("runs", [make_row("runs", key=key, seed=1)])
    tomorrow = replace(schema.RUNS, version=2)
    monkeypatch.setitem(schema.TABLES, "runs", tomorrow)
    skipped = store.parts("runs").skipped
    assert {bad.reason for bad in skipped} == {"runs version 1, this Tilewright reads 2"}
    with pytest.raises(StoreError, match="no migration of runs from version 1 to 2"):
        Store.open(store.root)

    def double_seeds(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index("seed")
        return rows.set_column(at, "seed", pa.array([2 * seed for seed in rows["seed"].to_pylist()]))

    monkeypatch.setitem(schema.MIGRATIONS, ("runs", 1), double_seeds)
    with connect(Store.open(store.root)) as connection:
        found = connection.duckdb.sql("SELECT key, seed FROM runs ORDER BY key").fetchall()
    assert found == [("a", 2), ("b", 2)]
    assert store.parts("runs").skipped == ()
