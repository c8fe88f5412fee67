"""Validity and canonical form by columns, against the nests that single programs lower to."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
import pytest

from codegen.c import emit
from ir.loop import Alloc, For, If, Nest, Stmt
from ir.lower import lower
from ir.schedule import ComputeAt, Population, Rfactor
from ir.target import Target
from search.evolve import sample
from search.sketch import sketches
from search.validity import (
    MOST_STACK,
    attached_region,
    by_split,
    canonical,
    cores,
    places,
    registers,
    rows_and_vectors,
    statements,
    structure,
    tilings,
    valid,
)
from tests.zoo_dags import ZOO

ONE, FOUR = Target(), Target(threads=4)
SOME = ["matmul", "matmul and relu", "matrix times vector", "conv, padded", "depthwise", "max pool", "softmax"]


def populations(name: str, target: Target = ONE, n: int = 2000, seed: int = 0) -> Iterator[Population]:
    for sketch in sketches(ZOO[name], target):
        yield sample(sketch, n, np.random.default_rng(seed))


def text(population: Population, row: int) -> str:
    return emit(lower(population.program(row)).nest).whole


def allocations(body: tuple[Stmt, ...], around: int = 1) -> Iterator[tuple[Alloc, int]]:
    """Every buffer, and a bound of how often it is made."""
    for s in body:
        match s:
            case Alloc():
                yield s, around
            case For():
                yield from allocations(s.body, around * s.var.extent)
            case If():
                yield from allocations(s.then, around)
                yield from allocations(s.orelse, around)


def of(nest: Nest, buffer: str) -> list[Alloc]:
    return [a for a, _ in allocations(nest.body) if a.buffer == buffer]


# --- canonical form ---------------------------------------------------------------------


@pytest.mark.parametrize("target", [ONE, FOUR], ids=["one thread", "four threads"])
@pytest.mark.parametrize("name", ZOO)
def test_programs_that_are_canonically_equal_are_the_same_code(name: str, target: Target) -> None:
    for population in populations(name, target):
        _, which, counts = np.unique(canonical(population), axis=0, return_inverse=True, return_counts=True)
        for group in np.flatnonzero(counts > 1)[:4]:
            rows = np.flatnonzero(which.ravel() == group)
            first, other = (
                rows[0],
                rows[np.argmax((population.choices[rows] != population.choices[rows[0]]).sum(axis=1))],
            )
            assert text(population, first) == text(population, other), population.program(other).values


def test_larger_factors_than_fit_mean_the_same_as_those_that_do() -> None:
    [population, *_] = populations("matmul")
    found = np.unique(canonical(population), axis=0)
    assert len(found) < len(np.unique(population.choices, axis=0))


def test_canonical_of_no_programs_and_of_no_holes() -> None:
    for population in populations("one element", n=3):
        assert canonical(population).shape == (3, len(population.sketch.holes))
        assert canonical(population.take(np.array([], dtype=np.int64))).shape == (0, len(population.sketch.holes))


def test_rows_are_judged_by_their_own_split() -> None:
    """The extents of the partial results differ from row to row."""
    for population in populations("softmax", FOUR, n=256):
        whole = canonical(population), valid(population, FOUR)
        for rows, part in by_split(population):
            np.testing.assert_array_equal(whole[0][rows], canonical(part))
            np.testing.assert_array_equal(whole[1][rows], valid(part, FOUR))
            dag, _ = structure(part.sketch)
            for step in part.sketch.steps:
                if isinstance(step, Rfactor):
                    [parts] = set(part.values(f"{step.stage}.rfactor"))
                    assert dag.stage(f"{step.stage}.rf").shape[-1] == parts


# --- predicates -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SOME)
def test_registers_are_those_of_the_largest_tile(name: str) -> None:
    for population in populations(name, n=12):
        for stage, t in tilings(population).items():
            if not t.stage.reduce or f"{stage}.at" in population.sketch.column:
                continue
            rows, vectors = (np.broadcast_to(x, 12) for x in rows_and_vectors(t))
            counted = np.broadcast_to(registers(t), 12)
            for row in range(12):
                tiles = [prod(a.shape[:-1]) for a in of(lower(population.program(row)).nest, f"{stage}_acc")]
                assert max(tiles) == rows[row] * vectors[row], population.program(row).values
                assert counted[row] == max(tiles) + (0 if t.lanes_reduce else vectors[row]) + 1


@pytest.mark.parametrize(
    "name", ["conv, padded", "conv and pool", "depthwise", "depthwise, stride 2", "blur", "conv, filtered"]
)
def test_local_buffers_are_as_large_as_estimated(name: str) -> None:
    """Exactly, where the host itself reads the producer and no region was widened to the whole tensor."""
    seen = 0
    for population in populations(name, n=24):
        dag, _ = structure(population.sketch)
        at = places(population)
        for step in population.sketch.steps:
            if not isinstance(step, ComputeAt):
                continue
            size, runs = attached_region(population, step, dag, tilings(population)[step.consumer], at[step.stage])
            for row in np.flatnonzero(at[step.stage]):
                nest = lower(population.program(int(row))).nest
                made = [(a, n) for a, n in allocations(nest.body) if a.buffer == f"{step.stage}_local"]
                if made and population.program(int(row)).values[f"{step.stage}.at"]:
                    [(local, times)] = made
                    assert prod(local.shape) <= size[row], population.program(int(row)).values
                    assert runs[row] <= times
                    seen += prod(local.shape) == size[row]
    assert seen


@pytest.mark.parametrize("name", ["matmul and relu", "conv, padded"])
def test_partial_results_are_as_large_as_estimated(name: str) -> None:
    for population in populations(name, n=24):
        for stage, t in tilings(population).items():
            if t.structure.count("R") < 2:
                continue
            estimate = prod((t.sizes[a][t.levels - 3] for a in t.stage.space), start=np.int64(1))
            for row in range(24):
                for a in of(lower(population.program(row)).nest, f"{stage}_partial"):
                    assert prod(a.shape) == estimate[row]


@pytest.mark.parametrize("name", SOME)
def test_valid_programs_are_small(name: str) -> None:
    """In registers, on the stack, and as text: the bound on statements bounds what the compiler reads."""
    for population in populations(name, n=400):
        found = tilings(population)
        for row in np.flatnonzero(valid(population, ONE))[:6]:
            nest = lower(population.program(int(row))).nest
            stack = sum(
                prod(a.shape) * np.dtype(a.dtype).itemsize for a, _ in allocations(nest.body) if a.scope == "stack"
            )
            assert stack <= MOST_STACK
            unrolled = sum(np.broadcast_to(statements(t), 400)[row] for t in found.values())
            assert text(population, int(row)).count("\n") <= 100 + 8 * unrolled


def test_a_tile_that_spills_is_refused_and_a_small_one_too() -> None:
    few = Target(vector_registers=16)
    [population, *_] = populations("matmul")
    [t] = tilings(population).values()
    rows, vectors = rows_and_vectors(t)
    assert not valid(population, few)[registers(t) > 16].any()
    assert not valid(population, ONE)[rows * vectors < 12].any()
    assert valid(population, ONE).any()


# --- cores ------------------------------------------------------------------------------

AVX2 = Target(vector_bytes=32, vector_registers=16)


@pytest.mark.parametrize("target", [ONE, AVX2], ids=["32 registers", "16 registers"])
@pytest.mark.parametrize("name", SOME)
def test_cores_leave_out_no_valid_program(name: str, target: Target) -> None:
    """What is valid has one of the listed choices in the columns of every core."""
    for population in populations(name, target):
        legal = population.take(np.flatnonzero(valid(population, target)))
        for core in cores(population.sketch, target):
            listed = set(map(tuple, core.rows.tolist()))
            assert set(map(tuple, legal.choices[:, core.columns].tolist())) <= listed


def test_most_of_what_is_drawn_by_cores_is_valid() -> None:
    """Of uniform draws of a convolution one in a hundred is, with 16 registers."""
    for sketch in sketches(ZOO["conv, padded"], AVX2):
        uniform = sample(sketch, 4000, np.random.default_rng(0))
        [core] = cores(sketch, AVX2)
        drawn = uniform.choices.copy()
        drawn[:, core.columns] = core.rows[np.random.default_rng(1).integers(0, len(core.rows), size=4000)]
        assert valid(uniform, AVX2).mean() < 0.1
        assert valid(Population(sketch, drawn), AVX2).mean() > 0.5
