"""What a round teaches about the program to beat."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from codegen.kernel import Kernel
from codegen.runner import Batch
from codegen.toolchain import Binary
from ir.timing import Timing
from search.tuner import Proposal
from tasks.lane import Incumbent, Round, learn, scored

TRUE = 2e-3
ROUNDS, EACH = 30, 64


def binary(key: str) -> Binary:
    return Binary(Path(f"{key}.so"), "k", key, Kernel(key, "k", "", ()))


def played(noise: float, drift: float) -> list[float]:
    """Rounds of programs that all take the same, on a machine that is noisy, and gets slower from round to round: what
    the program to beat is said to take."""
    rng, lane = np.random.default_rng(7), SimpleNamespace(incumbent=None, errors={}, tuner=SimpleNamespace(tell=len))
    out = []
    for number in range(ROUNDS):
        slow = (1 + drift) ** number
        times = TRUE * slow * np.exp(rng.normal(0.0, noise, EACH))
        visits = TRUE * slow * float(np.exp(rng.normal(0.0, noise / 4))) if lane.incumbent else None
        keys = [f"{number}-{i}" for i in range(EACH)]
        timings = [
            Timing(k, (float(t),), (), True, relative=float(t) / visits if visits else None)
            for k, t in zip(keys, times, strict=True)
        ]
        batch = Batch(timings, 90.0, visits)
        proposals = tuple(Proposal(k, "s", (), number, "random") for k in keys)
        scores = tuple(scored(lane, batch))  # type: ignore[arg-type]
        turn = Round("w", number, proposals, tuple(timings), scores, 90.0, visits, 0.0, 0.0, 0.0, 0.0)
        learn(lane, turn, [binary(k) for k in keys])  # type: ignore[arg-type]
        out.append(lane.incumbent.seconds)
    return out


@pytest.mark.parametrize("drift", [0.0, 0.01, -0.01])
def test_luck_does_not_add_up_from_round_to_round(drift: float) -> None:
    """The best of 64 is 30 % too fast by chance; thirty of them in a row are not ten times too fast."""
    found = played(0.12, drift)
    assert min(found) > 0.55 * TRUE and found[-1] == pytest.approx(TRUE, rel=0.45)


def test_without_noise_nothing_moves() -> None:
    assert played(0.0, 0.02) == pytest.approx([TRUE] * ROUNDS, rel=0.021), "but for the first visit"


@pytest.mark.parametrize(("before", "visits", "seconds"), [
    (None, 2.5e-3, 2.5e-3),                # the first: as its visits say, which every other one is compared with
    (None, 1.0e-3, 1.5e-3),                # never better than it was
    ((2.0e-3, 2.4e-3), 2.16e-3, 1.8e-3),   # a tenth less than the former one
    ((2.0e-3, 2.4e-3), 0.6e-3, 1.5e-3),
    ((2.0e-3, 2.4e-3), 2.88e-3, 2.4e-3),   # it was luck alone
])  # fmt: skip
def test_what_was_lucky_is_measured_again(before: Any, visits: float, seconds: float) -> None:
    lucky = Incumbent("k", 1.5e-3, Proposal("k", "s", (), 0, "random"), None, True, before)
    again = lucky.tried(visits)
    assert again.seconds == pytest.approx(seconds) and not again.untried
    assert again.tried(1.0) is again
