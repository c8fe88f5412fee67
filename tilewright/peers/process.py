"""A contender's process, from both sides: lines of JSON to it and back.

It runs only while it is asked something and is stopped by a signal otherwise: threads that spin while they wait for
work, as those of most libraries do, would run beside whoever has his turn. One thread is timed by the processor time of
its process, which other programs do not inflate; more threads by the wall clock.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from select import select
from typing import Any, TextIO

import numpy as np

from tilewright.peers.contender import Array, Case, Given, Ready, Unsupported
from tilewright.peers.registry import loader

Answer = dict[str, Any]
Clock = Callable[[], float]

SAMPLE_SECONDS = 0.001  # a sample is as many calls as fill this, one at least
TURN_SECONDS = 0.03  # samples of one turn together
ANSWER_SECONDS = 120.0  # for a turn, or for outputs
PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Freed memory stays with the process. By default glibc gives it back or not as the heap happens to lie, and whoever makes
# new arrays in each call (eager PyTorch) pays for fresh pages: a depthwise layer took 0.24 or 2.4 ms. 32 MiB is its limit.
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
UNWANTED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # would make NumPy slower than it is


class PeerError(RuntimeError):
    """A contender cannot run a case, or its process failed: one line with the reason, or its last words."""


# ---------------------------------------------------------------------------------------------- the bench's side


class Process:
    """A contender that waits for cases. One that fails, or does not answer in time, is not `alive` any more."""

    def __init__(self, who: str, threads: int, log: Path, work: Path) -> None:
        self.who, self.log = who, log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, who, str(threads), str(os.getpid())],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=_environment(threads, work), start_new_session=True,
            )  # fmt: skip

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def ask(self, what: Mapping[str, Any], limit_seconds: float = ANSWER_SECONDS) -> Answer:
        """Raises PeerError when there is no answer in time, or none at all."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self._signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
            in_time = bool(select([self.process.stdout], [], [], limit_seconds)[0])
            line = self.process.stdout.readline() if in_time else ""
        except BrokenPipeError:
            in_time, line = True, ""
        if not line.endswith("\n"):
            self.close()
            raise PeerError(self._last_words() if in_time else f"killed after {limit_seconds:.0f} s without an answer")
        self._stop()
        answer: Answer = json.loads(line)
        return answer

    def load(self, case: Case, inputs: Path, names: Sequence[str], limit_seconds: float) -> None:
        """Make it run this case from now on. inputs: a file of arrays in order of names. Raises PeerError: it cannot."""
        answer = self.ask({"load": asdict(case), "inputs": str(inputs), "names": list(names)}, limit_seconds)
        if "absent" in answer:
            raise PeerError(answer["absent"])

    def samples(self, seconds: float = TURN_SECONDS) -> list[float]:
        """A turn: seconds a call, one figure a sample."""
        found: list[float] = self.ask({"turn": seconds})["samples"]
        return found

    def outputs(self, folder: Path, limit_seconds: float = ANSWER_SECONDS) -> list[Array]:
        path = folder / "outputs.npz"
        self.ask({"outputs": str(path)}, limit_seconds)
        return arrays(path)

    def origins(self) -> list[str]:
        found: list[str] = self.ask({"origins": True})["origins"]
        return found

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.communicate()

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"its process ended with {self.process.returncode}: {lines[-1].strip() if lines else 'no message'}"

    def _stop(self) -> None:
        """Returns when it stands still, so that nothing of it runs in another's turn."""
        if self.alive:
            self._signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: signal.Signals) -> None:
        """To it and to whatever it has started."""
        if self.alive:
            os.killpg(self.process.pid, number)


def arrays(path: Path | str) -> list[Array]:
    """What `np.savez` wrote, in order."""
    with np.load(path) as found:
        return [found[name] for name in found.files]


def python_path() -> str:
    """For a process of ours: from a checkout it does not find us by itself."""
    home = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])


def _environment(threads: int, work: Path) -> dict[str, str]:
    """Thread counts are read when a library is loaded. Threads that wait may spin: nobody else runs meanwhile."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    inductor = {"TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    kept = {k: v for k, v in os.environ.items() if k not in UNWANTED}
    return {**kept, **MALLOC, **counts, **inductor, "OMP_WAIT_POLICY": "active", "PYTHONPATH": python_path()}


# ---------------------------------------------------------------------------------------------- the contender's side


@dataclass(slots=True)
class Pace:
    """How many calls make a sample. long: a single call is longer than a turn."""

    calls: int
    long: bool


def serve(who: str, threads: int, parent: int) -> None:
    """Answer until the pipe closes."""
    _die_with(parent)
    replies, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints must not look like an answer
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    clock = time.process_time if threads == 1 else time.perf_counter
    ready, pace = None, None
    for line in sys.stdin:
        match json.loads(line):
            case {"load": case, "inputs": path, "names": names}:
                ready = pace = given = None
                gc.collect()  # two networks at a time may be too many
                given = dict(zip(names, arrays(path), strict=True))  # stays: libraries know the addresses alone
                ready = _loaded(replies, who, Case(**case), given)
            case {"turn": seconds} if ready is not None:
                pace = pace or paced(ready.run)
                _reply(replies, {"samples": turn(ready.run, pace, clock, seconds)})
            case {"outputs": path} if ready is not None:
                np.savez(path, *ready.outputs())
                _reply(replies, {})
            case {"origins": _} if ready is not None:
                _reply(replies, {"origins": ready.origins})
            case unknown:
                raise ValueError(f"asked out of turn: {unknown}")


def _die_with(parent: int) -> None:
    """A stopped process does not see that its pipe was closed: the kernel kills it when the bench ends, however that is."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:  # it had gone before
        sys.exit(0)


def _loaded(replies: TextIO, who: str, case: Case, given: Given) -> Ready | None:
    try:
        ready = loader(who)(case, given)
    except Unsupported as error:
        _reply(replies, {"absent": str(error)})
        return None
    _reply(replies, {})
    return ready


def _reply(replies: TextIO, answer: Answer) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


def paced(run: Callable[[], object]) -> Pace:
    """Finding out warms up."""
    run()
    calls, took = 1, seconds_of(run, 1, time.perf_counter)
    while took < SAMPLE_SECONDS:
        calls *= 2
        took = seconds_of(run, calls, time.perf_counter)
    return Pace(max(1, round(calls * SAMPLE_SECONDS / took)), took > TURN_SECONDS)


def turn(run: Callable[[], object], pace: Pace, clock: Clock, seconds: float) -> list[float]:
    """Samples that fill `seconds`, one at least; the first fills caches that others have used and is dropped."""
    if not pace.long:
        seconds_of(run, pace.calls, clock)
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        samples.append(seconds_of(run, pace.calls, clock) / pace.calls)
    return samples


def seconds_of(run: Callable[[], object], calls: int, clock: Clock) -> float:
    begin = clock()
    for _ in repeat(None, calls):
        run()
    return clock() - begin


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
