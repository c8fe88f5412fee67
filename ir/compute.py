"""The compute DAG: tensors as functions of their indices."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from ir.expr import Axis, Const, Expr, Op, Param, Read, reads, substitute

LEFT, RIGHT = "left", "right"


@dataclass(frozen=True, slots=True)
class Combiner:
    """How a reduction joins two partial results.

    `body` is an expression over Param("left") and Param("right"); `identity` is neutral on either side.
    `reorders` states that the combiner is associative and commutative: only then may a schedule split the
    reduction into independent partial results (rfactor, vector lanes, threads).
    """

    name: str
    identity: float
    body: Expr
    reorders: bool = True

    def join(self, left: Expr, right: Expr, dtype: str) -> Expr:
        return substitute(self.body, {p: left if p.name == LEFT else right for p in _params(self.body)})

    def start(self, dtype: str) -> Const:
        return identity(self.identity, dtype)


def _params(e: Expr) -> set[Param]:
    from ir.expr import walk

    return {n for n in walk(e) if isinstance(n, Param)}


def _named(name: str, operation: str, neutral: float) -> Combiner:
    return Combiner(name, neutral, Op(operation, (Param(LEFT), Param(RIGHT))))


SUM = _named("sum", "add", 0.0)
PROD = _named("prod", "mul", 1.0)
MAX = _named("max", "max", -inf)
MIN = _named("min", "min", inf)
COMBINERS = {c.name: c for c in (SUM, PROD, MAX, MIN)}


def identity(value: float, dtype: str) -> Const:
    """Infinities become the extreme of an integer type."""
    if dtype == "bool":
        return Const(value > 0, "bool")
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return Const(int(min(max(value, info.min), info.max)), dtype)
    return Const(value, dtype)


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor from outside. `constant`: its values are known before run time (a weight), so its layout is ours."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Compute:
    """name[space] = combine over reduce of body; without `reduce` simply body. Row-major over `space`."""

    name: str
    space: tuple[Axis, ...]
    body: Expr
    reduce: tuple[Axis, ...] = ()
    combiner: Combiner = SUM
    dtype: str = "float32"

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (*self.space, *self.reduce)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.extent for a in self.space)


Tensor = Input | Compute


@dataclass(frozen=True)
class Dag:
    """Inputs, stages in topological order, and the names of the stages that leave."""

    inputs: tuple[Input, ...]
    computes: tuple[Compute, ...]
    outputs: tuple[str, ...]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        both: list[Tensor] = [*self.inputs, *self.computes]
        return {t.name: t for t in both}

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def stage(self, name: str) -> Compute:
        found = self.tensors[name]
        assert isinstance(found, Compute), f"{name} is an input"
        return found

    @cached_property
    def _consumers(self) -> dict[str, tuple[Compute, ...]]:
        read = [(c, {r.tensor for r in reads(c.body)}) for c in self.computes]
        return {n: tuple(c for c, tensors in read if n in tensors) for n in self.tensors}

    def consumers(self, name: str) -> tuple[Compute, ...]:
        return self._consumers[name]

    @cached_property
    def flops(self) -> float:
        """Floating operations of the whole DAG, a multiply-add as two; address arithmetic is free."""
        return float(sum(_flops(c) for c in self.computes))

    @cached_property
    def bytes(self) -> float:
        """Compulsory traffic: every input and output once."""
        outs = [self.tensors[o] for o in self.outputs]
        return float(sum(np.prod(t.shape, dtype=float) * np.dtype(t.dtype).itemsize for t in (*self.inputs, *outs)))


def _flops(c: Compute) -> float:
    points = np.prod([a.extent for a in c.axes], dtype=float)
    return float(points * (_value_operations(c.body) + bool(c.reduce)))


def _value_operations(e: Expr) -> int:
    """Arithmetic on values: what stands inside an index or a condition does not count."""
    match e:
        case Op("select", (_, then, otherwise)):
            return max(_value_operations(then), _value_operations(otherwise))
        case Op(_, args):
            return 1 + sum(map(_value_operations, args))
        case Read() | Const() | Axis() | Param():
            return 0
        case _:
            return _value_operations(e.arg)
