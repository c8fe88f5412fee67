"""Merge small parts into larger ones, so that no row is lost or doubled: not for a reader beside, not by a kill.

    1  hide M              M counts for nothing while it is being written
    2  publish M           M = A + B + C, read back from disk and checked
    3  hide A, B, C        one rename: M counts, its sources do not
    4  delete A, B, C
    5  hide nothing

Killed at any step, what the manifest hides is garbage, and the next compaction removes it first. A reader that listed
A, B, C before step 3 and opens them after step 4 gets "no such file" and lists again (`data.query`).

Merged rows are sorted by place and time (`data.order`). Merged parts all span every place, so when some have come
together they are dealt out anew, by the same five steps, each new part with places of its own:

    [a..z] [a..z] [a..z] [a..z]   →   [a..f] [f..m] [m..s] [s..z]

A question about one workload then opens one part. The times of merged rows keep 17 bits, four parts in a million.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.files import exclusive, make_folder, publish, refusal, unique_name
from data.order import dealt_out, depth, ordered, rounded
from data.parts import SEED, Parts, Skipped, encode, hide, listing, new_part, read_manifest, read_part, version_of
from data.schema import StoreError, Table, aligned, migrate

SMALL_BYTES = 8 << 20  # a part above this gains nothing from being merged
MERGED_BYTES = 32 << 20  # sources of one merged part, compressed: bounds the memory it takes
RETIRED = "retired"  # notes of what was merged, for the copies of a store (`data.remote`)
DEPTH = 4  # merged parts in which a question may find the same place, before they are dealt out anew


@dataclass(frozen=True, slots=True)
class Compaction:
    """What a compaction did: `replaced` parts became `merged`, `rows` in all; `quarantined` were damaged or foreign."""

    table: str
    merged: tuple[Path, ...] = ()
    replaced: int = 0
    rows: int = 0
    quarantined: tuple[Skipped, ...] = ()

    @property
    def text(self) -> str:
        lines = [f"{self.table}: {self.replaced} parts became {len(self.merged)}, {self.rows} rows"]
        return "\n".join(lines + [f"  quarantined {bad.path.name}: {bad.reason}" for bad in self.quarantined])


def compact(folder: Path, table: Table, quarantine: Path, noted: bool = False) -> Compaction:
    """Check every page of every part, move bad files to `quarantine`, migrate old parts, merge small ones.

    noted: leave a note of what was merged, before its sources go.
    StoreError: the disk is full, or parts that cannot be merged. Every row is then where it was.
    """
    with exclusive(folder):
        removed_garbage(folder)
        found = listing(folder, table, deep=True)
        usable = found.outdated | found.newer
        bad = tuple(_quarantined(item, quarantine) for item in found.skipped if item.path not in usable)
        merged, replaced, rows = [], 0, 0
        for group, dealt in _plan(table, found):
            made = _replaced(folder, table, group, dealt, noted)
            merged += made
            replaced, rows = replaced + len(group), rows + sum(pq.read_metadata(path).num_rows for path in made)
    return Compaction(table.name, tuple(merged), replaced, rows, bad)


def _plan(table: Table, found: Parts) -> Iterator[tuple[list[Path], Iterable[pa.Table]]]:
    """Sets of parts, each with the tables that are to replace it, which are made one by one when asked for."""
    groups = _groups(found.files, found.outdated)
    large = [path for path in found.files if path.stat().st_size >= SMALL_BYTES]
    if not found.outdated and len(groups) + depth(large) > DEPTH and "workload" in table.arrow.names:
        parts = [path for path in found.files if path.name != SEED]
        yield parts, dealt_out(table, parts, MERGED_BYTES)
    else:
        yield from ((group, [_rows_of(table, group)]) for group in groups)


def _groups(files: tuple[Path, ...], outdated: frozenset[Path]) -> list[list[Path]]:
    """Sets of parts, each to become one: small parts in the order of time, old ones whatever their size."""
    groups: list[list[Path]] = [[]]
    total = 0
    small = [path for path in files if path.name != SEED and path.stat().st_size < SMALL_BYTES]
    for path in sorted([*small, *outdated]):
        size = path.stat().st_size
        if total + size > MERGED_BYTES:
            groups.append([])
            total = 0
        groups[-1].append(path)
        total += size
    return [group for group in groups if len(group) > 1 or outdated.intersection(group)]


def _replaced(folder: Path, table: Table, group: list[Path], dealt: Iterable[pa.Table], noted: bool) -> list[Path]:
    """The five steps, for one new part or several. StoreError: rows are missing; the sources are untouched."""
    expected = sum(pq.read_metadata(path).num_rows for path in group)
    made: list[Path] = []
    for rows in dealt:
        payload = encode(table, rounded(rows))
        made.append(new_part(folder, payload))
        hide(folder, frozenset(path.name for path in made))
        publish(made[-1], payload)
        if read_part(made[-1]).num_rows != rows.num_rows:
            raise StoreError(f"{made[-1]} was not written as it should be; its sources are untouched")
        expected -= rows.num_rows
    if expected:
        raise StoreError(f"{abs(expected)} rows went astray in {folder}; their sources are untouched")
    if noted:
        note = {"merged": [path.name for path in made], "sources": [path.name for path in group]}
        publish(folder / RETIRED / f"{unique_name()}.json", json.dumps(note).encode())
    hide(folder, frozenset(path.name for path in group))
    removed_garbage(folder)
    return made


def _rows_of(table: Table, group: list[Path]) -> pa.Table:
    """All rows of a group, of the current version, in order."""
    try:
        tables = [aligned(table, migrate(table, version_of(path), read_part(path))) for path in group]
        rows = aligned(table, pa.concat_tables(tables, promote_options="permissive"))
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"cannot merge parts of {table.name}: {str(error).splitlines()[0]}") from error
    return ordered(rows)


def removed_garbage(folder: Path) -> None:
    """Under the folder's lock: delete what the manifest hides, then hide nothing. In this order, for a hidden name must
    never count again."""
    hidden = read_manifest(folder).hidden
    if not hidden:
        return
    for name in sorted(hidden):
        path = folder / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise refusal(error, path) from error
    hide(folder, frozenset())


def _quarantined(bad: Skipped, quarantine: Path) -> Skipped:
    """Move a bad file away, its reason beside it; whoever cares may repair it."""
    make_folder(quarantine)
    place = quarantine / bad.path.name
    try:
        os.replace(bad.path, place)
    except OSError as error:
        raise refusal(error, place) from error
    publish(place.with_name(f"{place.name}.txt"), f"{bad.reason}\n".encode())
    return Skipped(place, bad.reason)
