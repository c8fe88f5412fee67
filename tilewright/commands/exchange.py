"""`tilewright import` and `tilewright export`: records of other tuners in, measurements of ours out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright import STORE, __version__
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from tasks.interchange.imports import Imported

Row = Mapping[str, Any]

# fmt: off
FILES   = "Logs of Ansor or AutoTVM, or MetaSchedule's database_tuning_record.json; .gz is read as it is."
WANTED  = "The name of a workload, or the beginning of its key."
OUT     = "Where to write it.  [default: stdout]"
FEWEST  = "Threads of the programs.  [default: of the last measurement]"

Files   = Annotated[list[Path], typer.Argument(metavar="FILE", help=FILES)]
Wanted  = Annotated[str, typer.Argument(metavar="WORKLOAD", help=WANTED)]
Out     = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help=OUT, show_default=False)]
Threads = Annotated[int | None, typer.Option(metavar="N", help=FEWEST, show_default=False)]
Place   = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Json    = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on

REASONS = 8  # printed; --json has all


def import_(files: Files, store: Place = STORE, json_: Json = False) -> None:
    """Read tuning logs of Ansor, AutoTVM or MetaSchedule, to compare with. Nothing of them is ever run."""
    from data.store import Store
    from tasks.interchange.imports import LogError, imported
    from tilewright.cli import print_json, pure

    for file in files:
        if not file.is_file():
            raise UsageError(f"{file}: there is no such file")
    with pure(json_):
        kept = Store.open(Path(store).absolute())
        try:
            found = [imported(kept, file) for file in files]
        except LogError as error:
            raise UsageError(str(error)) from error
    if json_:
        print_json({"files": [asdict(f) for f in found]})
    else:
        printed(found)
    if not any(f.kept or f.known for f in found):
        raise UsageError(
            "no record was found; the formats are those of Ansor, AutoTVM and MetaSchedule, a record a line"
        )


def printed(found: Sequence[Imported]) -> None:
    for f in found:
        print(f"{f.file}: {f.kept} of {f.lines} records kept, {f.known} known already, {f.failed} of failed programs")
        print(f"  {f.mapped} of a workload of ours")
        _told("not mapped", f.unmapped)
        _told("not read", f.refused)
    if any(f.mapped for f in found):
        print("next: tilewright sql others")


def _told(what: str, reasons: Mapping[str, int]) -> None:
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    for reason, count in ordered[:REASONS]:
        print(f"  {count} {what}: {reason}")
    if rest := sum(count for _, count in ordered[REASONS:]):
        print(f"  {rest} {what}, for other reasons; --json tells them")


def export(wanted: Wanted, output: Out = None, threads: Threads = None, store: Place = STORE) -> None:
    """Write every measurement of a workload as T4, the JSON that Kernel Tuner and others exchange."""
    import json

    from data.files import publish
    from data.query import connect
    from data.store import Store
    from tasks.interchange.t4 import t4
    from tasks.subject import SubjectError, place_of
    from tilewright.cli import a_store

    try:
        with connect(Store(a_store(store))) as source:
            place, _ = place_of(source, wanted, threads)
            document = t4(source, place["workload"], place["target"], place["device"], __version__)
    except SubjectError as error:
        raise UsageError(str(error)) from error
    text = json.dumps(document, indent=1, allow_nan=False)
    if output is None:
        print(text)
        return
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise UsageError(f"--output {output}: name a file in a folder that exists")
    publish(output.absolute(), f"{text}\n".encode())
    print(f"{output}: {len(document['results'])} measurements of {place['name']} on {place['target']}")
