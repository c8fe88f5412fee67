"""Where every value lies: the caller's buffers, the constants, or one arena whose bytes are used again and again.

Placing live ranges with sizes so that the peak is least is NP-hard (dynamic storage allocation: Garey and Johnson,
problem SR2). Greedy best fit in a good order comes within a few per cent on networks (Pisarchyk and Lee, Efficient
Memory Management for Deep Neural Net Inference, 2020: order by size); the better of a few orders is taken.

A value whose last reader may write in its place (`Kernel.inplace`) hands its memory on: two values, one buffer.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from codegen.bundle.network import Call, Network, NetworkError, extents

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
        """Both hold something during one call: what a call reads and what it writes must not share memory, unless it
        writes in place."""
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
    inplace: value -> the value whose memory it takes over, from the last call that reads that one.
    """

    places: Mapping[str, Place]
    buffers: tuple[Live, ...]
    copies: tuple[Copy, ...]
    peak_bytes: int
    lower_bound_bytes: int
    workspace_bytes: int
    inplace: Mapping[str, str] = field(default_factory=dict)

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
    inplace = _inplace(network, live)
    first, joined = _joined(live, inplace)
    offsets = min((_pack(sorted(joined, key=order)) for order in ORDERS), key=lambda found: _peak(joined, found))
    places |= {b.name: Place("arena", offsets[first[b.name]]) for b in live}
    workspace = aligned(max((call.kernel.workspace_bytes for call in network.calls), default=0))
    peak, bound = _peak(joined, offsets), _lower_bound(joined)
    found = MemoryPlan(places, live, tuple(copies), peak, bound, workspace, inplace)
    check_plan(network, found)
    return found


def _live(network: Network, sizes: Mapping[str, int]) -> list[Live]:
    """From the call that writes a value to the last that reads it; a value that nobody reads lives for one call."""
    last = {network.root(name): i for i, call in enumerate(network.calls) for name in (*call.writes, *call.reads)}
    return [Live(n, sizes[n], i, last[n]) for i, call in enumerate(network.calls) for n in call.writes]


def _inplace(network: Network, live: Sequence[Live]) -> dict[str, str]:
    """Value -> the dead value whose memory it gets. Values outside of the arena keep theirs: they are the caller's."""
    found: dict[str, str] = {}
    last = {b.name: b.last for b in live}  # of those that did not hand on their memory yet
    for i, call in enumerate(network.calls):
        for new, old in replaceable(network, call):
            if new in last and new not in found and last.get(old) == i:
                found[new] = old
                del last[old]
    return found


def replaceable(network: Network, call: Call) -> Iterator[tuple[str, str]]:
    """(output, value that is no alias): the call may write the one over the other if nobody reads that later.

    Every pointer to the value must be one that the kernel reads in the place of this output.
    """
    checked = {network.root(i.value) for i in call.indices}
    for pointer, new in call.pointers():
        inputs = {i for o, i in call.kernel.inplace if o == pointer.name and pointer.role == "output"}
        for old in dict.fromkeys(network.root(value) for a, value in call.pointers() if a.name in inputs):
            behind = {a.name for a, value in call.pointers() if value and network.root(value) == old}
            if behind <= inputs and old not in checked:
                yield new, old


def _joined(live: Sequence[Live], inplace: Mapping[str, str]) -> tuple[dict[str, str], tuple[Live, ...]]:
    """Value -> the first value in its memory; those, each alive as long as the last one there."""
    first: dict[str, str] = {}
    joined: dict[str, Live] = {}
    for b in live:
        at = first[b.name] = first[inplace[b.name]] if b.name in inplace else b.name
        joined[at] = replace(joined.get(at, b), last=b.last)
    return first, tuple(joined.values())


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


# ---------------------------------------------------------------------------------------------- what is legal


def check_plan(network: Network, memory: MemoryPlan) -> None:
    """No call finds two values in one place, but for an output that it writes over a value that ends there.

    Raises NetworkError, also for a value without a place, a place outside of the arena, and one output for two values.
    """
    sizes = {n: s.bytes for n, s in extents(network).items()}
    live = _live(network, sizes)
    owners: dict[int, str] = {}
    returned = {network.root(v.name) for v in network.outputs}
    for b in live:
        p = memory.places.get(b.name)
        if p is None or p.base not in (("output",) if b.name in returned else ("output", "arena")):
            raise NetworkError(f"value {b.name!r} has no memory that a call may write")
        if p.base == "arena" and (p.at < 0 or p.at % ALIGN or p.at + b.bytes > memory.peak_bytes):
            raise NetworkError(f"value {b.name!r} does not lie in the arena, at {p.at} of {memory.peak_bytes} bytes")
        if p.base == "output" and owners.setdefault(p.at, b.name) != b.name:
            raise NetworkError(f"values {owners[p.at]!r} and {b.name!r} are written to one output")
    arena = [b for b in live if memory.places[b.name].base == "arena" and b.bytes]
    for i, now in enumerate(_by_call(arena, len(network.calls))):
        _check_call(network, i, sorted(now, key=lambda b: memory.places[b.name].at), memory)


def _by_call(live: Sequence[Live], calls: int) -> Iterator[list[Live]]:
    """The values that hold something during each call."""
    begin: dict[int, list[Live]] = {}
    for b in live:
        begin.setdefault(b.first, []).append(b)
    now: list[Live] = []
    for i in range(calls):
        now = [b for b in now if b.last >= i] + begin.get(i, [])
        yield now


def _check_call(network: Network, number: int, by_offset: Sequence[Live], memory: MemoryPlan) -> None:
    """A value may begin where all before it end, or exactly where the one lies whose place it takes."""
    call, ends = network.calls[number], {b.name: b.last for b in by_offset}
    pairs = {frozenset((new, old)) for new, old in replaceable(network, call) if ends.get(old) == number}
    end, below, handed_on = 0, "", set[str]()
    for b in by_offset:
        at, pair = memory.places[b.name].at, frozenset((below, b.name))
        if at < end:
            if pair not in pairs or at != memory.places[below].at or pair & handed_on:
                raise NetworkError(f"call {number} {call.name!r}: {below!r} and {b.name!r} lie in the same memory")
            handed_on |= pair
        if at + b.bytes >= end:
            end, below = at + b.bytes, b.name
