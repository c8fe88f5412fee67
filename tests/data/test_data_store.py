"""The store keeps what it was given, whole, whoever writes, whatever dies."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.files import STALE_SECONDS, publish
from data.parts import encode, new_part, read_part
from data.query import connect
from data.schema import TABLES, conform
from data.store import Store, StoreError

FULL = OSError(errno.ENOSPC, "No space left on device")


def rows_of(store: Store, table: str) -> list[dict]:
    with connect(store) as connection:
        return connection.duckdb.sql(f"FROM {table}").to_arrow_table().to_pylist()


def test_a_row_comes_back_as_it_went_in(store, make_row):
    for table in TABLES:
        store.append(table, [make_row(table)])
    with connect(store) as connection:
        for table in TABLES:
            assert connection.duckdb.sql(f"FROM {table}").to_arrow_table().to_pylist() == [make_row(table)]


def test_nullable_columns_may_be_left_out(store, make_row):
    for table, definition in TABLES.items():
        needed = {column.name for column in definition.columns if not column.null} - {"created"}
        path = store.append(table, [{name: value for name, value in make_row(table).items() if name in needed}])
        (row,) = read_part(path).to_pylist()
        assert {name for name, value in row.items() if value is None} == set(row) - needed - {"created"}


def test_an_arrow_table_and_numpy_values_are_rows_too(store, make_row):
    rows = pa.Table.from_pylist([make_row("programs", key="a"), make_row("programs", key="b")])
    store.append("programs", rows)
    numpy_choices = numpy.array([4, 5], numpy.int64)
    store.append("programs", [make_row("programs", key="c", choices=numpy_choices, prediction=numpy.float32(0.25))])
    assert [(row["key"], row["choices"]) for row in rows_of(store, "programs")] == [
        ("a", [1, 2, 3]), ("b", [1, 2, 3]), ("c", [4, 5]),
    ]  # fmt: skip


def test_every_column_says_what_it_means():
    for table in TABLES.values():
        for field in table.arrow:
            assert len(field.metadata[b"doc"]) > 2, f"{table.name}.{field.name}"
        assert conform(table, []).schema.equals(table.arrow, check_metadata=True)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"secnds_warm": [1.0]}, "measurements has no column 'secnds_warm'"),
        ({"program": None}, "measurements.program: a value is missing"),
        ({"threads": "two"}, "measurements.threads: "),
        ({"threads": 2**40}, "measurements.threads: "),
        ({"best_seconds": 1e10}, "measurements.best_seconds: not a time"),
        ({"best_seconds": 0.0}, "measurements.best_seconds: not a time"),
        ({"best_seconds": float("inf")}, "measurements.best_seconds: not a time"),
        ({"score": float("nan")}, "measurements.score: not a time"),
        ({"build_seconds": -1.0}, "measurements.build_seconds: not a time"),
        ({"seconds_warm": [1.0, float("inf")]}, "measurements.seconds_warm: not a time"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_by_name(store, make_row, values, words):
    with pytest.raises(StoreError, match=f"^{words}") as refused:
        store.append("measurements", [make_row("measurements"), {**make_row("measurements"), **values}])
    assert "\n" not in str(refused.value)
    assert rows_of(store, "measurements") == []


def test_an_unknown_table_is_refused(store):
    with pytest.raises(StoreError, match="no table named 'tasks'; there are workloads,"):
        store.append("tasks", [])


@pytest.mark.parametrize("form", ["rows", "Arrow"])
def test_rows_of_a_batch_keep_their_order(store, make_row, form):
    rows = [{name: value for name, value in make_row("runs", key=key).items() if name != "created"} for key in "cab"]
    for _ in range(2):
        store.append("runs", rows if form == "rows" else pa.Table.from_pylist(rows))
    ordered = sorted(rows_of(store, "runs"), key=lambda row: row["created"])
    assert [row["key"] for row in ordered] == list("cabcab")


def test_no_rows_make_no_part(store):
    before = store.parts("runs")
    assert store.append("runs", []) in before.files
    assert store.parts("runs") == before


def test_names_are_ordered_by_time_and_never_equal(store, make_row):
    paths = [store.append("runs", [make_row("runs", key=str(i))]) for i in range(20)]
    assert paths == sorted(set(paths))


def test_a_part_is_compressed_and_says_what_it_is(store, make_row):
    metadata = pq.read_metadata(store.append("runs", [make_row("runs")]))
    assert metadata.row_group(0).column(0).compression == "ZSTD"
    assert metadata.metadata[b"tilewright.table"] == b"runs"
    assert metadata.metadata[b"tilewright.schema"] == b"1"


def test_pages_carry_checksums_for_other_readers(store, make_row):
    path = store.append("runs", [make_row("runs")])
    column = pq.read_metadata(path).row_group(0).column(0)
    damaged = bytearray(path.read_bytes())
    damaged[column.data_page_offset + 20] ^= 1
    start = column.dictionary_page_offset or column.data_page_offset
    damaged[start + column.total_compressed_size - 1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(OSError, match=r"(?i)crc|checksum"):
        read_part(path)


# ---------------------------------------------------------------- opening


def test_opening_twice_changes_nothing(store, make_row):
    store.append("runs", [make_row("runs")])
    before = sorted(path for path in store.root.rglob("*"))
    assert Store.open(store.root) == store
    assert sorted(path for path in store.root.rglob("*")) == before


def test_many_may_open_a_new_store_at_once(tmp_path, make_row):
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: Store.open(tmp_path / "s"), range(8)))
    assert len(set(stores)) == 1
    assert rows_of(stores[0], "runs") == []


@pytest.mark.parametrize("where", ["store", "store/below", "store/measurements"])
def test_a_file_where_a_folder_should_be(tmp_path, where):
    if where == "store/measurements":
        (tmp_path / "store").mkdir()
        (tmp_path / where).write_text("")
    else:
        (tmp_path / "store").write_text("")
    with pytest.raises(StoreError, match=r"^a file stands where a folder should be: .*store"):
        Store.open(tmp_path / where if where != "store/measurements" else tmp_path / "store")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_cannot_be_written(tmp_path, failing, number):
    (tmp_path / "store").mkdir()
    refused = OSError(number, os.strerror(number))
    with failing(os, "open", refused), pytest.raises(StoreError, match=r"^not writable: .*"):
        Store.open(tmp_path / "store")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"tilewright_store": 2}', "has store layout 2, this Tilewright reads 1"),
        ('{"other": 1}', "not a Tilewright store"),
        ("[]", "not a Tilewright store"),
        ("", "not a Tilewright store"),
        ("\xff\xfe", "not a Tilewright store"),
    ],
)
def test_another_layout_is_refused_and_left_alone(store, content, words):
    (store.root / "store.json").write_text(content, encoding="latin-1")
    with pytest.raises(StoreError, match=words):
        Store.open(store.root)
    assert (store.root / "store.json").read_text(encoding="latin-1") == content


def test_parts_of_a_newer_version_are_refused(store, make_row):
    newer = replace(TABLES["runs"], version=9)
    payload = encode(newer, conform(newer, [make_row("runs")]))
    path = publish(new_part(store.folder("runs"), payload), payload)
    with pytest.raises(StoreError, match=r"newer Tilewright .runs version 9, this one reads 1.; upgrade"):
        Store.open(store.root)
    assert path.exists()


def test_a_lost_or_outdated_seed_is_written_again(store):
    (store.folder("runs") / "seed.parquet").unlink()
    old = pq.read_table(store.folder("rounds") / "seed.parquet").drop_columns(["model_recall"])
    pq.write_table(old, store.folder("rounds") / "seed.parquet")
    Store.open(store.root)
    assert rows_of(store, "runs") == rows_of(store, "rounds") == []
    assert "model_recall" in pq.read_schema(store.folder("rounds") / "seed.parquet").names


def test_what_dead_writers_left_is_ignored_then_swept(store):
    old, young = (store.folder("runs") / f".{age}.parquet-1.tmp" for age in ("old", "young"))
    for path in (old, young):
        path.write_bytes(b"half a pa")
    os.utime(old, (time.time() - STALE_SECONDS - 60,) * 2)
    assert store.parts("runs").skipped == ()
    Store.open(store.root)
    assert (old.exists(), young.exists()) == (False, True)


# ---------------------------------------------------------------- a full disk


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_refuses_in_one_line_and_leaves_nothing(store, make_row, failing, call):
    store.append("runs", [make_row("runs", key="before")])
    with failing(os, call, FULL), pytest.raises(StoreError, match=r"^disk full: cannot write .*runs/\S+$"):
        store.append("runs", [make_row("runs", key="lost")])
    assert not [path for path in store.folder("runs").iterdir() if path.suffix == ".tmp"]
    store.append("runs", [make_row("runs", key="after")])
    assert [row["key"] for row in rows_of(store, "runs")] == ["before", "after"]


def test_a_full_disk_at_opening(tmp_path, failing):
    with failing(os, "write", FULL), pytest.raises(StoreError, match=r"^disk full: cannot write .*store.json"):
        Store.open(tmp_path / "store")


def test_a_folder_that_cannot_be_synced_is_said_and_no_row_is_doubled(store, make_row, failing):
    with failing(os, "fsync", FULL, after=1), pytest.warns(UserWarning, match="could not be synced"):
        store.append("runs", [make_row("runs")])
    assert len(rows_of(store, "runs")) == 1


# ---------------------------------------------------------------- several processes, and sudden death

WRITER = """
import json, sys
from pathlib import Path
from data.store import Store
store, name, batches, row = Store(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
print("ready", flush=True)
for batch in range(batches):
    store.append("measurements", [{**row, "run": f"{name}-{batch}", "program": f"{name}-{batch}-{i}"} for i in range(7)])
    print(batch, flush=True)
"""


@pytest.fixture
def batch_row(make_row) -> str:
    return json.dumps({name: value for name, value in make_row("measurements").items() if name != "created"})


def test_a_killed_writer_loses_at_most_the_part_it_was_writing(store, child, batch_row):
    draw = random.Random(0)
    writers = [child(WRITER, store.root, name, 10_000, batch_row) for name in range(3)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    acknowledged = []
    for name, writer in enumerate(writers):
        time.sleep(draw.uniform(0.05, 0.2))
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged += [f"{name}-{line.strip()}" for line in writer.communicate()[0].splitlines() if line.strip()]
    found = store.parts("measurements", deep=True)
    assert found.skipped == ()
    batches = [read_part(path) for path in found.files[1:]]
    assert {batch.num_rows for batch in batches} == {7}
    names = [batch["run"][0].as_py() for batch in batches]
    assert len(names) == len(set(names))
    assert set(acknowledged) <= set(names)
    assert len(names) <= len(acknowledged) + len(writers)  # the last one of each may be there without a word
    assert len(acknowledged) > 8


def test_writers_and_a_reader_at_once(store, child, batch_row):
    writers = [child(WRITER, store.root, name, 20, batch_row) for name in range(3)]
    asked = {"workload": "w", "target": json.loads(batch_row)["target"], "device": "d"}
    seen = [0]
    with connect(store) as connection:
        while any(writer.poll() is None for writer in writers):
            seen.append(connection.run("measured_keys", **asked).num_rows)
        seen.append(connection.run("measured_keys", **asked).num_rows)
    assert seen == sorted(seen)
    assert {count % 7 for count in seen} == {0}
    assert seen[-1] == len(rows_of(store, "measurements")) == 3 * 20 * 7


def test_a_store_may_be_moved(store, make_row, tmp_path: Path):
    store.append("runs", [make_row("runs")])
    moved = tmp_path / "it's a [b]racket {x,y} * 'q=1"
    store.root.rename(moved)
    assert [row["key"] for row in rows_of(Store.open(moved), "runs")] == ["r"]
