"""Which workload gets the next trials.

A pure function over what is known of each workload. The rule is Ansor's gradient (OSDI'20, section 6), with the
roofline as the floor of what may be hoped for. A time that does not exist is None, never a large number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Seconds = float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of one workload.

    key:              stable key; breaks ties
    weight:           times it occurs in the model
    trials:           programs proposed so far
    best:             after each round, the best seconds so far; None while no program was valid
    roofline_seconds: no program can be faster (0 when unknown)
    space_left:       programs not yet measured; None when the space was too large to count
    failures:         latest rounds in a row without one valid program
    flops, family:    work of one call, and the workloads it resembles ("" = none): they bound each other's hopes
    """

    key: str
    weight: float
    trials: int
    best: tuple[Seconds, ...] = ()
    roofline_seconds: float = 0.0
    space_left: int | None = None
    failures: int = 0
    flops: float = 0.0
    family: str = ""

    @property
    def seconds(self) -> Seconds:
        return self.best[-1] if self.best else None

    @property
    def headroom(self) -> Seconds:
        """Weighted seconds that a perfect program would save."""
        return None if self.seconds is None else self.weight * max(self.seconds - self.roofline_seconds, 0.0)


@dataclass(frozen=True, slots=True)
class Policy:
    """How the budget is dealt.

    alpha, beta, window: Ansor's 0.2, 2 and 3 (TVM v0.16 task scheduler). batch: its 64 programs a round. warm, shared:
        the first round and a later one where several workloads share the budget; ours: 1,000 trials for 27 workloads
        were gone after the warm-up.
    noise, rounds: a workload whose best fell by less than `noise` over the last `rounds` rounds is done; one minimum
        scatters by 5 %, but a confirmed best by 2-3 %, and two flat rounds were never followed by a gain (measured).
    retries: rounds without a valid program before a workload is given up; ours (Ansor gives up after the warm-up).
    """

    alpha: float = 0.2
    beta: float = 2.0
    window: int = 3
    batch: int = 64
    warm: int = 16
    shared: int = 32
    noise: float = 0.02
    rounds: int = 2
    retries: int = 3


@dataclass(frozen=True, slots=True)
class Grant:
    """The next round: this many trials for this workload. `gain`: weighted seconds it should save; None: unknown."""

    key: str
    trials: int
    gain: Seconds


Verdict = Literal["", "exhausted", "failing", "settled"]
"""Why a workload gets no more trials; "" while it may."""


def next_round(workloads: Sequence[Progress], trials_left: int, policy: Policy = Policy()) -> Grant | None:
    """Who goes next, or None: the budget is spent or nobody has anything to gain.

    One warm-up round each, then those still without a valid program, then the largest gain; ties by key.
    """
    open_ones = [p for p in workloads if not verdict(p, policy)]
    if not open_ones or trials_left <= 0:
        return None
    cold = [p for p in open_ones if not p.best]
    barren = [p for p in open_ones if p.best and p.seconds is None]
    if cold or barren:
        chosen = min(cold or barren, key=lambda p: (len(p.best), -p.weight, p.key))
        return Grant(
            chosen.key, _batch(chosen, trials_left, len(cold) or 1, _size(open_ones, bool(cold), policy)), None
        )
    gains = {p.key: gain(p, workloads, policy) for p in open_ones}
    chosen = min(open_ones, key=lambda p: (-gains[p.key], p.trials, p.key))
    return Grant(chosen.key, _batch(chosen, trials_left, 1, _size(open_ones, False, policy)), gains[chosen.key])


def round_robin(workloads: Sequence[Progress], trials_left: int, policy: Policy = Policy()) -> Grant | None:
    """The control of `next_round`: as many rounds for one workload as for another, whatever they may gain."""
    open_ones = [p for p in workloads if not verdict(p, policy)]
    if not open_ones or trials_left <= 0:
        return None
    chosen = min(open_ones, key=lambda p: (len(p.best), -p.weight, p.key))
    cold = sum(not p.best for p in open_ones)
    return Grant(chosen.key, _batch(chosen, trials_left, cold or 1, _size(open_ones, cold > 0, policy)), None)


def verdict(p: Progress, policy: Policy = Policy()) -> Verdict:
    """Is there a reason to stop? "exhausted", "failing", "settled", or "" for none."""
    if p.space_left is not None and p.space_left <= 0:
        return "exhausted"
    if p.failures >= policy.retries:
        return "failing"
    return "settled" if is_settled(p, policy) else ""


def is_settled(p: Progress, policy: Policy = Policy()) -> bool:
    """Is the best within the noise of the roofline, or of what it was `rounds` rounds ago?"""
    if p.seconds is None:
        return False
    if p.seconds <= p.roofline_seconds * (1 + policy.noise):
        return True
    before = p.best[-1 - policy.rounds] if len(p.best) > policy.rounds else None
    return before is not None and p.seconds > before * (1 - policy.noise)


def gain(p: Progress, workloads: Sequence[Progress] = (), policy: Policy = Policy()) -> float:
    """Weighted seconds that the next round should save: weight * (alpha * seen + (1 - alpha) * hoped); 0 if untimed.

    seen:  mean fall a round over the last `window` rounds (nothing before there are so many, as in Ansor)
    hoped: the larger of headroom / rounds (Ansor: best / rounds, as if 0 s could be reached) and the fall to `beta`
           times what the work takes at the speed of the fastest of its family, but never below the roofline
    """
    if p.seconds is None:
        return 0.0
    room = max(p.seconds - p.roofline_seconds, 0.0)
    before = p.best[-1 - policy.window] if len(p.best) > policy.window else None
    seen = max(before - p.seconds, 0.0) / policy.window if before is not None else 0.0
    like = policy.beta * p.flops / max(_throughputs(p, workloads), default=float("inf"))
    hoped = max(room / len(p.best), min(p.seconds - like, room) if like > 0 else 0.0)
    return p.weight * (policy.alpha * seen + (1 - policy.alpha) * hoped)


def _throughputs(p: Progress, workloads: Sequence[Progress]) -> list[float]:
    """Floating operations a second of the workloads of its family."""
    alike = (q for q in workloads if q.family == p.family != "" and q.key != p.key)
    return [q.flops / q.seconds for q in alike if q.seconds and q.flops > 0]


def _size(open_ones: Sequence[Progress], cold: bool, policy: Policy) -> int:
    """A workload that has the budget to itself gets full batches; beside others smaller ones, so that the gradient
    has most of the budget to deal."""
    if len(open_ones) == 1:
        return policy.batch
    return policy.warm if cold else policy.shared


def _batch(p: Progress, trials_left: int, waiting: int, size: int) -> int:
    """A batch, less where the space or the budget ends; during the warm-up all `waiting` ones must get theirs."""
    fair = max(1, trials_left // waiting)
    limits = [size, fair] + ([p.space_left] if p.space_left is not None else [])
    return min(limits)
