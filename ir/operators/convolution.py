"""Convolutions over any number of spatial dimensions, channels first or last.

`layout` names the dimensions of the data in order ("NCHW", "NHWC", "NCW", "NDHWC", ...). Weights are OI + spatial
(conv) or IO + spatial (conv_transpose) for channels first, spatial + IO (conv) or spatial + OI (conv_transpose) for
channels last. `pads` holds all begins, then all ends, as in ONNX. Padding is a stage of its own, "pad", so that a
schedule can place it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir import dsl
from ir.compute import identity
from ir.dsl import Handle, Reduction, cast, compute, reduce_axis, select
from ir.expr import Axis, Const, Expr, Op, all_of, eq, le, lt
from ir.operators.operator import (
    Attributes,
    Inputs,
    Operator,
    integer,
    ints,
    maybe,
    need,
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
        if room < 0:
            raise ValueError(
                f"a window over {self.reach(d)} cells does not fit into {room + self.reach(d)}, padding included"
            )
        if not ceil_mode:
            return room // stride + 1
        out = -(-room // stride) + 1
        # A window that starts in the end padding is dropped (ONNX pool operators, and PyTorch).
        return out - 1 if (out - 1) * stride >= size + self.begins[d] else out

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


def taps_of(window: Window, layout: Layout) -> list[Axis | int]:
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
    taps, each = taps_of(window, layout), outs // groups
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
    taps = taps_of(window, layout)
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
    Operator("capsule_conv",   _capsule_conv),
)  # fmt: skip
