"""The statistics of a night, against brute force and against machines with the noise of real ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import exp
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.regression import (
    RULE,
    Rule,
    Sample,
    Shift,
    between_nights,
    clearly_faster,
    hodges_lehmann,
    holm,
    mann_whitney,
    side_by_side,
    signed_rank,
    suspicious,
    verdicts,
)

Times = st.lists(st.floats(0.1, 10, allow_nan=False), min_size=1, max_size=5, unique=True)


# ---------------------------------------------------------------------------------------------- ranks


@settings(max_examples=60, deadline=None)
@given(Times, Times)
def test_mann_whitney_counts_orders(then: list[float], now: list[float]) -> None:
    """How many ways to choose who is `now` among all of them give as many wins?"""
    every = [*then, *(x + 1e-9 for x in now)]
    wins = sum(b > a for a, b in product(then, now))

    def of(chosen: Sequence[float]) -> int:
        rest = [x for x in every if x not in chosen]
        return sum(b > a for a, b in product(rest, chosen))

    ways = [of(chosen) for chosen in combinations(every, len(now))]
    assert mann_whitney(then, now) == pytest.approx(sum(w >= wins for w in ways) / len(ways))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5, allow_nan=False), min_size=1, max_size=7, unique_by=abs))
def test_signed_rank_counts_signs(differences: list[float]) -> None:
    sizes = sorted(map(abs, differences))
    total = sum(rank for rank, size in enumerate(sizes, 1) if size in differences and size > 0)
    ways = [sum(r for r, s in enumerate(signs, 1) if s > 0) for signs in product((-1, 1), repeat=len(sizes))]
    assert signed_rank(differences) == pytest.approx(sum(w >= total for w in ways) / len(ways))


def test_ties_count_against_a_change() -> None:
    assert mann_whitney([1.0] * 5, [1.0] * 5) == 1.0
    assert signed_rank([0.0] * 5) == 1.0
    assert signed_rank([-1.0, 1.0]) == 0.75, "the positive one gets the lower rank"


def test_holm_corrects_the_least_for_all() -> None:
    assert holm([0.01, 0.04, 0.03]) == [pytest.approx(0.03), pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([]) == []
    for order in permutations([0.001, 0.2, 0.9]):
        assert sorted(holm(list(order))) == [pytest.approx(0.003), pytest.approx(0.4), pytest.approx(0.9)]


def test_the_shift_is_the_median_of_differences() -> None:
    assert hodges_lehmann([5.0, 1.0, 3.0]) == 3.0


# ---------------------------------------------------------------------------------------------- two comparisons


def samples(*seconds: float, peak: float = 100.0) -> list[Sample]:
    return [Sample(s, peak) for s in seconds]


def spread(middle: float, n: int = 15) -> list[float]:
    return [middle * (1 + 0.002 * (i % 5 - 2) + 1e-6 * i) for i in range(n)]


def test_a_clock_that_moved_is_no_change() -> None:
    """Ten per cent slower at a clock that is ten per cent slower."""
    now = samples(*spread(1.1), peak=100 / 1.1)
    found = between_nights([samples(*spread(1.0))], now, clocked=True)
    assert found is not None and found.ratio == pytest.approx(1.0, abs=1e-3) and found.p == 1.0


def test_what_waits_for_memory_may_follow_the_clock_or_not() -> None:
    then = [samples(*spread(1.0))]
    for seconds in (1.0, 1.05, 1.1):  # not at all, half, wholly
        found = between_nights(then, samples(*spread(seconds), peak=100 / 1.1), clocked=False)
        assert found is not None and not found.large
    worse = between_nights(then, samples(*spread(1.25), peak=100 / 1.1), clocked=False)
    assert worse is not None and worse.ratio == pytest.approx(1.25 / 1.1, abs=1e-3) and verdicts([worse])[0][0]


def test_rounds_with_a_neighbour_count_for_nothing() -> None:
    crowded = samples(*spread(1.4, 10), peak=55.0)
    now = [*samples(*spread(1.0, 5)), *crowded]
    found = between_nights([samples(*spread(1.0))], now, clocked=True)
    assert found is not None and found.rounds == 5 and found.ratio == pytest.approx(1.0, abs=5e-3)
    assert between_nights([samples(*spread(1.0))], crowded, clocked=True) is None and suspicious(None)


def test_a_change_is_large_and_certain() -> None:
    then = [samples(*spread(1.0))]
    found = between_nights(then, samples(*spread(1.1)), clocked=True)
    assert found is not None and found.ratio == pytest.approx(1.1, abs=1e-3) and verdicts([found]) == [
        (True, pytest.approx(1.0, abs=1e-4))
    ]  # fmt: skip
    faster = between_nights(then, samples(*spread(0.9)), clocked=True)
    assert faster is not None and verdicts([faster])[0][0] and faster.ratio < 1
    small = between_nights(then, samples(*spread(1.04)), clocked=True)
    assert small is not None and small.p < 1e-4 and suspicious(small) and not verdicts([small])[0][0]
    few = between_nights([samples(*spread(1.0, 5))], samples(*spread(1.1, 5)), clocked=True)
    assert few is not None and verdicts([few])[0][0] and not verdicts([few] * 3)[0][0], "too few rounds for three"


def test_a_program_that_scatters_must_change_by_more() -> None:
    nights = [samples(*spread(s)) for s in (1.0, 1.06, 0.97, 1.04)]
    found = between_nights(nights, samples(*spread(1.1)), clocked=True)
    assert found is not None and found.needed > 1.1 and not verdicts([found])[0][0]


def test_a_slow_decline_adds_up() -> None:
    """Two per cent a night: the first nights are the measure, not the last one."""
    nights = [samples(*spread(1.02**n)) for n in range(5)]
    found = between_nights(nights, samples(*spread(1.02**5)), clocked=True)
    assert found is not None and found.ratio == pytest.approx(1.02**4, abs=5e-3)


def test_side_by_side_looks_at_rounds() -> None:
    """A burst hits both; nothing is left of it."""
    bursts = [1.0, 1.0, 3.0, 1.2, 1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.0]
    old = [b * s for b, s in zip(bursts, spread(1.0), strict=True)]
    found = side_by_side(old, [1.1 * s for s in old])
    assert found is not None and found.ratio == pytest.approx(1.1) and verdicts([found])[0][0]
    same = side_by_side(old, list(old))
    assert same is not None and same.ratio == 1.0 and same.p == 1.0
    assert side_by_side(old[:4], old[:4]) is None


def test_who_is_clearly_faster() -> None:
    old = spread(1.0, 21)
    better = clearly_faster(old, [0.97 * s for s in old], each=3)
    assert better is not None and better.ratio == pytest.approx(0.97) and better.p < RULE.alpha
    for factor in (1.0, 1.03):
        found = clearly_faster(old, [factor * s for s in old], each=3)
        assert found is not None and found.p > 0.5
    assert clearly_faster(old[:3], old[:3], each=3) is None
    once = clearly_faster(old, [(1.03 if i >= 18 else 0.97) * s for i, s in enumerate(old)], each=3)
    assert once is not None and once.ratio < 1 and once.p > RULE.alpha, "not in the last process"


# ---------------------------------------------------------------------------------------------- noise


@dataclass(frozen=True)
class Machine:
    """Noise as it was measured: jitter of a round, drift of the clock from night to night and within one, what a process
    has by chance, bursts of other load that last for some rounds and may take half of the core."""

    jitter: float = 0.035
    clock: float = 0.05
    session: float = 0.01

    def rounds(self, rng: random.Random, n: int, seconds: float) -> list[Sample]:
        clock, chance, burst = exp(rng.gauss(0, self.clock)), exp(rng.gauss(0, self.session)), 0
        out = []
        for _ in range(n):
            now = clock * exp(rng.gauss(0, 0.02))
            time, peak = seconds * chance * (1 + abs(rng.gauss(0, self.jitter))) / now, 100 * now
            burst = rng.randint(1, 3) if rng.random() < 0.06 else max(burst - 1, 0)
            if burst:
                time, peak = time * rng.uniform(1.1, 2.0), peak * rng.uniform(0.5, 1.0)
            out.append(Sample(time, peak * (1 - abs(rng.gauss(0, 0.01)))))
        return out


def alarms(machine: Machine, nights: Sequence[Sequence[float]], seed: int, rule: Rule = RULE) -> list[set[int]]:
    """Which programs are said to have changed on each night: seconds of every program, night by night."""
    rng, past, out = random.Random(seed), [list[list[Sample]]() for _ in nights[0]], []
    for seconds in nights:
        first = [machine.rounds(rng, 6 if p else 15, s) for p, s in zip(past, seconds, strict=True)]
        asked: list[tuple[int, Shift]] = []
        for i, p in enumerate(past):
            if p and suspicious(between_nights(p, first[i], True, rule), rule):
                again = machine.rounds(rng, 15, seconds[i])
                first[i] += again
                found = between_nights(p, again, True, rule)
                asked += [(i, found)] if found else []
        said = verdicts([s for _, s in asked], rule)
        out.append({i for (i, _), (true, _) in zip(asked, said, strict=True) if true})
        for p, rounds in zip(past, first, strict=True):
            p.append(rounds)
    return out


@pytest.mark.parametrize("jitter", [0.02, 0.035, 0.05])
def test_twenty_nights_without_a_change_raise_no_alarm(jitter: float) -> None:
    found = alarms(Machine(jitter), [[1e-4, 3e-4, 2e-5, 5e-3]] * 21, seed=7)
    assert not set().union(*found)


@pytest.mark.parametrize("jitter", [0.02, 0.035, 0.05])
@pytest.mark.parametrize("before", [1, 3, 6])
def test_ten_per_cent_in_one_program_are_found(jitter: float, before: int) -> None:
    """In most of the first nights after it, whatever was known; and hardly ever in another program."""
    steady, slow = [1e-4, 3e-4, 2e-5, 5e-3], [1e-4, 3.3e-4, 2e-5, 5e-3]
    last = [alarms(Machine(jitter), [steady] * before + [slow], seed)[-1] for seed in range(20)]
    hits, others = sum(1 in found for found in last), sum(len(found - {1}) for found in last)
    assert hits >= 16 and others <= 1, (hits, others)


def test_the_samples_are_as_noisy_as_they_claim() -> None:
    rounds = Machine().rounds(random.Random(3), 400, 1e-4)
    times = [s.seconds for s in rounds]
    assert max(times) / min(times) > 1.8 and median(times) == pytest.approx(1e-4, rel=0.15)
