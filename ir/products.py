"""Sums of products by matrix multiplication: what a stage is when it is a contraction of two affine reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ir.compute import SUM, Compute
from ir.expr import Axis, Cast, Const, Expr, Op, Read, substitute, walk

Array = np.ndarray

OPERAND_POINTS = 1 << 25  # elements of an expanded operand (im2col): 128 MB of float32


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
        return np.arange(r.start, r.stop, dtype=np.int64).reshape([len(r) if a == axis else 1 for a in self.ranges])


def blocks(
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


def spread(part: Array, used: Sequence[Axis], axes: Sequence[Axis]) -> Array:
    """Dimension d of `part` runs over used[d]  -->  one dimension for each of `axes`, 1 where not used."""
    order = [used.index(a) for a in axes if a in used]
    extents = iter(part.shape[d] for d in order)
    return part.transpose(order).reshape([next(extents) if a in used else 1 for a in axes])


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


def as_product(stage: Compute, tensors: Mapping[str, Array]) -> Product | None:
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


def contract(product: Product, operands: Sequence[Array], dtype: str) -> Array:
    """The product by matrix multiplication, one block of the space at a time."""
    axes = (*product.space, *product.reduce)
    used = [[axes.index(a) for a in f.axes] for f in product.factors]
    out = np.empty([a.extent for a in product.space], dtype)
    for block in blocks(axes, lambda n: max(prod(n[i] for i in u) for u in used), OPERAND_POINTS, len(product.space)):
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
    return spread(np.matmul(a, b).reshape(shape), [*batch, *rows, *columns], space)


def _sum_alone(array: Array, axes: list[Axis], kept: set[Axis]) -> tuple[Array, list[Axis]]:
    """Axes that only this operand has are summed before the product."""
    alone = tuple(i for i, a in enumerate(axes) if a not in kept)
    return (array.sum(axis=alone, dtype=array.dtype) if alone else array), [a for a in axes if a in kept]
