"""Rows in the order in which questions want them, and the parts that hold them dealt out by place.

A place is a target, a device and a workload, as far as a table has them; a question is about one place, or about all
of one target. Before the place comes what became of a measurement: the failures by kind, the confirmed, all others;
most questions want one sort of them, and who was ever wrong is asked all the time. Parquet keeps the least and the
greatest value of every group of rows, so sorted rows are rows that a question need not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.schema import REAL, StoreError, Table, aligned

PLACE = ("error_kind", "confirmed", "target", "device", "workload")
ORDER = (*PLACE, "created")
NONE = "~"  # stands for no error, behind every kind of them, as NULL sorts
BITS = 17  # of a time's mantissa: an error of 4e-6 at most, where a measurement repeats within 1e-3 on a good day
NOISY = frozenset({
    "seconds_warm", "seconds_cold", "best_seconds", "incumbent_seconds", "score", "prediction", "build_seconds",
    "measure_seconds", "search_seconds", "train_seconds",
})  # fmt: skip

Groups = dict[Path, list[frozenset[str]]]  # part -> the places in each of its row groups


def ordered(rows: pa.Table) -> pa.Table:
    """By place, then time; rows without a place stay as they are."""
    names = [name for name in ORDER if name in rows.column_names]
    by = [(name, "descending" if name == "confirmed" else "ascending") for name in names]
    return rows.sort_by(by) if "workload" in names else rows


def rounded(rows: pa.Table) -> pa.Table:
    """Times to BITS bits: what lies below is noise of clock and machine, which nothing can compress.

    Rounding keeps order, so the least sample stays the best time; rounding twice changes nothing.
    """
    for at, name in enumerate(rows.column_names):
        if name in NOISY:
            rows = rows.set_column(at, rows.schema.field(at), _cut(rows[name].combine_chunks()))
    return rows


def depth(parts: Iterable[Path]) -> int:
    """In how many parts the same place may lie, at most. ArrowException, OSError: a part cannot be read."""
    spans = [(min(places), max(places)) for path in parts if (places := frozenset().union(*_places(path)))]
    return max((sum(low <= at <= high for low, high in spans) for at, _ in spans), default=0)


def dealt_out(table: Table, parts: list[Path], part_bytes: int) -> Iterator[pa.Table]:
    """All rows of the parts, in order, in tables that are some `part_bytes` when written and share no place.

    One of them at a time is in memory. StoreError: a part cannot be read.
    """
    try:
        places = {path: _places(path) for path in parts}
        counted: dict[str, int] = {}
        for path in parts:
            for place, count in _counts(path):
                counted[place] = counted.get(place, 0) + count
        most = part_bytes * sum(counted.values()) / max(sum(path.stat().st_size for path in parts), 1)
        for low, high in _ranges(counted, most):
            yield ordered(_rows_between(table, places, low, high))
    except (pa.ArrowException, OSError) as error:
        raise StoreError(f"cannot deal out parts of {table.name}: {str(error).splitlines()[0]}") from error


def _ranges(counted: dict[str, int], most: float) -> Iterator[tuple[str, str]]:
    """Runs of places, first and last, of at most so many rows; a place is never cut."""
    run: list[str] = []
    rows = 0
    for place in sorted(counted):
        if run and rows + counted[place] > most:
            yield run[0], run[-1]
            run, rows = [], 0
        run.append(place)
        rows += counted[place]
    if run:
        yield run[0], run[-1]


def _rows_between(table: Table, places: Groups, low: str, high: str) -> pa.Table:
    found = []
    for path, groups in places.items():
        wanted = [i for i, group in enumerate(groups) if any(low <= place <= high for place in group)]
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for i in wanted:
                rows = file.read_row_group(i)
                place = _place_of(rows)
                inside = pc.and_(pc.greater_equal(place, low), pc.less_equal(place, high))
                found.append(aligned(table, rows.filter(inside)))
    return aligned(table, pa.concat_tables(found, promote_options="permissive"))


def _place_of(rows: pa.Table) -> Any:
    """One text a row, which sorts as the columns of the place do."""
    texts = [_text(name, rows[name]) for name in PLACE if name in rows.column_names]
    return pc.binary_join_element_wise(*texts, "\0")


def _text(name: str, column: Any) -> Any:
    return pc.if_else(column, "0", "1") if name == "confirmed" else pc.fill_null(column, NONE)


def _places(path: Path) -> list[frozenset[str]]:
    """The places in each row group; none without a workload."""
    with pq.ParquetFile(path) as file:
        names = [name for name in PLACE if name in file.schema_arrow.names]
        if "workload" not in names:
            return []
        groups = (file.read_row_group(i, columns=names) for i in range(file.num_row_groups))
        return [frozenset(pc.unique(_place_of(group)).to_pylist()) for group in groups]


def _counts(path: Path) -> list[tuple[str, int]]:
    with pq.ParquetFile(path) as file:
        names = [name for name in PLACE if name in file.schema_arrow.names]
        counts = pc.value_counts(_place_of(file.read(columns=names)).combine_chunks())
        return [(count["values"], count["counts"]) for count in counts.to_pylist()]


def _cut(column: Any) -> Any:
    if pa.types.is_list(column.type):
        offsets = pc.subtract(column.offsets, column.offsets[0])
        return pa.ListArray.from_arrays(offsets, _cut(column.flatten()), mask=column.is_null())
    if column.type != REAL:
        return column
    mantissa, exponent = np.frexp(column.fill_null(0.0).to_numpy(zero_copy_only=False))
    return pa.array(
        np.ldexp(np.round(mantissa * 2.0**BITS) / 2.0**BITS, exponent), mask=column.is_null().to_numpy(False)
    )
