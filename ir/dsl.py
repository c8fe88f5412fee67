"""The tensor-expression language: tensors as Python functions of their indices.

    a, b = placeholder((512, 512), "a"), placeholder((512, 512), "b")
    k = reduce_axis(512)
    c = compute((512, 512), lambda i, j: sum(a[i, k] * b[k, j], k), "c")
    d = compute((512, 512), lambda i, j: maximum(c[i, j], 0), "relu")
    program = dag([d])

A handle (`Placeholder` or `Stage`) is indexed like an array. It knows its parents, because a read under
construction (`Access`) carries the handle that it reads; `dag` names the tensors and leaves plain `Read`s.
Arithmetic never converts silently: mixed dtypes are an error, `cast` says what is meant.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import NoReturn

from ir.compute import LEFT, MAX, MIN, PROD, RIGHT, SUM, Combiner, Compute, Dag, Input
from ir.expr import (
    DTYPES,
    INTEGERS,
    OPERATIONS,
    Axis,
    Cast,
    Const,
    Expr,
    Number,
    Op,
    Param,
    Read,
    Term,
    all_of,
    as_expr,
    axes,
    call,
    children,
    dtype_of,
    eq,
    le,
    lt,
    ne,
    rebuild,
    select,
    walk,
)

__all__ = [
    "Access", "Handle", "Placeholder", "Reduction", "Stage", "all_of", "any_of", "call", "cast", "combiner", "compute",
    "dag", "eq", "exp", "ge", "gt", "le", "log", "lt", "max", "maximum", "min", "minimum", "ne", "placeholder",
    "prod", "reduce", "reduce_axis", "rsqrt", "select", "sqrt", "sum", "tanh", "erf", "sigmoid", "where",
]  # fmt: skip


class Indexed:
    """What both kinds of handle share: `handle[i, j]` reads one element."""

    __slots__ = ()

    name: str
    dtype: str

    @property
    def extents(self) -> tuple[int, ...]:
        raise NotImplementedError

    def __getitem__(self, index: Term | int | tuple[Term | int, ...]) -> Read:
        given = index if isinstance(index, tuple) else (index,)
        if len(given) != len(self.extents):
            raise ValueError(f"{self.name} has {len(self.extents)} dimensions, not {len(given)}")
        assert isinstance(self, Placeholder | Stage)
        return Access(self.name, tuple(self._position(p) for p in given), self.dtype, source=self)

    def _position(self, position: Term | int) -> Expr:
        if isinstance(position, slice):
            raise TypeError(f"{self.name} is read one element at a time, not by slices")
        e = as_expr(position)
        if dtype_of(e) not in INTEGERS:
            raise TypeError(f"an index of {self.name} is {dtype_of(e)}, not an integer")
        if isinstance(e, Const) and e.value < 0:
            raise ValueError(f"index {e.value} of {self.name} is negative; count from the front")
        return e


@dataclass(frozen=True, slots=True, eq=False)
class Placeholder(Indexed):
    """A tensor from outside. `constant`: its values are known before run time."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    constant: bool = False

    @property
    def extents(self) -> tuple[int, ...]:
        return self.shape


@dataclass(frozen=True, slots=True, eq=False)
class Stage(Indexed):
    """A computed tensor; like `ir.compute.Compute`, but its reads still know their handles."""

    name: str
    space: tuple[Axis, ...]
    body: Expr
    reduce: tuple[Axis, ...] = ()
    combiner: Combiner = SUM
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(a.extent for a in self.space)

    @property
    def extents(self) -> tuple[int, ...]:
        return self.shape

    @property
    def parents(self) -> list[Handle]:
        """The handles that the body reads, each once, in order of first appearance."""
        return list(dict.fromkeys(n.source for n in walk(self.body) if isinstance(n, Access)))


Handle = Placeholder | Stage


@dataclass(frozen=True, slots=True)
class Access(Read):
    """A read that still knows the handle it reads."""

    source: Handle = field(kw_only=True)


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """The whole body of a stage: `body` combined over `axes`."""

    body: Expr
    axes: tuple[Axis, ...]
    combiner: Combiner

    def _alone(self, *_: object) -> NoReturn:
        raise TypeError("a reduction is the whole body of its stage: give it a stage of its own and read that")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _alone


def placeholder(shape: Sequence[int], name: str = "x", dtype: str = "float32", constant: bool = False) -> Placeholder:
    """A tensor from outside, `constant` if its values are known before run time (a weight)."""
    _check_dtype(dtype)
    return Placeholder(name, _checked_shape(shape, name), dtype, constant)


_UNNAMED = "?"
_fresh = itertools.count()


def reduce_axis(extent: int, name: str = "") -> Axis:
    """An axis to reduce over. Without a name it gets a fresh one, which `compute` replaces by k, k1, ..."""
    (checked,) = _checked_shape((extent,), "a reduction axis")
    return Axis(name or f"{_UNNAMED}{next(_fresh)}", checked)


def compute(
    shape: Sequence[int],
    element: Callable[..., Expr | Reduction | Number],
    name: str = "t",
    axes: Sequence[str] = (),
) -> Stage:
    """name[i, j, ...] = element(i, j, ...) for every index of `shape`; the dtype is that of the element.

    Axis names are `axes` if given, else the parameters of `element`.
    """
    extents = _checked_shape(shape, name)
    space = tuple(Axis(n, e) for n, e in zip(_axis_names(element, len(extents), axes, name), extents, strict=True))
    result = element(*space)
    if isinstance(result, Reduction):
        body, over, join = result.body, result.axes, result.combiner
    else:
        body, over, join = as_expr(result, "float32"), (), SUM
    body, over = _name_reduction(body, over, {a.name for a in space})
    _check_axes(name, body, (*space, *over))
    _check_types(body, name)
    return Stage(name, space, body, over, join, dtype_of(body))


def reduce(body: Term | Number, over: Axis | Sequence[Axis], combiner: Combiner) -> Reduction:
    """Combine `body` over the axes, outermost first, with any combiner."""
    axes_ = (over,) if isinstance(over, Axis) else tuple(over)
    if not axes_:
        raise ValueError("a reduction needs at least one axis")
    return Reduction(as_expr(body, "float32"), axes_, combiner)


def sum(body: Term | Number, over: Axis | Sequence[Axis]) -> Reduction:
    return reduce(body, over, SUM)


def prod(body: Term | Number, over: Axis | Sequence[Axis]) -> Reduction:
    return reduce(body, over, PROD)


def max(body: Term | Number, over: Axis | Sequence[Axis]) -> Reduction:
    """Propagates NaN; the maximum of nothing is -inf (the least value of an integer type)."""
    return reduce(body, over, MAX)


def min(body: Term | Number, over: Axis | Sequence[Axis]) -> Reduction:
    return reduce(body, over, MIN)


def combiner(
    join: Callable[[Param, Param], Expr],
    identity: float,
    commutes: bool = False,
    name: str = "combine",
    dtype: str = "float32",
) -> Combiner:
    """A user's combiner. `commutes` promises associativity and commutativity, so that schedules may reorder it."""
    body = join(Param(LEFT, dtype), Param(RIGHT, dtype))
    if any(isinstance(n, Read | Axis) for n in walk(body)):
        raise ValueError("a combiner is a function of its two arguments alone")
    return Combiner(name, identity, body, commutes)


def cast(value: Term | Number, dtype: str) -> Expr:
    """C conversion; nothing when the dtype is already right."""
    _check_dtype(dtype)
    e = as_expr(value, dtype)
    return e if dtype_of(e) == dtype else Cast(dtype, e)


def gt(left: Term | Number, right: Term | Number) -> Expr:
    return lt(right, left)


def ge(left: Term | Number, right: Term | Number) -> Expr:
    return le(right, left)


def any_of(*conditions: Expr) -> Expr:
    """Disjunction; the empty one is false."""
    out: Expr = Const(False, "bool")
    for i, c in enumerate(conditions):
        out = c if i == 0 else Op("or", (out, c))
    return out


where = select


def maximum(left: Term | Number, right: Term | Number) -> Expr:
    return call("max", left, right)


def minimum(left: Term | Number, right: Term | Number) -> Expr:
    return call("min", left, right)


def exp(x: Term) -> Expr:
    return call("exp", x)


def log(x: Term) -> Expr:
    return call("log", x)


def sqrt(x: Term) -> Expr:
    return call("sqrt", x)


def rsqrt(x: Term) -> Expr:
    return call("rsqrt", x)


def tanh(x: Term) -> Expr:
    return call("tanh", x)


def erf(x: Term) -> Expr:
    return call("erf", x)


def sigmoid(x: Term) -> Expr:
    return call("sigmoid", x)


def dag(outputs: Sequence[Handle], inputs: Sequence[Placeholder] = ()) -> Dag:
    """Everything that the outputs need. Equal names get a suffix: pad, pad_1, ...

    Inputs come in the order of `inputs`, then in the order of first use.
    """
    for handle in outputs:
        if isinstance(handle, Placeholder):
            raise ValueError(f"output {handle.name} is an input: copy it with a stage of its own")
    order = list(_topological(outputs))
    placeholders = list(dict.fromkeys([*inputs, *(h for h in order if isinstance(h, Placeholder))]))
    stages = [h for h in order if isinstance(h, Stage)]
    names = _unique_names([*placeholders, *stages])
    return Dag(
        tuple(Input(names[p], p.shape, p.dtype, p.constant) for p in placeholders),
        tuple(Compute(names[s], s.space, _plain(s.body, names), s.reduce, s.combiner, s.dtype) for s in stages),
        tuple(names[h] for h in outputs),
    )


def _topological(outputs: Iterable[Handle]) -> Iterator[Handle]:
    """Parents before children; an explicit stack, because chains may be thousands of stages deep."""
    done: set[Handle] = set()
    for output in outputs:
        stack: list[tuple[Handle, bool]] = [(output, False)]
        while stack:
            handle, ready = stack.pop()
            if handle in done:
                continue
            if ready or isinstance(handle, Placeholder):
                done.add(handle)
                yield handle
            else:
                stack.append((handle, True))
                stack += [(p, False) for p in reversed(handle.parents)]


def _unique_names(handles: Iterable[Handle]) -> dict[Handle, str]:
    names: dict[Handle, str] = {}
    taken: set[str] = set()
    suffixes: dict[str, Iterator[int]] = {}
    for handle in handles:
        name = handle.name
        while name in taken:
            name = f"{handle.name}_{next(suffixes.setdefault(handle.name, itertools.count(1)))}"
        taken.add(name)
        names[handle] = name
    return names


def _plain(e: Expr, names: dict[Handle, str]) -> Expr:
    """Access -> Read by the final name."""
    kids = tuple(_plain(k, names) for k in children(e))
    if isinstance(e, Access):
        return Read(names[e.source], kids, e.dtype)
    return rebuild(e, kids) if kids else e


def _checked_shape(shape: Sequence[int], name: str) -> tuple[int, ...]:
    try:
        out = tuple(int(d) for d in shape)
        whole = all(int(d) == d for d in shape)
    except (TypeError, ValueError):
        raise ValueError(f"the shape of {name} is {shape!r}, not a sequence of integers") from None
    if not whole or any(d < 0 for d in out):
        raise ValueError(f"the shape of {name} is {tuple(shape)}: every extent must be an integer, 0 or more")
    return out


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; known are {', '.join(DTYPES)}")


def _axis_names(element: Callable[..., object], rank: int, given: Sequence[str], name: str) -> Sequence[str]:
    parameters = signature(element).parameters.values()
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        found: Sequence[str] = [f"i{n}" for n in range(rank)]
    else:
        found = [p.name for p in parameters if p.default is Parameter.empty]
        if len(found) != rank:
            raise ValueError(f"{name} has {rank} dimensions, but its function takes {len(found)} indices")
    out = given or found
    if len(out) != rank or len(set(out)) != rank:
        raise ValueError(f"{name} needs {rank} distinct axis names, not {tuple(out)}")
    return out


def _name_reduction(body: Expr, over: tuple[Axis, ...], taken: set[str]) -> tuple[Expr, tuple[Axis, ...]]:
    """Fresh axes become k, k1, ...: the text of a DAG does not depend on how many were made before."""
    taken = taken | {a.name for a in over} | {a.name for a in axes(body)}
    new: dict[Axis, Axis] = {}
    for axis in over:
        if axis.name.startswith(_UNNAMED):
            name = next(n for n in itertools.chain(["k"], (f"k{i}" for i in itertools.count(1))) if n not in taken)
            taken.add(name)
            new[axis] = Axis(name, axis.extent)
    return (_rename(body, new) if new else body), tuple(new.get(a, a) for a in over)


def _rename(e: Expr, new: dict[Axis, Axis]) -> Expr:
    if isinstance(e, Axis):
        return new.get(e, e)
    kids = tuple(_rename(k, new) for k in children(e))
    if isinstance(e, Access):
        return Access(e.tensor, kids, e.dtype, source=e.source)
    return rebuild(e, kids) if kids else e


def _check_axes(name: str, body: Expr, known: tuple[Axis, ...]) -> None:
    names = [a.name for a in known]
    doubled = sorted({n for n in names if names.count(n) > 1})
    if doubled:
        raise ValueError(f"{name} uses the axis name {doubled[0]} twice")
    free = axes(body) - set(known)
    if free:
        raise ValueError(f"{name} uses axis {sorted(a.name for a in free)[0]}, which it neither iterates nor reduces")


def _check_types(body: Expr, name: str) -> None:
    for e in walk(body):
        if not isinstance(e, Op):
            continue
        values = e.args[1:] if e.name == "select" else e.args
        found = sorted({dtype_of(a) for a in values})
        if len(found) > 1:
            raise TypeError(f"{name}: {e.name} of {' and '.join(found)}; cast one of them")
        if OPERATIONS[e.name].kind == "logic" and found != ["bool"]:
            raise TypeError(f"{name}: {e.name} of {found[0]}, not of bool")
        if e.name == "select" and dtype_of(e.args[0]) != "bool":
            raise TypeError(f"{name}: the condition of a select is {dtype_of(e.args[0])}, not bool")
