"""Arithmetic, reductions, convolutions, normalisations, from ONNX's terms to ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import prod

import numpy as np

from ir.frontends.onnx.builder import Builder, Call
from ir.frontends.onnx.shapes import Handler, axes_of, converted, reshaped
from ir.graph import Attribute
from ir.operators.operator import normal_axis

# --- element by element -----------------------------------------------------------------------------------------

UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan",
    "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp", "Floor": "floor",
    "HardSwish": "hard_swish", "IsNaN": "isnan", "Log": "log", "Mish": "mish", "Neg": "neg", "Not": "not",
    "Reciprocal": "reciprocal", "Relu": "relu", "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign",
    "Sin": "sin", "Sinh": "sinh", "Softplus": "softplus", "Softsign": "softsign", "Sqrt": "sqrt", "Tan": "tan",
    "Tanh": "tanh",
}  # fmt: skip

# kind -> operator and the defaults of its attributes (ONNX Operators.md)
PARAMETRIC: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "LeakyRelu":       ("leaky_relu",       {"alpha": 0.01}),
    "Elu":             ("elu",              {"alpha": 1.0}),
    "Selu":            ("selu",             {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "Celu":            ("celu",             {"alpha": 1.0}),
    "HardSigmoid":     ("hard_sigmoid",     {"alpha": 0.2, "beta": 0.5}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
    "Shrink":          ("shrink",           {"bias": 0.0, "lambd": 0.5}),
    "Swish":           ("swish",            {"alpha": 1.0}),
}  # fmt: skip

BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Equal": "eq", "Greater": "gt", "Less": "lt",
    "GreaterOrEqual": "ge", "LessOrEqual": "le", "And": "and", "Or": "or", "Xor": "xor", "PRelu": "prelu",
    "Where": "where",
}  # fmt: skip

VARIADIC = {"Max": "max", "Min": "min", "Sum": "add"}


def _plain(operator: str) -> Handler:
    return lambda b, n: [b.emit(operator, *n.inputs)]


def _parametric(operator: str, defaults: Mapping[str, float]) -> Handler:
    return lambda b, n: [b.emit(operator, n.input(0), **{k: n.real(k, d) for k, d in defaults.items()})]


def _binary(operator: str) -> Handler:
    def handle(b: Builder, n: Call) -> Sequence[str]:
        if n.attributes.get("broadcast"):
            raise ValueError("it broadcasts as before opset 7; convert the model with onnx.version_converter")
        return [b.emit(operator, *n.inputs)]

    return handle


def _variadic(operator: str) -> Handler:
    return lambda b, n: [reduce(lambda x, y: b.emit(operator, x, y), n.inputs)]


def _mean(b: Builder, n: Call) -> Sequence[str]:
    total = reduce(lambda x, y: b.emit("add", x, y), n.inputs)
    return [b.emit("div", total, b.scalar(len(n.inputs), b.dtype(total)))]


def _pow(b: Builder, n: Call) -> Sequence[str]:
    """The result has the type of the base; an integer base with a float exponent is computed in floats."""
    base, exponent = n.inputs
    own = b.dtype(base)
    if own.startswith("float"):
        return [b.emit("pow", base, converted(b, exponent, own))]
    if b.dtype(exponent).startswith("float"):
        wide = "float64" if own.endswith("64") else b.dtype(exponent)
        return [converted(b, b.emit("pow", converted(b, base, wide), converted(b, exponent, wide)), own)]
    return [b.emit("pow", base, converted(b, exponent, own))]


def _mod(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("fmod" if n.integer("fmod", 0) else "mod", *n.inputs)]


def _gelu(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("gelu", n.input(0), approximate=n.text("approximate", "none"))]


def _is_inf(b: Builder, n: Call) -> Sequence[str]:
    flags = {k: bool(n.integer(k, 1)) for k in ("detect_positive", "detect_negative")}
    return [b.emit("is_inf", n.input(0), **flags)]


def _clip(b: Builder, n: Call) -> Sequence[str]:
    """Bounds known now become attributes; a missing bound does not bound."""
    bounds: dict[str, Attribute] = {}
    late = ["", ""]
    for p, (name, old) in enumerate((("low", "min"), ("high", "max"))):
        if n.has(p + 1) and n.input(p + 1) in b.known:
            bounds[name] = b.known[n.input(p + 1)].reshape(()).item()
        elif n.has(p + 1):
            late[p] = n.input(p + 1)
        elif old in n.attributes:
            bounds[name] = n.real(old)
    return [b.emit("clip", n.input(0), *late, **bounds)]


# --- reductions -------------------------------------------------------------------------------------------------

REDUCTIONS = {
    "ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceMax": "reduce_max", "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod", "ReduceL1": "reduce_l1", "ReduceL2": "reduce_l2",
    "ReduceLogSum": "reduce_log_sum", "ReduceLogSumExp": "reduce_log_sum_exp",
    "ReduceSumSquare": "reduce_sum_square",
}  # fmt: skip


def _reduction(operator: str) -> Handler:
    def handle(b: Builder, n: Call) -> Sequence[str]:
        axes = axes_of(b, n)
        if not axes and not (n.integer("noop_with_empty_axes", 0)):
            axes = tuple(range(b.rank(n.input(0))))
        return [b.emit(operator, n.input(0), axes=axes or (), keepdims=bool(n.integer("keepdims", 1)))]

    return handle


def _arg(operator: str) -> Handler:
    def handle(b: Builder, n: Call) -> Sequence[str]:
        flags = {"keepdims": bool(n.integer("keepdims", 1)), "select_last": bool(n.integer("select_last_index", 0))}
        return [b.emit(operator, n.input(0), axis=n.integer("axis", 0), **flags)]

    return handle


def _softmax_axes(b: Builder, n: Call) -> tuple[int, ...]:
    """Before opset 13 everything from the axis (default 1) on is one dimension; since then the axis (-1) alone."""
    rank = b.rank(n.input(0))
    if n.version >= 13:
        return (normal_axis(n.integer("axis", -1), rank),)
    axis = n.integer("axis", 1)
    return tuple(range(rank if axis == rank else normal_axis(axis, rank), rank))


def _softmax(operator: str) -> Handler:
    return lambda b, n: [b.emit(operator, n.input(0), axes=_softmax_axes(b, n))]


def _hardmax(b: Builder, n: Call) -> Sequence[str]:
    """1 at the first maximum, 0 elsewhere."""
    x, axes = n.input(0), _softmax_axes(b, n)
    shape, first = b.shape(x), axes[0]
    flat = reshaped(b, x, (*shape[:first], prod(shape[first : axes[-1] + 1]), *shape[axes[-1] + 1 :]))
    best = b.emit("argmax", flat, axis=first, keepdims=False)
    values = b.constant(np.asarray([0, 1], b.dtype(x)))
    return [reshaped(b, b.emit("one_hot", best, values, depth=b.shape(flat)[first], axis=first), shape)]


def _global_pool(operator: str) -> Handler:
    return lambda b, n: [b.emit(operator, n.input(0), axes=tuple(range(2, b.rank(n.input(0)))), keepdims=True)]


def _global_lp_pool(b: Builder, n: Call) -> Sequence[str]:
    kernel = b.shape(n.input(0))[2:]
    return [b.emit("lp_pool", n.input(0), kernel=kernel, p=n.real("p", 2))]


AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")

# --- windows ----------------------------------------------------------------------------------------------------


def _same_pads(sizes: Sequence[int], reach: Sequence[int], strides: Sequence[int], lower: bool) -> tuple[int, ...]:
    """Output extent ceil(size / stride); the odd cell at the end (UPPER) or at the start (LOWER)."""
    totals = [max((-(-n // s) - 1) * s + r - n, 0) for n, r, s in zip(sizes, reach, strides, strict=True)]
    begins = [t - t // 2 if lower else t // 2 for t in totals]
    return (*begins, *(t - g for t, g in zip(totals, begins, strict=True)))


def window(b: Builder, n: Call, kernel: tuple[int, ...]) -> dict[str, Attribute]:
    """strides, dilations, pads: `auto_pad` resolved."""
    sizes, rank = b.shape(n.input(0))[2:], len(kernel)
    strides, dilations = n.ints("strides", (1,) * rank), n.ints("dilations", (1,) * rank)
    pads, auto = n.ints("pads", (0,) * 2 * rank), n.choice("auto_pad", AUTO_PADS, "NOTSET")
    if auto == "VALID":
        pads = (0,) * 2 * rank
    elif auto != "NOTSET":
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        pads = _same_pads(sizes, reach, strides, auto == "SAME_LOWER")
    return {"strides": strides, "dilations": dilations, "pads": pads}


def conv_attributes(b: Builder, n: Call, weight: str) -> dict[str, Attribute]:
    kernel = b.shape(weight)[2:]
    if n.ints("kernel_shape", kernel) != kernel:
        raise ValueError(f"kernel_shape {n.ints('kernel_shape')} differs from the weight's {kernel}")
    return {**window(b, n, kernel), "groups": n.integer("group", 1)}


def _conv(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("conv", *n.inputs, **conv_attributes(b, n, n.input(1)))]


def _conv_transpose(b: Builder, n: Call) -> Sequence[str]:
    """Pads follow from `output_shape` or SAME_* (out = in * stride): the odd cell at the end for UPPER, else at the start."""
    sizes, kernel = b.shape(n.input(0))[2:], b.shape(n.input(1))[2:]
    rank = len(kernel)
    strides, dilations = n.ints("strides", (1,) * rank), n.ints("dilations", (1,) * rank)
    extra, pads = n.ints("output_padding", (0,) * rank), n.ints("pads", (0,) * 2 * rank)
    auto = n.choice("auto_pad", AUTO_PADS, "NOTSET")
    wanted = n.ints("output_shape", ())[-rank:]
    if not wanted and auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(i * s for i, s in zip(sizes, strides, strict=True))
    if wanted:
        full = [
            (i - 1) * s + (k - 1) * d + 1 + e
            for i, s, k, d, e in zip(sizes, strides, kernel, dilations, extra, strict=True)
        ]
        totals = [f - w for f, w in zip(full, wanted, strict=True)]
        begins = [t // 2 if auto == "SAME_UPPER" else t - t // 2 for t in totals]
        pads = (*begins, *(t - g for t, g in zip(totals, begins, strict=True)))
    attributes: dict[str, Attribute] = {
        "strides": strides, "dilations": dilations, "pads": pads, "output_padding": extra,
        "groups": n.integer("group", 1),
    }  # fmt: skip
    return [b.emit("conv_transpose", *n.inputs, **attributes)]


def _pool_attributes(b: Builder, n: Call) -> dict[str, Attribute]:
    kernel = n.ints("kernel_shape")
    return {"kernel": kernel, **window(b, n, kernel), "ceil_mode": bool(n.integer("ceil_mode", 0))}


def _max_pool(b: Builder, n: Call) -> Sequence[str]:
    attributes = _pool_attributes(b, n)
    out = [b.emit("max_pool", n.input(0), **attributes)]
    if len(n.outputs) > 1 and n.outputs[1]:
        attributes["column_major"] = bool(n.integer("storage_order", 0))
        out.append(b.emit("max_pool_index", n.input(0), **attributes))
    return out


def _average_pool(b: Builder, n: Call) -> Sequence[str]:
    attributes = _pool_attributes(b, n)
    attributes["count_include_pad"] = bool(n.integer("count_include_pad", 0))
    return [b.emit("average_pool", n.input(0), **attributes)]


def _lp_pool(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("lp_pool", n.input(0), p=n.real("p", 2), **_pool_attributes(b, n))]


# --- normalisations ---------------------------------------------------------------------------------------------


def _batch_norm(b: Builder, n: Call) -> Sequence[str]:
    if n.integer("training_mode", 0) or not n.integer("spatial", 1):
        raise ValueError("it is in training mode or not spatial; export the model for inference")
    return [b.emit("batch_norm", *n.inputs, axis=1, epsilon=n.real("epsilon", 1e-5))]


def _layer_norm(b: Builder, n: Call) -> Sequence[str]:
    attributes = {"axis": n.integer("axis", -1), "epsilon": n.real("epsilon", 1e-5)}
    return b.emit_all("layer_norm", n.inputs, len(n.outputs), attributes)


def _rms_norm(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("rms_norm", *n.inputs, axis=n.integer("axis", -1), epsilon=n.real("epsilon", 1e-5))]


def _instance_norm(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("instance_norm", *n.inputs, axis=1, epsilon=n.real("epsilon", 1e-5))]


def _group_norm(b: Builder, n: Call) -> Sequence[str]:
    """Scale and bias are given by group before opset 21, by channel since."""
    x, groups = n.input(0), n.integer("num_groups")
    scale, bias = n.input(1), n.input(2)
    if n.version < 21:
        channels = b.shape(x)[1]
        scale, bias = (_by_channel(b, p, groups, channels) for p in (scale, bias))
    return [b.emit("group_norm", x, scale, bias, axis=1, groups=groups, epsilon=n.real("epsilon", 1e-5))]


def _by_channel(b: Builder, by_group: str, groups: int, channels: int) -> str:
    column = reshaped(b, by_group, (groups, 1))
    return reshaped(b, b.emit("expand", column, shape=(groups, channels // groups)), (channels,))


def _lp_normalization(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("lp_normalize", n.input(0), axis=n.integer("axis", -1), p=n.integer("p", 2))]


def _lrn(b: Builder, n: Call) -> Sequence[str]:
    reals = {k: n.real(k, d) for k, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))}
    return [b.emit("lrn", n.input(0), size=n.integer("size"), axis=1, **reals)]


# --- matrix products --------------------------------------------------------------------------------------------


def _gemm(b: Builder, n: Call) -> Sequence[str]:
    flags = {"trans_a": bool(n.integer("transA", 0)), "trans_b": bool(n.integer("transB", 0))}
    return [b.emit("gemm", *n.inputs, alpha=n.real("alpha", 1.0), beta=n.real("beta", 1.0), **flags)]


def _einsum(b: Builder, n: Call) -> Sequence[str]:
    return [b.emit("einsum", *n.inputs, equation=n.text("equation", ""))]


HANDLERS: Mapping[str, Handler] = {
    **{kind: _plain(operator) for kind, operator in UNARY.items()},
    **{kind: _parametric(*row) for kind, row in PARAMETRIC.items()},
    **{kind: _binary(operator) for kind, operator in BINARY.items()},
    **{kind: _variadic(operator) for kind, operator in VARIADIC.items()},
    **{kind: _reduction(operator) for kind, operator in REDUCTIONS.items()},
    "Mean": _mean,
    "Pow": _pow,
    "Mod": _mod,
    "Gelu": _gelu,
    "IsInf": _is_inf,
    "Clip": _clip,
    "ArgMax": _arg("argmax"),
    "ArgMin": _arg("argmin"),
    "Softmax": _softmax("softmax"),
    "LogSoftmax": _softmax("log_softmax"),
    "Hardmax": _hardmax,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": _global_pool("reduce_mean"),
    "GlobalMaxPool": _global_pool("reduce_max"),
    "GlobalLpPool": _global_lp_pool,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "InstanceNormalization": _instance_norm,
    "GroupNormalization": _group_norm,
    "LpNormalization": _lp_normalization,
    "LRN": _lrn,
    "MatMul": _plain("matmul"),
    "Gemm": _gemm,
    "Einsum": _einsum,
}
