"""Measuring: programs are verified and timed in processes that may die, and every failure becomes a typed answer.

One batch is shared by `workers` children, each pinned to a core, which take programs from it by themselves; the
parent sleeps until a child has nothing left to take or is gone. What happened then is in the children's files.
"""

from __future__ import annotations

import json
import os
import random
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import IO, Any, Protocol, cast

import numpy as np

from codegen.child import BATCH_FILE, DONE, READY, SCRIPT, Job, Limits, Operand, Report
from codegen.child import Batch as Plan
from codegen.kernel import Argument, Kernel
from codegen.oracle import Case
from codegen.toolchain import Binary, identity
from ir.compute import Dag
from ir.evaluate import evaluate
from ir.target import Target
from ir.timing import Failure, FailureKind, Timing

OURS = ("start", "harness", "peak")  # what a child does without any program
MOST_FAR = 64 << 20  # bytes: what is as far as this is in memory, or in a cache that holds whole networks


class RunnerError(Exception):
    """Measuring itself does not work: the harness or a child fails before any program of a batch ran."""


UNTOUCHED = 128 << 20  # bytes that count against a child's limit without ever being touched: libraries, reserved arrays


@dataclass(frozen=True, slots=True)
class Settings:
    """The protocol. Measured in the prototype unless said otherwise; seconds and bytes.

    workers:        children at once for single-threaded programs; both cores at once halve the time, and no program
                    got slower (median ratio 0.98 to 1.01)
    budget_seconds: for the warm samples of a program; its minimum scatters by 5 % with half of it
    patience:       times the budget that a program gets on a core that it must share ...
    quiet_samples:  ... until so many samples had it to themselves: where another tenant has the other half of a core,
                    it runs at half of its peak for milliseconds at a time
    sample_seconds: a shorter sample is dominated by the clock and by interrupts
    most_samples:   enough for the minimum of a short kernel
    cold_samples:   each after streaming flush_bytes: a 4.3 us kernel takes 9.4 us then ...
    cold_ratio:     ... of programs that take no more than this many times the incumbent
    abort_ratio:    times the incumbent, after two samples; one sample poisoned a quarter of the labels, none
                    doubled the cost of a random round
    slow_ratio:     the same for samples that nothing disturbed
    limit_ratio:    a run may take this many times the incumbent's ...
    limit_floor:    ... but at least this (a busy machine, page faults), ...
    limit_ceiling:  ... and at most this; also the limit without an incumbent
    memory_bytes:   private memory of a child
    recycle:        programs after which a child is replaced: what generated code leaks does not add up
    grace_seconds:  silence after which a child is killed although its own watchdog should have fired
    """

    workers: int = 2
    budget_seconds: float = 0.01
    patience: float = 2.0
    quiet_samples: int = 1
    sample_seconds: float = 0.00025
    most_samples: int = 20
    cold_samples: int = 2
    cold_ratio: float = 1.1
    flush_bytes: int = 8 << 20
    abort_ratio: float = 1.6
    slow_ratio: float = 1.25
    limit_ratio: float = 20.0
    limit_floor: float = 1.0
    limit_ceiling: float = 10.0
    memory_bytes: int = 4 << 30
    recycle: int = 512
    grace_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Timings in the order of the programs; what the machine did meanwhile.

    peak_gflops: median of the peak samples taken beside the programs (None: nothing was measured).
    incumbent_seconds: median over its visits of the incumbent's minimum. A visit has the budget of a program, so a
    program that is as fast gets `relative` 1.0 on average; the minimum over all visits would be luckier than that.
    `relative` takes the visits of the child that measured the program: cores and places in memory differ a little.
    """

    timings: list[Timing]
    peak_gflops: float | None = None
    incumbent_seconds: float | None = None


class Measures(Protocol):
    """What every runner can do."""

    def measure(
        self, binaries: Sequence[Binary], case: Case, incumbent: Binary | None = None, far_bytes: int = 0
    ) -> Batch: ...

    def confirm(
        self,
        binaries: Sequence[Binary],
        case: Case,
        rounds: int = 5,
        seconds: float = 0.02,
        seed: int = 0,
        far_bytes: int = 0,
    ) -> list[Timing]: ...


# ---------------------------------------------------------------------------------------------- children


class Worker:
    """One child process and the end of its pipe. `cores`: where it runs."""

    def __init__(self, cores: Sequence[int], memory_bytes: int, environ: Mapping[str, str]) -> None:
        self.cores = cores
        self.programs = 0
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.reply, theirs = os.pipe()
        words = [sys.executable, "-S", "-s", "-P", SCRIPT, str(theirs), str(memory_bytes)]
        try:
            self.process = subprocess.Popen(
                [*words, *map(str, cores)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=dict(environ),
                pass_fds=(theirs,),
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        self.usage = 0  # peak resident bytes, known when it is gone; its life begins with the peak of ours
        self.inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.silent = False  # killed because it gave no sign of life

    def give(self, folder: Path) -> None:
        """Hand it a batch; if it is gone already, the closed pipe will say so."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{folder}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            self.process.stdin = None

    def kill(self) -> None:
        """The child and everything that generated code started in it."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Reap it; the exit status as subprocess has it (negative: the signal)."""
        if self.process.returncode is None:
            _, status, used = os.wait4(self.process.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.usage = used.ru_maxrss * 1024
        return int(self.process.returncode)

    def last_words(self) -> str:
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def close(self) -> None:
        self.kill()
        self.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
            self.process.stdin = None
        os.close(self.reply)
        self.errors.close()


@dataclass
class Findings:
    """What the children of one batch wrote.

    child: which process measured a job. visits: by process, the incumbent's minima. spoilt: the incumbent failed.
    """

    reports: dict[int, Report] = field(default_factory=dict)
    child: dict[int, int] = field(default_factory=dict)
    peaks: list[float] = field(default_factory=list)
    visits: dict[int, list[float]] = field(default_factory=dict)
    spoilt: bool = False


@dataclass(frozen=True, slots=True)
class Last:
    """What a child was doing when it stopped: a job's number or a word; None when it left in order."""

    doing: int | str | None
    limit: float = 0.0


class Runner:
    """Children for one target. A context manager; not for several threads at once.

    harness: `codegen.machine.harness` for the same target. environ: more environment for the children (a library
    path); else they get nothing of ours.
    """

    def __init__(
        self, target: Target, harness: Binary, settings: Settings = Settings(), environ: Mapping[str, str] | None = None
    ) -> None:
        self.target, self.harness, self.settings = target, harness, settings
        self.environ = {**_environment(target), **(environ or {})}
        self.workers: list[Worker] = []
        self.folder = Path(tempfile.mkdtemp(prefix="measure"))
        self.batches = 0

    def __enter__(self) -> Runner:
        self._staff()  # they import NumPy while we build
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def renew(self) -> None:
        """Other children from the next batch on: what a program has by chance in one process is drawn anew."""
        self._dismiss()

    def close(self) -> None:
        """Kill the children and remove what they wrote."""
        self._dismiss()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------------------------------ the two measurements

    def measure(
        self, binaries: Sequence[Binary], case: Case, incumbent: Binary | None = None, far_bytes: int = 0
    ) -> Batch:
        """Verify and time every program against the case. The incumbent is measured at begin, middle and end.

        far_bytes: constants that a network reads between two calls of such a kernel: that far away it finds its own.
        Raises RunnerError when measuring itself is broken; whatever a program does is in its Timing.
        """
        jobs = [_job(b, case) for b in binaries]
        beat = _job(incumbent, case) if incumbent else None
        found = self._run(jobs, beat, limits(self.settings, self.target), far_bytes)
        bases = {child: median(visits) for child, visits in found.visits.items() if visits}
        base = median(v for visits in found.visits.values() for v in visits) if bases else None
        timings = [_timing(b, found.reports[i], bases.get(found.child.get(i, 0), base)) for i, b in enumerate(binaries)]
        return Batch(timings, median(found.peaks) if found.peaks else None, base)

    def confirm(
        self,
        binaries: Sequence[Binary],
        case: Case,
        rounds: int = 5,
        seconds: float = 0.02,
        seed: int = 0,
        far_bytes: int = 0,
    ) -> list[Timing]:
        """The finalists' round: each round measures all programs in another order, one after the other, on one core.

        `warm` of a timing holds one minimum a round; take the median. `seconds`: of each program in each round.
        """
        rng, order = random.Random(seed), [*range(len(binaries))]
        plan = [i for _ in range(rounds) for i in rng.sample(order, len(order))]
        jobs = [_job(b, case) for b in binaries]
        protocol = limits(self.settings, self.target)
        longer = replace(protocol, budget_seconds=seconds, patience=1.0, most_samples=1 << 20, cold_samples=0)
        reports = self._run([jobs[i] for i in plan], None, longer, far_bytes, workers=1).reports
        of = [[reports[at] for at, i in enumerate(plan) if i == n] for n in order]
        return [_confirmed(b, found) for b, found in zip(binaries, of, strict=True)]

    # ------------------------------------------------------------------------------------------ one batch

    def _run(
        self, jobs: Sequence[Job], incumbent: Job | None, protocol: Limits, far_bytes: int, workers: int | None = None
    ) -> Findings:
        """All jobs, on as many children as pay; a child that dies costs the job it ran."""
        found = Findings()
        if not jobs:
            return found
        with self._batch_folder() as folder:
            self._staff()
            team = self.workers[: min(len(jobs), workers or len(self.workers))]
            visit_every = max(1, -(-len(jobs) // (2 * len(team))))
            far = min(far_bytes, 2 * self.target.l3_bytes, MOST_FAR)  # once the cache: half of it would stay
            plan = Plan(str(self.harness.path), self.target.threads, protocol, tuple(jobs), incumbent, visit_every, far)
            _write_plan(folder, plan)
            for w in team:
                w.give(folder)
            try:
                self._attend(team, folder, plan, found)
            except BaseException:  # also Ctrl-C: the next batch must not hear from this one
                self._dismiss()
                raise
        return found

    def _attend(self, team: list[Worker], folder: Path, plan: Plan, found: Findings) -> None:
        """Sleep until a child is done or gone; replace those that are gone while there is work."""
        busy, retried = list(team), set[int]()
        while busy:
            w = self._next(busy, folder)
            said = os.read(w.reply, 1)
            if said == READY:
                continue
            busy.remove(w)
            before = w.programs
            last = _collect(folder, w, found)
            if said == DONE:
                continue
            fresh = self._replace(w)
            if found.spoilt:  # it was right once; this batch goes on without it
                plan = replace(plan, incumbent=None)
                _write_plan(folder, plan)
            if isinstance(last.doing, int):
                self._blame(w, last, folder, found, retried)
            elif last.doing in OURS and w.programs == before == 0:
                raise RunnerError(f"a child died with {w.process.returncode} at its {last.doing}: {w.last_words()}")
            w.close()
            if len(found.reports) < len(plan.jobs):
                fresh.give(folder)
                busy.append(fresh)
        for i in range(len(plan.jobs)):
            found.reports.setdefault(i, Report(kind="crash", message="its process was killed from outside"))

    def _blame(self, w: Worker, last: Last, folder: Path, found: Findings, retried: set[int]) -> None:
        """The job that ran when the child died; once more, if an earlier program may have spoilt the child's memory."""
        assert isinstance(last.doing, int)
        failure = _death(w, last.limit, self.settings)
        if failure.kind == "crash" and w.programs > 0 and last.doing not in retried:
            retried.add(last.doing)
            (folder / f"claim-{last.doing}").unlink()
        else:
            found.reports[last.doing] = Report(kind=failure.kind, message=failure.message)

    def _next(self, busy: list[Worker], folder: Path) -> Worker:
        """A child with news. One that is silent for too long is killed, which is news."""
        with selectors.DefaultSelector() as selector:
            for w in busy:
                selector.register(w.reply, selectors.EVENT_READ, w)
            while True:
                for key, _ in selector.select(self.settings.grace_seconds):
                    return cast(Worker, key.data)
                for w in busy:
                    if time.time() - _last_sign(folder, w) > self.settings.grace_seconds + self.settings.limit_ceiling:
                        w.silent = True
                        w.kill()

    # ------------------------------------------------------------------------------------------ staff

    def _staff(self) -> None:
        """As many children as the settings want; long-serving ones are replaced."""
        for w in list(self.workers):
            if w.programs >= self.settings.recycle or w.process.poll() is not None:
                self._replace(w)
                w.close()
        cores = sorted(os.sched_getaffinity(0))
        if self.target.threads > 1:
            places = [cores[: self.target.threads]]
        else:
            places = [[c] for c in cores[: max(1, self.settings.workers)]]
        for place in places[len(self.workers) :]:
            self.workers.append(Worker(place, self.settings.memory_bytes, self.environ))

    def _dismiss(self) -> None:
        while self.workers:
            self.workers.pop().close()

    def _replace(self, w: Worker) -> Worker:
        """A new child in the place of one that ends; what the old one left behind can still be read."""
        w.kill()
        w.wait()
        fresh = Worker(w.cores, self.settings.memory_bytes, self.environ)
        self.workers[self.workers.index(w)] = fresh
        return fresh

    @contextmanager
    def _batch_folder(self) -> Iterator[Path]:
        self.batches += 1
        folder = self.folder / f"batch-{self.batches}"
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def _environment(target: Target) -> dict[str, str]:
    """All that a child gets: where NumPy is, and a team of constant size that spins."""
    return {
        "PYTHONPATH": str(Path(np.__file__).parent.parent),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": str(target.threads),
        "OMP_PROC_BIND": "true",
        "OMP_WAIT_POLICY": "ACTIVE",
        "OMP_DYNAMIC": "false",
    }


def limits(s: Settings, target: Target) -> Limits:
    """The protocol as a child hears it."""
    same = {f.name: getattr(s, f.name) for f in fields(Limits)}
    return Limits(**{**same, "flush_bytes": max(s.flush_bytes, 2 * target.l2_bytes)})


def _write_plan(folder: Path, plan: Plan) -> None:
    aside = folder / "aside"
    aside.write_text(json.dumps(asdict(plan)))
    os.rename(aside, folder / BATCH_FILE)


def _collect(folder: Path, w: Worker, found: Findings) -> Last:
    """Move what a child wrote into the findings. Returns what it was doing when it stopped."""
    path = folder / f"results-{w.process.pid}"
    last = Last("start")
    for line in path.read_text().splitlines() if path.exists() else []:
        match json.loads(line):
            case ["start", doing, *limit]:
                last = Last(doing, *limit)
            case ["report", int(index), what]:
                found.reports[index], found.child[index], last = _report(what), w.process.pid, Last(None)
                w.programs += 1
            case ["incumbent", what]:
                warm, last = _report(what).warm, Last(None)
                found.visits.setdefault(w.process.pid, []).extend([min(warm)] if warm else [])
                found.spoilt |= not warm
            case ["peak", rate]:
                found.peaks.append(rate)
            case _:
                last = Last(None)
    found.spoilt |= last.doing == "incumbent"
    return last


def _report(what: dict[str, Any]) -> Report:
    return Report(**{**what, "warm": tuple(what["warm"]), "cold": tuple(what["cold"])})


def _last_sign(folder: Path, w: Worker) -> float:
    path = folder / f"results-{w.process.pid}"
    return (path if path.exists() else folder).stat().st_mtime


def _death(w: Worker, limit: float, s: Settings) -> Failure:
    """Why a child is gone, from its exit status and its size."""
    code, words = w.wait(), w.last_words()
    told = f": {words}" if words else ""
    if code == -signal.SIGALRM:
        return Failure("timeout", f"killed after {limit:.1f} s in one call{told}")
    if w.silent:
        return Failure("timeout", f"killed: no sign of life for {s.grace_seconds:.0f} s{told}")
    most = min(0.9 * s.memory_bytes, s.memory_bytes - UNTOUCHED)
    large = w.usage > max(most, w.inherited)
    if large or code == -signal.SIGKILL:  # nobody but the kernel's own killer is left
        return Failure("memory", f"used {w.usage >> 20} MiB of the {s.memory_bytes >> 20} MiB allowed{told}")
    if code < 0:
        return Failure("crash", f"{signal.Signals(-code).name}{told}")
    return Failure("crash", f"the program ended its process with status {code}{told}")


# ---------------------------------------------------------------------------------------------- jobs and answers


def _job(b: Binary, case: Case) -> Job:
    prepare = dict(b.kernel.prepare)
    operands = tuple(_operand(a, case, prepare) for a in b.kernel.arguments)
    return Job(str(b.path), b.entry, identity(b.kernel), operands, b.kernel.workspace_bytes)


def _operand(a: Argument, case: Case, prepare: Mapping[str, Dag]) -> Operand:
    if a.role == "output":
        return Operand(a.name, a.shape, a.dtype, expected=str(case.expected[a.name]), bound=str(case.bounds[a.name]))
    path = prepared(prepare[a.name], a, case) if a.name in prepare else case.inputs[a.name]
    return Operand(a.name, a.shape, a.dtype, path=str(path), constant=a.role == "constant")


def prepared(dag: Dag, a: Argument, case: Case) -> Path:
    """A constant in the layout that a program wants, as a file of the case: computed once for each layout."""
    path = case.directory / f"prepared-{sha256(repr((dag, a.dtype)).encode()).hexdigest()[:32]}.npy"
    if not path.exists():
        values = evaluate(dag, {t.name: np.load(case.inputs[t.name]) for t in dag.inputs})
        (name,) = dag.outputs
        aside = case.directory / f"{path.name}.{os.getpid()}.npy"
        np.save(aside, values[name].astype(a.dtype, copy=False).reshape(a.shape))
        os.rename(aside, path)
    return path


def _timing(b: Binary, r: Report, base: float | None) -> Timing:
    failure = Failure(cast(FailureKind, r.kind), r.message) if r.kind else None
    best = min(r.warm, default=None)
    return Timing(
        key=b.key,
        warm=r.warm,
        cold=r.cold,
        verified=failure is None,
        error=r.error,
        bound=r.bound,
        relative=best / base if best is not None and base is not None else None,
        undisturbed=r.undisturbed,
        failure=failure,
        build_seconds=b.build_seconds,
        measure_seconds=r.seconds,
    )


def _confirmed(b: Binary, rounds: Sequence[Report]) -> Timing:
    """One timing of all rounds; a program that failed in one of them has failed."""
    for r in rounds:
        if r.kind:
            return _timing(b, r, None)
    merged = replace(rounds[0], warm=tuple(min(r.warm) for r in rounds), seconds=sum(r.seconds for r in rounds))
    return _timing(b, merged, None)


# ---------------------------------------------------------------------------------------------- without hardware


@dataclass(frozen=True, slots=True)
class NullRunner:
    """Answers from a formula: seconds a call, or a failure. Nothing is built or run (`toolchain.unbuilt`)."""

    formula: Callable[[Kernel], float | Failure]

    def measure(
        self, binaries: Sequence[Binary], case: Case | None = None, incumbent: Binary | None = None, far_bytes: int = 0
    ) -> Batch:
        base = self.formula(incumbent.kernel) if incumbent else None
        known = base if isinstance(base, float) else None
        return Batch([_stated(b, self.formula(b.kernel), known) for b in binaries], None, known)

    def confirm(
        self,
        binaries: Sequence[Binary],
        case: Case | None = None,
        rounds: int = 5,
        seconds: float = 0.02,
        seed: int = 0,
        far_bytes: int = 0,
    ) -> list[Timing]:
        once = self.measure(binaries).timings
        return [replace(t, warm=t.warm * rounds) for t in once]


def _stated(b: Binary, answer: float | Failure, base: float | None) -> Timing:
    if isinstance(answer, Failure):
        return Timing(b.key, failure=answer)
    return Timing(b.key, (answer,), (), True, relative=answer / base if base else None)


@dataclass(frozen=True, slots=True)
class ReplayRunner:
    """Answers from recorded timings, by key. Raises KeyError for a program that was never measured."""

    recorded: Mapping[str, Timing]

    def measure(
        self, binaries: Sequence[Binary], case: Case | None = None, incumbent: Binary | None = None, far_bytes: int = 0
    ) -> Batch:
        base = self.recorded[incumbent.key].best if incumbent else None
        timings = [self.recorded[b.key] for b in binaries]
        return Batch([replace(t, relative=t.best / base if t.best and base else None) for t in timings], None, base)

    def confirm(
        self,
        binaries: Sequence[Binary],
        case: Case | None = None,
        rounds: int = 5,
        seconds: float = 0.02,
        seed: int = 0,
        far_bytes: int = 0,
    ) -> list[Timing]:
        return [replace(t, warm=(t.best,) * rounds) if t.best else t for t in self.measure(binaries).timings]
