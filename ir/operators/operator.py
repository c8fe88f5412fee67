"""One row of the operator table, and what the definitions share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ir.dsl import Handle, cast, compute, maximum, minimum, select
from ir.expr import Axis, Expr, Read, Term, dtype_of, lt
from ir.graph import Attribute

Inputs = Sequence[Handle | None]
Attributes = Mapping[str, Attribute]
Shapes = Sequence[tuple[int, ...] | None]
Index = Sequence[Expr]


@dataclass(frozen=True, slots=True)
class IndexBound:
    """Run-time indices in input number `input` must lie in low..high; a definition clamps, a runtime must refuse.

    component: the bound holds for indices[..., component] alone; None: for all.
    """

    input: int
    low: int
    high: int
    component: int | None = None

    def check(self, node: str, given: np.ndarray) -> None:
        indices = given if self.component is None else given[..., self.component]
        if indices.size and (indices.min() < self.low or indices.max() > self.high):
            wrong = indices[(indices < self.low) | (indices > self.high)].flat[0]
            raise IndexError(f"{node}: index {wrong} is outside {self.low}..{self.high}")


def no_bounds(_: Shapes, __: Attributes) -> list[IndexBound]:
    return []


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the graph: its definition in the tensor-expression language.

    define(inputs, attributes) -> outputs. An absent optional input is None. A shape or attribute that makes no
    sense is a ValueError with the numbers in it. Shapes and dtypes of a node are those of its definition.
    """

    name: str
    define: Callable[[Inputs, Attributes], list[Handle]]
    bounds: Callable[[Shapes, Attributes], list[IndexBound]] = no_bounds


# --- attributes and inputs --------------------------------------------------------------------------------------


def ints(attributes: Attributes, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    found = attributes.get(name, default)
    if not isinstance(found, tuple):
        raise ValueError(f"attribute {name} is {found!r}, not a tuple of integers")
    return tuple(int(v) for v in found)


def integer(attributes: Attributes, name: str, default: int | None = None) -> int:
    found = attributes.get(name, default)
    if not isinstance(found, int):
        raise ValueError(f"attribute {name} is {found!r}, not an integer")
    return int(found)


def real(attributes: Attributes, name: str, default: float | None = None) -> float:
    found = attributes.get(name, default)
    if not isinstance(found, int | float):
        raise ValueError(f"attribute {name} is {found!r}, not a number")
    return float(found)


def text(attributes: Attributes, name: str, default: str | None = None) -> str:
    found = attributes.get(name, default)
    if not isinstance(found, str):
        raise ValueError(f"attribute {name} is {found!r}, not a string")
    return found


def choice(attributes: Attributes, name: str, options: Iterable[str], default: str) -> str:
    """A string attribute out of a fixed set."""
    found = text(attributes, name, default)
    if found not in options:
        raise ValueError(f"attribute {name} is {found!r}, not one of {', '.join(options)}")
    return found


def flag(attributes: Attributes, name: str, default: bool = False) -> bool:
    return bool(attributes.get(name, default))


def need(inputs: Inputs, position: int) -> Handle:
    """An input that must be there."""
    found = inputs[position] if position < len(inputs) else None
    if found is None:
        raise ValueError(f"input {position} is missing")
    return found


def maybe(inputs: Inputs, position: int) -> Handle | None:
    return inputs[position] if position < len(inputs) else None


def normal_axis(axis: int, rank: int) -> int:
    """Negative axes count from the back."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside a tensor of {rank} dimensions")
    return axis % rank


def normal_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Sorted, non-negative, distinct."""
    out = sorted(normal_axis(a, rank) for a in axes)
    if len(set(out)) != len(out):
        raise ValueError(f"axes {tuple(axes)} name one dimension twice")
    return tuple(out)


# --- dtypes -----------------------------------------------------------------------------------------------------


def accumulator(dtype: str) -> str:
    """Sums of float16 overflow and lose bits: they are kept in float32."""
    return "float32" if dtype == "float16" else dtype


def wide(x: Expr) -> Expr:
    """A float16 value as float32; others as they are."""
    return cast(x, accumulator(dtype_of(x)))


def is_float(dtype: str) -> bool:
    return dtype.startswith("float")


def narrowed(stage: Handle, dtype: str, name: str) -> Handle:
    """Back from the accumulator's dtype; the stage itself where nothing was widened."""
    if stage.dtype == dtype:
        return stage
    return compute(stage.shape, lambda *i: cast(stage[i], dtype), name)


# --- shapes and indices -----------------------------------------------------------------------------------------


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """NumPy's rule, which is ONNX's too; unlike NumPy's own, the error shows the shapes alone."""
    rank = max(map(len, shapes))
    out = []
    for d in range(rank):
        extents = {s[d - rank] for s in shapes if len(s) >= rank - d} - {1}
        if len(extents) > 1:
            raise ValueError(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
        out.append(extents.pop() if extents else 1)
    return tuple(out)


def at(handle: Handle, index: Index) -> Read:
    """Read at an output index: dimensions align at the right, an extent of 1 is read again and again."""
    own = index[len(index) - len(handle.shape) :]
    return handle[tuple(_repeated(i, n) for i, n in zip(own, handle.shape, strict=True))]


def _repeated(i: Expr, extent: int) -> Expr | int:
    return 0 if extent == 1 and not (isinstance(i, Axis) and i.extent == 1) else i


def replaced(index: Index, position: int, new: Term | int) -> tuple[Term | int, ...]:
    return (*index[:position], new, *index[position + 1 :])


def scaled(i: Expr, factor: int) -> Expr:
    """i * factor, without the multiplication by 1."""
    return i if factor == 1 else i * factor


def shifted(i: Expr, offset: int) -> Expr:
    """i + offset, without the addition of 0."""
    return i if offset == 0 else i + offset if offset > 0 else i - -offset


def clamped(i: Expr, low: int, high: int) -> Expr:
    return maximum(minimum(i, high), low)


def wrapped(i: Expr, extent: int) -> Expr:
    """A run-time index: negative ones count from the back; what is still outside is clamped, so no read can miss."""
    position = cast(i, "int64")
    return clamped(select(lt(position, 0), position + extent, position), 0, max(extent - 1, 0))
