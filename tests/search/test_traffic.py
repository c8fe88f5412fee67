"""Bytes that a program moves: against counts of its loads, against what nobody can avoid, level by level."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ir.schedule import ComputeAt, Population
from ir.target import Target
from search.evolve import sample
from search.features import accesses
from search.sketch import sketches
from search.traffic import LEVELS, alive, operations, traffic
from search.validity import places, tilings
from tests.zoo_dags import ZOO, conv, dag, matmul

TARGET = Target()
SMALL = Target(l1_bytes=1024, l2_bytes=4096, l3_bytes=8192)


def drawn(name: str, n: int = 32) -> Population:
    return sample(sketches(ZOO[name], TARGET)[0], n, np.random.default_rng(7))


@pytest.mark.parametrize("name", ["matmul", "conv, stride 2", "vector times matrix"])
def test_the_first_level_serves_every_load(name: str) -> None:
    population = drawn(name)
    [stage] = tilings(population)
    issued = {n.removesuffix(".pack"): x.issued for n, x in accesses(population, stage).items()}
    first = traffic(population, TARGET)["l1"]
    for tensor, loads in issued.items():
        np.testing.assert_allclose(first[tensor], 4 * loads)


@pytest.mark.parametrize("name", ["matmul", "conv, padded", "softmax", "two matmuls", "elementwise"])
def test_what_lies_further_out_is_asked_for_less(name: str) -> None:
    population = drawn(name)
    for target in (TARGET, SMALL):
        found = traffic(population, target)
        assert list(found) == list(LEVELS)
        totals = [np.sum([found[level][t] for t in found[level]], axis=0) for level in LEVELS]
        assert all((near >= far * (1 - 1e-6)).all() for near, far in pairwise(totals[1:]))
        for tensor in ZOO[name].inputs:  # at least once, whole
            if tensor.name in found["dram"]:
                assert (found["dram"][tensor.name] >= np.prod(tensor.shape, dtype=float)).all()


def test_a_small_cache_is_asked_more_often() -> None:
    big = dag([matmul(256, 256, 256)])
    population = sample(sketches(big, TARGET)[0], 64, np.random.default_rng(1))
    near, far = (sum(traffic(population, t)["dram"].values()) for t in (TARGET, SMALL))
    assert (near >= big.bytes * (1 - 1e-6)).all() and (far >= near * (1 - 1e-6)).all() and (far > near).any()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    population = drawn("conv, padded", 16)
    rows = np.array([3, 3, 11])
    whole, part = traffic(population, SMALL), traffic(population.take(rows), SMALL)
    for level in LEVELS:
        for tensor, column in part[level].items():
            np.testing.assert_array_equal(column, whole[level][tensor][rows])


def test_operations_are_those_of_the_definition_and_of_lanes_past_the_edge() -> None:
    whole = dag([matmul(64, 64, 64)])
    found = operations(sample(sketches(whole, TARGET)[0], 8, np.random.default_rng(0)))
    np.testing.assert_array_equal(found, whole.flops)
    ragged = dag([matmul(64, 60, 64)])  # 60 columns are 4 vectors of 16 lanes, or more of narrower ones
    ratio = operations(sample(sketches(ragged, TARGET)[0], 64, np.random.default_rng(0))) / ragged.flops
    assert (ratio >= 1).all() and ratio.max() == pytest.approx(64 / 60)


def test_a_stage_inside_another_exists_in_part() -> None:
    big = dag([conv(1, 32, 32, 16, 16, 3, 1, 1)])
    sketch = next(s for s in sketches(big, TARGET) if any(isinstance(step, ComputeAt) for step in s.steps))
    population = sample(sketch, 64, np.random.default_rng(3))
    [inside] = places(population).values()
    [(stage, kept)] = alive(population).items()
    whole = 4 * np.prod(big.stage(stage).shape)
    assert (kept[inside == 0] == whole).all() and (kept <= whole).all() and (kept[inside > 0] < whole).any()
