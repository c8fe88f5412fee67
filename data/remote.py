"""A store in another place, on S3 or on whatever else Arrow opens by an address, kept the same as the one here.

    sync(store, "s3://bucket/tuning")        parts go both ways, until each place has all that count
    compact(store, "s3://bucket/tuning")     the same, and merge small parts, for everybody

Every part has a name that nobody gives again, and never changes, so the copies agree when each has the parts of the
other; a tuner works on the copy here at its own speed. Only merged parts need more: their sources must go everywhere, and
must not come back from a copy that was away. A note says so, and notes are never removed:

    there/measurements/retired/NAME.json     {"merged": [M], "sources": [A, B, C]}

A note is written before M, and counts when all that it merged is there. Parts are listed before notes: so whoever sees M
sees its note. One process at a time may merge; two that try at once both give up (S3 lists what was written before, and
each writes its mark before it looks for others).

Whatever is killed, at any moment, is finished by the next sync: sending comes before dropping, on both sides.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs

from data.compact import RETIRED, Compaction, removed_garbage
from data.files import exclusive, make_folder, publish, unique_name
from data.parts import SEED, SUFFIX, fault_of, hide
from data.sandbox import first_line
from data.schema import TABLES, StoreError
from data.store import COPY_FILE, LAYOUT, LAYOUT_FILE, LAYOUT_KEY, Store, StoreWarning

LOCKS = "locks"
MARK = "compacting-"
STALE_SECONDS = 6 * 3600.0  # a mark this old has no living process behind it
ATTEMPTS = 5  # each is spoilt by somebody who merged parts that were about to come here


@dataclass(frozen=True, slots=True)
class Synced:
    """Parts that went there, that came here, and that went away on either side because they were merged."""

    table: str
    sent: int
    received: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Note:
    """A merged set of parts took the place of its sources; names of files."""

    merged: frozenset[str]
    sources: frozenset[str]

    @classmethod
    def read(cls, payload: bytes) -> Note | None:
        """None: it is none, and a foreign file changes nothing."""
        try:
            content = json.loads(payload)
            return cls(frozenset(map(str, content["merged"])), frozenset(map(str, content["sources"])))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class Place:
    """A folder behind an address. Every method raises StoreError, in one line, when the other side refuses."""

    address: str
    system: fs.FileSystem
    root: str

    @classmethod
    def at(cls, address: str) -> Place:
        try:
            system, root = fs.FileSystem.from_uri(address)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise StoreError(
                f"cannot open {address}: {_line(error)}; write s3://bucket/folder, gs://... or file:///..."
            ) from error
        return cls(address, system, root.rstrip("/"))

    def names(self, folder: str) -> list[str]:
        """Of the files in a folder; none when there is no such folder."""
        with self._told():
            selector = fs.FileSelector(f"{self.root}/{folder}", allow_not_found=True)
            return sorted(f.base_name for f in self.system.get_file_info(selector) if f.type == fs.FileType.File)

    def read(self, name: str) -> bytes:
        """FileNotFoundError: it is gone."""
        with self._told(), self.system.open_input_file(f"{self.root}/{name}") as file:
            return bytes(file.read())

    def write(self, name: str, payload: bytes) -> None:
        """An object is there whole or not at all; a file is, once it has its name."""
        with self._told():
            folder, _, last = f"{self.root}/{name}".rpartition("/")
            whole = not isinstance(self.system, fs.LocalFileSystem)
            aside = f"{folder}/{last}" if whole else f"{folder}/.{last}.tmp"
            if not whole:
                self.system.create_dir(folder, recursive=True)
            with self.system.open_output_stream(aside) as file:
                file.write(payload)
            if not whole:
                self.system.move(aside, f"{folder}/{last}")

    def remove(self, name: str) -> None:
        """No error when it is gone already."""
        with self._told():
            if self.system.get_file_info(f"{self.root}/{name}").type == fs.FileType.File:
                self.system.delete_file(f"{self.root}/{name}")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise StoreError(f"{self.address}: {_line(error)}") from error


def sync(store: Store, address: str) -> list[Synced]:
    """Send what only this store has, fetch what only the other has, drop what was merged. StoreError: in one line."""
    place = Place.at(address)
    _check_layout(place)
    publish(store.root / COPY_FILE, json.dumps({"address": address}).encode())
    return [_synced(store, place, table) for table in TABLES]


def compact(store: Store, address: str) -> list[Compaction]:
    """`sync`, merge, and `sync` again, as the only process that merges. StoreError: another one is at it."""
    place = Place.at(address)
    with _alone(place):
        sync(store, address)
        done = [store.compact(table, noted=True) for table in TABLES]
        sync(store, address)
    return done


def _check_layout(place: Place) -> None:
    """StoreError: something else lies there. An empty place becomes a store."""
    try:
        layout = json.loads(place.read(LAYOUT_FILE))[LAYOUT_KEY]
    except FileNotFoundError:
        if place.names(""):
            raise StoreError(f"{place.address} is not empty, and no store; name a place of its own") from None
        place.write(LAYOUT_FILE, json.dumps({LAYOUT_KEY: LAYOUT}).encode())
        return
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{place.address} is not a Tilewright store") from error
    if layout != LAYOUT:
        raise StoreError(f"{place.address} has store layout {layout}, this Tilewright reads {LAYOUT}")


def _synced(store: Store, place: Place, table: str) -> Synced:
    """A part that vanishes on its way here was merged by somebody: look again."""
    make_folder(store.folder(table) / RETIRED)
    for _ in range(ATTEMPTS):
        with exclusive(store.folder(table)):
            try:
                return _exchange(store.folder(table), place)
            except FileNotFoundError:
                continue
    raise StoreError(f"parts keep vanishing from {place.address}; try again")


def _exchange(folder: Path, place: Place) -> Synced:
    """Parts before notes when listing, notes before parts when sending, sending before dropping."""
    table = folder.name
    removed_garbage(folder)
    there = {name for name in place.names(table) if _is_part(name)}
    here = {path.name for path in folder.glob(f"*{SUFFIX}") if _is_part(path.name) and not fault_of(path)}
    retired = _retired(_notes(folder, place, table), there | here)

    up, down = sorted(here - there - retired), sorted(there - here - retired)
    for name in up:
        place.write(f"{table}/{name}", (folder / name).read_bytes())
    fetched = _fetched(folder, place, down)
    hide(folder, frozenset(here & retired))  # at once: what came counts, what was merged does not
    removed_garbage(folder)
    for name in sorted(there & retired):
        place.remove(f"{table}/{name}")
    return Synced(table, len(up), fetched, len((here | there) & retired))


def _fetched(folder: Path, place: Place, names: list[str]) -> int:
    """Parts from there, hidden until all are here. One that is not what its name says stays there, with a warning."""
    hide(folder, frozenset(names))
    count = 0
    for name in names:
        publish(folder / name, place.read(f"{folder.name}/{name}"))
        if fault := fault_of(folder / name):
            (folder / name).unlink()
            warnings.warn(StoreWarning(f"{place.address}/{folder.name}/{name} left out: {fault}"), stacklevel=5)
        else:
            count += 1
    return count


def _is_part(name: str) -> bool:
    return name.endswith(SUFFIX) and name != SEED and not name.startswith(".")


def _notes(folder: Path, place: Place, table: str) -> list[Note]:
    """Those of both sides, and each side has all of them now."""
    here = {path.name for path in (folder / RETIRED).glob("*.json")}
    there = set(place.names(f"{table}/{RETIRED}"))
    for name in sorted(there - here):
        publish(folder / RETIRED / name, place.read(f"{table}/{RETIRED}/{name}"))
    for name in sorted(here - there):
        place.write(f"{table}/{RETIRED}/{name}", (folder / RETIRED / name).read_bytes())
    found = (Note.read((folder / RETIRED / name).read_bytes()) for name in here | there)
    return [note for note in found if note is not None]


def _retired(notes: Iterable[Note], present: set[str]) -> set[str]:
    """Sources of the notes that count. What was merged may itself have been merged since."""
    waiting, retired = list(notes), set[str]()
    while counting := [n for n in waiting if n.merged <= present | retired]:
        retired |= {name for note in counting for name in note.sources}
        waiting = [n for n in waiting if n not in counting]
    return retired


@contextmanager
def _alone(place: Place) -> Iterator[None]:
    """StoreError: another process merges there, or tries to at this very moment."""
    mine = f"{MARK}{unique_name()}"
    place.write(f"{LOCKS}/{mine}", b"")
    try:
        others = [name for name in place.names(LOCKS) if name.startswith(MARK) and name != mine]
        living = [name for name in others if not _is_stale(name)]
        if living:
            raise StoreError(f"another process merges the parts of {place.address}; try again later")
        for name in others:
            place.remove(f"{LOCKS}/{name}")
        yield
    finally:
        place.remove(f"{LOCKS}/{mine}")


def _is_stale(name: str) -> bool:
    stamp = name.removeprefix(MARK).split("-")[0]
    return not stamp.isdigit() or time.time() - int(stamp) / 1e9 > STALE_SECONDS


def _line(error: Exception) -> str:
    return first_line(error)[:200]
