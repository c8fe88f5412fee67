"""Small odd DAGs that property tests share: prime sizes, ones, tails, strides, padding, guards, every kind of
reduction, dtypes, several stages and outputs. Each takes milliseconds to evaluate element by element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ir.compute import Dag
from ir.dsl import (
    Handle,
    Stage,
    all_of,
    cast,
    combiner,
    compute,
    dag,
    eq,
    exp,
    ge,
    le,
    lt,
    max,
    maximum,
    min,
    ne,
    placeholder,
    prod,
    reduce,
    reduce_axis,
    rsqrt,
    select,
    sqrt,
    sum,
    tanh,
)
from ir.expr import Expr


def matmul(
    m: int,
    n: int,
    k: int,
    *,
    constant: bool = True,
    dtype: str = "float32",
    left: Handle | None = None,
    name: str = "C",
) -> Stage:
    a = left if left is not None else placeholder((m, k), "A", dtype)
    b = placeholder((k, n), f"B{name}" if left is not None else "B", dtype, constant)
    r = reduce_axis(k)
    return compute((m, n), lambda i, j: sum(a[i, r] * b[r, j], r), name)


def relu(x: Stage, name: str = "relu") -> Stage:
    return compute(x.shape, lambda *i: maximum(x[i], 0.0), name)


def matrix_vector(m: int, k: int) -> Stage:
    """Lanes run along the reduction."""
    a, x = placeholder((m, k), "A"), placeholder((k,), "v")
    r = reduce_axis(k)
    return compute((m,), lambda i: sum(a[i, r] * x[r], r), "y")


def padded(x: Handle, by: int) -> Stage:
    n, h, w, c = x.extents
    return compute(
        (n, h + 2 * by, w + 2 * by, c),
        lambda n, y, z, c: select(
            all_of(le(by, y), lt(y, h + by), le(by, z), lt(z, w + by)), x[n, y - by, z - by, c], 0.0
        ),
        "pad",
    )


def conv(n: int, h: int, w: int, c: int, o: int, k: int, stride: int, pad: int) -> Stage:
    x = placeholder((n, h, w, c), "x")
    weight = placeholder((k, k, c, o), "w", constant=True)
    source = padded(x, pad) if pad else x
    ky, kx, ci = reduce_axis(k, "ky"), reduce_axis(k, "kx"), reduce_axis(c, "ci")
    shape = (n, (h + 2 * pad - k) // stride + 1, (w + 2 * pad - k) // stride + 1, o)
    return compute(
        shape,
        lambda b, y, z, o: sum(source[b, y * stride + ky, z * stride + kx, ci] * weight[ky, kx, ci, o], (ky, kx, ci)),
        "conv",
    )


def conv_bias_relu() -> Stage:
    y = conv(1, 7, 5, 3, 19, 3, 1, 1)
    bias = placeholder((19,), "bias", constant=True)
    return relu(compute(y.shape, lambda n, h, w, o: y[n, h, w, o] + bias[o], "biased"))


def filtered() -> Stage:
    """Channels enough that minimal filtering pays."""
    return relu(conv(1, 5, 4, 16, 34, 3, 1, 1))


def filtered_phases() -> Stage:
    """Of a transposed convolution: each phase begins its own way on."""
    x, w = placeholder((6, 6, 24), "x"), placeholder((2, 2, 2, 2, 24, 34), "w", constant=True)
    ky, kx, c = reduce_axis(2, "ky"), reduce_axis(2, "kx"), reduce_axis(24, "c")
    return compute(
        (4, 2, 4, 2, 34),
        lambda y, p, z, q, o: sum(x[y + p + ky, z + q + kx, c] * w[p, q, ky, kx, c, o], (ky, kx, c)),
        "phases",
    )


def filtered_line() -> Stage:
    x, w = placeholder((14, 32), "x"), placeholder((34, 3, 32), "w", constant=True)
    k, c = reduce_axis(3, "k"), reduce_axis(32, "c")
    return compute((12, 34), lambda i, o: sum(x[i + k, c] * w[o, k, c], (k, c)), "line")


def depthwise(stride: int) -> Stage:
    x, w = placeholder((1, 9, 7, 21), "x"), placeholder((3, 3, 21), "w", constant=True)
    source = padded(x, 1)
    ky, kx = reduce_axis(3, "ky"), reduce_axis(3, "kx")
    return compute(
        (1, 8 // stride + 1, 6 // stride + 1, 21),
        lambda n, y, z, c: sum(source[n, y * stride + ky, z * stride + kx, c] * w[ky, kx, c], (ky, kx)),
        "depthwise",
    )


def depthwise_first(stride: int) -> Stage:
    """Channels first: lanes run along a row that is guarded at both ends and, at stride 2, read every other time."""
    x, w = placeholder((3, 9, 37), "x"), placeholder((3, 3, 3), "w", constant=True)
    source = compute(
        (3, 11, 39),
        lambda c, y, z: select(all_of(le(1, y), lt(y, 10), le(1, z), lt(z, 38)), x[c, y - 1, z - 1], 0.0),
        "pad",
    )
    ky, kx = reduce_axis(3, "ky"), reduce_axis(3, "kx")
    return compute(
        (3, 8 // stride + 1, 36 // stride + 1),
        lambda c, y, z: sum(source[c, y * stride + ky, z * stride + kx] * w[c, ky, kx], (ky, kx)),
        "first",
    )


def turned() -> Stage:
    """Blocks of lanes x lanes, and what is left of them on two sides."""
    x = placeholder((2, 21, 37), "x")
    return compute((37, 2, 21), lambda k, n, i: x[n, i, k], "turned")


def grouped() -> Stage:
    x, w = placeholder((1, 6, 3, 5), "x"), placeholder((3, 3, 5, 17), "w", constant=True)
    k, c = reduce_axis(3, "k"), reduce_axis(5, "c")
    return compute((1, 4, 3, 17), lambda n, y, g, o: sum(x[n, y + k, g, c] * w[k, g, c, o], (k, c)), "grouped")


def transposed_conv() -> Stage:
    """Stride 2 with holes that a guard skips: indices that are not linear."""
    x, w = placeholder((5, 3), "x"), placeholder((3, 3, 7), "w", constant=True)
    k, c = reduce_axis(3, "k"), reduce_axis(3, "c")

    def element(y: Expr, o: Expr) -> Expr:
        at = y + 2 - k
        guard = all_of(eq(at % 2, 0), lt(at // 2, 5))
        return select(guard, x[at // 2, c], 0.0) * w[k, c, o]

    return compute((9, 7), lambda y, o: sum(element(y, o), (k, c)), "up")


def pooled(join: Callable[..., Expr], stride: int, name: str) -> Stage:
    x = placeholder((1, 9, 7, 17), "x")
    ky, kx = reduce_axis(3, "ky"), reduce_axis(3, "kx")
    return compute(
        (1, 6 // stride + 1, 4 // stride + 1, 17),
        lambda n, y, z, c: join(x[n, y * stride + ky, z * stride + kx, c], (ky, kx)),
        name,
    )


def conv_then_pool() -> Stage:
    y = relu(conv(1, 8, 8, 3, 18, 3, 1, 1))
    ky, kx = reduce_axis(2, "ky"), reduce_axis(2, "kx")
    return compute((1, 4, 4, 18), lambda n, h, w, c: max(y[n, h * 2 + ky, w * 2 + kx, c], (ky, kx)), "pool")


def batch_transposed() -> Stage:
    q, v = placeholder((7, 2, 11), "q"), placeholder((19, 2, 11), "v")
    d = reduce_axis(11, "d")
    return compute((2, 7, 19), lambda h, i, j: sum(q[i, h, d] * v[j, h, d], d), "scores")


def softmax(m: int, n: int) -> Stage:
    x = placeholder((m, n), "x")
    k = reduce_axis(n)
    top = compute((m,), lambda i: max(x[i, k], k), "top")
    e = compute((m, n), lambda i, j: exp(x[i, j] - top[i]), "e")
    total = compute((m,), lambda i: sum(e[i, k], k), "total")
    return compute((m, n), lambda i, j: e[i, j] / total[i], "softmax")


def layer_norm() -> Stage:
    x, scale = placeholder((5, 37), "x"), placeholder((37,), "scale", constant=True)
    k = reduce_axis(37)
    mean = compute((5,), lambda i: sum(x[i, k], k), "mean")
    centred = compute((5, 37), lambda i, j: x[i, j] - mean[i] * (1 / 37), "centred")
    var = compute((5,), lambda i: sum(centred[i, k] * centred[i, k], k), "var")
    return compute((5, 37), lambda i, j: centred[i, j] * rsqrt(var[i] * (1 / 37) + 1e-5) * scale[j], "norm")


def attention() -> Stage:
    scores = batch_transposed()
    w = placeholder((19, 2, 13), "values")
    j = reduce_axis(19, "j")
    return compute((7, 2, 13), lambda i, h, d: sum(tanh(scores[h, i, j]) * w[j, h, d], j), "mixed")


def total(m: int, n: int) -> Stage:
    x = placeholder((m, n), "x")
    i, j = reduce_axis(m, "i"), reduce_axis(n, "j")
    squares = compute((), lambda: sum(x[i, j] * x[i, j], (i, j)), "squares")
    return compute((), lambda: sqrt(squares[()]), "length")


def last_positive() -> Stage:
    """A combiner that is associative but must keep its order."""
    x = placeholder((6, 23), "x")
    k = reduce_axis(23)
    latest = combiner(lambda left, right: select(lt(0.0, right), right, left), 0.0, name="latest")
    return compute((6,), lambda i: reduce(maximum(x[i, k], 0.0), k, latest), "last")


def products() -> Stage:
    x = placeholder((9, 3, 5), "x")
    i, k = reduce_axis(3, "i"), reduce_axis(5, "k")
    return compute((9,), lambda n: prod(x[n, i, k] + 1.5, (i, k)), "product")


def quantised() -> Stage:
    a, b = placeholder((5, 18), "a", "uint8"), placeholder((18, 21), "b", "int8", constant=True)
    k = reduce_axis(18)
    acc = compute((5, 21), lambda i, j: sum(cast(a[i, k], "int32") * cast(b[k, j], "int32"), k), "acc")
    return compute((5, 21), lambda i, j: cast(acc[i, j], "float32") * 0.125, "scaled")


def counted() -> Stage:
    x = placeholder((4, 29), "x", "int64")
    k = reduce_axis(29)
    return compute((4,), lambda i: sum(select(ne(x[i, k] % 3, 0), x[i, k] // 2, 7), k), "counted")


def embedded() -> Stage:
    """The index is data."""
    table, at = placeholder((11, 13), "table"), placeholder((6,), "at", "int64")
    return compute((6, 13), lambda i, j: table[at[i] % 11, j] * 2.0, "embedded")


def joined() -> Stage:
    a, b = placeholder((3, 7), "a"), placeholder((3, 5), "b")
    whole = compute((3, 12), lambda i, j: select(lt(j, 7), a[i, j], select(ge(j, 7), b[i, j - 7], 0.0)), "whole")
    return compute((12, 3), lambda j, i: whole[i, j] * 3.0, "turned")


def blurred() -> Stage:
    """Two stencils in a row, so that regions grow towards the input."""
    x = placeholder((13, 11), "x")
    one = compute((11, 11), lambda i, j: tanh(x[i, j]) + x[i + 1, j] + x[i + 2, j], "down")
    return compute((11, 9), lambda i, j: one[i, j] * one[i, j + 1] + one[i, j + 2], "across")


def elementwise() -> Stage:
    x, z = placeholder((3, 5, 23), "x"), placeholder((5, 23), "z")
    t = compute((3, 5, 23), lambda i, j, k: tanh(x[i, j, k]) * z[j, k], "t")
    return compute((3, 5, 23), lambda i, j, k: t[i, j, k] * t[i, j, k] + x[i, j, k], "u")


def two_outputs() -> Dag:
    """The product leaves, and so do its rows' sums and maxima."""
    c = matmul(6, 18, 5)
    k = reduce_axis(18, "r")
    sums = compute((6,), lambda i: sum(c[i, k], k), "sums")
    tops = compute((6,), lambda i: max(c[i, k], k), "tops")
    return dag([c, sums, tops])


ZOO: dict[str, Dag] = {
    "matmul": dag([matmul(13, 37, 23)]),
    "matmul, operands at run time": dag([matmul(17, 33, 19, constant=False)]),
    "matmul and relu": dag([relu(matmul(7, 40, 11))]),
    "matmul, double": dag([matmul(5, 9, 7, dtype="float64")]),
    "matmul of ones": dag([matmul(1, 1, 1)]),
    "vector times matrix": dag([matmul(1, 29, 31)]),
    "matrix times vector": dag([matrix_vector(13, 71)]),
    "short rows times vector": dag([relu(matrix_vector(5, 3))]),
    "two matmuls": dag([matmul(11, 19, 13, left=matmul(11, 13, 17, name="C"), name="D")]),
    "batch of transposed matmuls": dag([batch_transposed()]),
    "attention": dag([attention()]),
    "conv, padded": dag([conv_bias_relu()]),
    "conv, stride 2": dag([conv(2, 9, 7, 3, 18, 3, 2, 0)]),
    "depthwise, channels first": dag([depthwise_first(1)]),
    "depthwise, channels first, stride 2": dag([depthwise_first(2)]),
    "turned": dag([turned()]),
    "conv, filtered": dag([filtered()]),
    "conv, filtered phases": dag([filtered_phases()]),
    "conv, filtered line": dag([filtered_line()]),
    "conv, 1x1": dag([conv(1, 5, 5, 20, 33, 1, 1, 0)]),
    "conv, grouped": dag([grouped()]),
    "conv, transposed": dag([transposed_conv()]),
    "conv and pool": dag([conv_then_pool()]),
    "depthwise": dag([depthwise(1)]),
    "depthwise, stride 2": dag([depthwise(2)]),
    "max pool": dag([pooled(max, 2, "pool")]),
    "min pool": dag([pooled(min, 1, "pool")]),
    "softmax": dag([softmax(5, 37)]),
    "layer norm": dag([layer_norm()]),
    "total": dag([total(13, 17)]),
    "last positive": dag([last_positive()]),
    "products": dag([products()]),
    "quantised matmul": dag([quantised()]),
    "counted integers": dag([counted()]),
    "embedding": dag([embedded()]),
    "concatenated and turned": dag([joined()]),
    "blur": dag([blurred()]),
    "elementwise": dag([elementwise()]),
    "one element": dag([relu(compute((1,), lambda i: tanh(placeholder((1,), "x")[i]), "t"))]),
    "two outputs": two_outputs(),
}


def feeds(of: Dag, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for the inputs: floats around zero, integers over a small range."""
    rng = np.random.default_rng(seed)
    return {i.name: _values(i.shape, i.dtype, rng) for i in of.inputs}


def _values(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    low = 0 if np.dtype(dtype).kind == "u" else -20
    return rng.integers(low, 21, shape).astype(dtype)
