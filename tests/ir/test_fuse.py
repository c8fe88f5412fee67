"""Partitions: the calls compute what the graph does, and things that belong together are together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ir.compute import Dag
from ir.evaluate import run_graph
from ir.expr import Const, walk
from ir.fuse import Fusion, Partition, execute, workloads
from ir.graph import Graph, ModelError
from ir.key import canonical, key
from ir.passes import optimise
from ir.zoo.builder import Builder
from ir.zoo.networks import attention
from tests.ir.small import NETWORKS, assert_close, feeds, random_graph

FUSIONS = [Fusion(), Fusion(attention=10**9)]


def partition(graph: Graph, fusion: Fusion = Fusion()) -> Partition:
    """Checked: equal results, one pass over the nodes, inputs made before they are read."""
    found = workloads(graph, fusion)
    given = feeds(graph)
    assert_close(execute(found, given), run_graph(graph, given))
    known = {*graph.inputs, *graph.constants}
    for call in found.calls:
        assert {found.aliases.get(i, i) for i in call.inputs} <= known
        assert len(call.inputs) == len(call.workload.dag.inputs)
        assert not any(o in known for o in call.outputs)
        known |= set(call.outputs)
    views = {n.name for n in graph.nodes if n.outputs[0] in found.aliases}
    placed = [n for c in found.calls for n in c.nodes]
    assert sorted([*placed, *views]) == sorted(n.name for n in graph.nodes)
    return found


def calls(graph: Graph, fusion: Fusion = Fusion()) -> list[str]:
    """The operators of each call, as in "conv relu"."""
    kinds = {n.name: n.operator for n in graph.nodes}
    return [" ".join(kinds[n] for n in c.nodes) for c in partition(graph, fusion).calls]


@pytest.mark.parametrize("fusion", FUSIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_compute_the_same(network: Callable[[], Graph], fusion: Fusion) -> None:
    partition(optimise(network()), fusion)


@pytest.mark.parametrize("seed", range(100, 120))
def test_random_graphs_compute_the_same(seed: int) -> None:
    graph = random_graph(seed)
    partition(graph)
    partition(optimise(graph), FUSIONS[1])


@pytest.mark.parametrize("network", NETWORKS)
def test_workloads_are_canonical_and_add_up(network: Callable[[], Graph]) -> None:
    found = workloads(optimise(network()))
    assert sum(w.weight for w in found.workloads) == len(found.calls)
    assert sorted(o for w in found.workloads for o in w.origin) == sorted(c.nodes for c in found.calls)
    for w in found.workloads:
        assert canonical(w.dag)[0] == w.dag
        assert w.key == key(w.dag)
        assert len(w.origin) == w.weight


# --- what goes together -------------------------------------------------------------------------------------------


def test_bias_activation_and_residual_follow_a_convolution() -> None:
    b = Builder("g", last=True)
    x = b.input("x", (1, 5, 7, 4))
    y = b.node("add", b.conv(x, 4, (3, 3), (1, 1)), b.constant(b.uniform((4,), -1, 1)))
    graph = b.graph(b.node("relu", b.node("add", y, x)))
    assert calls(graph) == ["conv add add relu"]


def test_a_residual_goes_with_one_of_its_two_sides() -> None:
    b = Builder("g", last=True)
    x = b.input("x", (1, 5, 7, 4))
    graph = b.graph(b.node("add", b.conv(x, 4, (3, 3), (1, 1)), b.conv(x, 4, (1, 1), (1, 1))))
    assert calls(graph) == ["conv", "conv add"]


def test_a_value_with_readers_elsewhere_ends_its_group() -> None:
    b = Builder("g", last=True)
    y = b.node("relu", b.conv(b.input("x", (1, 5, 7, 4)), 4, (3, 3), (1, 1)))
    z = b.node("add", b.node("exp", y), b.conv(y, 4, (1, 1), (1, 1)))
    assert calls(b.graph(z)) == ["conv relu", "exp", "conv add"]


def test_a_diamond_of_element_wise_nodes_is_taken_whole() -> None:
    """GELU as exporters write it: x * 0.5 and 1 + erf(x / sqrt 2) meet again."""
    b = Builder("g")
    x = b.node("matmul", b.input("x", (5, 4)), b.weight((4, 3), 4))
    half = b.node("mul", x, b.constant(np.array(0.5, np.float32)))
    e = b.node("erf", b.node("div", x, b.constant(np.array(2**0.5, np.float32))))
    graph = b.graph(b.node("mul", half, b.node("add", e, b.constant(np.array(1, np.float32)))))
    found = partition(graph)
    assert len(found.calls) == 1
    assert len(found.calls[0].outputs) == 1


def test_an_output_inside_a_chain_is_delivered() -> None:
    b = Builder("g")
    y = b.node("exp", b.input("x", (5, 4)))
    z = b.node("neg", y)
    assert calls(b.graph(z, y)) == ["exp", "neg"]


def test_moves_go_with_what_reads_them() -> None:
    b = Builder("g")
    q, k = b.input("q", (5, 2, 4)), b.input("k", (5, 2, 4))
    rows, columns = b.node("transpose", q, perm=(1, 0, 2)), b.node("transpose", k, perm=(1, 2, 0))
    assert calls(b.graph(b.node("matmul", rows, columns))) == ["transpose transpose matmul"]


def test_a_move_with_two_readers_stands_alone() -> None:
    b = Builder("g")
    t = b.node("transpose", b.input("x", (4, 4)), perm=(1, 0))
    graph = b.graph(b.node("matmul", t, b.weight((4, 3), 4)), b.node("matmul", t, b.weight((4, 2), 4)))
    assert calls(graph) == ["transpose", "matmul", "matmul"]


def test_element_wise_chains_and_moves_alone_are_one_kernel() -> None:
    b = Builder("g")
    y = b.node("exp", b.node("transpose", b.input("x", (4, 3)), perm=(1, 0)))
    assert calls(b.graph(b.node("slice", y, starts=(0, 1), sizes=(3, 3), steps=(1, 1)))) == ["transpose exp slice"]


def test_views_cost_nothing() -> None:
    b = Builder("g")
    x = b.input("x", (4, 6))
    y = b.node("reduce_max", b.node("reshape", x, shape=(2, 2, 6)), axes=(2,))
    z = b.node("reshape", b.node("reshape", y, shape=(4,)), shape=(2, 2))
    found = partition(b.graph(z))
    assert [len(c.nodes) for c in found.calls] == [1]
    assert found.aliases[z] == y


def test_a_reduced_operand_does_not_follow() -> None:
    """mean(x) is smaller than x - mean(x): the subtraction runs over another space."""
    b = Builder("g")
    x = b.input("x", (3, 5))
    graph = b.graph(b.node("sub", x, b.node("reduce_mean", x, axes=(1,))))
    assert calls(graph) == ["reduce_mean", "sub"]


def test_no_group_waits_for_itself() -> None:
    """add reads a and b = f(g(a)): it may join b's group, not a's."""
    b = Builder("g")
    a = b.node("matmul", b.input("x", (4, 4)), b.weight((4, 4), 4))
    c = b.node("softmax", b.node("exp", a), axes=(-1,))
    assert calls(b.graph(b.node("add", a, c))) == ["matmul", "exp", "softmax add"]


def _attention() -> Graph:
    b = Builder("g")
    return optimise(b.graph(attention(b, b.input("x", (1, 6, 8)), 2)))


def test_attention_in_three_or_in_one() -> None:
    apart, together = (" | ".join(calls(_attention(), f)) for f in FUSIONS)
    assert "matmul | softmax | " in apart
    assert "matmul softmax transpose matmul" in together
    assert calls(_attention(), Fusion(attention=71)) == calls(_attention())  # 2 heads x 6 x 6 scores are 72


# --- DAGs ---------------------------------------------------------------------------------------------------------


def only(graph: Graph) -> Dag:
    [w] = workloads(graph).workloads
    return w.dag


def test_constants_are_marked_and_scalars_are_literals() -> None:
    b = Builder("g")
    y = b.node("matmul", b.input("x", (5, 4)), b.weight((4, 3), 4))
    found = only(b.graph(b.node("mul", y, b.constant(np.array([0.125], np.float32)))))
    assert [(i.name, i.constant) for i in found.inputs] == [("x0", False), ("w0", True)]
    assert any(e == Const(0.125) for c in found.computes for e in walk(c.body))


def test_a_pointwise_convolution_and_a_product_are_one_workload() -> None:
    b = Builder("g", last=True)
    pixels, rows = b.input("x", (1, 3, 5, 4)), b.input("y", (15, 4))
    graph = b.graph(b.conv(pixels, 6, (1, 1), (1, 1)), b.node("matmul", rows, b.weight((4, 6), 4)))
    [w] = workloads(graph).workloads
    assert w.weight == 2


def test_names_are_for_people() -> None:
    b = Builder("g", last=True)
    y = b.node("relu", b.conv(b.input("x", (1, 8, 6, 4)), 6, (3, 3), (2, 2), groups=2))
    z = b.node("tanh", b.linear(b.node("reshape", b.node("identity", y), shape=(4, 18)), 5))
    names = [w.name for w in workloads(optimise(b.graph(z))).workloads]
    assert names == ["conv2d_1x8x6x4_k3x3x6_s2_g2_relu", "gemm_4x18_n5_tanh"]


def test_run_time_indices_carry_their_bounds_and_are_seen() -> None:
    b = Builder("g")
    indices = b.node("cast", b.input("x", (3,), "int32"), to="int64")
    graph = b.graph(b.node("gather", b.weight((9, 4), 4), indices, axis=0))
    found = partition(graph)
    assert [len(c.nodes) for c in found.calls] == [1, 1]
    [bound] = found.calls[1].bounds
    assert (bound.value, bound.low, bound.high) == (indices, -9, 8)
    with pytest.raises(IndexError, match="9 is outside"):
        execute(found, {"x": np.array([0, 9, 1], np.int32)})


def test_indices_known_before_run_time_need_no_check() -> None:
    b = Builder("g")
    graph = b.graph(b.node("gather", b.input("x", (5, 4)), b.constant(np.array([4, -1])), axis=0))
    assert partition(graph).calls[0].bounds == ()
    wrong = b.graph(b.node("gather", "x", b.constant(np.array([5])), axis=0))
    with pytest.raises(ModelError, match="5 is outside"):
        workloads(wrong)


def test_each_component_of_an_index_has_its_own_bound() -> None:
    b = Builder("g")
    graph = b.graph(b.node("gather_nd", b.input("x", (5, 2)), b.input("i", (3, 2), "int64"), batch_dims=0))
    found = {(bound.first, bound.step, bound.high) for bound in workloads(graph).calls[0].bounds}
    assert found == {(0, 2, 4), (1, 2, 1)}
