"""`tilewright sql`: SQL and shipped questions, in every format, at a prompt and through a pipe; mistakes are one line."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from data.query import names
from data.schema import TABLES
from data.store import Store
from tests.data.conftest import TARGET, fill
from tilewright.cli import app
from tilewright.commands.sql import HELP, ended, prompt, statements

HOME = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "store"
    fill(Store.open(path))
    return path


def sql(store: Path, *words: object, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["sql", *map(str, words), "--store", str(store)], input=typed)


def complaint(done: Result) -> str:
    assert done.exit_code == 2 and done.stdout == "", done.output
    (line,) = done.stderr.splitlines()
    return line


# ---------------------------------------------------------------------------------------------- questions by name


def test_a_shipped_question_by_its_name(store: Path) -> None:
    words = ("best_program", "--param", "workload=w", "--param", f"target={TARGET}", "--param", "device=d", "--json")
    (best,) = json.loads(sql(store, *words).stdout)
    assert best["program"] == "fast"
    assert len(json.loads(sql(store, "run_summary", "--json").stdout)) == 2  # NULL: every run
    assert len(json.loads(sql(store, "run_summary", "--param", "run=r2", "--json").stdout)) == 1


def test_a_parameter_in_ones_own_query(store: Path) -> None:
    done = sql(
        store,
        "SELECT key FROM runs WHERE key = $run AND round(1.5) > $k",
        "--param",
        "run=r2",
        "--param",
        "k=1",
        "--json",
    )
    assert json.loads(done.stdout) == [{"key": "r2"}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["history", "--param", "workload=w"], "history needs --param target=..."),
        (["errors", "--param", "runn=r"], "errors has no parameter 'runn'; it has run"),
        (["errors", "--param", "run"], "--param 'run': write NAME=VALUE"),
        (["top_k", "--param", "workload=w", "--param", f"target={TARGET}", "--param", "k=many"], "Conversion Error"),
        (["SELECT $a"], "the query needs $a"),
        (["SELECT 1", "--param", "a=1"], "the query has no $a"),
        (["no_such_question"], "Parser Error"),
        (["SELECT 1", "--csv", "--json"], "--csv, --json and --parquet: choose one"),
        (["SELECT 1", "--limit", "0"], "--limit 0: it must be at least 1"),
        (["COPY runs TO 'x'"], "only SELECT and EXPLAIN are answered"),
        (["FROM read_csv('/etc/passwd')"], "Permission Error"),
    ],
)
def test_a_mistake_is_one_line(store: Path, words: list[str], said: str) -> None:
    assert said in complaint(sql(store, *words))


def test_the_list_names_every_question_and_needs_no_store(tmp_path: Path) -> None:
    text = sql(tmp_path / "none", "--list").stdout
    assert all(f"{name}: " in text for name in names()) and "    workload" in text
    listed = json.loads(sql(tmp_path / "none", "--list", "--json").stdout)
    assert [one["name"] for one in listed] == list(names()) and all(one["question"].endswith("?") for one in listed)
    assert "there is no store at" in complaint(sql(tmp_path / "none", "errors"))
    assert not (tmp_path / "none").exists()


# ---------------------------------------------------------------------------------------------- formats


def test_every_format_holds_the_same_rows(store: Path, tmp_path: Path) -> None:
    query = "SELECT key, weight FROM unique_workloads ORDER BY key"
    rows = json.loads(sql(store, query, "--json").stdout)
    assert sql(store, query, "--csv").stdout.split() == ["key,weight", *(f"{r['key']},{r['weight']}" for r in rows)]
    done = sql(store, query, "--parquet", tmp_path / "out.parquet")
    assert done.exit_code == 0 and "2 rows" in done.stdout
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == rows
    assert "2 rows" in sql(store, query).stdout


def test_a_file_is_never_written_into_the_store(store: Path, tmp_path: Path) -> None:
    before = sorted(store.rglob("*"))
    for place in (store / "runs" / "x.parquet", store / "x.parquet"):
        assert "that lies in the store" in complaint(sql(store, "SELECT 1", "--parquet", place))
    assert "cannot write" in complaint(sql(store, "SELECT 1", "--parquet", tmp_path / "none" / "x.parquet"))
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize("format_", [[], ["--csv"], ["--json"]])
def test_a_cut_answer_says_so(store: Path, format_: list[str]) -> None:
    done = sql(store, "FROM range(5)", "--limit", 2, *format_)
    assert done.exit_code == 0
    assert done.stderr == "tilewright: only the first 2 rows; --limit shows more\n"
    assert sql(store, "FROM range(5)", "--limit", 5, *format_).stderr == ""


# ---------------------------------------------------------------------------------------------- pipe and prompt


def test_a_pipe_of_queries(store: Path) -> None:
    done = sql(
        store, "--csv", typed="SELECT 1 AS a;\n-- a comment; no end\nSELECT\n  ';' AS b;\n.quit\nSELECT nonsense"
    )
    assert done.exit_code == 0 and done.stdout.split() == ["a", "1", "b", ";"]
    assert complaint(sql(store, typed="SELECT nonsense")).startswith("tilewright: Binder Error")
    assert all(f"{table}: " in sql(store).stdout for table in TABLES)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("SELECT 1;", True), ("SELECT 1", False), ("SELECT ';'", False), ("SELECT ';';  ", True), ("SELECT 'a", False),
        ("SELECT 1; -- why", False), ("SELECT 1; -- why\n", True), ("SELECT 1 -- ;\n", False), ("/* ; */", False),
        ('SELECT "a;b";', True), ("SELECT $$ ; $$", False), ("SELECT 'it''s;';", True), ("", False), ("SELECT 1; /* ;", False),
    ],
)  # fmt: skip
def test_a_query_ends_at_its_semicolon(text: str, end: bool) -> None:
    assert ended(text) is end


def reader(*lines: Any) -> Any:
    """Lines as they come from a keyboard: what is an exception is raised."""
    waiting = list(lines)

    def read(begun: bool) -> str:
        line = waiting.pop(0) if waiting else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line

    return read


def test_statements_span_lines_and_ctrl_c_drops_one() -> None:
    lines = reader("SELECT", " 1;", ".tables", "SELECT bad", KeyboardInterrupt(), "SELECT 2;", "SELECT 3")
    assert list(statements(lines)) == ["SELECT\n 1;", ".tables", "SELECT 2;", "SELECT 3"]


def test_the_prompt_answers_and_survives_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[tuple[str, dict[str, str]]] = []
    lines = (
        ".help",
        ".tables",
        ".list",
        ".nothing",
        "errors run=r;",
        "errors;",
        "SELECT",
        "1;",
        ";",
        ".quit",
        "SELECT 2;",
    )
    prompt(reader(*lines), lambda text, given: asked.append((text, dict(given))))
    assert asked == [("errors", {"run": "r"}), ("errors", {}), ("SELECT\n1;", {})]
    out, err = capsys.readouterr()
    assert HELP in out and "measurements: " in out and "best_program: " in out
    assert err == "tilewright: there is no .nothing; .help says what there is\n"


def test_a_real_terminal(store: Path) -> None:
    """Typed into a pseudo-terminal: prompts, an answer over two lines, a mistake, an end; and the history is kept."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(HOME)
        os.execv(sys.executable, [sys.executable, "-m", "tilewright.cli", "sql", "--csv", "--store", str(store)])
    os.write(terminal, b"SELECT 41 +\n1 AS answer;\nSELECT nowhere;\n.quit\n")
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other end has gone
            break
    _, status = os.waitpid(child, 0)
    text = shown.decode()
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert "tilewright> " in text and "...> " in text and "42" in text and "tilewright: Binder Error" in text
    assert ".quit" in (store.parent / "sql_history").read_text()
