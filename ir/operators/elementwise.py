"""Element-wise operators, all with broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, pi, sqrt

import numpy as np

from ir.dsl import Handle, any_of, call, cast, compute, ge, gt, le, lt, maximum, minimum, ne, select
from ir.expr import Const, Expr, Op, dtype_of, eq
from ir.operators.operator import (
    Attributes,
    Inputs,
    Operator,
    accumulator,
    at,
    broadcast,
    choice,
    flag,
    integer,
    is_float,
    maybe,
    need,
    normal_axis,
    real,
    text,
    wide,
)

Unary = Callable[[Expr, Attributes], Expr]
Binary = Callable[[Expr, Expr], Expr]


def _relu_like(x: Expr, below: Expr) -> Expr:
    """x where x >= 0 or NaN, else `below`."""
    return select(lt(x, 0), below, x)


def _softplus(x: Expr) -> Expr:
    """log(1 + e^x) without overflow."""
    return maximum(x, 0) + call("log", 1 + call("exp", -call("abs", x)))


def _gelu(x: Expr, a: Attributes) -> Expr:
    """Hendrycks and Gimpel 2016: x times the normal distribution function, or their approximation by tanh."""
    if choice(a, "approximate", ("none", "tanh"), "none") == "tanh":
        return 0.5 * x * (1 + call("tanh", sqrt(2 / pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + call("erf", x * sqrt(0.5)))


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    return maximum(minimum(x * alpha + beta, 1), 0)


def _elu(x: Expr, alpha: float) -> Expr:
    return _relu_like(x, alpha * (call("exp", x) - 1))


def _is_inf(x: Expr, a: Attributes) -> Expr:
    sides = [s for s, key in ((inf, "detect_positive"), (-inf, "detect_negative")) if flag(a, key, True)]
    return any_of(*(eq(x, s) for s in sides))


def _shrink(x: Expr, bias: float, threshold: float) -> Expr:
    return select(lt(x, -threshold), x + bias, select(gt(x, threshold), x - bias, 0.0 * x))


def _sign(x: Expr) -> Expr:
    """Zeros and NaN keep what they are."""
    return select(gt(x, 0), 1, x) if dtype_of(x).startswith("u") else select(gt(x, 0), 1, select(lt(x, 0), -1, x))


def _rounding(name: str) -> Unary:
    return lambda x, a: call(name, x) if is_float(dtype_of(x)) else x


# Selections and signs: exact in every dtype.
EXACT: Mapping[str, Unary] = {
    "identity":         lambda x, a: x,
    "neg":              lambda x, a: -x,
    "abs":              lambda x, a: x if dtype_of(x).startswith("u") else call("abs", x),
    "relu":             lambda x, a: maximum(x, 0),
    "sign":             lambda x, a: _sign(x),
    "floor":            _rounding("floor"),
    "ceil":             _rounding("ceil"),
    "round":            _rounding("round"),
    "not":              lambda x, a: call("not", x),
    "isnan":            lambda x, a: call("isnan", x),
    "is_inf":           _is_inf,
    "thresholded_relu": lambda x, a: select(gt(x, real(a, "alpha", 1.0)), x, 0),
}  # fmt: skip

# Real functions: float16 is computed in float32 and rounded once.
SMOOTH: Mapping[str, Unary] = {
    **{name: (lambda n: lambda x, a: call(n, x))(name) for name in (
        "exp", "log", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan",
        "sinh", "cosh", "asinh", "acosh", "atanh")},
    "reciprocal":   lambda x, a: 1 / x,
    "leaky_relu":   lambda x, a: _relu_like(x, real(a, "alpha", 0.01) * x),
    "elu":          lambda x, a: _elu(x, real(a, "alpha", 1.0)),
    "selu":         lambda x, a: real(a, "gamma", 1.0507009873554805) * _elu(x, real(a, "alpha", 1.6732632423543772)),
    "celu":         lambda x, a: _relu_like(x, real(a, "alpha", 1.0) * (call("exp", x / real(a, "alpha", 1.0)) - 1)),
    "gelu":         _gelu,
    "hard_sigmoid": lambda x, a: _hard_sigmoid(x, real(a, "alpha", 0.2), real(a, "beta", 0.5)),
    "hard_swish":   lambda x, a: x * _hard_sigmoid(x, 1 / 6, 0.5),
    "swish":        lambda x, a: x * call("sigmoid", real(a, "alpha", 1.0) * x),
    "softplus":     lambda x, a: _softplus(x),
    "softsign":     lambda x, a: x / (1 + call("abs", x)),
    "mish":         lambda x, a: x * call("tanh", _softplus(x)),
    "shrink":       lambda x, a: _shrink(x, real(a, "bias", 0.0), real(a, "lambd", 0.5)),
}  # fmt: skip

BINARY: Mapping[str, Binary] = {
    **{name: (lambda n: lambda a, b: call(n, a, b))(name) for name in (
        "add", "sub", "mul", "div", "mod", "fmod", "max", "min", "pow", "eq", "ne", "lt", "le", "and", "or")},
    "gt":    gt,
    "ge":    ge,
    "xor":   ne,
    "prelu": lambda x, slope: _relu_like(x, slope * x),
}  # fmt: skip


def _unary(name: str, formula: Unary, smooth: bool) -> Operator:
    def define(inputs: Inputs, attributes: Attributes) -> list[Handle]:
        x = need(inputs, 0)
        if smooth and not is_float(x.dtype):
            raise ValueError(f"{name} of {x.dtype}: it needs floats")

        def element(*i: Expr) -> Expr:
            return cast(formula(wide(x[i]), attributes), x.dtype) if smooth else formula(x[i], attributes)

        return [compute(x.shape, element, name)]

    return Operator(name, define)


def _binary(name: str, formula: Binary) -> Operator:
    def define(inputs: Inputs, attributes: Attributes) -> list[Handle]:
        a, b = need(inputs, 0), need(inputs, 1)
        if a.dtype != b.dtype:
            raise ValueError(f"{name} of {a.dtype} and {b.dtype}: cast one of them")
        return [compute(broadcast(a.shape, b.shape), lambda *i: formula(at(a, i), at(b, i)), name)]

    return Operator(name, define)


def _where(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    c, a, b = need(inputs, 0), need(inputs, 1), need(inputs, 2)
    return [compute(broadcast(c.shape, a.shape, b.shape), lambda *i: select(at(c, i), at(a, i), at(b, i)), "where")]


def _cast(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    x, to = need(inputs, 0), text(attributes, "to")

    def element(*i: Expr) -> Expr:
        """To bool means "not zero", which C's conversion to an unsigned char is not."""
        return ne(x[i], 0) if to == "bool" and x.dtype != "bool" else cast(x[i], to)

    return [compute(x.shape, element, "cast")]


def _clip(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """min(max(x, low), high): a low above high gives high. Bounds are attributes, or run-time scalars."""
    x = need(inputs, 0)

    def bound(position: int, name: str) -> Expr | float | int | None:
        handle = maybe(inputs, position)
        if handle is not None:
            return handle[(0,) * len(handle.shape)]
        value = attributes.get(name)
        return value if isinstance(value, int | float) else None

    def element(*i: Expr) -> Expr:
        out: Expr = x[i]
        low, high = bound(1, "low"), bound(2, "high")
        out = out if low is None else maximum(out, low)
        return out if high is None else minimum(out, high)

    return [compute(x.shape, element, "clip")]


def _per_axis(x: Handle, parameter: Handle, attributes: Attributes, i: tuple[Expr, ...]) -> Expr:
    """A quantisation parameter: one for all, one per index of `axis`, or one per block along `axis`."""
    if not x.shape or prod_is_one(parameter.shape):
        return parameter[(0,) * len(parameter.shape)]
    axis = normal_axis(integer(attributes, "axis", 1), len(x.shape))
    if len(parameter.shape) == 1:
        return parameter[i[axis]]
    block = integer(attributes, "block_size", 0) or -(-x.shape[axis] // parameter.shape[axis])
    return parameter[tuple(p // block if d == axis else p for d, p in enumerate(i))]


def prod_is_one(shape: tuple[int, ...]) -> bool:
    return all(e == 1 for e in shape)


def _quantize(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """Ties to even, then the zero point, then saturation (ONNX QuantizeLinear)."""
    x, scale, zero = need(inputs, 0), need(inputs, 1), maybe(inputs, 2)
    to = zero.dtype if zero is not None else text(attributes, "to", "uint8")
    limits = np.iinfo(to)

    def element(*i: Expr) -> Expr:
        steps = call("round", wide(x[i]) / wide(_per_axis(x, scale, attributes, i)))
        moved = steps if zero is None else steps + cast(_per_axis(x, zero, attributes, i), dtype_of(steps))
        return cast(maximum(minimum(moved, float(limits.max)), float(limits.min)), to)

    return [compute(x.shape, element, "quantize")]


def _dequantize(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """(x - zero) * scale; the difference is taken in int32, where it is exact."""
    x, scale, zero = need(inputs, 0), need(inputs, 1), maybe(inputs, 2)

    def element(*i: Expr) -> Expr:
        steps = cast(x[i], "int32")
        if zero is not None:
            steps = steps - cast(_per_axis(x, zero, attributes, i), "int32")
        factor = wide(_per_axis(x, scale, attributes, i))
        return cast(cast(steps, accumulator(scale.dtype)) * factor, scale.dtype)

    return [compute(x.shape, element, "dequantize")]


def _trilu(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """The upper or lower triangle of the last two dimensions; `k` shifts the diagonal to the right."""
    x, k, upper = need(inputs, 0), integer(attributes, "k", 0), flag(attributes, "upper", True)
    zero = Const(0 if not is_float(x.dtype) else 0.0, x.dtype) if x.dtype != "bool" else Const(False, "bool")

    def element(*i: Expr) -> Expr:
        row, column = i[-2] + k, i[-1]
        return Op("select", (le(row, column) if upper else le(column, row), x[i], zero))

    return [compute(x.shape, element, "trilu")]


OPERATORS = (
    *(_unary(name, formula, smooth=False) for name, formula in EXACT.items()),
    *(_unary(name, formula, smooth=True) for name, formula in SMOOTH.items()),
    *(_binary(name, formula) for name, formula in BINARY.items()),
    Operator("where",      _where),
    Operator("cast",       _cast),
    Operator("clip",       _clip),
    Operator("quantize",   _quantize),
    Operator("dequantize", _dequantize),
    Operator("trilu",      _trilu),
)  # fmt: skip
