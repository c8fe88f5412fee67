"""The command line. Everything heavy is imported by the command that needs it: `--help` must not wait.

Results go to stdout, all else to stderr. With --json, stdout is one JSON document and nothing else.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from tilewright import STORE, __version__
from tilewright.errors import BAD_INPUT, INTERRUPTED, UsageError, told

if TYPE_CHECKING:
    pass

TRIALS, ENDLESS = 1000, 1_000_000  # programs to measure: without a limit of time, and with one
WRONG = 1  # exit status: it ran, and what came out is wrong or missing
BUDGET = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")
TOP = 12  # workloads in a summary


class OneLine(TyperGroup):
    """A mistake on the command line is one line too."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> Any:
        try:
            status = super().main(*args, standalone_mode=False, **kwargs)
        except typer.Abort:
            status = stopped("stopped")
        except Exception as error:
            format_message = getattr(error, "format_message", None)  # what click calls a usage error
            if format_message is None or not (text := format_message()):
                raise
            status = complain(f"{text.rstrip('.')}; see --help")
        sys.exit(status if isinstance(status, int) else 0)


app = typer.Typer(
    cls=OneLine,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
    help="Finds fast implementations of tensor programs by searching.",
    epilog="Start with: tilewright doctor; tilewright tune resnet50 --trials 256; tilewright run resnet50 --check",
)

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A name (resnet50, GMM.3.b1) or an ONNX file.")]
StorePath = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Threads = Annotated[int, typer.Option(metavar="N", help="Threads of the programs.")]
Batch = Annotated[int, typer.Option(metavar="N", help="Size of a batch, where the name leaves it open.")]
Seq = Annotated[int | None, typer.Option(metavar="N", help="Length of a text, where the model takes one.")]
Dims = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N", help="A dimension that an ONNX file leaves open; may be repeated.")]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
Plain = Annotated[bool, typer.Option("--plain", help="No colours, no moving parts, no Prefect.")]
Rounds = Annotated[int, typer.Option(metavar="N", help="Rounds of samples.")]


# ---------------------------------------------------------------------------------------------- ends


def complain(text: str) -> int:
    print(f"tilewright: {text}", file=sys.stderr)
    return BAD_INPUT


def stopped(text: str) -> int:
    print(f"tilewright: {text}", file=sys.stderr)
    return INTERRUPTED


def guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """The command with its mistakes told in one line; a bug keeps its traceback."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        warnings.showwarning = _warned
        try:
            status = command(*args, **kwargs) or 0
        except KeyboardInterrupt:
            status = stopped("stopped; what was recorded until now stays")
        except BrokenPipeError:  # whoever read our output has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 0
        except Exception as error:
            line = told(error)
            if line is None:
                raise
            status = complain(line)
        raise typer.Exit(status)

    return wrapper


def _warned(message: Warning | str, category: type[Warning], *_: Any) -> None:
    if not issubclass(category, DeprecationWarning | PendingDeprecationWarning | ResourceWarning):
        print(f"tilewright: warning: {' '.join(str(message).split())}", file=sys.stderr)


@contextmanager
def pure(json_: bool) -> Iterator[None]:
    """With --json, whatever anyone prints meanwhile goes to stderr."""
    if not json_:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield


# ---------------------------------------------------------------------------------------------- what was typed


def budget_seconds(text: str | None) -> float | None:
    """ "1h30m", "30m", "90s", "90" -> seconds. Raises UsageError."""
    if text is None:
        return None
    found = BUDGET.fullmatch(text.strip())
    parts = {unit: float(n) for unit, n in found.groupdict().items() if n} if found else {}
    seconds = sum(parts[unit] * factor for unit, factor in (("h", 3600), ("m", 60), ("s", 1)) if unit in parts)
    if seconds <= 0:
        raise UsageError(f"--budget {text!r}: write a time above zero such as 90s, 30m or 1h30m")
    return seconds


def dims_of(texts: Sequence[str] | None) -> dict[str, int] | None:
    """["batch=4"] -> {"batch": 4}. Raises UsageError."""
    out = {}
    for text in texts or ():
        name, _, extent = text.rpartition("=")
        if not name or not extent.isdigit():
            raise UsageError(f"--dim {text!r}: write NAME=N, such as batch=1")
        out[name] = int(extent)
    return out or None


# ---------------------------------------------------------------------------------------------- tune


@app.command()
@guarded
def tune(
    model: ModelName,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help=f"Programs to measure at most. [default: {TRIALS}]")
    ] = None,
    budget: Annotated[str | None, typer.Option(metavar="TIME", help="Time to spend at most: 90s, 30m, 1h30m.")] = None,
    threads: Threads = 1,
    store: StorePath = STORE,
    seed: Annotated[int, typer.Option(metavar="S", help="Of every random choice.")] = 0,
    batch: Batch = 1,
    seq: Seq = None,
    dim: Dims = None,
    plain: Plain = False,
    early_stop: Annotated[bool, typer.Option(help="Give up a workload whose best time no longer moves.")] = True,
    json_: Json = False,
) -> int:
    """Search for fast programs. What is learnt goes to the store, and the next run goes on from there."""
    limit = budget_seconds(budget)
    arguments = {
        "model": model, "trials": trials if trials is not None else TRIALS if limit is None else ENDLESS,
        "budget_seconds": limit, "threads": threads, "store": str(Path(store).absolute()), "seed": seed,
        "batch": batch, "seq": seq, "early_stop": early_stop, "dims": dims_of(dim),
    }  # fmt: skip
    with pure(json_):
        report = _tuned(arguments, plain, json_)
    printed.document(report) if json_ else printed.tuned(report, plain)
    if report["state"] == "stopped":
        return stopped(
            f"stopped; {report['trials']} programs are recorded in {report['store']}, the next run builds on them"
        )
    return 0


def _tuned(arguments: dict[str, Any], plain: bool, quiet: bool) -> dict[str, Any]:
    from tilewright.view import said, watching

    said(f"{arguments['model']}: loading", plain, quiet)
    with watching(plain, quiet) as watch:
        if plain:
            from flows.plain import plain as run_plainly

            return run_plainly(**arguments, watch=watch)
        from flows.local import run as run_with_prefect

        place = Path(arguments["store"]).parent / "prefect"
        return run_with_prefect(arguments, place, watch, meanwhile=lambda: _look_at(arguments))


def _look_at(arguments: dict[str, Any]) -> None:
    """Every mistake that can be seen before the first round, while Prefect starts."""
    from codegen.toolchain import find_compiler
    from data.store import Store
    from flows.plain import request, shape
    from tasks.model import load

    a = arguments
    request(a["model"], a["trials"], a["budget_seconds"], a["threads"], a["store"], a["seed"], a["early_stop"])
    shape(a["batch"], a["seq"], a["dims"])
    load(a["model"], a["batch"], a["seq"], a["dims"])
    Store.open(a["store"])
    find_compiler(os.environ)


# ---------------------------------------------------------------------------------------------- run and bench


@app.command()
@guarded
def run(
    model: ModelName,
    check: Annotated[bool, typer.Option("--check", help="Compare the outputs with a reference.")] = False,
    threads: Threads = 1,
    store: StorePath = STORE,
    batch: Batch = 1,
    seq: Seq = None,
    dim: Dims = None,
    rounds: Rounds = 9,
    json_: Json = False,
) -> int:
    """Run a model with the best known programs, on seeded inputs."""
    with pure(json_):
        from tilewright.bench import once

        report = once(_entry(model, threads, store, batch, seq, dim), check, _positive(rounds))
    printed.document(report) if json_ else printed.ran(report)
    return WRONG if report["verified"] is False else 0


@app.command()
@guarded
def bench(
    cases: Annotated[list[str], typer.Argument(metavar="CASE...", help="Models; GMM.* is every one that fits.")],
    against: Annotated[str, typer.Option(metavar="PEERS", help="onnxruntime, numpy; with commas.")] = "onnxruntime",
    trials: Annotated[int, typer.Option(metavar="N", help="Tune each case first, with so many programs.")] = 0,
    threads: Threads = 1,
    store: StorePath = STORE,
    batch: Batch = 1,
    seq: Seq = None,
    dim: Dims = None,
    rounds: Rounds = 9,
    json_: Json = False,
) -> int:
    """Time models side by side with others: same cores, in turns, outputs verified."""
    with pure(json_):
        from tilewright.bench import compared, contenders, expanded
        from tilewright.view import said

        peers = contenders(against)
        entries = [_entry(name, threads, store, batch, seq, dim) for name in expanded(cases)]
        for e in entries if trials > 0 else ():
            _tune_first(e, trials, json_)
        report = compared(entries, peers, _positive(rounds), lambda line: said(line, False, json_))
    printed.document(report) if json_ else printed.benched(report, peers)
    return 0 if all(c["verified"] for c in report["cases"]) else WRONG


def _tune_first(e: Any, trials: int, quiet: bool) -> None:
    from flows.plain import plain
    from tilewright.view import watching

    with watching(False, quiet) as watch:
        plain(e.model, trials, None, e.threads, e.store, 0, e.batch, e.seq, True, e.dims, watch)


def _entry(model: str, threads: int, store: str, batch: int, seq: int | None, dim: Sequence[str] | None) -> Any:
    """What runs, checked in this process: a mistake is told before anything is started."""
    from codegen.toolchain import find_compiler
    from flows.plain import request, shape
    from tilewright.peers import OURS, Entry

    request(model, 1, None, threads, store, 0, True)
    dims = shape(batch, seq, dims_of(dim)).dims
    entry = Entry(OURS, model, batch, seq, dims, threads, str(Path(store).absolute()))
    entry.loaded()
    find_compiler(os.environ)
    return entry


def _positive(rounds: int) -> int:
    if rounds < 1:
        raise UsageError(f"--rounds {rounds}: at least one round is needed")
    return rounds


# ---------------------------------------------------------------------------------------------- show and sql


@app.command()
@guarded
def show(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Of a program or a workload, or the beginning of one.")],
    store: StorePath = STORE,
    json_: Json = False,
) -> None:
    """Every form of a stored program: DAG, sketch, choices, loop nest, C, assembly."""
    with pure(json_):
        from data.store import Store
        from tasks.show import fastest, forms, found, threads_of
        from tasks.workbench import workbench

        place = Path(store).absolute()
        row = _the_one(key, found(Store(place), key))
        bench = workbench(place.parent / "work", threads_of(row), os.environ)
        bench.runner.close()
        programs = fastest(Store(place), row, bench) if row["kind"] == "workload" else []
        chosen = _the_one(programs[0]["program"], found(Store(place), programs[0]["program"])) if programs else row
        document = {
            **row,
            "programs": programs,
            "forms": forms(chosen, bench) if chosen["sketch"] else {"DAG": row["dag_text"]},
        }
    printed.document(document) if json_ else printed.shown(document, chosen)


def _the_one(key: str, rows: Sequence[Any]) -> Any:
    """Raises UsageError: nothing, or more than one thing, has such a key."""
    exact = [r for r in rows if r["key"] == key] or rows
    if not exact:
        raise UsageError(
            f"nothing has a key that begins with {key!r}; tilewright sql 'SELECT key, name FROM workloads' lists some"
        )
    if len({r["key"] for r in exact}) > 1:
        some = ", ".join(dict.fromkeys(r["key"] for r in exact[:4]))
        raise UsageError(
            f"{len(exact)} keys begin with {key!r}: {some}{', ...' if len(exact) > 4 else ''}; write more of it"
        )
    return exact[0]


@app.command()
@guarded
def sql(
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT; without it, the tables are listed.")
    ] = None,
    store: StorePath = STORE,
    limit: Annotated[int, typer.Option(metavar="N", help="Rows at most.")] = 1000,
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    json_: Json = False,
) -> None:
    """Ask the store anything. Nothing can be changed."""
    from data.query import ask, truncated
    from data.store import Store

    if query is None:
        printed.tables(json_)
        return
    if limit < 1:
        raise UsageError(f"--limit {limit}: it must be at least 1")
    answer = ask(Store(Path(store).absolute()), query, limit)
    names, rows = answer.column_names, answer.to_pylist()
    if json_:
        printed.document(rows)
    elif csv:
        printed.as_csv(names, rows)
    else:
        printed.rows(names, rows)
    if truncated(answer):
        print(f"tilewright: only the first {limit} rows; --limit shows more", file=sys.stderr)


# ---------------------------------------------------------------------------------------------- doctor


@app.command()
@guarded
def doctor(store: StorePath = STORE, threads: Threads = 1, json_: Json = False) -> int:
    """Look at this machine: what was found, what is missing and how to get it."""
    with pure(json_):
        from flows.plain import request
        from tilewright.doctor import Finding, findings

        request("", 1, None, threads, store, 0, True)
        marks = {"ok": "ok     ", "note": "note   ", "missing": "-      ", "broken": "BROKEN "}
        found: list[Finding] = []
        for f in findings(Path(store).absolute(), threads):
            found.append(f)
            if not json_:
                print(f"{marks[f.state]} {f.what:<12} {f.said}", flush=True)
    broken = [f.what for f in found if f.state == "broken"]
    if json_:
        printed.document(
            {"healthy": not broken, "findings": [{"what": f.what, "state": f.state, "said": f.said} for f in found]}
        )
    elif broken:
        print(f"not ready: {', '.join(broken)}")
    else:
        print("ready; next: tilewright tune resnet50 --trials 256")
    return WRONG if broken else 0


# ---------------------------------------------------------------------------------------------- the rest


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tilewright {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> NoReturn:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before libgomp is loaded; measuring children set their own
    app()
    raise AssertionError("typer exits")


if __name__ == "__main__":
    main()
