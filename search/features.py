"""What the cost model sees of a program: one row of numbers of a fixed width, whatever the DAG.

The stage with the most work (the anchor) shows itself in full; the others as sums and extremes. Everything that
depends on the sketch alone is computed once a sketch; per population there is only arithmetic on whole columns. The
choice of features follows measurements: register tile, footprints against the caches and estimated traffic carry
most of the gain. Trees split at thresholds, so a footprint is given once, as a share of the cache it competes for:
a second copy of it over another cache would be the same feature again.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ir.schedule import Population
from ir.target import Target
from ir.tiling import Column, Tiling
from search.access import Loads, Plan, accesses, divides, plan_of
from search.traffic import View, entering, lane_waste, view
from search.validity import attached_region, by_split, places, registers, tilings

__all__ = ["NAMES", "VERSION", "WIDTH", "Loads", "accesses", "features"]

VERSION = 2

NAMES: tuple[str, ...] = (
    # the workload, so that one model serves all of them
    "work.flops", "work.bytes", "work.flops_per_byte", "work.stages", "work.anchor_share", "work.element_bytes",
    "work.threads", "work.reduce", "work.space", "work.rank", "work.guards", "work.math_per_point",
    # the anchor's register tile
    "tile.rows", "tile.vectors", "tile.size", "tile.registers", "tile.intensity", "tile.lanes", "tile.vector_bytes",
    "tile.row_axes", "tile.lane_waste", "tile.row_waste", "tile.tail_share", "tile.variants", "tile.unroll",
    "tile.statements", "tile.lanes_reduce",
    # its loops
    "loop.s0", "loop.s1", "loop.s2", "loop.r0", "loop.r1", "loop.s2_vector", "loop.s1_vector", "loop.s0_vector",
    "loop.vector_first", "loop.partial_bytes",
    # bytes that one pass of a loop touches, as a share of a cache: operands that lanes run along, others, output, all
    "fit.tile_along", "fit.tile_other", "fit.tile_out", "fit.tile",
    "fit.s2_along", "fit.s2_other", "fit.s2_out", "fit.s2",
    "fit.s1_along", "fit.s1_other", "fit.s1_out", "fit.s1",
    "fit.s0_along", "fit.s0_other", "fit.s0_out", "fit.s0",
    "fit.all",
    # estimated bytes a flop into each cache
    "traffic.l1_along", "traffic.l1_other", "traffic.l1_out", "traffic.l1",
    "traffic.l2_along", "traffic.l2_other", "traffic.l2_out", "traffic.l2", "traffic.l3",
    # instructions
    "issue.vector_loads", "issue.broadcasts", "issue.strided", "issue.stores", "issue.operations", "issue.unaligned",
    "issue.conflicts", "issue.cycles",
    # threads
    "parallel.degree", "parallel.chunks", "parallel.balance", "parallel.depth",
    # where producers are computed, and copies
    "place.attached", "place.redundancy", "place.buffer_l1", "place.buffer_l2", "place.runs", "place.workspace",
    "place.packed", "place.pack_waste",
    # the other stages
    "others.flops", "others.points", "others.cycles", "others.registers", "others.intensity", "others.size",
    "others.traffic_l1", "others.traffic_l2", "others.statements", "others.math", "others.scalar", "others.strided",
    "others.waste", "others.degree", "others.balance",
    # all stages together, whatever the algorithm: times what the workload's own flops take at the peak
    "estimate.slowdown",
)  # fmt: skip

WIDTH = len(NAMES)

PAGE = 4096  # addresses this far apart fall into the same set of a 64-set first-level cache
# Throughputs of a recent x86 core, a cycle (Agner Fog, instruction tables): 2 fused multiply-adds of latency 4, 2
# loads, 1 store; bytes into L1 and L2. They shape one estimate; the trees find its scale.
FMA, LATENCY, LOADS, STORES, INTO_L1, INTO_L2 = 2, 4, 2, 1, 32, 16


def features(population: Population, target: Target) -> np.ndarray:
    """float32 (programs x WIDTH), every entry log2(1 + count)."""
    out = np.empty((WIDTH, len(population)), dtype=np.float32)
    for rows, part in by_split(population):
        columns = _columns(part, target)
        for i, name in enumerate(NAMES):
            out[i, rows] = columns[name]
    np.log2(1 + out, out=out)
    return np.ascontiguousarray(out.T)


# --- features of one stage --------------------------------------------------------------


def _traffic(v: View, cache: int) -> dict[str, Column]:
    """Bytes a flop that enter a cache: "along", "other", "out"."""
    out: dict[str, Column] = {"along": np.float64(0), "other": np.float64(0), "out": np.float64(0)}
    for access, bytes_ in entering(v, cache):
        part = v.known.part(access)
        out[part] = out[part] + bytes_ / v.known.flops
    out["out"] = out["out"] * 2 + v.known.consumer_bytes * prod(v.stage.shape) / v.known.flops  # read and written
    return out


def _row_waste(t: Tiling) -> Column:
    """Register tiles entered over those that are full: a small tail tile keeps the units waiting as long."""
    return prod((np.ceil(n / r) * r / n for n, r in _tiles(t)), start=np.float64(1))


def _variants(t: Tiling) -> Column:
    """Kinds of register tiles that are emitted: each axis that does not divide doubles them."""
    return prod((2 - divides(r, n) for n, r in _tiles(t)), start=np.float64(1))


def _tiles(t: Tiling) -> list[tuple[int, Column]]:
    """Extent and register tile of each space axis."""
    return [(a.extent, np.clip(t.register(a), 1, a.extent).astype(np.float64)) for a in t.stage.space if a.extent > 1]


def _cycles(v: View, l1: Column, l2: Column) -> Column:
    """A flop's cycles by the narrowest of: arithmetic (its latency hidden by independent accumulators only), loads,
    stores, bytes into L1 and into L2."""
    hidden = np.minimum(v.rows * v.vectors, FMA * LATENCY) / (FMA * LATENCY) if v.stage.reduce else np.float64(1)
    arithmetic = v.steps * max(v.known.operations / 2, 0.5) * _row_waste(v.tiling) / FMA / hidden
    arithmetic = arithmetic + 8 * v.known.math * prod(v.stage.shape) / v.tiling.lanes  # a polynomial's length
    loads = (v.loads["adjacent"] + v.loads["same"] + v.loads["strided"]) / LOADS
    return np.maximum.reduce(np.broadcast_arrays(arithmetic / v.known.flops, loads, l1 / INTO_L1, l2 / INTO_L2))


def _slots(v: View) -> Column:
    """Flops that the units could have issued while the stage runs."""
    l1, l2 = (sum(_traffic(v, c).values(), np.float64(0)) for c in (v.target.l1_bytes, v.target.l2_bytes))
    return _cycles(v, l1, l2) * v.known.flops * 2 * FMA * (v.target.vector_bytes // 4)


# --- the anchor -------------------------------------------------------------------------


def _columns(population: Population, target: Target) -> dict[str, Column]:
    plan, found = plan_of(population.sketch), tilings(population)
    views = {n: view(s, found[n], target, len(population)) for n, s in plan.stages.items()}
    anchor = views[plan.anchor]
    l1, l2, l3 = (_traffic(anchor, c) for c in (target.l1_bytes, target.l2_bytes, target.l3_bytes))
    return {
        **_work(plan, target),
        **_tile(anchor),
        **_nest(anchor),
        **_fit(anchor),
        **{f"traffic.l1_{k}": x for k, x in l1.items()},
        **{f"traffic.l2_{k}": x for k, x in l2.items()},
        "traffic.l1": sum(l1.values()),
        "traffic.l2": sum(l2.values()),
        "traffic.l3": sum(l3.values()),
        **_issue(anchor, sum(l1.values()), sum(l2.values())),
        **{f"parallel.{k}": x for k, x in _parallel(anchor).items()},
        **_place(plan, population, found, target),
        **_others([v for n, v in views.items() if n != plan.anchor], plan.flops, len(population)),
        "estimate.slowdown": sum(map(_slots, views.values()), np.float64(0)) / max(plan.flops, 1),
    }


def _work(plan: Plan, target: Target) -> dict[str, Column]:
    anchor = plan.stages[plan.anchor]
    return {
        "work.flops": np.float64(plan.flops),
        "work.bytes": np.float64(plan.bytes),
        "work.flops_per_byte": np.float64(plan.flops / max(plan.bytes, 1)),
        "work.stages": np.float64(len(plan.stages)),
        "work.anchor_share": np.float64(anchor.flops / max(sum(s.flops for s in plan.stages.values()), 1)),
        "work.element_bytes": np.float64(anchor.output.bytes),
        "work.threads": np.float64(target.threads),
        "work.reduce": np.float64(prod(a.extent for a in anchor.stage.reduce)),
        "work.space": np.float64(prod(anchor.stage.shape)),
        "work.rank": np.float64(sum(a.extent > 1 for a in anchor.stage.axes)),
        "work.guards": np.float64(anchor.guards),
        "work.math_per_point": np.float64(anchor.math),
    }


def _tile(v: View) -> dict[str, Column]:
    t = v.tiling
    size = v.rows * v.vectors
    whole = prod((np.floor(n / r) * r / n for n, r in _tiles(t)), start=np.float64(1))
    return {
        "tile.rows": v.rows,
        "tile.vectors": v.vectors,
        "tile.size": size,
        "tile.registers": registers(t) / v.target.vector_registers,
        "tile.intensity": size / (v.rows + v.vectors),
        "tile.lanes": np.asarray(t.lanes),
        "tile.vector_bytes": np.asarray(t.lanes) * v.known.output.bytes / v.target.vector_bytes,
        "tile.row_axes": sum((np.asarray(t.register(a) > 1) * 1 for a in t.stage.space if a != t.vector), np.int64(0)),
        "tile.lane_waste": lane_waste(t),
        "tile.row_waste": _row_waste(t),
        "tile.tail_share": 1 - whole,
        "tile.variants": _variants(t),
        "tile.unroll": v.unrolled,
        "tile.statements": size * _variants(t) * (2 + v.unrolled),
        "tile.lanes_reduce": np.float64(t.lanes_reduce),
    }


def _letters(t: Tiling) -> dict[str, int]:
    """Where the letters of the structure stand; -1 for those it lacks. The last R is r1, whatever comes before."""
    s = [i for i, letter in enumerate(t.structure[:-1]) if letter == "S"]
    r = [i for i, letter in enumerate(t.structure) if letter == "R"]
    out = {f"s{n}": s[n] if n < len(s) else -1 for n in range(3)}
    return out | {"r0": r[0] if len(r) > 1 else -1, "r1": r[-1] if r else -1}


def _nest(v: View) -> dict[str, Column]:
    t, at = v.tiling, _letters(v.tiling)
    out = {f"loop.{name}": v.loops.of(level) for name, level in at.items()}
    for s in ("s0", "s1", "s2"):
        out[f"loop.{s}_vector"] = v.loops.of(at[s], t.vector) if t.vector is not None else np.float64(1)
    partial: Column = np.float64(0)
    if t.structure.count("R") > 1:
        tile = prod((np.asarray(t.sizes[a][t.levels - 3], np.float64) for a in t.stage.space), start=np.float64(1))
        partial = np.where(out["loop.r0"] > 1, tile * v.known.output.bytes, 0)
    return out | {"loop.vector_first": np.asarray(t.vector_first), "loop.partial_bytes": partial}


def _fit(v: View) -> dict[str, Column]:
    """Footprints of the register tile's whole reduction, of what stands inside R0, around R0, and inside S0."""
    at, target = _letters(v.tiling), v.target
    inner = v.loops.after(at["r1"] - 1) if at["r1"] >= 0 else len(v.loops.axis)
    inside_r0 = v.loops.after(at["r0"]) if at["r0"] >= 0 else inner
    around_r0 = v.loops.after(at["r0"] - 1) if at["r0"] >= 0 else inner
    levels = (
        ("tile", inner, target.l1_bytes),
        ("s2", inside_r0, target.l1_bytes),
        ("s1", around_r0, target.l2_bytes),
        ("s0", v.loops.after(at["s0"]), target.l2_bytes),
    )
    out = {"fit.all": v.parts["all"][0] / target.l3_bytes}
    for name, box, cache in levels:
        out[f"fit.{name}"] = v.parts["all"][box] / cache
        out |= {f"fit.{name}_{part}": v.parts[part][box] / cache for part in ("along", "other", "out")}
    return out


def _issue(v: View, l1: Column, l2: Column) -> dict[str, Column]:
    """A flop's share, but for the count of operations and of conflicts."""
    box = v.loops.after(_letters(v.tiling)["r1"] - 1) if v.stage.reduce else len(v.loops.axis)
    return {
        "issue.vector_loads": v.loads["adjacent"],
        "issue.broadcasts": v.loads["same"],
        "issue.strided": v.loads["strided"],
        "issue.stores": _stores(v),
        "issue.operations": v.steps,
        "issue.unaligned": np.float64(sum(not a.aligned for a in v.known.accesses if a.lanes == "adjacent")),
        "issue.conflicts": _conflicts(v, box),
        "issue.cycles": _cycles(v, l1, l2),
    }


def _stores(v: View) -> Column:
    """Vectors written, once per part of the reduction."""
    parts = v.loops.of(_letters(v.tiling)["r0"])
    lanes = 1 if v.tiling.lanes_reduce or v.known.output.lanes != "adjacent" else v.tiling.lanes
    return prod(v.stage.shape) * parts / lanes / v.known.flops


def _conflicts(v: View, box: int) -> Column:
    """Lines of the tile's reduction that compete for the same set: indices a multiple of a page apart."""
    out: Column = np.float32(0)
    for access in (*v.known.accesses, v.known.output):
        far = [d for d in access.dims if d.terms and not access.packed and d.stride * d.step % PAGE == 0]
        if far:
            out = out + prod((d.distinct(lambda a: v.loops.spans[a][box]) for d in far), start=np.float32(1))
    return out


def _parallel(v: View) -> dict[str, Column]:
    """The outermost loops that really turn, as many as the program marks."""
    degree, depth = np.ones(v.loops.trips.shape[1:]), np.zeros(v.loops.trips.shape[1:])
    marked, threads = np.asarray(v.tiling.parallel), v.target.threads
    for i in range(v.loops.after(_letters(v.tiling)["s0"])):
        turns = v.loops.trips[i] > 1
        degree = np.where(turns & (depth < marked), degree * v.loops.trips[i], degree)
        depth = depth + turns
    rounds = np.ceil(degree / threads)
    return {
        "degree": degree,
        "chunks": degree / threads,
        "balance": degree / (rounds * threads),
        "depth": np.minimum(depth, marked),
    }


# --- places and copies ------------------------------------------------------------------


def _place(plan: Plan, population: Population, found: Mapping[str, Tiling], target: Target) -> dict[str, Column]:
    n = len(population)
    chosen = places(population)
    count, worst, most, local, root = np.zeros(n), np.ones(n), np.ones(n), np.zeros(n), np.zeros(n)
    for step in plan.attached:
        at = chosen[step.stage]
        inside = at > 0
        stage = plan.dag.stage(step.stage)
        size, runs = attached_region(population, step, plan.dag, found[step.consumer], at)
        size_bytes, whole = np.dtype(stage.dtype).itemsize, max(prod(stage.shape), 1)
        count += inside
        worst = np.where(inside, np.maximum(worst, runs * size / whole), worst)
        most = np.where(inside, np.maximum(most, runs), most)
        local += np.where(inside, size * size_bytes, 0)
        root += np.where(inside, 0, whole * size_bytes)
    return {
        "place.attached": count,
        "place.redundancy": worst,
        "place.runs": most,
        "place.buffer_l1": local / target.l1_bytes,
        "place.buffer_l2": local / target.l2_bytes,
        "place.workspace": root / target.l2_bytes,
        **_copies(plan, found),
    }


def _copies(plan: Plan, found: Mapping[str, Tiling]) -> dict[str, Column]:
    """Bytes packed at run time, and how much of a padded panel is padding (constant panels too)."""
    packed: Column = np.float64(0)
    waste: Column = np.float64(0)
    for stage, a, size in plan.packs:
        tile = np.asarray(found[stage].register(a), np.float64)
        packed = packed + size * np.ceil(a.extent / tile) * tile / a.extent
    for name, known in plan.stages.items():
        v = found[name].vector
        if v is not None and any(x.packed for x in known.accesses):
            tile = np.asarray(found[name].register(v), np.float64)
            waste = np.maximum(waste, np.ceil(v.extent / tile) * tile / v.extent - 1)
    return {"place.packed": packed, "place.pack_waste": waste}


# --- the other stages -------------------------------------------------------------------


def _others(views: list[View], flops: float, n: int) -> dict[str, Column]:
    """Sums over all stages but the anchor; worst cases where a sum says nothing."""
    out = {name.removeprefix("others."): np.zeros(n) for name in NAMES if name.startswith("others.")}
    out["balance"] = np.ones(n)
    for v in views:
        l1 = sum(_traffic(v, v.target.l1_bytes).values(), np.float64(0))
        l2 = sum(_traffic(v, v.target.l2_bytes).values(), np.float64(0))
        share = v.known.flops / max(flops, 1)
        spread = _parallel(v)
        scalar = v.tiling.vector is None
        sums = {
            "flops": np.float64(v.known.flops),
            "points": np.float64(prod(v.stage.shape)),
            "cycles": _cycles(v, l1, l2) * share,
            "traffic_l1": l1 * share,
            "traffic_l2": l2 * share,
            "statements": v.rows * v.vectors * _variants(v.tiling) * (2 + v.unrolled),
            "math": np.float64(v.known.math * prod(v.stage.shape)),
            "scalar": np.float64(v.known.points if scalar else 0),
            "strided": v.loads["strided"] * v.known.flops,
        }
        most = {
            "registers": registers(v.tiling) / v.target.vector_registers if v.stage.reduce else np.float64(0),
            "intensity": v.rows * v.vectors / (v.rows + v.vectors) if v.stage.reduce else np.float64(0),
            "size": v.rows * v.vectors,
            "waste": lane_waste(v.tiling) * _row_waste(v.tiling),
            "degree": spread["degree"],
        }
        out |= {k: out[k] + x for k, x in sums.items()} | {k: np.maximum(out[k], x) for k, x in most.items()}
        out["balance"] = np.minimum(out["balance"], spread["balance"])
    return {f"others.{k}": x for k, x in out.items()}
