"""A user's SQL reads the store and nothing else, writes nothing, and ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from data.query import QueryError, ask
from data.sandbox import Request, answer, locked
from data.schema import TABLES
from data.store import Store

NOT_ONE_SELECT = [  # refused before anything runs
    "",
    "   -- nothing",
    ";",
    "SELECT 1; SELECT 2",
    "SELECT 1;; COPY runs TO 'x'",
    "SELECT 1\0; COPY runs TO 'x'",
    "/* SELECT */ COPY (SELECT 1) TO 'x.csv'",
    "COPY runs TO '{root}/runs/evil.parquet'",
    "COPY runs FROM '/etc/passwd'",
    "COPY (SELECT 1) TO '/dev/stdout'",
    "EXPORT DATABASE 'x'",
    "IMPORT DATABASE 'x'",
    "ATTACH 'x.duckdb'",
    "ATTACH ':memory:' AS other",
    "DETACH memory",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "FORCE INSTALL spatial",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "SET memory_limit = '100GB'",
    "SET enable_external_access = true",
    "SET VARIABLE runs_parts = ['/etc/passwd']",
    "RESET lock_configuration",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "CREATE TABLE t AS SELECT 1",
    "CREATE TEMP TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW runs AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "CREATE SECRET s (TYPE s3)",
    "DROP VIEW runs",
    "ALTER VIEW runs RENAME TO r",
    "INSERT INTO runs VALUES (1)",
    "WITH x AS (SELECT 1) INSERT INTO runs SELECT * FROM x",
    "UPDATE runs SET key = 'x'",
    "DELETE FROM runs",
    "TRUNCATE runs",
    "MERGE INTO runs USING rounds ON true WHEN MATCHED THEN DELETE",
    "BEGIN",
    "COMMIT",
    "CHECKPOINT",
    "VACUUM",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "EXPLAIN COPY runs TO 'x'",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{root}/runs/evil.parquet'",
    "EXPLAIN (ANALYZE) COPY (SELECT 1) TO 'x'",
    "EXPLAIN /* */ ANALYZE CREATE TABLE t AS SELECT 1",
    "EXPLAIN ANALYZE EXPLAIN ANALYZE DELETE FROM runs",
    "SELECT $a",
    "SELECT ?",
    "SELEC 1",
    "SELECT 'unterminated",
    "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
    "SELECT '" + "x" * 100_000 + "'",
]

ELSEWHERE = [  # one SELECT each, but not of the store
    "FROM read_text('/etc/passwd')",
    "FROM read_blob('/proc/self/environ')",
    "FROM read_csv('/etc/passwd')",
    "FROM '/etc/passwd'",
    "FROM read_json('{root}/store.json')",
    "FROM read_text('{root}/store.json')",
    "FROM read_parquet('{root}/*/*.parquet')",
    "FROM read_parquet('{root}/runs/../secret.parquet')",
    "FROM read_parquet('file://{root}/secret.parquet')",
    "FROM '{root}/secret.parquet'",
    "FROM glob('{root}/*')",
    "FROM glob('/*')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM parquet_metadata('{root}/secret.parquet')",
    "FROM read_csv('https://example.invalid/x.csv')",
    "FROM 's3://bucket/x.parquet'",
    "FROM read_duckdb('{root}/x.duckdb')",
    "FROM query('COPY (SELECT 1) TO ''x''')",
    "FROM query('SELECT 1; SELECT 2')",
    "FROM query_table('/etc/passwd')",
    "FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''/etc/passwd'')'))",
    "FROM enable_logging('QueryLog', storage = 'file', storage_path = '{root}')",
    "FROM enable_profiling()",
    "FROM add_grammar_extension('x')",
    "FROM duckdb_secrets()",
    "FROM duckdb_extensions()",
    "FROM python_variable",
    "SELECT getenv('HOME')",
    "SELECT 1234::POINTER",
    "SELECT * FROM runs, (FROM read_text('/etc/passwd'))",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
]

ENDLESS = [  # bounded in time or memory
    "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM r) SELECT max(a) FROM r",
    "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range + b.range = -1",
    "SELECT levenshtein(repeat('a', 200000), repeat('b', 200000))",
    "SELECT sleep_ms(100000)",
    "SELECT len(repeat('x', 2000000000))",
    "FROM range(1000000000) ORDER BY hash(range)",
    "SELECT repeat('x', 1000000) FROM range(100000)",
]

python_variable = pa.table({"secret": ["of the caller"]})


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> Store:
    store = Store.open(tmp_path_factory.mktemp("asked"))
    duckdb.sql("SELECT 'secret' AS word").write_parquet(str(store.root / "secret.parquet"))
    return store


def one_line(error: pytest.ExceptionInfo[BaseException]) -> bool:
    return 0 < len(str(error.value)) < 400 and "\n" not in str(error.value)


@pytest.mark.parametrize("sql", NOT_ONE_SELECT, ids=range(len(NOT_ONE_SELECT)))
def test_anything_but_one_select_is_refused(asked, sql):
    before = sorted(asked.root.rglob("*"))
    with pytest.raises(QueryError) as refused:
        ask(asked, sql.replace("{root}", str(asked.root)))
    assert one_line(refused)
    assert sorted(asked.root.rglob("*")) == before


@pytest.mark.parametrize("sql", ELSEWHERE, ids=range(len(ELSEWHERE)))
def test_nothing_but_the_store_can_be_read(asked, lock, sql):
    """In the connection that the child uses, without the child: a refusal takes a millisecond."""
    before = sorted(asked.root.rglob("*"))
    with lock.cursor() as con, pytest.raises((duckdb.Error, StopIteration)) as refused:
        answer(con, sql.replace("{root}", str(asked.root)), 10)
    assert "secret" not in str(refused.value) or "Cannot access" in str(refused.value)
    assert sorted(asked.root.rglob("*")) == before


@pytest.fixture(scope="module")
def lock(asked) -> Iterator[duckdb.DuckDBPyConnection]:
    with locked(request(asked)) as con:
        yield con


def request(store: Store) -> Request:
    parts = {table: [str(path) for path in store.parts(table).files] for table in TABLES}
    return Request("", {}, parts, 10, 5.0, 1 << 28)


def test_the_store_itself_can_be_read(asked):
    with locked(request(asked)) as con:
        seed = str(asked.folder("runs") / "seed.parquet")
        assert answer(con, f"FROM '{seed}'", 10)[0].num_rows == 0
        assert answer(con, "SHOW TABLES", 100)[0].num_rows > len(TABLES)


def test_the_lock_holds_without_the_filter(asked):
    """What the filter stops would come to nothing anyway."""
    with locked(request(asked)) as con:
        part = asked.folder("runs") / "seed.parquet"
        before = part.read_bytes()
        for sql in (
            f"COPY (SELECT 1) TO '{part}'",
            f"COPY (SELECT 1) TO '{asked.root}/runs/evil.parquet'",
            "COPY (SELECT 1) TO '/dev/null'",
            "SET enable_external_access = true",
            "SET memory_limit = '100GB'",
            "SET allowed_paths = ['/etc/passwd']",
            "INSTALL httpfs",
            f"ATTACH '{asked.root}/x.duckdb'",
        ):
            with pytest.raises(duckdb.Error):
                con.execute(sql).fetchall()
        assert part.read_bytes() == before
    assert not list(asked.root.glob("**/evil*"))


def test_what_would_never_end_is_bounded(asked):
    def timed(sql: str) -> tuple[str, float]:
        start = time.monotonic()
        with pytest.raises(QueryError) as refused:
            ask(asked, sql, seconds=0.4, memory_bytes=1 << 28)
        assert one_line(refused), sql
        return str(refused.value), time.monotonic() - start

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(timed, ENDLESS))
    for sql, (words, seconds) in zip(ENDLESS, answers, strict=True):
        assert seconds < 20.0, sql  # generous: other work may hold the cores
        assert words.startswith(("stopped after 0.4 seconds", "Out of Memory Error", "the answer is larger than")), sql


def test_the_child_refuses_in_one_line(asked):
    with pytest.raises(QueryError, match=r"^Permission Error: Cannot access file .*secret.parquet") as refused:
        ask(asked, f"FROM '{asked.root}/secret.parquet'")
    assert one_line(refused)


def test_the_child_can_write_no_file(asked, tmp_path: Path):
    """Whatever SQL might find: not a byte into any file, by the kernel."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from data.sandbox import limit_process; limit_process(1 << 28);"
        "open(sys.argv[2], 'wb', buffering=0).write(b'x')"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, root, tmp_path / "f"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "File too large" in done.stderr
    assert (tmp_path / "f").read_bytes() == b""
