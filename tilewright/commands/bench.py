"""`tilewright bench`: models side by side with others, as figures for people, JSON, a page and a picture."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from tilewright import STORE
from tilewright.errors import TuningError, UsageError

if TYPE_CHECKING:
    from tilewright.peers.contender import Case

EMPTY = ".untuned"  # what is added to a store's name for one that does not exist

# fmt: off
CASES    = "Models; 'GMM.*' is every one that fits; ops and networks are the paper's operators and whole networks."
AGAINST  = "onnxruntime, openvino, torch, torch-cl, torch-compile, numpy, with commas between; or every one installed."
TRIALS   = "Tune each case first, with so many programs; 0 takes what the store knows."
RESUME   = "Keep finished cases in this file, and go on from it."

Cases    = Annotated[list[str], typer.Argument(metavar="CASE...", help=CASES)]
Against  = Annotated[str, typer.Option(metavar="PEERS", help=AGAINST)]
Trials   = Annotated[int, typer.Option("--trials", metavar="N", help=TRIALS)]
Untuned  = Annotated[bool, typer.Option("--untuned", help="Run first guesses, whatever the store knows.")]
Threads  = Annotated[int, typer.Option(metavar="N", help="Threads of every contender.")]
Place    = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Batch    = Annotated[int, typer.Option(metavar="N", help="Size of a batch, where the name leaves it open.")]
Seq      = Annotated[int | None, typer.Option(metavar="N", help="Length of a text, where the model takes one.")]
Dims     = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N", help="Extent that an ONNX file leaves open.")]
Rounds   = Annotated[int, typer.Option(metavar="N", help="Rounds of turns.")]
Seed     = Annotated[int, typer.Option(metavar="S", help="Of the inputs, and of the search.")]
Resume   = Annotated[Path | None, typer.Option("--resume", metavar="FILE", help=RESUME)]
Markdown = Annotated[Path | None, typer.Option("--markdown", metavar="FILE", help="Write the report as a page.")]
Chart    = Annotated[Path | None, typer.Option("--chart", metavar="FILE", help="Draw the report: .svg, .png or .pdf.")]
Json     = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was typed, but for where the results go."""

    cases: Sequence[str]
    against: str
    trials: int
    untuned: bool
    threads: int
    store: str
    batch: int
    seq: int | None
    dims: Mapping[str, int] | None
    rounds: int
    seed: int

    @property
    def command(self) -> str:
        """How to get the same figures on another machine."""
        words = ["tilewright", "bench", *self.cases, "--against", self.against, "--threads", str(self.threads)]
        words += ["--untuned"] if self.untuned else ["--trials", str(self.trials)]
        words += ["--rounds", str(self.rounds), "--seed", str(self.seed)]
        words += ["--batch", str(self.batch)] if self.batch != 1 else []
        words += ["--seq", str(self.seq)] if self.seq is not None else []
        words += [word for name, n in (self.dims or {}).items() for word in ("--dim", f"{name}={n}")]
        return join(words)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "trials": self.trials, "untuned": self.untuned, "rounds": self.rounds, "seed": self.seed,
            "batch": self.batch, "seq": self.seq, "dims": dict(self.dims or {}),
        }  # fmt: skip


def bench(
    cases: Cases, against: Against = "installed", trials: Trials = 0, untuned: Untuned = False, threads: Threads = 1,
    store: Place = STORE, batch: Batch = 1, seq: Seq = None, dim: Dims = None, rounds: Rounds = 9, seed: Seed = 0,
    resume: Resume = None, markdown: Markdown = None, chart: Chart = None, json_: Json = False,
) -> int:  # fmt: skip
    """Time models side by side with others: same cores, same inputs, in turns, outputs verified."""
    from tilewright.cli import WRONG, dims_of, print_json, pure

    with pure(json_):
        place = str(Path(store).absolute())
        wanted = Wanted(
            cases, against, trials, untuned, threads, place + EMPTY if untuned else place,
            batch, seq, dims_of(dim), rounds, seed,
        )  # fmt: skip
        checked(wanted, resume, markdown, chart)
        report = measured(wanted, resume, json_)
    if json_:
        print_json(report)
    else:
        from tilewright.printed import benched

        benched(report)
    written(report, markdown, chart)
    return WRONG if report["broken"] or not all(c["verified"] for c in report["cases"]) else 0


def checked(wanted: Wanted, resume: Path | None, markdown: Path | None, chart: Path | None) -> None:
    """Raises UsageError: every mistake that can be seen before anything is measured, which may take hours."""
    from tilewright.chart import drawable

    least = (("--rounds", wanted.rounds, 1), ("--trials", wanted.trials, 0), ("--seed", wanted.seed, 0))
    for option, value, at_least in least:
        if value < at_least:
            raise UsageError(f"{option} {value}: it must be at least {at_least}")
    if wanted.trials and wanted.untuned:
        raise UsageError("--trials and --untuned: choose one of them")
    if wanted.untuned and Path(wanted.store).exists():
        raise UsageError(f"--untuned needs a store that does not exist; move {wanted.store} away")
    for option, path in {"--resume": resume, "--markdown": markdown, "--chart": chart}.items():
        if path is not None and (path.is_dir() or not os.access(path.absolute().parent, os.W_OK)):
            raise UsageError(f"{option} {path}: name a file in a folder that exists and may be written to")
    if chart is not None:
        drawable(chart)


def measured(wanted: Wanted, resume: Path | None, quiet: bool) -> dict[str, Any]:
    from codegen.toolchain import find_compiler
    from tasks.workbench import machine_at
    from tilewright.bench import Bench, asked, compared, crew_of, expanded, settings
    from tilewright.journal import Journal
    from tilewright.peers.house import work_of
    from tilewright.peers.registry import peers_of
    from tilewright.view import said

    peers, compiler = peers_of(wanted.against), find_compiler(os.environ)
    shape = (wanted.batch, wanted.seq, wanted.dims)
    cases = [asked(name, wanted.threads, wanted.store, *shape) for name in expanded(wanted.cases)]
    work = work_of(wanted.store)
    work.mkdir(parents=True, exist_ok=True)
    machine = machine_at(compiler, work)
    about = settings(machine, wanted.threads, peers, date=_now(), **wanted.settings)
    journal = Journal(resume, about)

    def prepare(case: Case) -> None:
        if wanted.trials:
            tuned(case, wanted.trials, wanted.seed, quiet)

    with crew_of(wanted.threads) as crew:
        bench = Bench(crew, machine, peers, wanted.rounds, wanted.seed)
        return {"command": wanted.command, **compared(cases, bench, journal, prepare, said)}


def _now() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="minutes")


def tuned(case: Case, trials: int, seed: int, quiet: bool) -> None:
    """`tilewright tune`, in a process that may fail without ending a long bench. Raises TuningError."""
    from tilewright.peers.process import python_path

    dims = [f"--dim={name}={extent}" for name, extent in (case.dims or {}).items()]
    seq = [] if case.seq is None else [f"--seq={case.seq}"]
    words = [
        "tune", case.model, "--plain", f"--trials={trials}", f"--threads={case.threads}", f"--store={case.store}",
        f"--seed={seed}", f"--batch={case.batch}", *seq, *dims, *(["--json"] if quiet else []),
    ]  # fmt: skip
    last = "no message"
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tilewright.cli", *words], env={**os.environ, "PYTHONPATH": python_path()},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        for line in process.stderr or ():
            last = line.strip() or last
            print(line, end="", file=sys.stderr, flush=True)
    if process.returncode:
        raise TuningError(f"tuning ended with {process.returncode}: {last.removeprefix('tilewright: ')}")


def written(report: Mapping[str, Any], markdown: Path | None, chart: Path | None) -> None:
    from tilewright.chart import draw
    from tilewright.page import page

    if chart is not None:
        draw(report, chart)
    if markdown is not None:
        picture = quote(os.path.relpath(chart, markdown.parent)) if chart is not None else None
        markdown.write_text(page(report, picture))
