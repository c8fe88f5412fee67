"""Sampling, mutation, crossover and evolution, on toy spaces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.schedule import Hole, HoleKind, Population, Sketch
from search.evolve import (
    MUTATORS,
    Evolution,
    Space,
    counts,
    cross,
    enumerate_all,
    evolve,
    fingerprint,
    first_of_each,
    groups,
    key,
    move_factor,
    mutate,
    program_keys,
    redraw,
    sample,
    sample_valid,
    select,
    shares,
    snap,
)
from tests.search.toy import dag, little, plain, seconds, space, tiled

KINDS: tuple[HoleKind, ...] = ("tile", "vector", "location", "unroll", "parallel", "order", "split")


@st.composite
def sketches(draw: st.DrawFn) -> Sketch:
    """Any mixture of holes: several levels of an axis, single options, one group or more."""
    holes = []
    for i in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(KINDS))
        options = draw(st.sets(st.integers(1, 64), min_size=1, max_size=6))
        group, axis = draw(st.sampled_from("ABC")), draw(st.sampled_from("ij")) if kind == "tile" else ""
        holes.append(Hole(f"{group}.{axis or kind}.{i}", tuple(sorted(options)), kind, group, axis))
    return Sketch(dag(), holes=tuple(holes))


def in_domain(sketch: Sketch, choices: np.ndarray) -> bool:
    return bool(((choices >= 0) & (choices < counts(sketch))).all())


@given(sketches(), st.integers(0, 2**32))
def test_sampling_and_mutation_stay_in_the_domains(sketch: Sketch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = sample(sketch, 50, rng).choices
    after, how = mutate(sketch, before, rng)
    assert before.dtype == after.dtype == np.int32
    assert in_domain(sketch, before) and in_domain(sketch, after)
    assert how.min() >= -1 and how.max() < len(MUTATORS)


@given(sketches(), st.integers(0, 2**32))
def test_a_mutator_touches_its_own_kinds_alone(sketch: Sketch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = sample(sketch, 50, rng).choices
    after, how = mutate(sketch, before, rng)
    for row, column in zip(*np.nonzero(before != after), strict=True):
        assert sketch.holes[column].kind in MUTATORS[how[row]].kinds


@given(sketches(), st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_programs(sketch: Sketch, seed: int) -> None:
    def run() -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        a, b = sample(sketch, 20, rng).choices, sample(sketch, 20, rng).choices
        return [a, *mutate(sketch, a, rng), cross(sketch, a, b, rng)]

    assert all(np.array_equal(x, y) for x, y in zip(run(), run(), strict=True))


@given(sketches(), st.integers(0, 2**32))
def test_crossover_takes_groups_whole(sketch: Sketch, seed: int) -> None:
    rng = np.random.default_rng(seed)
    mothers, fathers = sample(sketch, 30, rng).choices, sample(sketch, 30, rng).choices
    children = cross(sketch, mothers, fathers, rng)
    for g in np.unique(groups(sketch)):
        own = groups(sketch) == g
        from_mother = (children[:, own] == mothers[:, own]).all(axis=1)
        from_father = (children[:, own] == fathers[:, own]).all(axis=1)
        assert (from_mother | from_father).all()


@given(sketches(), st.integers(0, 2**32))
def test_a_factor_moves_within_one_axis(sketch: Sketch, seed: int) -> None:
    tiles = np.array([i for i, h in enumerate(sketch.holes) if h.kind == "tile"])
    if not len(tiles):
        return
    rng = np.random.default_rng(seed)
    before = sample(sketch, 50, rng).choices
    after = move_factor(sketch, before, tiles, rng)
    assert in_domain(sketch, after)
    for row in np.flatnonzero((before != after).any(axis=1)):
        changed = np.flatnonzero(before[row] != after[row])
        assert len({(sketch.holes[c].group, sketch.holes[c].axis) for c in changed}) == 1
        up = after[row, changed] > before[row, changed]
        assert len(changed) == 1 or (len(changed) == 2 and up.sum() == 1)


def test_a_moved_factor_keeps_the_product_where_options_divide() -> None:
    powers = tuple(2**i for i in range(12))
    sketch = Sketch(dag(), holes=tuple(Hole(f"C.i.{n}", powers, "tile", "C", "i") for n in (1, 2, 3)))
    choices = np.full((500, 3), 3, dtype=np.int32)
    after = move_factor(sketch, choices, np.arange(3), np.random.default_rng(0))
    inner = (after != choices).sum(axis=1) == 2  # else the outermost level, which has no hole, gave or took
    product = np.log2(np.asarray(powers)[after]).sum(axis=1)
    assert inner.sum() > 150
    assert np.abs(product[inner] - 9).max() <= 1  # a factor of 3, 5 or 7 is rounded to a power of two twice


def test_redraw_always_changes_exactly_one_hole() -> None:
    sketch = tiled()
    before = sample(sketch, 300, np.random.default_rng(1)).choices
    after = redraw(sketch, before, np.array([0, 5, 6]), np.random.default_rng(2))
    assert ((before != after).sum(axis=1) == 1).all()
    assert set(np.nonzero(before != after)[1]) == {0, 5, 6}


def test_snap_goes_to_the_nearest_by_ratio() -> None:
    options = np.array([1.0, 2.0, 6.0, 24.0])
    assert snap(options, np.array([0.1, 1.4, 1.5, 3.4, 3.5, 11.0, 13.0, 1e9])).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert snap(np.array([7.0]), np.array([1.0, 100.0])).tolist() == [0, 0]


def test_mutators_are_drawn_by_weight_among_those_that_apply() -> None:
    sketch = plain()  # tiles alone
    _, how = mutate(sketch, sample(sketch, 6000, np.random.default_rng(0)).choices, np.random.default_rng(1))
    share = np.bincount(how, minlength=len(MUTATORS)) / len(how)
    assert share[0] == pytest.approx(2 / 3, abs=0.03) and share[1] == pytest.approx(1 / 3, abs=0.03)


def test_nothing_to_mutate_is_no_error() -> None:
    sketch = Sketch(dag(), holes=(Hole("C.i.1", (4,), "tile", "C", "i"),))
    after, how = mutate(sketch, np.zeros((3, 1), dtype=np.int32), np.random.default_rng(0))
    assert not after.any() and (how == -1).all()


def test_samples_are_valid_distinct_and_not_banned() -> None:
    where = space()
    first = sample_valid(where, where.sketches[0], 200, np.random.default_rng(0))
    again = sample_valid(where, where.sketches[0], 200, np.random.default_rng(0), where.prints(first.population))
    both = np.concatenate([where.prints(first.population), where.prints(again.population)])
    assert len(first.population) == len(again.population) == 200
    assert len(np.unique(both)) == 400
    assert where.valid(first.population, where.target).all()
    assert 0.3 < first.acceptance < 0.95


def test_sampling_ends_where_nothing_is_valid() -> None:
    barren = replace(space(), valid=lambda p, target: np.zeros(len(p), dtype=bool))
    found = sample_valid(barren, barren.sketches[0], 100, np.random.default_rng(0))
    assert len(found.population) == 0 and found.acceptance == 0.0 and found.drawn > 0


def test_sampling_a_tiny_space_finds_all_of_it_and_ends() -> None:
    where = space(little())
    found = sample_valid(where, where.sketches[0], 10_000, np.random.default_rng(0), batches=2)
    assert len(found.population) == len(enumerate_all(where, where.sketches[0])) < 120


def test_sampling_is_uniform() -> None:
    choices = sample(little(), 12_000, np.random.default_rng(0)).choices
    assert np.bincount(choices[:, 2]) == pytest.approx(np.full(4, 3000), rel=0.1)


def test_enumeration_counts_equal_programs_once() -> None:
    where = space(Sketch(dag(), holes=tuple(h for h in tiled().holes if h.kind in ("order", "split", "unroll"))))
    population = enumerate_all(where, where.sketches[0])
    assert where.size == 24 and len(population) == 4 * (3 + 1)  # unsplit, the order is dead


def test_a_sketch_without_holes_is_one_program() -> None:
    where = space(Sketch(dag()))
    assert len(enumerate_all(where, where.sketches[0])) == 1
    assert len(sample_valid(where, where.sketches[0], 5, np.random.default_rng(0)).population) == 1


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 2**32))
def test_prints_agree_with_rows(n: int, width: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(-2, 2, size=(n, width))
    assert len(np.unique(fingerprint(rows))) == len(np.unique(rows, axis=0))
    assert len(first_of_each(fingerprint(rows))) == len(np.unique(rows, axis=0))


def test_keys_are_stable_and_tell_sketches_and_values_apart() -> None:
    assert key("s", (1, 2)) == key("s", np.array([1, 2], dtype=np.int32)) == "fa5646fbbbb90aea617e510be1a53733"
    assert len({key("s", (1, 2)), key("t", (1, 2)), key("s", (2, 1)), key("s", (1,))}) == 4


def test_selection_follows_fitness() -> None:
    rows = select(np.array([0.0, 1.0, 3.0, -5.0, np.nan]), 8000, np.random.default_rng(0))
    assert np.bincount(rows, minlength=5) / 8000 == pytest.approx([0, 0.25, 0.75, 0, 0], abs=0.03)
    assert set(select(np.zeros(3), 100, np.random.default_rng(0))) == {0, 1, 2}


def test_shares_follow_the_best_and_everyone_has_a_turn() -> None:
    good, fair, bad, none = np.full(100, 0.9), np.full(100, 0.3), np.full(100, 0.1), np.empty(0)
    assert shares([good, bad, none], 1000, 0.1, 1000, turn=0) == pytest.approx([910, 90, 0], abs=1), "all count"
    assert shares([good, fair, bad, none], 1000, 0.1, 200, turn=0) == pytest.approx([775, 225, 0, 0], abs=1)
    turns = [shares([good, fair, bad, none], 1000, 0.1, 100, turn=t) for t in range(4)]
    assert turns == [[1000, 0, 0, 0], [900, 100, 0, 0], [900, 0, 100, 0], [1000, 0, 0, 0]], "of those who live"
    assert shares([np.zeros(3), np.zeros(3)], 10, 0.0, 2, turn=0) == [5, 5]
    assert shares([none, none], 10, 0.1, 5, turn=0) == [0, 0]


# -- evolution ----------------------------------------------------------------------------------------------------


def speed(population: Population) -> np.ndarray:
    return 1e-3 / seconds(population)


def found(where: Space) -> list[Population]:
    rng = np.random.default_rng(0)
    return [sample_valid(where, s, 256, rng).population for s in where.sketches]


SMALL = Evolution(size=512)


def test_evolution_beats_its_founders_and_gives_distinct_valid_programs() -> None:
    where, rng = space(), np.random.default_rng(0)
    founders = found(where)
    best = evolve(where, founders, speed, 32, rng, SMALL)
    assert len({c.key for c in best}) == 32
    assert [c.score for c in best] == sorted((c.score for c in best), reverse=True)
    assert best[0].score > 1.1 * max(speed(p).max() for p in founders)
    for c in best:
        one = Population(where.sketches[c.sketch], np.array([c.choices], dtype=np.int32))
        assert where.valid(one, where.target).all()
        assert speed(one)[0] == pytest.approx(c.score)
        assert program_keys(where, c.sketch, one.choices) == [c.key]


def test_evolution_leaves_out_what_was_measured() -> None:
    where = space()
    founders = found(where)
    before = evolve(where, founders, speed, 64, np.random.default_rng(0), SMALL)
    chosen = [np.array([c.choices for c in before if c.sketch == s], dtype=np.int32) for s in (0, 1)]
    measured = [Population(s, c.reshape(-1, len(s.holes))) for s, c in zip(where.sketches, chosen, strict=True)]
    after = evolve(where, founders, speed, 64, np.random.default_rng(0), SMALL, measured)
    assert not {c.key for c in before} & {c.key for c in after}
    assert len(after) == 64


def test_lineage_names_founders_and_steps() -> None:
    where = space()
    founders = found(where)
    keys = {k for s, p in enumerate(founders) for k in program_keys(where, s, p.choices)}
    names = {m.name for m in MUTATORS} | {"crossover"}
    best = evolve(where, founders, speed, 64, np.random.default_rng(0), SMALL)
    for c in best:
        assert set(c.parents) <= keys and bool(c.parents) == bool(c.trail)
        assert len(c.trail) <= SMALL.generations
        assert {part for step in c.trail for part in step.split("+")} <= names
    assert any(len(c.parents) == 2 for c in best)


def test_no_crossover_means_one_parent() -> None:
    where = space()
    best = evolve(where, found(where), speed, 64, np.random.default_rng(0), replace(SMALL, crossover=0.0))
    assert not any("crossover" in step for c in best for step in c.trail)
    assert all(len(c.parents) <= 1 for c in best)


def test_evolution_is_a_function_of_its_seed() -> None:
    where = space()
    first, second = (evolve(where, found(where), speed, 16, np.random.default_rng(7), SMALL) for _ in range(2))
    assert first == second


def test_evolution_bears_empty_founders_and_hopeless_scores() -> None:
    where = space()
    empty = [p.take(np.arange(0)) for p in found(where)]
    assert evolve(where, empty, speed, 8, np.random.default_rng(0), SMALL) == []
    half = [found(where)[0], empty[1]]
    assert {c.sketch for c in evolve(where, half, speed, 8, np.random.default_rng(0), SMALL)} == {0}
    flat = evolve(where, found(where), lambda p: np.zeros(len(p)), 64, np.random.default_rng(0), SMALL)
    assert {c.sketch for c in flat} == {0, 1}  # ties favour no sketch


def test_a_space_without_sketches_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        replace(space(), keys=(), sketches=())


@settings(max_examples=20)
@given(sketches(), st.integers(0, 2**32))
def test_evolution_bears_any_sketch(sketch: Sketch, seed: int) -> None:
    where = Space(
        ("s",),
        (sketch,),
        space().target,
        lambda p, target: np.ones(len(p), dtype=bool),
        lambda p: p.choices,
        lambda p, target: p.choices.astype(np.float32),
        lambda sketch, target: (),
    )
    rng = np.random.default_rng(seed)
    founders = [sample_valid(where, sketch, 16, rng).population]
    best = evolve(where, founders, lambda p: np.ones(len(p)), 8, rng, Evolution(size=32))
    assert 1 <= len(best) <= 8
    assert in_domain(sketch, np.array([c.choices for c in best], dtype=np.int64).reshape(len(best), len(sketch.holes)))
