"""Right answers, independent of every schedule: a naive C program in double precision, run in a process of its own.

A `Case` is what a measured kernel is checked against: inputs, expected outputs and how far each element may be off,
as files, so that several processes share them and a tuning computes them once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.naive import may_be_exact, program, stored
from codegen.toolchain import Compiler, execute, feature_flags, first_error
from ir.affine import interval
from ir.compute import Compute, Dag, Input
from ir.expr import FLOATS, Axis, Expr, Op, Read, children, reads, substitute, walk
from ir.target import Target

Array = NDArray[Any]

# -O3 for its vectoriser; sums keep their order, integers wrap, and a*b+c is two roundings.
FLAGS = ("-std=gnu11", "-O3", "-w", "-fwrapv", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")

# Where a function is defined; inputs that stand in its argument are drawn from here.
DOMAINS = {
    "log": (0.1, 1.0), "sqrt": (0.1, 1.0), "rsqrt": (0.1, 1.0), "pow": (0.1, 1.0),
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "acosh": (1.1, 2.0),
}  # fmt: skip
INPUTS_VERSION = 1  # part of every key: raise it when `inputs` draws differently
SMALLEST = 0.05  # floats keep away from zero, where quotients explode and a missing term is not seen


class OracleError(Exception):
    """There is no right answer: the DAG reads out of bounds, or the naive program could not be built or run."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One output. value: double (floats) or the exact integer; bound: the largest allowed deviation, a double."""

    value: Array
    bound: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Case:
    """Files of one check. `inputs`, `expected` and `bounds` map tensor names to .npy files; `key` names the content."""

    key: str
    directory: Path
    inputs: Mapping[str, Path]
    expected: Mapping[str, Path]
    bounds: Mapping[str, Path]

    @staticmethod
    def at(directory: Path, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Case:
        """The case whose files lie in `directory`. Files are numbered: a tensor's name may hold anything."""

        def paths(what: str, names: tuple[str, ...]) -> dict[str, Path]:
            return {n: directory / f"{what}{i}.npy" for i, n in enumerate(names)}

        key, bounds = directory.name, paths("bound", outputs)
        return Case(key, directory, paths("input", inputs), paths("expected", outputs), bounds)


def write_case(directory: Path, values: Mapping[str, Array], answers: Mapping[str, Answer]) -> Case:
    """Write the files aside, then rename the folder: it is whole or not there. Another writer may win."""
    case = Case.at(directory, tuple(values), tuple(answers))
    directory.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=directory.parent))
    for name, value in values.items():
        np.save(aside / case.inputs[name].name, value)
    for name, answer in answers.items():
        np.save(aside / case.expected[name].name, answer.value)
        np.save(aside / case.bounds[name].name, answer.bound)
    try:
        os.rename(aside, directory)
    except OSError:
        shutil.rmtree(aside)
        if not directory.is_dir():
            raise
    return case


@dataclass(frozen=True, slots=True)
class Oracle:
    """Cases by content, below `directory`. run_seconds: limit of one naive run; the slowest sensible one takes 10 s."""

    compiler: Compiler
    target: Target
    directory: Path
    run_seconds: float = 300.0
    memory_bytes: int = 16 << 30

    def case(self, dag: Dag, seed: int, exact: bool = False) -> Case:
        """Seeded inputs and their answers, from the disk if they were computed before.

        `exact` draws small integers instead; where the DAG then has integers only, as in a convolution, every bound
        is zero: a single wrong term shows, in whatever order the terms were added. Raises OracleError.
        """
        text = f"{INPUTS_VERSION} {seed} {exact} {program(dag)} {dag!r}"
        folder = self.directory / sha256(text.encode()).hexdigest()[:32]
        if folder.is_dir():
            return Case.at(folder, tuple(t.name for t in dag.inputs), dag.outputs)
        values = inputs(dag, seed, exact)
        return write_case(folder, values, self.answers(dag, values, exact))

    def answers(self, dag: Dag, values: Mapping[str, Array], exact: bool = False) -> dict[str, Answer]:
        """Expected values and bounds for given inputs. Raises OracleError."""
        if exact and may_be_exact(dag):
            found, inexact = self._run(dag, values, rounding=False)
            if not inexact:
                return found
        return self._run(dag, values, rounding=True)[0]

    def _run(self, dag: Dag, values: Mapping[str, Array], rounding: bool) -> tuple[dict[str, Answer], bool]:
        with tempfile.TemporaryDirectory(prefix="oracle") as name:
            folder = Path(name)
            for i, t in enumerate(dag.inputs):
                value = np.ascontiguousarray(values[t.name])
                if value.shape != t.shape or value.dtype != t.dtype:
                    raise ValueError(f"{t.name} is {value.dtype}{value.shape}, declared {t.dtype}{t.shape}")
                value.astype(stored(t.dtype), copy=False).tofile(folder / f"i{i}")
            missed, inexact = self._execute(program(dag, rounding), folder)
            if missed >= 0:
                raise OracleError(f"stage {dag.computes[missed].name!r} reads out of bounds, and no select discards it")
            return {n: _answer(folder, i, dag.stage(n)) for i, n in enumerate(dag.outputs)}, bool(inexact)

    def _execute(self, text: str, folder: Path) -> tuple[int, int]:
        """Compile and run; the two numbers that the program prints."""
        command = [*self.compiler.command, *FLAGS, *feature_flags(self.target), "-x", "c", "-"]
        built = execute([*command, "-o", str(folder / "run"), "-lm"], text, self.run_seconds)
        if built.code != 0:
            raise OracleError(f"the naive program does not compile: {first_error(built)}")
        ran = execute([str(folder / "run"), str(folder)], "", self.run_seconds, self.memory_bytes)
        if ran.code is None:
            raise OracleError(f"the naive program was killed after {ran.seconds:.0f} s")
        if ran.code != 0:
            raise OracleError(f"the naive program ended with {ran.code}: {ran.errors.strip()}")
        missed, inexact = ran.output.split()
        return int(missed), int(inexact)


def _answer(folder: Path, i: int, stage: Compute) -> Answer:
    """Read an output back. What is not finite must come out as it is; below the smallest normal number all is one."""
    real = stage.dtype in FLOATS
    value = np.fromfile(folder / f"v{i}", "float64" if real else stored(stage.dtype)).reshape(stage.shape)
    value = value.astype("float64" if real else stage.dtype, copy=False)
    path = folder / f"e{i}"
    if not path.exists():
        return Answer(value, np.zeros(stage.shape))
    bound = np.fromfile(path, "float64").reshape(stage.shape)
    bound[np.isnan(bound)] = np.inf
    if real:
        bound[bound > 0] += float(np.finfo(stage.dtype).tiny)
        bound[~np.isfinite(value)] = 0
    return Answer(value, bound)


# ---------------------------------------------------------------------------------------------- inputs


def inputs(dag: Dag, seed: int, exact: bool = False) -> dict[str, Array]:
    """Random arrays for the inputs of a DAG: the same seed gives the same values.

    Floats: magnitude in [0.05, 1], either sign, or where the functions that they enter are defined; integers that
    serve as indices: what is in bounds; other integers: 1 to 100 of either sign (no zero, for it may divide);
    booleans: fair coins. `exact`: floats are whole, 1 to 4 of either sign.
    """
    rng = np.random.default_rng(seed)
    return {t.name: _draw(t, dag, rng, exact) for t in dag.inputs}


def _draw(t: Input, dag: Dag, rng: np.random.Generator, exact: bool) -> Array:
    sign = rng.integers(0, 2, t.shape) * 2 - 1
    if t.dtype == "bool":
        return sign > 0
    if t.dtype not in FLOATS:
        limit = _index_limit(t, dag)
        if limit is not None:
            return rng.integers(0, limit, t.shape, endpoint=True).astype(t.dtype)
        return (rng.integers(1, 101, t.shape) * (1 if t.dtype.startswith("u") else sign)).astype(t.dtype)
    low, high = _domain(t.name, dag)
    if exact:
        return np.asarray(rng.integers(1, 5, t.shape) * (sign if low < 0 else 1)).astype(t.dtype)
    if low > 0:
        return rng.uniform(low, high, t.shape).astype(t.dtype)
    return (rng.uniform(SMALLEST, high, t.shape) * sign).astype(t.dtype)


def _domain(name: str, dag: Dag) -> tuple[float, float]:
    """The narrowest interval among the functions that the input enters without a reduction in between."""
    low, high = -1.0, 1.0
    for c in dag.computes:
        for e in walk(c.body):
            if isinstance(e, Op) and e.name in DOMAINS and name in _sources(e.args[0], dag):
                low, high = max(low, DOMAINS[e.name][0]), DOMAINS[e.name][1]
    return low, high


def _sources(e: Expr, dag: Dag) -> set[str]:
    """Inputs that reach an expression element by element."""
    found = set()
    for r in reads(e):
        t = dag[r.tensor]
        found |= {t.name} if isinstance(t, Input) else set() if t.reduce else _sources(t.body, dag)
    return found


def _index_limit(t: Input, dag: Dag) -> int | None:
    """The largest value that keeps every index made from this input in bounds; None when it makes no index."""
    limits = []
    for c in dag.computes:
        for r in reads(c.body):
            for index, extent in zip(r.index, dag[r.tensor].shape, strict=True):
                if any(inner.tensor == t.name for inner in reads(index)):
                    limits.append(_fitting(index, t.name, extent))
    return min(limits, default=None)


def _fitting(index: Expr, name: str, extent: int) -> int:
    """Halve the range of the values until the index stays below the extent."""
    limit = extent - 1
    while limit > 0:
        values: dict[Expr, Expr] = {r: Axis("value", limit + 1) for r in _outermost(index, name)}
        known = interval(_without_casts(substitute(index, values)))
        if known is not None and known[1] < extent:
            break
        limit //= 2
    return max(limit, 0)


def _outermost(e: Expr, name: str) -> list[Read]:
    if isinstance(e, Read) and e.tensor == name:
        return [e]
    return [r for k in children(e) for r in _outermost(k, name)]


def _without_casts(e: Expr) -> Expr:
    """Negative indices are often normalised by a select; its `otherwise` is the value as it stands."""
    match e:
        case Op("select", (_, _, otherwise)):
            return _without_casts(otherwise)
        case _:
            return e
