"""What came back from the hardware. At this border failure is data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureKind = Literal["compile", "crash", "timeout", "wrong", "memory"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a program has no time. `message` is one line: the compiler's first error, the signal, the deviation."""

    kind: FailureKind
    message: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Every sample of one program, in seconds a call.

    warm: operands in cache. cold: after the caches were flushed. verified: compared with the oracle, NaN-filled
    outputs and guard bytes intact. error, bound: largest deviation and what was allowed at that element.
    relative: best warm time over the incumbent's, both from this batch (None without an incumbent).
    undisturbed: warm samples that had their core to themselves.
    """

    key: str
    warm: tuple[float, ...] = ()
    cold: tuple[float, ...] = ()
    verified: bool = False
    error: float | None = None
    bound: float | None = None
    relative: float | None = None
    undisturbed: int = 0
    failure: Failure | None = None
    build_seconds: float = 0.0
    measure_seconds: float = 0.0

    @property
    def best(self) -> float | None:
        """Minimum warm sample of a verified program; None when there is none."""
        return min(self.warm) if self.verified and self.warm else None
