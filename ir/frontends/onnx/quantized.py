"""Quantised operators as integer arithmetic: products in int32 of what is left after the zero point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.frontends.onnx.builder import Builder, Call
from ir.frontends.onnx.layers import conv_attributes
from ir.frontends.onnx.reader import dtype_name
from ir.frontends.onnx.shapes import Handler, converted, reshaped
from ir.graph import Attribute


def _quantize(b: Builder, n: Call) -> Sequence[str]:
    to = n.integer("output_dtype", 0)
    dtype = dtype_name(to, n.title) if to else "uint8"
    attributes: dict[str, Attribute] = {
        "axis": n.integer("axis", 1), "block_size": n.integer("block_size", 0), "to": dtype,
    }  # fmt: skip
    return [b.emit("quantize", *n.inputs, **attributes)]


def _dequantize(b: Builder, n: Call) -> Sequence[str]:
    attributes = {"axis": n.integer("axis", 1), "block_size": n.integer("block_size", 0)}
    out = b.emit("dequantize", *n.inputs, **attributes)
    to = n.integer("output_dtype", 0)
    return [converted(b, out, dtype_name(to, n.title)) if to else out]


def _dynamic_quantize(b: Builder, n: Call) -> Sequence[str]:
    """uint8 over [min(x, 0), max(x, 0)]; the zero point is rounded to even and saturated (ONNX)."""
    x = n.input(0)
    axes, zero = tuple(range(b.rank(x))), b.scalar(0, "float32")
    low = b.emit("min", b.emit("reduce_min", x, axes=axes, keepdims=False), zero)
    high = b.emit("max", b.emit("reduce_max", x, axes=axes, keepdims=False), zero)
    scale = b.emit("div", b.emit("sub", high, low), b.scalar(255, "float32"))
    point = b.emit("clip", b.emit("round", b.emit("div", b.emit("neg", low), scale)), low=0.0, high=255.0)
    zero_point = b.emit("cast", point, to="uint8")
    return [b.emit("quantize", x, scale, zero_point), scale, zero_point]


def centred(b: Builder, x: str, zero_point: str, axis: int = 0) -> str:
    """int32(x) - int32(zero point); a zero point with one entry an index belongs to dimension `axis`."""
    out = converted(b, x, "int32")
    if not zero_point:
        return out
    if zero_point in b.known and not b.known[zero_point].any():
        return out
    point = converted(b, zero_point, "int32")
    if b.rank(point) == 1 and b.shape(point) != (1,):
        shape = [b.shape(point)[0] if d == axis % b.rank(x) else 1 for d in range(b.rank(x))]
        point = reshaped(b, point, shape)
    return b.emit("sub", out, point)


def _matmul_integer(b: Builder, n: Call) -> Sequence[str]:
    left = centred(b, n.input(0), n.input(2), -2)
    return [b.emit("matmul", left, centred(b, n.input(1), n.input(3), -1))]


def _conv_integer(b: Builder, n: Call) -> Sequence[str]:
    """Padding with 0 after the subtraction is padding with the zero point, as the standard asks."""
    x, w = centred(b, n.input(0), n.input(2)), centred(b, n.input(1), n.input(3), 0)
    return [b.emit("conv", x, w, **conv_attributes(b, n, n.input(1)))]


def _rescaled(b: Builder, total: str, scales: Sequence[str], out: tuple[str, str], axis: int) -> str:
    """quantize(total * a_scale * b_scale, y_scale, y_zero_point) with scales by index of `axis` where they are lists."""
    value = converted(b, total, b.dtype(scales[0]))
    for scale in scales:
        value = b.emit("mul", value, _aligned(b, scale, total, axis))
    return b.emit("quantize", value, out[0], out[1], axis=axis)


def _aligned(b: Builder, parameter: str, x: str, axis: int) -> str:
    if b.rank(parameter) != 1 or b.shape(parameter) == (1,):
        return parameter
    position = axis % b.rank(x)
    return reshaped(b, parameter, [b.shape(parameter)[0] if d == position else 1 for d in range(b.rank(x))])


def _qlinear_matmul(b: Builder, n: Call) -> Sequence[str]:
    a, a_scale, a_zero, w, w_scale, w_zero, y_scale, y_zero = n.inputs
    total = b.emit("matmul", centred(b, a, a_zero, -2), centred(b, w, w_zero, -1))
    value = b.emit("mul", converted(b, total, b.dtype(a_scale)), _aligned(b, a_scale, total, -2))
    value = b.emit("mul", value, _aligned(b, w_scale, total, -1))
    return [b.emit("quantize", value, y_scale, y_zero, axis=-2)]


def _qlinear_conv(b: Builder, n: Call) -> Sequence[str]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = n.inputs[:8]
    product = [centred(b, x, x_zero), centred(b, w, w_zero, 0)]
    bias = [n.input(8)] if n.has(8) else []
    total = b.emit("conv", *product, *bias, **conv_attributes(b, n, w))
    return [_rescaled(b, total, [x_scale, w_scale], (y_scale, y_zero), 1)]


HANDLERS: Mapping[str, Handler] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}
