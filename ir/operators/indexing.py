"""Operators with indices from run time: gathers, scatters, one-hot, the largest k."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod

from ir import dsl
from ir.compute import identity
from ir.dsl import Handle, Reduction, any_of, call, cast, compute, minimum, reduce_axis, select
from ir.expr import Axis, Expr, Op, all_of, eq, le, lt
from ir.operators.movement import unflat
from ir.operators.operator import (
    Attributes,
    Index,
    IndexBound,
    Inputs,
    Operator,
    Shapes,
    accumulator,
    choice,
    flag,
    integer,
    need,
    normal_axis,
    replaced,
    wide,
    wrapped,
)


def _axis_bounds(shapes: Shapes, attributes: Attributes) -> list[IndexBound]:
    data = shapes[0] or ()
    extent = data[normal_axis(integer(attributes, "axis", 0), len(data))]
    return [IndexBound(1, -extent, extent - 1)]


def _nd_bounds(shapes: Shapes, attributes: Attributes) -> list[IndexBound]:
    data, indices, batch = shapes[0] or (), shapes[1] or (), integer(attributes, "batch_dims", 0)
    extents = data[batch : batch + indices[-1]]
    return [IndexBound(1, -n, n - 1, component) for component, n in enumerate(extents)]


def _gather(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """x[.., indices[..], ..]: the dimension `axis` is replaced by those of the indices."""
    x, indices = need(inputs, 0), need(inputs, 1)
    axis, count = normal_axis(integer(attributes, "axis", 0), len(x.shape)), len(indices.shape)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def element(*i: Expr) -> Expr:
        where = wrapped(indices[i[axis : axis + count]], x.shape[axis])
        return x[(*i[:axis], where, *i[axis + count :])]

    return [compute(shape, element, "gather")]


def _gather_elements(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """out[i, j] = x[indices[i, j], j] for axis 0."""
    x, indices = need(inputs, 0), need(inputs, 1)
    axis = normal_axis(integer(attributes, "axis", 0), len(x.shape))
    return [
        compute(indices.shape, lambda *i: x[replaced(i, axis, wrapped(indices[i], x.shape[axis]))], "gather_elements")
    ]


def _gather_nd(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """The last dimension of the indices is an index into x, after `batch_dims` shared leading dimensions."""
    x, indices, batch = need(inputs, 0), need(inputs, 1), integer(attributes, "batch_dims", 0)
    depth, lead = indices.shape[-1], len(indices.shape) - 1
    if batch + depth > len(x.shape):
        raise ValueError(f"gather_nd of {x.shape} with indices of {depth} dimensions after {batch} batch dimensions")
    shape = (*indices.shape[:-1], *x.shape[batch + depth :])

    def element(*i: Expr) -> Expr:
        own = [wrapped(indices[(*i[:lead], d)], x.shape[batch + d]) for d in range(depth)]
        return x[(*i[:batch], *own, *i[lead:])]

    return [compute(shape, element, "gather_nd")]


_SCATTERS = {
    "add": (dsl.sum,  "add", 0.0),
    "mul": (dsl.prod, "mul", 1.0),
    "max": (dsl.max,  "max", -inf),
    "min": (dsl.min,  "min", inf),
}  # fmt: skip


def _scattered(
    x: Handle,
    hit: Callable[[Index], Expr],
    update: Callable[[Index, Expr], Expr],
    k: Axis,
    reduction: str,
    name: str,
) -> list[Handle]:
    """x[i], joined with update(i, k) for every k that hits i.

    Every output element looks for its updates: parallel and without races, at the price of a search. Without a
    reduction the last update counts (ONNX leaves it open).
    """
    if reduction == "none":
        last = compute(x.shape, lambda *i: dsl.max(select(hit(i), k, -1), k), f"{name}_last")
        return [compute(x.shape, lambda *i: select(le(0, last[i]), update(i, last[i]), x[i]), name)]
    combine, operation, neutral = _SCATTERS[reduction]
    start = identity(neutral, accumulator(x.dtype))

    def term(*i: Expr) -> Reduction:
        return combine(Op("select", (hit(i), wide(update(i, k)), start)), k)

    joined = compute(x.shape, term, f"{name}_{reduction}")
    return [compute(x.shape, lambda *i: cast(call(operation, wide(x[i]), joined[i]), x.dtype), name)]


def _scatter_elements(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """x with updates[i, j] put at [indices[i, j], j] (axis 0), or combined with what is there."""
    x, indices, updates = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    axis = normal_axis(integer(attributes, "axis", 0), len(x.shape))
    k = reduce_axis(indices.shape[axis], "k")
    smaller = [d for d, n in enumerate(indices.shape) if d != axis and n < x.shape[d]]

    def place(i: Index, p: Expr) -> tuple[Expr, ...]:
        """Updates may be smaller than x in the other dimensions; no read may leave them."""
        inner = [minimum(j, indices.shape[d] - 1) if d in smaller else j for d, j in enumerate(i)]
        return tuple(p if d == axis else j for d, j in enumerate(inner))

    def hit(i: Index) -> Expr:
        covered = [lt(i[d], indices.shape[d]) for d in smaller]
        return all_of(*covered, eq(wrapped(indices[place(i, k)], x.shape[axis]), i[axis]))

    reduction = choice(attributes, "reduction", ("none", *_SCATTERS), "none")
    return _scattered(x, hit, lambda i, p: updates[place(i, p)], k, reduction, "scatter_elements")


def _scatter_nd(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """x with slices updates[b] put at x[indices[b]], or combined with what is there."""
    x, indices, updates = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    depth, lead = indices.shape[-1], indices.shape[:-1]
    k = reduce_axis(prod(lead), "k")

    def row(p: Expr) -> list[Expr]:
        return unflat(p, lead) if lead else []

    def hit(i: Index) -> Expr:
        return all_of(*(eq(wrapped(indices[(*row(k), d)], x.shape[d]), i[d]) for d in range(depth)))

    reduction = choice(attributes, "reduction", ("none", *_SCATTERS), "none")
    return _scattered(x, hit, lambda i, p: updates[(*row(p), *i[depth:])], k, reduction, "scatter_nd")


def _scatter_bounds(shapes: Shapes, attributes: Attributes) -> list[IndexBound]:
    return _nd_bounds(shapes, {"batch_dims": 0})


def _one_hot(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """values[1] where the new dimension `axis` equals the index, else values[0]; negative indices wrap."""
    indices, values, depth = need(inputs, 0), need(inputs, 1), integer(attributes, "depth")
    axis = normal_axis(integer(attributes, "axis", -1), len(indices.shape) + 1)
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])

    def element(*i: Expr) -> Expr:
        found = cast(indices[(*i[:axis], *i[axis + 1 :])], "int64")
        hot = eq(select(lt(found, 0), found + depth, found), i[axis])
        return select(hot, values[1], values[0])

    return [compute(shape, element, "one_hot")]


def _top_k(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """(values, indices) of the `k` largest (or smallest) along `axis`, in order; the lower index first among equals.

    By rank: an element stands at the position that counts how many come before it. n^2 comparisons, no sorting.
    """
    x, count, largest = need(inputs, 0), integer(attributes, "k"), flag(attributes, "largest", True)
    axis = normal_axis(integer(attributes, "axis", -1), len(x.shape))
    extent = x.shape[axis]
    if not 0 <= count <= extent:
        raise ValueError(f"the {count} largest of {extent}")
    j, m = reduce_axis(extent, "j"), reduce_axis(extent, "m")

    def rank(*i: Expr) -> Reduction:
        mine, other = x[i], x[replaced(i, axis, j)]
        ahead = lt(mine, other) if largest else lt(other, mine)
        return dsl.sum(cast(any_of(ahead, all_of(eq(mine, other), lt(j, i[axis]))), "int64"), j)

    ranks = compute(x.shape, rank, "top_k_rank")
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])

    def index(*i: Expr) -> Reduction:
        return dsl.max(select(eq(ranks[replaced(i, axis, m)], i[axis]), m, 0), m)

    indices = compute(shape, index, "top_k_index")
    return [compute(shape, lambda *i: x[replaced(i, axis, indices[i])], "top_k"), indices]


OPERATORS = (
    Operator("gather",           _gather, _axis_bounds),
    Operator("gather_elements",  _gather_elements, _axis_bounds),
    Operator("gather_nd",        _gather_nd, _nd_bounds),
    Operator("scatter_elements", _scatter_elements, _axis_bounds),
    Operator("scatter_nd",       _scatter_nd, _scatter_bounds),
    Operator("one_hot",          _one_hot),
    Operator("top_k",            _top_k),
)  # fmt: skip
