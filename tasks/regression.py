"""Did a program become slower, or is that the noise? Pure functions over samples; nothing here measures or stores.

What is known of the noise of a shared machine decides how it is met:

    clock and neighbours move by 10 %, the same for all   each sample has a peak sample beside it: the product counts
    bursts last for milliseconds to seconds               medians and ranks over rounds, never means or minima
    a neighbour has the other half of the core            peak at about half: such rounds count for nothing
    sessions differ by 1 or 2 % for ever                  the least change that is asked for is beyond that
    some programs differ more from night to night         their own scatter raises the bar, and that of all on this machine
    a neighbour's memory traffic lasts an evening         by time alone a change must be there on two nights
    many programs are looked at                           suspects are measured again, and only that is judged (Holm)

A change counts if it is large AND certain. The certainty is of ranks, and exact: Mann and Whitney (Ann. Math. Stat. 18,
1947) between nights, Wilcoxon (Biometrics 1, 1945) between two programs in the same rounds, with the shifts of Hodges
and Lehmann (Ann. Math. Stat. 34, 1963).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations_with_replacement, product
from math import comb, exp, log, pi, sqrt
from statistics import fmean, median, variance


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one program. peak_gflops: attained by the peak kernel right beside it."""

    seconds: float
    peak_gflops: float


@dataclass(frozen=True, slots=True)
class Shift:
    """Now over then, above 1 is slower; `p`: how likely so much is without a change (two-sided, beyond the margin).

    needed: the ratio from which on it is a change. rounds: on which this stands, the smaller side.
    """

    ratio: float
    p: float
    needed: float
    rounds: int

    @property
    def large(self) -> bool:
        return max(self.ratio, 1 / self.ratio) >= self.needed


@dataclass(frozen=True, slots=True)
class Rule:
    """What counts as a change.

    size:    of a change, at least
    margin:  sessions differ by so much; the test asks whether the shift is beyond it
    suspect: a first look that shows this much deserves a second one
    alpha:   chance of one false alarm a night and model, all its programs together
    scatter: times the standard deviation between a program's nights that its change must exceed
    expected, believed: that deviation of a program nobody has seen, and how many nights this is worth
    quiet:   of the best peak: below, a neighbour has half of the core. A clock alone drifts by less
    level:   nights that say what is normal; the first ones, so that a slow decline adds up
    least:   rounds on either side, below which nothing can be said
    """

    size: float = 0.05
    margin: float = 0.02
    suspect: float = 0.03
    alpha: float = 0.01
    scatter: float = 3.0
    expected: float = 0.015
    believed: int = 3
    quiet: float = 0.75
    level: int = 3
    least: int = 5


RULE = Rule()


# ---------------------------------------------------------------------------------------------- two comparisons


def between_nights(
    nights: Sequence[Sequence[Sample]], now: Sequence[Sample], clocked: bool, rule: Rule = RULE
) -> Shift | None:
    """The same program, on earlier nights and now. None: too few undisturbed rounds.

    clocked: its time follows the clock, as that of the peak kernel does. Otherwise it waits for memory, more or less:
    then it is slower only if it is so in seconds and in multiples of the peak, which is true of neither explanation.
    """
    best = max((s.peak_gflops for s in (*now, *(s for night in nights for s in night))), default=0.0)
    calm = [found for night in nights if (found := _undisturbed(night, best, rule))]
    here, then = _undisturbed(now, best, rule), [s for night in calm[: rule.level] for s in night]
    if min(len(then), len(here)) < rule.least:
        return None
    views = (_work,) if clocked else (_work, _seconds)
    logs = [([view(s) for s in then], [view(s) for s in here]) for view in views]
    shift = _nearest_to_zero([hodges_lehmann([b - a for a, b in product(*pair)]) for pair in logs])
    p = max(_moved(*pair, rule.margin) for pair in logs)
    needed = max(log(1 + rule.size), min(_needed(calm, view, rule) for view in views))
    return Shift(exp(shift), p, exp(needed), min(len(then), len(here)))


def side_by_side(old: Sequence[float], new: Sequence[float], rule: Rule = RULE) -> Shift | None:
    """Two programs, the seconds of each in the same rounds: what happened meanwhile happened to both."""
    logs = [log(b / a) for a, b in zip(old, new, strict=True)]
    if len(logs) < rule.least:
        return None
    walsh = [(a + b) / 2 for a, b in combinations_with_replacement(logs, 2)]
    p = two_sided(lambda sign: signed_rank([sign * d - rule.margin for d in logs]))
    return Shift(exp(hodges_lehmann(walsh)), p, 1 + rule.size, len(logs))


def clearly_faster(old: Sequence[float], new: Sequence[float], each: int, rule: Rule = RULE) -> Shift | None:
    """As `side_by_side`, against no margin: may the new program take the place of the old one? `p` is one-sided, and of
    processes: a process counts once, by the median of its `each` rounds, for what it favours it favours in all of them."""
    found = side_by_side(old, new, rule)
    if found is None:
        return None
    gains = [log(a / b) for a, b in zip(old, new, strict=True)]
    p = signed_rank([median(gains[i : i + each]) for i in range(0, len(gains), each)])
    return Shift(found.ratio, p, 1.0, found.rounds)


def suspicious(shift: Shift | None, rule: Rule = RULE) -> bool:
    """Whether a first look asks for a second one: also when it could not see anything."""
    return shift is None or max(shift.ratio, 1 / shift.ratio) >= 1 + rule.suspect


def verdicts(shifts: Sequence[Shift], rule: Rule = RULE) -> list[tuple[bool, float]]:
    """Of each: whether it is a change, and how certain (1 - p, corrected for the number of programs)."""
    return [(s.large and p <= rule.alpha, 1 - p) for s, p in zip(shifts, holm([s.p for s in shifts]), strict=True)]


def _moved(then: Sequence[float], now: Sequence[float], margin: float) -> float:
    """The chance that `now` is beyond the margin of `then`, on either side, if both are alike."""
    return two_sided(lambda sign: mann_whitney([sign * x for x in then], [sign * x - margin for x in now]))


def _needed(nights: Sequence[Sequence[Sample]], view: Callable[[Sample], float], rule: Rule) -> float:
    """The log of a ratio that nights alone do not make: how this program's nights differ, as far as they are known, beside
    what is expected of any. What a night's few rounds leave open is not theirs: the ranks see to that."""
    known = len(nights) - 1
    scatter = (rule.believed * rule.expected**2 + known * _apart(nights, view)) / (rule.believed + known)
    return rule.scatter * sqrt(scatter * (1 + 1 / min(len(nights), rule.level)))


def _apart(nights: Sequence[Sequence[Sample]], view: Callable[[Sample], float]) -> float:
    """Variance between nights, without what their few rounds leave open."""
    logs = [list(map(view, night)) for night in nights]
    return max(variance(map(median, logs)) - fmean(map(_open, logs)), 0.0) if len(logs) > 1 else 0.0


def of_this_machine(programs: Sequence[Sequence[Sequence[Sample]]], rule: Rule = RULE) -> Rule:
    """What is expected of any program's nights, learnt from those of all: on a shared machine they differ by 10 % and more."""
    known = [nights for nights in programs if len(nights) > 1]
    scatter = median(min(_apart(nights, _work), _apart(nights, _seconds)) for nights in known) if known else 0.0
    return replace(rule, expected=max(rule.expected, sqrt(scatter)))


def _open(logs: Sequence[float]) -> float:
    """Variance of a median, from the median deviation, as of normal numbers."""
    middle = median(logs)
    return pi / 2 * (1.4826 * median(abs(x - middle) for x in logs)) ** 2 / len(logs)


def _undisturbed(samples: Sequence[Sample], best: float, rule: Rule) -> list[Sample]:
    return [s for s in samples if s.peak_gflops >= rule.quiet * best]


def _work(s: Sample) -> float:
    """Log of what the peak kernel would have done meanwhile."""
    return log(s.seconds * s.peak_gflops)


def _seconds(s: Sample) -> float:
    return log(s.seconds)


def _nearest_to_zero(shifts: Sequence[float]) -> float:
    """0 where they do not agree on the direction."""
    same = all(s > 0 for s in shifts) or all(s < 0 for s in shifts)
    return min(shifts, key=abs) if same else 0.0


# ---------------------------------------------------------------------------------------------- ranks


def hodges_lehmann(differences: Sequence[float]) -> float:
    """The median of all differences (of all pairs, or of all means of two)."""
    return median(differences)


def two_sided(one_sided: Callable[[int], float]) -> float:
    """Of a test that looks up (+1) or down (-1)."""
    return min(1.0, 2 * min(one_sided(1), one_sided(-1)))


def mann_whitney(then: Sequence[float], now: Sequence[float]) -> float:
    """The chance that ranks of `now` are so high if both are alike (one-sided, exact; a tie counts against it)."""
    wins = sum(b > a for a, b in product(then, now))
    n, m = len(then), len(now)
    return sum(_arrangements(n, m)[wins:]) / comb(n + m, n)


@cache
def _arrangements(n: int, m: int) -> tuple[int, ...]:
    """In how many of the comb(n + m, n) orders do m beat n exactly u times, for u from 0 to n m?"""
    if n == 0 or m == 0:
        return (1,)
    counts = [0] * (n * m + 1)
    for u, count in enumerate(_arrangements(n, m - 1)):  # the highest is one of m: it beats all n
        counts[u + n] += count
    for u, count in enumerate(_arrangements(n - 1, m)):
        counts[u] += count
    return tuple(counts)


def signed_rank(differences: Sequence[float]) -> float:
    """The chance that the positive ranks are so high if the signs are fair (one-sided, exact; a tie counts against it)."""
    ordered = sorted(differences, key=lambda d: (abs(d), d <= 0))
    total = sum(rank for rank, d in enumerate(ordered, 1) if d > 0)
    return sum(_sums(len(ordered))[total:]) / (1 << len(ordered))


@cache
def _sums(n: int) -> tuple[int, ...]:
    """In how many subsets of 1..n is the sum exactly s, for s from 0 to n (n + 1) / 2?"""
    if n == 0:
        return (1,)
    before = _sums(n - 1)
    counts = [*before, *[0] * n]
    for s, count in enumerate(before):
        counts[s + n] += count
    return tuple(counts)


def holm(ps: Sequence[float]) -> list[float]:
    """Each p for all of them together (Holm, Scand. J. Stat. 6, 1979)."""
    adjusted, worst = [0.0] * len(ps), 0.0
    for place, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        worst = max(worst, min(1.0, (len(ps) - place) * ps[i]))
        adjusted[i] = worst
    return adjusted
