"""Ask and tell, against a formula."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest

from search.cost_model import Rows, rows
from search.evolve import Evolution, Space
from search.tuner import (
    Proposal,
    Result,
    Settings,
    State,
    Strategy,
    Tuner,
    best_by_round,
    chained_seconds,
    dealt,
    known,
    lessons,
)
from tests.search.toy import FLOOR_SECONDS, SCHEMA, little, measure, plain, space, tiled

QUICK = Settings(evolution=Evolution(size=256), exhaustive=1024)


def tune(where: Space, rounds: int, batch: int = 32, fail: int = 0, settings: Settings = QUICK, seed: int = 0) -> Tuner:
    tuner = Tuner(where, SCHEMA, settings, seed)
    for _ in range(rounds):
        tuner.tell(measure(where, tuner.ask(batch), fail))
    return tuner


def history(tuner: Tuner) -> tuple[Result, ...]:
    return tuner.state.history


def best(tuner: Tuner) -> float:
    assert tuner.best_seconds is not None
    return tuner.best_seconds


def test_search_nears_the_optimum_that_random_misses() -> None:
    where = space()
    searched, drawn = tune(where, 8), tune(where, 8, settings=replace(QUICK, strategy="random only"))
    assert best(searched) < 1.35 * FLOOR_SECONDS
    assert best(searched) < 0.8 * best(drawn)


@pytest.mark.parametrize("strategy", ["search", "random only", "no crossover", "no model"])
def test_every_strategy_keeps_the_promises(strategy: Strategy) -> None:
    where = space()
    tuner = tune(where, 4, fail=7, settings=replace(QUICK, strategy=strategy))
    proposals = [r.proposal for r in history(tuner)]
    assert len({p.key for p in proposals}) == len(proposals) == 4 * 32
    assert [p.round for p in proposals] == [r for r in range(4) for _ in range(32)]
    assert (tuner.model is None) == (strategy in ("random only", "no model"))
    origins = {p.origin for p in proposals if p.round}
    assert origins == ({"random"} if strategy == "random only" else {"random", "evolved"})
    crossed = any("crossover" in step for p in proposals for step in p.trail)
    assert crossed == (strategy in ("search", "no model"))


def test_a_tuner_made_from_the_history_is_the_tuner_that_was_told() -> None:
    where = space()
    told = tune(where, 4, fail=5, seed=3)
    made = Tuner(where, SCHEMA, QUICK, 3, history(told))
    assert made.ask(32) == told.ask(32)
    assert made.quality == told.quality and made.quality is not None
    assert made.progress("w") == told.progress("w")


def test_asking_changes_nothing_and_seeds_differ() -> None:
    where = space()
    tuner = tune(where, 2)
    assert tuner.ask(16) == tuner.ask(16)
    assert tuner.ask(16) != Tuner(where, SCHEMA, QUICK, 1, history(tuner)).ask(16)


def test_pending_programs_are_not_asked_again() -> None:
    tuner = tune(space(), 2)
    first = tuner.ask(32)
    second = tuner.ask(32, pending=first)
    assert len(second) == 32 and not {p.key for p in first} & {p.key for p in second}


def test_the_first_batch_is_random_without_a_reason_to_prefer() -> None:
    first = Tuner(space(), SCHEMA, QUICK).ask(64)
    assert {p.origin for p in first} == {"random"} and all(p.predicted is None for p in first)
    assert [sum(p.sketch_key == f"sketch{s}" for p in first) for s in (0, 1)] == [32, 32]


def test_a_heuristic_is_preferred_in_half_of_the_first_batch() -> None:
    where = space()
    first = Tuner(where, SCHEMA, QUICK, heuristic=lambda x: x[:, 5]).ask(64)  # wide vectors
    preferred = [p for p in first if p.origin == "preferred"]
    assert 31 <= len(preferred) <= 33
    assert all(p.sketch_key == "sketch0" and p.choices[5] >= 5 for p in preferred)


def others(where: Space, n: int) -> Rows:
    """What another workload of the same shape taught."""
    told = known(where, history(tune(where, 1, batch=n, settings=replace(QUICK, strategy="random only"), seed=9)))
    return lessons(where, SCHEMA, told)


def test_other_workloads_teach_before_the_first_measurement() -> None:
    where = space()
    cold = measure(where, Tuner(where, SCHEMA, QUICK).ask(32))
    warm = Tuner(where, SCHEMA, QUICK, others=others(where, 256))
    assert warm.quality is not None and warm.quality.rank is not None and warm.quality.rank > 0.5
    first = measure(where, warm.ask(32))
    preferred = [r.seconds for r in first if r.proposal.origin == "preferred" and r.seconds is not None]
    assert np.median(preferred) < 0.8 * np.median([r.seconds for r in cold if r.seconds is not None])


def test_rows_of_other_workloads_are_bounded() -> None:
    where = space()
    many = others(where, 200)
    tuner = Tuner(where, SCHEMA, replace(QUICK, others=50), others=many)
    taken = tuner.state.other_rows()
    assert len(taken) == 50 and (taken.weights == 0.25).all()


def test_a_small_space_is_exhausted_then_silent() -> None:
    where = space(little())
    tuner = Tuner(where, SCHEMA, QUICK)
    total = tuner.space_left
    assert total is not None and 60 < total < 120
    rounds = 0
    while proposals := tuner.ask(16):
        tuner.tell(measure(where, proposals))
        rounds += 1
    assert tuner.space_left == 0 and rounds == -(-total // 16)
    assert len(history(tuner)) == total
    assert tuner.progress("w").space_left == 0


def test_a_space_too_large_to_count_does_not_say_what_is_left() -> None:
    assert Tuner(space(), SCHEMA, QUICK).space_left is None


def test_a_space_without_a_valid_program_says_so() -> None:
    barren = replace(space(), valid=lambda p, target: np.zeros(len(p), dtype=bool))
    tuner = Tuner(barren, SCHEMA, QUICK)
    assert tuner.ask(8) == [] and tuner.acceptance() == 0.0
    assert 0.3 < Tuner(space(), SCHEMA, QUICK).acceptance() < 1


def test_failures_are_rows_and_never_times() -> None:
    where = space()
    tuner = Tuner(where, SCHEMA, QUICK)
    tuner.tell(measure(where, tuner.ask(32), fail=1))
    assert tuner.best_seconds is None and tuner.finalists(5) == []
    assert tuner.progress("w").best == (None,) and tuner.progress("w").failures == 1
    assert len(tuner.ask(32)) == 32
    tuner.tell(measure(where, tuner.ask(32), fail=2))
    p = tuner.progress("w", weight=2.0, roofline_seconds=1e-4)
    assert p.best[0] is None and p.best[1] == tuner.best_seconds and p.failures == 0 and p.trials == 64


def test_small_batches_keep_their_share_of_random_programs() -> None:
    where = space()
    tuner = tune(where, 1, batch=32)
    origins = []
    for _ in range(30):
        asked = tuner.ask(2)
        origins += [p.origin for p in asked]
        tuner.tell(measure(where, asked))
    assert 0 < origins.count("random") < 12


def test_quality_is_judged_by_rows_that_did_not_train() -> None:
    tuner = tune(space(), 6)
    state, q = tuner.state, tuner.quality
    held = state.held(state.own_rows(), state.other_rows())
    assert q is not None and q.rows == held.sum()
    assert held[state.known.exploring].all() and state.known.exploring.sum() >= 4
    assert 0.1 < held.mean() < 0.35


def test_a_random_history_still_trains() -> None:
    where = space()
    told = history(tune(where, 4, settings=replace(QUICK, strategy="random only")))
    tuner = Tuner(where, SCHEMA, QUICK, history=told)
    assert tuner.quality is not None and tuner.quality.rows < 40


def test_results_of_forgotten_sketches_are_left_out() -> None:
    where = space()
    told = history(tune(where, 2))
    tuner = Tuner(space(tiled()), SCHEMA, QUICK, history=told)  # the second sketch is gone
    assert len(tuner.state.known) == sum(r.proposal.sketch_key == "sketch0" for r in told)
    assert len(tuner.ask(32)) == 32


def test_features_of_another_schema_are_refused() -> None:
    strange = rows(np.zeros((3, 5), dtype=np.float32), np.zeros(3), np.arange(3))
    with pytest.raises(ValueError, match="60 columns"):
        Tuner(space(), SCHEMA, QUICK, others=strange)


def test_finalists_are_the_fastest_first() -> None:
    where = space()
    tuner = tune(where, 3)
    times = [r.seconds for r in measure(where, tuner.finalists(10)) if r.seconds is not None]
    assert times == sorted(times) and times[0] == tuner.best_seconds


# -- times --------------------------------------------------------------------------------------------------------


def proposal(key: str, number: int = 0) -> Proposal:
    return Proposal(key, "sketch0", (0,) * 11, number, "random")


def test_a_time_beside_the_incumbent_counts_by_its_ratio() -> None:
    lucky, later, best_yet = proposal("a"), proposal("b", 1), proposal("c", 2)
    told = [
        Result(lucky, 1.0),  # truly 1.2
        Result(later, 1.1, relative=1.1 / 1.2, incumbent="a"),  # the incumbent took 1.2 this time
        Result(best_yet, 2.0, relative=0.5, incumbent="b"),  # a slow minute
        Result(proposal("d", 2), 3.0, relative=0.5, incumbent="unknown"),
        Result(proposal("e", 2), None, relative=0.5, incumbent="a"),
    ]
    seconds = chained_seconds(told)
    assert seconds == pytest.approx({"a": 1.0, "b": 1.1 / 1.2, "c": 0.5 * 1.1 / 1.2, "d": 3.0})


def test_repeated_measurements_count_by_their_median() -> None:
    told = [Result(proposal("a"), t) for t in (1.0, 3.0, 1.2)] + [Result(proposal("a"), None)]
    assert chained_seconds(told) == {"a": 1.2}
    columns = known(space(), told)
    assert len(columns) == 1 and columns.seconds.tolist() == [1.2]


def test_best_by_round_carries_on() -> None:
    nan = float("nan")
    best, barren = best_by_round(np.array([0, 0, 1, 2, 2, 3]), np.array([nan, nan, 2.0, 3.0, 1.0, nan]))
    assert best == (None, 2.0, 1.0, 1.0) and barren == 1
    assert best_by_round(np.empty(0, dtype=np.int64), np.empty(0)) == ((), 0)


def test_dealing_is_even_as_far_as_the_piles_go() -> None:
    rng = np.random.default_rng(0)
    assert dealt([100, 2, 100], 32, rng) == [15, 2, 15]
    assert dealt([1, 1], 32, rng) == [1, 1] and dealt([5, 0], 3, rng) == [3, 0]
    assert len({tuple(dealt([9, 9, 9], 1, rng)) for _ in range(30)}) == 3


@pytest.mark.slow
def test_show_what_a_round_costs(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is asserted of time: `python -m pytest -m slow tests/search/test_tuner.py` shows it (idle: under 0.3 s)."""
    where = space()
    told = history(tune(where, 8, batch=64, settings=Settings()))
    for _ in range(3):
        tuner = Tuner(where, SCHEMA, Settings(), history=told)
        start = perf_counter()
        trained = tuner.model
        middle = perf_counter()
        asked = tuner.ask(64)
        end = perf_counter()
        with capsys.disabled():
            print(
                f"\n512 rows: {middle - start:.3f} s features and training, {end - middle:.3f} s for 2,048 x 4", end=""
            )
    assert trained is not None and len(asked) == 64


def test_states_are_values() -> None:
    where = space(plain())
    tuner = Tuner(where, SCHEMA, QUICK)
    before: State = tuner.state
    tuner.tell(measure(where, tuner.ask(4)))
    assert before.history == () and len(tuner.state.history) == 4
