"""Convolutions and pools over any number of spatial dimensions, channels first or last.

`layout` names the dimensions of the data in order ("NCHW", "NHWC", "NCW", "NDHWC", ...). Weights are OI + spatial
(conv) or IO + spatial (conv_transpose) for channels first, spatial + IO (conv) or spatial + OI (conv_transpose) for
channels last. `pads` holds all begins, then all ends, as in ONNX. Padding is a stage of its own, "pad", so that a
schedule can place it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

from ir import dsl
from ir.compute import identity
from ir.dsl import Handle, Reduction, cast, compute, maximum, minimum, reduce_axis, select
from ir.expr import Axis, Const, Expr, Op, all_of, eq, le, lt
from ir.operators.operator import (
    Attributes,
    Inputs,
    Operator,
    flag,
    integer,
    ints,
    maybe,
    need,
    real,
    scaled,
    shifted,
    text,
    wide,
)

SPATIAL_LETTERS = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where batch, channel and space are. Letters become axis names: h, w, kh, kw."""

    letters: str

    @property
    def channel(self) -> int:
        return self.letters.index("C")

    @property
    def first(self) -> bool:
        return self.channel == 1

    @property
    def spatial(self) -> tuple[int, ...]:
        return tuple(d for d in range(1, len(self.letters)) if d != self.channel)

    @property
    def axes(self) -> list[str]:
        return [letter.lower() for letter in self.letters]

    @property
    def names(self) -> list[str]:
        return [self.axes[d] for d in self.spatial]

    def join(self, batch: object, channel: object, space: Sequence[object]) -> tuple[object, ...]:
        return (batch, channel, *space) if self.first else (batch, *space, channel)

    def pick(self, index: Sequence[Expr]) -> tuple[Expr, Expr, list[Expr]]:
        """(batch, channel, space) of an index in this layout."""
        return index[0], index[self.channel], [index[d] for d in self.spatial]


def layout_of(x: Handle, attributes: Attributes) -> Layout:
    """The `layout` attribute; channels first if there is none."""
    rank = len(x.shape) - 2
    default = "NC" + SPATIAL_LETTERS.get(rank, "".join(chr(ord("a") + d) for d in range(rank)))
    letters = text(attributes, "layout", default)
    if rank < 0 or len(letters) != len(x.shape) or letters[0] != "N" or letters.find("C") not in (1, len(letters) - 1):
        raise ValueError(f"layout {letters} does not describe a tensor of shape {x.shape}")
    return Layout(letters)


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window, one entry a spatial dimension."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    def reach(self, d: int) -> int:
        """Extent of the dilated kernel."""
        return (self.kernel[d] - 1) * self.dilations[d] + 1

    def outputs(self, space: Sequence[int], ceil_mode: bool = False) -> tuple[int, ...]:
        return tuple(self._outputs(d, n, ceil_mode) for d, n in enumerate(space))

    def _outputs(self, d: int, size: int, ceil_mode: bool) -> int:
        room, stride = size + self.begins[d] + self.ends[d] - self.reach(d), self.strides[d]
        if not ceil_mode:
            return max(room // stride + 1, 0)
        out = max(-(-room // stride) + 1, 0)
        # A window that starts in the end padding is dropped (ONNX pool operators, and PyTorch).
        return out - 1 if out and (out - 1) * stride >= size + self.begins[d] else out

    def position(self, d: int, out: Expr, k: Expr | int) -> Expr:
        """Where tap k of window `out` stands in the padded input."""
        base = scaled(out, self.strides[d])
        return shifted(base, k) if isinstance(k, int) else base + scaled(k, self.dilations[d])


def window_of(attributes: Attributes, kernel: tuple[int, ...]) -> Window:
    n = len(kernel)
    pads = ints(attributes, "pads", (0,) * 2 * n)
    window = Window(
        kernel, ints(attributes, "strides", (1,) * n), ints(attributes, "dilations", (1,) * n), pads[:n], pads[n:]
    )
    for what, values in (("strides", window.strides), ("dilations", window.dilations), ("kernel", kernel)):
        if len(values) != n or any(v < 1 for v in values):
            raise ValueError(f"{what} {values} must be {n} positive integers")
    if len(pads) != 2 * n or any(p < 0 for p in pads):
        raise ValueError(f"pads {pads} must be {2 * n} integers, 0 or more")
    return window


def padded(
    x: Handle,
    spatial: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    names: Sequence[str],
    value: Const | None = None,
) -> Handle:
    """x surrounded by `value` (0) in the dimensions `spatial`; x itself where there is nothing to add."""
    if not any(begins) and not any(ends):
        return x
    fill = value or identity(0.0, x.dtype)
    before, after = dict(zip(spatial, begins, strict=True)), dict(zip(spatial, ends, strict=True))
    shape = [n + before.get(d, 0) + after.get(d, 0) for d, n in enumerate(x.shape)]

    def element(*i: Expr) -> Expr:
        inside = [le(before[d], i[d]) for d in spatial if before[d]]
        inside += [lt(i[d], before[d] + x.shape[d]) for d in spatial if after[d]]
        index = tuple(shifted(p, -before.get(d, 0)) for d, p in enumerate(i))
        return Op("select", (all_of(*inside), x[index], fill))

    return compute(shape, element, "pad", names)


def _taps(window: Window, layout: Layout) -> list[Axis | int]:
    """A reduce axis for each kernel dimension; a kernel of 1 needs none, which leaves a plain matrix product."""
    named = zip(window.kernel, layout.names, strict=True)
    return [0 if n == 1 else reduce_axis(n, f"k{letter}") for n, letter in named]


def _conv(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Cross-correlation. Inputs: data, weight, bias (optional)."""
    x, w, bias = need(inputs, 0), need(inputs, 1), maybe(inputs, 2)
    layout, groups = layout_of(x, attributes), integer(attributes, "groups", 1)
    kernel = w.shape[2:] if layout.first else w.shape[:-2]
    if len(w.shape) != len(x.shape):
        raise ValueError(f"conv of {x.shape} with a weight of {w.shape}: the ranks differ")
    outs, ins = w.shape[:2] if layout.first else w.shape[:-3:-1]
    if x.shape[layout.channel] != ins * groups or outs % groups:
        raise ValueError(
            f"conv of {x.shape[layout.channel]} channels in {groups} groups with a weight of {ins} -> {outs} channels"
        )
    window = window_of(attributes, kernel)
    space = window.outputs([x.shape[d] for d in layout.spatial])
    source = padded(x, layout.spatial, window.begins, window.ends, layout.axes)
    taps, each = _taps(window, layout), outs // groups
    over = [t for t in taps if isinstance(t, Axis)]
    ci: Axis | int = 0 if ins == 1 and over else reduce_axis(ins, "ci")
    over += [ci] if isinstance(ci, Axis) else []

    def element(*i: Expr) -> Reduction:
        n, co, at = layout.pick(i)
        place = [window.position(d, at[d], t) for d, t in enumerate(taps)]
        group = co if each == 1 else co // each
        channel = ci if groups == 1 else scaled(group, ins) if isinstance(ci, int) else scaled(group, ins) + ci
        weight = w[(co, ci, *taps) if layout.first else (*taps, ci, co)]
        return dsl.sum(wide(source[layout.join(n, channel, place)]) * wide(weight), over)  # type: ignore[index]

    shape = layout.join(x.shape[0], outs, space)
    names = layout.join("n", "co", layout.names)
    out = compute(shape, element, "conv", names)  # type: ignore[arg-type]
    return [with_bias(out, bias, layout.channel, x.dtype, "conv")]


def with_bias(out: Handle, bias: Handle | None, channel: int, dtype: str, name: str) -> Handle:
    """out + bias by channel, rounded back to `dtype`; `out` itself where there is neither."""
    if bias is None and out.dtype == dtype:
        return out

    def element(*i: Expr) -> Expr:
        return cast(out[i] if bias is None else out[i] + wide(bias[i[channel]]), dtype)

    return compute(out.shape, element, f"{name}_bias" if bias is not None else f"{name}_cast")


def _conv_transpose(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """The gradient of `conv`: y[o] sums x[p] w[k] over o = p * stride + k * dilation - begin.

    Extents: (n - 1) * stride + reach + output_padding - begin - end.
    """
    x, w, bias = need(inputs, 0), need(inputs, 1), maybe(inputs, 2)
    layout, groups = layout_of(x, attributes), integer(attributes, "groups", 1)
    kernel = w.shape[2:] if layout.first else w.shape[:-2]
    ins, each = w.shape[:2] if layout.first else w.shape[:-3:-1]
    if x.shape[layout.channel] != ins or ins % groups:
        raise ValueError(f"conv_transpose of {x.shape[layout.channel]} channels in {groups} groups, weight {w.shape}")
    window = window_of({k: v for k, v in attributes.items() if k != "pads"}, kernel)
    pads = ints(attributes, "pads", (0,) * 2 * len(kernel))
    extra = ints(attributes, "output_padding", (0,) * len(kernel))
    sizes = [x.shape[d] for d in layout.spatial]
    space = [
        (n - 1) * window.strides[d] + window.reach(d) + extra[d] - pads[d] - pads[d + len(kernel)]
        for d, n in enumerate(sizes)
    ]
    taps = _taps(window, layout)
    ci = reduce_axis(ins // groups, "ci")
    over = [*(t for t in taps if isinstance(t, Axis)), ci]

    def element(*i: Expr) -> Reduction:
        n, co, at = layout.pick(i)
        hits, place = [], []
        for d, tap in enumerate(taps):
            condition, p = _source(at[d], tap, window, d, pads[d], sizes[d])
            hits += condition
            place.append(p)
        group = co // each
        channel = ci if groups == 1 else scaled(group, ins // groups) + ci
        out_channel = co if groups == 1 else co % each
        value = wide(x[layout.join(n, channel, place)])  # type: ignore[index]
        weight = wide(w[(channel, out_channel, *taps) if layout.first else (*taps, out_channel, channel)])
        return dsl.sum(select(all_of(*hits), value * weight, 0), over)

    shape = layout.join(x.shape[0], each * groups, space)
    names = layout.join("n", "co", layout.names)
    out = compute(shape, element, "conv_transpose", names)  # type: ignore[arg-type]
    return [with_bias(out, bias, layout.channel, x.dtype, "conv_transpose")]


def _source(o: Expr, tap: Axis | int, window: Window, d: int, begin: int, size: int) -> tuple[list[Expr], Expr]:
    """(conditions, p) with p * stride + tap * dilation - begin = o.

    The numerator is lifted by a multiple of the stride, because div and mod take no negative numbers.
    """
    stride = window.strides[d]
    lift = -(-max(window.reach(d) - 1 - begin, 0) // stride)
    reached = shifted(o, begin + lift * stride)
    if isinstance(tap, Axis):
        reached = reached - scaled(tap, window.dilations[d])
    p = reached if stride == 1 else reached // stride
    whole = [] if stride == 1 else [eq(reached % stride, 0)]
    return [*whole, le(lift, p), lt(p, lift + size)], shifted(p, -lift)


# --- pools ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pool:
    """What the pools share: input padded as far as any window reaches, output shape, reduce axes."""

    x: Handle
    layout: Layout
    window: Window
    shape: tuple[int, ...]
    source: Handle
    taps: tuple[Axis | int, ...]

    @property
    def over(self) -> list[Axis]:
        return [t for t in self.taps if isinstance(t, Axis)]

    def value(self, i: Sequence[Expr]) -> Expr:
        n, c, at = self.layout.pick(i)
        place = [self.window.position(d, at[d], t) for d, t in enumerate(self.taps)]
        return self.source[self.layout.join(n, c, place)]  # type: ignore[index]

    @property
    def names(self) -> list[str]:
        return self.layout.axes


def _pool(inputs: Inputs, attributes: Attributes, fill: float) -> Pool:
    x = need(inputs, 0)
    layout = layout_of(x, attributes)
    window = window_of(attributes, ints(attributes, "kernel"))
    sizes = [x.shape[d] for d in layout.spatial]
    space = window.outputs(sizes, flag(attributes, "ceil_mode"))
    ends = [
        max((o - 1) * window.strides[d] + window.reach(d) - n - window.begins[d], 0)
        for d, (o, n) in enumerate(zip(space, sizes, strict=True))
    ]
    source = padded(x, layout.spatial, window.begins, ends, layout.axes, identity(fill, x.dtype))
    shape = layout.join(x.shape[0], x.shape[layout.channel], space)
    taps = _taps(window, layout)
    if not any(isinstance(t, Axis) for t in taps):
        taps[-1] = reduce_axis(1, f"k{layout.names[-1]}")
    return Pool(x, layout, window, shape, source, tuple(taps))  # type: ignore[arg-type]


def _max_pool(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """The maximum of each window; padding never wins. A window without a real cell is -inf."""
    pool = _pool(inputs, attributes, -inf)
    return [compute(pool.shape, lambda *i: dsl.max(pool.value(i), pool.over), "max_pool", pool.names)]


def _max_pool_index(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Flat index into data in NC + spatial order of the first maximum of each window (ONNX's `Indices`).

    `column_major` numbers the spatial dimensions with the first running fastest (storage_order 1).
    """
    pool = _pool(inputs, attributes, -inf)
    layout, window, x = pool.layout, pool.window, pool.x
    best = compute(pool.shape, lambda *i: dsl.max(pool.value(i), pool.over), "max_pool", pool.names)
    sizes = [x.shape[d] for d in layout.spatial]
    steps = [prod(sizes[d + 1 :]) for d in range(len(sizes))]
    if flag(attributes, "column_major"):
        steps = [prod(sizes[:d]) for d in range(len(sizes))]
    nowhere = prod(x.shape)

    def element(*i: Expr) -> Reduction:
        n, c, at = layout.pick(i)
        place = [shifted(window.position(d, at[d], t), -window.begins[d]) for d, t in enumerate(pool.taps)]
        flat = n * x.shape[layout.channel] + c
        flat = flat * prod(sizes)
        for p, step in zip(place, steps, strict=True):
            flat = flat + scaled(p, step)
        inside = [c for d, p in enumerate(place) for c in (le(0, p), lt(p, sizes[d]))]
        return dsl.min(select(all_of(*inside, eq(pool.value(i), best[i])), flat, nowhere), pool.over)

    return [compute(pool.shape, element, "max_pool_index", pool.names)]


def _average_pool(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """The sum of each window over the number of cells that count.

    Those are the cells of the input, and with `count_include_pad` the declared padding too; never what only
    `ceil_mode` adds.
    """
    pool = _pool(inputs, attributes, 0.0)
    total = compute(pool.shape, lambda *i: dsl.sum(wide(pool.value(i)), pool.over), "average_pool_sum", pool.names)
    include = flag(attributes, "count_include_pad")

    def element(*i: Expr) -> Expr:
        _, _, at = pool.layout.pick(i)
        counts = [_count(pool, d, at[d], include) for d in range(len(at))]
        fixed = prod(c for c in counts if isinstance(c, int))
        divisor: Expr = Const(fixed, "int64")
        for c in counts:
            if not isinstance(c, int):
                divisor = c if divisor == Const(1, "int64") else divisor * c
        return cast(total[i] / _number(divisor, total.dtype), pool.x.dtype)

    return [compute(pool.shape, element, "average_pool", pool.names)]


def _number(e: Expr, dtype: str) -> Expr:
    return Const(float(e.value), dtype) if isinstance(e, Const) else cast(e, dtype)


def _count(pool: Pool, d: int, out: Expr, include: bool) -> int | Expr:
    """How many taps of window `out` count in spatial dimension d: a number where it is the same for all windows."""
    window, size = pool.window, pool.x.shape[pool.layout.spatial[d]]
    low = 0 if include else window.begins[d]
    high = size + window.begins[d] + (window.ends[d] if include else 0)
    kernel, stride, dilation = window.kernel[d], window.strides[d], window.dilations[d]
    last = (pool.shape[pool.layout.spatial[d]] - 1) * stride
    if low == 0 and last + window.reach(d) <= high:
        return kernel
    start = scaled(out, stride)
    # Taps stand at start + t * dilation; those in [low, high) are t0 <= t < t1. Numerators are never negative.
    t1 = minimum(_ceil_div(maximum(high - start, 0), dilation), kernel)
    return t1 if low == 0 else t1 - minimum(_ceil_div(maximum(low - start, 0), dilation), kernel)


def _ceil_div(e: Expr, divisor: int) -> Expr:
    return e if divisor == 1 else (e + (divisor - 1)) // divisor


def _lp_pool(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """(sum |x|^p)^(1/p) of each window."""
    pool, p = _pool(inputs, attributes, 0.0), real(attributes, "p", 2.0)

    def term(x: Expr) -> Expr:
        return x * x if p == 2 else dsl.call("pow", dsl.call("abs", x), p)

    total = compute(pool.shape, lambda *i: dsl.sum(term(wide(pool.value(i))), pool.over), "lp_pool_sum", pool.names)

    def element(*i: Expr) -> Expr:
        root = dsl.call("sqrt", total[i]) if p == 2 else dsl.call("pow", total[i], 1 / p)
        return cast(root, pool.x.dtype)

    return [compute(pool.shape, element, "lp_pool", pool.names)]


def _capsule_conv(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Convolution of matrices (capsules): data N, H, W, I, K, CI; weight KH, KW, K, J, CI, CO; out N, H, W, I, J, CO.

    The CAP operator of Zheng et al., Ansor (OSDI 2020), section 7.1; Hinton et al., Matrix capsules (ICLR 2018).
    """
    x, w = need(inputs, 0), need(inputs, 1)
    if len(x.shape) != 6 or len(w.shape) != 6 or x.shape[4:] != (w.shape[2], w.shape[4]):
        raise ValueError(f"capsule_conv of {x.shape} with a weight of {w.shape}")
    window = window_of(attributes, w.shape[:2])
    source = padded(x, (1, 2), window.begins, window.ends, ["n", "h", "w", "i", "ck", "ci"])
    rows, columns = window.outputs(x.shape[1:3])
    kh, kw = reduce_axis(w.shape[0], "kh"), reduce_axis(w.shape[1], "kw")
    ck, ci = reduce_axis(w.shape[2], "ck"), reduce_axis(w.shape[4], "ci")

    def element(n: Expr, y: Expr, z: Expr, i: Expr, j: Expr, co: Expr) -> Reduction:
        value = source[n, window.position(0, y, kh), window.position(1, z, kw), i, ck, ci]
        return dsl.sum(wide(value) * wide(w[kh, kw, ck, j, ci, co]), [kh, kw, ck, ci])

    shape = (x.shape[0], rows, columns, x.shape[3], w.shape[3], w.shape[5])
    out = compute(shape, element, "capsule_conv", ["n", "h", "w", "i", "j", "co"])
    return [with_bias(out, None, 5, x.dtype, "capsule_conv")]


OPERATORS = (
    Operator("conv",           _conv),
    Operator("conv_transpose", _conv_transpose),
    Operator("max_pool",       _max_pool),
    Operator("max_pool_index", _max_pool_index),
    Operator("average_pool",   _average_pool),
    Operator("lp_pool",        _lp_pool),
    Operator("capsule_conv",   _capsule_conv),
)  # fmt: skip
