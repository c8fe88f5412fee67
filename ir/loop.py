"""The loop nest: what runs, in order, before it is text.

Loop kinds are annotations: run one after the other, every nest means the same. `unroll` loops become straight
code and their index is a constant there; a `vector` loop becomes one vector operation per statement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ir.expr import Axis, Expr

LoopKind = Literal["serial", "parallel", "unroll", "vector"]
Scope = Literal["register", "stack", "workspace"]


@dataclass(frozen=True, slots=True)
class For:
    """for (var = 0; var < extent; var++) body. `extent` may depend on outer variables; it never exceeds var.extent."""

    var: Axis
    extent: Expr
    body: tuple[Stmt, ...]
    kind: LoopKind = "serial"


@dataclass(frozen=True, slots=True)
class If:
    """Scalar condition over loop variables."""

    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True)
class Alloc:
    """A buffer that lives from here to the end of the block.

    register: indexed by constants once unrolled, innermost dimension = vector lanes. stack: per thread, small.
    workspace: from the caller, 64-byte aligned, shared by threads; only at the top level of a nest.
    """

    buffer: str
    shape: tuple[int, ...]
    dtype: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class Store:
    """buffer[index] = value. Under a vector loop that the index does not mention it is a horizontal reduction."""

    buffer: str
    index: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Fetch:
    """`elements` of a buffer, from index on in the order of addresses, will be read soon. It may reach past the end."""

    buffer: str
    index: tuple[Expr, ...]
    elements: int


Stmt = For | If | Alloc | Store | Fetch


@dataclass(frozen=True, slots=True)
class Buffer:
    """An argument: row-major, its first element `align` bytes aligned."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Nest:
    """A kernel's body. Inputs are only read; outputs are written completely."""

    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: tuple[Stmt, ...]


def expressions(body: tuple[Stmt, ...]) -> Iterator[tuple[Expr, Store | None]]:
    """All that a block evaluates; with a store, if it is what is stored."""
    for s in body:
        match s:
            case Store(_, index, value):
                yield value, s
                yield from ((i, None) for i in index)
            case For(_, extent, inner, _):
                yield extent, None
                yield from expressions(inner)
            case If(condition, then, orelse):
                yield condition, None
                yield from expressions((*then, *orelse))
            case Alloc():
                pass
            case Fetch(_, index, _):
                yield from ((i, None) for i in index)


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """A block's statements in whatever depth, each before what it holds."""
    for s in body:
        yield s
        match s:
            case For(_, _, inner, _):
                yield from statements(inner)
            case If(_, then, orelse):
                yield from statements((*then, *orelse))
            case _:
                pass
