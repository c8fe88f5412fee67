"""The oracle: what a DAG means, by NumPy, never through a schedule.

A stage is evaluated over its whole iteration space at once, in blocks that bound the memory. Every sub-expression
is an array over the axes that it mentions (the others have extent 1), so an index or a condition costs little.
Sums of products of two affine reads (matrix products, convolutions) go to BLAS; the rest takes the general path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ir.affine import affine
from ir.compute import Compute, Dag, Input
from ir.dsl import dag as dag_of
from ir.dsl import placeholder
from ir.expr import FLOATS, OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read
from ir.graph import Graph, Node, Value
from ir.operators import OPERATORS
from ir.products import Block, as_product, blocks, contract

Array = np.ndarray
Tensors = Mapping[str, Array]

GENERAL_POINTS = 1 << 19  # points of a block of the general path: megabytes of temporaries, near the cache


def evaluate(dag: Dag, inputs: Tensors, dtype: str | None = None, every: bool = False) -> dict[str, Array]:
    """The outputs of `dag` by name; with `every`, all its tensors.

    Inputs are converted to their declared dtypes. `dtype="float64"` computes every float in double. Integers wrap
    and divide as in C. A read out of bounds is an IndexError, unless a `select` discards it.
    """
    tensors = {t.name: _bound(t, inputs, dtype) for t in dag.inputs}
    with np.errstate(all="ignore"):
        for stage in dag.computes:
            tensors[stage.name] = _values(stage, tensors, dtype)
    return tensors if every else {o: tensors[o] for o in dag.outputs}


def magnitude(dag: Dag, inputs: Tensors) -> dict[str, Array]:
    """For each output the sum of the magnitudes that were added up on the way to it, in double.

    An error bound of a reordered computation is a small multiple of (unit roundoff x this): |a| + |b| for a + b,
    |a| |b| for a b, |f(a)| + |f'(a)| |a| for a function (running error analysis: Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., section 3.3).
    """
    values = evaluate(dag, inputs, "float64", every=True)
    sizes = {t.name: np.abs(values[t.name].astype(np.float64)) for t in dag.inputs}
    with np.errstate(all="ignore"):
        for stage in dag.computes:
            sizes[stage.name] = _magnitudes(stage, values, sizes)
    return {o: sizes[o] for o in dag.outputs}


def _bound(declared: Input, inputs: Tensors, dtype: str | None) -> Array:
    if declared.name not in inputs:
        raise ValueError(f"no value for input {declared.name}")
    array = np.asarray(inputs[declared.name])
    if array.shape != declared.shape:
        raise ValueError(f"input {declared.name} has shape {array.shape}, declared is {declared.shape}")
    return array.astype(declared.dtype, copy=False).astype(_real(declared.dtype, dtype), copy=False)


def _real(dtype: str, override: str | None) -> str:
    """The dtype to compute in: `override` replaces the float types alone."""
    return override if override is not None and dtype in FLOATS else dtype


# --- stages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fold:
    """How values over reduce axes become one: into(so far, values of a block, positions of the reduce axes)."""

    start: Any
    into: Callable[[Array, Array, tuple[int, ...]], Array]


def _values(stage: Compute, tensors: Tensors, override: str | None) -> Array:
    dtype = _real(stage.dtype, override)
    product = as_product(stage, tensors)
    if product is not None:
        operands = [tensors[f.tensor] for f in product.factors]
        for i, factor in enumerate(product.factors):
            for c in factor.casts:
                operands[i] = operands[i].astype(_real(c, override))
        return contract(product, operands, dtype).reshape(stage.shape)
    fold = _fold(stage, dtype, override)
    return _blockwise(stage, dtype, fold, lambda b: _value(stage.body, Scope(tensors, b, override)))


def _magnitudes(stage: Compute, values: Tensors, sizes: Tensors) -> Array:
    product = as_product(stage, sizes)
    if product is not None:
        return contract(product, [sizes[f.tensor] for f in product.factors], "float64").reshape(stage.shape)
    fold = _MAGNITUDE_FOLDS.get(stage.combiner.name, _MAGNITUDE_FOLDS["sum"])
    return _blockwise(stage, "float64", fold, lambda b: _sized(stage.body, Scope(values, b, "float64"), sizes)[1])


def _blockwise(stage: Compute, dtype: str, fold: Fold, body: Callable[[Block], Array]) -> Array:
    """The stage block by block; `body` gives the values over one block of all its axes."""
    rank = len(stage.space)
    over = tuple(range(rank, len(stage.axes)))
    out = np.full(stage.shape, fold.start if over else 0, dtype)
    for block in blocks(stage.axes, prod, GENERAL_POINTS):
        found = np.broadcast_to(body(block), block.shape)
        at = tuple(slice(r.start, r.stop) for r in list(block.ranges.values())[:rank])
        out[at] = fold.into(out[at], found, over) if over else found
    return out


_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _ufunc_fold(ufunc: np.ufunc, start: Any, dtype: str) -> Fold:
    return Fold(
        start, lambda so_far, values, over: ufunc(so_far, ufunc.reduce(values, axis=over, dtype=np.dtype(dtype)))
    )


_MAGNITUDE_FOLDS = {
    "sum":  _ufunc_fold(np.add, 0.0, "float64"),
    "prod": _ufunc_fold(np.multiply, 1.0, "float64"),
    "max":  _ufunc_fold(np.maximum, 0.0, "float64"),
    "min":  _ufunc_fold(np.maximum, 0.0, "float64"),
}  # fmt: skip


def _fold(stage: Compute, dtype: str, override: str | None) -> Fold:
    c = stage.combiner
    start = c.start(stage.dtype).value
    if c.name in _UFUNCS:
        return _ufunc_fold(_UFUNCS[c.name], start, dtype)

    def join(left: Array, right: Array) -> Array:
        return _value(c.body, Scope({}, Block({}), override, {"left": left, "right": right}))

    def into(so_far: Array, values: Array, positions: tuple[int, ...]) -> Array:
        rows = np.moveaxis(values, positions, range(len(positions)))
        rows = rows.reshape(-1, *rows.shape[len(positions) :])
        return join(so_far, _in_halves(rows, join)) if c.reorders else _in_order(so_far, rows, join)

    return Fold(start, into)


def _in_order(out: Array, rows: Array, join: Callable[[Array, Array], Array]) -> Array:
    """A left fold, element by element: such a combiner need not even be associative."""
    for row in rows:
        out = join(out, row)
    return out


def _in_halves(rows: Array, join: Callable[[Array, Array], Array]) -> Array:
    while len(rows) > 1:
        half = len(rows) // 2
        rows = np.concatenate([join(rows[:half], rows[half : 2 * half]), rows[2 * half :]])
    return np.asarray(rows[0])


# --- expressions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scope:
    """What the names in an expression stand for. `guarded`: inside a select, where reads may miss."""

    tensors: Tensors
    block: Block
    override: str | None
    params: Tensors = field(default_factory=dict)
    guarded: bool = False

    def inside_select(self) -> Scope:
        return self if self.guarded else replace(self, guarded=True)


def _value(e: Expr, scope: Scope) -> Array:
    match e:
        case Const(value, dtype):
            return np.asarray(value, _real(dtype, scope.override))
        case Axis():
            return scope.block.grid(e)
        case Param(name, _):
            return scope.params[name]
        case Cast(dtype, arg):
            return _value(arg, scope).astype(_real(dtype, scope.override))
        case Read(tensor, _, _):
            return _read(e, scope.tensors[tensor], scope)
        case Op("select", (condition, then, otherwise)):
            inner = scope.inside_select()
            return np.where(_value(condition, scope), _value(then, inner), _value(otherwise, inner))
        case Op(name, args):
            return _apply(name, [_value(a, scope) for a in args])


def _apply(name: str, args: Sequence[Array]) -> Array:
    """One operation; the result keeps the dtype of its arguments (NumPy would widen an int8 square root)."""
    operation = OPERATIONS[name]
    out = np.asarray(operation.numpy(*args))
    return out if operation.result == "bool" else out.astype(args[0].dtype, copy=False)


def _read(read: Read, array: Array, scope: Scope) -> Array:
    """`array` at the index of `read`, over the axes that the index mentions."""
    view = _view(read.index, array, scope.block)
    if view is not None:
        return view
    positions = [_value(i, scope) for i in read.index]
    for d, (p, extent) in enumerate(zip(positions, array.shape, strict=True)):
        missed = bool(p.size) and bool(p.min() < 0 or p.max() >= extent)
        if missed and not scope.guarded:
            wrong = p[(p < 0) | (p >= extent)].flat[0]
            raise IndexError(f"index {wrong} of {read.tensor}, dimension {d}, is outside 0..{extent - 1}")
        if missed and extent == 0:  # nothing to clip to, and the select discards every element
            return np.zeros(np.broadcast_shapes(*(q.shape for q in positions)), array.dtype)
        positions[d] = np.clip(p, 0, extent - 1) if missed else p
    return np.asarray(array[tuple(positions)])


def _view(index: tuple[Expr, ...], array: Array, block: Block) -> Array | None:
    """Linear indices that stay in bounds: the same memory under other strides. None: it takes a gather."""
    strides, corner = dict.fromkeys(block.ranges, 0), []
    forms = [affine(i) for i in index]
    for form, extent, stride in zip(forms, array.shape, array.strides, strict=True):
        if form is None:
            return None
        low = high = first = form.constant
        for a, c in form.terms:
            r = block.ranges[a]
            low, high = low + min(c * r.start, c * (r.stop - 1)), high + max(c * r.start, c * (r.stop - 1))
            first += c * r.start
            strides[a] += c * stride
        if low < 0 or high >= extent:
            return None
        corner.append(slice(first, None))
    mentioned = {a for form in forms if form is not None for a, _ in form.terms}
    shape = [len(r) if a in mentioned else 1 for a, r in block.ranges.items()]
    return as_strided(array[tuple(corner)], shape, list(strides.values()), writeable=False)


# --- magnitudes -------------------------------------------------------------------------------------------------


def _sized(e: Expr, scope: Scope, sizes: Tensors) -> tuple[Array, Array]:
    """(value, magnitude) of an expression; see `magnitude`."""
    match e:
        case Read(tensor, _, _):
            return _value(e, scope), _read(e, sizes[tensor], scope)
        case Cast(dtype, arg):
            value, size = _sized(arg, scope, sizes)
            return value.astype(_real(dtype, "float64")), size
        case Op("select", (condition, then, otherwise)):
            where, inner = _value(condition, scope), scope.inside_select()
            (a, size_a), (b, size_b) = _sized(then, inner, sizes), _sized(otherwise, inner, sizes)
            return np.where(where, a, b), np.where(where, size_a, size_b)
        case Op(name, args) if OPERATIONS[name].result == "same":
            values, grown = zip(*(_sized(a, scope, sizes) for a in args), strict=True)
            value = _apply(name, values)
            return value, _MAGNITUDES.get(name, _slope_at_most_one)(value, values, grown)
        case _:
            value = _value(e, scope)
            return value, np.abs(value.astype(np.float64))


Operands = Sequence[Array]


def _slope_at_most_one(value: Array, _: Operands, size: Operands) -> Array:
    return np.asarray(np.abs(value) + sum(size))


def _of_sqrt(value: Array, _: Operands, size: Operands) -> Array:
    """The slope is infinite at 0; there the root of the magnitude bounds the change."""
    return np.asarray(value + np.minimum(size[0] / (2 * value), np.sqrt(size[0])))


def _of_pow(value: Array, x: Operands, size: Operands) -> Array:
    growth = np.abs(x[1]) * size[0] / np.abs(x[0]) + np.abs(np.log(np.abs(x[0]))) * size[1]
    return np.asarray(np.abs(value) * (1 + np.nan_to_num(growth, nan=0.0, posinf=0.0)))


_MAGNITUDES: Mapping[str, Callable[[Array, Operands, Operands], Array]] = {
    "add":   lambda v, x, s: s[0] + s[1],
    "sub":   lambda v, x, s: s[0] + s[1],
    "mul":   lambda v, x, s: s[0] * s[1],
    "div":   lambda v, x, s: (s[0] + np.abs(v) * s[1]) / np.abs(x[1]),
    "max":   lambda v, x, s: np.maximum(s[0], s[1]),
    "min":   lambda v, x, s: np.maximum(s[0], s[1]),
    "neg":   lambda v, x, s: s[0],
    "abs":   lambda v, x, s: s[0],
    "exp":   lambda v, x, s: np.abs(v) * (1 + s[0]),
    "log":   lambda v, x, s: np.abs(v) + s[0] / np.abs(x[0]),
    "sqrt":  _of_sqrt,
    "rsqrt": lambda v, x, s: np.abs(v) + np.abs(v) ** 3 * s[0] / 2,
    "pow":   _of_pow,
    "tan":   lambda v, x, s: np.abs(v) + (1 + v * v) * s[0],
    "sinh":  lambda v, x, s: np.abs(v) + np.cosh(x[0]) * s[0],
    "cosh":  lambda v, x, s: np.abs(v) * (1 + s[0]),
}  # fmt: skip


# --- graphs -----------------------------------------------------------------------------------------------------


def run_graph(graph: Graph, inputs: Tensors, dtype: str | None = None) -> list[Array]:
    """The outputs of the graph, in order, node by node through the definitions of the operators."""
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        declared = graph.values[name]
        values[name] = _bound(Input(name, declared.shape, declared.dtype), inputs, None)
    last = {name: i for i, node in enumerate(graph.nodes) for name in node.inputs}
    for i, node in enumerate(graph.nodes):
        values.update(run_node(graph.values, node, values, dtype))
        for name in node.inputs:
            if last.get(name) == i and name not in graph.outputs:
                values.pop(name, None)
    return [np.array(values[o]) for o in graph.outputs]


def run_node(declared: Mapping[str, Value], node: Node, values: Tensors, dtype: str | None = None) -> dict[str, Array]:
    """The outputs of one node by name. An index outside the bounds that its operator states is an IndexError."""
    operator = OPERATORS[node.operator]
    given = [declared[n] if n else None for n in node.inputs]
    handles = [None if v is None else placeholder(v.shape, f"in{i}", v.dtype) for i, v in enumerate(given)]
    for bound in operator.bounds([None if h is None else h.shape for h in handles], node.attributes):
        bound.check(node.name, values[node.inputs[bound.input]])
    made = operator.define(handles, node.attributes)
    wanted = [(o, h) for o, h in zip(node.outputs, made, strict=False) if o]
    program = dag_of([h for _, h in wanted], [h for h in handles if h is not None])
    arrays = {f"in{i}": values[n] for i, n in enumerate(node.inputs) if n}
    found = evaluate(program, arrays, dtype)
    return {o: found[name] for (o, _), name in zip(wanted, program.outputs, strict=True)}
