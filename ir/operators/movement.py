"""Operators that move elements: shapes, slices, padding, blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ir.compute import identity
from ir.dsl import Handle, call, compute, minimum, select
from ir.expr import Const, Expr, Op, all_of, le, lt
from ir.operators.operator import (
    Attributes,
    Inputs,
    Operator,
    at,
    broadcast,
    choice,
    clamped,
    integer,
    ints,
    is_float,
    maybe,
    need,
    normal_axis,
    real,
    replaced,
    scaled,
    shifted,
    text,
)


def _transpose(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Output dimension d is input dimension perm[d]; without `perm` the order is reversed."""
    x = need(inputs, 0)
    rank = len(x.shape)
    perm = ints(attributes, "perm", tuple(reversed(range(rank))))
    if sorted(perm) != list(range(rank)):
        raise ValueError(f"perm {perm} is no permutation of {rank} dimensions")
    source = [perm.index(d) for d in range(rank)]
    return [compute([x.shape[p] for p in perm], lambda *i: x[tuple(i[d] for d in source)], "transpose")]


def _reshape(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """The same elements in the same row-major order; `shape` has no wildcards."""
    x, shape = need(inputs, 0), ints(attributes, "shape")
    if prod(x.shape) != prod(shape):
        raise ValueError(f"reshape of {x.shape} ({prod(x.shape)} elements) to {shape} ({prod(shape)})")
    if 0 in shape:
        return [compute(shape, lambda *i: identity(0.0, x.dtype), "reshape")]
    groups = _reshape_groups(x.shape, shape)

    def element(*i: Expr) -> Expr:
        index: dict[int, Expr | int] = {d: 0 for d, n in enumerate(x.shape) if n == 1}
        for ours, theirs in groups:
            flat = _flat([i[d] for d in theirs], [shape[d] for d in theirs])
            index |= zip(ours, unflat(flat, [x.shape[d] for d in ours]), strict=True)
        return x[tuple(index[d] for d in range(len(x.shape)))]

    return [compute(shape, element, "reshape")]


def _reshape_groups(source: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """(2, 3, 4) to (6, 2, 2)  -->  [([0, 1], [0]), ([2], [1, 2])]: the shortest groups with equal products.

    Dimensions of 1 belong to no group. A group of one on both sides is a plain axis, so that adding or dropping
    ones costs no arithmetic.
    """
    left = [d for d, n in enumerate(source) if n != 1]
    right = [d for d, n in enumerate(target) if n != 1]
    groups = []
    while left:
        ours, theirs = [left.pop(0)], [right.pop(0)]
        while (a := prod(source[d] for d in ours)) != (b := prod(target[d] for d in theirs)):
            if a < b:
                ours.append(left.pop(0))
            else:
                theirs.append(right.pop(0))
        groups.append((ours, theirs))
    return groups


def _flat(index: Sequence[Expr], extents: Sequence[int]) -> Expr:
    out = index[0]
    for i, n in zip(index[1:], extents[1:], strict=True):
        out = out * n + i
    return out


def unflat(flat: Expr, extents: Sequence[int]) -> list[Expr]:
    out = []
    for d, n in enumerate(extents):
        after = prod(extents[d + 1 :])
        digit = flat if after == 1 else flat // after
        out.append(digit if d == 0 else digit % n)
    return out


def _expand(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Broadcast to `shape`, both ways as in ONNX: a 1 in `shape` keeps the extent of the input."""
    x = need(inputs, 0)
    return [compute(broadcast(x.shape, ints(attributes, "shape")), lambda *i: at(x, i), "expand")]


def _concat(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Operands one after the other along `axis`, chosen by a balanced tree of comparisons."""
    operands = [need(inputs, p) for p in range(len(inputs))]
    axis = normal_axis(integer(attributes, "axis"), len(operands[0].shape))
    for x in operands[1:]:
        if x.shape[:axis] + x.shape[axis + 1 :] != operands[0].shape[:axis] + operands[0].shape[axis + 1 :]:
            raise ValueError(f"concat of {operands[0].shape} and {x.shape} along dimension {axis}")
    offsets, total = [], 0
    for x in operands:
        offsets.append(total)
        total += x.shape[axis]
    parts = [(x, o) for x, o in zip(operands, offsets, strict=True) if x.shape[axis]] or [(operands[0], 0)]
    shape = (*operands[0].shape[:axis], total, *operands[0].shape[axis + 1 :])

    def pick(among: Sequence[tuple[Handle, int]], i: tuple[Expr, ...]) -> Expr:
        if len(among) == 1:
            x, offset = among[0]
            return x[replaced(i, axis, shifted(i[axis], -offset))]
        middle = len(among) // 2
        return select(lt(i[axis], among[middle][1]), pick(among[:middle], i), pick(among[middle:], i))

    return [compute(shape, lambda *i: pick(parts, i), "concat")]


def _slice(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """x[start + i * step] for i < size, in every dimension. `starts`, `steps`, `sizes` have one entry each."""
    x = need(inputs, 0)
    rank = len(x.shape)
    starts, sizes = ints(attributes, "starts"), ints(attributes, "sizes")
    steps = ints(attributes, "steps", (1,) * rank)
    for n, start, step, size in zip(x.shape, starts, steps, sizes, strict=True):
        last = start + (size - 1) * step
        if size and not (0 <= start < n and 0 <= last < n):
            raise ValueError(f"slice of {x.shape} from {starts} by {steps}, {sizes} elements, leaves the tensor")

    def place(i: Expr, start: int, step: int) -> Expr:
        return shifted(scaled(i, step), start) if step > 0 else start - scaled(i, -step)

    def element(*i: Expr) -> Expr:
        return x[tuple(map(place, i, starts, steps))]

    return [compute(sizes, element if 0 not in sizes else lambda *i: identity(0.0, x.dtype), "slice")]


def _pad(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """`pads`: all begins, then all ends, negative ones crop. `mode`: constant, edge, reflect, wrap.

    The constant is attribute `value`, or a run-time scalar as second input.
    """
    x, fill = need(inputs, 0), maybe(inputs, 1)
    rank = len(x.shape)
    pads, mode = ints(attributes, "pads"), choice(attributes, "mode", ("constant", *_MODES), "constant")
    if len(pads) != 2 * rank:
        raise ValueError(f"pads {pads} must have {2 * rank} entries")
    begins, ends = pads[:rank], pads[rank:]
    shape = [n + b + e for n, b, e in zip(x.shape, begins, ends, strict=True)]
    if any(n < 0 for n in shape):
        raise ValueError(f"pads {pads} crop more than there is of {x.shape}")
    if mode != "constant":
        places = [_MODES[mode](n, b, e) for n, b, e in zip(x.shape, begins, ends, strict=True)]
        return [compute(shape, lambda *i: x[tuple(p(j) for p, j in zip(places, i, strict=True))], "pad")]

    def element(*i: Expr) -> Expr:
        inside = [le(b, j) for b, j in zip(begins, i, strict=True) if b > 0]
        inside += [lt(j, b + n) for b, e, j, n in zip(begins, ends, i, x.shape, strict=True) if e > 0]
        value = x[tuple(shifted(j, -b) for b, j in zip(begins, i, strict=True))]
        if not inside:
            return value
        other = _constant(real(attributes, "value", 0.0), x.dtype) if fill is None else fill[(0,) * len(fill.shape)]
        return Op("select", (all_of(*inside), value, other))

    return [compute(shape, element, "pad")]


def _constant(value: float, dtype: str) -> Const:
    return Const(value, dtype) if is_float(dtype) else Const(bool(value) if dtype == "bool" else int(value), dtype)


@dataclass(frozen=True, slots=True)
class Border:
    """Where output position i of a padded dimension comes from: extent, cells before, cells after."""

    extent: int
    begin: int
    end: int

    def edge(self, i: Expr) -> Expr:
        return clamped(shifted(i, -self.begin), 0, self.extent - 1) if self.begin > 0 or self.end > 0 else self.crop(i)

    def wrap(self, i: Expr) -> Expr:
        """The offset is lifted by whole periods: div and mod take no negative numbers."""
        if self.begin <= 0 and self.end <= 0:
            return self.crop(i)
        return shifted(i, -self.begin % self.extent) % self.extent

    def reflect(self, i: Expr) -> Expr:
        """... 2 1 | 0 1 2 | 1 0 ...: the edge is not repeated; the period is 2 (n - 1)."""
        if self.extent == 1:
            return i * 0
        if self.begin <= 0 and self.end <= 0:
            return self.crop(i)
        period = 2 * (self.extent - 1)
        if self.begin < self.extent and self.end < self.extent:
            inner = shifted(i, -self.begin)
            folded = call("abs", inner) if self.begin > 0 else inner
            return minimum(folded, period - folded) if self.end > 0 else folded
        phase = shifted(i, -self.begin % period) % period
        return minimum(phase, period - phase)

    def crop(self, i: Expr) -> Expr:
        return shifted(i, -self.begin)


_MODES: Mapping[str, Callable[[int, int, int], Callable[[Expr], Expr]]] = {
    "edge":    lambda n, b, e: Border(n, b, e).edge,
    "reflect": lambda n, b, e: Border(n, b, e).reflect,
    "wrap":    lambda n, b, e: Border(n, b, e).wrap,
}  # fmt: skip


def _tile(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    x, repeats = need(inputs, 0), ints(attributes, "repeats")
    if len(repeats) != len(x.shape):
        raise ValueError(f"repeats {repeats} for a tensor of {len(x.shape)} dimensions")
    shape = [n * r for n, r in zip(x.shape, repeats, strict=True)]
    if 0 in shape:
        return [compute(shape, lambda *i: identity(0.0, x.dtype), "tile")]

    def place(i: Expr, extent: int, repeat: int) -> Expr | int:
        return i if repeat == 1 else 0 if extent == 1 else i % extent

    return [compute(shape, lambda *i: x[tuple(map(place, i, x.shape, repeats))], "tile")]


def _depth_to_space(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Channels become blocks. `mode` DCR: channel = (row, column, depth); CRD: (depth, row, column), slowest first."""
    x, block = need(inputs, 0), integer(attributes, "block")
    order = choice(attributes, "mode", ("DCR", "CRD"), "DCR")
    c, h, w = _image(x, attributes)
    if x.shape[c] % (block * block):
        raise ValueError(f"{x.shape[c]} channels do not make blocks of {block} x {block}")
    depth = x.shape[c] // (block * block)
    shape = tuple({c: depth, h: x.shape[h] * block, w: x.shape[w] * block}.get(d, n) for d, n in enumerate(x.shape))

    def element(*i: Expr) -> Expr:
        row, column = i[h] % block, i[w] % block
        cell = row * block + column
        channel = cell * depth + i[c] if order == "DCR" else i[c] * (block * block) + cell
        return x[tuple({c: channel, h: i[h] // block, w: i[w] // block}.get(d, p) for d, p in enumerate(i))]

    return [compute(shape, element, "depth_to_space")]


def _space_to_depth(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Blocks become channels: the inverse of `depth_to_space` of the same `mode`."""
    x, block = need(inputs, 0), integer(attributes, "block")
    order = choice(attributes, "mode", ("DCR", "CRD"), "DCR")
    c, h, w = _image(x, attributes)
    if x.shape[h] % block or x.shape[w] % block:
        raise ValueError(f"an image of {x.shape[h]} x {x.shape[w]} does not divide into blocks of {block}")
    depth = x.shape[c]
    new = {c: depth * block * block, h: x.shape[h] // block, w: x.shape[w] // block}

    def element(*i: Expr) -> Expr:
        area = block * block
        cell, channel = (i[c] // depth, i[c] % depth) if order == "DCR" else (i[c] % area, i[c] // area)
        place = {c: channel, h: i[h] * block + cell // block, w: i[w] * block + cell % block}
        return x[tuple(place.get(d, p) for d, p in enumerate(i))]

    return [compute([new.get(d, n) for d, n in enumerate(x.shape)], element, "space_to_depth")]


def _image(x: Handle, attributes: Attributes) -> tuple[int, int, int]:
    """Positions of channel, row and column."""
    layout = text(attributes, "layout", "NCHW")
    if len(x.shape) != 4 or sorted(layout) != sorted("NCHW"):
        raise ValueError(f"layout {layout} does not describe an image of shape {x.shape}")
    return layout.index("C"), layout.index("H"), layout.index("W")


OPERATORS = (
    Operator("transpose",      _transpose),
    Operator("reshape",        _reshape),
    Operator("expand",         _expand),
    Operator("concat",         _concat),
    Operator("slice",          _slice),
    Operator("pad",            _pad),
    Operator("tile",           _tile),
    Operator("depth_to_space", _depth_to_space),
    Operator("space_to_depth", _space_to_depth),
)  # fmt: skip
