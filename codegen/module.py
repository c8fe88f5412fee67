"""A compiled network as a function of NumPy arrays.

Threads. A kernel's `parallel for` uses a team of the size that it was tuned for. The size belongs to the calling
thread (OpenMP calls it an internal control variable of the task), so the library sets it at the beginning of each call
and gives it back at the end: XGBoost, PyTorch or another module in the same process keep theirs. What cannot be set
from here is read once, when the first library that uses OpenMP is loaded: OMP_WAIT_POLICY, OMP_PROC_BIND, OMP_PLACES
and OMP_THREAD_LIMIT (which caps the team) must be in the environment of the process before that. Waiting threads
should spin (OMP_WAIT_POLICY=active) on an idle machine; on a busy one spinning costs others their time. Each Python
thread that calls a module has a team of its own. A child made by fork() must not call a module with more than one
thread if its parent did: the team does not survive a fork.

Cleanup. There is nothing to close: arenas and weights go with the module. The machine code stays mapped until the
process ends, because threads of a team may still know it.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any, NoReturn

import numpy as np

from codegen.bundle.constants import Evaluate, address, aligned_bytes, pack
from codegen.bundle.export import BundleError, read_manifest, read_weights
from codegen.bundle.library import build, build_units
from codegen.bundle.manifest import Manifest
from codegen.bundle.network import Array, Choice, Network
from codegen.bundle.source import emit
from codegen.toolchain import Compiler
from ir.evaluate import evaluate as by_numpy
from ir.graph import Value
from ir.target import Target

Inputs = Sequence[Any] | Mapping[str, Any]
SAMPLE_SECONDS = 0.00025  # a shorter sample is dominated by the clock and by interrupts


class LoadError(RuntimeError):
    """The library cannot be loaded, or it holds another program than its manifest says."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Median seconds of one step of a network. workload: "" for a copy into an output."""

    name: str
    workload: str
    seconds: float


class Module:
    """`module(*arrays, **named)`: an array, or a tuple when the network has several outputs. For several threads.

    Inputs are given in order or by name. Each must have the shape and dtype of the network; anything that NumPy can
    view as such an array will do, and is copied only where it is not contiguous. Results are new arrays.
    """

    def __init__(self, library: Path, manifest: Manifest, weights: Array) -> None:
        """Load the library that was built for the manifest. weights: packed constants, 64-byte aligned.

        The file may be deleted afterwards. Raises LoadError.
        """
        if weights.size != manifest.weights_bytes or (weights.size and weights.ctypes.data % 64):
            raise LoadError(f"the weights must be {manifest.weights_bytes} bytes, 64-byte aligned")
        self.manifest = manifest
        self._inputs = [_Port(v.name, v.shape, np.dtype(v.dtype)) for v in manifest.inputs]
        self._outputs = [_Port(v.name, v.shape, np.dtype(v.dtype)) for v in manifest.outputs]
        self._weights = weights
        self._library = _load(library, manifest)
        self._run = self._entry("run")
        self._profile = self._entry("profile", ctypes.c_void_p)
        starts = [weights.ctypes.data + c.offset for c in manifest.constants]
        self._constants = _pointers(starts)
        self._arenas: list[Array] = []
        self._lock = Lock()
        if manifest.threads > 1:
            getattr(self._library, f"{manifest.prefix}_init")(manifest.threads)

    def _entry(self, name: str, *more: type[ctypes.c_void_p]) -> Callable[..., int]:
        function = getattr(self._library, f"{self.manifest.prefix}_{name}")
        function.argtypes = [ctypes.c_void_p] * 4 + [*more]
        function.restype = ctypes.c_int
        return function  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------ what it is

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.manifest.inputs

    @property
    def outputs(self) -> tuple[Value, ...]:
        return self.manifest.outputs

    @property
    def report(self) -> tuple[Choice, ...]:
        """Where the program of each workload came from: tuned, tuned for a near shape, or a default."""
        return self.manifest.report

    @property
    def arena_bytes(self) -> int:
        """Scratch of one call, in bytes; calls that run at the same time have one each."""
        return self.manifest.arena.bytes

    # ------------------------------------------------------------------------------------------ running

    def __call__(self, *arrays: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Raises ValueError when an input is missing, unknown, or has another shape or dtype, IndexError when it holds
        an index that is out of range."""
        given = self._take(arrays, named)
        results = self._results()
        with self._arena() as arena:
            self._call(self._run, given, results, arena)
        return results[0] if len(results) == 1 else tuple(results)

    def bound(self, inputs: Inputs) -> Callable[[], tuple[Array, ...]]:
        """The call with its buffers fixed, for tight loops: no checks, no new arrays, a microsecond from Python.

        Each call overwrites the arrays that the one before returned. Contiguous inputs may be changed in place between
        calls. Not for several threads at once.
        """
        given, results = self._given(inputs), tuple(self._results())
        arena = aligned_bytes(self.arena_bytes)
        arguments = (_addresses(given), _addresses(results), arena.ctypes.data, self._constants)

        def call() -> tuple[Array, ...]:
            code = self._run(*arguments)
            if code:
                self._explain(code)
            return results

        call.__dict__["keeps"] = (given, arena)  # alive as long as their addresses are used
        return call

    def profile(self, inputs: Inputs, repeat: int = 10) -> list[StepTime]:
        """Seconds of each step in order of execution: the median of `repeat` runs, after one that warms up."""
        if repeat < 1:
            raise ValueError(f"repeat must be at least 1, not {repeat}")
        given, results = self._given(inputs), self._results()
        samples: Array = np.zeros((repeat + 1, max(1, len(self.manifest.steps))))
        with self._arena() as arena:
            for row in samples:
                self._call(self._profile, given, results, arena, row.ctypes.data)
        seconds = np.median(samples[1:], axis=0)
        return [StepTime(s.name, s.workload, float(t)) for s, t in zip(self.manifest.steps, seconds, strict=False)]

    def benchmark(self, inputs: Inputs, seconds: float = 1.0) -> list[float]:
        """Wall samples in seconds a call, for about `seconds` after a warm-up: take the minimum or the median.

        Buffers are reused and inputs were checked before, so it is the time of the library and of one call from
        Python (about a microsecond). Short networks run several times a sample; there are three samples at least.
        """
        given, results = self._given(inputs), self._results()
        pointers = _addresses(given), _addresses(results)
        with self._arena() as arena:
            arguments = (*pointers, address(arena), self._constants)

            def sample(repeats: int) -> float:
                begin = time.perf_counter()
                for _ in range(repeats):
                    self._run(*arguments)
                return time.perf_counter() - begin

            self._call(self._run, given, results, arena)
            once = median(sample(1) for _ in range(3))
            repeats = max(1, ceil(SAMPLE_SECONDS / max(once, 1e-7)))
            samples: list[float] = []
            end = time.perf_counter() + seconds
            while len(samples) < 3 or time.perf_counter() < end:
                samples.append(sample(repeats) / repeats)
        return samples

    def _call(
        self, entry: Callable[..., int], given: Sequence[Array], results: Sequence[Array], arena: Array, *more: int
    ) -> None:
        """The arrays stay referenced here while the library reads and writes them without the interpreter's lock."""
        code = entry(_addresses(given), _addresses(results), address(arena), self._constants, *more)
        if code:
            self._explain(code)

    def _explain(self, code: int) -> NoReturn:
        if code == 1:
            raise RuntimeError("the arena is not aligned")
        step = self.manifest.steps[code - 2]
        raise IndexError(f"step {code - 2} {step.name!r}: an index is out of range; expected {step.indices}")

    def _results(self) -> list[Array]:
        return [aligned_bytes(p.bytes).view(p.dtype).reshape(p.shape) for p in self._outputs]

    @contextmanager
    def _arena(self) -> Iterator[Array]:
        """Scratch for one call, kept for later calls."""
        with self._lock:
            arena = self._arenas.pop() if self._arenas else None
        if arena is None:
            arena = aligned_bytes(self.arena_bytes)
        try:
            yield arena
        finally:
            with self._lock:
                self._arenas.append(arena)

    # ------------------------------------------------------------------------------------------ inputs

    def _given(self, inputs: Inputs) -> list[Array]:
        return self._take((), inputs) if isinstance(inputs, Mapping) else self._take(inputs, {})

    def _take(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
        """Inputs in the network's order, each checked. Raises ValueError."""
        wanted = [p.name for p in self._inputs]
        if len(arrays) > len(wanted):
            raise ValueError(f"{len(arrays)} inputs given, expected {len(wanted)}: {', '.join(map(repr, wanted))}")
        for name in named:
            if name not in wanted:
                raise ValueError(f"there is no input {name!r}; the inputs are {', '.join(map(repr, wanted))}")
            if name in wanted[: len(arrays)]:
                raise ValueError(f"input {name!r} is given twice, by position and by name")
        found = [*arrays, *(named.get(n, _MISSING) for n in wanted[len(arrays) :])]
        return [_checked(p, array) for p, array in zip(self._inputs, found, strict=True)]


_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Port:
    """An input or output, ready to be compared with an array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def _checked(wanted: _Port, given: Any) -> Array:
    """Contiguous, aligned, of the wanted shape and dtype."""
    if given is _MISSING:
        raise ValueError(f"input {wanted.name!r} is missing: expected {wanted}")
    array = np.asarray(given)
    if array.shape != wanted.shape or array.dtype != wanted.dtype:
        raise ValueError(f"input {wanted.name!r}: expected {wanted}, got {array.dtype}{list(array.shape)}")
    ready = array.flags.c_contiguous and array.flags.aligned  # np.require is slow at saying yes
    return array if ready else np.require(array, requirements=["C", "A"])


def _pointers(addresses: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    """At least one element, since C has no empty arrays."""
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


def _addresses(arrays: Sequence[Array]) -> ctypes.Array[ctypes.c_void_p]:
    return _pointers([address(a) for a in arrays])


def _load(library: Path, manifest: Manifest) -> ctypes.CDLL:
    """Open it and make sure that it holds this very program: a path that was used before gives the old code again."""
    try:
        loaded = ctypes.CDLL(str(library.resolve()))
        symbol = ctypes.c_char.in_dll(loaded, f"{manifest.prefix}_id")
    except (OSError, ValueError) as e:
        raise LoadError(f"cannot load the compiled network: {e}") from e
    found = ctypes.string_at(ctypes.addressof(symbol)).decode(errors="replace")
    if found != manifest.id:
        raise LoadError(f"the library holds another program: its id is {found!r}, not {manifest.id!r}")
    return loaded


# ---------------------------------------------------------------------------------------------- making one


def compile_network(
    network: Network, compiler: Compiler, target: Target, *, evaluate: Evaluate = by_numpy, jobs: int | None = None
) -> Module:
    """Network -> callable, in this process; no file is left behind. jobs: compilers at once.

    Raises BuildError with the compiler's first error.
    """
    bundle = emit(network, target, versions={"compiler": compiler.version})
    with tempfile.TemporaryDirectory(prefix="tilewright") as folder:
        library = build(bundle, compiler, Path(folder), jobs=jobs)
        return Module(library, bundle.manifest, pack(network, evaluate))


def load(directory: Path, compiler: Compiler) -> Module:
    """An exported directory -> callable: model.c is compiled with the flags of its manifest.

    Raises BundleError, BuildError, LoadError.
    """
    manifest = read_manifest(directory)
    weights = read_weights(directory, manifest)
    source = directory / "model.c"
    if not source.is_file():
        raise BundleError(f"{directory} has no model.c")
    with tempfile.TemporaryDirectory(prefix="tilewright") as folder:
        text = source.read_text("utf-8")
        library = build_units([text], manifest.flags, compiler, Path(folder), include=directory)
        return Module(library, manifest, weights)
