"""Seeded inputs, and when two answers are the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.graph import Graph, Value
from tasks.model import Model
from tilewright.peers.contender import Array

# Largest deviation in units of the output's magnitude: a few thousand roundings of the type.
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4, "float64": 1e-10}
INDICES = 100  # integer inputs without a bound of their own are below this


def inputs(model: Model, seed: int = 0) -> dict[str, Array]:
    """Floats uniform in [-1, 1), indices in bounds, other integers small, booleans fair."""
    rng = np.random.default_rng(seed)
    highs = {b.value: min(b.high, INDICES) for c in model.partition.calls for b in c.bounds}
    return {n: _drawn(model.graph.values[n], highs.get(n, INDICES), rng) for n in model.graph.inputs}


def _drawn(v: Value, high: int, rng: np.random.Generator) -> Array:
    if v.dtype == "bool":
        return rng.random(v.shape) < 0.5
    if v.dtype.startswith(("int", "uint")):
        return rng.integers(0, high, v.shape, endpoint=True).astype(v.dtype)
    return (rng.random(v.shape, dtype=np.float32) * 2 - 1).astype(v.dtype)


def deviation(found: Sequence[Array], right: Sequence[Array]) -> float:
    """Largest difference in units of the largest magnitude of its output; infinite where shapes or non-numbers differ."""
    if len(found) != len(right):
        return float("inf")
    return max((_deviation(np.asarray(f), np.asarray(r)) for f, r in zip(found, right, strict=True)), default=0.0)


def _deviation(found: Array, right: Array) -> float:
    if found.shape != right.shape:
        return float("inf")
    f, r = found.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(r)
    if not np.array_equal(np.isfinite(f), finite) or not np.array_equal(f[~finite], r[~finite], equal_nan=True):
        return float("inf")
    largest = float(np.abs(f[finite] - r[finite]).max(initial=0.0))
    return largest / (float(np.abs(r[finite]).max(initial=0.0)) or 1.0)


def tolerance(graph: Graph) -> float:
    """The loosest among the outputs; integers must be equal."""
    return max((TOLERANCE.get(graph.values[o].dtype, 0.0) for o in graph.outputs), default=0.0)
