"""A guess without any data: which programs to try first, and which to use when nothing was ever measured.

What a fast program looks like, in the features' own terms: a large register tile that fits, little of it wasted, inner
tiles that the caches hold, little traffic, no stage recomputed or running lane by lane. The weights are round numbers:
they rank, they do not predict.
"""

from __future__ import annotations

import numpy as np

from search.features import NAMES

# (feature, weight): positive is better. Counts are log2(1 + x), shares of a cache are log2(1 + share).
WEIGHTS: tuple[tuple[str, float], ...] = (
    ("tile.intensity",    1.0),    # multiply-adds a load
    ("tile.size",         0.5),    # enough independent sums to hide the latency
    ("tile.lane_waste",  -2.0),
    ("tile.row_waste",   -1.0),
    ("tile.variants",    -0.3),    # tail code
    ("issue.cycles",     -1.0),    # estimated issue slots a flop
    ("issue.strided",    -0.5),
    ("traffic.l1",       -0.3),
    ("traffic.l2",       -0.5),
    ("traffic.l3",       -0.5),
    ("fit.tile",         -0.1),
    ("place.redundancy", -2.0),
    ("place.buffer_l2",  -0.2),
    ("others.cycles",    -1.0),
    ("others.traffic_l2", -0.3),
    ("others.strided",   -0.3),
    ("parallel.balance",  1.0),
    ("estimate.slowdown", -8.0),   # another algorithm may have less to do
    ("loop.r0",          -0.2),    # partial sums rest in memory
)  # fmt: skip

COLUMNS = np.array([NAMES.index(name) for name, _ in WEIGHTS])
SCALE = np.array([weight for _, weight in WEIGHTS], dtype=np.float32)


def heuristic(features: np.ndarray) -> np.ndarray:
    """Features (n x width, float32) -> scores (n, float32, higher is better)."""
    return np.asarray(features[:, COLUMNS] @ SCALE)
