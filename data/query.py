"""Questions to the store. Ours are files in `sql/`, one question each; a user's run in a process of their own.

    run(store, "best_program", workload=key, target=target, device=device)      →  pa.Table
    ask(store, "SELECT error_kind, count(*) FROM measurements GROUP BY ALL")    →  pa.Table

There is one kind of connection: DuckDB in memory, with a view per table over the Parquet parts (`sql/views.sql`). A
DuckDB file would lock out every other process. No value is ever formatted into SQL: parameters are `$names`.
"""

from __future__ import annotations

import atexit
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from data.files import publish
from data.parts import SEED, Parts, encode
from data.sandbox import PROGRAM, Request, connection, first_line, make_views, set_parts
from data.schema import TABLES, conform
from data.store import Store, StoreError, StoreWarning

SQL = Path(__file__).parent / "sql"
NO_QUESTIONS = ("views", "parts")
HEAD = re.compile(r"-- [^?]*\?")
PARAM = re.compile(r"^--   \$(?P<name>\w+)\s+(?P<type>VARCHAR|BIGINT|DOUBLE)\b(?P<doc>.*)", re.MULTILINE)
MEMORY_BYTES = 3 << 29  # of a connection: a process that asks and learns stays below 2 GiB
THREADS = 2  # the cores of a tuning machine belong to what is measured
ATTEMPTS = 10  # each needs a compaction that ends between listing and opening
SKIPPED_KEY = b"tilewright.skipped"
TRUNCATED_KEY = b"tilewright.truncated"
SQL_LENGTH = 100_000
START_SECONDS = 5.0  # a child that is this much over its time does not answer interrupts; starting takes 0.4 s
EXPLAIN = re.compile(r"\s*EXPLAIN\b(\s+ANALYZE\b|\s*\([^()]*\))?", re.IGNORECASE)
OURS = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException, duckdb.OutOfMemoryException)
FINAL = ("Out of Memory", "Permission", "Parser", "Binder", "Catalog", "the answer is")  # not the files


class QueryError(Exception):
    """The question cannot be answered. The message is one line, fit to be shown as it is."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to one store; each `run` sees what was appended until then. One thread at a time."""

    store: Store
    duckdb: duckdb.DuckDBPyConnection

    def run(self, name: str, **params: Any) -> pa.Table:
        """As the function `run`."""
        sql = text(name)
        _check_params(self.duckdb, name, sql, params)
        return _steadily(self.store, lambda parts: self._answer(sql, params, parts))

    def _answer(self, sql: str, params: dict[str, Any], parts: dict[str, Parts]) -> pa.Table:
        set_parts(self.duckdb, _paths(parts))
        return self.duckdb.sql(sql, params=params or None).to_arrow_table()

    def close(self) -> None:
        self.duckdb.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def connect(store: Store) -> Connection:
    """An in-memory DuckDB with a view per table. Costs some 50 ms: keep it for many questions."""
    con = connection(THREADS)
    con.execute("SET memory_limit = $limit", {"limit": f"{MEMORY_BYTES}B"})

    def prepare(parts: dict[str, Parts]) -> pa.Table:
        make_views(con, _paths(parts))
        return pa.table({})

    try:
        _steadily(store, prepare)
    except BaseException:
        con.close()
        raise
    return Connection(store, con)


@dataclass(frozen=True, slots=True)
class Param:
    """A $param of a question, as the head of its file has it. `optional`: NULL has a meaning of its own there."""

    type: str
    doc: str

    @property
    def optional(self) -> bool:
        return "NULL" in self.doc


def names() -> tuple[str, ...]:
    """The questions that `run` knows."""
    return tuple(sorted(path.stem for path in SQL.glob("*.sql") if path.stem not in NO_QUESTIONS))


def asks(name: str) -> str:
    """What a question asks: the head of its file, up to the question mark. QueryError: there is none."""
    head = HEAD.match(text(name))
    return " ".join(head[0].replace("\n--", "").removeprefix("--").split()) if head else ""


def params_of(name: str) -> dict[str, Param]:
    """The $params of a question, in the order of its head. QueryError: there is none."""
    return {found["name"]: Param(found["type"], found["doc"].strip()) for found in PARAM.finditer(text(name))}


def text(name: str) -> str:
    """The SQL of a question; its first lines say what it asks and what its $params are. QueryError: there is none."""
    if name not in names():
        raise QueryError(f"no question named {name!r}; there are {', '.join(names())}")
    return (SQL / f"{name}.sql").read_text()


def run(source: Store | Connection, name: str, **params: Any) -> pa.Table:
    """The answer to the question in `sql/<name>.sql`. Every $param must be given; None is SQL's NULL.

    Files that cannot be read are left out, with a StoreWarning and a count in the answer (`skipped`).
    QueryError: no such question, a missing or unknown parameter, an unusable value. StoreError: no store there.
    """
    if isinstance(source, Connection):
        return source.run(name, **params)
    with connect(source) as opened:
        return opened.run(name, **params)


def ask(
    store: Store, sql: str, limit: int = 1000, seconds: float = 10.0, memory_bytes: int = 1 << 30,
    params: Mapping[str, Any] | None = None,
) -> pa.Table:  # fmt: skip
    """The answer to one SELECT or EXPLAIN of a user: at most `limit` rows (`truncated` says whether there were more).

    It can read the store and nothing else, write nothing, and is stopped after `seconds` or beyond `memory_bytes`.
    Costs 0.4 s, for a process of its own. QueryError: refused, stopped or wrong. StoreError: no store there.
    """
    given = dict(params or {})
    _check_statement(sql, given)

    def answer(parts: dict[str, Parts]) -> pa.Table:
        return _asked(Request(sql, given, _paths(parts), limit, seconds, memory_bytes))

    return _steadily(store, answer)


def write(answer: pa.Table, path: Path) -> None:
    """An answer as a Parquet file, whole or not at all. StoreError: it cannot be written."""
    sink = pa.BufferOutputStream()
    pq.write_table(answer, sink, compression="zstd")
    publish(path, bytes(sink.getvalue()))


def skipped(answer: pa.Table) -> int:
    """Files that were left out of an answer because they cannot be read."""
    return int((answer.schema.metadata or {}).get(SKIPPED_KEY, b"0"))


def truncated(answer: pa.Table) -> bool:
    """Whether there were more rows than the limit."""
    return TRUNCATED_KEY in (answer.schema.metadata or {})


class _FileTrouble(Exception):
    """Perhaps a part is gone or damaged: worth another look at the files. The message is one line."""


def _steadily(store: Store, answer: Callable[[dict[str, Parts]], pa.Table]) -> pa.Table:
    """Answer from the parts that count. Parts that were merged meanwhile are listed again, damaged ones left out."""
    deep = False
    for _ in range(ATTEMPTS):
        parts = _listed(store, deep)
        try:
            return _counted(store, answer(parts), parts)
        except OURS as error:
            raise QueryError(first_line(error)) from error
        except (duckdb.Error, _FileTrouble) as error:
            if not _gone(parts, _listed(store, deep)):
                if deep or not _gone(
                    parts, _listed(store, deep=True)
                ):  # the files are as written: so it is the question
                    raise QueryError(first_line(error)) from error
                deep = True
    raise QueryError(f"the files in {store.root} keep changing; ask again")


def _listed(store: Store, deep: bool) -> dict[str, Parts]:
    return {table: _of_today(store, table, deep) for table in TABLES}


def _of_today(store: Store, table: str, deep: bool) -> Parts:
    """The parts of a table; where the store is older than the table, or than a column of it, with that column."""
    missing = store.is_one and not store.folder(table).is_dir()
    found = Parts() if missing else store.parts(table, deep)
    if missing or (found.files and not store.has_columns(table)):
        return replace(found, files=(_blank(table), *found.files))
    return found


@cache
def _blank(table: str) -> Path:
    """A part without a row, for as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix="tilewright"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    definition = TABLES[table]
    return publish(folder / SEED, encode(definition, conform(definition, [])))


def _gone(before: dict[str, Parts], after: dict[str, Parts]) -> bool:
    """Whether a file that counted does so no longer: merged, moved, or found damaged."""
    return any(set(before[table].files) - set(after[table].files) for table in before)


def _counted(store: Store, answer: pa.Table, parts: dict[str, Parts]) -> pa.Table:
    """The answer with its count of skipped files, said aloud."""
    bad = [item for table in parts.values() for item in table.skipped]
    if not bad:
        return answer
    message = f"{len(bad)} files in {store.root} left out, the first is {bad[0].path.name}: {bad[0].reason}"
    warnings.warn(StoreWarning(message), stacklevel=5)
    return answer.replace_schema_metadata({**(answer.schema.metadata or {}), SKIPPED_KEY: str(len(bad)).encode()})


def _paths(parts: dict[str, Parts]) -> dict[str, list[str]]:
    """StoreError: a table without any file, which no view can be made of."""
    if bare := [table for table, found in parts.items() if not found.files]:
        raise StoreError(f"not one readable file in table {bare[0]}; Store.open puts its seed back")
    return {table: [str(path) for path in found.files] for table, found in parts.items()}


def _check_params(con: duckdb.DuckDBPyConnection, name: str, sql: str, params: dict[str, Any]) -> None:
    """QueryError: not exactly the $params of the question."""
    wanted = {param for statement in con.extract_statements(sql) for param in statement.named_parameters}
    if missing := sorted(wanted - set(params)):
        raise QueryError(f"{name} needs ${missing[0]}; give None for NULL")
    if unknown := sorted(set(params) - wanted):
        raise QueryError(f"{name} has no ${unknown[0]}; it has {', '.join(f'${param}' for param in sorted(wanted))}")


def _check_statement(sql: str, params: Mapping[str, Any]) -> None:
    """QueryError: anything but one SELECT, or an EXPLAIN of one, with just these params. Nothing is run here."""
    if len(sql) > SQL_LENGTH:
        raise QueryError(f"the query is longer than {SQL_LENGTH} characters")
    with _parser().cursor() as parser:
        statement = _only_statement(parser, sql)
        if statement.type == duckdb.StatementType.EXPLAIN:
            _check_explained(parser, statement.query)
        elif statement.type != duckdb.StatementType.SELECT:
            raise QueryError(f"only SELECT and EXPLAIN are answered, this is {statement.type.name}")
        wanted = set(statement.named_parameters)
        if missing := sorted(wanted - set(params)):
            raise QueryError(f"the query needs ${missing[0]}; give it a value")
        if unknown := sorted(set(params) - wanted):
            raise QueryError(f"the query has no ${unknown[0]}")


@cache
def _parser() -> duckdb.DuckDBPyConnection:
    """A database that is never asked anything: only its parser is used."""
    return connection(threads=1)


def _check_explained(parser: duckdb.DuckDBPyConnection, sql: str) -> None:
    """EXPLAIN ANALYZE runs what it explains, so that must be a SELECT too."""
    prefix = EXPLAIN.match(sql)
    explained = _only_statement(parser, sql[prefix.end() :]) if prefix else None
    if explained is None or explained.type != duckdb.StatementType.SELECT:
        raise QueryError("only EXPLAIN of a SELECT is answered")


def _only_statement(parser: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    try:
        statements = parser.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryError(first_line(error)) from error
    if len(statements) != 1:
        raise QueryError(f"one statement is answered, these are {len(statements)}" if statements else "an empty query")
    return statements[0]


def _asked(request: Request) -> pa.Table:
    """Run the child. _FileTrouble: it may be the files. QueryError: refused, stopped, or it died."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(PROGRAM)],
            input=request.text.encode(), capture_output=True, timeout=request.seconds + START_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise QueryError(f"stopped after {request.seconds:g} seconds") from error
    header, _, body = done.stdout.partition(b"\n")
    if done.returncode or not header:  # an allocation beyond the limit ends some C++ code at once
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        how = f"status {done.returncode}" + (f", {last}" if last else "")
        raise QueryError(f"the query needs more than {request.memory_bytes >> 20} MB, or crashed ({how})")
    answer = json.loads(header)
    if "error" in answer:
        raise _child_error(answer["error"], request.seconds)
    table = pa.ipc.open_stream(io.BytesIO(body)).read_all()
    return table.replace_schema_metadata({TRUNCATED_KEY: b"yes"}) if answer["truncated"] else table


def _child_error(line: str, seconds: float) -> Exception:
    """Told apart by their words: what DuckDB says while rows are fetched arrives as Arrow's kind of error."""
    if line.startswith("INTERRUPT"):
        return QueryError(f"stopped after {seconds:g} seconds")
    return QueryError(line) if line.startswith(FINAL) else _FileTrouble(line)
