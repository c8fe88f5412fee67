"""The figures of a report, from the store alone; how they look is `tilewright.report`'s. Every list in it has an end: a
store may hold years."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import numpy as np

from data.query import Connection
from ir.schedule import Population, Program
from search.validity import canonical
from tasks.build import kernel_of
from tasks.explain import decisions, holes, spoken, steps
from tasks.roofline import Placed, best_programs, program_of, under_roofs
from tasks.subject import Device, Subject, SubjectError, device_of, matching, subjects

Row = Mapping[str, Any]

MOST_MODELS = 6  # on one page; the latest
MOST_RUNS = 40  # of a model; the latest
MOST_WORKLOADS = 80  # of a model, with a section each; those that take most of the time
MOST_CHANGES = 20
MOST_POINTS = 300  # of a curve
MOST_TEXT = 60_000  # characters of a source or a DAG
MOST_NAME = 120  # characters of a name
MOST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class Run:
    """trials: programs measured in the search, `confirmed` those of the finalists' round. before, after: seconds of a call
    of the model, untuned and with the best programs; None: not every workload had one. stages: name -> seconds."""

    key: str
    state: str
    started: datetime
    wall_seconds: float | None
    trials: int
    failed: int
    confirmed: int
    before: float | None
    after: float | None
    stages: Mapping[str, float]

    @property
    def speedup(self) -> float | None:
        """Untuned over tuned, in the same run."""
        return self.before / self.after if self.before and self.after else None


@dataclass(frozen=True, slots=True)
class Curve:
    """What was best after so many programs: points (programs measured, seconds), where it changed and at the end."""

    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A workload whose best program is another one than the run before left. gain: time of the former one over that of
    the new one, in the same round; None: the former one did not take part."""

    name: str
    workload: str
    before_seconds: float
    seconds: float
    gain: float | None


@dataclass(frozen=True, slots=True)
class Errors:
    """share: of the measurements of the run."""

    kind: str
    count: int
    share: float
    message: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The cost model in one round. rank, recall: on held-out programs; None: there was no model yet. predicted, measured:
    means of the round, throughput relative to the best; None: nothing was predicted. error: mean of |difference|."""

    round: int
    name: str
    trained_on: int
    rank: float | None
    recall: float | None
    predicted: float | None
    measured: float | None
    error: float | None


@dataclass(frozen=True, slots=True)
class Section:
    """A workload with its best program. steps: with the rule that made each, where today's rules still do. source: in C,
    the first MOST_TEXT characters, `cut` more follow; empty where today's sketch rules no longer make the program."""

    placed: Placed
    steps: tuple[tuple[str, str], ...]
    choices: Mapping[str, str]
    curve: Curve
    dag_text: str
    source: str
    cut: int


@dataclass(frozen=True, slots=True)
class ModelReport:
    """runs: the oldest first. marks: programs measured when each of them began. before: the run that `changes` compare
    with; None: there was none. compared: workloads that both had. workloads: the one that takes most of the time first;
    the first MOST_WORKLOADS have a section."""

    subject: Subject
    device: Device
    runs: tuple[Run, ...]
    marks: tuple[int, ...]
    curve: Curve
    workloads: tuple[Placed, ...]
    sections: tuple[Section, ...]
    before: Run | None
    changes: tuple[Change, ...]
    compared: int
    errors: tuple[Errors, ...]
    judgements: tuple[Judgement, ...]

    @property
    def last(self) -> Run:
        return self.runs[-1]

    @property
    def missing(self) -> int:
        """Workloads without a verified program."""
        return sum(w.seconds is None for w in self.workloads)

    @property
    def unconfirmed(self) -> int:
        """Workloads whose best time is the search's own."""
        return sum(w.seconds is not None and not w.confirmed for w in self.workloads)

    @property
    def timed_seconds(self) -> float:
        """Of the workloads that have a time, each as often as it occurs."""
        return sum(w.total_seconds for w in self.workloads)

    @property
    def seconds(self) -> float | None:
        """Of a call; None while a workload has no time."""
        return self.timed_seconds if self.workloads and not self.missing else None

    @property
    def roof_share(self) -> float | None:
        """Of the workloads that have a time and a roof, together."""
        known = [w for w in self.workloads if w.roof_share is not None]
        total = sum(w.total_seconds for w in known)
        return sum(w.weight * (w.roof_seconds or 0.0) for w in known) / total if total else None


@dataclass(frozen=True, slots=True)
class Report:
    """models: the one tuned last first. hidden: models that the page has no room for. skipped: why others are missing."""

    created: datetime
    models: tuple[ModelReport, ...]
    hidden: int
    skipped: tuple[str, ...]


def report(source: Connection, wanted: str | None) -> Report:
    """Of one model, or of those tuned last. Raises SubjectError: there is no such model."""
    known = subjects(source)
    chosen = known if wanted is None else matching(known, wanted)
    found, skipped = [], []
    for subject in chosen[:MOST_MODELS]:
        try:
            found.append(model_report(source, subject))
        except SubjectError as error:
            skipped.append(f"{name_of(subject.model)}: {error}")
    return Report(datetime.now(UTC), tuple(found), len(chosen) - len(found) - len(skipped), tuple(skipped))


def model_report(source: Connection, subject: Subject) -> ModelReport:
    """Raises SubjectError for a target that this version does not know."""
    device = device_of(source, subject.device, subject.target)
    runs = _runs(source, subject)
    where = {"model": subject.model, "target": subject.target, "device": subject.device}
    rows = source.run("model_workloads", **where).to_pylist()
    weights = {r["workload"]: r["weight"] for r in rows}
    curves, whole, marks = _curves(source, runs, weights)
    before, changes, compared = _changes(source, runs)
    best = best_programs(source, subject)
    found = [_found(row, best.get(row["workload"]), device) for row in rows]
    found.sort(key=lambda f: -f.placed.total_seconds)
    sections = [_section(f, curves[f.placed.key]) for f in found[:MOST_WORKLOADS]]
    return ModelReport(
        subject, device, runs, marks, whole, tuple(f.placed for f in found), tuple(sections), before, changes, compared,
        tuple(_errors(source, runs[-1])), tuple(_judgements(source, runs[-1], rows)),
    )  # fmt: skip


def name_of(text: str) -> str:
    """Names come from files of other people: one line, not endless."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_NAME else f"{line[: MOST_NAME - 1]}…"


# ---------------------------------------------------------------------------------------------- runs


def _runs(source: Connection, subject: Subject) -> tuple[Run, ...]:
    kept = subject.runs[-MOST_RUNS:]
    rows = {r["run"]: r for r in source.run("run_summary", run=None).to_pylist() if r["run"] in kept}
    return tuple(_run(rows[key]) for key in kept)


def _run(row: Row) -> Run:
    stages = {name: row[f"{name}_seconds"] or 0.0 for name in ("search", "train", "build", "measure")}
    return Run(
        row["run"], row["state"], row["started"], row["wall_seconds"], row["measured"] - row["confirmed"], row["failed"],
        row["confirmed"], row["latency_before"], row["latency_after"], stages,
    )  # fmt: skip


def _curves(
    source: Connection, runs: Sequence[Run], weights: Mapping[str, int]
) -> tuple[dict[str, Curve], Curve, tuple[int, ...]]:
    """Of each workload, of the whole model, and how many programs were measured when each run began. What a run finds
    counts on in the next ones: times are drift-corrected."""
    best: dict[str, float] = {}
    lines: dict[str, list[tuple[int, float]]] = {key: [] for key in weights}
    counts, whole, marks, trial = dict.fromkeys(weights, 0), [], [], 0
    for run in runs:
        marks.append(trial)
        for row in source.run("progress", run=run.key).to_pylist():
            key, trial = row["workload"], trial + 1
            if key not in weights:
                continue
            counts[key] += 1
            best[key] = min(best.get(key, float("inf")), row["seconds"] or float("inf"))
            lines[key].append((counts[key], best[key]))
            whole.append((trial, sum(w * best.get(k, float("inf")) for k, w in weights.items())))
    return {key: curve(line) for key, line in lines.items()}, curve(whole), tuple(marks)


def curve(line: Sequence[tuple[int, float]]) -> Curve:
    """Where a falling line falls, and its end; what is infinite left out. Thinned out evenly beyond MOST_POINTS."""
    finite = [point for point in line if point[1] < float("inf")]
    kept = [p for i, p in enumerate(finite) if i in (0, len(finite) - 1) or p[1] < finite[i - 1][1]]
    if len(kept) > MOST_POINTS:
        kept = [kept[i * (len(kept) - 1) // (MOST_POINTS - 1)] for i in range(MOST_POINTS)]
    return Curve(tuple(kept))


def _changes(source: Connection, runs: Sequence[Run]) -> tuple[Run | None, tuple[Change, ...], int]:
    """The run before, workloads with another best program than it left, and how many were compared."""
    rows = [r for r in source.run("changes", run=runs[-1].key).to_pylist() if r["before_run"]]
    new = [r for r in rows if r["program"] != r["before_program"]]
    changes = [
        Change(name_of(r["name"] or r["workload"]), r["workload"], r["before_seconds"], r["seconds"], r["gain"])
        for r in new
    ]
    changes.sort(key=lambda c: -(c.gain or c.before_seconds / c.seconds))
    return runs[-2] if len(runs) > 1 else None, tuple(changes[:MOST_CHANGES]), len(rows)


def _errors(source: Connection, run: Run) -> Iterator[Errors]:
    for row in source.run("errors", run=run.key).to_pylist():
        message = " ".join((row["first_message"] or "").split())[:MOST_MESSAGE]
        yield Errors(row["kind"], row["count"], row["share"], message)


def _judgements(source: Connection, run: Run, workloads: Sequence[Row]) -> Iterator[Judgement]:
    names = {r["workload"]: name_of(r["name"]) for r in workloads}
    told = {(r["workload"], r["round"]): r for r in source.run("calibration", run=run.key, workload=None).to_pylist()}
    for row in sorted(source.run("model_quality", run=run.key).to_pylist(), key=lambda r: r["round"]):
        said: Row = told.get((row["workload"], row["round"]), {})
        yield Judgement(
            row["round"], names.get(row["workload"], row["workload"]), row["trained_on"], row["model_rank_correlation"],
            row["model_recall"], said.get("predicted"), said.get("measured"), said.get("mean_absolute_error"),
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------- workloads


@dataclass(frozen=True, slots=True)
class _Found:
    """row: of `model_workloads`. best: of `best_program`. program: None where today's rules do not make it."""

    row: Row
    best: Row | None
    program: Program | None
    placed: Placed


def _found(row: Row, best: Row | None, device: Device) -> _Found:
    program, flops = program_of(row, best, device)
    return _Found(row, best, program, under_roofs(row, best, device, program, flops))


def _section(f: _Found, line: Curve) -> Section:
    dag_text = f.row["dag_text"][:MOST_TEXT]
    if f.best is None:
        return Section(f.placed, (), {}, line, dag_text, "", 0)
    text = f.best["source_text"] or (kernel_of(f.program, f.best["program"]).text if f.program is not None else "")
    written = f.best["sketch_text"] or ""
    made, rules = steps(written), f.program.sketch.rules if f.program is not None else ()
    chosen = _chosen(f.program, written, f.best["choices"])
    return Section(
        f.placed, tuple(zip_longest(map(spoken, made), rules[: len(made)], fillvalue="")),
        decisions(list(chosen), list(chosen.values())), line, dag_text, text[:MOST_TEXT], max(len(text) - MOST_TEXT, 0),
    )  # fmt: skip


def _chosen(program: Program | None, sketch_text: str, choices: Sequence[int]) -> dict[str, int]:
    """Hole -> value: the one that takes effect, where today's rules make the program."""
    if program is None:
        return {name: options[c] for (name, options), c in zip(holes(sketch_text), choices, strict=False)}
    row = canonical(Population(program.sketch, np.array([program.choices], dtype=np.int32)))[0]
    return {h.name: int(value) for h, value in zip(program.sketch.holes, row, strict=True)}
