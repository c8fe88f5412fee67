"""Where every value lies: the caller's buffers, the constants, or one arena whose bytes are used again and again.

Placing live ranges with sizes so that the peak is least is NP-hard (dynamic storage allocation: Garey and Johnson,
problem SR2). Greedy best fit in a good order comes within a few per cent on networks (Pisarchyk and Lee, Efficient
Memory Management for Deep Neural Net Inference, 2020: order by size); the better of a few orders is taken.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from codegen.bundle.network import Network, extents

ALIGN = 64  # bytes: a cache line, and the widest vector
Base = Literal["input", "output", "arena", "constant"]


@dataclass(frozen=True, slots=True)
class Place:
    """`at`: bytes from the start of the arena; for the others the index of the pointer."""

    base: Base
    at: int


@dataclass(frozen=True, slots=True)
class Live:
    """A value in the arena. It is written by call `first` and read for the last time by call `last`."""

    name: str
    bytes: int
    first: int
    last: int

    @property
    def room(self) -> int:
        return aligned(self.bytes)

    def meets(self, other: Live) -> bool:
        """Both hold something during one call: what a call reads and what it writes must not share memory."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Copy:
    """After the calls: a value that cannot be written into output `output` directly."""

    value: str
    output: int
    bytes: int


@dataclass(frozen=True)
class MemoryPlan:
    """Places of all values that are no aliases and no constants; sizes in bytes.

    arena = intermediates, then the workspace that all kernels share.
    lower_bound_bytes: what the fullest call needs at least, so no plan has a smaller peak.
    """

    places: Mapping[str, Place]
    buffers: tuple[Live, ...]
    copies: tuple[Copy, ...]
    peak_bytes: int
    lower_bound_bytes: int
    workspace_bytes: int

    @property
    def arena_bytes(self) -> int:
        return max(ALIGN, self.peak_bytes + self.workspace_bytes)


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


def plan(network: Network) -> MemoryPlan:
    """Inputs are read where the caller has them, outputs written where the caller wants them; the rest is placed."""
    places = {v.name: Place("input", i) for i, v in enumerate(network.inputs)}
    made = {name for call in network.calls for name in call.writes}
    sizes, copies = extents(network), []
    for i, v in enumerate(network.outputs):
        root = network.root(v.name)
        if root in made and root not in places:
            places[root] = Place("output", i)
        else:
            copies.append(Copy(root, i, sizes[root].bytes))
    live = tuple(b for b in _live(network, {n: s.bytes for n, s in sizes.items()}) if b.name not in places)
    offsets = min((_pack(sorted(live, key=order)) for order in ORDERS), key=lambda found: _peak(live, found))
    places |= {name: Place("arena", at) for name, at in offsets.items()}
    workspace = aligned(max((call.kernel.workspace_bytes for call in network.calls), default=0))
    return MemoryPlan(places, live, tuple(copies), _peak(live, offsets), _lower_bound(live), workspace)


def _live(network: Network, sizes: Mapping[str, int]) -> list[Live]:
    """From the call that writes a value to the last that reads it; a value that nobody reads lives for one call."""
    last = {network.root(name): i for i, call in enumerate(network.calls) for name in (*call.writes, *call.reads)}
    return [Live(n, sizes[n], i, last[n]) for i, call in enumerate(network.calls) for n in call.writes]


ORDERS: tuple[Callable[[Live], tuple[int, ...]], ...] = (
    lambda b: (-b.room, b.first),
    lambda b: (-b.room * (b.last - b.first + 1), b.first),
    lambda b: (b.first - b.last, -b.room),
    lambda b: (b.first, -b.room),
)  # fmt: skip


@dataclass
class _Placed:
    """Buffers by ascending offset."""

    entries: list[tuple[int, int, Live]] = field(default_factory=list)  # offset, a number that breaks ties, buffer

    def best_gap(self, b: Live) -> int:
        """Offset of the smallest hole between the buffers that live at the same time; above them if there is none."""
        best, best_size, floor = -1, 0, 0
        for offset, _, other in self.entries:
            if not other.meets(b):
                continue
            gap = offset - floor
            if gap >= b.room and (best < 0 or gap < best_size):
                best, best_size = floor, gap
            floor = max(floor, offset + other.room)
        return best if best >= 0 else floor


def _pack(ordered: Sequence[Live]) -> dict[str, int]:
    placed, offsets = _Placed(), {}
    for number, b in enumerate(ordered):
        offsets[b.name] = placed.best_gap(b) if b.room else 0
        if b.room:
            insort(placed.entries, (offsets[b.name], number, b))
    return offsets


def _peak(live: Sequence[Live], offsets: Mapping[str, int]) -> int:
    return max((offsets[b.name] + b.room for b in live), default=0)


def _lower_bound(live: Sequence[Live]) -> int:
    """The largest sum of sizes over the buffers of one call."""
    changes: dict[int, int] = {}
    for b in live:
        changes[b.first] = changes.get(b.first, 0) + b.room
        changes[b.last + 1] = changes.get(b.last + 1, 0) - b.room
    most = now = 0
    for step in sorted(changes):
        now += changes[step]
        most = max(most, now)
    return most
