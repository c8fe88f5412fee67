"""`tilewright register`, `unregister` and `models`: which models are tuned every night, and how they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import STORE

if TYPE_CHECKING:
    from tasks.registry import Registration

Row = Mapping[str, Any]
TRIALS, ENDLESS = 256, 1_000_000  # programs a night: without a limit of time, and with one

# fmt: off
NAME   = "What `tilewright models` lists; a registration's name, or its model's."
MOST   = f"Programs to measure each night.  [default: {TRIALS}; with --budget as many as fit]"

Model   = Annotated[str, typer.Argument(metavar="MODEL", help="A name (resnet50, GMM.3.b1) or an ONNX file.")]
Name    = Annotated[str, typer.Argument(metavar="NAME", help=NAME)]
Threads = Annotated[int, typer.Option(metavar="N", help="Threads of the programs.")]
Which   = Annotated[int | None, typer.Option("--threads", metavar="N", help="Of several, the one with so many threads.")]
Trials  = Annotated[int | None, typer.Option(metavar="N", help=MOST)]
Budget  = Annotated[str | None, typer.Option(metavar="TIME", help="Time to tune each night: 90s, 30m, 1h30m.")]
Batch   = Annotated[int, typer.Option(metavar="N", help="Size of a batch, where the name leaves it open.")]
Seq     = Annotated[int | None, typer.Option(metavar="N", help="Length of a text, where the model takes one.")]
Dims    = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N", help="Extent that an ONNX file leaves open.")]
Place   = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Json    = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on


def register(
    model: Model, threads: Threads = 1, trials: Trials = None, budget: Budget = None, store: Place = STORE,
    batch: Batch = 1, seq: Seq = None, dim: Dims = None, json_: Json = False,
) -> None:  # fmt: skip
    """Tune a model every night from now on; a second time changes how much."""
    from tilewright.cli import budget_seconds, dims_of, print_json, pure

    limit = budget_seconds(budget)
    most = trials if trials is not None else TRIALS if limit is None else ENDLESS
    with pure(json_):
        what, workloads = _registered(model, threads, most, limit, store, batch, seq, dims_of(dim))
    if json_:
        print_json({"registration": what.key, "model": what.model, "workloads": workloads})
    else:
        print(f"{what.key}: {workloads} workloads, {_amount(what.trials, what.budget_seconds)} a night")
        print("next: tilewright nightly, or the deployment of that name (see README)")


def _registered(
    model: str, threads: int, trials: int, budget: float | None, store: str, batch: int, seq: int | None,
    dims: Mapping[str, int] | None,
) -> tuple[Registration, int]:  # fmt: skip
    """Checked before anything is made. Raises RequestError, ModelError, StoreError."""
    from data.store import Store
    from flows.plain import request, shape
    from tasks.model import load
    from tasks.registry import Registration, register

    request(model, trials, budget, threads, store, 0, True)
    given = shape(batch, seq, dims)
    loaded = load(model, batch, seq, dims)
    source = str(Path(model).absolute()) if Path(model).is_file() else model  # a night starts elsewhere
    what = Registration(source, given.label(loaded.name), threads, batch, seq, dims, trials, budget)
    register(Store.open(Path(store).absolute()), what)
    return what, len(loaded.workloads)


def unregister(name: Name, threads: Which = None, store: Place = STORE, json_: Json = False) -> None:
    """Tune a model no longer. What is known of it stays."""
    from data.store import Store
    from tasks.registry import unregister as end
    from tilewright.cli import a_store, print_json, pure

    with pure(json_):
        what = end(Store.open(a_store(store)), name, threads)
    if json_:
        print_json({"registration": what.key})
    else:
        print(f"{what.key} is no longer tuned at night; what is known of it stays")


def models(store: Place = STORE, json_: Json = False) -> None:
    """The models that are tuned every night: their last run, their latency, what nights found and promoted."""
    from data.query import run
    from data.store import Store
    from tilewright.cli import a_store, print_json, pure

    with pure(json_):
        rows = run(Store(a_store(store)), "registered", registration=None).to_pylist()
    if json_:
        print_json(rows)
    elif rows:
        _printed(rows)
    else:
        print("no model is registered; tilewright register MODEL adds one")


def _printed(rows: Sequence[Row]) -> None:
    from tilewright.printed import console, grid
    from tilewright.view import seconds

    drawn = grid("model", "a night", "last run", "latency", "whole model", "library", "last night", "promotions")
    for r in rows:
        drawn.add_row(
            r["registration"], _amount(r["trials"], r["budget_seconds"]), _when(r["last_run"], r["last_state"]),
            seconds(r["latency_seconds"]), seconds(r["model_seconds"]), seconds(r["library_seconds"]),
            _found(r), _promotions(r),
        )  # fmt: skip
    console().print(drawn)


def _amount(trials: int, budget: float | None) -> str:
    from tilewright.view import duration

    limits = [f"{trials} programs"] if trials < ENDLESS else []
    return " or ".join([*limits, *([duration(budget)] if budget else [])])


def _when(at: datetime | None, state: str | None) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M}, {state}" if at else "never"


def _found(r: Row) -> str:
    if not r["last_night"]:
        return "none yet"
    return f"{r['last_night'].astimezone(UTC):%Y-%m-%d}: {r['slower']} slower, {r['faster']} faster of {r['watched']}"


def _promotions(r: Row) -> str:
    return f"{r['promotions']}, last {r['last_promotion'].astimezone(UTC):%Y-%m-%d}" if r["promotions"] else "0"
