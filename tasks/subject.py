"""What a question is about: a model that was tuned for one target on one device, and what that device can do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from data.query import Connection
from ir.target import Target
from tasks.model import ALIASES
from tasks.replay import ReplayError, some, target_of
from tasks.workbench import nearest, roofline_seconds

Row = Mapping[str, Any]
LEVELS = ("l1", "l2", "l3", "dram")
KEY = re.compile(r"[0-9a-f]{4,}")


class SubjectError(ValueError):
    """The store knows nothing like that: one line with the way out."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model on a target and a device. runs: keys, the oldest first. device: devices.key; None: nothing was measured."""

    model: str
    target: str
    threads: int
    device: str | None
    runs: tuple[str, ...]

    @property
    def last_run(self) -> str:
        return self.runs[-1]


def subjects(source: Connection) -> list[Subject]:
    """The latest first."""
    rows = source.run("models").to_pylist()
    return [Subject(r["model"], r["target"], r["threads"], r["device"], tuple(r["runs"])) for r in rows]


def matching(known: Sequence[Subject], wanted: str, threads: int | None = None) -> list[Subject]:
    """The subjects of a model by its name or its ONNX file; "resnet18" also finds "resnet18 batch=2" where it was never
    tuned as it is. Raises SubjectError."""
    name = PurePath(wanted).stem if wanted.endswith(".onnx") else ALIASES.get(wanted, wanted)
    named = [s for s in known if s.model == name] or [s for s in known if s.model.startswith(f"{name} ")]
    if not named:
        models = list(dict.fromkeys(s.model for s in known))
        way_out = f"there are {some(models)}" if models else TUNE_ONE
        raise SubjectError(f"no model called {wanted!r} was tuned; {way_out}")
    found = [s for s in named if threads in (None, s.threads)]
    if not found:
        counts = ", ".join(str(n) for n in sorted({s.threads for s in named}))
        raise SubjectError(f"{wanted} was not tuned for {threads} threads; it was for {counts}")
    return found


def place_of(source: Connection, wanted: str, threads: int | None) -> tuple[Row, str | None]:
    """The place with the latest measurement (a row of the question `places`), and the program, if one was asked for.

    wanted: the name of a workload, or the beginning of a workload's or program's key. Raises SubjectError.
    """
    rows, program = _places(source, wanted), None
    if not rows and KEY.fullmatch(wanted):
        rows, program = _of_program(source, wanted)
    found = list(dict.fromkeys(r["workload"] for r in rows))
    if not found:
        way_out = "tilewright sql 'SELECT name, key FROM unique_workloads' lists some"
        raise SubjectError(f"nothing measured is called {wanted!r}, and no key begins so; {way_out}")
    if len(found) > 1:
        raise SubjectError(f"{len(found)} workloads are called {wanted!r}; write a key: {some(found)}")
    mine = [r for r in rows if threads in (None, r["threads"])]
    if not mine:
        raise SubjectError(
            f"{rows[0]['name']} was not measured with {threads} threads; it was with {rows[0]['threads']}"
        )
    return mine[0], program


def _places(source: Connection, wanted: str) -> list[Row]:
    return list(source.run("places", workload=wanted).to_pylist()) if wanted else []


def _of_program(source: Connection, wanted: str) -> tuple[list[Row], str | None]:
    """The places of a program's workload, and the program."""
    programs = {r["key"]: r for r in source.run("find", key=wanted).to_pylist() if r["kind"] == "program"}
    if len(programs) > 1:
        raise SubjectError(f"{len(programs)} programs have such a key: {some(list(programs))}; write more of it")
    for key, row in programs.items():
        return _places(source, row["workload"]), key
    return [], None


TUNE_ONE = "the store has no run yet; tilewright tune MODEL makes one"


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the memory. bytes: of one core, None: no limit. gb_per_second: read by one core."""

    name: str
    bytes: int | None
    gb_per_second: float


@dataclass(frozen=True, slots=True)
class Device:
    """A device as the store describes it, and what it is compiled for. peak_gflops: of one core; None, and no levels: the
    store does not know them."""

    key: str
    target: Target
    compiler: str
    peak_gflops: float | None
    levels: tuple[Level, ...]

    @property
    def peak(self) -> float | None:
        """GFLOP/s of the target's threads together."""
        return self.peak_gflops * self.target.threads if self.peak_gflops else None

    @property
    def rates(self) -> dict[str, float]:
        """Level -> GB/s of the target's threads together."""
        return {level.name: level.gb_per_second * self.target.threads for level in self.levels}

    @property
    def sizes(self) -> dict[str, int]:
        return {level.name: level.bytes for level in self.levels if level.bytes}

    def holding(self, bytes_: float) -> str:
        """The first level that holds so many bytes."""
        return nearest(bytes_, self.sizes, self.target.threads)

    def roof_seconds(self, flops: float, bytes_: float) -> float | None:
        """The least time of a call; None where the peak or the memory's rate is not known."""
        if not self.peak_gflops or "dram" not in self.rates:
            return None
        alone = {level.name: level.gb_per_second for level in self.levels}
        return roofline_seconds(flops, bytes_, self.peak_gflops, self.sizes, alone, self.target.threads)


def device_of(source: Connection, key: str | None, target: str) -> Device:
    """Raises SubjectError for a target that this version does not know."""
    rows = source.run("device", device=key).to_pylist()
    row: Row = rows[0] if rows else {"isa": (), "memory": (), "peak_gflops": None, "compiler": ""}
    try:
        compiled_for = target_of({**row, "target": target})
    except ReplayError as error:
        raise SubjectError(str(error)) from error
    return Device(key or "", compiled_for, row["compiler"], row["peak_gflops"] or None, tuple(_levels(row)))


def _levels(row: Row) -> list[Level]:
    """In order from the nearest; those without a rate left out."""
    found = {m["level"].lower(): m for m in row["memory"] or ()}
    known = [(name, found[name]) for name in LEVELS if name in found and found[name]["gb_per_second"]]
    return [Level(name, m["bytes"], m["gb_per_second"]) for name, m in known]
