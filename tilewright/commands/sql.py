"""`tilewright sql`: questions to the store, ours by name and anyone's in SQL; at a prompt when none is given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import STORE
from tilewright.errors import UsageError, told

if TYPE_CHECKING:
    from data.query import Param
    from data.store import Store

# fmt: off
Query    = Annotated[str | None, typer.Argument(metavar="QUERY", help="One SELECT, or the NAME of a shipped question.")]
Given    = Annotated[list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="What $NAME stands for.")]
Listed   = Annotated[bool, typer.Option("--list", help="The shipped questions and their parameters.")]
Place    = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Limit    = Annotated[int, typer.Option(metavar="N", help="Rows at most.")]
Csv      = Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")]
Json     = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
Parquet  = Annotated[Path | None, typer.Option("--parquet", metavar="FILE", help="Write the rows to a Parquet file.")]
# fmt: on

HELP = """\
SELECT ... ;           any query, over as many lines as it takes, up to its semicolon
NAME key=value ... ;   a shipped question
.tables  .list         the tables and their columns; the shipped questions
.help    .quit         this; the end (so is Ctrl-D)"""
PROMPT, MORE = "tilewright> ", "       ...> "
HISTORY = "sql_history"  # beside the store, never in it
LONGEST = 1000  # lines of history


def sql(
    query: Query = None, param: Given = None, list_: Listed = False, store: Place = STORE, limit: Limit = 1000,
    csv: Csv = False, json_: Json = False, parquet: Parquet = None,
) -> None:  # fmt: skip
    """Ask the store anything: SQL, a shipped question by its name, or a prompt. Nothing can be changed."""
    if limit < 1:
        raise UsageError(f"--limit {limit}: it must be at least 1")
    if csv + json_ + (parquet is not None) > 1:
        raise UsageError("--csv, --json and --parquet: choose one of them")
    if list_:
        questions(json_)
        return
    place = Path(store).absolute()
    if parquet is not None and place in parquet.absolute().parents:
        raise UsageError(f"--parquet {parquet}: that lies in the store; name another place")

    def answer(text: str, given: Mapping[str, str]) -> None:
        printed(asked(_opened(place), text, given, limit), limit, csv, json_, parquet)

    if query is not None:
        answer(query, values(param))
    elif sys.stdin.isatty():
        _opened(place)
        with remembered(place.parent / HISTORY):
            prompt(typed, answer)
    else:
        piped(sys.stdin.read(), answer)


# ---------------------------------------------------------------------------------------------- asking


def _opened(place: Path) -> Store:
    """Raises UsageError: asking makes no store."""
    from data.store import Store
    from tilewright.cli import a_store

    return Store(a_store(str(place)))


def asked(store: Store, text: str, given: Mapping[str, str], limit: int) -> Any:
    """The answer to a shipped question, or to SQL; both in a process that can do nothing else."""
    from data.query import ask, names, params_of
    from data.query import text as sql_of

    name = text.strip().rstrip(";").strip()
    if name not in names():
        return ask(store, text, limit, params=given)
    return ask(store, sql_of(name), limit, params=filled(name, params_of(name), given))


def filled(name: str, params: Mapping[str, Param], given: Mapping[str, str]) -> dict[str, str | None]:
    """Every parameter of a question: what was given, NULL where that has a meaning. Raises UsageError."""
    if unknown := sorted(set(given) - set(params)):
        has = ", ".join(params) or "none"
        raise UsageError(f"{name} has no parameter {unknown[0]!r}; it has {has}")
    for key, param in params.items():
        if key not in given and not param.optional:
            raise UsageError(f"{name} needs --param {key}=...{f' ({param.doc})' if param.doc else ''}")
    return {key: given.get(key) for key in params}


def values(texts: Sequence[str] | None) -> dict[str, str]:
    """["run=abc"] -> {"run": "abc"}. Raises UsageError."""
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f"--param {text!r}: write NAME=VALUE, such as run=abc")
        found[key] = value
    return found


# ---------------------------------------------------------------------------------------------- answering


def printed(answer: Any, limit: int, csv: bool, json_: bool, parquet: Path | None) -> None:
    from data.query import truncated, write
    from tilewright.cli import print_json
    from tilewright.printed import as_csv, rows

    if parquet is not None:
        write(answer, parquet)
        print(f"{parquet}: {answer.num_rows} rows")
    elif json_:
        print_json(answer.to_pylist())
    else:
        (as_csv if csv else rows)(answer.column_names, answer.to_pylist())
    if truncated(answer):
        sys.stdout.flush()
        print(f"tilewright: only the first {limit} rows; --limit shows more", file=sys.stderr)


def questions(json_: bool) -> None:
    """Every shipped question, with its parameters."""
    from data.query import asks, names, params_of
    from tilewright.cli import print_json

    if json_:
        found = {n: {k: {"type": p.type, "doc": p.doc} for k, p in params_of(n).items()} for n in names()}
        print_json([{"name": n, "question": asks(n), "params": params} for n, params in found.items()])
        return
    for name in names():
        print(f"{name}: {asks(name)}")
        for key, param in params_of(name).items():
            print(f"    {key:<10} {param.type:<8} {param.doc}".rstrip())


# ---------------------------------------------------------------------------------------------- the prompt

Answer = Callable[[str, Mapping[str, str]], None]
Read = Callable[[bool], str]  # the next line; the argument says whether it goes on with a query. EOFError: the end


def piped(text: str, answer: Answer) -> None:
    """The queries in a text, one after another, to the first mistake; without any, the tables."""
    from tilewright.printed import tables

    if not text.strip():
        tables()
    lines = iter(text.splitlines())

    def read(begun: bool) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    for query in statements(read):
        if not one(query, answer):
            return


def prompt(read: Read, answer: Answer) -> None:
    """Answer each query; a mistake is one line, and the next may be typed."""
    for query in statements(read):
        try:
            if not one(query, answer):
                return
        except Exception as error:
            line = told(error)
            if line is None:
                raise
            print(f"tilewright: {line}", file=sys.stderr, flush=True)


def one(query: str, answer: Answer) -> bool:
    """Answer a query or a dot command. False: it was the last."""
    from tilewright.printed import tables

    match query.strip().rstrip(";").split():
        case []:
            pass
        case [".quit" | ".exit"]:
            return False
        case [".help"]:
            print(HELP)
        case [".tables"]:
            tables()
        case [".list"]:
            questions(json_=False)
        case [word, *_] if word.startswith("."):
            raise UsageError(f"there is no {word}; .help says what there is")
        case [name, *rest] if name.isidentifier() and all("=" in word for word in rest):
            answer(name, values(rest))
        case _:
            answer(query, {})
    return True


def statements(read: Read) -> Iterator[str]:
    """Lines -> queries, each up to the semicolon that ends its line, the last up to the end; a dot command is a line.

    Ctrl-C drops what was begun.
    """
    text = ""
    while True:
        try:
            line = read(bool(text.strip()))
        except KeyboardInterrupt:
            print()
            text = ""
            continue
        except EOFError:
            break
        if not text.strip() and line.lstrip().startswith("."):
            yield line.strip()
            continue
        text += line + "\n"
        if ended(text):
            yield text.strip()
            text = ""
    if text.strip():
        yield text.strip()


def ended(text: str) -> bool:
    """Whether the last thing outside quotes and comments is a semicolon."""
    last, at = "", 0
    while at < len(text):
        for start, end in (("'", "'"), ('"', '"'), ("--", "\n"), ("/*", "*/"), ("$$", "$$")):
            if text.startswith(start, at):
                found = text.find(end, at + len(start))
                if found < 0:
                    return False
                last = last if start in ("--", "/*") else start
                at = found + len(end)
                break
        else:
            last = text[at] if not text[at].isspace() else last
            at += 1
    return last == ";"


def typed(begun: bool) -> str:
    """A line as it is typed. Ctrl-D: EOFError."""
    try:
        return input(MORE if begun else PROMPT)
    except EOFError:
        print()
        raise


@contextmanager
def remembered(path: Path) -> Iterator[None]:
    """What was typed is there again next time, where the folder may be written to and Python knows how."""
    try:
        import readline
    except ImportError:
        yield
        return
    readline.set_history_length(LONGEST)
    with suppress(OSError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        with suppress(OSError):
            readline.write_history_file(path)
