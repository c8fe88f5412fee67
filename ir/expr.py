"""Scalar expressions: what one element of a tensor is.

An expression is a tree of five forms. Index expressions and values share them; an `Axis` is an iteration
variable and counts from 0. Python operators build trees (`a[i, k] * b[k, j] + 1`); comparisons are functions
(`lt(i, 3)`), because `==` on trees means "the same tree".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Number = int | float | bool

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES = (*FLOATS, *INTEGERS, "bool")


class Term:
    """Operators that build trees; every form inherits them."""

    __slots__ = ()

    def __add__(self, other: Term | Number) -> Expr:
        return binary("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return binary("add", other, self)

    def __sub__(self, other: Term | Number) -> Expr:
        return binary("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return binary("sub", other, self)

    def __mul__(self, other: Term | Number) -> Expr:
        return binary("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return binary("mul", other, self)

    def __truediv__(self, other: Term | Number) -> Expr:
        return binary("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return binary("div", other, self)

    def __floordiv__(self, other: Term | Number) -> Expr:
        return binary("floordiv", self, other)

    def __mod__(self, other: Term | Number) -> Expr:
        return binary("mod", self, other)

    def __neg__(self) -> Expr:
        return Op("neg", (as_expr(self, "float32"),))


@dataclass(frozen=True, slots=True)
class Const(Term):
    """A literal. Infinities and NaN are allowed for floats."""

    value: Number
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Axis(Term):
    """An iteration variable over 0 .. extent-1."""

    name: str
    extent: int

    def __hash__(self) -> int:
        return hash(self.name)  # which strings remember; an axis is looked up more often than anything else


@dataclass(frozen=True, slots=True)
class Param(Term):
    """A formal parameter of a combiner: `left` or `right`."""

    name: str
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Read(Term):
    """One element of a tensor: `tensor[index]`. Out of bounds is legal only under a `select` that discards it."""

    tensor: str
    index: tuple[Expr, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Op(Term):
    """An operation of the table `OPERATIONS` on its arguments."""

    name: str
    args: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Cast(Term):
    """C conversion: floats to integers truncate toward zero."""

    dtype: str
    arg: Expr


Expr = Const | Axis | Param | Read | Op | Cast


@dataclass(frozen=True, slots=True)
class Operation:
    """One row of the vocabulary.

    kind: what the cost model counts it as. result: "same" (dtype of the first value argument) or "bool".
    """

    arity: int
    kind: str  # add mul div math compare logic select round
    numpy: Callable[..., Any]
    result: str = "same"


def _div(a: Any, b: Any) -> Any:
    """Floats divide; integers truncate toward zero, as in C."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        return a / b
    return np.trunc(a / np.where(b == 0, 1, b)).astype(a.dtype) if a.dtype.itemsize < 8 else _int64_div(a, b)


def _int64_div(a: Any, b: Any) -> Any:
    b = np.where(b == 0, 1, b)
    quotient = a // b
    return quotient + ((a % b != 0) & ((a < 0) != (b < 0)))


def _erf(x: Any) -> Any:
    from math import erf

    x = np.asarray(x)
    return np.vectorize(erf, otypes=[np.float64])(x).astype(x.dtype) if x.size else x


def _maximum(a: Any, b: Any) -> Any:
    return np.maximum(a, b)  # propagates NaN, as C emitted by us does


OPERATIONS: Mapping[str, Operation] = {
    "add":      Operation(2, "add", np.add),
    "sub":      Operation(2, "add", np.subtract),
    "mul":      Operation(2, "mul", np.multiply),
    "div":      Operation(2, "div", _div),
    "floordiv": Operation(2, "div", np.floor_divide),
    "mod":      Operation(2, "div", np.mod),             # sign of the divisor; indices are never negative
    "fmod":     Operation(2, "div", np.fmod),            # sign of the dividend
    "max":      Operation(2, "compare", _maximum),
    "min":      Operation(2, "compare", np.minimum),
    "pow":      Operation(2, "math", np.power),
    "neg":      Operation(1, "add", np.negative),
    "abs":      Operation(1, "add", np.abs),
    "exp":      Operation(1, "math", np.exp),
    "log":      Operation(1, "math", np.log),
    "sqrt":     Operation(1, "math", np.sqrt),
    "rsqrt":    Operation(1, "math", lambda x: 1 / np.sqrt(x)),
    "tanh":     Operation(1, "math", np.tanh),
    "erf":      Operation(1, "math", _erf),
    "sigmoid":  Operation(1, "math", lambda x: 1 / (1 + np.exp(-x))),
    "sin":      Operation(1, "math", np.sin),
    "cos":      Operation(1, "math", np.cos),
    "tan":      Operation(1, "math", np.tan),
    "asin":     Operation(1, "math", np.arcsin),
    "acos":     Operation(1, "math", np.arccos),
    "atan":     Operation(1, "math", np.arctan),
    "sinh":     Operation(1, "math", np.sinh),
    "cosh":     Operation(1, "math", np.cosh),
    "asinh":    Operation(1, "math", np.arcsinh),
    "acosh":    Operation(1, "math", np.arccosh),
    "atanh":    Operation(1, "math", np.arctanh),
    "floor":    Operation(1, "round", np.floor),
    "ceil":     Operation(1, "round", np.ceil),
    "round":    Operation(1, "round", np.rint),          # ties to even
    "lt":       Operation(2, "compare", np.less, "bool"),
    "le":       Operation(2, "compare", np.less_equal, "bool"),
    "eq":       Operation(2, "compare", np.equal, "bool"),
    "ne":       Operation(2, "compare", np.not_equal, "bool"),
    "and":      Operation(2, "logic", np.logical_and, "bool"),
    "or":       Operation(2, "logic", np.logical_or, "bool"),
    "not":      Operation(1, "logic", np.logical_not, "bool"),
    "isnan":    Operation(1, "compare", np.isnan, "bool"),
    "select":   Operation(3, "select", np.where),        # select(condition, then, otherwise): only one side counts
}  # fmt: skip


def as_expr(value: Term | Number, like: str = "int64") -> Expr:
    """A number becomes a constant; a float literal is never an integer."""
    if isinstance(value, Const | Axis | Param | Read | Op | Cast):
        return value
    if isinstance(value, bool | np.bool_):
        return Const(bool(value), "bool")
    if isinstance(value, int | np.integer):
        return Const(int(value), like) if like not in FLOATS else Const(float(value), like)
    if isinstance(value, float | np.floating):
        return Const(float(value), like if like in FLOATS else "float32")
    raise TypeError(f"{value!r} is not an expression or a number")


def binary(name: str, left: Term | Number, right: Term | Number) -> Expr:
    like = dtype_of(left) if isinstance(left, Term) else dtype_of(right)  # type: ignore[arg-type]
    return Op(name, (as_expr(left, like), as_expr(right, like)))


def call(name: str, *args: Term | Number) -> Expr:
    """An operation by name, for those that Python has no operator for: `call("max", x, 0)`."""
    like = next((dtype_of(a) for a in args if isinstance(a, Term)), "float32")  # type: ignore[arg-type]
    return Op(name, tuple(as_expr(a, like) for a in args))


def select(condition: Expr, then: Term | Number, otherwise: Term | Number) -> Expr:
    like = dtype_of(then if isinstance(then, Term) else otherwise)  # type: ignore[arg-type]
    return Op("select", (condition, as_expr(then, like), as_expr(otherwise, like)))


def lt(left: Term | Number, right: Term | Number) -> Expr:
    return binary("lt", left, right)


def le(left: Term | Number, right: Term | Number) -> Expr:
    return binary("le", left, right)


def eq(left: Term | Number, right: Term | Number) -> Expr:
    return binary("eq", left, right)


def ne(left: Term | Number, right: Term | Number) -> Expr:
    return binary("ne", left, right)


def all_of(*conditions: Expr) -> Expr:
    """Conjunction; the empty one is true."""
    out: Expr = Const(True, "bool")
    for i, c in enumerate(conditions):
        out = c if i == 0 else Op("and", (out, c))
    return out


def conjuncts(c: Expr) -> tuple[Expr, ...]:
    """What `all_of` joined."""
    match c:
        case Op("and", (a, b)):
            return (*conjuncts(a), *conjuncts(b))
        case _:
            return (c,)


def dtype_of(e: Expr) -> str:
    match e:
        case Const(_, dtype) | Param(_, dtype) | Read(_, _, dtype) | Cast(dtype, _):
            return dtype
        case Axis():
            return "int64"
        case Op("select", (_, then, _)):
            return dtype_of(then)
        case Op(name, args):
            return "bool" if OPERATIONS[name].result == "bool" else dtype_of(args[0])


def children(e: Expr) -> tuple[Expr, ...]:
    match e:
        case Read(_, index, _):
            return index
        case Op(_, args):
            return args
        case Cast(_, arg):
            return (arg,)
        case Const() | Axis() | Param():
            return ()


def rebuild(e: Expr, kids: tuple[Expr, ...]) -> Expr:
    """The same form over other children."""
    match e:
        case Read(tensor, _, dtype):
            return Read(tensor, kids, dtype)
        case Op(name, _):
            return Op(name, kids)
        case Cast(dtype, _):
            return Cast(dtype, kids[0])
        case Const() | Axis() | Param():
            return e


def substitute(e: Expr, new: Mapping[Expr, Expr]) -> Expr:
    """Replace axes, parameters or whole reads, innermost last: a replaced node is not visited again."""
    if e in new:
        return new[e]
    kids = children(e)
    return rebuild(e, tuple(substitute(k, new) for k in kids)) if kids else e


def walk(e: Expr) -> Iterator[Expr]:
    """Every node, parents first. A stack: generators inside generators cost a step for every level."""
    waiting = [e]
    while waiting:
        e = waiting.pop()
        yield e
        waiting += reversed(children(e))


def reads(e: Expr) -> list[Read]:
    return [n for n in walk(e) if isinstance(n, Read)]


def axes(e: Expr) -> set[Axis]:
    return {n for n in walk(e) if isinstance(n, Axis)}
