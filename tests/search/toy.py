"""A matrix product with a consumer, its space by hand, and a formula instead of a machine."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from ir.compute import Compute, Dag, Input
from ir.expr import Axis, Read, call
from ir.schedule import Hole, Population, Sketch, Tile
from ir.target import Target
from search.cost_model import Schema
from search.evolve import Space
from search.tuner import Proposal, Result

EXTENT = 1024
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
NAMES = (
    "C.i.1",
    "C.i.2",
    "C.j.1",
    "C.j.2",
    "C.k.1",
    "C.vector",
    "C.unroll",
    "C.order",
    "C.split",
    "D.at",
    "D.parallel",
)
BEST = {"C.i.1": 8, "C.i.2": 6, "C.j.1": 4, "C.vector": 4, "C.k.1": 24, "C.unroll": 4, "D.at": 1, "C.split": 1}
WIDTH = 60
SCHEMA = Schema(1, tuple(f"f{i}" for i in range(WIDTH)))
FLOOR_SECONDS = 1e-3


def dag() -> Dag:
    i, j, k = Axis("i", EXTENT), Axis("j", EXTENT), Axis("k", EXTENT)
    a, b = Input("A", (EXTENT, EXTENT)), Input("B", (EXTENT, EXTENT))
    product = Compute("C", (i, j), Read("A", (i, k), "float32") * Read("B", (k, j), "float32"), (k,))
    relu = Compute("D", (i, j), call("max", Read("C", (i, j), "float32"), 0.0))
    return Dag((a, b), (product, relu), ("D",))


def tiled() -> Sketch:
    """Eleven holes of every kind, in two groups; 3e8 programs."""
    return Sketch(dag()).then(
        Tile("C", "SSRSRS", "j"),
        Hole("C.i.1", SIZES, "tile", "C", "i"),
        Hole("C.i.2", SIZES, "tile", "C", "i"),
        Hole("C.j.1", SIZES, "tile", "C", "j"),
        Hole("C.j.2", (1, 2, 4), "tile", "C", "j"),
        Hole("C.k.1", SIZES, "tile", "C", "k"),
        Hole("C.vector", (1, 2, 3, 4, 5, 6, 8), "vector", "C", "j"),
        Hole("C.unroll", (0, 1, 2, 4), "unroll", "C"),
        Hole("C.order", (0, 1, 2), "order", "C"),
        Hole("C.split", (0, 1), "split", "C"),
        Hole("D.at", (0, 1, 2), "location", "D"),
        Hole("D.parallel", (1, 2, 4), "parallel", "D"),
    )


def plain() -> Sketch:
    """A second, poorer sketch without a consumer's holes."""
    return Sketch(dag()).then(
        Tile("C", "SSRS", "j"), *(h for h in tiled().holes if h.group == "C" and h.kind == "tile")
    )


def little() -> Sketch:
    """Small enough to be enumerated: 120 programs."""
    return Sketch(dag()).then(
        Tile("C", "SRS", "j"),
        Hole("C.i.2", SIZES, "tile", "C", "i"),
        Hole("C.vector", (1, 2, 4), "vector", "C", "j"),
        Hole("C.unroll", (0, 1, 2, 4), "unroll", "C"),
    )


def column(p: Population, name: str) -> np.ndarray:
    return p.get(name, 1)


def valid(p: Population, target: Target) -> np.ndarray:
    """The register tile fits the registers."""
    rows, vectors = column(p, "C.i.2"), column(p, "C.vector")
    return np.asarray(rows * vectors + vectors + 1 <= target.vector_registers)


def canonical(p: Population) -> np.ndarray:
    """The order is dead when the reduction is not split."""
    values = np.stack([column(p, n) for n in NAMES], axis=1)
    values[:, NAMES.index("C.order")] *= column(p, "C.split")
    return values


def features(p: Population, target: Target) -> np.ndarray:
    logs = np.log2(1 + np.stack([column(p, n) for n in NAMES], axis=1).astype(np.float32))
    pairs = [logs[:, a] + logs[:, b] for a, b in combinations(range(len(NAMES)), 2)]
    return np.concatenate([logs, np.stack(pairs, axis=1)], axis=1)[:, :WIDTH].astype(np.float32)


def seconds(p: Population) -> np.ndarray:
    """A bowl in the logarithms of the sizes, its floor at BEST: FLOOR_SECONDS."""
    off = [np.abs(np.log2(1.0 + column(p, n)) - np.log2(1.0 + best)) for n, best in BEST.items()]
    return np.asarray(FLOOR_SECONDS * (1 + 0.3 * np.sum(off, axis=0)))


def space(*sketches: Sketch) -> Space:
    chosen = sketches or (tiled(), plain())
    return Space(
        tuple(f"sketch{i}" for i in range(len(chosen))),
        chosen,
        Target(),
        valid,
        canonical,
        features,
        lambda sketch, target: (),
    )


def measure(where: Space, proposals: list[Proposal], fail: int = 0) -> list[Result]:
    """The formula's answer; every `fail`-th program fails."""
    out = []
    for i, p in enumerate(proposals):
        sketch = where.sketches[where.keys.index(p.sketch_key)]
        taken = float(seconds(Population(sketch, np.array([p.choices], dtype=np.int32)))[0])
        out.append(Result(p, None if fail and i % fail == 0 else taken))
    return out
