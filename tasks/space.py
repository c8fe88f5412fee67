"""Workload -> search space: its sketches, their keys, and the column functions that judge populations."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.metadata import entry_points

from ir.schedule import Sketch
from ir.target import Target
from ir.workload import Workload
from search.access import plan_of
from search.cost_model import Schema
from search.evolve import Space
from search.features import NAMES, VERSION, features
from search.sketch import RULES, Rule, sketches, table_axes
from search.validity import canonical, cores, valid

SCHEMA = Schema(VERSION, NAMES)


def sketch_text(sketch: Sketch) -> str:
    """Steps and holes; with the workload's DAG this is the whole sketch."""
    return "\n".join([*map(str, sketch.steps), *map(str, sketch.holes)])


def sketch_key(workload: str, sketch: Sketch) -> str:
    return blake2b(f"{workload}\n{sketch_text(sketch)}".encode(), digest_size=12).hexdigest()


@cache
def rules(kind: str) -> tuple[Rule, ...]:
    """The rules of a target, those of installed packages first: entry points of the group `tilewright.rules`, each a
    `Rule` or a tuple of them."""
    found: list[Rule] = []
    for point in entry_points(group="tilewright.rules"):
        given = point.load()
        found += given if isinstance(given, tuple) else (given,)
    return (*found, *RULES[kind])


def least_flops(space: Space) -> float:
    """Floating operations that no program of the space does without: the largest sum of the leanest algorithm. The
    tables of a transform do not count, most of their entries are zeros and ones."""
    plans = [plan_of(sketch) for sketch in space.sketches]
    return min(max((s.flops for s in p.stages.values() if not table_axes(s.stage)), default=0.0) for p in plans)


def space_of(workload: Workload, target: Target) -> Space:
    found = tuple(sketches(workload.dag, target, rules(target.kind)))
    keys = tuple(sketch_key(workload.key, s) for s in found)
    return Space(keys, found, target, valid, canonical, features, cores)
