"""The process in which a user's SQL runs. Started by `data.query.ask` with this file as its program.

A process of its own because DuckDB's limits do not hold for everything: one `repeat('x', 2000000000)` took 4 GB under a
memory limit of 512 MB and answered no interrupt for 26 seconds. A process can be given a hard limit, and killed.

stdin: a request in JSON. stdout: one line of JSON, then, when the query was answered, an Arrow stream.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

PROGRAM = Path(__file__)
VIEWS = PROGRAM.parent / "sql" / "views.sql"
OFF = {  # no network, no reading of Python variables by name
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
BASE_BYTES = 1 << 30  # address space of interpreter, DuckDB and Arrow before the first query (measured: 0.6 GB)
ANSWER_BYTES = 64 << 20
BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True)
class Request:
    """params: $name -> value. parts: table -> its files. limit: rows. seconds, memory_bytes: of the query."""

    sql: str
    params: Mapping[str, Any]
    parts: Mapping[str, Sequence[str]]
    limit: int
    seconds: float
    memory_bytes: int

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))


def connection(threads: int) -> duckdb.DuckDBPyConnection:
    """An empty in-memory database in UTC that installs, loads and replaces nothing."""
    con = duckdb.connect(":memory:", config={**OFF, "threads": str(threads)})
    con.execute("SET TimeZone = 'UTC'")  # else timestamps would carry the zone of whoever asks
    con.execute("SET parquet_metadata_cache = true")  # a question reads a table several times, its footers once
    return con


def set_parts(con: duckdb.DuckDBPyConnection, parts: Mapping[str, Sequence[str]]) -> None:
    """Tell the views which files their tables are made of."""
    for table, files in parts.items():
        con.execute(f"SET VARIABLE {table}_parts = $files", {"files": list(files)})  # our own table names alone


def make_views(con: duckdb.DuckDBPyConnection, parts: Mapping[str, Sequence[str]]) -> None:
    """The views of `sql/views.sql`, over these parts.

    Made over the first part of each table, the seed: DuckDB opens every file of every view that it makes (600 parts:
    0.5 s instead of 0.02), and asks for the list again whenever a view is used.
    """
    set_parts(con, {table: files[:1] for table, files in parts.items()})
    con.execute(VIEWS.read_text())
    set_parts(con, parts)


def first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip() or type(error).__name__


def locked(request: Request) -> duckdb.DuckDBPyConnection:
    """Views over the parts; those files can be read and nothing else, and none of this can be changed."""
    con = connection(threads=1)
    make_views(con, request.parts)
    # Files, not folders: what is allowed can be written too, and COPY needs a second name beside the one it replaces.
    con.execute("SET allowed_paths = $files", {"files": [file for files in request.parts.values() for file in files]})
    con.execute("SET memory_limit = $limit", {"limit": f"{request.memory_bytes}B"})
    for setting in ("max_temp_directory_size = '0KiB'", "enable_external_access = false", "lock_configuration = true"):
        con.execute(f"SET {setting}")
    return con


def answer(
    con: duckdb.DuckDBPyConnection, sql: str, limit: int, params: Mapping[str, Any] | None = None
) -> tuple[pa.Table, bool]:
    """The first `limit` rows, and whether there were more."""
    reader = con.sql(sql, params=dict(params) if params else None).to_arrow_reader(BATCH_ROWS)
    batches, rows, size = [], 0, 0
    for batch in reader:
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if size > ANSWER_BYTES:
            raise MemoryError(f"the answer is larger than {ANSWER_BYTES >> 20} MB; ask for less")
        if rows > limit:
            break
    return pa.Table.from_batches(batches, reader.schema).slice(0, limit), rows > limit


def limit_process(memory_bytes: int) -> None:
    for kind, amount in (
        (resource.RLIMIT_AS, memory_bytes + BASE_BYTES),
        (resource.RLIMIT_FSIZE, 0),  # not a byte into any file, whatever the SQL finds
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (amount, amount))


@contextmanager
def interrupted(con: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Whatever the connection does here is stopped after so long. The clock's thread ends with it: one that lives when
    the interpreter ends is unwound through C++ frames, which aborts the process about once in a thousand answers."""
    timer = threading.Timer(seconds, con.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def main() -> None:
    """Answer one request. An error is an answer too: one line."""
    request = Request(**json.load(sys.stdin))
    limit_process(request.memory_bytes)
    out = sys.stdout.buffer
    try:
        con = locked(request)
        with interrupted(con, request.seconds):
            table, truncated = answer(con, request.sql, request.limit, request.params)
    except (duckdb.Error, pa.ArrowException, OSError, MemoryError, RuntimeError) as error:  # Arrow passes on as OSError
        out.write(json.dumps({"error": first_line(error)}).encode() + b"\n")
        return
    out.write(json.dumps({"truncated": truncated}).encode() + b"\n")
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)


if __name__ == "__main__":
    main()
