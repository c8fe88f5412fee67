"""Strategies and what answers for them, against the toy's formula."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from search.budget import Policy, Progress, next_round, round_robin
from search.evolve import Evolution, Space
from search.strategy import (
    BOUNDLESS,
    STRATEGIES,
    TooFewRows,
    UnknownStrategy,
    best_after,
    effective,
    exactly,
    fit_surrogate,
    milestones,
    pool,
    recorded_seconds,
    results,
    smoothly,
    strategies,
    trials_to,
)
from search.tuner import Known, Settings, Tuner, known, lessons
from tests.search.toy import SCHEMA, little, measure, space

QUICK = Settings(evolution=Evolution(size=256), exhaustive=1024)
RANDOM = replace(QUICK, strategy="random only")


def history(where: Space, programs: int, fail: int = 0, seed: int = 5) -> Known:
    """Random programs and their times."""
    return known(where, measure(where, Tuner(where, SCHEMA, RANDOM, seed).ask(programs), fail))


# -- the table ----------------------------------------------------------------------------------------------------


def test_names_are_rows_each_once_in_order() -> None:
    assert [s.name for s in strategies(["random", "evolution", "random"])] == ["random", "evolution"]
    assert len({s.name for s in STRATEGIES}) == len(STRATEGIES) and STRATEGIES[0].settings == Settings()


@pytest.mark.parametrize("names", [["nope"], ["evolution", "nope"], []])
def test_an_unknown_name_lists_those_that_exist(names: list[str]) -> None:
    with pytest.raises(UnknownStrategy, match="evolution, no-crossover, no-model"):
        strategies(names)


def test_what_has_no_say_makes_no_difference() -> None:
    full, crossover, turns, drawn = strategies(["evolution", "no-crossover", "no-budget-rule", "random"])
    assert effective(turns, "surrogate", 1) == effective(full, "surrogate", 1)
    assert effective(turns, "surrogate", 2) != effective(full, "surrogate", 2)
    assert effective(crossover, "surrogate", 1) != effective(full, "surrogate", 1)
    assert effective(crossover, "pool", 1) == effective(full, "pool", 1)
    assert effective(full, "pool", 1).settings.exhaustive == BOUNDLESS
    assert effective(full, "pool", 1).lessons and not effective(drawn, "pool", 1).lessons
    assert len({effective(s, "surrogate", 2) for s in STRATEGIES}) == len(STRATEGIES)


def test_turns_are_taken_whatever_is_to_be_gained() -> None:
    rich, poor = Progress("rich", 9.0, 64, (9.0, 5.0)), Progress("poor", 1.0, 64, (0.1, 0.1))
    policy = Policy(rounds=1 << 30)
    by_gain, by_turn = next_round([rich, poor], 99, policy), round_robin([rich, poor], 99, policy)
    assert by_gain is not None and by_gain.key == "rich"
    assert by_turn is not None and (by_turn.key, by_turn.trials) == ("rich", policy.shared)  # the heavier one first
    after = round_robin([replace(rich, best=(9.0, 5.0, 5.0)), poor], 99, policy)
    assert after is not None and after.key == "poor"
    assert round_robin([rich, poor], 0, policy) is None and round_robin([], 9, policy) is None
    assert round_robin([replace(rich, space_left=0)], 9, policy) is None


# -- the pool -----------------------------------------------------------------------------------------------------


def test_a_pool_is_proposed_whole_and_nothing_else() -> None:
    where = space()
    told = history(where, 70, fail=9)
    recorded = recorded_seconds(told)
    tuner, answer = Tuner(pool(where, told), SCHEMA, replace(QUICK, exhaustive=BOUNDLESS)), exactly(recorded)
    asked = []
    while proposals := tuner.ask(32):
        tuner.tell(results(proposals, answer(proposals)))
        asked += [p.key for p in proposals]
    assert sorted(asked) == sorted(recorded) and tuner.space_left == 0
    assert {p.origin for p in tuner.state.known.proposals} == {"random", "preferred"}


def test_without_a_model_children_outside_the_pool_are_not_proposed() -> None:
    where = space()
    told = history(where, 60)
    settings = replace(QUICK, exhaustive=BOUNDLESS, strategy="no model")
    tuner = Tuner(pool(where, told), SCHEMA, settings)
    first = tuner.ask(32)
    tuner.tell(results(first, exactly(recorded_seconds(told))(first)))
    second = tuner.ask(64)
    assert len(second) == 28 and {p.key for p in second} < set(recorded_seconds(told))


# -- the surrogate ------------------------------------------------------------------------------------------------


def test_a_surrogate_ranks_programs_it_never_saw() -> None:
    where = space()
    told, unseen = history(where, 150), history(where, 100, seed=6)
    fitted = fit_surrogate(lessons(where, SCHEMA, told).features, told.seconds, np.ones(len(told), dtype=bool))
    said = fitted.seconds(lessons(where, SCHEMA, unseen).features)
    off = np.median(np.abs(said / unseen.seconds - 1))
    assert off < 0.15 and fitted.held.rank is not None and fitted.held.rank > 0.9
    assert fitted.held.error == pytest.approx(off, rel=0.5) and fitted.held.rows == 150


def test_guessing_each_from_the_others_is_what_it_says() -> None:
    """The closed form against the long way round: fit without a row, guess it."""
    where = space(little())
    told = history(where, 24)
    features, drawn = lessons(where, SCHEMA, told).features, np.ones(24, dtype=bool)
    whole = fit_surrogate(features, told.seconds, drawn)
    errors = []
    for i in range(24):
        rest = np.delete(np.arange(24), i)
        part = fit_surrogate(features[rest], told.seconds[rest], drawn[rest])
        errors.append(abs(float(part.seconds(features[i : i + 1])[0]) / told.seconds[i] - 1))
    assert whole.held.error == pytest.approx(float(np.median(errors)), abs=0.03)


def test_far_from_everything_it_says_what_random_programs_take() -> None:
    rng = np.random.default_rng(0)
    features, drawn = rng.random((40, 3)).astype(np.float32), np.arange(40) < 20
    seconds = np.where(drawn, 4.0, 1.0) * np.exp(0.01 * rng.standard_normal(40))
    fitted = fit_surrogate(features, seconds, drawn)
    assert fitted.seconds(np.full((1, 3), 1e3, dtype=np.float32))[0] == pytest.approx(4.0, rel=0.05)


def test_near_a_failure_is_a_failure() -> None:
    line = np.linspace(0, 1, 40, dtype=np.float32)[:, None]
    seconds = np.where(line[:, 0] < 0.7, 1.0 + line[:, 0], np.nan)
    said = fit_surrogate(line, seconds, np.ones(40, dtype=bool)).seconds(np.array([[0.2], [0.9]], dtype=np.float32))
    assert said[0] == pytest.approx(1.2, rel=0.05) and np.isnan(said[1])


def test_too_few_times_are_refused_and_too_many_thinned() -> None:
    seconds = np.where(np.arange(30) < 7, 1.0, np.nan)
    with pytest.raises(TooFewRows, match="7 timed programs"):
        fit_surrogate(np.zeros((30, 2), dtype=np.float32), seconds, np.ones(30, dtype=bool))
    alike = fit_surrogate(np.zeros((30, 2), dtype=np.float32), np.ones(30), np.ones(30, dtype=bool))
    assert alike.held.rank is None and alike.seconds(np.ones((1, 2), dtype=np.float32))[0] == pytest.approx(1.0)


def test_recorded_programs_answer_with_their_own_time() -> None:
    where = space()
    told = history(where, 60, fail=5)
    recorded = recorded_seconds(told)
    features = lessons(where, SCHEMA, told).features
    answer = smoothly(where, fit_surrogate(features, told.seconds, np.ones(60, dtype=bool)), recorded)
    unseen = Tuner(where, SCHEMA, RANDOM, 8).ask(10)
    said = answer([*told.proposals, *unseen])
    assert said[:60] == list(recorded.values()) and None in said[:60]
    alone = [answer([p])[0] for p in unseen]
    assert [t is None for t in alone] == [t is None for t in said[60:]]
    assert [t for t in said[60:] if t] == pytest.approx([t for t in alone if t])


# -- what came of it ----------------------------------------------------------------------------------------------


def test_milestones_double_up_to_the_last() -> None:
    assert milestones(128) == [16, 32, 64, 128]
    assert milestones(100) == [16, 32, 64, 100] and milestones(5) == [5] and milestones(16) == [16]


def test_curves_are_read_by_trials() -> None:
    curve = np.array([np.nan, 4.0, 4.0, 2.0])
    assert np.isnan(best_after(curve, 1)) and best_after(curve, 3) == 4.0 and best_after(curve, 100) == 2.0
    assert np.isnan(best_after(np.empty(0), 4))
    assert trials_to(curve, 4.0) == 2 and trials_to(curve, 3.0) == 4 and trials_to(curve, 1.0) == np.inf
