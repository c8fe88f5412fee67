"""How to compute it. A sketch is a DAG and steps with holes; choices fill the holes.

Steps carry structure, holes carry domains, choices are indices into domains: a population of programs is one
integer matrix, a row a program, a column a hole.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Literal

import numpy as np

from ir.compute import Dag

HoleKind = Literal["tile", "vector", "location", "unroll", "parallel", "order", "split"]


@dataclass(frozen=True, slots=True)
class Hole:
    """A choice to be made. Options ascend; a choice is an index into them.

    name:  "stage.axis.level" for tiles (level 1 is outside of 2), else "stage.what"
    group: the stage it belongs to; crossover exchanges whole groups
    axis:  for tiles, the axis: all tile holes of (group, axis) multiply to one extent
    """

    name: str
    options: tuple[int, ...]
    kind: HoleKind
    group: str
    axis: str = ""


@dataclass(frozen=True, slots=True)
class Inline:
    """B[i] = A[i] * 2; C[i] = B[i] + 1      -->      C[i] = A[i] * 2 + 1"""

    stage: str


@dataclass(frozen=True, slots=True)
class CacheWrite:
    """C[i] = sum_k ...      -->      C.cache[i] = sum_k ...; C[i] = C.cache[i]"""

    stage: str


@dataclass(frozen=True, slots=True)
class Rfactor:
    """s[i] = sum_k x[i, k]      -->      s.rf[i, f] = sum_ko x[i, f * Ki + ko] (or ko * F + f); s[i] = sum_f s.rf[i, f]

    side "outer": f indexes contiguous chunks (threads); "inner": f indexes lanes. Hole "stage.rfactor": F.
    """

    stage: str
    side: Literal["outer", "inner"]


@dataclass(frozen=True, slots=True)
class Winograd:
    """y[i] = sum_t x[i + t] * w[t]      -->      y[i] = back(sum of products of transformed x and w), m results at a time

    Fewer multiplications for a window that slides a step at a time over constant weights: see `ir.winograd`.
    """

    stage: str
    m: int


@dataclass(frozen=True, slots=True)
class Pack:
    """.. B[k, j] ..      -->      B.pack[j / N, k / M, k % M, j % N] zero-padded, N and M the stage's tiles of j and k

    The operand is copied once into the order in which the nest reads it: a constant before run time, else inside
    the kernel.
    """

    stage: str
    tensor: str
    axis: str


@dataclass(frozen=True, slots=True)
class Block:
    """.. P[i + w, k] ..      -->      P.block[k / M, i + w, k % M], M the stage's tile of the reduce axis k

    What one pass of the outer reduction loop reads lies together: rows of a tile far apart in P share few sets of a
    cache, and a window cannot be packed.
    """

    stage: str
    tensor: str
    axis: str


@dataclass(frozen=True, slots=True)
class Tile:
    """for i: for k: s      -->      for i.0: for i.1: for k.0: for i.2: for k.1: for i.3: s      ("SSRSRS")

    One letter a level, outermost first. The innermost S level is the register tile: unrolled, its `vector` axis in
    lanes. Holes "stage.axis.level": sizes of the inner levels; the outermost takes what is left, guarded.
    `vector` may be a reduce axis: then lanes hold partial results, joined after the loop.
    """

    stage: str
    structure: str
    vector: str


@dataclass(frozen=True, slots=True)
class Fuse:
    """C tiled; D[i] = f(C[i])      -->      D is computed where C's tile is ready, inside S level `level` of C's nest."""

    stage: str
    consumer: str
    level: int


@dataclass(frozen=True, slots=True)
class ComputeAt:
    """P; .. P[f(i)] ..      -->      P's region is computed inside the consumer's nest

    Hole "stage.at": 0 = at root, n = inside the consumer's S level n.
    """

    stage: str
    consumer: str


Step = Inline | CacheWrite | Rfactor | Winograd | Pack | Block | Tile | Fuse | ComputeAt


@dataclass(frozen=True)
class Sketch:
    """A schedule without a number in it. `rules` names, step by step, the rule that made it."""

    dag: Dag
    steps: tuple[Step, ...] = ()
    holes: tuple[Hole, ...] = ()
    rules: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.dag, self.steps, self.holes, self.rules))

    def __getstate__(self) -> dict[str, object]:
        """Without what is remembered: in another process strings hash otherwise."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def then(self, step: Step, *holes: Hole, rule: str = "") -> Sketch:
        return replace(
            self, steps=(*self.steps, step), holes=(*self.holes, *holes), rules=(*self.rules, *([rule] if rule else []))
        )

    @cached_property
    def column(self) -> dict[str, int]:
        """Hole name -> column of the choice matrix."""
        return {h.name: i for i, h in enumerate(self.holes)}

    @cached_property
    def size(self) -> int:
        """Number of programs, equivalent ones counted apart."""
        out = 1
        for h in self.holes:
            out *= len(h.options)
        return out


@dataclass(frozen=True)
class Program:
    """One sketch, every hole filled. `values` maps hole names to the chosen option (not its index)."""

    sketch: Sketch
    choices: tuple[int, ...]

    @cached_property
    def values(self) -> dict[str, int]:
        return {h.name: h.options[c] for h, c in zip(self.sketch.holes, self.choices, strict=True)}


@dataclass(frozen=True)
class Population:
    """Many programs of one sketch: `choices` is an int32 matrix (programs x holes) of indices into the domains."""

    sketch: Sketch
    choices: np.ndarray

    def __len__(self) -> int:
        return int(self.choices.shape[0])

    def program(self, row: int) -> Program:
        return Program(self.sketch, tuple(int(c) for c in self.choices[row]))

    def take(self, rows: np.ndarray) -> Population:
        return Population(self.sketch, self.choices[rows])

    def values(self, name: str) -> np.ndarray:
        """The chosen options of one hole, a column."""
        i = self.sketch.column[name]
        options: np.ndarray = np.asarray(self.sketch.holes[i].options, dtype=np.int64)
        return np.asarray(options[self.choices[:, i]])

    def get(self, name: str, default: int) -> np.ndarray:
        """Like `values`; a constant column where the sketch has no such hole."""
        if name in self.sketch.column:
            return self.values(name)
        return np.full(len(self), default, dtype=np.int64)
