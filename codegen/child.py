"""The process that loads and runs generated code. It may crash, hang or be killed; nothing of value is in it.

Run as a script: `python child.py REPLY_FD MEMORY_BYTES CORE...`. It imports NumPy and the standard library alone,
so it starts in a fifth of a second. One line on standard input names a folder with a batch (`batch.json`). Children
of the same batch take its jobs one by one, by creating a file per job, and append what they find to a file of their
own, line by line, so that all that was found survives a crash. A byte on REPLY_FD says that no job is left; then the
parent, which slept until now, reads the files.

The watchdog is an interval timer that is armed right before a kernel is called: its signal kills the process. So the
clock starts when the kernel starts, and nobody has to watch.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from math import ceil
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

GUARD = 1024  # bytes on either side of every buffer
PATTERN = np.frombuffer(b"\xa5\xc5\xff\xff" * (GUARD // 4), np.uint8)  # little-endian: a NaN in every float type
ALIGN = 64
PAGE = 4096
STAGGER = 13 * ALIGN  # between the starts of a kernel's operands within a page: see Buffer
POISON = (0xFF, 0x7F)  # bytes of an unwritten output or workspace in the first and the second run; 0xFF.. is a NaN
CHUNK = 1 << 15  # elements that a comparison looks at together: its temporaries stay in the cache
CACHE_BYTES = 1 << 30  # operands kept between programs
MOST_COPIES = 64  # of a kernel's constants: where so many do not fill `far_bytes`, they are too small to matter
QUIET = 0.95  # of the best peak so far: less, and something else ran on this core or on its other half
BATCH_FILE = "batch.json"
SCRIPT = __file__
READY, DONE = b"!", b"."  # on the reply pipe


@dataclass(frozen=True, slots=True)
class Operand:
    """One pointer of a call. path: the values of what is read. expected, bound: what must be written, how exactly.

    constant: known before run time, such as a weight: no other call of a network reads it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    path: str = ""
    expected: str = ""
    bound: str = ""
    constant: bool = False

    @property
    def written(self) -> bool:
        return not self.path


@dataclass(frozen=True, slots=True)
class Job:
    """One program to verify and time."""

    path: str
    entry: str
    identity: str
    operands: tuple[Operand, ...]
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The measuring protocol, in numbers: see `Settings` in the runner."""

    budget_seconds: float
    patience: float
    quiet_samples: int
    sample_seconds: float
    most_samples: int
    cold_samples: int
    cold_ratio: float
    flush_bytes: int
    abort_ratio: float
    slow_ratio: float
    limit_ratio: float
    limit_floor: float
    limit_ceiling: float


@dataclass(frozen=True, slots=True)
class Batch:
    """Jobs that children share. visit_every: programs of one child between two visits to the incumbent.

    far_bytes: other constants that a network reads between two calls of one of these kernels.
    """

    harness: str
    threads: int
    limits: Limits
    jobs: tuple[Job, ...]
    incumbent: Job | None
    visit_every: int
    far_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one job. undisturbed: warm samples that had their core to themselves.

    seconds: how long it took to load, verify and measure. corrupt: this process must end.
    """

    warm: tuple[float, ...] = ()
    cold: tuple[float, ...] = ()
    undisturbed: int = 0
    kind: str = ""
    message: str = ""
    error: float | None = None
    bound: float | None = None
    seconds: float = 0.0
    corrupt: bool = False


class Wrong(Exception):
    """The program is not right; `corrupt`: it wrote where it must not, so this process cannot be trusted any more."""

    def __init__(self, message: str, kind: Literal["wrong", "memory", "compile"] = "wrong", corrupt: bool = False):
        super().__init__(message)
        self.kind = kind
        self.corrupt = corrupt


class Entry(Protocol):
    def __call__(self, repeats: int, /) -> float: ...


# ---------------------------------------------------------------------------------------------- buffers


class Buffer:
    """Memory with guard bytes on either side, `place` times STAGGER after a page's begin (so 64-byte aligned).

    A store delays loads whose address is the same modulo 4096. Where buffers lie by chance, one and the same program
    took 1.0 or 1.8 times its time, another in each child; staggered starts are the same everywhere.
    """

    def __init__(self, nbytes: int, place: int = 0) -> None:
        raw = np.empty(nbytes + 2 * GUARD + PAGE, np.uint8)
        start = GUARD + (place * STAGGER - raw.ctypes.data - GUARD) % PAGE
        self.raw = raw  # keeps the memory
        self.bytes = raw[start : start + nbytes]
        self.guards = (raw[start - GUARD : start], raw[start + nbytes : start + nbytes + GUARD])
        for g in self.guards:
            g[:] = PATTERN
        self.address = self.bytes.ctypes.data

    def view(self, operand: Operand) -> Array:
        return self.bytes.view(held(operand.dtype)).reshape(operand.shape)

    def damage(self) -> str:
        """Where a guard was overwritten; empty when both are whole."""
        for g, place, distance in zip(self.guards, ("before", "after"), (GUARD, 0), strict=True):
            hit = np.flatnonzero(g != PATTERN)
            if hit.size:
                byte = distance - int(hit[-1]) if distance else int(hit[0]) + 1
                return f"{hit.size} guard bytes overwritten, the nearest {byte} bytes {place} it"
        return ""


def held(dtype: str) -> str:
    """Booleans are looked at as bytes: a kernel might write something that is neither 0 nor 1."""
    return "uint8" if dtype == "bool" else dtype


def nbytes(operand: Operand) -> int:
    return int(np.prod(operand.shape, dtype=np.int64)) * np.dtype(operand.dtype).itemsize


class Memory:
    """Buffers that stay between programs of a workload: the same pages, aligned the same, for all of them."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int, int], Buffer] = {}
        self.size = 0

    def buffer(self, name: str, size: int, place: int = 0, fill: Callable[[Buffer], None] | None = None) -> Buffer:
        key = (name, size, place)
        found = self.kept.pop(key, None)
        if found is None:
            found = Buffer(size, place)
            if fill:
                fill(found)
            self.size += size
        self.kept[key] = found  # last: most recently used
        return found

    def shrink(self) -> None:
        """Forget the longest unused until the rest is small."""
        while self.size > CACHE_BYTES and self.kept:
            _, size, _ = oldest = next(iter(self.kept))
            del self.kept[oldest]
            self.size -= size


@lru_cache(maxsize=64)
def source(path: str) -> Array:
    """The values of an input as they lie in the file, mapped. A file never changes under its name."""
    return np.asarray(np.load(path, mmap_mode="r"))


# ---------------------------------------------------------------------------------------------- right or wrong


@dataclass(frozen=True, slots=True)
class Truth:
    """Expected values, allowed deviations, and the same as limits in the output's own dtype."""

    expected: Array
    bound: Array
    low: Array
    high: Array


@lru_cache(maxsize=8)
def truth(expected: str, bound: str, dtype: str) -> Truth:
    e, b = np.load(expected).reshape(-1), np.load(bound).reshape(-1)
    e = e.astype(np.uint8) if dtype == "bool" else e
    low, high = limits_of(e, b, np.dtype(held(dtype)))
    return Truth(e, b, low, high)


def limits_of(expected: Array, bound: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Least and greatest allowed value, in the dtype: every value between them is within the bound, and no other."""
    if dtype.kind != "f":
        if not bound.any():
            return expected, expected
        value, whole = expected.astype(np.float64), np.iinfo(dtype)
        low = np.clip(np.ceil(value - bound), whole.min, whole.max).astype(dtype)
        high = np.clip(np.floor(value + bound), whole.min, whole.max).astype(dtype)
        return np.where(bound > 0, low, expected), np.where(bound > 0, high, expected)
    with np.errstate(all="ignore"):
        low, high = expected - bound, expected + bound
        narrow_low, narrow_high = low.astype(dtype), high.astype(dtype)
        narrow_low = np.where(narrow_low < low, np.nextafter(narrow_low, dtype.type(np.inf)), narrow_low)
        narrow_high = np.where(narrow_high > high, np.nextafter(narrow_high, dtype.type(-np.inf)), narrow_high)
        nearest = expected.astype(dtype)
    # Where the interval holds no number of the dtype, the expected value itself, rounded.
    empty = narrow_low > narrow_high
    unbounded = np.isinf(expected) & ~np.isfinite(low)
    pick = empty | unbounded
    return np.where(pick, nearest, narrow_low), np.where(pick, nearest, narrow_high)


def compare(got: Array, operand: Operand) -> tuple[float, float]:
    """Largest deviation and what was allowed there. Raises Wrong when some element is outside its bound."""
    t = truth(operand.expected, operand.bound, operand.dtype)
    flat, worst, allowed, outside, first = got.reshape(-1), 0.0, 0.0, 0, -1
    for at in range(0, flat.size, CHUNK):
        part = slice(at, at + CHUNK)
        g = flat[part]
        good = (g >= t.low[part]) & (g <= t.high[part])
        if not good.all():
            good |= np.isnan(g) & np.isnan(t.expected[part]) if g.dtype.kind == "f" else False
            if first < 0 and not good.all():
                first = at + int(np.argmin(good))
            outside += int(good.size - np.count_nonzero(good))
        distance = deviation(g, t.expected[part])
        here = int(np.argmax(distance))
        if distance[here] > worst:
            worst, allowed = float(distance[here]), float(t.bound[at + here])
    if outside:
        raise Wrong(explain(flat, t, operand, first, outside, worst))
    return worst, allowed


def deviation(got: Array, expected: Array) -> Array:
    """|got - expected| where both are numbers, infinite where one is not, zero where they agree."""
    with np.errstate(all="ignore"):
        distance = np.abs(np.subtract(got, expected, dtype=np.float64))
        if np.isnan(distance).any():
            alike = (got == expected) | ((got != got) & (expected != expected))
            distance = np.where(np.isnan(distance), np.where(alike, 0.0, np.inf), distance)
    return np.asarray(distance)


def explain(got: Array, t: Truth, operand: Operand, first: int, outside: int, worst: float) -> str:
    where = [int(i) for i in np.unravel_index(first, operand.shape)]
    return (
        f"{operand.name}{where}: got {got[first]!s}, expected {t.expected[first]!s}, allowed {t.bound[first]:.3g}; "
        f"{outside} of {got.size} elements wrong, max deviation {worst:.3g}"
    )


# ---------------------------------------------------------------------------------------------- one program


@dataclass
class Child:
    """State of this process: the harness and the memory of the batch at hand."""

    batch: Batch
    memory: Memory
    incumbent_seconds: float | None = None
    clock: Any = None
    flush: Any = None
    flushed: Buffer = field(default_factory=lambda: Buffer(0))
    pulse: Entry | None = None  # the harness's own kernel
    pulse_flops: float = 0.0
    best_peak: float = 0.0  # GFLOP/s

    def open_harness(self) -> None:
        library = ctypes.CDLL(self.batch.harness)
        self.clock, self.flush = library.tilewright_time, library.tilewright_flush
        self.clock.restype = ctypes.c_double
        pointer, count = ctypes.c_void_p, ctypes.c_int64
        self.clock.argtypes = [pointer, pointer, count, count, pointer, count, ctypes.c_int]
        self.flush.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]
        self.flushed = Buffer(self.batch.limits.flush_bytes * self.batch.threads)
        out = self.memory.buffer("peak", ALIGN * self.batch.threads)
        self.pulse_flops = ctypes.c_double.in_dll(library, "tilewright_peak_flops").value
        self.pulse = self.entry(library, "tilewright_peak", [[out.address]], None)
        self.peak()

    def peak(self, samples: int = 8) -> float:
        """GFLOP/s of the harness's own kernel right now: the best of the samples."""
        assert self.pulse is not None
        rate = max(self.pulse_flops / self.pulse(1) for _ in range(samples)) / 1e9
        self.best_peak = max(rate, self.best_peak)
        return rate

    def quiet(self) -> bool:
        """Is this core ours alone right now? A busy other half of it takes up to half of the multiply-adds."""
        return self.peak(1) >= QUIET * self.best_peak

    def entry(
        self, library: ctypes.CDLL, name: str, vectors: Sequence[Sequence[int]], workspace: Buffer | None
    ) -> Entry:
        """A function that calls a kernel `repeats` times under the watchdog and returns the seconds they took.

        vectors: addresses of the operands; calls go round them.
        """
        kept = [(ctypes.c_void_p * max(1, len(v)))(*v) for v in vectors]
        pointers = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
        function = ctypes.cast(getattr(library, name), ctypes.c_void_p)
        scratch, wall = (workspace.address if workspace else None), int(self.batch.threads > 1)
        limit, calls = self.limit(), 0

        def call(repeats: int) -> float:
            nonlocal calls
            # Ten calls' worth for a block of calls: threads that spin on busy cores lose a time slice at every barrier.
            signal.setitimer(signal.ITIMER_REAL, limit * min(repeats, 10))
            seconds = float(self.clock(function, pointers, len(kept), calls % len(kept), scratch, repeats, wall))
            signal.setitimer(signal.ITIMER_REAL, 0)
            calls += repeats
            return seconds

        return call

    def limit(self) -> float:
        """Seconds after which a call is hopeless: a multiple of the incumbent's, within reason."""
        s = self.batch.limits
        if self.incumbent_seconds is None:
            return s.limit_ceiling
        return min(max(s.limit_ratio * self.incumbent_seconds, s.limit_floor), s.limit_ceiling)

    def measure(self, job: Job) -> Report:
        """Verify, then time."""
        began = time.monotonic()
        try:
            call, error, bound, second = self.verified(job)
            warm, undisturbed = self.warm(call, second)
            cold = self.cold(call) if self.near(warm) else ()
            report = Report(warm, cold, undisturbed, error=error, bound=bound)
        except Wrong as w:
            report = Report(kind=w.kind, message=str(w), corrupt=w.corrupt)
        except MemoryError:
            report = Report(kind="memory", message="no memory for the operands")
        self.memory.shrink()
        return replace(report, seconds=time.monotonic() - began)

    def verified(self, job: Job) -> tuple[Entry, float, float, float]:
        """Run twice on poisoned outputs and compare; returns the call, the deviation, and the second run's seconds."""
        library = load(job)
        buffers = [self.operand(o, place) for place, o in enumerate(job.operands)]
        outputs = [(o, b) for o, b in zip(job.operands, buffers, strict=True) if o.written]
        scratch = self.memory.buffer("workspace", job.workspace_bytes, len(buffers))
        call = self.entry(library, job.entry, self.vectors(job, buffers), scratch)
        guarded = [*zip((o.name for o in job.operands), buffers, strict=True), ("workspace", scratch)]

        self.run(call, outputs, scratch, POISON[0], guarded)
        self.untouched(job, buffers)
        found = [compare(b.view(o), o) for o, b in outputs]
        worst = max(found, default=(0.0, 0.0))
        first = [b.bytes.copy() for _, b in outputs]
        second = self.run(call, outputs, scratch, POISON[1], guarded)
        if self.batch.threads == 1:
            for (o, b), was in zip(outputs, first, strict=True):
                if not np.array_equal(b.bytes, was):
                    raise Wrong(f"{o.name} differs between two runs: an element was not written, or memory was reused")
        else:
            for o, b in outputs:  # threads may add up in another order
                compare(b.view(o), o)
        return call, *worst, second

    def vectors(self, job: Job, buffers: list[Buffer]) -> list[list[int]]:
        """Addresses of the operands, and the same with the constants elsewhere: copies that fill `far_bytes`.

        Between two calls of a kernel a network reads all its other constants. Calls that go round the copies find
        their constants as far away, while inputs and outputs stay as near as a neighbouring layer leaves them.
        """
        own = sum(b.bytes.size for o, b in zip(job.operands, buffers, strict=True) if o.constant)
        copies = min(self.batch.far_bytes // own, MOST_COPIES) if own else 0
        out = [[b.address for b in buffers]]
        if not copies:
            return out
        far, at = self.memory.buffer("far", self.batch.far_bytes + 2 * PAGE * MOST_COPIES * len(buffers)), 0
        for _ in range(copies):
            out.append(list(out[0]))
            for place, (o, b) in enumerate(zip(job.operands, buffers, strict=True)):
                if o.constant:
                    at += (b.address - far.address - at) % PAGE  # the same place in a page: see Buffer
                    far.bytes[at : at + b.bytes.size] = b.bytes
                    out[-1][place] = far.address + at
                    at += b.bytes.size
        return out

    def operand(self, o: Operand, place: int) -> Buffer:
        if o.written:
            return self.memory.buffer(f"output {o.name}", nbytes(o), place)

        def fill(b: Buffer) -> None:
            b.view(o)[...] = source(o.path)

        return self.memory.buffer(o.path, nbytes(o), place, fill)

    def run(
        self, call: Entry, outputs: list[tuple[Operand, Buffer]], scratch: Buffer, poison: int, guarded: list[Any]
    ) -> float:
        for _, b in outputs:
            b.bytes[:] = poison
        scratch.bytes[:] = poison
        seconds = call(1)
        for name, b in guarded:
            damage = b.damage()
            if damage:
                raise Wrong(f"{name}: {damage}", corrupt=True)
        return seconds

    def untouched(self, job: Job, buffers: list[Buffer]) -> None:
        for o, b in zip(job.operands, buffers, strict=True):
            if not o.written and not np.array_equal(b.bytes, source(o.path).reshape(-1).view(np.uint8)):
                raise Wrong(f"input {o.name} was modified", corrupt=True)

    def warm(self, call: Entry, second: float) -> tuple[tuple[float, ...], int]:
        """Samples in seconds a call, and how many of them nothing disturbed. A sample repeats a short kernel; the
        verified run counts if it was long enough.

        Disturbed samples do not use up the budget before `patience` times the budget is spent.
        """
        s = self.batch.limits
        samples = [second] if second >= s.sample_seconds else []
        spent, undisturbed, repeats = sum(samples), 0, max(1, ceil(s.sample_seconds / max(second, 1e-8)))
        before = self.quiet()
        while len(samples) < 2 or self.wanting(spent, len(samples), undisturbed):
            if self.hopeless(tuple(samples)):
                break
            seconds = call(repeats)
            spent += seconds
            if seconds < 0.8 * s.sample_seconds:  # the estimate was too high: a first run is slow
                repeats = ceil(repeats * min(1.1 * s.sample_seconds / max(seconds, 1e-9), 100))
                continue
            after = self.quiet()
            undisturbed += before and after
            samples.append(seconds / repeats)
            before = after
            if undisturbed and self.slower(samples):
                break
        return tuple(samples), undisturbed

    def wanting(self, spent: float, samples: int, undisturbed: int) -> bool:
        """More samples of this program, please."""
        s = self.batch.limits
        if spent < s.budget_seconds:
            return samples < s.most_samples
        return undisturbed < s.quiet_samples and spent < s.patience * s.budget_seconds

    def hopeless(self, samples: tuple[float, ...]) -> bool:
        """Far slower than the incumbent, by two samples at least: one alone may have met another process."""
        return len(samples) >= 2 and self.behind(samples, self.batch.limits.abort_ratio)

    def slower(self, samples: Sequence[float]) -> bool:
        """Clearly behind the incumbent, and on a core of its own: its rank is known well enough."""
        return len(samples) >= 2 and self.behind(samples, self.batch.limits.slow_ratio)

    def near(self, samples: Sequence[float]) -> bool:
        """Close enough to the incumbent that somebody may ask how it does with cold caches."""
        return not self.behind(samples, self.batch.limits.cold_ratio)

    def behind(self, samples: Sequence[float], ratio: float) -> bool:
        """Slower than so many times the incumbent; never, where there is none."""
        known = self.incumbent_seconds
        return known is not None and min(samples) > ratio * known

    def cold(self, call: Entry) -> tuple[float, ...]:
        samples = []
        for _ in range(self.batch.limits.cold_samples):
            self.flush(self.flushed.address, self.flushed.bytes.size, self.batch.threads)
            samples.append(call(1))
        return tuple(samples)


def load(job: Job) -> ctypes.CDLL:
    """Open the shared object and make sure that it holds this very program."""
    try:
        library = ctypes.CDLL(job.path)
        symbol = ctypes.c_char.in_dll(library, f"{job.entry}_id")
        getattr(library, job.entry)
    except (OSError, AttributeError, ValueError) as e:
        raise Wrong(f"cannot load: {e}", "compile") from e
    found = ctypes.string_at(ctypes.addressof(symbol)).decode(errors="replace")
    if found != job.identity:
        raise Wrong(f"the binary is another program: its id is {found!r}, not {job.identity!r}")
    return library


# ---------------------------------------------------------------------------------------------- batches


def work(folder: str, memory: Memory) -> None:
    """Take jobs of the batch until none is left. Each line of our results file is [what, index, ...]."""
    with open(os.path.join(folder, BATCH_FILE)) as f:
        batch = batch_from(json.load(f))
    out = os.open(os.path.join(folder, f"results-{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(*words: Any) -> None:
        os.write(out, (json.dumps(words) + "\n").encode())

    say("start", "harness")
    child = Child(batch, memory)
    child.open_harness()  # its kernel runs once, so whatever a harness can do wrong it does here
    visit(child, say)
    done, parent = 0, os.getppid()
    for index, job in enumerate(batch.jobs):
        if os.getppid() != parent:  # it is dead, and nobody will read what we find
            sys.exit(0)
        if not claim(folder, index):
            continue
        say("start", index, child.limit())
        report = child.measure(job)
        say("report", index, asdict(report))
        if report.corrupt:
            sys.exit(0)
        done += 1
        if done % batch.visit_every == 0:
            visit(child, say)
    if done % batch.visit_every or not done:
        visit(child, say)
    say("end")
    os.close(out)


def visit(child: Child, say: Callable[..., None]) -> None:
    """The machine's peak and the incumbent's time, now."""
    say("start", "peak")
    say("peak", child.peak())
    incumbent = child.batch.incumbent
    if incumbent is None:
        return
    say("start", "incumbent")
    before, child.incumbent_seconds = child.incumbent_seconds, None  # it is not aborted by its own former time
    report = child.measure(incumbent)
    say("incumbent", asdict(report))
    if report.corrupt:
        sys.exit(0)
    now = min(report.warm, default=None)
    child.incumbent_seconds = before if now is None else now if before is None else min(before, now)


def claim(folder: str, index: int) -> bool:
    """True for exactly one child."""
    try:
        os.close(os.open(os.path.join(folder, f"claim-{index}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def batch_from(found: dict[str, Any]) -> Batch:
    """Inverse of dataclasses.asdict after a trip through JSON."""
    jobs = tuple(job_from(j) for j in found["jobs"])
    incumbent = job_from(found["incumbent"]) if found["incumbent"] else None
    return Batch(**{**found, "limits": Limits(**found["limits"]), "jobs": jobs, "incumbent": incumbent})


def job_from(found: dict[str, Any]) -> Job:
    operands = tuple(Operand(**{**o, "shape": tuple(o["shape"])}) for o in found["operands"])
    return Job(**{**found, "operands": operands})


def main(words: list[str]) -> None:
    reply, memory, cores = int(words[0]), int(words[1]), [int(c) for c in words[2:]]
    os.sched_setaffinity(0, cores)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    gc.freeze()
    buffers = Memory()
    os.write(reply, READY)
    for line in sys.stdin:
        work(line.rstrip("\n"), buffers)
        os.write(reply, DONE)


if __name__ == "__main__":
    main(sys.argv[1:])
