"""How far the programs of a model are from what the machine can do, and what holds them back; from the store alone.

The roof of a workload is the same for all its programs: arithmetic at the peak, or inputs and outputs once through the
nearest cache that holds them (`tasks.workbench.roofline_seconds`). A tiled program asks every level for more than that;
the level that needs longest for it, at the rate that was measured, bounds the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.query import Connection
from ir.key import parse_dag
from ir.schedule import Population, Program
from ir.workload import Workload
from search.access import plan_of
from search.evolve import Space
from search.traffic import alive, operations, traffic
from tasks.lane import constant_bytes
from tasks.space import least_flops, space_of
from tasks.subject import LEVELS, Device, Subject, device_of

Row = Mapping[str, Any]
ARITHMETIC = "arithmetic"
AS_GOOD = 0.9


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that one resource needs for a program. amount: floating-point operations, or bytes of a level."""

    what: str
    amount: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Placed:
    """A workload and its best program under the roofs of a device.

    flops, bytes: of the definition. program, seconds: None, nothing was verified yet. roof_seconds: None, the device is
    not described. bounds: of the tiled program, the one that needs longest first; none where the device is not described,
    or the sketch rules no longer make the program.
    """

    key: str
    name: str
    weight: int
    flops: float
    bytes: float
    trials: int
    failed: int
    program: str | None
    seconds: float | None
    confirmed: bool
    peak: float | None
    roof_seconds: float | None
    bounds: tuple[Bound, ...]

    @property
    def intensity(self) -> float:
        """Operations per byte of inputs and outputs."""
        return self.flops / max(self.bytes, 1.0)

    @property
    def intensities(self) -> dict[str, float]:
        """Level -> operations per byte that the tiled program asks that level for."""
        return {b.what: self.flops / b.amount for b in self.bounds if b.what != ARITHMETIC and b.amount}

    @property
    def gflops(self) -> float | None:
        """Operations of the definition per second: an algorithm that needs fewer may be above the peak."""
        return self.flops / self.seconds / 1e9 if self.seconds else None

    @property
    def peak_share(self) -> float | None:
        return self.gflops / self.peak if self.gflops is not None and self.peak else None

    @property
    def roof_share(self) -> float | None:
        return self.roof_seconds / self.seconds if self.seconds and self.roof_seconds is not None else None

    @property
    def bound(self) -> str | None:
        """What needs longest. What needs more than the time itself is an estimate that is too high, and counts as all of it;
        arithmetic, which is counted and not estimated, is what binds where it is as good as the longest."""
        if not self.bounds or not self.seconds:
            return None
        shares = {b.what: min(b.seconds / self.seconds, 1.0) for b in self.bounds}
        longest = max(shares, key=lambda what: shares[what])
        return ARITHMETIC if shares.get(ARITHMETIC, 0.0) >= AS_GOOD * shares[longest] else longest

    @property
    def bound_share(self) -> float | None:
        """Of the time, what the bound alone would need; 1 at most."""
        found = next((b for b in self.bounds if b.what == self.bound), None)
        return min(found.seconds / self.seconds, 1.0) if self.seconds and found else None

    @property
    def total_seconds(self) -> float:
        """Of all occurrences in the model; 0 while there is no time."""
        return self.weight * (self.seconds or 0.0)


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model's workloads, the one that takes most of the time first."""

    subject: Subject
    device: Device
    workloads: tuple[Placed, ...]


def roofline(source: Connection, subject: Subject) -> Roofline:
    """Raises SubjectError for a target that this version does not know."""
    device = device_of(source, subject.device, subject.target)
    best = best_programs(source, subject)
    rows = source.run("model_workloads", model=subject.model, target=subject.target, device=subject.device).to_pylist()
    found = [placed(row, best.get(row["workload"]), device) for row in rows]
    return Roofline(subject, device, tuple(sorted(found, key=lambda p: -p.total_seconds)))


def best_programs(source: Connection, subject: Subject) -> dict[str, Row]:
    """Workload key -> its row of the question `best_program`."""
    if subject.device is None:
        return {}
    rows = source.run("best_program", workload=None, target=subject.target, device=subject.device).to_pylist()
    return {row["workload"]: row for row in rows}


def placed(row: Row, best: Row | None, device: Device) -> Placed:
    """row: of `model_workloads` or `places`. best: of `best_program`, None while nothing was verified."""
    return under_roofs(row, best, device, *program_of(row, best, device))


def under_roofs(row: Row, best: Row | None, device: Device, program: Program | None, flops: float) -> Placed:
    """program, flops: as `program_of` finds them, which takes a tenth of a second."""
    return Placed(
        row["workload"], row["name"], row["weight"], row["flops"], row["bytes"], row["trials"], row["failed"],
        best["program"] if best else None, best["seconds"] if best else None, bool(best and best["confirmed"]),
        device.peak, device.roof_seconds(flops, row["bytes"]),
        bounds(program, device, row["far_bytes"] or 0) if program is not None else (),
    )  # fmt: skip


def program_of(row: Row, best: Row | None, device: Device) -> tuple[Program | None, float]:
    """The best program, None where the rules of today do not make it, and the operations that the roof stands on."""
    space = space_at(row, device)
    if space is None:
        return None, row["flops"]
    flops = least_flops(space) or row["flops"]
    if best is None or best["sketch"] not in space.keys:
        return None, flops
    sketch = space.sketches[space.keys.index(best["sketch"])]
    return Program(sketch, tuple(best["choices"])), flops


def space_at(row: Row, device: Device) -> Space | None:
    """The space of a recorded workload. None: a version with another language wrote its DAG, whose figures are still worth
    showing."""
    try:
        workload = Workload(row["workload"], row["name"], parse_dag(row["dag_text"]), row["weight"])
    except ValueError:
        return None
    return space_of(workload, device.target)


# ---------------------------------------------------------------------------------------------- one program


def bounds(program: Program, device: Device, far_bytes: int) -> tuple[Bound, ...]:
    """What arithmetic and each level need at least; longest first. far_bytes: constants that the model reads between two
    calls, which is how far away a call finds its own."""
    if not device.peak or not device.rates:
        return ()
    population = Population(program.sketch, np.array([program.choices], dtype=np.int32).reshape(1, -1))
    work = float(operations(population)[0])
    found = [Bound(ARITHMETIC, work, work / (device.peak * 1e9))]
    for level, amount in served(population, device, far_bytes).items():
        if level in device.rates:
            found.append(Bound(level, amount, amount / (device.rates[level] * 1e9)))
    return tuple(sorted(found, key=lambda b: -b.seconds))


def served(population: Population, device: Device, far_bytes: int) -> dict[str, float]:
    """Level -> bytes that one call of the first program asks it for: of each tensor down to the level it lies in before
    the call, and no further."""
    homes = dict(_homes(population, device, far_bytes))
    out = dict.fromkeys(LEVELS, 0.0)
    for level, tensors in traffic(population, device.target).items():
        for tensor, bytes_ in tensors.items():
            if LEVELS.index(level) <= LEVELS.index(homes.get(tensor, "l1")):
                out[level] += float(bytes_[0])
    return out


def _homes(population: Population, device: Device, far_bytes: int) -> Iterator[tuple[str, str]]:
    """(tensor, level it comes from). Constants come from behind all others of the model, inputs and outputs from where the
    neighbouring layers leave them, what a program makes for itself from where it fits."""
    dag = plan_of(population.sketch).dag
    constants = constant_bytes(Workload("", "", population.sketch.dag))
    moving = population.sketch.dag.bytes - constants
    for tensor in dag.inputs:
        yield tensor.name, device.holding(far_bytes + constants + moving if tensor.constant else moving)
    kept = {name: float(column[0]) for name, column in alive(population).items()}
    for stage in dag.computes:
        whole = float(np.prod(stage.shape) * np.dtype(stage.dtype).itemsize)
        yield stage.name, device.holding(moving if stage.name in dag.outputs else kept.get(stage.name, whole))
