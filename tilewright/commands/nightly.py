"""`tilewright nightly`: every registered model, measured again, tuned on, and compared with what it was."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright import STORE

Row = Mapping[str, Any]

# fmt: off
WHICH  = "Registered models.  [default: all of them]"
TRIALS = "Programs to measure for each instead of what was registered; 0 only measures again."

Names  = Annotated[list[str] | None, typer.Argument(metavar="[MODEL]...", help=WHICH, show_default=False)]
Trials = Annotated[int | None, typer.Option(metavar="N", help=TRIALS)]
Budget = Annotated[str | None, typer.Option(metavar="TIME", help="Time to tune each instead of what was registered.")]
Place  = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Plain  = Annotated[bool, typer.Option("--plain", help="No colours, no moving parts, no Prefect.")]
Json   = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on


def nightly(
    models: Names = None, trials: Trials = None, budget: Budget = None, store: Place = STORE, plain: Plain = False,
    json_: Json = False,
) -> int:  # fmt: skip
    """Measure again what stands, tune on, promote what is clearly faster; compact, retrain and report.

    Ends with 1 if a program became slower or failed, or a model could not be looked at.
    """
    from tilewright.cli import WRONG, a_store, budget_seconds, print_json, pure

    with pure(json_):
        arguments = {
            "store": str(a_store(store)), "models": models or None, "trials": trials,
            "budget_seconds": budget_seconds(budget),
        }  # fmt: skip
        document = _done(arguments, plain, json_)
    if json_:
        print_json(document)
    else:
        printed(document, plain)
    return WRONG if document["failed"] or any(m["slower"] for m in document["models"]) else 0


def _done(arguments: dict[str, Any], plain: bool, quiet: bool) -> dict[str, Any]:
    from tilewright.view import watching

    with watching(True, quiet) as watch:
        if plain:
            from flows.night import plain_night

            return plain_night(**arguments, say=_say)
        from flows.local import run_night

        place = Path(arguments["store"]).parent / "prefect"
        return run_night(arguments, place, watch, meanwhile=lambda: _look_at(**arguments))


def _say(text: str) -> None:
    print(f"tilewright: {text}", file=sys.stderr)


def _look_at(store: str, models: list[str] | None, trials: int | None, budget_seconds: float | None) -> None:
    """Every mistake that can be seen before the first round, while Prefect starts."""
    from data.store import Store
    from flows.night import wanted
    from tasks.registry import chosen

    wanted(store, models, trials, budget_seconds)
    chosen(Store.open(store), models)


# ---------------------------------------------------------------------------------------------- for people


def printed(document: Row, plain: bool) -> None:
    from tilewright.printed import console, grid
    from tilewright.view import seconds

    out = console(plain)
    drawn = grid("model", "looked at", "slower", "faster", "promoted", "programs", "latency", "whole model", "library")
    for m in document["models"]:
        counts = [str(m[name]) for name in ("watched", "slower", "faster", "promoted", "trials")]
        times = [seconds(m[f"{name}_seconds"]) for name in ("latency", "model", "library")]
        drawn.add_row(m["registration"], *counts, *times)
    out.print(drawn)
    for m in document["models"]:
        for c in m["changes"]:
            out.print(change(c), soft_wrap=True)
        for d in m["decisions"]:
            if d["promoted"] and d["rival"]:
                gain = f"{1 / d['ratio']:.2f} times as fast" if d["ratio"] else "unopposed"
                out.print(f"promoted: {d['name']}: {d['program']}, {gain}; {d['reason']}", soft_wrap=True)
    for f in document["failed"]:
        out.print(f"not looked at: {f['registration']}: {f['error']}", soft_wrap=True)
    out.print(f"report: {document['report'] or document['report_error']}", soft_wrap=True)


def change(c: Row) -> str:
    """One line: what, how much, how sure, and what was different."""
    from tilewright.view import seconds

    if c["ratio"] is None:
        return (
            f"FAILED: {c['name']} ({c['workload']}), program {c['program']}: {', '.join(c['changed'])}: {c['message']}"
        )
    size = f"{c['ratio']:.2f} times its time" if c["ratio"] > 1 else f"{1 / c['ratio']:.2f} times as fast"
    kind = "SLOWER" if c["ratio"] > 1 else "faster"
    causes = "; ".join(f"{name} ({was} -> {now})" for name, (was, now) in c["causes"].items()) or ", ".join(
        c["changed"]
    )
    times = f"{seconds(c['before_seconds'])} -> {seconds(c['seconds'])}"
    sure = f"{100 * c['confidence']:.2f} % sure, {c['rounds']} rounds"
    return f"{kind}: {c['name']} ({c['workload']}): {size}, {times}, {sure}; changed: {causes}"
