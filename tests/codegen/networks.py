"""Small networks whose kernels are written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codegen.bundle.network import Call, Network
from codegen.c import CTYPE
from codegen.kernel import Argument, Kernel
from ir.graph import Value

Array = NDArray[Any]


@dataclass(frozen=True)
class Toy:
    """A kernel of element-wise C; called with the values behind its pointers, it is a call."""

    kernel: Kernel

    def __call__(self, *values: str, name: str = "") -> Call:
        return Call(self.kernel, values, workload=self.kernel.key, name=name)


def toy(
    text: str | Sequence[str],
    shape: tuple[int, ...],
    reads: Sequence[str],
    dtype: str = "float32",
    workspace_bytes: int = 0,
) -> Toy:
    """out[i] = text over a[i], b[i], ...; one text for each output. Every kernel has the same entry name."""
    texts = [text] if isinstance(text, str) else text
    size, names = int(np.prod(shape, dtype=int)), "abcdef"[: len(reads)]
    lines = [f"const {CTYPE[d]} *{n} = arguments[{i}];" for i, (n, d) in enumerate(zip(names, reads, strict=True))]
    lines += [f"{CTYPE[dtype]} *out{i} = arguments[{len(reads) + i}];" for i in range(len(texts))]
    if workspace_bytes:
        lines.append(f"for (int i = 0; i < {workspace_bytes}; i++) ((volatile char *)workspace)[i] = 77;")
    body = " ".join(f"out{i}[i] = {t};" for i, t in enumerate(texts))
    lines += ["#pragma omp parallel for schedule(static)", f"for (int64_t i = 0; i < {size}; i++) {{ {body} }}"]
    source = "void kernel(void *const *arguments, void *workspace) {\n  " + "\n  ".join(lines) + "\n}\n"
    given = [Argument(n, shape, d, "input") for n, d in zip(names, reads, strict=True)]
    made = [Argument(f"out{i}", shape, dtype, "output") for i in range(len(texts))]
    key = f"{' '.join(texts)} {shape} {dtype} {' '.join(reads)}"
    return Toy(Kernel(key, "kernel", source, (*given, *made), (), workspace_bytes))


def value(name: str, shape: tuple[int, ...] = (4,), dtype: str = "float32") -> Value:
    return Value(name, shape, dtype)


def add(shape: tuple[int, ...] = (4,)) -> Toy:
    return toy("a[i] + b[i]", shape, ["float32"] * 2)


def double(shape: tuple[int, ...] = (4,), workspace_bytes: int = 0) -> Toy:
    return toy("a[i] * 2", shape, ["float32"], workspace_bytes=workspace_bytes)


def diamond(shape: tuple[int, ...] = (2, 3), x: str = "x", y: str = "y") -> Network:
    """x -> twice -> (left, right) -> y = left + right; `left` reads a constant; a reshape stands in between."""
    plus, times = add(shape), double(shape)
    calls = (
        times("flat", "twice", name="first"),
        plus("twice", "w", "left", name="bias"),
        times("seen", "right", name="again"),
        plus("left", "right", y, name="join"),
    )
    w = np.arange(np.prod(shape), dtype="float32")
    return Network((value(x, shape),), (value(y, shape),), calls, {"w": w}, {"flat": x, "seen": "twice"})


def diamond_meaning(x: Array) -> Array:
    w = np.arange(x.size, dtype="float32").reshape(x.shape)
    return np.asarray((x * 2 + w) + (x * 2) * 2, dtype="float32")


def chain(length: int, shape: tuple[int, ...] = (8,)) -> Network:
    """y = x + length, one call at a time."""
    step = toy("a[i] + 1", shape, ["float32"])
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    calls = tuple(step(a, b) for a, b in pairwise(names))
    return Network((value("x", shape),), (value("y", shape),), calls)
