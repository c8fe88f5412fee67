"""Which inputs of a nest an output may overwrite: it lies in the very memory of the input, element on element.

Nothing is at stake if each element of the input is looked at for one purpose alone, to compute the output's element
in its place, and if that happens once. So what is asked of a nest is this:

1. both have as many elements, of one dtype;
2. the input is read in values that are stored to this output, at the very offset of the store, and nowhere else: not
   by another stage or output, in a condition, or copied to be packed;
3. the output is never read: no partial sums rest in it;
4. no element of the output is stored twice. An output is written completely (see `Nest`), so it is enough to count:
   as many stores as elements. Loops whose extents vary and branches are counted exactly, whatever made them.

Then the order of iterations does not matter, nor do threads: whoever overwrites an element is the only one to read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod

import numpy as np

from ir.affine import ZERO, Affine, affine, plus, scale
from ir.expr import OPERATIONS, Axis, Const, Expr, Op, Read, reads
from ir.loop import Alloc, Buffer, Fetch, For, If, Nest, Stmt, Store, expressions
from ir.same import Same

Array = np.ndarray
Depths = Mapping[Axis, int]  # of the loops around, from the outside in
Count = int | Array

MOST_POINTS = 1 << 20  # of the loops that a branch depends on: 8 MB, some milliseconds


class _Unknown(Exception):
    """How often a statement runs is not known before it runs, or too long to count."""


def inplace(nest: Nest) -> tuple[tuple[str, str], ...]:
    """(output, input): the output may be given the memory of the input, whose value is then lost. Conservative.

    An output may have several such inputs, of which it can be given one; an input has one such output at most.
    """
    uses: dict[str, list[tuple[Read, Store | None]]] = {}
    out: list[tuple[str, str]] = []
    for o in nest.outputs:
        alike = [i for i in nest.inputs if i.dtype == o.dtype and prod(i.shape) == prod(o.shape)]
        if not alike:
            continue
        uses = uses or _uses(nest.body)
        found = [i for i in alike if i.name in uses and all(_in_place(r, s, i, o) for r, s in uses[i.name])]
        if found and o.name not in uses and stores(nest, o.name) == prod(o.shape):
            out += [(o.name, i.name) for i in found]
    return tuple(out)


def _uses(body: tuple[Stmt, ...]) -> dict[str, list[tuple[Read, Store | None]]]:
    """Every read by tensor, with the store whose value it is part of."""
    out: dict[str, list[tuple[Read, Store | None]]] = {}
    for s in body:
        for r, store in _reads_of(Same(s)):
            out.setdefault(r.tensor, []).append((r, store))
    return out


@lru_cache(maxsize=1024)
def _reads_of(s: Same[Stmt]) -> tuple[tuple[Read, Store | None], ...]:
    return tuple((r, store) for e, store in expressions((s.it,)) for r in reads(e))


def _in_place(read: Read, store: Store | None, source: Buffer, target: Buffer) -> bool:
    """The read is of the element that is overwritten."""
    if store is None or store.buffer != target.name:
        return False
    here, there = _offset(read.index, source.shape), _offset(store.index, target.shape)
    return here is not None and there is not None and _same(here, there)


def _same(x: Affine, y: Affine) -> bool:
    return x.constant == y.constant and dict(x.terms) == dict(y.terms)


def _offset(index: tuple[Expr, ...], shape: tuple[int, ...]) -> Affine | None:
    """Elements from the start, row-major; None where that is not linear."""
    at: Affine | None = ZERO
    for d, i in enumerate(index):
        at = plus(at, scale(affine(i), prod(shape[d + 1 :])))
    return at


# --- counting


def stores(nest: Nest, buffer: str) -> int | None:
    """How many elements are stored to `buffer` in one run, the same element as often as it is; None when unknown."""
    try:
        return sum(_stores(Same(s), buffer) for s in nest.body)
    except _Unknown:
        return None


@lru_cache(maxsize=1024)
def _stores(s: Same[Stmt], buffer: str) -> int:
    return int(_count((s.it,), buffer, {}))


def _count(body: tuple[Stmt, ...], buffer: str, depths: Depths) -> Count:
    """Stores of one run of a block, as an array over the loops around it that the number depends on.

    The loop at depth d is dimension -1 - d: arrays of different depths broadcast, and the innermost loop comes first.
    """
    out: Count = 0
    for s in body:
        match s:
            case Store():
                out = out + (s.buffer == buffer)
            case If(condition, then, orelse):
                sides = _count(then, buffer, depths), _count(orelse, buffer, depths)
                if not all(isinstance(n, int) and n == 0 for n in sides):
                    out = out + np.where(*_together(_value(condition, depths), *sides))
            case For():
                out = out + _loop(s, buffer, depths)
            case Alloc() | Fetch():
                pass
    return out


def _loop(s: For, buffer: str, depths: Depths) -> Count:
    depth = len(depths)
    each = _count(s.body, buffer, {**depths, s.var: depth})
    if isinstance(each, int) and each == 0:
        return 0
    trips = _value(s.extent, depths)
    if isinstance(each, int) or each.ndim <= depth:
        return each * trips
    return np.asarray(np.where(*_together(_grid(s.var, depth) < trips, each, 0)).sum(axis=0))


def _grid(var: Axis, depth: int) -> Array:
    if var.extent > MOST_POINTS:
        raise _Unknown
    return np.arange(var.extent).reshape(-1, *[1] * depth)


def _together(*arrays: Count) -> tuple[Count, ...]:
    """The same, if what they broadcast to is not too large."""
    if prod(np.broadcast_shapes(*(a.shape for a in arrays if not isinstance(a, int)))) > MOST_POINTS:
        raise _Unknown
    return arrays


def _value(e: Expr, depths: Depths) -> Count:
    """An extent or a condition over the loops that it mentions."""
    match e:
        case Const(int() as value, _):
            return value
        case Axis():
            return _grid(e, depths[e])
        case Op(name, args):
            return np.asarray(OPERATIONS[name].numpy(*_together(*(_value(a, depths) for a in args))))
        case _:
            raise _Unknown
