"""A table on disk: a folder of Parquet parts, and the list of those that count.

Every part is written once and never changed, and its name ends in the checksum of its bytes: Parquet's own checksums
leave out page headers and the footer, and DuckDB looks at none.

A part counts unless the folder's manifest hides it. What the manifest hides is garbage, at every moment: a merged part
that is not published yet, or parts that a merged part has replaced. At rest it hides nothing, so a lost manifest loses
nothing.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.files import publish, unique_name
from data.schema import LONG, REAL, TABLE_KEY, TIME, VERSION_KEY, StoreError, Table

SUFFIX = ".parquet"
NAME = re.compile(r"\d{20}-\d+-[0-9a-f]{16}-(?P<checksum>[0-9a-f]{8})\.parquet")
SEED = f"seed{SUFFIX}"  # no rows: a view over no file at all fails, and this one names every column
MANIFEST = "manifest.json"
ROW_GROUP_ROWS = 16_384  # a question reads whole groups: one or two of them hold a workload on one device
SAMPLED_ROWS = 4096  # enough to see whether the values of a column repeat
BLOOM = "run"  # sorted by place, a run is spread thinly: this says which groups have none of it
CHECKED_BYTES = 1 << 20  # reading these costs less than parsing their footer; larger ones are read when asked for
LISTING_ATTEMPTS = 100  # a listing is disturbed by a compaction at most a few times; this many is a broken folder


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that lies among the parts and cannot be used. `reason` is one line."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Parts:
    """What lies in a table's folder: `files` count, `skipped` do not.

    Among the skipped, `outdated` and `newer` are whole, but of another version of the table.
    """

    files: tuple[Path, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    outdated: frozenset[Path] = frozenset()
    newer: frozenset[Path] = frozenset()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The names that do not count. `token` is new at each change, so two equal manifests mean that none was between."""

    token: str = ""
    hidden: frozenset[str] = field(default_factory=frozenset)


def read_manifest(folder: Path) -> Manifest:
    """StoreError: it is there and cannot be read. It is replaced whole, so only a damaged disk or a hand does that."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text())
        return Manifest(str(content["token"]), frozenset(map(str, content["hidden"])))
    except FileNotFoundError:
        return Manifest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"unreadable: {path}; remove it and check {folder} for doubled rows") from error


def hide(folder: Path, names: frozenset[str]) -> None:
    """Replace the manifest in one step: from now on exactly these names do not count."""
    content = {"token": secrets.token_hex(8), "hidden": sorted(names)}
    publish(folder / MANIFEST, json.dumps(content).encode())


def encode(table: Table, rows: pa.Table) -> bytes:
    """A Parquet file: zstd, page checksums, the table's name and version in its metadata."""
    stamped = rows.replace_schema_metadata(table.arrow.metadata)
    sink = pa.BufferOutputStream()
    repeating = [name for name in rows.column_names if _repeats(rows[name])]
    pq.write_table(
        stamped, sink, compression="zstd", write_page_checksum=True, row_group_size=ROW_GROUP_ROWS,
        use_dictionary=[_leaf(rows, name) for name in repeating],
        column_encoding={
            _leaf(rows, name): ENCODINGS.get(_values(rows[name]).type, "PLAIN")
            for name in rows.column_names if name not in repeating
        },
        bloom_filter_options={BLOOM: {"ndv": 64, "fpp": 0.01}} if BLOOM in rows.column_names else None,
    )  # fmt: skip
    return bytes(sink.getvalue())


ENCODINGS = {REAL: "BYTE_STREAM_SPLIT", TIME: "DELTA_BINARY_PACKED", LONG: "DELTA_BINARY_PACKED"}


def _values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.list_flatten(column) if pa.types.is_list(column.type) else column


def _leaf(rows: pa.Table, name: str) -> str:
    """What Parquet calls the values of a column."""
    return f"{name}.list.element" if pa.types.is_list(rows.schema.field(name).type) else name


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary is worth it: keys and times of their own would only fill one."""
    values = _values(column.slice(0, SAMPLED_ROWS))
    if not len(values) or pa.types.is_nested(values.type):
        return True
    return bool(pc.count_distinct(values).as_py() * 2 < len(values))


def new_part(folder: Path, payload: bytes) -> Path:
    """A path that nobody else has, for a part with these bytes."""
    return folder / f"{unique_name()}-{zlib.crc32(payload):08x}{SUFFIX}"


def read_part(path: Path) -> pa.Table:
    """All rows, every page checked against its checksum. ArrowException, OSError: damaged."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read()


def schema_of(path: Path) -> pa.Schema:
    """Columns of a part. ArrowException, OSError: damaged."""
    return pq.read_schema(path)


def version_of(path: Path) -> int:
    """Schema version a part was written with."""
    with pq.ParquetFile(path) as file:
        return int(file.schema_arrow.metadata[VERSION_KEY])


def listing(folder: Path, table: Table, deep: bool = False) -> Parts:
    """The parts that count, each row once, also while they are being merged.

    deep: check the bytes of large parts too, not their footers alone.

    A name is read together with the manifest it belongs to: when the manifest is the same before and after the folder
    was read, no part was published or retired between. A file that vanishes while it is looked at was merged by
    someone: look again.
    """
    for _ in range(LISTING_ATTEMPTS):
        before = read_manifest(folder)
        names = sorted(name for name in os.listdir(folder) if _is_part(name) and name not in before.hidden)
        if read_manifest(folder) != before:
            continue
        try:
            return _sorted_out(table, [(folder / name, _verdict(folder / name, table, deep)) for name in names])
        except FileNotFoundError:
            continue
    raise StoreError(f"files keep vanishing from {folder}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """version: 0 when there is none. fault: one line, empty for a whole part."""

    version: int = 0
    fault: str = ""


def _is_part(name: str) -> bool:
    return name.endswith(SUFFIX) and not name.startswith(".")


def _sorted_out(table: Table, judged: list[tuple[Path, Verdict]]) -> Parts:
    whole = [(path, verdict.version) for path, verdict in judged if not verdict.fault]
    files = {path for path, version in whole if version == table.version}
    return Parts(
        files=tuple(sorted(files, key=_seed_first)),
        skipped=tuple(Skipped(path, _reason(table, verdict)) for path, verdict in judged if path not in files),
        outdated=frozenset(path for path, version in whole if version < table.version),
        newer=frozenset(path for path, version in whole if version > table.version),
    )


def _seed_first(path: Path) -> tuple[bool, str]:
    """By time, behind the seed: the first file orders the columns of a view."""
    return path.name != SEED, path.name


def _reason(table: Table, verdict: Verdict) -> str:
    return verdict.fault or f"{table.name} version {verdict.version}, this Tilewright reads {table.version}"


def _verdict(path: Path, table: Table, deep: bool) -> Verdict:
    """FileNotFoundError: it is gone."""
    if path.is_symlink() and not path.exists():
        return Verdict(fault="a link that leads nowhere")
    status = path.stat()
    return _judge(path, status.st_size, status.st_mtime_ns, table.name, deep)


@lru_cache(maxsize=1 << 16)  # a part never changes, so one look is enough; size and time tell when a hand changed it
def _judge(path: Path, size: int, mtime_ns: int, table: str, deep: bool) -> Verdict:
    del mtime_ns
    if fault := _fault_of_bytes(path, read=deep or size < CHECKED_BYTES):
        return Verdict(fault=fault)
    try:
        metadata = pq.read_schema(path).metadata or {}
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        return Verdict(fault=f"damaged: {str(error).splitlines()[0]}")
    if metadata.get(TABLE_KEY) != table.encode() or not metadata.get(VERSION_KEY, b"").isdigit():
        return Verdict(fault=f"not a part of {table}")
    return Verdict(version=int(metadata[VERSION_KEY]))


def fault_of(path: Path) -> str:
    """What is wrong with the name or the bytes of a part, in one line; empty: nothing. FileNotFoundError: it is gone."""
    return _fault_of_bytes(path, read=True)


def _fault_of_bytes(path: Path, read: bool) -> str:
    """Whether the name is a part's, and, when they are to be read, the bytes are those it was written with."""
    name = NAME.fullmatch(path.name)
    if name is None:
        return "" if path.name == SEED else "not a part: it has another kind of name"
    if not read:
        return ""
    try:
        checksum = 0
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                checksum = zlib.crc32(chunk, checksum)
    except FileNotFoundError:
        raise
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if checksum == int(name["checksum"], 16) else "damaged: not the bytes that were written"
