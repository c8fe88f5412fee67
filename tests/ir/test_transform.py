"""Steps that rewrite the DAG: the same values, in another order of computation or of memory."""

from __future__ import annotations

import numpy as np
import pytest

from ir.compute import Compute, Dag, Input
from ir.evaluate import evaluate
from ir.expr import Axis, Read, axes, call
from ir.transform import block, blockable, pack

Y, C, O, P, R = Axis("y", 6), Axis("c", 10), Axis("o", 5), Axis("p", 3), Axis("r", 10)


def window() -> Dag:
    """conv[y, o] = sum over p, r of pad[y + p, r] * W[p, r, o]; pad = |x|."""
    rows = Axis("rows", 8)
    pad = Compute("pad", (rows, C), call("abs", Read("x", (rows, C))))
    conv = Compute("conv", (Y, O), Read("pad", (Y + P, R)) * Read("W", (P, R, O)), (P, R))
    return Dag((Input("x", (8, 10)), Input("W", (3, 10, 5), constant=True)), (pad, conv), ("conv",))


def values(dag: Dag) -> np.ndarray:
    rng = np.random.default_rng(0)
    return evaluate(dag, {i.name: rng.random(i.shape, dtype=np.float32) for i in dag.inputs})["conv"]


@pytest.mark.parametrize("size", [1, 4, 5, 10, 16])
def test_a_blocked_operand_gives_the_same_values(size: int) -> None:
    """Parts that divide the axis, that do not, and one that is longer."""
    dag = block(window(), "conv", "pad", "r", size)
    part = min(size, 10)
    assert dag["pad.block"].shape == (-(-10 // part), 8, part)
    np.testing.assert_allclose(values(dag), values(window()), rtol=1e-6)


@pytest.mark.parametrize("sizes", [{"o": 2, "p": 1, "r": 4}, {"o": 5, "p": 3, "r": 10}, {"o": 8, "p": 2, "r": 3}])
def test_a_packed_constant_lies_in_the_order_of_the_loops(sizes: dict[str, int]) -> None:
    dag = pack(window(), "conv", "W", "o", sizes.__getitem__)
    o, p, r = (sizes[a] for a in "opr")
    assert dag["W.pack"].shape == (-(-5 // o), -(-3 // p), -(-10 // r), p, r, o)
    np.testing.assert_allclose(values(dag), values(window()), rtol=1e-6)


def test_only_a_dimension_of_its_own_can_be_split() -> None:
    stage = window().stage("conv")
    assert blockable(stage, "pad", R) and blockable(stage, "W", R)
    assert not blockable(stage, "pad", P), "it shares its dimension with y"
    twice = Compute("two", (Y,), Read("pad", (P, R)) * Read("pad", (R, P)), (P, R))
    assert not blockable(twice, "pad", R), "in one read it is the first dimension, in the other the second"
    assert R not in axes(Read("pad", (P, C)))
