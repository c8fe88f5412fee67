"""Tile sizes from choices. One formula serves a single program (integers) and a population (integer columns)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ir.compute import Compute
from ir.expr import Axis
from ir.schedule import Tile

Column = Any  # an int, or an int64 array with one entry a program
Get = Callable[[str, int], Column]  # hole name, default -> chosen option


@dataclass(frozen=True, slots=True)
class Tiling:
    """How one stage is tiled.

    sizes[axis][n]: extent of the tile inside level n of its kind, so sizes[axis][-1] is 1 (the lanes for the vector
    axis). The outermost level has ceil(extent / sizes[axis][0]) trips, level n has sizes[n-1] / sizes[n].
    """

    stage: Compute
    structure: str
    vector: Axis | None
    lanes: Column
    sizes: dict[Axis, tuple[Column, ...]]
    parallel: Column
    unroll: Column
    vector_first: Column

    @property
    def levels(self) -> int:
        return self.structure.count("S")

    def register(self, axis: Axis) -> Column:
        """Extent of the register tile along a space axis."""
        return self.sizes[axis][self.levels - 2]

    @property
    def lanes_reduce(self) -> bool:
        return self.vector in self.stage.reduce


def default_tile(stage: Compute) -> Tile:
    """The plain nest: one level of loops around a scalar."""
    return Tile(stage.name, "SRS" if stage.reduce else "SS", "")


def tiling(stage: Compute, tile: Tile | None, get: Get) -> Tiling:
    """Sizes from choices, clamped from the innermost level outward: no tile exceeds its extent by a whole inner
    tile. This is the effective program, whatever the raw choices say."""
    tile = tile or default_tile(stage)
    vector = next((a for a in stage.axes if a.name == tile.vector), None)
    lanes = _lanes(get(f"{stage.name}.vector", 0), stage.dtype) if vector else 1
    sizes: dict[Axis, tuple[Column, ...]] = {}
    for a in stage.axes:
        levels = tile.structure.count("S" if a in stage.space else "R")
        levels += a == vector and a in stage.reduce  # vectors of partial results side by side
        sizes[a] = _sizes(stage.name, a, levels, lanes if a == vector else 1, get)
    return Tiling(
        stage, tile.structure, vector, lanes, sizes,
        parallel=get(f"{stage.name}.parallel", 0),
        unroll=get(f"{stage.name}.unroll", 1),
        vector_first=get(f"{stage.name}.order", 1),
    )  # fmt: skip


def _lanes(width: Column, dtype: str) -> Column:
    lanes = width // np.dtype(dtype).itemsize
    return max(lanes, 1) if isinstance(lanes, int) else np.maximum(lanes, 1)


def _sizes(stage: str, a: Axis, levels: int, start: Column, get: Get) -> tuple[Column, ...]:
    out = [start]
    for n in range(levels - 1, 0, -1):
        out.append(out[-1] * effective(get(f"{stage}.{a.name}.{n}", 1), a.extent, out[-1]))
    return tuple(reversed(out))


def effective(factor: Column, extent: int, inner: Column) -> Column:
    """A factor larger than what is left to tile means the same as exactly that."""
    left = -(-extent // inner)
    plain = isinstance(factor, int) and isinstance(left, int)
    return min(factor, left) if plain else np.minimum(factor, left)
