"""Merge small parts into larger ones, so that no row is lost or doubled: not for a reader beside, not by a kill.

    1  hide M              M counts for nothing while it is being written
    2  publish M           M = A + B + C, read back from disk and checked
    3  hide A, B, C        one rename: M counts, its sources do not
    4  delete A, B, C
    5  hide nothing

Killed at any step, what the manifest hides is garbage, and the next compaction removes it first. A reader that listed
A, B, C before step 3 and opens them after step 4 gets "no such file" and lists again (`data.query`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from data.files import exclusive, make_folder, publish, refusal
from data.parts import SEED, Skipped, encode, hide, listing, new_part, read_manifest, read_part, version_of
from data.schema import StoreError, Table, aligned, migrate

SMALL_BYTES = 8 << 20  # a part above this gains nothing from being merged
MERGED_BYTES = 32 << 20  # sources of one merged part, compressed: bounds the memory it takes


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


def compact(folder: Path, table: Table, quarantine: Path) -> Compaction:
    """Check every page of every part, move bad files to `quarantine`, migrate old parts, merge small ones.

    StoreError: the disk is full, or parts that cannot be merged. Every row is then where it was.
    """
    with exclusive(folder):
        _remove_garbage(folder)
        found = listing(folder, table, deep=True)
        usable = found.outdated | found.newer
        bad = tuple(_quarantined(item, quarantine) for item in found.skipped if item.path not in usable)
        merged, replaced, rows = [], 0, 0
        for group in _groups(found.files, found.outdated):
            path, count = _merge(folder, table, group)
            merged.append(path)
            replaced, rows = replaced + len(group), rows + count
    return Compaction(table.name, tuple(merged), replaced, rows, bad)


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


def _merge(folder: Path, table: Table, group: list[Path]) -> tuple[Path, int]:
    """The five steps. Returns the merged part and its number of rows."""
    rows = _rows_of(table, group)
    payload = encode(table, rows)
    merged = new_part(folder, payload)
    hide(folder, frozenset({merged.name}))
    publish(merged, payload)
    if read_part(merged).num_rows != rows.num_rows:
        raise StoreError(f"{merged} was not written as it should be; its sources are untouched")
    hide(folder, frozenset(path.name for path in group))
    _remove_garbage(folder)
    return merged, rows.num_rows


def _rows_of(table: Table, group: list[Path]) -> pa.Table:
    """All rows of a group, of the current version, ordered by workload where there is one: fewer pages to read later."""
    try:
        tables = [aligned(table, migrate(table, version_of(path), read_part(path))) for path in group]
        rows = aligned(table, pa.concat_tables(tables, promote_options="permissive"))
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"cannot merge parts of {table.name}: {str(error).splitlines()[0]}") from error
    return rows.sort_by("workload") if "workload" in rows.column_names else rows


def _remove_garbage(folder: Path) -> None:
    """Delete what the manifest hides, then hide nothing. In this order: a hidden name must never count again."""
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
