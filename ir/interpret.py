"""Runs a loop nest one statement after the other: what a nest means, slow and obvious.

Every loop kind runs in order. Indices are checked, reading what was never written is an error, and only the side of
a `select` that is chosen is looked at. Values are NumPy scalars, so that floats round as in C.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ir.expr import OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read
from ir.loop import Alloc, Buffer, For, If, Nest, Stmt, Store

Index = tuple[int, ...]


class NestError(Exception):
    """A nest did what none may do: left a buffer, read what was not written, or left an output unfinished."""


@dataclass
class Counts:
    """What a run did, by buffer.

    reads, writes: elements. loads: elements read, each once in a straight-line block: what an emitter that remembers
    its loads issues. touched: the elements that were read at all. A straight-line block is one pass through the body
    of a serial or parallel loop, or through a branch, without the loops and branches inside it.
    """

    reads: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    loads: Counter[str] = field(default_factory=Counter)
    touched: dict[str, set[Index]] = field(default_factory=dict)


def run(nest: Nest, arrays: Mapping[str, np.ndarray], counts: Counts | None = None) -> dict[str, np.ndarray]:
    """Outputs by name. `arrays` holds the inputs, prepared constants among them. Raises NestError."""
    machine = _Machine(counts if counts is not None else Counts())
    for b in nest.inputs:
        machine.memory[b.name] = _bound(b, arrays)
    for b in nest.outputs:
        machine.memory[b.name] = _fresh(b.name, b.shape, b.dtype)
    with np.errstate(all="ignore"):
        machine.block(nest.body)
    for b in nest.outputs:
        missing = np.argwhere(~machine.memory[b.name].written)
        if len(missing):
            raise NestError(f"output {b.name}{missing[0].tolist()} is never written, nor are {len(missing) - 1} others")
    return {b.name: machine.memory[b.name].values for b in nest.outputs}


@dataclass(frozen=True, slots=True)
class _Memory:
    name: str
    values: np.ndarray
    written: np.ndarray
    constant: bool = False


def _fresh(name: str, shape: tuple[int, ...], dtype: str) -> _Memory:
    values = np.full(shape, np.nan, dtype) if np.dtype(dtype).kind == "f" else np.zeros(shape, dtype)
    return _Memory(name, values, np.zeros(shape, bool))


def _bound(b: Buffer, arrays: Mapping[str, np.ndarray]) -> _Memory:
    array = np.asarray(arrays[b.name])
    if array.shape != b.shape or array.dtype != np.dtype(b.dtype):
        raise NestError(f"{b.name} is {array.dtype}{list(array.shape)}, the nest wants {b.dtype}{list(b.shape)}")
    return _Memory(b.name, array, np.ones(b.shape, bool), constant=True)


@dataclass
class _Machine:
    counts: Counts
    memory: dict[str, _Memory] = field(default_factory=dict)
    index: dict[Axis, int] = field(default_factory=dict)
    loaded: set[tuple[str, Index]] = field(default_factory=set)  # in the straight-line block around

    # --- statements

    def block(self, body: tuple[Stmt, ...]) -> None:
        """Straight-line code; what is allocated or remembered in it ends with it."""
        with self.scope():
            self.straight(body)

    @contextmanager
    def scope(self) -> Iterator[None]:
        memory, loaded = dict(self.memory), self.loaded
        self.loaded = set()
        yield
        self.counts.loads.update(name for name, _ in self.loaded)
        self.memory, self.loaded = memory, loaded

    def straight(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case Alloc(buffer, shape, dtype, _):
                    self.memory[buffer] = _fresh(buffer, shape, dtype)
                case Store():
                    self.store(s)
                case If(condition, then, orelse):
                    self.block(then if self.value(condition) else orelse)
                case For():
                    self.loop(s)

    def loop(self, s: For) -> None:
        trips = self.integer(s.extent)
        if trips > s.var.extent:
            raise NestError(f"loop {s.var.name} makes {trips} trips, at most {s.var.extent} are declared")
        run = self.straight if s.kind in ("unroll", "vector") else self.block
        for i in range(trips):
            self.index[s.var] = i
            run(s.body)
        self.index.pop(s.var, None)

    def store(self, s: Store) -> None:
        value = self.value(s.value)
        target, at = self.element(s.buffer, s.index)
        if target.constant:
            raise NestError(f"{s.buffer} is an input and is written")
        target.values[at] = value
        target.written[at] = True
        self.counts.writes[s.buffer] += 1

    # --- expressions

    def element(self, buffer: str, index: tuple[Expr, ...]) -> tuple[_Memory, Index]:
        if buffer not in self.memory:
            raise NestError(f"{buffer} does not exist here")
        memory = self.memory[buffer]
        at = tuple(map(self.integer, index))
        if len(at) != memory.values.ndim or any(not 0 <= i < n for i, n in zip(at, memory.values.shape, strict=True)):
            raise NestError(f"{buffer}{list(at)} is out of bounds {list(memory.values.shape)}")
        return memory, at

    def read(self, buffer: str, index: tuple[Expr, ...]) -> Any:
        memory, at = self.element(buffer, index)
        if not memory.written[at]:
            raise NestError(f"{buffer}{list(at)} is read before it is written")
        self.counts.reads[buffer] += 1
        self.counts.touched.setdefault(buffer, set()).add(at)
        self.loaded.add((buffer, at))
        return memory.values[at]

    def integer(self, e: Expr) -> int:
        """An index or extent."""
        match e:
            case Const(value, _):
                return int(value)
            case Axis():
                return self.index[e]
            case Op("add", (a, b)):
                return self.integer(a) + self.integer(b)
            case Op("mul", (a, b)):
                return self.integer(a) * self.integer(b)
            case _:
                return int(self.value(e))

    def value(self, e: Expr) -> Any:
        match e:
            case Const(value, dtype):
                return np.dtype(dtype).type(value)
            case Axis():
                return np.int64(self.index[e])
            case Read(tensor, index, _):
                return self.read(tensor, index)
            case Cast(dtype, arg):
                return np.asarray(self.value(arg)).astype(dtype)[()]
            case Op("select", (condition, then, otherwise)):
                return self.value(then if self.value(condition) else otherwise)
            case Op("and", (a, b)):
                return np.bool_(self.value(a) and self.value(b))
            case Op("or", (a, b)):
                return np.bool_(self.value(a) or self.value(b))
            case Op(name, args):
                return np.asarray(OPERATIONS[name].numpy(*map(self.value, args)))[()]
            case Param(name, _):
                raise NestError(f"the parameter {name} of a combiner is left in a nest")
