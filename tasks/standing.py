"""The programs that stand for a model's workloads, their binaries of then and of now, and rounds that measure them.

A program stands by the last decision of a night, or, before the first night, as the best that is known.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from codegen.c import PRELUDE
from codegen.environment import AT_BUILD, Environment, changes
from codegen.kernel import Kernel
from codegen.oracle import Case, OracleError
from codegen.toolchain import Binary, build
from data.query import Connection
from ir.schedule import Program
from ir.timing import Failure
from ir.workload import Workload
from tasks.build import kernel_of
from tasks.kept import Kept, keep, kept, text_of
from tasks.lane import CHECK_SEED, constant_bytes
from tasks.model import Model
from tasks.regression import Sample
from tasks.space import space_of
from tasks.workbench import Workbench, nearest

Role = Literal["kept", "built", "challenger"]
Row = Mapping[str, Any]
PROBE = "probe"  # stands beside the programs: see `tasks.night.calm_bench`
AFRESH = (
    3  # rounds in one process: by chance of its memory a program may be some per cent faster in it than in the next
)
FAR = ("l3", "dram")  # levels that have a clock of their own


@dataclass(frozen=True, slots=True)
class Past:
    """A night's rounds of a program, and where they ran."""

    night: str
    samples: tuple[Sample, ...]
    environment: Environment


@dataclass
class Watched:
    """A standing program on a night.

    far_bytes: constants that the model reads between two calls. clocked: its time follows the processor's clock.
    kept: as it was built when it came to stand. built: as it is built today; None: in the same way. past: earlier nights
    of the kept one, the oldest first. rounds: look -> role -> what was measured tonight. failed: role -> why it was not.
    """

    workload: Workload
    key: str
    program: Program
    case: Case
    far_bytes: int
    clocked: bool
    kept: Kept
    built: Binary | None = None
    past: list[Past] = field(default_factory=list)
    rounds: dict[int, dict[Role, list[Sample]]] = field(default_factory=dict)
    failed: dict[Role, Failure] = field(default_factory=dict)

    @property
    def role(self) -> Role:
        """Of `current`."""
        return "built" if self.built else "kept"

    @property
    def current(self) -> Binary:
        """What a module built today would run."""
        return self.built or self.kept.binary

    @property
    def binaries(self) -> dict[Role, Binary]:
        both: dict[Role, Binary] = {"kept": self.kept.binary}
        if self.built is not None:
            both["built"] = self.built
        return both

    @property
    def failure(self) -> Failure | None:
        """Of `current`."""
        return self.failed.get(self.role)

    def ran_in(self, now: Environment, role: Role | None = None) -> Environment:
        """By default that of `current`."""
        return now.built_in(self.kept.built) if (role or self.role) == "kept" else now

    def samples(self, look: int, role: Role) -> list[Sample]:
        return self.rounds.get(look, {}).get(role, [])


def decided_rows(source: Connection, bench: Workbench) -> dict[str, Row]:
    """Workload key -> what stands for it by the last decision of a night."""
    where = {"target": bench.target.key, "device": bench.machine.key}
    return {row["workload"]: row for row in source.run("standing", **where).to_pylist()}


def watched(
    source: Connection, bench: Workbench, model: Model, rows: Mapping[str, Row], now: Environment
) -> dict[str, Watched]:
    """Workload key -> its standing program, ready to be measured. What the rules of today do not make, what does not
    compile, and what has no right answer is left out: the search then finds another one."""
    total = sum(w.weight * constant_bytes(w) for w in model.workloads)
    found = {}
    for w in model.workloads:
        program = program_of(w, rows.get(w.key), bench)
        if program is None:
            continue
        made = _watched(bench, w, rows[w.key]["program"], program, total - constant_bytes(w), now)
        if made is not None:
            made.past = past(source, bench, made, now)
            found[w.key] = made
    return found


def program_of(workload: Workload, row: Row | None, bench: Workbench) -> Program | None:
    """None where there is no row, or today's rules do not make its sketch."""
    if row is None:
        return None
    space = space_of(workload, bench.target)
    if row["sketch"] not in space.keys:
        return None
    return Program(space.sketches[space.keys.index(row["sketch"])], tuple(row["choices"]))


def _watched(
    bench: Workbench, w: Workload, key: str, program: Program, far_bytes: int, now: Environment
) -> Watched | None:
    try:
        case = bench.oracle.case(w.dag, CHECK_SEED)
    except OracleError:
        return None
    folder = folder_of(bench, key)
    old, kernel = kept(folder), kernel_of(program, key)
    new = None if old is not None and not rebuilt_for(old, text_of(kernel), now) else built(bench, kernel)
    if old is None:
        old = keep(folder, new, now) if new is not None else None
        new = None
    if old is None:
        return None
    return Watched(w, key, program, case, far_bytes, clocked(bench, w), old, new)


def rebuilt_for(old: Kept, text: str, now: Environment) -> tuple[str, ...]:
    """The columns for which a build of today may give another binary than the one that was kept: our own text counts if
    the program's has changed."""
    return tuple(name for name in changes(old.built, now, AT_BUILD) if name != "code" or text != old.text)


def built(bench: Workbench, kernel: Kernel) -> Binary | None:
    """A file of its own. None: it does not compile."""
    (found,) = build([kernel], bench.compiler, bench.target, bench.directory / "built", prelude=PRELUDE, unit=1, jobs=1)
    return found if isinstance(found, Binary) else None


def folder_of(bench: Workbench, key: str) -> Path:
    """Beside the store, not in the workbench, which may be deleted. Keys are hexadecimal; others make no path."""
    name = key if key.isalnum() else key.encode().hex()[:100]
    return bench.directory.parent / "kept" / bench.machine.key / bench.target.key / name


def clocked(bench: Workbench, w: Workload) -> bool:
    """False where the roof is a level that the processor's clock does not drive."""
    m = bench.machine
    sizes = {"l1": m.l1_bytes, "l2": m.l2_bytes, "l3": m.l3_bytes}
    arithmetic = bench.roofline_seconds(w.dag.flops, 0.0)
    return (
        nearest(w.dag.bytes, sizes, bench.target.threads) not in FAR
        or bench.roofline_seconds(w.dag.flops, w.dag.bytes) <= arithmetic
    )


def past(source: Connection, bench: Workbench, w: Watched, now: Environment) -> list[Past]:
    """Earlier nights of the kept binary since it last changed, measured beside the probe of today, the oldest first."""
    where = {"target": bench.target.key, "device": bench.machine.key}
    rows = source.run("checked", workload=w.workload.key, program=w.key, **where).to_pylist()
    nights: dict[str, list[Row]] = {}
    for row in rows:
        if not changes(now.built_in(w.kept.built), environment_of(row), (*AT_BUILD, "probe")):
            nights.setdefault(row["night"], []).append(row)
    return [
        Past(night, tuple(Sample(r["seconds"], r["peak_gflops"]) for r in found), environment_of(found[-1]))
        for night, found in nights.items()
    ]


def environment_of(row: Row) -> Environment:
    return Environment(**{name: row[name] for name in Environment.__dataclass_fields__})


# ---------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True, slots=True)
class Contest:
    """Binaries of one workload that are measured side by side, for so many rounds."""

    watched: Watched
    look: int
    binaries: Mapping[Role, Binary]
    rounds: int


def measured(bench: Workbench, contests: Sequence[Contest], seed: int) -> None:
    """The rounds of all contests, one of each in turn, so that a burst of other load meets one round of a program and not
    all of them. In a round the order is drawn; a program that fails takes no part any more."""
    rng = random.Random(seed)
    for number in range(max((c.rounds for c in contests), default=0)):
        if number % AFRESH == 0:
            bench.runner.renew()
        for c in contests:
            if number < c.rounds:
                _round(bench, c, rng)


def _round(bench: Workbench, c: Contest, rng: random.Random) -> None:
    w = c.watched
    roles = [role for role in c.binaries if role not in w.failed]
    rng.shuffle(roles)
    if not roles:
        return
    batch = bench.runner.measure([c.binaries[role] for role in roles], w.case, None, w.far_bytes)
    found = dict(zip(roles, batch.timings, strict=True))
    w.failed |= {role: t.failure for role, t in found.items() if t.failure is not None}
    times = {role: t.best for role, t in found.items() if t.best is not None}
    if len(times) == len(roles) and batch.peak_gflops:
        for role, seconds in times.items():
            w.rounds.setdefault(c.look, {}).setdefault(role, []).append(Sample(seconds, batch.peak_gflops))
