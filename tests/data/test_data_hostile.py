"""A thousand hostile queries: refused or bounded, nothing of another file in any answer, the store the same to the byte.

Those that only read or write where they must not go through the two walls of `ask`, the filter and the lock, without its
child, so that a refusal takes a millisecond. Those that would eat the machine go through the child.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from data.query import QueryError, _check_statement, ask
from data.sandbox import Request, answer, locked
from data.schema import TABLES
from data.store import Store

SECRET = "the-secret-of-another-file"
HOSTILE, SEED = 1000, 7

FILES = (
    "/etc/passwd",
    "/proc/self/environ",
    "/proc/self/maps",
    "{root}/secret.parquet",
    "{root}/secret.csv",
    "{root}/store.json",
    "{root}/runs/../secret.csv",
    "{root}/*/*.parquet",
    "{root}/../**",
    "file://{root}/secret.parquet",
    "file:{root}/secret.csv",
    "secret.csv",
    "~/.ssh/id_rsa",
    "https://example.invalid/x.csv",
    "s3://bucket/x.parquet",
    "hf://datasets/x/y.parquet",
    "/dev/stdin",
    "//etc/passwd",
    "/etc/./passwd",
)
SOURCES = (
    "read_csv('{f}')",
    "read_csv(['{f}'])",
    "read_csv_auto('{f}')",
    "read_text('{f}')",
    "read_blob('{f}')",
    "read_json('{f}')",
    "read_json_auto('{f}')",
    "read_ndjson('{f}')",
    "read_parquet('{f}')",
    "parquet_scan(['{f}'])",
    "parquet_metadata('{f}')",
    "parquet_schema('{f}')",
    "parquet_kv_metadata('{f}')",
    "parquet_bloom_probe('{f}', 'a', 1)",
    "sniff_csv('{f}')",
    "glob('{f}')",
    "'{f}'",
    '"{f}"',
    "read_duckdb('{f}')",
    "query_table('{f}')",
    "read_csv('{f}', columns = {'a': 'VARCHAR'}, delim = '\\0')",
    "(SELECT getenv('HOME') AS content)",
    "(SELECT getvariable('runs_parts') AS a, content FROM read_text('{f}'))",
)
AROUND = (  # one SELECT around a source
    "FROM {s}",
    "SELECT * FROM {s}",
    "SELECT count(*) FROM {s}",
    "WITH a AS (FROM {s}) FROM a",
    "TABLE runs UNION ALL BY NAME FROM {s}",
    "WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT 2 FROM {s}) FROM a",
    "SELECT (SELECT count(*) FROM {s})",
    "FROM runs, {s}",
    "SELECT * FROM runs WHERE EXISTS (FROM {s})",
    "SELECT * FROM runs LEFT JOIN LATERAL (FROM {s}) ON true",
    "DESCRIBE FROM {s}",
    "SELECT list(x) FROM (FROM {s}) x",
    "EXPLAIN ANALYZE SELECT * FROM {s}",
    "SUMMARIZE FROM {s}",
    "FROM {s} LIMIT 1 OFFSET 1",
    "SELECT CASE WHEN true THEN (SELECT max(x::VARCHAR) FROM {s} x) END",
    "((((SELECT * FROM {s}))))",
    "FROM query('FROM {q}')",
    "FROM query('SELECT * FROM ' || '{q}')",
    "SELECT unnest((SELECT list(x) FROM {s} x))",
    "VALUES ((SELECT count(*) FROM {s}))",
)
VERBS = (  # no SELECT at all
    "COPY (FROM runs) TO '{f}'",
    "COPY runs FROM '{f}'",
    "COPY (SELECT 1) TO '{root}/runs/evil.parquet' (FORMAT parquet)",
    "EXPORT DATABASE '{root}'",
    "IMPORT DATABASE '{root}'",
    "ATTACH '{f}'",
    "ATTACH '{f}' AS x (READ_ONLY)",
    "INSTALL httpfs",
    "INSTALL x FROM '{f}'",
    "LOAD '{f}'",
    "LOAD httpfs",
    "PRAGMA database_list",
    "PRAGMA enable_external_access = true",
    "PRAGMA profiling_output = '{f}'",
    "SET enable_external_access = true",
    "SET GLOBAL memory_limit = '1TB'",
    "SET allowed_paths = ['{f}']",
    "SET home_directory = '{root}'",
    "SET temp_directory = '{root}'",
    "RESET ALL",
    "SET VARIABLE runs_parts = ['{f}']",
    "CREATE TABLE t AS FROM runs",
    "CREATE VIEW runs AS FROM '{f}'",
    "DROP VIEW runs",
    "CREATE MACRO m() AS TABLE FROM '{f}'",
    "CREATE SECRET (TYPE s3, KEY_ID 'x')",
    "INSERT INTO runs SELECT 1",
    "DELETE FROM runs",
    "UPDATE runs SET key = 1",
    "TRUNCATE runs",
    "CALL enable_logging()",
    "CALL pragma_version()",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN TRANSACTION",
    "USE memory",
    "DETACH memory",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "DEALLOCATE p",
    "ALTER VIEW runs RENAME TO x",
    "EXPLAIN COPY runs TO '{f}'",
    "EXPLAIN ANALYZE COPY runs TO '{root}/evil'",
    "WITH a AS (SELECT 1) INSERT INTO runs FROM a",
)
BOMBS = (  # one SELECT that would take hours or terabytes
    "SELECT count(*) FROM range({n}) a, range({n}) b WHERE a.range + b.range = -1",
    "SELECT range({n})",
    "SELECT generate_series(0, {n})",
    "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r) SELECT max(a) FROM r",
    "SELECT len(repeat('x', {n}))",
    "WITH RECURSIVE r AS (SELECT 'x' AS a UNION ALL SELECT a || a FROM r) SELECT max(len(a)) FROM r",
    "SELECT list(range) FROM range({n})",
    "FROM range({n}) ORDER BY hash(range)",
    "SELECT string_agg(repeat('x', 1000), ',') FROM range({n})",
    "SELECT lpad('x', {n}, 'y')",
    "SELECT count(DISTINCT hash(range)) FROM range({n})",
    "SELECT levenshtein(repeat('a', 300000), repeat('b', 300000))",
    "SELECT max(range) OVER (ORDER BY hash(range)) FROM range({n})",
    "SELECT list_sum(list_transform(range({n}), lambda x: x * x))",
    "EXPLAIN ANALYZE SELECT count(*) FROM range({n}) a, range({n}) b WHERE a.range * b.range = -1",
    "SELECT sleep_ms({n})",
    "SELECT repeat('x', 1000000) FROM range({n})",
    "SELECT sum(a.range) FROM range({n}) a JOIN range({n}) b ON a.range % 3 = b.range % 3",
)


def disguised(draw: random.Random, sql: str) -> str:
    """The same query as someone would write it who hopes that nobody parses it."""
    match draw.randrange(10):
        case 0:
            return f"/* SELECT 1 */ {sql}"
        case 1:
            return f"-- SELECT 1\n{sql} --"
        case 2:
            return f"SELECT 1; {sql}"
        case 3:
            return f"{sql}; SELECT 'it''s'"
        case 4:
            return "".join(draw.choice((c.upper(), c.lower())) if "'" not in sql else c for c in sql)
        case 5:
            return sql.replace(" ", draw.choice(("\t", "\n", "/**/", "  ", "\u00a0")))
        case 6:
            return f"{sql}\0;"
        case 7:
            return f"SELECT '{sql.replace(chr(39), chr(39) * 2)}'; {sql}"
        case _:
            return sql


def hostile(draw: random.Random, root: Path) -> str:
    file = draw.choice(FILES)
    if draw.random() < 0.35:
        sql = draw.choice(VERBS)
    else:
        source = draw.choice(SOURCES)
        sql = draw.choice(AROUND).replace("{q}", source.replace("'", "''")).replace("{s}", source)
    return disguised(draw, sql.replace("{f}", file).replace("{root}", str(root)))


def state(root: Path) -> dict[str, str]:
    """Every file below, and its bytes."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def attacked(tmp_path_factory, request) -> Iterator[Store]:
    """A store that must be the same, to the byte, after every test here."""
    store = Store.open(tmp_path_factory.mktemp("attacked") / "store")
    request.getfixturevalue("fill_store")(store)
    (store.root / "secret.csv").write_text(f"a,b\n1,{SECRET}\n")
    duckdb.sql("SELECT $word AS word", params={"word": SECRET}).write_parquet(str(store.root / "secret.parquet"))
    before = state(store.root.parent)
    yield store
    assert state(store.root.parent) == before


def request_of(store: Store) -> Request:
    parts = {table: [str(path) for path in store.parts(table).files] for table in TABLES}
    return Request("", {}, parts, 10, 5.0, 1 << 28)


def test_a_thousand_hostile_queries(attacked):
    draw, queries = random.Random(SEED), set()
    while len(queries) < HOSTILE:
        queries.add(hostile(draw, attacked.root))
    before, refused, answered = state(attacked.root.parent), 0, []
    with locked(request_of(attacked)) as con:
        for sql in sorted(queries):
            try:
                _check_statement(sql, {})
                with con.cursor() as cursor:
                    answered.append((sql, answer(cursor, sql, 10)[0]))
            except (QueryError, duckdb.Error, pa.ArrowException, OSError, StopIteration):
                refused += 1
    for sql, table in answered:  # such as a query about a list of our own files' names
        told = str(table.to_pylist())
        assert SECRET not in told and "root:" not in told and "HOME" not in told.replace(sql, ""), sql
    assert refused >= HOSTILE * 0.98, [sql for sql, _ in answered][:40]
    assert state(attacked.root.parent) == before


@pytest.mark.slow
@pytest.mark.parametrize("sql", BOMBS, ids=range(len(BOMBS)))
def test_a_bomb_is_bounded_in_time_and_memory(attacked, sql):
    before = state(attacked.root.parent)

    def timed(count: int) -> tuple[str, float]:
        start = time.monotonic()
        with pytest.raises(QueryError) as refused:
            ask(attacked, sql.replace("{n}", str(count)), seconds=0.5, memory_bytes=1 << 28)
        return str(refused.value), time.monotonic() - start

    with ThreadPoolExecutor(2) as pool:
        for words, seconds in pool.map(timed, (3_000_000_000, 10**12)):
            assert "\n" not in words and seconds < 30.0, words  # generous: other work may hold the cores
    assert state(attacked.root.parent) == before
