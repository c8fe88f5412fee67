"""The oracle: what a DAG means, by NumPy, never through a schedule.

A stage is evaluated over its whole iteration space at once, in blocks that bound the memory. Every sub-expression
is an array over the axes that it mentions (the others have extent 1), so an index or a condition costs little.
Sums of products of two affine reads (matrix products, convolutions) go to BLAS; the rest takes the general path.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ir.compute import SUM, Compute, Dag, Input
from ir.dsl import dag as dag_of
from ir.dsl import placeholder
from ir.expr import FLOATS, OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read, substitute, walk
from ir.graph import Graph, Node, Value
from ir.operators import OPERATORS

Array = np.ndarray
Tensors = Mapping[str, Array]

GENERAL_POINTS = 1 << 19  # points of a block of the general path: megabytes of temporaries, near the cache
OPERAND_POINTS = 1 << 25  # elements of an expanded operand of a matrix product (im2col): 128 MB of float32


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


# --- blocks -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A box of the iteration space. Every array over it has one dimension an axis, of extent 1 if not mentioned."""

    ranges: Mapping[Axis, range]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(r) for r in self.ranges.values())

    def place(self, axis: Axis) -> int:
        return list(self.ranges).index(axis)

    def grid(self, axis: Axis) -> Array:
        r = self.ranges[axis]
        return np.arange(r.start, r.stop, dtype=np.int64).reshape([len(r) if a is axis else 1 for a in self.ranges])


def _blocks(
    axes: Sequence[Axis], cost: Callable[[Sequence[int]], int], limit: int, cut: int | None = None
) -> Iterator[Block]:
    """Halve the extents, outermost first, until a block costs no more than `limit`; blocks in row-major order.

    Only the first `cut` axes are halved. An empty axis gives no block at all.
    """
    sizes = [a.extent for a in axes]
    for i in range(len(sizes) if cut is None else cut):
        while sizes[i] > 1 and cost(sizes) > limit:
            sizes[i] = -(-sizes[i] // 2)
    starts = [range(0, a.extent, s) if s else range(0) for a, s in zip(axes, sizes, strict=True)]
    for corner in itertools.product(*starts):
        bounds = zip(axes, corner, sizes, strict=True)
        yield Block({a: range(b, min(b + s, a.extent)) for a, b, s in bounds})


# --- stages -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fold:
    """How values over reduce axes become one: `over(values, positions)` in a block, `join` across blocks."""

    start: Any
    over: Callable[[Array, tuple[int, ...]], Array]
    join: Callable[[Array, Array], Array]


def _values(stage: Compute, tensors: Tensors, override: str | None) -> Array:
    dtype = _real(stage.dtype, override)
    product = _as_product(stage, tensors)
    if product is not None:
        operands = [tensors[f.tensor] for f in product.factors]
        for i, factor in enumerate(product.factors):
            for c in factor.casts:
                operands[i] = operands[i].astype(_real(c, override))
        return _contract(product, operands, dtype).reshape(stage.shape)
    fold = _fold(stage, dtype, override)
    return _blockwise(stage, dtype, fold, lambda b: _value(stage.body, Scope(tensors, b, override)))


def _magnitudes(stage: Compute, values: Tensors, sizes: Tensors) -> Array:
    product = _as_product(stage, sizes)
    if product is not None:
        return _contract(product, [sizes[f.tensor] for f in product.factors], "float64").reshape(stage.shape)
    fold = _MAGNITUDE_FOLDS.get(stage.combiner.name, _MAGNITUDE_FOLDS["sum"])
    return _blockwise(stage, "float64", fold, lambda b: _sized(stage.body, Scope(values, b, "float64"), sizes)[1])


def _blockwise(stage: Compute, dtype: str, fold: Fold, body: Callable[[Block], Array]) -> Array:
    """The stage block by block; `body` gives the values over one block of all its axes."""
    rank = len(stage.space)
    over = tuple(range(rank, len(stage.axes)))
    out = np.full(stage.shape, fold.start if over else 0, dtype)
    for block in _blocks(stage.axes, prod, GENERAL_POINTS):
        found = np.broadcast_to(body(block), block.shape)
        at = tuple(slice(r.start, r.stop) for r in list(block.ranges.values())[:rank])
        out[at] = fold.join(out[at], fold.over(found, over)) if over else found
    return out


_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _ufunc_fold(ufunc: np.ufunc, start: Any, dtype: str) -> Fold:
    return Fold(start, lambda values, over: ufunc.reduce(values, axis=over, dtype=np.dtype(dtype)), ufunc)


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

    def over(values: Array, positions: tuple[int, ...]) -> Array:
        rows = np.moveaxis(values, positions, range(len(positions)))
        rows = rows.reshape(-1, *rows.shape[len(positions) :])
        return _in_halves(rows, join) if c.reorders else _in_order(rows, join)

    return Fold(start, over, join)


def _in_order(rows: Array, join: Callable[[Array, Array], Array]) -> Array:
    out = rows[0]
    for row in rows[1:]:
        out = join(out, row)
    return np.asarray(out)


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
    if _is_plain(read.index, array.shape, scope.block):
        return _view(read.index, array, scope.block)
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


def _is_plain(index: tuple[Expr, ...], shape: tuple[int, ...], block: Block) -> bool:
    """[i, 0, k] with distinct axes in bounds: a transposed view, no gather."""
    used = [i for i in index if isinstance(i, Axis)]
    fits = all(
        block.ranges[i].stop <= n if isinstance(i, Axis) else n > 0 and i == Const(0, "int64")
        for i, n in zip(index, shape, strict=True)
    )
    return fits and len(set(used)) == len(used)


def _view(index: tuple[Expr, ...], array: Array, block: Block) -> Array:
    used = [i for i in index if isinstance(i, Axis)]
    cuts = (slice(block.ranges[i].start, block.ranges[i].stop) if isinstance(i, Axis) else 0 for i in index)
    part = np.asarray(array[tuple(cuts)])
    return _spread(part, used, tuple(block.ranges))


def _spread(part: Array, used: Sequence[Axis], axes: Sequence[Axis]) -> Array:
    """Dimension d of `part` runs over used[d]  -->  one dimension for each of `axes`, 1 where not used."""
    order = [used.index(a) for a in axes if a in used]
    extents = iter(part.shape[d] for d in order)
    return part.transpose(order).reshape([next(extents) if a in used else 1 for a in axes])


# --- sums of products -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Factor:
    """tensor[sum of coefficient * axis + offset, ...], converted by `casts` in order."""

    tensor: str
    index: tuple[tuple[Mapping[Axis, int], int], ...]
    casts: tuple[str, ...]

    @property
    def axes(self) -> list[Axis]:
        return list(dict.fromkeys(a for terms, _ in self.index for a in terms))

    def fits(self, shape: tuple[int, ...]) -> bool:
        return all(
            o + sum(c * (a.extent - 1) for a, c in terms.items()) < n
            for (terms, o), n in zip(self.index, shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Product:
    """out[space] = sum over reduce of one factor times the other."""

    space: tuple[Axis, ...]
    reduce: tuple[Axis, ...]
    factors: tuple[Factor, Factor]


def _as_product(stage: Compute, tensors: Tensors) -> Product | None:
    """The stage as a product whose reads are affine and in bounds; None if it is something else."""
    match stage.body:
        case Op("mul", (left, right)) if stage.reduce and stage.combiner == SUM and all(a.extent for a in stage.axes):
            space, (left, right) = _split_groups(stage.space, (left, right))
            pair = (_as_factor(left), _as_factor(right))
            if pair[0] is None or pair[1] is None:
                return None
            fit = all(f.fits(tensors[f.tensor].shape) for f in pair if f)
            return Product(space, stage.reduce, (pair[0], pair[1])) if fit else None
        case _:
            return None


def _split_groups(space: tuple[Axis, ...], bodies: tuple[Expr, ...]) -> tuple[tuple[Axis, ...], tuple[Expr, ...]]:
    """c, read as c and c // n      -->      c.hi, c.lo, read as c.hi * n + c.lo and c.hi

    So the channels of a grouped convolution become affine.
    """
    nodes = [n for b in bodies for n in walk(b)]
    out: list[Axis] = []
    new: dict[Expr, Expr] = {}
    for axis in space:
        sizes = {int(n.args[1].value) for n in nodes if isinstance(n, Op) and n.name == "floordiv" and n.args[0] == axis
                 and isinstance(n.args[1], Const)}  # fmt: skip
        size = sizes.pop() if len(sizes) == 1 else 0
        if size and axis.extent % size == 0:
            high, low = Axis(f"{axis.name}.hi", axis.extent // size), Axis(f"{axis.name}.lo", size)
            new[Op("floordiv", (axis, Const(size, "int64")))] = high
            new[axis] = high * size + low
            out += [high, low]
        else:
            out.append(axis)
    return tuple(out), tuple(substitute(b, new) for b in bodies) if new else bodies


def _as_factor(e: Expr) -> Factor | None:
    match e:
        case Cast(dtype, arg):
            inner = _as_factor(arg)
            return inner and replace(inner, casts=(*inner.casts, dtype))
        case Read(tensor, index, _):
            terms = [_affine(i) for i in index]
            found = [t for t in terms if t is not None and min([t[1], *t[0].values()]) >= 0]
            return Factor(tensor, tuple(found), ()) if len(found) == len(index) else None
        case _:
            return None


def _affine(e: Expr) -> tuple[dict[Axis, int], int] | None:
    """Coefficients by axis, and the constant; None if the index is not affine."""
    match e:
        case Const(value, _):
            return {}, int(value)
        case Axis():
            return {e: 1}, 0
        case Op("add", (left, right)):
            a, b = _affine(left), _affine(right)
            if a is None or b is None:
                return None
            return {x: a[0].get(x, 0) + b[0].get(x, 0) for x in (*a[0], *b[0])}, a[1] + b[1]
        case Op("mul", (inner, Const(factor, _)) | (Const(factor, _), inner)):
            a = _affine(inner)
            return None if a is None else ({x: c * int(factor) for x, c in a[0].items()}, a[1] * int(factor))
        case _:
            return None


def _contract(product: Product, operands: Sequence[Array], dtype: str) -> Array:
    """The product by matrix multiplication, one block of the space at a time."""
    axes = (*product.space, *product.reduce)
    used = [[axes.index(a) for a in f.axes] for f in product.factors]
    out = np.empty([a.extent for a in product.space], dtype)
    for block in _blocks(axes, lambda n: max(prod(n[i] for i in u) for u in used), OPERAND_POINTS, len(product.space)):
        left, right = (_window(f, o, block) for f, o in zip(product.factors, operands, strict=True))
        at = tuple(slice(block.ranges[a].start, block.ranges[a].stop) for a in product.space)
        out[at] = _multiply(left, product.factors[0].axes, right, product.factors[1].axes, product.space)
    return out


def _window(factor: Factor, array: Array, block: Block) -> Array:
    """The operand as a strided view with one dimension for each axis that it reads."""
    corner = [o + sum(c * block.ranges[a].start for a, c in terms.items()) for terms, o in factor.index]
    strides = [sum(t.get(a, 0) * s for (t, _), s in zip(factor.index, array.strides, strict=True)) for a in factor.axes]
    start = array[tuple(slice(c, None) for c in corner)]
    shape = [len(block.ranges[a]) for a in factor.axes]
    return np.lib.stride_tricks.as_strided(start, shape, strides, writeable=False)


def _multiply(left: Array, of_left: list[Axis], right: Array, of_right: list[Axis], space: Sequence[Axis]) -> Array:
    """Sum over all axes outside `space`. One dimension for each of `space`, 1 where neither operand has it."""
    left, of_left = _sum_alone(left, of_left, {*space, *of_right})
    right, of_right = _sum_alone(right, of_right, {*space, *of_left})
    both = [a for a in of_left if a in of_right]
    batch, inner = [a for a in both if a in space], [a for a in both if a not in space]
    rows, columns = [a for a in of_left if a not in both], [a for a in of_right if a not in both]

    def arranged(array: Array, axes: list[Axis], groups: Sequence[list[Axis]]) -> tuple[Array, list[int]]:
        moved = array.transpose([axes.index(a) for g in groups for a in g])
        extents = dict(zip(axes, array.shape, strict=True))
        return moved.reshape([prod(extents[a] for a in g) for g in groups]), [extents[a] for g in groups for a in g]

    a, a_extents = arranged(left, of_left, (batch, rows, inner))
    b, b_extents = arranged(right, of_right, (batch, inner, columns))
    shape = a_extents[: len(batch) + len(rows)] + b_extents[len(batch) + len(inner) :]
    return _spread(np.matmul(a, b).reshape(shape), [*batch, *rows, *columns], space)


def _sum_alone(array: Array, axes: list[Axis], kept: set[Axis]) -> tuple[Array, list[Axis]]:
    """Axes that only this operand has are summed before the product."""
    alone = tuple(i for i, a in enumerate(axes) if a not in kept)
    return (array.sum(axis=alone, dtype=array.dtype) if alone else array), [a for a in axes if a in kept]


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
        if name not in inputs:
            raise ValueError(f"no value for input {name}")
        values[name] = np.asarray(inputs[name])
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
