"""Where what was learnt lies: append-only Parquet parts, a folder a table.

    root/store.json                 the layout's version
    root/measurements/seed.parquet  no rows, every column
    root/measurements/*.parquet     parts: one batch each, or several merged
    root/quarantine/measurements/   damaged and foreign files that a compaction found

Any number of processes may append, read and compact at once. A kill at any moment loses at most the part that was
being written. Nothing is ever changed in place.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from data.compact import Compaction, compact
from data.files import StoreWarning, make_folder, publish, refusal, sweep
from data.parts import SEED, Parts, Skipped, encode, listing, new_part, schema_of, version_of
from data.schema import TABLES, Row, StoreError, Table, conform, table_named

__all__ = ["Compaction", "Parts", "Skipped", "Store", "StoreError", "StoreWarning"]

LAYOUT = 1  # of folders and files; the tables' own versions are in `data.schema`
LAYOUT_FILE = "store.json"
LAYOUT_KEY = "tilewright_store"
COPY_FILE = "copy.json"  # of which place this store is a copy


@dataclass(frozen=True, slots=True)
class Store:
    """The tables below `root`. Holds no file open and no state: cheap to pass on, safe to share."""

    root: Path

    @classmethod
    def open(cls, root: Path | str) -> Store:
        """Make the store, or make sure that it is one: layout, a seed per table, old parts migrated, leftovers swept.

        StoreError: not writable, a file in the way, disk full, or written by another version.
        """
        store = cls(Path(root).absolute())
        make_folder(store.root)
        _check_writable(store.root)
        _check_layout(store.root)
        for table in TABLES.values():
            store._prepare(table)
        return store

    @property
    def is_one(self) -> bool:
        """Whether somebody has made this store."""
        return (self.root / LAYOUT_FILE).is_file()

    def folder(self, table: str) -> Path:
        return self.root / table_named(table).name

    def append(self, table: str, rows: Iterable[Row] | pa.Table) -> Path:
        """Add rows as one part, whole or not at all; returns its path. No rows: no part, the seed's path.

        StoreError: rows that do not fit the schema (`data.schema.conform`), disk full, not writable. Nothing was added.
        """
        definition = table_named(table)
        data = conform(definition, rows)
        folder = self.folder(table)
        if not data.num_rows:
            return folder / SEED
        payload = encode(definition, data)
        return publish(new_part(folder, payload), payload)

    def parts(self, table: str, deep: bool = False) -> Parts:
        """The parts that count now, and the files that cannot be used. deep: read large ones whole."""
        try:
            return listing(self.folder(table), table_named(table), deep)
        except OSError as error:
            raise StoreError(f"cannot read {self.folder(table)}: {error.strerror or error}") from error

    def has_columns(self, table: str) -> bool:
        """Whether every column of today is in the table's files; `open` sees to it."""
        seed = self.folder(table) / SEED
        return seed.is_file() and _was_current(seed, seed.stat().st_mtime_ns, table)

    def compact(self, table: str, noted: bool = False) -> Compaction:
        """Merge small parts, migrate old ones, move damaged and foreign files to `quarantine/` (`data.compact`).

        StoreError: it is a copy of another place, where merging must be noted (`data.remote.compact`).
        """
        if not noted and (place := self.copy_of):
            raise StoreError(f"{self.root} is a copy of {place}; tilewright sync --compact merges both")
        return compact(self.folder(table), table_named(table), self.root / "quarantine" / table, noted)

    @property
    def copy_of(self) -> str | None:
        """The address that this store was last synced with; None: it stands alone."""
        try:
            return str(json.loads((self.root / COPY_FILE).read_text())["address"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"unreadable: {self.root / COPY_FILE}; remove it and sync again") from error

    def _prepare(self, table: Table) -> None:
        folder = self.root / table.name
        make_folder(folder)
        sweep(folder)
        seed = folder / SEED
        if not _is_current(seed, table):
            publish(seed, encode(table, conform(table, [])))
        found = self.parts(table.name)
        if found.newer:
            newest = max(version_of(path) for path in found.newer)
            raise StoreError(
                f"{self.root} was written by a newer Tilewright ({table.name} version {newest}, "
                f"this one reads {table.version}); upgrade it, or use another store"
            )
        if found.outdated:
            self.compact(table.name)


def _is_current(seed: Path, table: Table) -> bool:
    """Whether the seed names the columns of today, and perhaps later ones: those a newer process wrote, let them be."""
    try:
        columns = schema_of(seed)
        return version_of(seed) >= table.version and all(field in list(columns) for field in table.arrow)
    except (pa.ArrowException, OSError, KeyError):
        return False


@lru_cache(maxsize=1 << 10)  # asked at every question, of every table
def _was_current(seed: Path, mtime_ns: int, table: str) -> bool:
    del mtime_ns
    return _is_current(seed, table_named(table))


def _check_writable(root: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=root):  # asks the file system itself: permission bits tell root nothing
            return
    except OSError as error:
        raise refusal(error, root) from error


def _check_layout(root: Path) -> None:
    """StoreError: another layout. A new folder gets ours; two processes that do it at once write the same bytes."""
    path = root / LAYOUT_FILE
    try:
        layout = json.loads(path.read_text())[LAYOUT_KEY]
    except FileNotFoundError:
        publish(path, json.dumps({LAYOUT_KEY: LAYOUT}).encode())
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"not a Tilewright store: {path} cannot be read") from error
    if layout != LAYOUT:
        raise StoreError(f"{root} has store layout {layout}, this Tilewright reads {LAYOUT}; use another store")
