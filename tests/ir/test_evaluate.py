"""The oracle against NumPy and against itself: both paths, blocks, guards, integers, magnitudes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir import dsl, evaluate, products
from ir.compute import Dag
from ir.dsl import cast, combiner, compute, dag, maximum, placeholder, reduce, reduce_axis, select
from ir.evaluate import magnitude
from ir.expr import all_of, call, le, lt
from ir.graph import Graph, Node, Value
from ir.products import as_product

RNG = [np.random.default_rng(0)]


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order() -> None:
    RNG[0] = np.random.default_rng(1)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG[0].standard_normal(shape).astype(dtype)


def value(d: Dag, **inputs: np.ndarray) -> np.ndarray:
    (out,) = evaluate.evaluate(d, inputs).values()
    return out


def conv(stride: int, dilation: int, groups: int) -> Dag:
    """Padded by 1, channels first, 3 x 3."""
    x, w = placeholder((2, 4, 9, 7), "x"), placeholder((6, 4 // groups, 3, 3), "w")
    ky, kx, c = reduce_axis(3), reduce_axis(3), reduce_axis(4 // groups)

    def pad(n: dsl.Axis, ch: dsl.Axis, y: dsl.Axis, z: dsl.Axis) -> dsl.Expr:
        return select(all_of(le(1, y), lt(y, 10), le(1, z), lt(z, 8)), x[n, ch, y - 1, z - 1], 0)

    p = compute((2, 4, 11, 9), pad, "pad")
    rows, columns = (11 - 2 * dilation - 1) // stride + 1, (9 - 2 * dilation - 1) // stride + 1

    def element(n: dsl.Axis, o: dsl.Axis, y: dsl.Axis, z: dsl.Axis) -> dsl.Reduction:
        channel = o // (6 // groups) * (4 // groups) + c
        at = p[n, channel, y * stride + ky * dilation, z * stride + kx * dilation]
        return dsl.sum(at * w[o, c, ky, kx], [c, ky, kx])

    return dag([compute((2, 6, rows, columns), element, "conv")])


@pytest.mark.parametrize(("stride", "dilation", "groups"), [(1, 1, 1), (2, 1, 2), (1, 2, 1), (3, 2, 2)])
def test_products_are_recognised_and_agree_with_the_general_path(
    stride: int, dilation: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    d, x, w = conv(stride, dilation, groups), normal(2, 4, 9, 7), normal(6, 4 // groups, 3, 3)
    tensors = {"pad": np.zeros((2, 4, 11, 9)), "w": w}
    assert as_product(d.stage("conv"), tensors) is not None
    fast, size = value(d, x=x, w=w), magnitude(d, {"x": x, "w": w})["conv"]
    monkeypatch.setattr(evaluate, "as_product", lambda *_: None)
    np.testing.assert_allclose(fast, value(d, x=x, w=w), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(size, magnitude(d, {"x": x, "w": w})["conv"], rtol=1e-12)


@pytest.mark.parametrize("points", [1, 7, 64])
def test_blocks_do_not_change_values(points: int, monkeypatch: pytest.MonkeyPatch) -> None:
    d, x, w = conv(2, 1, 1), normal(2, 4, 9, 7), normal(6, 4, 3, 3)
    whole = evaluate.evaluate(d, {"x": x, "w": w}, "float64")["conv"]
    monkeypatch.setattr(evaluate, "GENERAL_POINTS", points)
    monkeypatch.setattr(products, "OPERAND_POINTS", points)
    np.testing.assert_allclose(evaluate.evaluate(d, {"x": x, "w": w}, "float64")["conv"], whole, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(m=st.integers(0, 5), n=st.integers(0, 5), k=st.integers(0, 5), b=st.integers(0, 3))
def test_batched_products_of_any_extent(m: int, n: int, k: int, b: int) -> None:
    p, q, r = placeholder((b, m, k), "p"), placeholder((k, b, n), "q"), reduce_axis(k)
    d = dag([compute((m, b, n), lambda i, h, j: dsl.sum(p[h, i, r] * q[r, h, j], r), "y")])
    x, y = normal(b, m, k), normal(k, b, n)
    expected = np.einsum("hik,khj->ihj", x.astype("float64"), y.astype("float64"))
    np.testing.assert_allclose(value(d, p=x, q=y), expected, rtol=1e-4, atol=1e-5)


def test_reads_outside_are_errors_unless_a_select_discards_them() -> None:
    x = placeholder((4,), "x")
    inside = dag([compute((6,), lambda i: select(all_of(le(1, i), lt(i, 5)), x[i - 1], 7), "y")])
    np.testing.assert_array_equal(value(inside, x=np.arange(4)), [7, 0, 1, 2, 3, 7])
    outside = dag([compute((6,), lambda i: x[i - 1], "y")])
    with pytest.raises(IndexError, match=r"index -1 of x, dimension 0, is outside 0\.\.3"):
        value(outside, x=np.arange(4))


def test_nothing_can_be_read_and_nothing_computed() -> None:
    x, k = placeholder((0, 3), "x"), reduce_axis(0)
    assert value(dag([compute((0, 3), lambda i, j: x[i, j] + 1, "y")]), x=normal(0, 3)).shape == (0, 3)
    np.testing.assert_array_equal(
        value(dag([compute((3,), lambda j: dsl.sum(x[k, j], k))]), x=normal(0, 3)), np.zeros(3)
    )
    worst = value(dag([compute((3,), lambda j: dsl.max(x[k, j], k))]), x=normal(0, 3))
    np.testing.assert_array_equal(worst, np.full(3, -np.inf))
    padded = dag([compute((2,), lambda i: select(lt(i, 0), x[i, 0], 5), "y")])
    np.testing.assert_array_equal(value(padded, x=normal(0, 3)), [5, 5])


def test_integers_wrap_and_divide_as_in_c() -> None:
    a, b = placeholder((6,), "a", "int8"), placeholder((6,), "b", "int8")
    x, y = np.array([100, -128, 7, -7, 7, -7], np.int8), np.array([100, -1, 2, 2, -2, -2], np.int8)

    def of(name: str) -> np.ndarray:
        return value(dag([compute((6,), lambda i: call(name, a[i], b[i]), "y")]), a=x, b=y)

    np.testing.assert_array_equal(of("add"), np.array([-56, 127, 9, -5, 5, -9], np.int8))
    np.testing.assert_array_equal(of("div")[2:], [3, -3, -3, 3])
    np.testing.assert_array_equal(of("mod")[2:], [1, 1, -1, -1])
    np.testing.assert_array_equal(of("fmod")[2:], [1, -1, 1, -1])
    k = reduce_axis(6)
    total = value(dag([compute((), lambda: dsl.sum(a[k], k), "s")]), a=np.full(6, 100, np.int8))
    assert total.dtype == np.int8 and total == np.int8(600 - 512)
    product = value(dag([compute((), lambda: dsl.sum(a[k] * b[k], k), "s")]), a=x, b=y)
    assert product == (x.astype(int) @ y).astype(np.int8)


def test_casts_truncate() -> None:
    x = placeholder((4,), "x")
    d = dag([compute((4,), lambda i: cast(x[i], "int32"), "y")])
    np.testing.assert_array_equal(value(d, x=np.array([1.9, -1.9, 0.5, -0.5])), [1, -1, 0, 0])


def test_double_replaces_floats_alone() -> None:
    x, n = placeholder((3,), "x", "float16"), placeholder((3,), "n", "int32")
    d = dag([compute((3,), lambda i: cast(x[i], "float32") + 1, "y"), compute((3,), lambda i: n[i] + 1, "m")])
    out = evaluate.evaluate(d, {"x": normal(3), "n": np.arange(3)}, "float64")
    assert out["y"].dtype == np.float64 and out["m"].dtype == np.int32


@pytest.mark.parametrize("commutes", [False, True])
def test_user_combiners(commutes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """x * y + x + y is associative and commutative; 2 x + y is neither, and counts as a left fold."""
    monkeypatch.setattr(evaluate, "GENERAL_POINTS", 16)
    x, k = placeholder((2, 37), "x"), reduce_axis(37)
    join = (lambda a, b: a * b + a + b) if commutes else (lambda a, b: a * 2 + b)
    c = combiner(join, 0.0, commutes)
    d = dag([compute((2,), lambda i: reduce(x[i, k], k, c), "y")])
    given_ = normal(2, 37) * 0.1
    expected = np.zeros(2)
    for column in given_.T.astype(np.float64):
        expected = join(expected, column)
    np.testing.assert_allclose(evaluate.evaluate(d, {"x": given_}, "float64")["y"], expected, rtol=1e-9)


def test_maxima_keep_nan() -> None:
    x, k = placeholder((3, 2), "x"), reduce_axis(2)
    d = dag([compute((3,), lambda i: dsl.max(maximum(x[i, k], 0), k), "y")])
    np.testing.assert_array_equal(value(d, x=np.array([[np.nan, 1], [1, np.nan], [-1, -np.inf]])), [np.nan, np.nan, 0])


def test_magnitudes_bound_the_error_of_float32() -> None:
    """Random order of summation, cancellation, functions on top: |float32 - double| <= c u magnitude."""
    a, b, k = placeholder((8, 300), "a"), placeholder((300, 8), "b"), reduce_axis(300)
    c = compute((8, 8), lambda i, j: dsl.sum(a[i, k] * b[k, j], k), "c")
    e = compute((8, 8), lambda i, j: call("exp", c[i, j] * 0.05) - call("tanh", c[i, j]) / 3, "e")
    d, x, y = dag([c, e]), normal(8, 300), normal(300, 8)
    size = magnitude(d, {"a": x, "b": y})
    np.testing.assert_allclose(size["c"], np.abs(x) @ np.abs(y), rtol=1e-5)
    double, single = evaluate.evaluate(d, {"a": x, "b": y}, "float64"), evaluate.evaluate(d, {"a": x, "b": y})
    for name in d.outputs:
        assert np.all(np.abs(double[name] - single[name]) <= 40 * 2.0**-24 * size[name])


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "max", "min", "pow"])
def test_magnitudes_bound_a_change_of_both_operands(name: str) -> None:
    """First order: a relative change u of each operand changes the value by at most u * magnitude (and a little)."""
    a, b = placeholder((50,), "a", "float64"), placeholder((50,), "b", "float64")
    d = dag([compute((50,), lambda i: call(name, a[i], b[i]), "y")])
    x, y, u = np.abs(normal(50, dtype="float64")) + 0.1, normal(50, dtype="float64"), 1e-7
    moved = value(d, a=x * (1 + u), b=y * (1 - u))
    slack = 1 + 1e-5
    assert np.all(np.abs(moved - value(d, a=x, b=y)) <= 2 * u * slack * magnitude(d, {"a": x, "b": y})["y"])


def test_missing_and_misshapen_inputs() -> None:
    d = dag([compute((2,), lambda i, x=placeholder((2,), "x"): x[i], "y")])
    with pytest.raises(ValueError, match="no value for input x"):
        evaluate.evaluate(d, {})
    with pytest.raises(ValueError, match=r"shape \(3,\), declared is \(2,\)"):
        evaluate.evaluate(d, {"x": np.zeros(3)})


def test_a_graph_runs_node_by_node() -> None:
    names = ("x", "i", "g", "y")
    shapes = ((5, 2), (3,), (3, 2), (3, 2))
    values = {n: Value(n, s, "int64" if n == "i" else "float32") for n, s in zip(names, shapes, strict=True)}
    nodes = (Node("n0", "gather", ("x", "i"), ("g",), {"axis": 0}), Node("n1", "relu", ("g",), ("y",)))
    graph = Graph("g", ("x", "i"), ("y", "g"), nodes, values, {})
    x = normal(5, 2)
    y, g = evaluate.run_graph(graph, {"x": x, "i": np.array([4, -1, 0])})
    np.testing.assert_array_equal(g, x[[4, -1, 0]])
    np.testing.assert_array_equal(y, np.maximum(g, 0))
    with pytest.raises(IndexError, match=r"n0: index 5 is outside -5\.\.4"):
        evaluate.run_graph(graph, {"x": x, "i": np.array([4, 5, 0])})
    with pytest.raises(ValueError, match="no value for input i"):
        evaluate.run_graph(graph, {"x": x})
