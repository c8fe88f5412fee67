"""`tilewright explain`: why a workload runs this program, what each of its decisions gave, and what holds it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import STORE
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tasks.explain import Effect, Explanation

# fmt: off
WANTED  = "The name of a workload, or the beginning of its key or of a program's."
FEWEST  = "Threads of the programs.  [default: of the last measurement]"

Wanted  = Annotated[str, typer.Argument(metavar="WORKLOAD|KEY", help=WANTED)]
Place   = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Threads = Annotated[int | None, typer.Option(metavar="N", help=FEWEST, show_default=False)]
Json    = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on

ANCESTORS = 12  # printed; --json has all


def explain(wanted: Wanted, store: Place = STORE, threads: Threads = None, json_: Json = False) -> None:
    """Why this schedule: what each of its decisions gave, by the nearest programs that were measured, and its roof."""
    from tilewright.cli import print_json, pure

    with pure(json_):
        found = looked_up(wanted, store, threads)
    if json_:
        print_json(document(found))
    else:
        printed(found)


def looked_up(wanted: str, store: str, threads: int | None) -> Explanation:
    """Raises UsageError."""
    from data.query import connect
    from data.store import Store
    from tasks.explain import explain as explained
    from tasks.subject import SubjectError
    from tilewright.cli import a_store

    try:
        with connect(Store(a_store(store))) as source:
            return explained(source, wanted, threads)
    except SubjectError as error:
        raise UsageError(str(error)) from error


def document(found: Explanation) -> dict[str, Any]:
    from tilewright.commands.roofline import described, flat

    steps = [{"step": s, "rule": r} for s, r in zip_longest(found.steps, found.rules)]
    return {
        "workload": flat(found.where), "program": found.program, "is_best": found.is_best,
        "device": described(found.device), "steps": steps, "choices": dict(found.choices),
        "of_steps": [asdict(e) for e in found.of_steps], "of_choices": [asdict(e) for e in found.of_choices],
        "lineage": [asdict(a) for a in found.lineage],
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------- for people


def printed(found: Explanation) -> None:
    from tilewright.printed import console

    out = console()
    for line in (*_summary(found), "", "steps, and the rule that made each"):
        out.print(line, soft_wrap=True)
    out.print(_pairs(list(zip_longest(found.steps, found.rules, fillvalue=""))))
    if found.choices:
        out.print("\nchoices, tile sizes from the outermost level inward")
        out.print(_pairs(list(found.choices.items())))
    out.print("\nwhat the steps gave")
    out.print(_of_steps(found.of_steps) if found.of_steps else "no sketch with other steps has a verified program")
    out.print("\nwhat the choices gave")
    out.print(_of_choices(found.of_choices) if found.of_choices else "no program near enough was measured")
    for line in _bred(found):
        out.print(line, soft_wrap=True)


def _summary(found: Explanation) -> list[str]:
    from tilewright.figures import figure, percent, roofs
    from tilewright.view import seconds

    w = found.where
    kind = ("confirmed" if w.confirmed else "of the search, not confirmed") + (
        "" if found.is_best else ", not the best"
    )
    shares = f"{percent(w.peak_share)} % of peak, {percent(w.roof_share)} % of roof"
    return [
        f"{w.name} ({w.key}), program {found.program}",
        f"{seconds(w.seconds)} ({kind}), {figure(w.gflops)} GFLOP/s, {shares}",
        f"{roofs(found.device)}",
        _held_back(found),
    ]


def _held_back(found: Explanation) -> str:
    """What each resource would need, as a share of the time."""
    from tilewright.figures import LEVELS, bounded, percent

    w = found.where
    if not w.bounds or not w.seconds:
        return "bound by: not known; the device is not described, or today's sketch rules no longer make this program"
    others = [b for b in w.bounds if b.what != w.bound]
    shares = ", ".join(f"{LEVELS[b.what]} {percent(b.seconds / w.seconds)} %" for b in others)
    return f"bound by {bounded(w)} of the time; the others would need {shares} (estimates)"


def _pairs(rows: Sequence[tuple[str, str]]) -> Any:
    from tilewright.printed import grid

    drawn = grid("", "")
    drawn.show_header = False
    drawn.columns[1].justify = "left"
    for name, value in rows:
        drawn.add_row(f"  {name}", value)
    return drawn


def _of_steps(effects: Sequence[Effect]) -> Any:
    drawn = _grid("  decision", "instead", "then", "compared", "programs")
    for e in effects:
        drawn.add_row(f"  {e.what}", e.there or "nothing", *_compared(e))
    return drawn


def _of_choices(effects: Sequence[Effect]) -> Any:
    drawn = _grid("  decision", "here", "instead", "then", "compared", "programs")
    for e in effects:
        drawn.add_row(f"  {e.what}", e.here, e.there, *_compared(e))
    return drawn


def _grid(*names: str) -> Any:
    """Words to the left, figures to the right."""
    from tilewright.printed import grid

    drawn = grid(*names)
    for column in drawn.columns:
        column.justify = "right" if column.header in ("then", "programs") else "left"
    return drawn


def _compared(e: Effect) -> tuple[str, str, str]:
    from tilewright.figures import times

    how = ("side by side" if e.side_by_side else "in the search") + (f", {e.others} more differ" if e.others else "")
    return times(e.ratio), how, str(e.programs)


def _bred(found: Explanation) -> list[str]:
    from tilewright.printed import KEY
    from tilewright.view import seconds

    lines = ["", "bred from"]
    for a in found.lineage[:ANCESTORS]:
        lines.append(
            f"  {a.program[:KEY]}  {seconds(a.seconds)}  {a.mutation or 'sampled'}, round {a.round} of run {a.run}"
        )
    more = len(found.lineage) - ANCESTORS
    return lines + ([f"  ... and {more} before it"] if more > 0 else [])
