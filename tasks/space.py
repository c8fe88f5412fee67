"""Workload -> search space: its sketches, their keys, and the column functions that judge populations."""

from __future__ import annotations

from hashlib import blake2b

from ir.schedule import Sketch
from ir.target import Target
from ir.workload import Workload
from search.cost_model import Schema
from search.evolve import Space
from search.features import NAMES, VERSION, features
from search.sketch import sketches
from search.validity import canonical, valid

SCHEMA = Schema(VERSION, NAMES)


def sketch_text(sketch: Sketch) -> str:
    """Steps and holes; with the workload's DAG this is the whole sketch."""
    return "\n".join([*map(str, sketch.steps), *map(str, sketch.holes)])


def sketch_key(workload: str, sketch: Sketch) -> str:
    return blake2b(f"{workload}\n{sketch_text(sketch)}".encode(), digest_size=12).hexdigest()


def space_of(workload: Workload, target: Target) -> Space:
    found = tuple(sketches(workload.dag, target))
    keys = tuple(sketch_key(workload.key, s) for s in found)
    return Space(keys, found, target, valid, canonical, features)
