"""Who gets the next round."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.budget import Grant, Policy, Progress, gain, is_settled, next_round, verdict


def at(key: str, *best: float | None, weight: float = 1.0, **more: object) -> Progress:
    return replace(Progress(key, weight, 64 * len(best), tuple(best)), **more)  # type: ignore[arg-type]


def test_everybody_is_warmed_up_first_the_heaviest_before() -> None:
    cold = [at("a"), at("b", weight=3.0), at("c", 1.0)]
    assert next_round(cold, 1000) == Grant("b", Policy().warm, None)
    assert next_round([at("b", 1.0), at("a")], 1000) == Grant("a", Policy().warm, None)
    assert next_round([at("alone")], 1000) == Grant("alone", Policy().batch, None)


def test_a_small_budget_is_shared_by_the_warm_up() -> None:
    grant = next_round([at("a"), at("b"), at("c")], 40)
    assert grant is not None and grant.trials == 13
    grant = next_round([at("a"), at("b"), at("c")], 2)
    assert grant is not None and grant.trials == 1


def test_weight_and_time_draw_trials() -> None:
    light, heavy = at("light", 1.0, 0.9), at("heavy", 1.0, 0.9, weight=2.0)
    slow = at("slow", 10.0, 9.0)
    grant = next_round([light, heavy], 1000)
    assert grant is not None and grant.key == "heavy" and grant.gain == pytest.approx(0.8 * 0.9)
    grant = next_round([heavy, slow], 1000)
    assert grant is not None and grant.key == "slow"


def test_headroom_draws_trials_and_the_roofline_ends_hope() -> None:
    near, far = at("near", 1.0, 0.9, roofline_seconds=0.8), at("far", 0.5, 0.45, roofline_seconds=0.05)
    assert near.headroom == pytest.approx(0.1) and far.headroom == pytest.approx(0.4)
    grant = next_round([near, far], 1000)
    assert grant is not None and grant.key == "far"
    assert is_settled(replace(near, roofline_seconds=0.895))


def test_gain_is_the_formula() -> None:
    p = at("a", 2.0, 1.6, 1.3, 1.1, roofline_seconds=0.5, weight=3.0)
    seen, hoped = (2.0 - 1.1) / 3, (1.1 - 0.5) / 4
    assert gain(p) == pytest.approx(3.0 * (0.2 * seen + 0.8 * hoped))


def test_a_fast_relative_raises_hope_down_to_the_roofline() -> None:
    slow = at("slow", 1.0, 0.9, flops=1e9, family="conv", roofline_seconds=0.1)
    fast = at("fast", 0.1, 0.09, flops=1e9, family="conv")
    other = replace(fast, family="pool")
    assert gain(slow, [slow, other]) == pytest.approx(0.8 * 0.8 / 2)
    assert gain(slow, [slow, fast]) == pytest.approx(0.8 * (0.9 - 2 * 0.09))
    very_fast = replace(fast, best=(0.01, 0.001))
    assert gain(slow, [slow, very_fast]) == pytest.approx(0.8 * 0.8)


def test_no_valid_program_is_tried_again_then_given_up() -> None:
    barren, fine = at("barren", None, failures=1), at("fine", 1.0, 0.5)
    assert next_round([barren, fine], 1000) == Grant("barren", Policy().shared, None)
    dead = replace(barren, best=(None,) * 3, failures=3)
    assert verdict(dead) == "failing" and dead.headroom is None and gain(dead) == 0.0
    grant = next_round([dead, fine], 1000)
    assert grant is not None and grant.key == "fine"
    assert next_round([dead], 1000) is None


def test_a_small_space_ends() -> None:
    assert next_round([at("a", 1.0, space_left=0)], 1000) is None
    assert verdict(at("a", space_left=0)) == "exhausted"
    grant = next_round([at("a", 1.0, 0.5, space_left=10)], 1000)
    assert grant is not None and grant.trials == 10


def test_two_flat_rounds_end_it_one_does_not() -> None:
    assert not is_settled(at("a", 1.0, 0.99))
    assert is_settled(at("a", 1.0, 0.995, 0.99))
    assert not is_settled(at("a", 1.0, 0.95, 0.95))
    assert not is_settled(at("a", None, None, 1.0))
    assert is_settled(at("a", 1.0, 0.5, 0.45, 0.45), Policy(rounds=1))


def test_the_budget_ends() -> None:
    assert next_round([at("a", 1.0, 0.5)], 0) is None
    assert next_round([], 100) is None
    grant = next_round([at("a", 1.0, 0.5)], 5)
    assert grant is not None and grant.trials == 5


def test_ties_go_by_key_whatever_the_order() -> None:
    twins = [at("b", 1.0, 0.5), at("a", 1.0, 0.5)]
    assert next_round(twins, 100) == next_round(twins[::-1], 100)
    grant = next_round(twins, 100)
    assert grant is not None and grant.key == "a"


def states() -> st.SearchStrategy[list[Progress]]:
    times = st.lists(st.one_of(st.none(), st.floats(1e-6, 10)), max_size=6)
    one = st.builds(
        lambda best, weight, left, roof, flops: Progress(
            "", weight, 64 * len(best), falling(best), roof, left, barren(best), flops, "f"
        ),
        times,
        st.floats(0.5, 50),
        st.one_of(st.none(), st.integers(0, 500)),
        st.floats(0, 1),
        st.sampled_from([0.0, 1e9]),
    )
    return st.lists(one, max_size=6).map(lambda ps: [replace(p, key=str(i)) for i, p in enumerate(ps)])


def falling(best: list[float | None]) -> tuple[float | None, ...]:
    return tuple(min((t for t in best[: i + 1] if t is not None), default=None) for i in range(len(best)))


def barren(best: list[float | None]) -> int:
    return next((i for i, t in enumerate(reversed(best)) if t is not None), len(best))


@given(states(), st.integers(0, 2000))
def test_a_grant_is_within_its_means(workloads: list[Progress], left: int) -> None:
    grant = next_round(workloads, left)
    alive = [p for p in workloads if not verdict(p)]
    if grant is None:
        assert left == 0 or not alive
        return
    chosen = next(p for p in workloads if p.key == grant.key)
    assert not verdict(chosen) and 1 <= grant.trials <= min(64, left)
    assert chosen.space_left is None or grant.trials <= chosen.space_left
    assert grant.gain is None or grant.gain >= 0
    assert next_round(workloads[::-1], left) == grant


@given(states())
def test_dealing_ends_when_nothing_improves(workloads: list[Progress]) -> None:
    left, dealt = 10_000, 0
    while grant := next_round(workloads, left):
        workloads = [told(p, grant.trials) if p.key == grant.key else p for p in workloads]
        left, dealt = left - grant.trials, dealt + 1
        assert dealt <= 6 * len(workloads)
    for p in workloads:
        assert all(b is None or a is None or b <= a for a, b in pairwise(p.best))


def told(p: Progress, trials: int) -> Progress:
    """A round that found nothing better."""
    left = None if p.space_left is None else p.space_left - trials
    return replace(p, trials=p.trials + trials, best=(*p.best, p.seconds), failures=p.failures + 1, space_left=left)
