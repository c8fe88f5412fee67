"""Operators that move elements or compute shapes, from ONNX's terms to ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod

import numpy as np

from ir.frontends.onnx.builder import KNOWN_BYTES, Builder, Call
from ir.frontends.onnx.reader import dtype_name
from ir.operators.operator import normal_axes, normal_axis

Handler = Callable[[Builder, Call], Sequence[str]]


# --- helpers that other tables use ------------------------------------------------------------------------------


def reshaped(b: Builder, x: str, shape: Sequence[int]) -> str:
    return x if b.shape(x) == tuple(shape) else b.emit("reshape", x, shape=tuple(shape))


def converted(b: Builder, x: str, dtype: str) -> str:
    return x if b.dtype(x) == dtype else b.emit("cast", x, to=dtype)


def sliced(b: Builder, x: str, axis: int, start: int, size: int) -> str:
    """x[start : start + size] along one axis."""
    shape = b.shape(x)
    if (start, size) == (0, shape[axis]):
        return x
    starts = tuple(start if d == axis else 0 for d in range(len(shape)))
    sizes = tuple(size if d == axis else n for d, n in enumerate(shape))
    return b.emit("slice", x, starts=starts, steps=(1,) * len(shape), sizes=sizes)


def picked(b: Builder, x: str, axis: int, position: int) -> str:
    """x[position] along one axis, which disappears."""
    shape = b.shape(x)
    return reshaped(b, sliced(b, x, axis, position, 1), shape[:axis] + shape[axis + 1 :])


def axes_of(b: Builder, n: Call, position: int = 1, name: str = "axes") -> tuple[int, ...] | None:
    """Axes as an input (newer opsets) or as an attribute; None if neither is there."""
    if n.has(position):
        return b.integers(n.input(position), name)
    return n.ints(name) if name in n.attributes else None


# --- shapes as values -------------------------------------------------------------------------------------------


def _shape(b: Builder, n: Call) -> Sequence[str]:
    shape = b.shape(n.input(0))
    start, end = n.integer("start", 0), n.integer("end", len(shape))
    return [b.constant(np.asarray(shape[slice(start, end)], np.int64))]


def _size(b: Builder, n: Call) -> Sequence[str]:
    return [b.constant(np.asarray(prod(b.shape(n.input(0))), np.int64))]


def _constant(b: Builder, n: Call) -> Sequence[str]:
    scalars = {"value_float": np.float32, "value_int": np.int64, "value_floats": np.float32, "value_ints": np.int64}
    for name, value in n.attributes.items():
        if name == "value" and isinstance(value, np.ndarray):
            return [b.constant(value)]
        if name in scalars:
            return [b.constant(np.asarray(value, scalars[name]))]
    raise ValueError("its value is a string or sparse, which is not supported")


def _constant_of_shape(b: Builder, n: Call) -> Sequence[str]:
    value = n.attributes.get("value", np.zeros(1, np.float32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ValueError("its value must be one element")
    return [b.filled(b.integers(n.input(0), "the shape"), value)]


def _range(b: Builder, n: Call) -> Sequence[str]:
    start, limit, delta = (b.value(n.input(p), w).reshape(()) for p, w in enumerate(("start", "limit", "delta")))
    if not delta:
        raise ValueError("its step is 0")
    count = max(ceil((limit.item() - start.item()) / delta.item()), 0)
    if count * start.itemsize > KNOWN_BYTES:
        raise ValueError(f"{count} elements are too many")
    return [b.constant((start + np.arange(count).astype(start.dtype) * delta).astype(start.dtype))]


def _eye_like(b: Builder, n: Call) -> Sequence[str]:
    rows, columns = b.shape(n.input(0))
    to = n.integer("dtype", 0)
    dtype = dtype_name(to, n.title) if to else b.dtype(n.input(0))
    if rows * columns * 8 > KNOWN_BYTES:
        raise ValueError(f"{rows} x {columns} elements are too many")
    return [b.constant(np.eye(rows, columns, n.integer("k", 0)).astype(dtype))]


def _non_zero(b: Builder, n: Call) -> Sequence[str]:
    return [b.constant(np.asarray(np.nonzero(b.value(n.input(0), "the data"))).astype(np.int64))]


def _identity(b: Builder, n: Call) -> Sequence[str]:
    return [n.input(0)]


def _dropout(b: Builder, n: Call) -> Sequence[str]:
    """Inference: the identity. The mask is all true (opset 10 leaves it open)."""
    if n.has(2) and b.value(n.input(2), "training_mode").any():
        raise ValueError("it is in training mode; export the model for inference")
    mask = [b.filled(b.shape(n.input(0)), np.asarray(True))] if len(n.outputs) > 1 and n.outputs[1] else []
    return [n.input(0), *mask]


def _cast(b: Builder, n: Call) -> Sequence[str]:
    return [converted(b, n.input(0), dtype_name(n.integer("to"), n.title))]


def _cast_like(b: Builder, n: Call) -> Sequence[str]:
    return [converted(b, n.input(0), b.dtype(n.input(1)))]


# --- views ------------------------------------------------------------------------------------------------------


def _reshape(b: Builder, n: Call) -> Sequence[str]:
    """0 copies an extent (unless allowzero), -1 is what is left."""
    old = b.shape(n.input(0))
    wanted = b.integers(n.input(1), "the shape") if n.has(1) else n.ints("shape")
    zero_is_zero = n.integer("allowzero", 0)
    if any(w == 0 and d >= len(old) for d, w in enumerate(wanted)) and not zero_is_zero:
        raise ValueError(f"shape {wanted} copies a dimension that {old} does not have")
    shape = [old[d] if w == 0 and not zero_is_zero else w for d, w in enumerate(wanted)]
    if shape.count(-1) > 1 or any(w < -1 for w in shape):
        raise ValueError(f"{wanted} is no shape")
    if -1 in shape:
        rest = prod(w for w in shape if w != -1)
        if rest == 0 or prod(old) % rest:
            raise ValueError(f"{old} cannot be seen as {wanted}")
        shape[shape.index(-1)] = prod(old) // rest
    return [reshaped(b, n.input(0), shape)]


def _flatten(b: Builder, n: Call) -> Sequence[str]:
    shape, axis = b.shape(n.input(0)), n.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise ValueError(f"axis {axis} is outside a tensor of {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    return [reshaped(b, n.input(0), (prod(shape[:axis]), prod(shape[axis:])))]


def _squeeze(b: Builder, n: Call) -> Sequence[str]:
    shape = b.shape(n.input(0))
    given = axes_of(b, n)
    axes = normal_axes(given, len(shape)) if given is not None else [d for d, e in enumerate(shape) if e == 1]
    if any(shape[a] != 1 for a in axes):
        raise ValueError(f"dimensions {tuple(axes)} of {shape} are not all 1")
    return [reshaped(b, n.input(0), [e for d, e in enumerate(shape) if d not in axes])]


def _unsqueeze(b: Builder, n: Call) -> Sequence[str]:
    shape, given = b.shape(n.input(0)), axes_of(b, n) or ()
    axes = normal_axes(given, len(shape) + len(given))
    rest = iter(shape)
    return [reshaped(b, n.input(0), [1 if d in axes else next(rest) for d in range(len(shape) + len(axes))])]


def _transpose(b: Builder, n: Call) -> Sequence[str]:
    perm = n.ints("perm", tuple(reversed(range(b.rank(n.input(0))))))
    return [n.input(0) if perm == tuple(range(len(perm))) else b.emit("transpose", n.input(0), perm=perm)]


def _expand(b: Builder, n: Call) -> Sequence[str]:
    shape = b.integers(n.input(1), "the shape")
    made = tuple(np.broadcast_shapes(b.shape(n.input(0)), shape))
    return [n.input(0) if made == b.shape(n.input(0)) else b.emit("expand", n.input(0), shape=shape)]


def _tile(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("tile", n.input(0), repeats=b.integers(n.input(1), "the repeats"))]


def _concat(b: Builder, n: Call) -> Sequence[str]:
    return [n.input(0) if len(n.inputs) == 1 else b.emit("concat", *n.inputs, axis=n.integer("axis", 1))]


def _split(b: Builder, n: Call) -> Sequence[str]:
    shape = b.shape(n.input(0))
    axis = normal_axis(n.integer("axis", 0), len(shape))
    sizes = axes_of(b, n, 1, "split") or _even(shape[axis], n.integer("num_outputs", len(n.outputs)))
    if sum(sizes) != shape[axis] or any(s < 0 for s in sizes):
        raise ValueError(f"the parts {sizes} do not make up {shape[axis]}")
    return [sliced(b, n.input(0), axis, sum(sizes[:p]), size) for p, size in enumerate(sizes)]


def _even(total: int, parts: int) -> tuple[int, ...]:
    """All of one size, but the last takes what is left."""
    each = -(-total // parts)
    return tuple(min(each, max(total - p * each, 0)) for p in range(parts))


def _slice(b: Builder, n: Call) -> Sequence[str]:
    """ONNX clamps starts and ends as Python does, so Python computes them."""
    x = n.input(0)
    shape = b.shape(x)
    starts, ends = axes_of(b, n, 1, "starts") or (), axes_of(b, n, 2, "ends") or ()
    axes = axes_of(b, n, 3, "axes") or tuple(range(len(starts)))
    steps = axes_of(b, n, 4, "steps") or (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise ValueError(f"starts {starts}, ends {ends}, axes {axes}, steps {steps} do not fit together")
    picked = [range(e) for e in shape]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        d = normal_axis(axis, len(shape))
        picked[d] = _clamped_range(shape[d], start, end, step)
    if all(r == range(e) for r, e in zip(picked, shape, strict=True)):
        return [x]
    return [
        b.emit(
            "slice",
            x,
            starts=tuple(r.start if len(r) else 0 for r in picked),
            steps=tuple(r.step if len(r) else 1 for r in picked),
            sizes=tuple(len(r) for r in picked),
        )
    ]


def _clamped_range(extent: int, start: int, end: int, step: int) -> range:
    """Like Python's slices, but an end of -1 or less counts from the back once, also for negative steps."""
    start = start + extent if start < 0 else start
    end = end + extent if end < 0 else end
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    return range(min(max(start, max(low, 0)), high), min(max(end, low), high), step)


def _pad(b: Builder, n: Call) -> Sequence[str]:
    shape = b.shape(n.input(0))
    rank = len(shape)
    pads = axes_of(b, n, 1, "pads") or (0,) * 2 * rank
    axes = [normal_axis(a, rank) for a in b.integers(n.input(3), "axes")] if n.has(3) else list(range(rank))
    if len(pads) != 2 * len(axes):
        raise ValueError(f"{len(pads)} pads for {len(axes)} axes")
    every = [0] * (2 * rank)
    for p, axis in enumerate(axes):
        every[axis], every[axis + rank] = pads[p], pads[p + len(axes)]
    mode = n.text("mode", "constant")
    if n.has(2) and n.input(2) not in b.known:
        return [b.emit("pad", n.input(0), n.input(2), pads=tuple(every), mode=mode)]
    value = b.known[n.input(2)].reshape(()).item() if n.has(2) else n.real("value", 0.0)
    return [b.emit("pad", n.input(0), pads=tuple(every), mode=mode, value=value)]


# --- gathers and the rest ---------------------------------------------------------------------------------------


def _along(operator: str, default: int = 0) -> Handler:
    return lambda b, n: [b.emit(operator, *n.inputs, axis=n.integer("axis", default))]


def _gather_nd(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("gather_nd", *n.inputs, batch_dims=n.integer("batch_dims", 0))]


def _scatter_elements(b: Builder, n: Call) -> Sequence[str]:
    how = n.text("reduction", "none")
    return [b.emit("scatter_elements", *n.inputs, axis=n.integer("axis", 0), reduction=how)]


def _scatter_nd(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("scatter_nd", *n.inputs, reduction=n.text("reduction", "none"))]


def _one_hot(b: Builder, n: Call) -> Sequence[str]:
    depth = int(b.value(n.input(1), "the depth").reshape(()))
    indices = converted(b, n.input(0), "int64")
    return [b.emit("one_hot", indices, n.input(2), depth=depth, axis=n.integer("axis", -1))]


def _top_k(b: Builder, n: Call) -> Sequence[str]:
    k = b.integers(n.input(1), "k")[0] if n.has(1) else n.integer("k")
    attributes = {"k": k, "axis": n.integer("axis", -1), "largest": bool(n.integer("largest", 1))}
    return b.emit_all("top_k", [n.input(0)], 2, attributes)


def _cumulative(operator: str) -> Handler:
    def handle(b: Builder, n: Call) -> Sequence[str]:
        axis = b.integers(n.input(1), "the axis")[0]
        flags = {name: bool(n.integer(name, 0)) for name in ("exclusive", "reverse")}
        return [b.emit(operator, n.input(0), axis=axis, **flags)]

    return handle


def _depth_to_space(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("depth_to_space", n.input(0), block=n.integer("blocksize"), mode=n.text("mode", "DCR"))]


def _space_to_depth(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("space_to_depth", n.input(0), block=n.integer("blocksize"), mode=n.text("mode", "DCR"))]


def _trilu(b: Builder, n: Call) -> Sequence[str]:
    k = b.integers(n.input(1), "k")[0] if n.has(1) else 0
    return [b.emit("trilu", n.input(0), k=k, upper=bool(n.integer("upper", 1)))]


def _reverse_sequence(b: Builder, n: Call) -> Sequence[str]:
    """A gather with a table, for the lengths are known."""
    x = n.input(0)
    time, batch = n.integer("time_axis", 0), n.integer("batch_axis", 1)
    lengths = b.integers(n.input(1), "sequence_lens")
    steps = np.arange(b.shape(x)[time])
    table = np.stack([np.where(steps < m, m - 1 - steps, steps) for m in lengths], axis=1 if time == 0 else 0)
    table = table.reshape([*table.shape, *[1] * (b.rank(x) - 2)])
    if batch > 1 or time > 1:
        raise ValueError(f"time axis {time} and batch axis {batch} must be 0 and 1")
    indices = b.emit("expand", b.constant(table.astype(np.int64)), shape=b.shape(x))
    return [b.emit("gather_elements", x, indices, axis=time)]


HANDLERS: Mapping[str, Handler] = {
    "Shape": _shape,
    "Size": _size,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _eye_like,
    "NonZero": _non_zero,
    "Identity": _identity,
    "Dropout": _dropout,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Gather": _along("gather"),
    "GatherElements": _along("gather_elements"),
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "OneHot": _one_hot,
    "TopK": _top_k,
    "CumSum": _cumulative("cumsum"),
    "CumProd": _cumulative("cumprod"),
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "ReverseSequence": _reverse_sequence,
}
