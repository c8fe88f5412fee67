"""Every operator against NumPy, or against a slow and obvious loop."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import erf, prod, sqrt
from pathlib import Path

import numpy as np
import pytest

from ir.dsl import dag, placeholder
from ir.evaluate import evaluate, run_node
from ir.expr import reads
from ir.graph import Attribute, Node, Value
from ir.operators import OPERATORS, infer

RNG = [np.random.default_rng(0)]


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order() -> None:
    RNG[0] = np.random.default_rng(1)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG[0].standard_normal(shape).astype(dtype)


def run(operator: str, *arrays: np.ndarray | None, **attributes: Attribute) -> list[np.ndarray]:
    """All outputs of one node; shapes and dtypes are those that `infer` says."""
    values = {f"x{i}": Value(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays) if a is not None}
    names = tuple("" if a is None else f"x{i}" for i, a in enumerate(arrays))
    expected = infer(operator, [values.get(n) for n in names], attributes)
    node = Node("node", operator, names, tuple(f"y{i}" for i in range(len(expected))), attributes)
    out = list(run_node(values, node, {n: a for n, a in zip(names, arrays, strict=True) if a is not None}).values())
    assert [(o.shape, str(o.dtype)) for o in out] == expected
    return out


def one(operator: str, *arrays: np.ndarray | None, **attributes: Attribute) -> np.ndarray:
    return run(operator, *arrays, **attributes)[0]


X = normal(3, 5)
UNIT = np.tanh(normal(3, 5)) * np.float32(0.9)
POSITIVE = np.abs(normal(3, 5)) + np.float32(0.1)
ODD = np.array([np.nan, np.inf, -np.inf, -0.0, 2.5, 3.5, -2.5], np.float32)
A, B = np.array([True, True, False, False]), np.array([True, False, True, False])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x < 0, alpha * (np.exp(x) - 1), x)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(erf)(x / sqrt(2))) / 2


def softmax(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normed(x: np.ndarray, axes: int | tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    x = x.astype(np.float64)
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


UNARY: dict[str, tuple[np.ndarray, Callable[[np.ndarray], np.ndarray], dict[str, Attribute]]] = {
    "identity": (X, lambda x: x, {}), "neg": (X, lambda x: -x, {}), "abs": (X, np.abs, {}),
    "relu": (ODD, lambda x: np.maximum(x, 0), {}), "sign": (ODD, np.sign, {}), "floor": (ODD, np.floor, {}),
    "ceil": (ODD, np.ceil, {}), "round": (ODD, np.rint, {}), "not": (A, np.logical_not, {}),
    "isnan": (ODD, np.isnan, {}), "is_inf": (ODD, lambda x: x == np.inf, {"detect_negative": False}),
    "thresholded_relu": (X, lambda x: np.where(x > 0.3, x, 0), {"alpha": 0.3}),
    "exp": (X, np.exp, {}), "log": (POSITIVE, np.log, {}), "sqrt": (POSITIVE, np.sqrt, {}),
    "rsqrt": (POSITIVE, lambda x: 1 / np.sqrt(x), {}), "tanh": (X, np.tanh, {}),
    "erf": (X, np.vectorize(erf), {}), "sigmoid": (X, sigmoid, {}), "sin": (X, np.sin, {}), "cos": (X, np.cos, {}),
    "tan": (X, np.tan, {}), "asin": (UNIT, np.arcsin, {}), "acos": (UNIT, np.arccos, {}), "atan": (X, np.arctan, {}),
    "sinh": (X, np.sinh, {}), "cosh": (X, np.cosh, {}), "asinh": (X, np.arcsinh, {}),
    "acosh": (POSITIVE + 1, np.arccosh, {}), "atanh": (UNIT, np.arctanh, {}),
    "reciprocal": (POSITIVE, lambda x: 1 / x, {}),
    "leaky_relu": (X, lambda x: np.where(x < 0, 0.2 * x, x), {"alpha": 0.2}),
    "elu": (X, lambda x: elu(x, 1.5), {"alpha": 1.5}),
    "selu": (X, lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772), {}),
    "celu": (X, lambda x: np.where(x < 0, 2 * (np.exp(x / 2) - 1), x), {"alpha": 2.0}),
    "gelu": (X, gelu, {}),
    "hard_sigmoid": (X, lambda x: np.clip(0.3 * x + 0.4, 0, 1), {"alpha": 0.3, "beta": 0.4}),
    "hard_swish": (4 * X, lambda x: x * np.clip(x / 6 + 0.5, 0, 1), {}),
    "swish": (X, lambda x: x * sigmoid(1.5 * x), {"alpha": 1.5}), "softplus": (100 * X, softplus, {}),
    "softsign": (X, lambda x: x / (1 + abs(x)), {}), "mish": (X, lambda x: x * np.tanh(softplus(x)), {}),
    "shrink": (X, lambda x: np.where(x < -0.5, x + 0.1, np.where(x > 0.5, x - 0.1, 0)), {"bias": 0.1, "lambd": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    x, f, attributes = UNARY[name]
    wide = x if x.dtype == bool else x.astype(np.float64)
    np.testing.assert_allclose(one(name, x, **attributes), f(wide), rtol=2e-6, atol=1e-6)


BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "mod": np.mod, "fmod": np.fmod,
    "max": np.maximum, "min": np.minimum, "pow": np.power, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "prelu": lambda x, slope: np.where(x < 0, slope * x, x),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((4, 1, 3), (2, 1)), ((), (3,)), ((3, 0), (1,)), ((1,), (1, 1))])
def test_binary_broadcasts(name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = normal(*shapes[0]), normal(*shapes[1])
    a = np.abs(a) if name == "pow" else a
    np.testing.assert_allclose(one(name, a, b), BINARY[name](a, b), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "f"), [("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)])
def test_logic(name: str, f: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    np.testing.assert_array_equal(one(name, A, B), f(A, B))


def test_maxima_propagate_nan() -> None:
    a, b = np.array([np.nan, 1, 2], np.float32), np.array([0, np.nan, 3], np.float32)
    np.testing.assert_array_equal(one("max", a, b), [np.nan, np.nan, 3])
    np.testing.assert_array_equal(one("clip", a, low=0.0, high=1.0), [np.nan, 1, 1])


def test_clip() -> None:
    x = np.array([-5, 0.5, 9], np.float32)
    low, high = np.array(-1, np.float32), np.array([2], np.float32)
    np.testing.assert_array_equal(one("clip", x), x)
    np.testing.assert_array_equal(one("clip", x, low, high), [-1, 0.5, 2])
    np.testing.assert_array_equal(one("clip", x, None, high), [-5, 0.5, 2])
    np.testing.assert_array_equal(one("clip", x, low=3.0, high=1.0), [1, 1, 1])
    np.testing.assert_array_equal(one("clip", x.astype(np.int8), high=3), [-5, 0, 3])


def test_where_cast_trilu() -> None:
    np.testing.assert_array_equal(one("where", A, np.float32(1), np.zeros(4, np.float32)), A.astype(np.float32))
    np.testing.assert_array_equal(one("cast", np.array([0.5, 0, -2.7], np.float32), to="bool"), [True, False, True])
    np.testing.assert_array_equal(one("cast", np.array([0.5, -2.7], np.float32), to="int8"), [0, -2])
    np.testing.assert_array_equal(one("trilu", X, k=-1, upper=True), np.triu(X, -1))
    np.testing.assert_array_equal(one("trilu", X, k=1, upper=False), np.tril(X, 1))


def test_quantisation() -> None:
    x = np.array([0.25, 0.75, -0.25, 1e9, -1e9, 63.4], np.float32)
    scale, zero = np.float32(0.5), np.int8(3)
    expected = np.clip(np.rint(x / scale) + 3, -128, 127)
    np.testing.assert_array_equal(one("quantize", x, np.asarray(scale), np.asarray(zero)), expected)
    np.testing.assert_array_equal(one("quantize", x, np.asarray(scale), to="uint8"), np.clip(np.rint(x * 2), 0, 255))
    q, scales, zeros = np.arange(12, dtype=np.uint8).reshape(2, 3, 2), np.array([0.5, 1, 2], np.float32), np.arange(3)
    by_axis = one("dequantize", q, scales, zeros.astype(np.uint8), axis=-2)
    np.testing.assert_array_equal(by_axis, (q.astype(np.float32) - zeros[:, None]) * scales[:, None])
    blocks = np.array([[0.5], [2]], np.float32)
    by_block = one("dequantize", np.arange(6, dtype=np.int8).reshape(2, 3), blocks, axis=1, block_size=3)
    np.testing.assert_array_equal(by_block, np.arange(6).reshape(2, 3) * blocks)


# --- reductions -------------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "reduce_sum": np.sum, "reduce_mean": np.mean, "reduce_max": np.max, "reduce_min": np.min, "reduce_prod": np.prod,
    "reduce_l1": lambda x, axis, keepdims: np.abs(x).sum(axis, keepdims=keepdims),
    "reduce_l2": lambda x, axis, keepdims: np.sqrt((x * x).sum(axis, keepdims=keepdims)),
    "reduce_sum_square": lambda x, axis, keepdims: (x * x).sum(axis, keepdims=keepdims),
    "reduce_log_sum": lambda x, axis, keepdims: np.log(x.sum(axis, keepdims=keepdims)),
    "reduce_log_sum_exp": lambda x, axis, keepdims: np.log(np.exp(x).sum(axis, keepdims=keepdims)),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [True, False])
def test_reductions(name: str, axes: tuple[int, ...], keepdims: bool) -> None:
    x = np.abs(normal(3, 4, 5)) + np.float32(0.1)
    expected = REDUCTIONS[name](x.astype(np.float64), axis=axes, keepdims=keepdims)
    np.testing.assert_allclose(one(name, x, axes=axes, keepdims=keepdims), expected, rtol=1e-5)


def test_sums_of_float16_do_not_overflow() -> None:
    x = np.full((2, 3000), 100, np.float16)
    np.testing.assert_array_equal(one("reduce_mean", x, axes=(1,), keepdims=False), [100, 100])
    np.testing.assert_array_equal(one("reduce_sum", np.ones(4096, np.float16), keepdims=False), 4096)
    w = np.full((3000, 1), -1, np.float16)
    w[::2] = 1
    np.testing.assert_array_equal(one("matmul", x, w), [[0], [0]])
    np.testing.assert_allclose(one("softmax", np.array([[60000, 60000, -60000]], np.float16)), [[0.5, 0.5, 0]])
    wide = normal(2, 64, dtype="float16") * np.float16(400)
    np.testing.assert_allclose(one("layer_norm", wide), normed(wide, 1), rtol=2e-3, atol=2e-3)


def test_extremes_and_their_places() -> None:
    x = np.array([[3, 9, 9, 1], [np.nan, 7, np.nan, 7]], np.float32)
    np.testing.assert_array_equal(one("argmax", x, axis=1, keepdims=False), [1, 0])
    np.testing.assert_array_equal(one("argmax", x, axis=1, select_last=True), [[2], [2]])
    np.testing.assert_array_equal(one("argmin", x, axis=0), [[1, 1, 1, 0]])
    np.testing.assert_array_equal(one("reduce_max", x, axes=(1,), keepdims=False), [9, np.nan])
    np.testing.assert_array_equal(one("reduce_max", np.full((1, 3), -np.inf, np.float32)), [[-np.inf]])
    infinite = one("reduce_log_sum_exp", np.array([-np.inf, -np.inf], np.float32), keepdims=False)
    np.testing.assert_array_equal(infinite, -np.inf)


@pytest.mark.parametrize(("exclusive", "reverse"), list(itertools.product([False, True], repeat=2)))
def test_cumulative(exclusive: bool, reverse: bool) -> None:
    x = np.abs(normal(4, 5)) + np.float32(0.1)

    def along(f: Callable[..., np.ndarray], start: float) -> np.ndarray:
        y = x[:, ::-1] if reverse else x
        y = f(y, axis=1)
        y = np.concatenate([np.full((4, 1), start), y[:, :-1]], axis=1) if exclusive else y
        return y[:, ::-1] if reverse else y

    np.testing.assert_allclose(
        one("cumsum", x, axis=1, exclusive=exclusive, reverse=reverse), along(np.cumsum, 0), 1e-5
    )
    product = one("cumprod", x, axis=-1, exclusive=exclusive, reverse=reverse)
    np.testing.assert_allclose(product, along(np.cumprod, 1), rtol=1e-5)


# --- normalisations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(-1,), (1,), (1, 2), (0, 1, 2)])
def test_softmax(axes: tuple[int, ...]) -> None:
    x = normal(2, 3, 4) * 50
    np.testing.assert_allclose(one("softmax", x, axes=axes), softmax(x, axes), rtol=1e-4, atol=1e-7)
    logs = np.log(softmax(x.astype(np.float64), axes))
    np.testing.assert_allclose(one("log_softmax", x, axes=axes), logs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [-1, 1, 0])
def test_layer_norm(axis: int) -> None:
    x, shape = normal(2, 3, 4) * 3 + 1, (2, 3, 4)[axis:]
    scale, bias = normal(*shape), normal(*shape)
    axes = tuple(range(axis % 3, 3))
    y, mean, inverse = run("layer_norm", x, scale, bias, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(y, normed(x, axes, 1e-3) * scale + bias, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, x.mean(axes, keepdims=True), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(inverse, 1 / np.sqrt(x.var(axes, keepdims=True) + 1e-3), rtol=1e-4)
    root = np.sqrt((x.astype(np.float64) ** 2).mean(axes, keepdims=True) + 1e-5)
    np.testing.assert_allclose(one("rms_norm", x, scale, axis=axis), x / root * scale, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("axis", [1, 3])
def test_norms_by_channel(axis: int) -> None:
    x = normal(2, 4, 4, 4) + 2
    by = [1, 1, 1, 1]
    by[axis] = 4
    scale, bias, mean, variance = normal(4), normal(4), normal(4), np.abs(normal(4)) + np.float32(0.1)
    s, b, m, v = (p.reshape(by) for p in (scale, bias, mean, variance))
    y = one("batch_norm", x, scale, bias, mean, variance, axis=axis, epsilon=1e-3)
    np.testing.assert_allclose(y, (x - m) / np.sqrt(v + 1e-3) * s + b, rtol=1e-4, atol=1e-5)
    space = tuple(d for d in (1, 2, 3) if d != axis)
    y = one("instance_norm", x, scale, bias, axis=axis)
    np.testing.assert_allclose(y, normed(x, space) * s + b, rtol=1e-4, atol=1e-5)
    split = x.reshape(*x.shape[:axis], 2, 2, *x.shape[axis + 1 :])
    grouped = normed(split, tuple(d for d in range(1, 5) if d != axis)).reshape(x.shape)
    y = one("group_norm", x, scale, bias, axis=axis, groups=2)
    np.testing.assert_allclose(y, grouped * s + b, rtol=1e-4, atol=1e-5)


def test_lp_normalize_and_lrn() -> None:
    x = normal(2, 5, 3)
    x[0, :, 0] = 0
    for p in (1, 2):
        norm = np.linalg.norm(x, p, axis=1, keepdims=True)
        np.testing.assert_allclose(one("lp_normalize", x, axis=1, p=p), x / np.where(norm == 0, 1, norm), rtol=1e-5)
    squares = np.pad(x.astype(np.float64) ** 2, ((0, 0), (1, 2), (0, 0)))
    total = sum(squares[:, k : k + 5] for k in range(4))
    y = one("lrn", x, size=4, alpha=0.1, beta=0.6, bias=2.0)
    np.testing.assert_allclose(y, x / (2 + 0.1 / 4 * total) ** 0.6, rtol=1e-5, atol=1e-6)


# --- products ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3), (3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (4, 3, 2)),
     ((1, 2, 3), (7, 3, 4)), ((2, 0), (0, 3)), ((0, 2, 3), (3, 1))],
)  # fmt: skip
def test_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = normal(*a), normal(*b)
    np.testing.assert_allclose(one("matmul", x, y), np.matmul(x, y), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("c", [None, (4,), (2, 1), (), (2, 4)])
def test_gemm(c: tuple[int, ...] | None) -> None:
    a, b = normal(3, 2), normal(4, 3)
    addend = None if c is None else normal(*c)
    y = one("gemm", a, b, addend, trans_a=True, trans_b=True, alpha=0.5, beta=2.0)
    np.testing.assert_allclose(y, 0.5 * a.T @ b.T + (0 if addend is None else 2 * addend), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("iij->ij", [(3, 3, 4)]), ("ii->", [(5, 5)]), ("ij,jk", [(2, 3), (3, 4)]), ("ba", [(2, 3)]),
     ("...ij,...jk->...ik", [(1, 2, 3), (5, 3, 4)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]), ("b...d->...b", [(2, 3, 4, 5)]),
     ("i,j->ij", [(3,), (4,)]), (",ij->ji", [(), (2, 3)])],
)  # fmt: skip
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    xs = [normal(*s) for s in shapes]
    np.testing.assert_allclose(one("einsum", *xs, equation=equation), np.einsum(equation, *xs), rtol=1e-5, atol=1e-5)


# --- convolutions and pools -------------------------------------------------------------------------------------


def windows(x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> np.ndarray:
    """N, C, out space, kernel of an already padded x."""
    rank = len(kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axis=tuple(range(2, 2 + rank)))
    steps = (*(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilations))
    return view[(slice(None), slice(None), *steps)]


def slow_conv(
    x: np.ndarray, w: np.ndarray, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int], groups: int
) -> np.ndarray:
    rank = w.ndim - 2
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    seen, outs = windows(padded, w.shape[2:], strides, dilations), w.shape[0] // groups
    parts = []
    for g in range(groups):
        own = seen[:, g * w.shape[1] : (g + 1) * w.shape[1]]
        part = np.tensordot(
            own, w[g * outs : (g + 1) * outs], axes=([1, *range(2 + rank, 2 + 2 * rank)], range(1, rank + 2))
        )
        parts.append(np.moveaxis(part, -1, 1))
    return np.concatenate(parts, axis=1)


CONVS = [  # space, kernel, strides, dilations, pads, groups, channels in and out
    ((9,), (3,), (1,), (1,), (1, 1), 1, 4, 6),
    ((9, 7), (3, 3), (2, 1), (1, 1), (1, 0, 1, 2), 1, 4, 6),
    ((9, 7), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1, 4, 6),
    ((9, 7), (3, 2), (1, 2), (2, 3), (2, 1, 0, 3), 2, 4, 6),
    ((9, 7), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), 4, 4, 8),
    ((9, 7), (1, 1), (3, 3), (1, 1), (0, 0, 0, 0), 4, 4, 4),
    ((5, 4, 6), (2, 3, 1), (1, 2, 1), (1, 1, 1), (0, 1, 0, 1, 1, 0), 2, 2, 4),
]


def last(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1)


def layout(rank: int) -> str:
    return f"N{ {1: 'W', 2: 'HW', 3: 'DHW'}[rank] }C"


@pytest.mark.parametrize("case", CONVS)
def test_conv_in_both_layouts(case: tuple[tuple[int, ...], ...]) -> None:
    space, kernel, strides, dilations, pads, groups, ins, outs = case
    x, w, bias = normal(2, ins, *space), normal(outs, ins // groups, *kernel), normal(outs)
    how = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    expected = slow_conv(x, w, strides, dilations, pads, groups)
    np.testing.assert_allclose(one("conv", x, w, **how), expected, rtol=1e-4, atol=1e-4)
    biased = expected + bias.reshape(-1, *[1] * len(space))
    turned = w.transpose(*range(2, w.ndim), 1, 0)
    y = one("conv", last(x), turned, bias, layout=layout(len(space)), **how)
    np.testing.assert_allclose(y, last(biased), rtol=1e-4, atol=1e-4)


def test_padding_is_a_stage_and_a_kernel_of_one_is_a_matrix_product() -> None:
    x, w = placeholder((1, 8, 8, 4), "x"), placeholder((3, 3, 4, 4), "w")
    d = dag(OPERATORS["conv"].define([x, w], {"layout": "NHWC", "pads": (1, 1, 1, 1)}))
    assert [c.name for c in d.computes] == ["pad", "conv"]
    assert [a.name for a in d.computes[1].axes] == ["n", "h", "w", "co", "kh", "kw", "ci"]
    d = dag(OPERATORS["conv"].define([x, placeholder((1, 1, 4, 4), "w")], {"layout": "NHWC"}))
    assert [a.name for a in d.computes[0].reduce] == ["ci"]
    depthwise = dag(OPERATORS["conv"].define([x, placeholder((3, 3, 1, 4), "w")], {"layout": "NHWC", "groups": 4}))
    assert [a.name for a in depthwise.computes[0].reduce] == ["kh", "kw"]
    assert reads(depthwise.computes[0].body)[0].index[-1] == depthwise.computes[0].space[-1]


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize("extra", [0, 1])
def test_conv_transpose_is_the_gradient_of_conv(case: tuple[tuple[int, ...], ...], extra: int) -> None:
    """<conv(u, w), x> = <u, conv_transpose(x, w)> for every u: compared on unit vectors, that is, exactly."""
    space, kernel, strides, dilations, pads, groups, ins, outs = case
    if extra and min(strides) == 1:
        pytest.skip("output padding is smaller than every stride")
    rank = len(space)
    x, w, bias = normal(2, outs, *space), normal(outs, ins // groups, *kernel), normal(ins)
    full = [
        (n - 1) * s + (k - 1) * d + 1 + extra - pads[i] - pads[i + rank]
        for i, (n, s, k, d) in enumerate(zip(space, strides, kernel, dilations, strict=True))
    ]
    how = {
        "strides": strides, "dilations": dilations, "pads": pads, "groups": groups, "output_padding": (extra,) * rank
    }  # fmt: skip
    y = one("conv_transpose", x, w, **how)
    assert y.shape == (2, ins, *full)
    for _ in range(3):
        u = normal(*y.shape, dtype="float64")
        through = slow_conv(u, w, strides, dilations, pads, groups)[(..., *(slice(n) for n in space))]
        np.testing.assert_allclose((through * x).sum(), (u * y).sum(), rtol=1e-3, atol=1e-3)
    turned = w.transpose(*range(2, w.ndim), 1, 0)
    biased = one("conv_transpose", last(x), turned, bias, layout=layout(rank), **how)
    np.testing.assert_allclose(biased, last(y + bias.reshape(-1, *[1] * rank)), rtol=1e-4, atol=1e-4)


def slow_pool(x: np.ndarray, kind: str, how: dict[str, Sequence[int]], ceil: bool, include: bool) -> np.ndarray:
    """One window at a time; cells outside the declared padding do not exist."""
    rank = x.ndim - 2
    sizes, outs = x.shape[2:], []
    for i, n in enumerate(sizes):
        room = n + how["pads"][i] + how["pads"][i + rank] - (how["kernel"][i] - 1) * how["dilations"][i] - 1
        out = (-(-room // how["strides"][i]) if ceil else room // how["strides"][i]) + 1
        outs.append(out - 1 if ceil and (out - 1) * how["strides"][i] >= n + how["pads"][i] else out)
    y = np.zeros((*x.shape[:2], *outs))
    for o in itertools.product(*map(range, outs)):
        taps = [
            [p for k in range(how["kernel"][i])
             if (p := o[i] * how["strides"][i] - how["pads"][i] + k * how["dilations"][i]) < n + how["pads"][i + rank]]
            for i, n in enumerate(sizes)
        ]  # fmt: skip
        real = [[p for p in t if 0 <= p < n] for t, n in zip(taps, sizes, strict=True)]
        cells = x[np.ix_(range(x.shape[0]), range(x.shape[1]), *real)].reshape(*x.shape[:2], -1).astype(np.float64)
        if kind == "max":
            value = cells.max(-1)
        elif kind == "lp":
            value = (np.abs(cells) ** 3).sum(-1) ** (1 / 3)
        else:
            value = cells.sum(-1) / (prod(map(len, taps)) if include else prod(map(len, real)))
        y[(slice(None), slice(None), *o)] = value
    return y


POOLS = [
    {"kernel": (3,), "strides": (2,), "dilations": (1,), "pads": (1, 1)},
    {"kernel": (3, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (1, 0, 1, 1)},
    {"kernel": (3, 3), "strides": (3, 2), "dilations": (1, 1), "pads": (0, 1, 2, 1)},
    {"kernel": (2, 3), "strides": (1, 2), "dilations": (3, 2), "pads": (2, 1, 1, 2)},
    {"kernel": (1, 1), "strides": (2, 3), "dilations": (1, 1), "pads": (0, 0, 0, 0)},
    {"kernel": (2, 2, 3), "strides": (2, 1, 3), "dilations": (1, 2, 1), "pads": (1, 0, 1, 0, 1, 1)},
]


@pytest.mark.parametrize("how", POOLS)
@pytest.mark.parametrize("ceil", [False, True])
def test_pools_in_both_layouts(how: dict[str, tuple[int, ...]], ceil: bool) -> None:
    rank = len(how["kernel"])
    x = -np.abs(normal(2, 3, *(8, 7, 9)[:rank])) - 1
    attributes: dict[str, Attribute] = {**how, "ceil_mode": ceil}
    np.testing.assert_array_equal(one("max_pool", x, **attributes), slow_pool(x, "max", how, ceil, False))
    np.testing.assert_allclose(one("lp_pool", x, p=3.0, **attributes), slow_pool(x, "lp", how, ceil, False), rtol=1e-4)
    for include in (False, True):
        expected = slow_pool(x, "average", how, ceil, include)
        y = one("average_pool", x, count_include_pad=include, **attributes)
        np.testing.assert_allclose(y, expected, rtol=1e-5)
        y = one("average_pool", last(x), count_include_pad=include, layout=layout(rank), **attributes)
        np.testing.assert_allclose(y, last(expected), rtol=1e-5)


def test_max_pool_index_and_integers() -> None:
    x = normal(2, 3, 8, 7)
    how: dict[str, Attribute] = {"kernel": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1)}
    best, at = one("max_pool", x, **how), one("max_pool_index", x, **how)
    np.testing.assert_array_equal(x.ravel()[at], best)
    by_column = one("max_pool_index", x, column_major=True, **how)
    np.testing.assert_array_equal(x.transpose(0, 1, 3, 2).ravel()[by_column], best)
    small = np.full((1, 1, 2, 2), -128, np.int8)
    np.testing.assert_array_equal(one("max_pool", small, kernel=(2, 2), pads=(1, 1, 1, 1)), np.full((1, 1, 3, 3), -128))


def test_capsule_conv() -> None:
    x, w = normal(1, 5, 6, 2, 3, 4), normal(3, 3, 3, 2, 4, 5)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0), (0, 0), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))[:, ::2, ::2]
    expected = np.einsum("nhwikcyz,yzkjco->nhwijo", seen, w)
    y = one("capsule_conv", x, w, strides=(2, 2), pads=(1, 1, 1, 1))
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


# --- movement ---------------------------------------------------------------------------------------------------

CUBE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("shape", "new"),
    [((2, 3, 4), (6, 4)), ((2, 3, 4), (2, 12)), ((6, 4), (2, 3, 4)), ((2, 3, 4), (4, 6)), ((4, 6), (3, 2, 4)),
     ((1, 6, 1), (6,)), ((6,), (1, 2, 1, 3)), ((), (1, 1)), ((1,), ()), ((0, 3), (5, 0)), ((2, 5, 3), (10, 3, 1))],
)  # fmt: skip
def test_reshape(shape: tuple[int, ...], new: tuple[int, ...]) -> None:
    x = normal(*shape)
    np.testing.assert_array_equal(one("reshape", x, shape=new), x.reshape(new))


def test_reshape_computes_no_more_than_it_must() -> None:
    (stage,) = dag(OPERATORS["reshape"].define([placeholder((2, 3, 4), "x")], {"shape": (2, 1, 3, 4)})).computes
    assert reads(stage.body)[0].index == (stage.space[0], stage.space[2], stage.space[3])


def test_views_and_copies() -> None:
    np.testing.assert_array_equal(one("transpose", CUBE, perm=(2, 0, 1)), CUBE.transpose(2, 0, 1))
    np.testing.assert_array_equal(one("transpose", CUBE), CUBE.T)
    np.testing.assert_array_equal(one("expand", CUBE[:, :1], shape=(3, 1)), np.broadcast_to(CUBE[:, :1], (2, 3, 4)))
    np.testing.assert_array_equal(one("tile", CUBE[:, :1], repeats=(1, 2, 3)), np.tile(CUBE[:, :1], (1, 2, 3)))
    np.testing.assert_array_equal(one("tile", CUBE, repeats=(0, 2, 3)), np.tile(CUBE, (0, 2, 3)))
    parts = [normal(2, n, 3) for n in (1, 0, 4, 2, 3)]
    np.testing.assert_array_equal(one("concat", *parts, axis=-2), np.concatenate(parts, axis=1))
    backwards = one("slice", CUBE, starts=(1, 0, 3), steps=(-1, 2, -2), sizes=(2, 2, 2))
    np.testing.assert_array_equal(backwards, CUBE[::-1, ::2, ::-2])
    assert one("slice", CUBE, starts=(0, 0, 0), sizes=(2, 0, 4)).shape == (2, 0, 4)
    wide = one("concat", *[np.full((1, 2), i, np.float32) for i in range(300)], axis=0)
    np.testing.assert_array_equal(wide[:, 0], np.arange(300))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("pads", [(1, 2, 0, 2), (3, 0, 1, 1), (0, 4, 0, 7)])
def test_pad(mode: str, pads: tuple[int, ...]) -> None:
    x = normal(4, 3)
    widths = list(zip(pads[:2], pads[2:], strict=True))
    np.testing.assert_array_equal(one("pad", x, pads=pads, mode=mode), np.pad(x, widths, mode=mode))


def test_pads_crop_and_take_a_run_time_value() -> None:
    x = normal(4, 5)
    cropped = one("pad", x, np.asarray(7, np.float32), pads=(-1, 2, 1, -2))
    np.testing.assert_array_equal(cropped, np.pad(x[1:, :-2], [(0, 1), (2, 0)], constant_values=7))
    np.testing.assert_array_equal(one("pad", x, pads=(-1, 0, -1, -3), mode="reflect"), x[1:-1, :-3])
    np.testing.assert_array_equal(one("pad", x.astype(bool), pads=(0, 0, 1, 0))[-1], np.zeros(5, bool))


def test_blocks() -> None:
    x = normal(2, 12, 3, 4)
    dcr = x.reshape(2, 2, 2, 3, 3, 4).transpose(0, 3, 4, 1, 5, 2).reshape(2, 3, 6, 8)
    crd = x.reshape(2, 3, 2, 2, 3, 4).transpose(0, 1, 4, 2, 5, 3).reshape(2, 3, 6, 8)
    for mode, expected in (("DCR", dcr), ("CRD", crd)):
        np.testing.assert_array_equal(one("depth_to_space", x, block=2, mode=mode), expected)
        np.testing.assert_array_equal(one("space_to_depth", expected, block=2, mode=mode), x)
    last_ = one("depth_to_space", x.transpose(0, 2, 3, 1), block=2, layout="NHWC")
    np.testing.assert_array_equal(last_, dcr.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_gathers(dtype: str) -> None:
    i = np.array([[0, -1], [1, -2]], dtype)
    for axis in (0, 1, -1):
        np.testing.assert_array_equal(one("gather", CUBE, i, axis=axis), np.take(CUBE, i % CUBE.shape[axis], axis=axis))
    np.testing.assert_array_equal(one("gather", CUBE, np.asarray(-1, dtype), axis=1), CUBE[:, -1])
    j = np.array([[-1, 0, 3], [2, -3, 1]], dtype)
    elements = one("gather_elements", CUBE[0], np.array([[-1, 0, 1, -2]], dtype), axis=0)
    np.testing.assert_array_equal(elements, [[8, 1, 6, 7]])
    np.testing.assert_array_equal(one("gather_nd", CUBE, np.array([[1, -1], [0, 0]], dtype)), CUBE[[1, 0], [2, 0]])
    np.testing.assert_array_equal(
        one("gather_nd", CUBE[:, 0], j[..., None], batch_dims=1), np.take_along_axis(CUBE[:, 0], j % 4, 1)
    )


def test_indices_out_of_range_are_refused_and_never_read() -> None:
    for operator, indices, attributes in (
        ("gather", np.array([0, 3]), {"axis": 1}),
        ("gather_elements", np.full((1, 1, 1), -4), {"axis": 1}),
        ("gather_nd", np.array([[0, 3]]), {}),
    ):
        with pytest.raises(IndexError, match=r"node: index (3|-4) is outside -3\.\.2"):
            one(operator, CUBE, indices, **attributes)
    x, i = placeholder((3,), "x"), placeholder((2,), "i", "int64")
    d = dag(OPERATORS["gather"].define([x, i], {}))
    out = evaluate(d, {"x": np.arange(3), "i": np.array([99, -99])})
    np.testing.assert_array_equal(out["gather"], [2, 0])  # clamped, as memory must be safe without the check


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters(reduction: str) -> None:
    f = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}.get(reduction)
    x, i, u = normal(4, 3), np.array([[1, -1, 0], [1, 2, 3]]), normal(2, 3)
    expected = x.copy()
    for row, column in itertools.product(range(2), range(3)):
        at = (i[row, column], column)
        expected[at] = u[row, column] if f is None else f(expected[at], u[row, column])
    np.testing.assert_allclose(one("scatter_elements", x, i, u, axis=0, reduction=reduction), expected, rtol=1e-6)
    narrow = one("scatter_elements", x, i[:, :2], u[:, :2], axis=0, reduction=reduction)
    np.testing.assert_array_equal(narrow[:, 2], x[:, 2])
    rows, news = np.array([[2], [-4], [2]]), normal(3, 3)
    expected = x.copy()
    for r, new in zip(rows[:, 0], news, strict=True):
        expected[r] = new if f is None else f(expected[r], new)
    np.testing.assert_allclose(one("scatter_nd", x, rows, news, reduction=reduction), expected, rtol=1e-6)


def test_one_hot_and_top_k() -> None:
    hot = one("one_hot", np.array([[1, -1], [5, 0]]), np.array([2, 7], np.float32), depth=3, axis=1)
    np.testing.assert_array_equal(hot[0].T, [[2, 7, 2], [2, 2, 7]])
    np.testing.assert_array_equal(hot[1].T, [[2, 2, 2], [7, 2, 2]])
    x = np.array([[3, 1, 3, 2], [5, 5, 5, 4]], np.float32)
    values, indices = run("top_k", x, k=3, axis=1)
    np.testing.assert_array_equal(values, [[3, 3, 2], [5, 5, 5]])
    np.testing.assert_array_equal(indices, [[0, 2, 3], [0, 1, 2]])
    np.testing.assert_array_equal(run("top_k", x, k=2, axis=1, largest=False)[1], [[1, 3], [3, 0]])


@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize(("size", "numerator", "offset", "denominator"), [(8, 1, 0, 2), (6, 4, -1, 6), (3, 3, 0, 2)])
def test_resize_nearest(rounding: str, size: int, numerator: int, offset: int, denominator: int) -> None:
    x = normal(4, 2)
    at = np.clip((np.arange(size) * numerator + offset) / denominator, 0, 3)
    rounded = {
        "floor": np.floor, "ceil": np.ceil,
        "round_prefer_floor": lambda v: np.ceil(v - 0.5), "round_prefer_ceil": lambda v: np.floor(v + 0.5),
    }[rounding](at)  # fmt: skip
    how = {"sizes": (size, 2), "numerator": (numerator, 1), "offset": (offset, 0), "denominator": (denominator, 1)}
    np.testing.assert_array_equal(one("resize", x, mode="nearest", rounding=rounding, **how), x[rounded.astype(int)])
    low = np.floor(at).astype(int)
    share = (at - low)[:, None]
    expected = x[low] * (1 - share) + x[np.minimum(low + 1, 3)] * share
    np.testing.assert_allclose(one("resize", x, mode="linear", **how), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
def test_grid_sample_at_cells_and_beyond(mode: str, padding: str, corners: bool) -> None:
    """On the centres of cells every mode reads the cell itself; beyond the border the padding decides."""
    x, places = normal(1, 2, 4, 5), np.stack(np.meshgrid(np.arange(-3, 8), np.arange(-3, 8), indexing="ij"), -1)
    cells = places.astype(np.float64)
    sizes = np.array([4, 5])
    unit = cells / (sizes - 1) * 2 - 1 if corners else (cells + 0.5) / sizes * 2 - 1
    how: dict[str, Attribute] = {"mode": mode, "padding": padding, "align_corners": corners}
    y = one("grid_sample", x, unit[None, ..., ::-1].astype(np.float32), **how)
    inside = ((places >= 0) & (places < sizes)).all(-1)
    folded = np.clip(places, 0, sizes - 1)
    if padding == "reflection":
        period = 2 * (sizes - 1) if corners else 2 * sizes
        phase = places % period
        folded = np.minimum(phase, period - phase if corners else period - 1 - phase)
    expected = x[0][:, folded[..., 0], folded[..., 1]] * (inside if padding == "zeros" else 1)
    np.testing.assert_allclose(y[0], expected, rtol=1e-3, atol=2e-5)


# --- what makes no sense ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "shapes", "attributes", "words"),
    [
        ("matmul", [(2, 3), (4, 5)], {}, "inner dimensions 3 and 4 differ"),
        ("gemm", [(2, 3), (4, 5)], {}, "inner dimensions 3 and 4 differ"),
        ("add", [(2, 3), (4,)], {}, "do not broadcast"),
        ("conv", [(1, 4, 8, 8), (8, 3, 3, 3)], {}, "4 channels in 1 groups"),
        ("conv", [(1, 4, 8, 8), (8, 4, 3, 3)], {"strides": (0, 1)}, "positive"),
        ("conv", [(1, 4, 8, 8), (8, 4, 3, 3)], {"pads": (1, 1)}, "4 integers"),
        ("conv", [(1, 4, 8, 8), (8, 4, 9, 9)], {}, "a window over 9 cells does not fit into 8"),
        ("conv", [(1, 4, 8, 8), (8, 4, 3, 3)], {"layout": "NWC"}, "layout NWC"),
        ("max_pool", [(1, 4, 8, 8)], {}, "attribute kernel"),
        ("reshape", [(2, 3)], {"shape": (4,)}, "6 elements"),
        ("transpose", [(2, 3)], {"perm": (0, 0)}, "no permutation"),
        ("concat", [(2, 3), (3, 4)], {"axis": 0}, "along dimension 0"),
        ("slice", [(4,)], {"starts": (2,), "sizes": (3,)}, "leaves the tensor"),
        ("reduce_sum", [(2, 3)], {"axes": (2,)}, "axis 2 is outside"),
        ("reduce_sum", [(2, 3)], {"axes": (1, -1)}, "twice"),
        ("resize", [(2,)], {"sizes": (2, 2), "numerator": (1,), "offset": (0,), "denominator": (1,)}, "1 entries each"),
        ("pad", [(2,)], {"pads": (0, 0), "mode": "magic"}, "not one of constant, edge"),
        ("einsum", [(2, 3)], {"equation": "i->i"}, "does not describe 2 dimensions"),
        ("relu", [], {}, "input 0 is missing"),
        ("exp", [((2,), "int32")], {}, "needs floats"),
        ("add", [(2,), ((2,), "int32")], {}, "cast one of them"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(operator: str, shapes: list, attributes: dict[str, Attribute], words: str) -> None:
    typed = [s if s and isinstance(s[-1], str) else (s, "float32") for s in shapes]
    with pytest.raises(ValueError, match=words):
        infer(operator, [Value("x", shape, dtype) for shape, dtype in typed], attributes)


def test_every_operator_is_tested_here() -> None:
    elsewhere = {"conv_phases"}  # with the pass that makes it
    text = Path(__file__).read_text()
    assert not [n for n in OPERATORS if f'"{n}"' not in text and n not in elsewhere]
