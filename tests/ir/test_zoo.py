"""The zoo: shapes, sizes and flops of what it builds, and its names."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ir.evaluate import evaluate, run_graph
from ir.fuse import workloads
from ir.graph import ModelError
from ir.key import dag_text
from ir.passes import optimise
from ir.zoo import build, names, operator, operator_dag
from ir.zoo.networks import NETWORKS
from ir.zoo.operators import PAPER

# Output shape at batch 1, millions of parameters (batch-norm statistics included), GFLOP (a multiply-add is two).
EXPECTED = {
    "resnet50":     ((1, 1000), 25.61, 8.2),
    "resnet18":     ((1, 1000), 11.70, 3.6),
    "mobilenet_v2": ((1, 1000), 3.54, 0.62),
    "resnet18_3d":  ((1, 400), 33.38, 81.4),
    "dcgan":        ((1, 3, 64, 64), 3.59, 0.21),
    "bert_base":    ((1, 768), 109.2, 22.4),
    "vit_b16":      ((1, 1000), 86.57, 35.1),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_networks_have_their_size(name: str) -> None:
    shape, millions, gflop = EXPECTED[name]
    graph = build(name)
    assert graph.values[graph.outputs[0]].shape == shape
    assert sum(c.size for c in graph.constants.values()) / 1e6 == pytest.approx(millions, rel=1e-3)
    found = workloads(optimise(graph))
    assert sum(w.weight * w.dag.flops for w in found.workloads) / 1e9 == pytest.approx(gflop, rel=0.02)


def test_every_network_is_expected() -> None:
    assert set(EXPECTED) == set(NETWORKS)


def test_resnet50_is_a_few_dozen_workloads() -> None:
    found = workloads(optimise(build("resnet50")))
    assert len(found.calls) == 56
    assert len(found.workloads) == 27
    assert sum(w.name.endswith("_relu") * w.weight for w in found.workloads) == 49


def test_batch_and_length() -> None:
    assert build("mobilenet_v2", batch=2).values["x"].shape == (2, 3, 224, 224)
    assert build("mobilenet_v2.b2").values["x"].shape == (2, 3, 224, 224)
    assert build("bert_base", seq=16).values["x"].shape == (1, 16)
    with pytest.raises(ModelError, match="seq=16"):
        build("resnet18", seq=16)


def test_seeds_make_the_weights() -> None:
    one, again, other = (build("dcgan", seed=s).constants for s in (0, 0, 1))
    assert all(np.array_equal(one[n], again[n]) for n in one)
    assert not all(np.array_equal(one[n], other[n]) for n in one)


def test_the_largest_network_is_quick_to_make() -> None:
    start = time.process_time()
    build("bert_base")
    assert time.process_time() - start < 2


def test_names_can_all_be_built() -> None:
    assert {"resnet50", "GMM.3.b1", "C2D.0.b16"} <= set(names())
    for name in names():
        if name not in NETWORKS:
            assert build(name).name == name


@pytest.mark.parametrize("name", ["resnet5O", "GMM.4", "C2D.b1.0.7", "GMM.x", "resnet50.1", "", "T2D.0.b"])
def test_unknown_names_say_what_is_near(name: str) -> None:
    with pytest.raises(ModelError, match=r"no model is called .*(near|try|there are)"):
        build(name)


def test_near_matches_are_near() -> None:
    with pytest.raises(ModelError, match="resnet50"):
        build("reznet50")


# --- the paper's operators ----------------------------------------------------------------------------------------


def test_a_bare_name_is_the_first_shape() -> None:
    assert operator_dag("GMM") == operator_dag("GMM.0") == operator_dag("GMM.0.b1")
    assert build("C2D", batch=16).values["x"].shape == (16, 3, 224, 224)


@pytest.mark.parametrize("kind", PAPER)
@pytest.mark.parametrize("number", range(4))
def test_nominal_flops_are_those_of_the_definition(kind: str, number: int) -> None:
    """The DAG may do little more: bias and activation, a softmax, phases at the border. Never less."""
    row = PAPER[kind]
    nominal, dag = row.flops(row.shapes[number]), operator_dag(f"{kind}.{number}.b1")
    assert nominal <= dag.flops <= nominal * (1.1 if kind in ("T2D", "TBS", "CBR") else 1.001)


@pytest.mark.parametrize("kind", ["C1D", "C2D", "GRP", "DIL", "DEP", "T2D", "CBR"])
def test_channels_last_weights_are_constant_and_the_rest_is_not(kind: str) -> None:
    dag = operator_dag(f"{kind}.2.b1")
    assert [i.constant for i in dag.inputs] == [False, *[True] * (len(dag.inputs) - 1)]


@pytest.mark.parametrize("kind", ["C2D", "GRP", "DEP", "T2D", "CBR"])
@pytest.mark.parametrize("batch", [1, 16])
def test_operators_are_workloads_of_networks(kind: str, batch: int) -> None:
    """The channels-first graph of an operator has its DAG in it, but for the transposes at the border."""
    dag = operator_dag(f"{kind}.2.b{batch}")
    graph = optimise(build(f"{kind}.2.b{batch}"))
    found = [w.dag for w in workloads(graph).workloads if w.dag.flops > 0]
    assert len(found) == 1
    assert found[0].computes[-1].shape == dag.computes[-1].shape
    assert found[0].flops == dag.flops


@pytest.mark.parametrize("kind", ["C1D", "C2D", "GRP", "DEP", "T2D", "CBR"])
def test_channels_last_computes_what_channels_first_does(kind: str) -> None:
    name = f"{kind}.3.b1"
    graph = build(name)
    rng = np.random.default_rng(0)
    x = rng.random(graph.values["x"].shape, dtype=np.float32)
    [want] = run_graph(graph, {"x": x})
    last, dag, was = operator(name)
    values = {i.name: last.constants.get(was[i.name], np.moveaxis(x, 1, -1)).reshape(i.shape) for i in dag.inputs}
    [got] = evaluate(dag, values).values()
    np.testing.assert_allclose(got.reshape(np.moveaxis(want, 1, -1).shape), np.moveaxis(want, 1, -1), atol=1e-4)


def test_texts_are_readable() -> None:
    assert dag_text(operator_dag("GMM.3.b1")) == (
        "input x0: float32[1024, 1024]\n"
        "input x1: float32[1024, 1024]\n"
        "matmul: float32[i0=1024, i1=1024] = sum over (k0=1024): x0[i0, k0] * x1[k0, i1]\n"
        "output matmul\n"
    )
