"""Source text and what a caller must know to run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ir.compute import Dag

Role = Literal["input", "constant", "output"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One pointer of the call, in order. "constant": prepared once, before the first call (see Kernel.prepare)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role


@dataclass(frozen=True, slots=True)
class Kernel:
    """One function `void entry(void *const *arguments, void *workspace)`.

    key:       identifies workload, sketch and choices; embedded in the binary and checked after loading
    source:    the function; `codegen.c.PRELUDE` and the parts must precede it once in a translation unit
    parts:     functions it calls, named after their text: programs of one sketch share many, and each is compiled once
    arguments: inputs, constants, then outputs, the order of the pointers
    prepare:   for a constant whose layout the program chose: a DAG from the workload's constant inputs to it, by
               argument name. A constant argument that is not in here is the workload's input as it stands.
    workspace_bytes: scratch the caller provides, 64-byte aligned, shared by the kernel's threads
    inplace:   (output, input): the two may point to the same memory, and the input's value is lost. One input for an
               output, unless they all are one value; every other pointer that is written overlaps none.
    """

    key: str
    entry: str
    source: str
    arguments: tuple[Argument, ...]
    prepare: tuple[tuple[str, Dag], ...] = ()
    workspace_bytes: int = 0
    language: str = "c"
    inplace: tuple[tuple[str, str], ...] = ()
    parts: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All of it but the prelude."""
        return "\n".join((*self.parts, self.source))
