"""Constants as the kernels want them: stored as they are, or prepared once by a small DAG; packed into one block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from codegen.bundle.memory import aligned
from codegen.bundle.network import Array, Network
from ir.compute import Compute, Dag

Evaluate = Callable[[Dag, Mapping[str, Array]], Mapping[str, Array]]


@dataclass(frozen=True, slots=True)
class Stored:
    """A constant of the network as it stands."""

    name: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """The only output of a DAG. sources: its inputs and the network's constants behind them."""

    dag: Dag
    sources: tuple[tuple[str, str], ...]


Constant = Stored | Prepared


@dataclass(frozen=True, slots=True)
class Packed:
    """A constant inside the weights. name: for people; offset: bytes from the start."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def behind(network: Network) -> list[tuple[Constant | None, ...]]:
    """For each call and pointer the constant that it reads; None where the pointer is no constant."""
    out = []
    for call in network.calls:
        prepared = dict(call.kernel.prepare)
        row: list[Constant | None] = []
        for a, value in call.pointers():
            root = network.root(value)
            if a.name in prepared:
                dag = prepared[a.name]
                row.append(Prepared(dag, tuple((i.name, network.root(call.sources[i.name])) for i in dag.inputs)))
            else:
                row.append(Stored(root) if a.role != "output" and root in network.constants else None)
        out.append(tuple(row))
    return out


def constants(network: Network) -> tuple[Constant, ...]:
    """Every constant that a call reads or the network returns, once."""
    read = [c for row in behind(network) for c in row if c is not None]
    returned = [Stored(r) for r in (network.root(v.name) for v in network.outputs) if r in network.constants]
    return tuple(dict.fromkeys([*read, *returned]))


def layout(network: Network, wanted: Sequence[Constant]) -> tuple[Packed, ...]:
    """Offsets of the constants in the packed weights, each 64-byte aligned."""
    out, offset = [], 0
    for c in wanted:
        match c:
            case Stored(name):
                array = network.constants[name]
                packed = Packed(name, array.shape, array.dtype.name, offset)
            case Prepared(dag, sources):
                made = _made(dag)
                packed = Packed(f"{made.name} of {', '.join(s for _, s in sources)}", made.shape, made.dtype, offset)
        out.append(packed)
        offset += aligned(packed.bytes)
    return tuple(out)


def _made(dag: Dag) -> Compute:
    return dag.stage(dag.outputs[0])


def weights_bytes(packed: Sequence[Packed]) -> int:
    return packed[-1].offset + aligned(packed[-1].bytes) if packed else 0


def pack(network: Network, evaluate: Evaluate) -> Array:
    """The weights: one 64-byte aligned block of bytes. `evaluate(dag, arrays)` gives a DAG's outputs by name."""
    wanted = constants(network)
    places = layout(network, wanted)
    block = aligned_bytes(weights_bytes(places))
    block[:] = 0
    for c, p in zip(wanted, places, strict=True):
        value = _value(network, c, evaluate)
        if value.size != prod(p.shape) or value.dtype.name != p.dtype:
            raise ValueError(f"{p.name!r} was prepared as {value.dtype}{value.shape}, declared is {p.dtype}{p.shape}")
        block[p.offset : p.offset + p.bytes].view(p.dtype).reshape(p.shape)[...] = value.reshape(p.shape)
    return block


def _value(network: Network, c: Constant, evaluate: Evaluate) -> Array:
    match c:
        case Stored(name):
            return network.constants[name]
        case Prepared(dag, sources):
            shapes = {i.name: i.shape for i in dag.inputs}
            given = {i: network.constants[s].reshape(shapes[i]) for i, s in sources}
            return evaluate(dag, given)[dag.outputs[0]]


def aligned_bytes(size: int) -> Array:
    """Uninitialised bytes whose first is 64-byte aligned."""
    raw = np.empty(size + 63, np.uint8)
    start = -address(raw) % 64
    return raw[start : start + size]


def address(array: Array) -> int:
    """Of the first element. Four times faster than `array.ctypes.data`."""
    return int(array.__array_interface__["data"][0])
