"""A tiled stage of a population and the bytes it moves: what the cost model and the roofline both stand on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from ir.compute import Compute
from ir.schedule import Population
from ir.target import Target
from ir.tiling import Column, Tiling
from search.access import Access, Blocks, Loops, Stage, blocks_of, issued, loops_of, plan_of, unrolled_steps
from search.sketch import table_axes
from search.validity import attached_region, by_split, places, rows_and_vectors, tilings

LEVELS = ("l1", "l2", "l3", "dram")
POLYNOMIAL = 16  # operations of a call such as exp or tanh, about


@dataclass(frozen=True)
class View:
    """One stage of a population, and what its features share."""

    known: Stage
    tiling: Tiling
    target: Target
    loops: Loops
    rows: Column
    vectors: Column
    unrolled: Column
    loads: Mapping[str, Column]  # "adjacent", "same", "strided" -> instructions a flop
    boxes: tuple[np.ndarray, ...]  # bytes (L + 1, n or 1) of every access, the output last
    parts: Mapping[str, np.ndarray]  # "along", "other", "out", "all" -> bytes (L + 1, n)
    entered: dict[int, list[tuple[Access, Column]]] = field(default_factory=dict)  # what `entering` found, by cache

    @property
    def stage(self) -> Compute:
        return self.known.stage

    @property
    def steps(self) -> Column:
        """Vector operations of the register tiles, tails rounded up to whole vectors: a multiply-add each."""
        return self.known.points / np.asarray(self.tiling.lanes, np.float64) * lane_waste(self.tiling)


def view(known: Stage, t: Tiling, target: Target, n: int) -> View:
    loops = loops_of(t, n)
    rows, vectors = (np.asarray(x, np.float64) for x in rows_and_vectors(t))
    unrolled = unrolled_steps(t)
    straight = np.asarray(prod(unrolled.values(), start=np.float64(1)))
    loads = _instructions(known, t, blocks_of(t, unrolled))
    flat = np.zeros((len(loops.axis) + 1, 1), np.float32)
    boxes = tuple(a.footprint(loops.spans.__getitem__) + flat for a in (*known.accesses, known.output))
    return View(known, t, target, loops, rows, vectors, straight, loads, boxes, _parts(known, boxes, n))


def _instructions(known: Stage, t: Tiling, blocks: Blocks) -> dict[str, Column]:
    """Load instructions a flop; strided vectors are gathered lane by lane."""
    out: dict[str, Column] = {"adjacent": np.float64(0), "same": np.float64(0), "strided": np.float64(0)}
    for access in known.accesses:
        width = t.lanes if access.lanes == "adjacent" else 1
        out[access.lanes] = out[access.lanes] + issued(access, blocks) / (width * known.flops)
    return out


def _parts(known: Stage, boxes: tuple[np.ndarray, ...], n: int) -> dict[str, np.ndarray]:
    out = {part: np.zeros((len(boxes[-1]), n), np.float32) for part in ("along", "other", "out")}
    for access, box in zip((*known.accesses, known.output), boxes, strict=True):
        out[known.part(access)] += box
    return out | {"all": out["along"] + out["other"] + out["out"]}


def lane_waste(t: Tiling) -> Column:
    """Lanes computed over lanes wanted."""
    if t.vector is None:
        return np.float64(1)
    return -(-t.vector.extent // t.lanes) * t.lanes / t.vector.extent


def entering(v: View, cache: int) -> list[tuple[Access, Column]]:
    """Bytes of each access that enter a cache over the whole run, the output last.

    The outermost box that fits is loaded once per pass of the loops around it; an operand that the loops directly
    around do not index stays where it is.
    """
    if cache not in v.entered:
        v.entered[cache] = list(_entering(v, cache))
    return v.entered[cache]


def _entering(v: View, cache: int) -> Iterator[tuple[Access, Column]]:
    large = v.parts["all"][:-1] > cache
    at = large.sum(axis=0)  # number of loops outside the box that fits: inner boxes are never larger
    outside = np.where(large, v.loops.trips, np.float32(1))
    for access, box in zip((*v.known.accesses, v.known.output), v.boxes, strict=True):
        held = box[at, np.arange(len(at)) if box.shape[1] != 1 else 0]
        yield access, held * _passes(access, v.loops, outside)


def _passes(access: Access, loops: Loops, outside: np.ndarray) -> Column:
    """How often the loops outside a box bring it in again: from the innermost that moves it outward, all count."""
    moved = np.zeros(outside.shape[1], bool)
    out = np.ones(outside.shape[1], np.float32)
    for a, trips in zip(reversed(loops.axis), outside[::-1], strict=True):
        if a in access.axes:
            moved |= trips > 1
            out *= trips
        else:
            np.multiply(out, trips, out=out, where=moved)
    return out


def partial_level(t: Tiling) -> int:
    """Where the letter of the outer reduction stands; -1 without one."""
    return t.structure.index("R") if t.structure.count("R") > 1 else -1


# --- whole programs ---------------------------------------------------------------------


def traffic(population: Population, target: Target) -> dict[str, dict[str, Column]]:
    """Level -> tensor -> bytes that one call asks it for, float64 (programs); estimates, stages without tiles left out.

    "l1": every load and store of the register tiles. The others: what enters the cache before them. Where a tensor lies
    before the call is not known here: all levels count as if everything came from the last one.
    """
    out: dict[str, dict[str, Column]] = {level: {} for level in LEVELS}
    for rows, part in by_split(population):
        plan, found = plan_of(part.sketch), tilings(part)
        for name, known in plan.stages.items():
            for level, tensor, bytes_ in _moved(view(known, found[name], target, len(part)), target):
                out[level].setdefault(tensor, np.zeros(len(population)))[rows] += bytes_
    return out


def _moved(v: View, target: Target) -> Iterator[tuple[str, str, Column]]:
    """(level, tensor, bytes) of one stage; a fused consumer's operands count as the stage's own."""
    blocks = blocks_of(v.tiling, unrolled_steps(v.tiling))
    yield from (("l1", access.tensor, issued(access, blocks) * access.bytes) for access in v.known.accesses)
    parts = v.loops.of(partial_level(v.tiling))
    yield "l1", v.stage.name, np.asarray(prod(v.stage.shape) * v.known.output.bytes * (2 * parts - 1))  # back and forth
    for level, cache in zip(LEVELS[1:], (target.l1_bytes, target.l2_bytes, target.l3_bytes), strict=True):
        for access, bytes_ in entering(v, cache):
            both = 2 if access is v.known.output else 1  # read and written
            yield level, access.tensor, bytes_ * np.float64(both)
        yield level, v.stage.name, np.float64(v.known.consumer_bytes * prod(v.stage.shape))


def alive(population: Population) -> dict[str, Column]:
    """Stage computed inside another one's nest -> bytes of it that exist at a time; the whole where it is at the root."""
    out: dict[str, Column] = {}
    for rows, part in by_split(population):
        plan, found, places_ = plan_of(part.sketch), tilings(part), places(part)
        for step in plan.attached:
            at, stage = places_[step.stage], plan.dag.stage(step.stage)
            size, _ = attached_region(part, step, plan.dag, found[step.consumer], at)
            bytes_ = np.where(at > 0, size, prod(stage.shape)) * np.dtype(stage.dtype).itemsize
            out.setdefault(step.stage, np.zeros(len(population)))[rows] = bytes_
    return out


def operations(population: Population) -> Column:
    """Floating-point operations that one call keeps the vector units busy for at least, float64 (programs): lanes past
    an edge count, and so does a move, while a multiply-add counts as two. The tables of a transform do not: most of
    their entries are zeros and ones."""
    out = np.zeros(len(population))
    for rows, part in by_split(population):
        plan, found = plan_of(part.sketch), tilings(part)
        for name, known in plan.stages.items():
            if table_axes(known.stage):
                continue
            points = known.points * max(known.operations, 1) * lane_waste(found[name])
            out[rows] += points + POLYNOMIAL * known.math * prod(known.stage.shape)
    return out
