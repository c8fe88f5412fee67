"""`tilewright roofline`: how far each workload of a model is from what the machine can do, and what holds it back."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import STORE
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tasks.roofline import Placed, Roofline
    from tasks.subject import Device

# fmt: off
FEWEST  = "Threads of the programs.  [default: of the last run]"

Model   = Annotated[str, typer.Argument(metavar="MODEL", help="A model that was tuned, or its ONNX file.")]
Place   = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Threads = Annotated[int | None, typer.Option(metavar="N", help=FEWEST, show_default=False)]
Json    = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on

COMPUTED = (
    "intensity", "intensities", "gflops", "peak_share", "roof_share", "bound", "bound_share", "total_seconds",
)  # fmt: skip
NOTES = """\
flop/B: operations per byte of inputs and outputs, then per byte that the tiled program asks each level for
% of roof: the roof is the peak, or inputs and outputs once through the nearest cache that holds them
bound by: what needs longest for the tiled program at the measured rates, and its share of the time; estimated from
    footprints, where it is not arithmetic"""


def roofline(model: Model, store: Place = STORE, threads: Threads = None, json_: Json = False) -> None:
    """How far the best programs of a model are from what the machine can do, and what bounds each."""
    from tilewright.cli import print_json, pure

    with pure(json_):
        found = looked_up(model, store, threads)
    if json_:
        print_json(document(found))
    else:
        printed(found)


def looked_up(model: str, store: str, threads: int | None) -> Roofline:
    """Raises UsageError."""
    from data.query import connect
    from data.store import Store
    from tasks.roofline import roofline as placed
    from tasks.subject import SubjectError, matching, subjects
    from tilewright.cli import a_store

    try:
        with connect(Store(a_store(store))) as source:
            return placed(source, matching(subjects(source), model, threads)[0])
    except SubjectError as error:
        raise UsageError(str(error)) from error


# ---------------------------------------------------------------------------------------------- for machines


def document(found: Roofline) -> dict[str, Any]:
    return {
        "model": found.subject.model, "target": found.subject.target, "device": described(found.device),
        "workloads": [flat(w) for w in found.workloads],
    }  # fmt: skip


def described(device: Device) -> dict[str, Any]:
    """Rates of all threads together."""
    return {
        "key": device.key, "compiler": device.compiler, "threads": device.target.threads, "peak_gflops": device.peak,
        "gb_per_second": device.rates, "bytes_of_one_core": device.sizes,
    }  # fmt: skip


def flat(w: Placed) -> dict[str, Any]:
    return {**asdict(w), **{name: getattr(w, name) for name in COMPUTED}}


# ---------------------------------------------------------------------------------------------- for people


def printed(found: Roofline) -> None:
    from tilewright.figures import roofs
    from tilewright.printed import console

    out = console()
    out.print(f"{found.subject.model} on {found.subject.target}: {roofs(found.device)}")
    out.print(_table(found))
    if any(w.seconds is not None and not w.confirmed for w in found.workloads):
        out.print("*: of the search; no finalists' round has confirmed it")
    if any(w.seconds is None for w in found.workloads):
        out.print("-: no program was verified yet")
    if not found.device.rates:
        out.print("the store does not describe the device; the next tilewright tune records it")
    out.print(NOTES)


def _table(found: Roofline) -> Any:
    from tilewright.figures import LEVELS
    from tilewright.printed import grid

    levels = list(found.device.rates)
    names = [LEVELS[level] for level in levels]
    drawn = grid(
        "workload", "times", "flop/B", *names, "best", "GFLOP/s", "% of peak", "% of roof", "bound by", "program"
    )
    for w in found.workloads:
        drawn.add_row(*_cells(w, levels))
    return drawn


def _cells(w: Placed, levels: list[str]) -> list[str]:
    from tilewright.figures import NONE, bounded, figure, percent
    from tilewright.printed import KEY
    from tilewright.view import seconds

    best = seconds(w.seconds) + ("" if w.confirmed or w.seconds is None else " *")
    return [
        w.name, str(w.weight), figure(w.intensity), *(figure(w.intensities.get(level)) for level in levels), best,
        figure(w.gflops), percent(w.peak_share), percent(w.roof_share), bounded(w), (w.program or NONE)[:KEY],
    ]  # fmt: skip
