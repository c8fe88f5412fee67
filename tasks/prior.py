"""What is believed of programs before anything was measured here: a model that ships, or a heuristic.

The model learnt from the paper's operators and the networks of the zoo on one kind of machine (see PLACE). It ranks
programs by features, which are the same everywhere; on registers of another width or number the heuristic stands in, and
so it does when the file is of other features: day one works without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ir.target import Target
from search.cost_model import Model, SchemaMismatch, load
from search.features import NAMES
from search.heuristic import heuristic
from tasks.space import SCHEMA

Score = Callable[[np.ndarray], np.ndarray]  # features (n x width) -> higher is better (n)

PLACE = Path(__file__).parent / "prior.json"
KIND = "kind"  # attribute of the model: the registers of the machine that it learnt on
BALANCE = NAMES.index("parallel.balance")


def prior(target: Target) -> Score:
    """The shipped model where it knows such registers, else the heuristic."""
    model = shipped(PLACE)
    if model is None or kind_of(target) != json.loads(model.booster.attr(KIND) or "null"):
        return heuristic
    return lambda features: _score(model, features)


@lru_cache(maxsize=4)
def shipped(place: Path) -> Model | None:
    """None without a file, or with one of other features."""
    if not place.is_file():
        return None
    try:
        return load(place.read_bytes(), SCHEMA)
    except SchemaMismatch:
        return None


def kind_of(target: Target) -> dict[str, Any]:
    return {"kind": target.kind, "vector_bytes": target.vector_bytes, "vector_registers": target.vector_registers}


def _score(model: Model, features: np.ndarray) -> np.ndarray:
    """It learnt from one thread: of several, the share that is kept busy counts as much."""
    return np.asarray(model.predict(features) * (np.exp2(features[:, BALANCE].astype(np.float64)) - 1))


__all__ = ["KIND", "PLACE", "Score", "kind_of", "prior", "shipped"]
