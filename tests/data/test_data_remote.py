"""Copies of a store: what either has measured, both have; merged parts go everywhere; kills and strangers cost nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from data import remote
from data.remote import Place
from data.schema import TABLES, StoreError
from data.store import Store, StoreWarning

TABLE = "rounds"


def row(number: int) -> dict[str, object]:
    return {
        "run": "r", "round": number, "workload": "w", "proposed": 1, "measured": 1, "failed": 0, "search_seconds": 0.1,
        "train_seconds": 0.1, "build_seconds": 0.1, "measure_seconds": 0.1,
    }  # fmt: skip


def add(store: Store, *numbers: int) -> None:
    for number in numbers:
        store.append(TABLE, [row(number)])


def rounds(store: Store) -> list[int]:
    """In the store, doubles and all."""
    import pyarrow.parquet as pq

    return sorted(n for path in store.parts(TABLE).files for n in pq.read_table(path).column("round").to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> str:
    return (tmp_path / "elsewhere").as_uri()


@pytest.fixture
def copies(tmp_path: Path) -> tuple[Store, Store]:
    return Store.open(tmp_path / "one"), Store.open(tmp_path / "two")


def there(place: str) -> set[str]:
    return {name for name in Place.at(place).names(TABLE) if name.endswith(".parquet")}


def check_the_same(place: str, one: Store, two: Store, wanted: list[int]) -> None:
    """After everybody has synced: the same parts everywhere, every row once."""
    for store in (one, two, one):
        remote.sync(store, place)
    assert rounds(one) == rounds(two) == wanted
    here = {path.name for path in one.parts(TABLE).files} - {"seed.parquet"}
    assert there(place) == here


def check_copies(place: str, one: Store, two: Store) -> None:
    """The life of two copies of a place."""
    add(one, 1, 2)
    add(two, 3)
    (sent,) = [s for s in remote.sync(one, place) if s.table == TABLE]
    assert (sent.sent, sent.received, sent.dropped) == (2, 0, 0)
    (both,) = [s for s in remote.sync(two, place) if s.table == TABLE]
    assert (both.sent, both.received) == (1, 2) and rounds(two) == [1, 2, 3] and rounds(one) == [1, 2]
    check_the_same(place, one, two, [1, 2, 3])
    assert all(s.sent == s.received == s.dropped == 0 for s in remote.sync(one, place)), "nothing is left to do"

    add(two, 4)  # while the other merges
    done = {c.table: c for c in remote.compact(one, place)}
    assert done[TABLE].replaced == 3 and len(there(place)) == 1
    check_the_same(place, one, two, [1, 2, 3, 4])
    remote.compact(two, place)
    add(one, 5)
    check_the_same(place, one, two, [1, 2, 3, 4, 5])
    assert len(there(place)) == 2


def test_two_copies_of_a_folder(place, copies):
    check_copies(place, *copies)


def test_a_copy_that_was_away_brings_nothing_back(place, copies, tmp_path):
    one, two = copies
    add(one, 1, 2, 3)
    remote.sync(one, place)
    remote.sync(two, place)
    for number in (4, 5):  # merged twice meanwhile, so that the first merged part is gone too
        remote.compact(one, place)
        add(one, number)
    remote.compact(one, place)
    add(two, 6)
    check_the_same(place, one, two, [1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize("writes", range(12))
def test_a_kill_at_any_write_is_finished_by_the_next_sync(place, copies, monkeypatch, writes):
    one, two = copies
    add(one, 1, 2)
    add(two, 3)
    remote.sync(two, place)
    count = iter(range(1000))
    write, publish, remove = Place.write, remote.publish, Place.remove

    def dying(call):
        def wrapped(*arguments):
            if next(count) >= writes:
                raise KeyboardInterrupt
            return call(*arguments)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(Place, "write", dying(write))
        patch.setattr(Place, "remove", dying(remove))
        patch.setattr(remote, "publish", dying(publish))
        with suppress(KeyboardInterrupt):
            remote.compact(one, place)
    for name in Place.at(place).names("locks"):  # the mark of the dead one, six hours later
        Place.at(place).remove(f"locks/{name}")
    check_the_same(place, one, two, [1, 2, 3])


def test_one_process_merges_at_a_time(place, copies):
    one, two = copies
    add(one, 1, 2)
    remote.sync(one, place)
    Place.at(place).write(f"locks/{remote.MARK}{remote.unique_name()}", b"")
    with pytest.raises(StoreError, match="another process merges"):
        remote.compact(two, place)
    assert len(Place.at(place).names("locks")) == 1, "that of the other"
    old = Place.at(place).names("locks")[0]
    Place.at(place).remove(f"locks/{old}")
    Place.at(place).write(f"locks/{remote.MARK}{1:020d}-1-x", b"")  # of 1970
    remote.compact(two, place)
    assert Place.at(place).names("locks") == [] and rounds(two) == [1, 2]


def test_a_copy_merges_with_its_place_only(place, copies):
    one, _ = copies
    assert one.copy_of is None
    remote.sync(one, place)
    assert one.copy_of == place
    with pytest.raises(StoreError, match=r"is a copy of .*sync --compact"):
        one.compact(TABLE)


def test_strangers_and_damage_stay_where_they_are(place, copies, tmp_path):
    one, two = copies
    add(one, 1)
    remote.sync(one, place)
    folder = tmp_path / "elsewhere" / TABLE
    (good,) = folder.glob("*.parquet")
    torn = folder / good.name.replace(good.name[:20], "0" * 20)
    torn.write_bytes(good.read_bytes()[:-9])
    (folder / "stranger.parquet").write_bytes(b"x")
    (folder / "retired").mkdir(exist_ok=True)
    (folder / "retired" / "bad.json").write_text("[]")
    with pytest.warns(StoreWarning, match="left out"):
        remote.sync(two, place)
    assert rounds(two) == [1] and torn.exists()
    (one.folder(TABLE) / "mine.parquet").write_bytes(b"y")
    with pytest.warns(StoreWarning):
        remote.sync(one, place)
    assert not (folder / "mine.parquet").exists()


@pytest.mark.parametrize("address", ["nowhere", "ftp://host/folder", ""])
def test_what_is_no_address_is_said(copies, address):
    with pytest.raises(StoreError, match=r"^cannot open .*; write s3://bucket/folder"):
        remote.sync(copies[0], address)


def test_another_thing_there_is_left_alone(place, copies, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "thesis.tex").write_text("x")
    with pytest.raises(StoreError, match="not empty, and no store"):
        remote.sync(copies[0], place)
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    shutil.rmtree(other)
    other.mkdir()
    (other / "store.json").write_text(json.dumps({"tilewright_store": 99}))
    with pytest.raises(StoreError, match="layout 99"):
        remote.sync(copies[0], place)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server on loopback."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    import boto3

    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    server.start()
    host, port = server.get_host_and_port()
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="tuning")
    yield f"s3://tuning/team/store?endpoint_override={host}:{port}&scheme=http"
    server.stop()


def test_two_copies_of_a_bucket(bucket, copies):
    check_copies(bucket, *copies)
    assert set(Place.at(bucket).names("")) == {"store.json"} and TABLE in TABLES


def test_a_bucket_that_is_not_there_is_said(bucket, copies):
    with pytest.raises(StoreError, match="absent"):
        remote.sync(copies[0], bucket.replace("tuning", "absent"))
