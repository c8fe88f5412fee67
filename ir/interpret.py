"""Runs a loop nest one statement after the other: what a nest means, slow and obvious.

Every loop kind runs in order. Indices are checked, reading what was never written is an error, and only the side of
a `select` that is chosen is looked at. Values are NumPy scalars, so that floats round as in C. Each statement becomes
a Python function once, before the first runs; about 10 us a multiply-add.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import add, mul, sub
from typing import Any

import numpy as np

from ir.affine import affine
from ir.expr import OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read
from ir.loop import Alloc, Buffer, Fetch, For, If, Nest, Stmt, Store

Index = tuple[int, ...]
Action = Callable[[], None]
Value = Callable[[], Any]
Integer = Callable[[], int]

SCALAR: Mapping[str, Callable[..., Any]] = {"add": add, "sub": sub, "mul": mul}  # the same as the ufuncs, and faster


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
    machine = _Machine(counts)
    for b in nest.inputs:
        machine.memory[b.name] = _bound(b, arrays)
    for b in nest.outputs:
        machine.memory[b.name] = _fresh(b.shape, b.dtype)
    with np.errstate(all="ignore"):
        machine.block(nest.body)()
    for b in nest.outputs:
        missing = np.argwhere(~machine.memory[b.name].written)
        if len(missing):
            raise NestError(f"output {b.name}{missing[0].tolist()} is never written, nor are {len(missing) - 1} others")
    return {b.name: machine.memory[b.name].values for b in nest.outputs}


@dataclass(slots=True)
class _Memory:
    values: np.ndarray
    written: np.ndarray
    constant: bool = False


def _fresh(shape: tuple[int, ...], dtype: str) -> _Memory:
    values = np.full(shape, np.nan, dtype) if np.dtype(dtype).kind == "f" else np.zeros(shape, dtype)
    return _Memory(values, np.zeros(shape, bool))


def _bound(b: Buffer, arrays: Mapping[str, np.ndarray]) -> _Memory:
    array = np.asarray(arrays[b.name])
    if array.shape != b.shape or array.dtype != np.dtype(b.dtype):
        raise NestError(f"{b.name} is {array.dtype}{list(array.shape)}, the nest wants {b.dtype}{list(b.shape)}")
    return _Memory(array, np.ones(b.shape, bool), constant=True)


def _outside(i: int, extent: int) -> bool:
    return not 0 <= i < extent


@dataclass(slots=True)
class _Cell:
    """Where a loop keeps its index."""

    at: int = 0


@dataclass
class _Machine:
    counts: Counts | None
    memory: dict[str, _Memory] = field(default_factory=dict)
    cells: dict[Axis, _Cell] = field(default_factory=dict)
    loaded: set[tuple[str, Index]] = field(default_factory=set)  # in the straight-line block around

    # --- statements

    def block(self, body: tuple[Stmt, ...]) -> Action:
        """Straight-line code; what is allocated or remembered in it ends with it."""
        actions = self.straight(body)

        def act() -> None:
            memory, loaded = dict(self.memory), self.loaded
            self.loaded = set()
            actions()
            if self.counts is not None:
                self.counts.loads.update(name for name, _ in self.loaded)
            self.memory, self.loaded = memory, loaded

        return act

    def straight(self, body: tuple[Stmt, ...]) -> Action:
        actions = tuple(map(self.statement, body))

        def act() -> None:
            for a in actions:
                a()

        return act

    def statement(self, s: Stmt) -> Action:
        match s:
            case Alloc(buffer, shape, dtype, _):
                return lambda: self.memory.__setitem__(buffer, _fresh(shape, dtype))
            case Store():
                return self.store(s)
            case Fetch():
                return lambda: None  # it changes when something arrives, not what
            case If(condition, then, orelse):
                test, yes, no = self.value(condition), self.block(then), self.block(orelse)
                return lambda: yes() if test() else no()
            case For():
                return self.loop(s)

    def loop(self, s: For) -> Action:
        cell = self.cells.setdefault(s.var, _Cell())
        extent = self.integer(s.extent)
        body = self.straight(s.body) if s.kind in ("unroll", "vector") else self.block(s.body)

        def act() -> None:
            trips = extent()
            if trips > s.var.extent:
                raise NestError(f"loop {s.var.name} makes {trips} trips, at most {s.var.extent} are declared")
            for i in range(trips):
                cell.at = i
                body()

        return act

    def store(self, s: Store) -> Action:
        value, place = self.value(s.value), self.place(s.buffer, s.index)

        def act() -> None:
            new = value()
            target, at = place()
            if target.constant:
                raise NestError(f"{s.buffer} is an input and is written")
            target.values[at] = new
            target.written[at] = True
            if self.counts is not None:
                self.counts.writes[s.buffer] += 1

        return act

    # --- expressions

    def place(self, buffer: str, index: tuple[Expr, ...]) -> Callable[[], tuple[_Memory, Index]]:
        indices = tuple(map(self.integer, index))

        def find() -> tuple[_Memory, Index]:
            if buffer not in self.memory:
                raise NestError(f"{buffer} does not exist here")
            memory = self.memory[buffer]
            at, shape = tuple([i() for i in indices]), memory.values.shape
            if len(at) != len(shape) or any(map(_outside, at, shape)):
                raise NestError(f"{buffer}{list(at)} is out of bounds {list(shape)}")
            return memory, at

        return find

    def read(self, buffer: str, index: tuple[Expr, ...]) -> Value:
        place = self.place(buffer, index)

        def value() -> Any:
            memory, at = place()
            if not memory.constant and not memory.written[at]:
                raise NestError(f"{buffer}{list(at)} is read before it is written")
            if self.counts is not None:
                self.counts.reads[buffer] += 1
                self.counts.touched.setdefault(buffer, set()).add(at)
                self.loaded.add((buffer, at))
            return memory.values[at]

        return value

    def integer(self, e: Expr) -> Integer:
        """An index or extent."""
        form = affine(e)
        if form is None:
            value = self.value(e)
            return lambda: int(value())
        constant = form.constant
        match [(self.cells.setdefault(a, _Cell()), c) for a, c in form.terms]:
            case []:
                return lambda: constant
            case [(cell, 1)]:
                return lambda: cell.at + constant
            case terms:
                return lambda: sum([cell.at * c for cell, c in terms], constant)

    def value(self, e: Expr) -> Value:
        match e:
            case Const(value, dtype):
                literal = np.dtype(dtype).type(value)
                return lambda: literal
            case Axis():
                cell = self.cells.setdefault(e, _Cell())
                return lambda: np.int64(cell.at)
            case Read(tensor, index, _):
                return self.read(tensor, index)
            case Cast(dtype, arg):
                inner = self.value(arg)
                return lambda: np.asarray(inner()).astype(dtype)[()]
            case Op(name, args):
                return self.operation(name, tuple(map(self.value, args)))
            case Param(name, _):
                raise NestError(f"the parameter {name} of a combiner is left in a nest")

    def operation(self, name: str, args: tuple[Value, ...]) -> Value:
        match name, args:
            case "select", (condition, then, otherwise):
                return lambda: then() if condition() else otherwise()
            case "and", (a, b):
                return lambda: np.bool_(a() and b())
            case "or", (a, b):
                return lambda: np.bool_(a() or b())
            case (("add" | "sub" | "mul"), (a, b)):
                scalar = SCALAR[name]
                return lambda: scalar(a(), b())
            case _:
                ufunc = OPERATIONS[name].numpy
                return lambda: np.asarray(ufunc(*[a() for a in args]))[()]
