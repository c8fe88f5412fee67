"""A network as calls of kernels over named values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from codegen.c import CTYPE
from codegen.kernel import Argument, Kernel
from ir.graph import Value

Array = NDArray[Any]
Origin = Literal["tuned", "near shape", "default"]


class NetworkError(ValueError):
    """The calls do not fit together: one line that names the call and the value."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a workload's program came from. calls: how often the network runs it. detail: for people."""

    workload: str
    name: str
    origin: Origin
    calls: int = 1
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Indices:
    """Elements first, first + step, ... of a value are used as indices: they must lie in low..high at run time."""

    value: str
    low: int
    high: int
    first: int = 0
    step: int = 1

    def __str__(self) -> str:
        which = "" if (self.first, self.step) == (0, 1) else f"[{self.first}::{self.step}]"
        return f"{self.value!r}{which} in {self.low}..{self.high}"


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a kernel.

    arguments: the network's value behind each pointer of the kernel, in order; "" for a constant that it prepares
    sources:   tensor of the kernel's `prepare` DAGs -> constant of the network
    workload:  key of the workload, name: for people; both go into profiles
    indices:   checked before the kernel runs, so that no input can make it read elsewhere; constants are checked here
    """

    kernel: Kernel
    arguments: tuple[str, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    workload: str = ""
    name: str = ""
    indices: tuple[Indices, ...] = ()

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        values: Mapping[str, str],
        workload: str = "",
        name: str = "",
        indices: tuple[Indices, ...] = (),
    ) -> Call:
        """From the workload's view: its inputs and outputs by name -> the network's values. Raises NetworkError."""
        prepared = dict(kernel.prepare)
        names = [a.name for a in kernel.arguments if a.name not in prepared]
        wanted = [i.name for dag in prepared.values() for i in dag.inputs]
        missing = [n for n in (*names, *wanted) if n not in values]
        if missing:
            raise NetworkError(f"call {name!r} of kernel {kernel.key!r}: no value for its tensor {missing[0]!r}")
        arguments = tuple("" if a.name in prepared else values[a.name] for a in kernel.arguments)
        return cls(kernel, arguments, {n: values[n] for n in wanted}, workload, name, indices)

    def pointers(self) -> Iterator[tuple[Argument, str]]:
        return zip(self.kernel.arguments, self.arguments, strict=True)

    @property
    def reads(self) -> tuple[str, ...]:
        """Values that must be there: behind input pointers, constants that are passed as they stand, indices."""
        passed = [value for a, value in self.pointers() if a.role != "output" and value]
        return (*passed, *(i.value for i in self.indices))

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(value for a, value in self.pointers() if a.role == "output")


@dataclass(frozen=True)
class Network:
    """Calls in topological order; checked when it is made (NetworkError).

    inputs, outputs: in the user's order, with the user's names. constants: values known before run time.
    aliases: value -> value with the same elements in the same order (a reshape); they share memory.
    report: where the kernels came from.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    calls: tuple[Call, ...]
    constants: Mapping[str, Array] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    report: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def roots(self) -> dict[str, str]:
        """Alias -> the value whose memory it shares, which is none. Raises NetworkError on a cycle."""
        found: dict[str, str] = {}
        for start in self.aliases:
            name, passed = start, {start}
            while name in self.aliases:
                name = found.get(name, self.aliases[name])
                if name in passed:
                    raise NetworkError(f"alias {start!r} is an alias of itself")
                passed.add(name)
            found[start] = name
        return found

    def root(self, name: str) -> str:
        return self.roots.get(name, name)


# ---------------------------------------------------------------------------------------------- what is legal


@dataclass(frozen=True, slots=True)
class Extent:
    """What must agree wherever a value occurs; shapes may differ by a reshape."""

    elements: int
    dtype: str

    @property
    def bytes(self) -> int:
        return self.elements * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.elements} x {self.dtype}"


def extent(value: Value | Argument) -> Extent:
    return Extent(prod(value.shape), value.dtype)


def extents(network: Network) -> dict[str, Extent]:
    """Every value that is no alias, by name."""
    known = {v.name: extent(v) for v in network.inputs}
    known |= {n: Extent(a.size, a.dtype.name) for n, a in network.constants.items()}
    for call in network.calls:
        known |= {value: extent(a) for a, value in call.pointers() if a.role == "output"}
    return known


def check(network: Network) -> None:
    """Names, order, sizes and dtypes. Raises NetworkError."""
    known: dict[str, Extent] = {}
    for v in network.inputs:
        _define(network, known, v.name, extent(v), "input")
    for name, array in network.constants.items():
        _define(network, known, name, Extent(array.size, array.dtype.name), "constant")
    for i, call in enumerate(network.calls):
        where = f"call {i} {call.name!r}" if call.name else f"call {i}"
        _check_kernel(call, where)
        _check_sources(network, call, where)
        for a, value in call.pointers():
            if a.role != "output" and value:
                _agree(network, known, value, extent(a), f"{where} reads")
            if a.role == "constant" and value and network.root(value) not in network.constants:
                raise NetworkError(f"{where}: {value!r} is passed as a constant and is none")
        for at in call.indices:
            _check_indices(network, known, at, where)
        for a, value in call.pointers():
            if a.role == "output":
                _define(network, known, value, extent(a), f"{where} output")
    for v in network.outputs:
        _agree(network, known, v.name, extent(v), "the network returns")
    dangling = [n for n in network.aliases if network.root(n) not in known]
    if dangling:
        raise NetworkError(f"alias {dangling[0]!r} stands for {network.root(dangling[0])!r}, which nothing makes")


def _define(network: Network, known: dict[str, Extent], name: str, size: Extent, what: str) -> None:
    if not name:
        raise NetworkError(f"{what}: a value without a name")
    if name in known or name in network.aliases:
        raise NetworkError(f"{what} {name!r}: the name is taken by another value")
    if size.dtype not in CTYPE:
        raise NetworkError(f"{what} {name!r}: dtype {size.dtype} has no C type; use one of {', '.join(CTYPE)}")
    known[name] = size


def _agree(network: Network, known: Mapping[str, Extent], name: str, size: Extent, what: str) -> None:
    root = network.root(name)
    if root not in known:
        raise NetworkError(f"{what} {name!r}, which nothing has made before")
    if known[root] != size:
        raise NetworkError(f"{what} {name!r} as {size}, but it is {known[root]}")


def _check_indices(network: Network, known: Mapping[str, Extent], at: Indices, where: str) -> None:
    size = known.get(network.root(at.value))
    if size is None or not np.issubdtype(size.dtype, np.integer):
        raise NetworkError(f"{where}: its indices {at.value!r} are no integers that were made before")
    if at.first < 0 or at.step < 1:
        raise NetworkError(f"{where}: its indices {at.value!r} start at {at.first} by {at.step}")
    array = network.constants.get(network.root(at.value), np.empty(0)).reshape(-1)[at.first :: at.step]
    if array.size and not at.low <= array.min() <= array.max() <= at.high:
        raise NetworkError(f"{where}: the constant {at.value!r} holds indices outside {at.low}..{at.high}")


def _check_kernel(call: Call, where: str) -> None:
    k = call.kernel
    if k.language != "c":
        raise NetworkError(f"{where}: kernel {k.key!r} is written in {k.language}, not in C")
    if not (k.entry.isidentifier() and k.entry.isascii()):
        raise NetworkError(f"{where}: kernel {k.key!r} has no C name but {k.entry!r}")
    if len(call.arguments) != len(k.arguments):
        raise NetworkError(f"{where}: {len(call.arguments)} values for the {len(k.arguments)} pointers of {k.key!r}")
    roles = {(a.name, a.role == "output"): a for a in k.arguments if a.role != "constant"}
    for o, i in k.inplace:
        made, read = roles.get((o, True)), roles.get((i, False))
        if made is None or read is None or extent(made) != extent(read):
            raise NetworkError(f"{where}: kernel {k.key!r} cannot write {o!r} in the place of {i!r}")


def _check_sources(network: Network, call: Call, where: str) -> None:
    """What the kernel prepares can be computed from constants."""
    prepared = dict(call.kernel.prepare)
    for a, value in call.pointers():
        if (a.name in prepared) != (not value):
            raise NetworkError(f"{where}: pointer {a.name!r} needs a value exactly when the kernel does not prepare it")
    for name, dag in prepared.items():
        for i in dag.inputs:
            source = network.root(call.sources.get(i.name, ""))
            if source not in network.constants:
                raise NetworkError(f"{where}: {name!r} is prepared from {i.name!r}, which is bound to no constant")
            array = network.constants[source]
            if (array.size, array.dtype.name) != (prod(i.shape), i.dtype):
                raise NetworkError(f"{where}: constant {source!r} does not fit {i.name!r}, {i.dtype}{list(i.shape)}")
