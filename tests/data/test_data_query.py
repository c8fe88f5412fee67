"""Questions are answered whatever lies among the parts, and what was left out is said."""

from __future__ import annotations

import os
import warnings

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data import parts as parts_module
from data.parts import Parts
from data.query import QueryError, ask, connect, run, skipped, truncated
from data.schema import TABLES
from data.store import Store, StoreError, StoreWarning

ASKED = {"workload": "w", "target": "cpu-x86_64-v64-t1", "device": "d"}


def damage(path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "torn":
        content = content[: len(content) // 2]
    elif how == "cut by one":
        content = content[:-1]
    elif how == "empty":
        content = bytearray()
    elif how == "first byte":
        content[0] ^= 1
    elif how == "data":
        content[len(content) // 4] ^= 1
    elif how == "footer":
        content[-100] ^= 1
    elif how == "last byte":
        content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["torn", "cut by one", "empty", "first byte", "data", "footer", "last byte"])
def test_a_damaged_part_is_left_out_and_said(store, make_row, how):
    store.append("measurements", [make_row("measurements", program="whole")])
    damage(store.append("measurements", [make_row("measurements", program="damaged")]), how)
    store.append("measurements", [make_row("measurements", program="later")])
    with pytest.warns(StoreWarning, match=r"^1 files in .* left out, the first is \S+: damaged: not the bytes"):
        answer = run(store, "history", **ASKED)
    assert sorted(answer["program"].to_pylist()) == ["later", "whole"]
    assert skipped(answer) == 1


def test_foreign_files_are_left_out_and_said(store, make_row):
    store.append("measurements", [make_row("measurements", program="whole")])
    folder = store.folder("measurements")
    pq.write_table(pa.table({"program": [1]}), folder / "theirs.parquet")
    os.link(store.append("runs", [make_row("runs")]), folder / f"{0:020d}-1-{'0' * 16}-00000000.parquet")
    moved = store.append("runs", [make_row("runs")])
    os.link(moved, folder / moved.name)
    (folder / "nowhere.parquet").symlink_to(folder / "gone")
    (folder / "folder.parquet").mkdir()
    (folder / "readme.txt").write_text("not a part, and no trouble")
    with pytest.warns(StoreWarning, match=r"^5 files"):
        answer = run(store, "history", **ASKED)
    assert answer["program"].to_pylist() == ["whole"]
    assert skipped(answer) == 5
    reasons = {bad.path.name: bad.reason for bad in store.parts("measurements").skipped}
    assert reasons[moved.name] == "not a part of measurements"


def test_a_large_damaged_part_is_found_when_it_is_in_the_way(store, make_row, monkeypatch):
    monkeypatch.setattr(parts_module, "CHECKED_BYTES", 0)  # every part counts as large: its bytes are not read at first
    store.append("measurements", [make_row("measurements", program="whole")])
    path = store.append("measurements", [make_row("measurements", program="damaged")])
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)
    path.write_bytes(content)
    assert store.parts("measurements").skipped == ()
    with pytest.warns(StoreWarning, match=r"^1 files"):
        assert run(store, "history", **ASKED)["program"].to_pylist() == ["whole"]
    with pytest.warns(StoreWarning, match=r"^1 files"):
        assert ask(store, "SELECT program FROM measurements")["program"].to_pylist() == ["whole"]


def test_a_whole_store_is_answered_without_a_word(store, make_row):
    store.append("measurements", [make_row("measurements")])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert skipped(run(store, "history", **ASKED)) == 0


def test_a_connection_sees_what_was_appended_later(store, make_row):
    with connect(store) as connection:
        for count in range(3):
            assert run(connection, "history", **ASKED).num_rows == count
            store.append("measurements", [make_row("measurements")])


def test_a_part_that_vanishes_between_listing_and_reading_is_listed_again(store, make_row, monkeypatch):
    for name in "ab":
        store.append("measurements", [make_row("measurements", program=name)])
    stale = [store.parts("measurements")]
    store.compact("measurements")
    real = Store.parts
    with connect(store) as connection:
        monkeypatch.setattr(
            Store,
            "parts",
            lambda self, table, deep=False: (
                stale.pop() if stale and table == "measurements" else real(self, table, deep)
            ),
        )
        assert sorted(connection.run("history", **ASKED)["program"].to_pylist()) == ["a", "b"]
    assert stale == []


def test_a_question_at_fault_is_told_from_files_at_fault(whole_store, make_row, monkeypatch):
    """Also while others append: their new parts are no reason to ask again."""
    listed = []
    real = Store.parts

    def parts(self: Store, table: str, deep: bool = False) -> Parts:
        listed.append(table)
        self.append("runs", [make_row("runs")])
        return real(self, table, deep)

    monkeypatch.setattr(Store, "parts", parts)
    with pytest.raises(QueryError, match=r"^Conversion Error: "):
        run(whole_store, "top_k", k="many", **ASKED)
    assert len(listed) <= 4 * len(TABLES)


def test_a_store_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match=r"^cannot read .*: No such file or directory$"):
        run(Store(tmp_path / "nothing"), "errors", run=None)
    with pytest.raises(StoreError, match=r"^cannot read "):
        ask(Store(tmp_path / "nothing"), "SELECT 1")


def test_a_lost_seed_is_said_and_put_back(store, make_row):
    (store.folder("runs") / "seed.parquet").unlink()
    with pytest.raises(StoreError, match=r"^not one readable file in table runs; Store.open puts its seed back$"):
        run(store, "errors", run=None)
    assert run(Store.open(store.root), "errors", run=None).num_rows == 0


def test_values_are_values_whatever_they_look_like(store, make_row):
    odd = "w'; DROP VIEW measurements; --"
    store.append("measurements", [make_row("measurements", workload=odd, program="$run")])
    with connect(store) as connection:
        assert connection.run("history", **{**ASKED, "workload": odd})["program"].to_pylist() == ["$run"]
        assert connection.run("history", **ASKED).num_rows == 0


def test_ask_answers_select_and_explain(whole_store):
    answer = ask(whole_store, "SELECT error_kind, count(*) AS n FROM measurements GROUP BY ALL ORDER BY ALL")
    assert [tuple(row.values()) for row in answer.to_pylist()] == [("crash", 1), ("wrong", 2), (None, 10)]
    assert not truncated(answer)
    assert "PARQUET" in str(ask(whole_store, " explain analyze SELECT max(score) FROM measurements").to_pylist())


def test_ask_gives_the_first_rows_and_says_that_there_are_more(store):
    answer = ask(store, "FROM range(3000)", limit=2500)
    assert answer["range"].to_pylist() == list(range(2500))
    assert truncated(answer)


def test_ask_says_where_a_query_is_wrong(store):
    with pytest.raises(QueryError, match=r"^Catalog Error: Table with name measurement does not exist!$"):
        ask(store, "FROM measurement")
