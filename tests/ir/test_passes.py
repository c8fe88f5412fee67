"""Passes: every graph computes what it did; and each pass does what its docstring draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from ir.compute import Dag
from ir.dsl import cast, compute, dag, placeholder, reduce_axis
from ir.dsl import max as maximum_over
from ir.dsl import sum as sum_over
from ir.evaluate import evaluate, run_graph
from ir.fuse import compose
from ir.graph import Graph
from ir.key import dag_text
from ir.passes import PASSES, optimise
from ir.passes.axes import drop_copies, drop_unit_axes, merge_axes, plain_axes, split_axes
from ir.passes.batch_norm import fold_batch_norms
from ir.passes.cleanup import (
    LARGEST_GROWTH,
    fold_constants,
    join_moves,
    merge_equal,
    remove_dead,
    remove_identities,
    turn_gemm_constants,
)
from ir.passes.layout import channels_last
from ir.passes.phases import split_phases
from ir.zoo.builder import Builder
from tests.ir.small import NETWORKS, assert_close, feeds, random_graph


def same(before: Graph, after: Graph) -> Graph:
    """`after` computes what `before` does."""
    given = feeds(before)
    assert_close(run_graph(after, given), run_graph(before, given))
    return after


def operators(graph: Graph) -> dict[str, int]:
    return dict(Counter(n.operator for n in graph.nodes))


# --- all together -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
def test_networks_compute_the_same(network: Callable[[], Graph]) -> None:
    graph = network()
    same(graph, optimise(graph))


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs_compute_the_same_after_every_pass(seed: int) -> None:
    before = graph = random_graph(seed)
    given = feeds(graph)
    want = run_graph(graph, given)
    for step in PASSES:
        graph = step.apply(graph)
        assert_close(run_graph(graph, given), want)
    assert (graph.inputs, graph.outputs) == (before.inputs, before.outputs)


@pytest.mark.parametrize("network", NETWORKS)
def test_optimising_twice_changes_nothing_more(network: Callable[[], Graph]) -> None:
    once = optimise(network())
    assert operators(optimise(once)) == operators(once)


def test_passes_leave_their_argument_alone() -> None:
    graph = NETWORKS[0]()
    nodes, constants = graph.nodes, dict(graph.constants)
    optimise(graph)
    assert graph.nodes is nodes
    assert graph.constants == constants


# --- cleanup ------------------------------------------------------------------------------------------------------


def test_known_values_are_folded() -> None:
    b = Builder("g")
    x, w = b.input("x", (3, 4)), b.constant(b.uniform((4, 3), -1, 1))
    y = b.node("add", x, b.node("transpose", b.node("exp", w), perm=(1, 0)))
    graph = b.graph(y)
    assert operators(same(graph, fold_constants(graph))) == {"add": 1}


def test_an_output_that_is_known_is_still_made() -> None:
    b = Builder("g")
    b.input("x", (3,))
    y = b.node("exp", b.constant(np.ones(3, np.float32)))
    graph = b.graph(y)
    assert operators(same(graph, fold_constants(graph))) == {"identity": 1}


def test_folding_does_not_blow_up_the_weights() -> None:
    b = Builder("g")
    y = b.node("expand", b.constant(np.zeros((1,), np.float32)), shape=(LARGEST_GROWTH + 2,))
    assert operators(fold_constants(b.graph(y))) == {"expand": 1}


def test_dead_nodes_and_constants_go() -> None:
    b = Builder("g")
    x = b.input("x", (3,))
    y = b.node("exp", x)
    b.node("add", y, b.constant(np.ones(3, np.float32), "unused"))
    graph = same(b.graph(y), remove_dead(b.graph(y)))
    assert operators(graph) == {"exp": 1}
    assert not graph.constants
    assert set(graph.values) == {"x", y}


def test_equal_nodes_are_computed_once() -> None:
    b = Builder("g")
    x = b.input("x", (3,))
    ones = [b.constant(np.ones(3, np.float32)) for _ in range(2)]
    a, c = (b.node("exp", b.node("add", x, one)) for one in ones)
    graph = b.graph(b.node("mul", a, c))
    assert operators(same(graph, remove_dead(merge_equal(graph)))) == {"add": 1, "exp": 1, "mul": 1}


def test_equal_outputs_keep_both_names() -> None:
    b = Builder("g")
    x = b.input("x", (3,))
    graph = b.graph(b.node("exp", x), b.node("exp", x))
    assert same(graph, merge_equal(graph)).outputs == graph.outputs


def test_identities_vanish_except_as_outputs() -> None:
    b = Builder("g")
    x = b.input("x", (3, 4))
    y = b.node("transpose", b.node("reshape", b.node("cast", x, to="float32"), shape=(3, 4)), perm=(0, 1))
    y = b.node("slice", b.node("pad", y, pads=(0, 0, 0, 0)), starts=(0, 0), sizes=(3, 4), steps=(1, 1))
    y = b.node("identity", b.node("exp", b.node("concat", y, axis=0)))
    assert operators(same(b.graph(y), remove_identities(b.graph(y)))) == {"exp": 1, "identity": 1}


def test_a_backward_slice_of_everything_is_no_identity() -> None:
    b = Builder("g")
    y = b.node("exp", b.node("slice", b.input("x", (3,)), starts=(2,), sizes=(3,), steps=(-1,)))
    assert operators(same(b.graph(y), remove_identities(b.graph(y)))) == {"slice": 1, "exp": 1}


def test_moves_in_a_row_are_one() -> None:
    b = Builder("g")
    y = b.node("transpose", b.node("transpose", b.input("x", (2, 3, 4)), perm=(1, 2, 0)), perm=(2, 1, 0))
    y = b.node("reshape", b.node("reshape", y, shape=(6, 4)), shape=(2, 12))
    graph = b.graph(y)
    assert operators(same(graph, remove_dead(join_moves(graph)))) == {"transpose": 1, "reshape": 1}


def test_gemm_constants_are_turned() -> None:
    b = Builder("g")
    y = b.linear(b.input("x", (3, 5)), 4)
    after = same(b.graph(y), turn_gemm_constants(b.graph(y)))
    assert after.nodes[0].attributes["trans_b"] is False


# --- batch norm ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_folds_into_convolutions(last: bool, groups: int, bias: bool) -> None:
    b = Builder("g", last=last)
    x = b.input("x", (2, 5, 7, 4) if last else (2, 4, 5, 7))
    graph = b.graph(b.batch_norm(b.conv(x, 6, (3, 2), (1, 2), groups=groups, bias=bias)))
    assert operators(same(graph, fold_batch_norms(graph))) == {"conv": 1}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_batch_norm_folds_into_transposed_convolutions(last: bool, groups: int) -> None:
    b = Builder("g", last=last)
    x = b.input("x", (2, 5, 3, 4) if last else (2, 4, 5, 3))
    y = b.transposed(x, b.uniform((4, 3, 3, 2), -1, 1), strides=(2, 2), groups=groups)
    graph = b.graph(b.batch_norm(y))
    assert operators(same(graph, fold_batch_norms(graph))) == {"conv_transpose": 1}


def test_batch_norm_folds_into_gemm() -> None:
    b = Builder("g")
    graph = b.graph(b.batch_norm(b.linear(b.input("x", (3, 5)), 4)))
    assert operators(same(graph, fold_batch_norms(graph))) == {"gemm": 1}


def test_batch_norm_alone_is_a_product_and_a_sum() -> None:
    b = Builder("g")
    graph = b.graph(b.batch_norm(b.node("relu", b.input("x", (2, 4, 3, 5)))))
    assert operators(same(graph, fold_batch_norms(graph))) == {"relu": 1, "mul": 1, "add": 1}


def test_batch_norm_stays_out_of_a_shared_convolution() -> None:
    b = Builder("g")
    y = b.conv(b.input("x", (1, 3, 5, 4)), 4, (3, 3), (1, 1))
    graph = b.graph(b.node("add", b.batch_norm(y), y))
    assert operators(same(graph, fold_batch_norms(graph))) == {"conv": 1, "mul": 1, "add": 2}


# --- transposed convolutions --------------------------------------------------------------------------------------

TRANSPOSED = [  # space, kernel, strides, pads, output padding, groups, channels of a group
    ((3, 5), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), 1, 9),
    ((3, 5), (4, 4), (2, 2), (1, 1, 1, 1), (0, 0), 1, 3),
    ((3, 5), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, 8),
    ((3, 5), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, 2),
    ((3, 4), (2, 5), (2, 3), (0, 2, 0, 1), (0, 2), 2, 4),
    ((4, 3), (3, 4), (1, 3), (2, 0, 1, 1), (0, 0), 1, 8),
    ((4, 3), (2, 2), (2, 2), (2, 1, 0, 1), (0, 0), 1, 8),
    ((4, 3), (2, 2), (3, 3), (0, 0, 0, 0), (1, 0), 1, 8),
    ((5,), (5,), (3,), (2,) * 2, (1,), 2, 3),
    ((2, 3, 2), (3, 2, 4), (2, 2, 2), (1, 0, 1) * 2, (1, 0, 0), 1, 8),
    ((2, 3, 2), (3, 2, 4), (2, 2, 2), (1, 0, 1) * 2, (1, 0, 0), 1, 2),
]  # fmt: skip


@pytest.mark.parametrize(("space", "kernel", "strides", "pads", "extra", "groups", "outs"), TRANSPOSED)
@pytest.mark.parametrize("bias", [False, True])
def test_phases_compute_the_same(
    space: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    extra: tuple[int, ...],
    groups: int,
    outs: int,
    bias: bool,
) -> None:
    b = Builder("g", last=True)
    w = b.uniform((2 * groups, outs, *kernel), -1, 1)
    more = [b.weight((outs * groups,), 1)] if bias else []
    x = b.input("x", (2, *space, 2 * groups))
    y = b.transposed(x, w, *more, strides=strides, pads=pads, output_padding=extra, groups=groups)
    after = same(b.graph(y), split_phases(b.graph(y)))
    assert "conv_transpose" not in operators(after)


def test_dilated_transposed_convolutions_stay() -> None:
    b = Builder("g", last=True)
    y = b.transposed(b.input("x", (1, 4, 5, 2)), b.uniform((2, 8, 3, 3), -1, 1), strides=(2, 2), dilations=(2, 1))
    assert operators(split_phases(b.graph(y))) == {"conv_transpose": 1}


# --- layout -------------------------------------------------------------------------------------------------------


def _image(b: Builder) -> str:
    """A value that lies channels-last."""
    return b.conv(b.input("x", (2, 3, 5, 7)), 4, (3, 3), (1, 1))


KEEPING: dict[str, Callable[[Builder, str], str]] = {
    "unary":      lambda b, x: b.node("relu", x),
    "channel":    lambda b, x: b.node("mul", x, b.constant(b.uniform((4, 1, 1), -1, 1))),
    "column":     lambda b, x: b.node("mul", x, b.constant(b.uniform((7,), -1, 1))),
    "scalar":     lambda b, x: b.node("mul", x, b.constant(np.array(2, np.float32))),
    "pixels":     lambda b, x: b.node("mul", x, b.constant(b.uniform((1, 5, 7), -1, 1))),
    "clip":       lambda b, x: b.node("clip", x, b.constant(np.array(-0.1, np.float32)), b.constant(np.array(0.1, np.float32))),
    "where":      lambda b, x: b.node("where", b.node("lt", x, b.constant(np.zeros((4, 1, 1), np.float32))), b.node("neg", x), x),
    "prelu":      lambda b, x: b.node("prelu", x, b.constant(b.uniform((4, 1, 1), -1, 1))),
    "max pool":   lambda b, x: b.node("max_pool", x, kernel=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1)),
    "mean pool":  lambda b, x: b.node("average_pool", x, kernel=(2, 3), strides=(2, 2), ceil_mode=True),
    "concat":     lambda b, x: b.node("concat", x, b.node("relu", x), axis=-3),
    "softmax":    lambda b, x: b.node("softmax", x, axes=(1,)),
    "log":        lambda b, x: b.node("log_softmax", x),
    "mean":       lambda b, x: b.node("mul", x, b.node("reduce_mean", x, axes=(-1, 2), keepdims=True)),
    "slice":      lambda b, x: b.node("slice", x, starts=(0, 1, 4, 0), sizes=(2, 2, 5, 3), steps=(1, 1, -1, 2)),
    "pad":        lambda b, x: b.node("pad", x, pads=(0, 0, 1, 2, 0, 1, 0, 0), mode="reflect"),
    "tile":       lambda b, x: b.node("tile", x, repeats=(1, 1, 2, 1)),
    "expand":     lambda b, x: b.node("expand", b.node("reduce_max", x, axes=(2,)), shape=(2, 4, 3, 7)),
    "resize":     lambda b, x: b.node("resize", x, sizes=(2, 4, 10, 7), numerator=(1, 1, 1, 1), denominator=(1, 1, 2, 1),
                                      offset=(0, 0, 0, 0), mode="nearest", rounding="floor"),
    "instance":   lambda b, x: b.node("instance_norm", x, b.weight((4,), 1), b.weight((4,), 1)),
    "group":      lambda b, x: b.node("group_norm", x, b.weight((4,), 1), b.weight((4,), 1), groups=2),
    "batch":      lambda b, x: b.batch_norm(b.node("relu", x)),
    "to tokens":  lambda b, x: b.node("reshape", b.node("transpose", b.node("reshape", x, shape=(2, 4, 35)), perm=(0, 2, 1)),
                                      shape=(70, 4)),
    "to rows":    lambda b, x: b.layer_norm(b.node("transpose", x, perm=(0, 2, 3, 1))),
    "flatten":    lambda b, x: b.node("reshape", b.node("reduce_sum", x, axes=(2, 3), keepdims=True), shape=(2, 4)),
    "squeezed":   lambda b, x: b.node("reduce_max", x, axes=(2, 3), keepdims=False),
    "blocks":     lambda b, x: b.node("depth_to_space", x, block=2),
    "quantised":  lambda b, x: b.node("dequantize", b.node("quantize", x, b.constant(np.full(4, 0.02, np.float32)), axis=1),
                                      b.constant(np.full(4, 0.02, np.float32)), axis=1),
}  # fmt: skip

FORCING: dict[str, Callable[[Builder, str], str]] = {
    "product":    lambda b, x: b.node("matmul", x, b.weight((7, 3), 7)),
    "arg":        lambda b, x: b.node("argmax", x, axis=1),
    "gather":     lambda b, x: b.node("gather", x, b.constant(np.array([2, 0])), axis=1),
    "rows":       lambda b, x: b.layer_norm(x),
    "flatten":    lambda b, x: b.node("reshape", x, shape=(2, 140)),
    "triangle":   lambda b, x: b.node("trilu", x, k=1),
    "some rows":  lambda b, x: b.node("reduce_sum", x, axes=(2,), keepdims=False),
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPING)
def test_layout_passes_through(name: str) -> None:
    """One transpose before the convolution; at most one more, where an output of rank 4 leaves."""
    b = Builder("g")
    y = KEEPING[name](b, _image(b))
    after = same(b.graph(y), fold_constants(channels_last(b.graph(y))))
    moved = [n for n in after.nodes if n.operator == "transpose"]
    assert [n for n in moved if "x" not in n.inputs and y not in n.outputs] == []


@pytest.mark.parametrize("name", FORCING)
def test_layout_gives_way(name: str) -> None:
    b = Builder("g")
    y = FORCING[name](b, _image(b))
    same(b.graph(y), channels_last(b.graph(y)))


def test_an_output_wanted_in_two_orders_is_transposed_once() -> None:
    b = Builder("g")
    x = _image(b)
    graph = b.graph(x, b.node("matmul", x, b.weight((7, 3), 7)), b.node("argmax", x, axis=2))
    assert operators(same(graph, channels_last(graph)))["transpose"] == 2


def test_weights_known_only_at_run_time_are_transposed_there() -> None:
    b = Builder("g")
    y = b.node("conv", b.input("x", (1, 3, 5, 4)), b.input("w", (6, 3, 3, 2)))
    assert operators(same(b.graph(y), channels_last(b.graph(y)))) == {"transpose": 3, "conv": 1}


# --- axes of a DAG ------------------------------------------------------------------------------------------------


def same_dag(before: Dag, after: Dag) -> Dag:
    """The same elements in the same order in memory."""
    rng = np.random.default_rng(0)
    values = {i.name: rng.random(i.shape).astype(np.float32) for i in before.inputs}
    got = evaluate(after, {i.name: values[i.name].reshape(i.shape) for i in after.inputs})
    for name, want in evaluate(before, values).items():
        np.testing.assert_allclose(got[name].reshape(want.shape), want, rtol=1e-5)
    return after


def shapes(d: Dag) -> dict[str, tuple[int, ...]]:
    return {t.name: t.shape for t in d.tensors.values()}


def test_unit_axes_are_dropped() -> None:
    x, k = placeholder((1, 6, 1, 4), "x"), reduce_axis(1)
    s = compute((1, 6, 1), lambda n, i, j: sum_over(x[n, i, j, k], k), "s")
    total = compute((1,), lambda n: sum_over(s[n, (r := reduce_axis(6)), 0], r), "t")
    after = same_dag(dag([total]), drop_unit_axes(dag([total])))
    assert shapes(after) == {"x": (6, 4), "s": (6,), "t": (1,)}


def test_divided_axes_are_split() -> None:
    x = placeholder((4, 3), "x")
    y = compute((12,), lambda i: x[i // 3, i % 3], "y")
    z = compute((12,), lambda i: y[i] * 2, "z")
    after = same_dag(dag([z]), split_axes(dag([z])))
    assert shapes(after) == {"x": (4, 3), "y": (4, 3), "z": (4, 3)}
    assert shapes(same_dag(dag([z]), plain_axes(dag([z])))) == {"x": (12,), "z": (12,)}


def test_a_dimension_read_by_two_digits_is_split() -> None:
    x, k = placeholder((6, 8), "x"), reduce_axis(4)
    y = compute((6, 2), lambda i, g: sum_over(x[i, g * 4 + k], k), "y")
    assert shapes(same_dag(dag([y]), split_axes(dag([y])))) == {"x": (6, 2, 4), "y": (6, 2)}


def test_windows_that_overlap_are_not_split() -> None:
    x, k = placeholder((9,), "x"), reduce_axis(3)
    y = compute((4,), lambda i: maximum_over(x[i * 2 + k], k), "y")
    assert plain_axes(dag([y])) == dag([y])


def test_a_split_does_not_empty_lanes() -> None:
    """conv[i, 12] would become conv[i, 4, 3] only because the copy takes it apart."""
    x, w, k = placeholder((5, 6), "x"), placeholder((6, 12), "w"), reduce_axis(6)
    y = compute((5, 12), lambda i, j: sum_over(x[i, k] * w[k, j], k), "y")
    turned = compute((3, 5, 4), lambda c, i, a: y[i, a * 3 + c], "turned")
    assert shapes(plain_axes(dag([turned])))["y"] == (5, 12)


def test_neighbours_merge_where_they_always_go_together() -> None:
    x, bias = placeholder((2, 3, 4, 5), "x"), placeholder((5,), "bias")
    y = compute(x.shape, lambda n, h, w, c: x[n, h, w, c] + bias[c], "y")
    assert shapes(same_dag(dag([y]), merge_axes(dag([y])))) == {"x": (24, 5), "bias": (5,), "y": (24, 5)}


def test_a_product_over_pixels_is_a_matrix_product() -> None:
    x, w, k = placeholder((2, 3, 4, 5), "x"), placeholder((5, 6), "w"), reduce_axis(5)
    y = compute((2, 3, 4, 6), lambda n, h, w_, o: sum_over(x[n, h, w_, k] * w[k, o], k), "y")
    assert shapes(same_dag(dag([y]), plain_axes(dag([y])))) == {"x": (24, 5), "w": (5, 6), "y": (24, 6)}


def test_reduced_neighbours_merge_too() -> None:
    x = placeholder((3, 4, 5), "x")
    k = [reduce_axis(4), reduce_axis(5)]
    y = compute((3,), lambda i: sum_over(x[i, k[0], k[1]], k), "y")
    assert shapes(same_dag(dag([y]), merge_axes(dag([y])))) == {"x": (3, 20), "y": (3,)}


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_transposed_neighbours_stay_apart(order: tuple[int, ...]) -> None:
    x = placeholder((3, 4, 5), "x")
    y = compute([x.shape[p] for p in order], lambda *i: x[tuple(i[order.index(d)] for d in range(3))], "y")
    after = same_dag(dag([y]), plain_axes(dag([y])))
    assert len(shapes(after)["x"]) == 3


def test_an_axis_with_a_use_of_its_own_stays_apart() -> None:
    x = placeholder((3, 4), "x")
    y = compute((3, 4), lambda i, j: x[i, j] * cast(j, "float32"), "y")
    assert plain_axes(dag([y])) == dag([y])


def test_copies_are_dropped_but_not_outputs_of_inputs() -> None:
    x = placeholder((3, 4), "x")
    a = compute((3, 4), lambda i, j: x[i, j], "a")
    b = compute((3, 4), lambda i, j: a[i, j] + 1, "b")
    c = compute((3, 4), lambda i, j: b[i, j], "c")
    assert shapes(same_dag(dag([c]), drop_copies(dag([c])))) == {"x": (3, 4), "c": (3, 4)}
    assert drop_copies(dag([a])) == dag([a])


def test_text_of_a_grouped_convolution() -> None:
    """co // 2 * 3 + ci becomes an axis of its own."""
    b = Builder("g", last=True)
    y = b.conv(b.input("x", (1, 5, 4, 6)), 4, (1, 1), (1, 1), groups=2)
    text = dag_text(compose(b.graph(y), b.graph(y).nodes, [y]))
    assert "//" not in text
    assert "input x: float32[20, 2, 3]" in text
