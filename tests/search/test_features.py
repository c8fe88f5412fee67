"""Features of populations: their shape and sense, and the counts of loads against a run of the nest."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from ir.evaluate import evaluate
from ir.interpret import Counts, run
from ir.lower import lower
from ir.schedule import ComputeAt, Population, Sketch
from ir.target import Target
from ir.zoo import operator_dag
from search.evolve import sample
from search.features import NAMES, WIDTH, accesses, features
from search.sketch import sketches
from search.validity import canonical, rows_and_vectors, tilings, valid
from tests.zoo_dags import ZOO, conv, dag, feeds, matmul

TARGETS = [Target(), Target(threads=4)]
BIG = {"conv": dag([conv(1, 14, 14, 256, 256, 3, 1, 1)]), "matmul": dag([matmul(1024, 1024, 1024)])}


def column(population: Population, name: str, target: Target = TARGETS[0]) -> np.ndarray:
    """A feature as it was before the logarithm, float64."""
    return np.exp2(features(population, target)[:, NAMES.index(name)].astype(np.float64)) - 1


def big(name: str, n: int = 512) -> Population:
    [sketch, *_] = sketches(BIG[name], TARGETS[0])
    found = sample(sketch, 16 * n, np.random.default_rng(0))
    return found.take(np.flatnonzero(valid(found, TARGETS[0]))[:n])


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.threads} threads")
@pytest.mark.parametrize("name", ZOO)
def test_every_program_has_a_row_of_finite_numbers(name: str, target: Target) -> None:
    for sketch in sketches(ZOO[name], target):
        population = sample(sketch, 64, np.random.default_rng(1))
        found = features(population, target)
        assert found.shape == (64, WIDTH)
        assert found.dtype == np.float32
        assert np.isfinite(found).all(), [NAMES[i] for i in np.flatnonzero(~np.isfinite(found).all(axis=0))]
        assert (found >= 0).all(), [NAMES[i] for i in np.flatnonzero((found < 0).any(axis=0))]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.threads} threads")
@pytest.mark.parametrize("name", ["conv, padded", "softmax", "two matmuls", "max pool"])
def test_a_row_does_not_depend_on_its_neighbours(name: str, target: Target) -> None:
    for sketch in sketches(ZOO[name], target):
        population = sample(sketch, 24, np.random.default_rng(2))
        rows = np.array([7, 3, 3, 19])
        np.testing.assert_array_equal(features(population.take(rows), target), features(population, target)[rows])
        assert features(population.take(rows[:0]), target).shape == (0, WIDTH)


@pytest.mark.parametrize("name", ["matmul", "conv, padded", "depthwise"])
def test_equal_programs_have_equal_features(name: str) -> None:
    for sketch in sketches(ZOO[name], TARGETS[0]):
        population = sample(sketch, 4096, np.random.default_rng(3))
        _, first, which = np.unique(canonical(population), axis=0, return_index=True, return_inverse=True)
        found = features(population, TARGETS[0])
        np.testing.assert_array_equal(found, found[first][which.ravel()])


def test_names_are_distinct() -> None:
    assert len(set(NAMES)) == WIDTH


def test_2048_programs_of_a_convolution_take_milliseconds() -> None:
    population = sample(sketches(BIG["conv"], TARGETS[0])[0], 2048, np.random.default_rng(0))
    features(population, TARGETS[0])

    def seconds() -> float:
        start = time.process_time()
        features(population, TARGETS[0])
        return time.process_time() - start

    assert min(seconds() for _ in range(5)) < 0.03  # 6 ms on an idle core


# --- sense ------------------------------------------------------------------------------


def test_the_register_tile_is_what_the_holes_say() -> None:
    population = big("matmul")
    [t] = tilings(population).values()
    rows, vectors = rows_and_vectors(t)
    np.testing.assert_allclose(column(population, "tile.rows"), rows, rtol=1e-4)
    np.testing.assert_allclose(column(population, "tile.size"), rows * vectors, rtol=1e-4)
    np.testing.assert_allclose(column(population, "tile.intensity"), rows * vectors / (rows + vectors), rtol=1e-4)


def test_loads_of_a_matrix_product_are_those_of_its_tile() -> None:
    """A vector of B and an element of A serve a whole column and a whole row of the tile."""
    population = big("matmul")
    even = (1024 % column(population, "tile.rows").round() == 0) & (
        64 % column(population, "tile.vectors").round() == 0
    )
    rows, vectors = column(population, "tile.rows"), column(population, "tile.vectors")
    flops_a_step = 2 * 16 * rows * vectors
    np.testing.assert_allclose(
        column(population, "issue.vector_loads")[even], (vectors / flops_a_step)[even], rtol=1e-3
    )
    np.testing.assert_allclose(column(population, "issue.broadcasts")[even], (rows / flops_a_step)[even], rtol=1e-3)


def test_traffic_is_compulsory_at_least_and_every_load_at_most() -> None:
    for name in BIG:
        population = big(name)
        flops, compulsory = BIG[name].flops, BIG[name].bytes
        l1, l2, l3 = (column(population, f"traffic.{c}") for c in ("l1", "l2", "l3"))
        assert (l1 >= l2 * (1 - 1e-3)).all()
        assert (l2 >= l3 * (1 - 1e-3)).all()
        assert (l3 * flops >= 0.5 * compulsory).all()  # the padded copy is another stage's


def test_footprints_grow_outward() -> None:
    target = TARGETS[0]
    for name in BIG:
        population = big(name)
        levels = [("tile", target.l1_bytes), ("s2", target.l1_bytes), ("s1", target.l2_bytes), ("s0", target.l2_bytes)]
        sizes = [column(population, f"fit.{level}") * cache for level, cache in levels]
        for inner, outer in pairwise(sizes):
            # "s1" holds the whole reduction, "s0" the larger tile
            assert (outer >= inner * 0.999).all()


def test_a_whole_matrix_fits_or_streams() -> None:
    """64 x 64 x 64 fits every cache: each operand comes once, the output goes both ways."""
    small = dag([matmul(64, 64, 64)])
    population = sample(sketches(small, TARGETS[0])[0], 64, np.random.default_rng(0))
    once = (64 * 64 * 4 * 2 + 2 * 64 * 64 * 4) / small.flops
    np.testing.assert_allclose(column(population, "traffic.l2"), once, rtol=1e-3)


def test_a_producer_inside_a_nest_counts_as_local_and_redundant() -> None:
    sketch = next(s for s in sketches(BIG["conv"], TARGETS[0]) if any(isinstance(x, ComputeAt) for x in s.steps))
    population = sample(sketch, 512, np.random.default_rng(0))
    inside = population.values("pad.at") > 0
    assert inside.any()
    assert (column(population, "place.attached") > 0.5)[inside].all()
    assert (column(population, "place.buffer_l1")[~inside] == 0).all()
    assert (column(population, "place.workspace")[inside] == 0).all()
    assert (column(population, "place.redundancy") >= 0.99).all()


def test_threads_share_the_outermost_loops() -> None:
    target = TARGETS[1]
    population = sample(sketches(BIG["matmul"], target)[0], 512, np.random.default_rng(0))
    degree, balance = column(population, "parallel.degree", target), column(population, "parallel.balance", target)
    assert (balance <= 1.001).all()
    assert (balance[degree % 4 < 1e-3] > 0.999).all()
    np.testing.assert_allclose(column(population, "parallel.chunks", target) * 4, degree, rtol=1e-3)


# --- loads against a run ----------------------------------------------------------------

COUNTED = [
    "matmul",
    "matmul and relu",
    "vector times matrix",
    "conv, stride 2",
    "conv, 1x1",
    "conv, grouped",
    "max pool",
]


def loads_of(sketch: Sketch, population: Population, row: int) -> Counts:
    """What a run of one program loads, prepared constants given."""
    lowered = lower(population.program(row))
    given = feeds(sketch.dag)
    for _, prepare in lowered.prepare:
        given |= evaluate(prepare, {i.name: given[i.name] for i in prepare.inputs})
    counts = Counts()
    run(lowered.nest, given, counts)
    return counts


@pytest.mark.parametrize("name", COUNTED)
def test_loads_are_those_of_the_nest(name: str) -> None:
    for sketch in sketches(ZOO[name], TARGETS[0]):
        population = sample(sketch, 2, np.random.default_rng(5))
        [stage] = tilings(population)
        found = accesses(population, stage)
        for row in range(2):
            counts = loads_of(sketch, population, row)
            for tensor, loads in found.items():
                what = f"{stage} {tensor} {population.program(row).values}"
                assert counts.loads[tensor] == loads.issued[row], what
                assert len(counts.touched[tensor]) == loads.distinct[row], what


def test_a_move_behind_a_packed_copy_has_features() -> None:
    """copy[j, k] = x[k, j] is packed, then inlined: the packed tensor is no stage of the final DAG."""
    target = Target()
    for sketch in sketches(operator_dag("TBS.0.b1"), target):
        found = features(sample(sketch, 16, np.random.default_rng(0)), target)
        assert found.shape == (16, WIDTH) and np.isfinite(found).all()
