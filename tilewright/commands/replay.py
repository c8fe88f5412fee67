"""`tilewright replay`: strategies against what the store remembers, without a compiler or a quiet machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tilewright import STORE
from tilewright.errors import UsageError

Row = Mapping[str, Any]

STRATEGIES = "evolution,no-crossover,no-model,no-lessons,random,no-budget-rule"
ALONE, EACH = 128, 32  # trials: of one workload, and of each where there are many

# fmt: off
WANTED = "A recorded model, or a workload's key or name.  [default: the workload with most programs]"
NAMES  = "Strategies to compare, with commas between them; 'all' is every one."
TRIALS = f"Programs to try.  [default: {ALONE}, or {EACH} for each workload of a model]"
MODE   = "What answers: recorded programs alone, or a model of them for any program."

Wanted = Annotated[str | None, typer.Argument(metavar="WORKLOAD|MODEL", help=WANTED, show_default=False)]
Place  = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Names  = Annotated[str, typer.Option("--strategy", metavar="NAMES", help=NAMES)]
Trials = Annotated[int | None, typer.Option(metavar="N", help=TRIALS)]
Seeds  = Annotated[int, typer.Option(metavar="K", help="Repetitions, with the seeds 0 to K-1.")]
Mode   = Annotated[Literal["surrogate", "pool"], typer.Option("--mode", help=MODE)]
Json   = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on


def replay(
    wanted: Wanted = None, store: Place = STORE, strategy: Names = STRATEGIES, trials: Trials = None, seeds: Seeds = 3,
    mode: Mode = "surrogate", json_: Json = False,
) -> None:  # fmt: skip
    """Compare search strategies on recorded history, without measuring anything."""
    from tilewright.cli import print_json, pure

    with pure(json_):
        document = replayed(wanted, Path(store).absolute(), strategy, trials, seeds, mode)
    if json_:
        print_json(document)
    else:
        printed(document)


def replayed(
    wanted: str | None, store: Path, names: str, trials: int | None, seeds: int, mode: Literal["surrogate", "pool"]
) -> dict[str, Any]:
    """Raises UsageError before anything is computed."""
    from data.store import Store
    from search.strategy import STRATEGIES as TABLE
    from search.strategy import UnknownStrategy, strategies
    from tasks import replay as verbs
    from tilewright.cli import a_store
    from tilewright.view import said

    for option, value in {"--trials": trials, "--seeds": seeds}.items():
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: it must be at least 1")
    every = [s.name for s in TABLE]
    try:
        table = strategies(every if names == "all" else [n.strip() for n in names.split(",") if n.strip()])
        history = verbs.read(Store(a_store(str(store))), wanted)
        many = len(history.cases) > 1
        return verbs.replay(history, table, trials or (EACH * len(history.cases) if many else ALONE), seeds, mode, said)
    except (UnknownStrategy, verbs.ReplayError) as error:
        raise UsageError(str(error)) from error


# ---------------------------------------------------------------------------------------------- for people


def printed(found: Row) -> None:
    from tilewright.printed import console
    from tilewright.view import seconds

    out, workloads = console(), found["workloads"]
    rows = sum(w["rows"] for w in workloads)
    what = f"{len(workloads)} workloads" if len(workloads) > 1 else workloads[0]["key"]
    out.print(f"{found['name']} ({what}): {rows} recorded programs, {found['target']} on {found['device']}")
    lost = rows - sum(w["used"] for w in workloads)
    if lost:
        out.print(f"{lost} of them are of sketches that the rules no longer make")
    out.print(_answers(found["mode"], workloads))
    whose = "recorded" if found["mode"] == "pool" else "that any of these replays found"
    of = "weighted sum over the workloads of the best" if len(workloads) > 1 else "best time"
    out.print(
        f"1.00 is the {of} {whose}: {seconds(found['best_seconds'])}; median of {found['seeds']} seeds, then the range"
    )
    out.print(_speeds(found))
    if len(workloads) > 1:
        out.print("latency after so many trials, median of the seeds")
        out.print(_latencies(found))
    for s in found["strategies"]:
        if s["same_as"]:
            out.print(f"{s['name']} is {s['same_as']} here: what it changes has no say")


def _answers(mode: str, workloads: Sequence[Row]) -> str:
    from statistics import median

    if mode == "pool":
        return "mode pool: only recorded programs, at their recorded times; they are ranked, so how programs are bred has no say"
    held = [w["surrogate"] for w in workloads]
    ranks = [h["rank"] for h in held if h["rank"] is not None]
    rank = f"rank correlation {median(ranks):.2f}, " if ranks else ""
    error = f"median error {100 * median(h['error'] for h in held):.0f} %"
    return f"mode surrogate: fitted to the recorded programs; guessing each from all others: {rank}{error}"


def _shown(found: Row) -> list[str]:
    """Milestones at which some strategy has a time for everything."""
    every = list(found["strategies"][0]["after"])
    return [n for n in every if any(s["after"][n]["median"] is not None for s in found["strategies"])]


def _speeds(found: Row) -> Any:
    from tilewright.printed import grid

    at, shares = _shown(found), found["shares"]
    reach = [f"to {100 * s:.0f} %" for s in shares]
    batches = (
        ["batch median"] if found["mode"] == "surrogate" else []
    )  # the last batches of a pool are what is left over
    drawn = grid("strategy", *(f"after {n}" for n in at), *reach, *batches, "search s", "what it is")
    drawn.columns[-1].justify = "left"
    for s in found["strategies"]:
        speeds = [_range(s["after"][n]) for n in at]
        counts = [_figure(s["trials_to"][str(share)], "{:.0f}") for share in shares]
        middles = [_figure(s["batch_median"], "{:.2f}") for _ in batches]
        drawn.add_row(s["name"], *speeds, *counts, *middles, f"{s['search_seconds']:.1f}", s["says"])
    return drawn


def _latencies(found: Row) -> Any:
    from tilewright.printed import grid
    from tilewright.view import seconds

    at = _shown(found)
    drawn = grid("strategy", *at)
    for s in found["strategies"]:
        drawn.add_row(s["name"], *(seconds(s["latency_seconds"][n]) for n in at))
    return drawn


def _range(spread: Row) -> str:
    return f"{_figure(spread['median'], '{:.2f}')} ({spread['low']:.2f}-{spread['high']:.2f})"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
