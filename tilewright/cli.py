"""The command line. Everything heavy is imported by the command that needs it: `--help` must not wait.

Results go to stdout, all else to stderr. With --json, stdout is one JSON document and nothing else.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tilewright import STORE, __version__
from tilewright.commands.bench import bench
from tilewright.commands.exchange import export, import_
from tilewright.commands.explain import explain
from tilewright.commands.nightly import nightly
from tilewright.commands.register import models, register, unregister
from tilewright.commands.replay import replay
from tilewright.commands.report import report
from tilewright.commands.roofline import roofline
from tilewright.commands.sql import sql
from tilewright.commands.sync import sync
from tilewright.errors import BAD_INPUT, INTERRUPTED, UsageError, told

TRIALS, ENDLESS = 1000, 1_000_000  # programs to measure: without a limit of time, and with one
WRONG = 1  # exit status: it ran, and what came out is wrong or missing
BUDGET = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")
UNITS = {"h": 3600, "m": 60, "s": 1}
MARKS = {"ok": "ok", "note": "note", "missing": "-", "broken": "BROKEN"}


class OneLine(TyperGroup):
    """A mistake on the command line is told in one line too."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            status = super().main(*args, **{**kwargs, "standalone_mode": False})
        except typer.Abort:
            status = stopped("stopped")
        except Exception as error:
            format_message = getattr(error, "format_message", None)  # what typer's own usage errors have
            if format_message is None:
                raise
            status = complain(f"{format_message().rstrip('.')}; see --help")
        sys.exit(status if isinstance(status, int) else 0)


app = typer.Typer(
    cls=OneLine, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Finds fast implementations of tensor programs by searching.",
    epilog="Begin with `tilewright doctor`, `tilewright tune resnet50 --trials 256`, `tilewright run resnet50 --check`.",
)  # fmt: skip

# fmt: off
# What several commands take.
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A name (resnet50, GMM.3.b1) or an ONNX file.")]
StorePath = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Threads   = Annotated[int, typer.Option(metavar="N", help="Threads of the programs.")]
Batch     = Annotated[int, typer.Option(metavar="N", help="Size of a batch, where the name leaves it open.")]
Seq       = Annotated[int | None, typer.Option(metavar="N", help="Length of a text, where the model takes one.")]
Dims      = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N", help="Extent that an ONNX file leaves open.")]
Rounds    = Annotated[int, typer.Option(metavar="N", help="Rounds of samples.")]
Plain     = Annotated[bool, typer.Option("--plain", help="No colours, no moving parts, no Prefect.")]
Json      = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]

# What one command takes.
Trials    = Annotated[int | None, typer.Option(metavar="N", help=f"Programs to measure at most.  [default: {TRIALS}]")]
Budget    = Annotated[str | None, typer.Option(metavar="TIME", help="Time to spend at most: 90s, 30m, 1h30m.")]
Seed      = Annotated[int, typer.Option(metavar="S", help="Of every random choice.")]
EarlyStop = Annotated[bool, typer.Option(help="Give up a workload whose best time no longer moves.")]
Check     = Annotated[bool, typer.Option("--check", help="Compare the outputs with a reference.")]
Key       = Annotated[str, typer.Argument(metavar="KEY", help="Of a program or a workload, or the beginning of one.")]
# fmt: on


# ---------------------------------------------------------------------------------------------- how a command ends


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
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _warned
                status = command(*args, **kwargs) or 0
        except KeyboardInterrupt:
            status = stopped("stopped; what was recorded until now stays")
        except BrokenPipeError:  # whoever read our output has gone; nor can Python flush it at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            status = 0
        except Exception as error:
            line = told(error)
            if line is None:
                raise
            status = complain(line)
        raise typer.Exit(status)

    return wrapper


def _warned(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
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


def print_json(document: Any) -> None:
    print(json.dumps(_finite(document), indent=2, default=str, allow_nan=False))


def _finite(document: Any) -> Any:
    """JSON has no infinity and no NaN: null."""
    match document:
        case float():
            return document if math.isfinite(document) else None
        case Mapping():
            return {k: _finite(v) for k, v in document.items()}
        case list() | tuple():
            return [_finite(v) for v in document]
        case _:
            return document


# ---------------------------------------------------------------------------------------------- what was typed


def budget_seconds(text: str | None) -> float | None:
    """ "1h30m", "30m", "90s", "90" -> seconds. Raises UsageError."""
    if text is None:
        return None
    found = BUDGET.fullmatch(text.strip())
    seconds = sum(float(n) * UNITS[unit] for unit, n in found.groupdict().items() if n) if found else 0.0
    if seconds <= 0:
        raise UsageError(f"--budget {text!r}: write a time above zero such as 90s, 30m or 1h30m")
    return seconds


def dims_of(texts: Sequence[str] | None) -> dict[str, int] | None:
    """["batch=4"] -> {"batch": 4}. Raises UsageError."""
    out = {}
    for text in texts or ():
        name, _, extent = text.rpartition("=")
        if not name or not extent.isdecimal():
            raise UsageError(f"--dim {text!r}: write NAME=N, such as batch=1")
        out[name] = int(extent)
    return out or None


def _at_least_one(option: str, value: int) -> int:
    if value < 1:
        raise UsageError(f"{option} {value}: it must be at least 1")
    return value


def _place(store: str) -> Path:
    return Path(store).absolute()


# ---------------------------------------------------------------------------------------------- tune


@app.command()
@guarded
def tune(
    model: ModelName, trials: Trials = None, budget: Budget = None, threads: Threads = 1, store: StorePath = STORE,
    seed: Seed = 0, batch: Batch = 1, seq: Seq = None, dim: Dims = None, plain: Plain = False,
    early_stop: EarlyStop = True, json_: Json = False,
) -> int:  # fmt: skip
    """Search for fast programs. What is learnt goes to the store, and the next run goes on from there."""
    limit = budget_seconds(budget)
    arguments = {
        "model": model, "trials": trials if trials is not None else TRIALS if limit is None else ENDLESS,
        "budget_seconds": limit, "threads": threads, "store": str(_place(store)), "seed": seed,
        "batch": batch, "seq": seq, "early_stop": early_stop, "dims": dims_of(dim),
    }  # fmt: skip
    with pure(json_):
        report = _tuned(arguments, plain, json_)
    if json_:
        print_json(report)
    else:
        from tilewright.printed import tuned

        tuned(report, plain)
    if report["state"] == "stopped":
        return stopped(f"stopped; {report['trials']} programs are recorded, and the next run builds on them")
    return 0


def _tuned(arguments: dict[str, Any], plain: bool, quiet: bool) -> dict[str, Any]:
    from tilewright.view import said, watching

    said(f"loading {arguments['model']}{'' if plain else ', and starting Prefect (--plain goes without)'}")
    with watching(plain, quiet) as watch:
        if plain:
            from flows.plain import plain as run_plainly

            return run_plainly(**arguments, watch=watch)
        from flows.local import run as run_with_prefect

        place = Path(arguments["store"]).parent / "prefect"
        return run_with_prefect(arguments, place, watch, meanwhile=lambda: _look_at(**arguments))


def _look_at(
    model: str, trials: int, budget_seconds: float | None, threads: int, store: str, seed: int, batch: int,
    seq: int | None, early_stop: bool, dims: dict[str, int] | None,
) -> None:  # fmt: skip
    """Every mistake that can be seen before the first round, while Prefect starts."""
    from codegen.toolchain import find_compiler
    from data.store import Store
    from flows.plain import request, shape
    from tasks.model import load

    request(model, trials, budget_seconds, threads, store, seed, early_stop)
    shape(batch, seq, dims)
    Store.open(store)
    find_compiler(os.environ)
    load(model, batch, seq, dims)


# ---------------------------------------------------------------------------------------------- run and bench


@app.command()
@guarded
def run(
    model: ModelName, check: Check = False, threads: Threads = 1, store: StorePath = STORE, batch: Batch = 1,
    seq: Seq = None, dim: Dims = None, rounds: Rounds = 9, json_: Json = False,
) -> int:  # fmt: skip
    """Run a model with the best known programs, on seeded inputs."""
    with pure(json_):
        from tilewright.bench import asked, once

        case = asked(model, threads, store, batch, seq, dims_of(dim))
        report = once(case, check, _at_least_one("--rounds", rounds))
    if json_:
        print_json(report)
    else:
        from tilewright.printed import ran

        ran(report)
    return WRONG if report["verified"] is False else 0


app.command()(guarded(bench))


# ---------------------------------------------------------------------------------------------- show and sql


def a_store(store: str) -> Path:
    """Raises UsageError: asking makes no store."""
    place = _place(store)
    if not place.is_dir():
        raise UsageError(f"there is no store at {place}; tilewright tune makes one, --store names another")
    return place


@app.command()
@guarded
def show(key: Key, store: StorePath = STORE, json_: Json = False) -> None:
    """Every form of a stored program: DAG, sketch, choices, loop nest, C, assembly."""
    with pure(json_):
        from data.store import Store
        from tasks.show import fastest, forms, found, threads_of
        from tasks.workbench import workbench

        kept = Store(a_store(store))
        row = _the_one(key, found(kept, key))
        bench = workbench(kept.root.parent / "work", threads_of(row), os.environ)
        bench.runner.close()
        programs = fastest(kept, row, bench) if row["kind"] == "workload" else []
        chosen = _the_one(programs[0]["program"], found(kept, programs[0]["program"])) if programs else row
        document = {**row, "programs": programs, "forms": forms(chosen, bench)}
    if json_:
        print_json(document)
    else:
        from tilewright.printed import shown

        shown(document, chosen)


def _the_one(key: str, rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Raises UsageError: nothing, or more than one thing, has such a key."""
    matches = [r for r in rows if r["key"] == key] or rows
    keys = list(dict.fromkeys(r["key"] for r in matches))
    if not keys or not key:
        way_out = "tilewright sql 'SELECT key, name FROM workloads' lists some"
        raise UsageError(f"nothing has a key that begins with {key!r}; {way_out}")
    if len(keys) > 1:
        some = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
        raise UsageError(f"{len(keys)} keys begin with {key!r}: {some}; write more of it")
    return matches[0]


app.command()(guarded(sql))
app.command()(guarded(report))
app.command()(guarded(roofline))
app.command()(guarded(explain))
app.command("import")(guarded(import_))
app.command()(guarded(export))
app.command()(guarded(sync))


# ---------------------------------------------------------------------------------------------- doctor


@app.command()
@guarded
def doctor(store: StorePath = STORE, threads: Threads = 1, json_: Json = False) -> int:
    """Look at this machine: what was found, what is missing and how to get it."""
    with pure(json_):
        from flows.plain import request
        from tilewright.doctor import Finding, findings

        request("", 1, None, threads, store, 0, True)
        found: list[Finding] = []
        for f in findings(_place(store), threads):
            found.append(f)
            if not json_:
                print(f"{MARKS[f.state]:<7} {f.what:<12} {f.said}", flush=True)
    broken = [f.what for f in found if f.state == "broken"]
    if json_:
        print_json({"healthy": not broken, "findings": [asdict(f) for f in found]})
    else:
        print(f"not ready: {', '.join(broken)}" if broken else "ready; next: tilewright tune resnet50 --trials 256")
    return WRONG if broken else 0


app.command()(guarded(replay))
app.command()(guarded(register))
app.command()(guarded(models))
app.command()(guarded(unregister))
app.command()(guarded(nightly))


# ---------------------------------------------------------------------------------------------- the program


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tilewright {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback(invoke_without_command=True)
def about(context: typer.Context, version: Version = False) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before libgomp is loaded; measuring children set their own
    app()


if __name__ == "__main__":
    main()
