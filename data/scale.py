"""The scale bar: a synthetic store of millions of measurements, compacted, and the seconds of every shipped question.

    python -m data.scale --rows 10_000_000 --store DIR

What is drawn looks like months of tuning: models of 27 workloads, two devices, three thread counts, runs of 10,000
programs in batches, 2 to 16 samples each, failures of every kind, finalists, yesterday's best measured again; and after
each run a night that looks at all of its workloads, notices a shift here and there and decides what stands. An
existing store is asked as it is. Bars: a question under a second, 100 bytes a measurement, 2 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from data.query import Connection, connect, names, params_of
from data.schema import TABLES
from data.store import Store

QUESTION_SECONDS, BYTES_A_ROW, MEMORY_BYTES = 1.0, 100.0, 2 << 30  # the bars
ASKS = 3  # the best of so many counts: others may hold the cores for one of them

RUN_ROWS = 10_000  # measurements of a run
MODELS, WORKLOADS, SKETCHES = 12, 27, 3  # models; workloads of a model; sketches of a workload
BATCH = 32
CONFIRMED = 0.12  # share of a run's measurements that come from the finalists' round
SAMPLES_WARM, SAMPLES_COLD = (2, 3, 4, 5, 6, 7, 8, 12, 16), (0, 2, 4)
DEVICES = ("x86_64-v32-8baf70534917", "x86_64-v64-0c4d1b7e6a55")
THREADS = (1, 2, 4)
COMPILERS = ("gcc (Debian 12.2.0-14) 12.2.0", "gcc (Debian 14.2.0-19) 14.2.0")
LOOKS = ("kept", "built")  # roles of a night's first look, side by side
LOOK_ROUNDS = 12
SHIFTED, PROMOTED = 0.03, 0.2  # shares of the workloads of a night
FLAGS = "-O1 -fexpensive-optimizations -mavx2 -mfma -ffp-contract=fast -fno-strict-aliasing -fPIC -shared"
ERRORS = ("wrong", "compile", "timeout", "crash")
ERROR_SHARES = (0.008, 0.012, 0.015, 0.005)
MUTATIONS = (
    None, "preferred", "evolved", "tile-factor", "tile-redraw", "order", "crossover", "tile-factor tile-redraw",
    "tile-redraw tile-redraw tile-factor", "unroll",
)  # fmt: skip
RULES = ("inline", "tile-and-fuse", "pack", "plain", "compute-at", "cache-write", "rfactor")
START = datetime(2024, 1, 1, tzinfo=UTC)


# ---------------------------------------------------------------------------------------------- what is drawn


@dataclass(frozen=True, slots=True)
class Drawn:
    """A workload as it is drawn: its keys, and what its best program takes [s]."""

    key: str
    sketches: tuple[str, ...]
    holes: tuple[int, ...]
    seconds: float
    flops: float


@dataclass(slots=True)
class World:
    """What runs share: the models' workloads, and the best program of each place until now."""

    draw: np.random.Generator
    models: list[list[Drawn]] = field(default_factory=list)
    workloads: list[list[dict[str, Any]]] = field(default_factory=list)  # rows of each model, without a time
    best: dict[tuple[str, str, str], str] = field(default_factory=dict)
    environments: dict[str, str] = field(default_factory=dict)  # compiler -> key

    def hexes(self, count: int, digits: int) -> list[str]:
        text = self.draw.bytes(count * digits // 2).hex()
        return [text[i * digits : (i + 1) * digits] for i in range(count)]


@dataclass(frozen=True, slots=True)
class Place:
    """Where and when a run measured."""

    run: str
    target: str
    threads: int
    device: str
    compiler: str
    started: datetime


def fill(store: Store, rows: int, seed: int = 0) -> None:
    """Append `rows` measurements with all that belongs to them, a part a run and table."""
    world = World(np.random.default_rng(seed))
    _record_world(store, world)
    runs = -(-rows // RUN_ROWS)
    for number in range(runs):
        _record_run(store, world, number, min(RUN_ROWS, rows - number * RUN_ROWS))
        if number % 100 == 0:
            print(f"run {number} of {runs}", file=sys.stderr, flush=True)


def _record_world(store: Store, world: World) -> None:
    sketches = []
    for model in range(MODELS):
        lanes, workloads = [], []
        for i, key in enumerate(world.hexes(WORKLOADS, 16)):
            keys = tuple(world.hexes(SKETCHES, 24))
            flops = float(10 ** world.draw.uniform(6, 9))
            lane = Drawn(key, keys, tuple(map(int, world.draw.integers(6, 20, SKETCHES))), flops / 5e10, flops)
            lanes.append(lane)
            workloads.append({
                "key": key, "name": f"conv2d_{model}_{i}", "dag_text": f"C{i}[i, j] += A[i, k] * B[k, j]\n" * 8,
                "flops": flops, "bytes": flops / 20, "space_size": 1e9, "inputs": "A: float32[1,64,56,56]",
                "outputs": "C: float32[1,64,56,56]", "model": f"model{model}", "weight": 1 + i % 4, "origin": [f"n{i}"],
            })  # fmt: skip
            sketches += [
                {"key": sketch, "workload": key, "text": f"tile C{i} SSRSRS\n" * 40, "created": START,
                 "rules": list(RULES[: 3 + n]), "holes": json.dumps([[f"h{h}", [1, 2, 4, 8]] for h in range(holes)])}
                for n, (sketch, holes) in enumerate(zip(keys, lane.holes, strict=True))
            ]  # fmt: skip
        world.models.append(lanes)
        world.workloads.append(workloads)
    store.append("sketches", sketches)
    store.append("devices", [
        {"key": key, "isa": ["avx2", "fma"], "vector_bytes": 32, "cores": 2, "peak_gflops": 95.0,
         "memory": [{"level": "memory", "bytes": None, "gb_per_second": 12.0}], "compiler": COMPILERS[0],
         "measured": START, "created": START}
        for key in DEVICES
    ])  # fmt: skip
    world.environments |= dict(zip(COMPILERS, world.hexes(len(COMPILERS), 16), strict=True))
    store.append("environments", [
        {"key": key, "compiler": compiler, "flags": FLAGS, "code": "0.1", "kernel": "6.1", "microcode": "0x1",
         "libraries": "libgomp", "probe": "0", "created": START}
        for compiler, key in world.environments.items()
    ])  # fmt: skip
    store.append("registrations", [
        {"key": registration(model, threads), "model": f"model{model}", "label": f"model{model}", "threads": threads,
         "batch": 1, "dims": None, "trials": RUN_ROWS, "active": True, "created": START}
        for model in range(MODELS) for threads in THREADS
    ])  # fmt: skip


def registration(model: int, threads: int) -> str:
    return f"model{model} t{threads}"


def _record_run(store: Store, world: World, number: int, rows: int) -> None:
    draw, model = world.draw, number % MODELS
    threads = THREADS[number // MODELS % len(THREADS)]
    device = DEVICES[number // (MODELS * len(THREADS)) % len(DEVICES)]
    (run,) = world.hexes(1, 12)
    compiler = COMPILERS[number > 600]
    place = Place(run, f"cpu-x86_64-v32-t{threads}", threads, device, compiler, START + timedelta(hours=4 * number))
    lanes = world.models[model]
    share = -(-rows // len(lanes))
    found: dict[str, list[pa.Table]] = {name: [] for name in ("programs", "measurements", "rounds", "sources")}
    done = 0
    for n, lane in enumerate(lanes):
        count = min(share, rows - done)
        done += count
        if count > 0:
            drawn = _lane(world, place, lane, count, place.started + timedelta(minutes=8 * n))
            for tables, new in zip(found.values(), drawn, strict=True):
                tables.append(new)
    store.append("workloads", [row | {"created": place.started} for row in world.workloads[model]])
    for name, tables in found.items():
        store.append(name, pa.concat_tables(tables))
    before = float(draw.uniform(0.01, 0.1))
    store.append("runs", [{
        "key": run, "model": f"model{model}", "target": place.target, "threads": threads, "seed": number,
        "trials": rows, "budget_seconds": None, "started": place.started, "state": "finished",
        "finished": place.started + timedelta(hours=4), "latency_before": before,
        "latency_after": before / float(draw.uniform(1.5, 9)), "version": "0.1", "settings": "{}",
        "environment": world.environments[place.compiler], "created": place.started + timedelta(hours=4),
    }])  # fmt: skip
    _record_night(store, world, place, model, lanes)


def _record_night(store: Store, world: World, place: Place, model: int, lanes: Sequence[Drawn]) -> None:
    """What stands is measured again, beside itself built anew; a few shifts, a few promotions."""
    draw, (night,) = world.draw, world.hexes(1, 12)
    environment, ended = world.environments[place.compiler], place.started + timedelta(hours=4)
    where = {"target": place.target, "device": place.device}
    standing = [
        (lane, program) for lane in lanes if (program := world.best.get((lane.key, place.target, place.device)))
    ]
    at = {"night": night, "environment": environment, **where, "created": ended}
    seconds = iter(draw.gamma(1.0, 0.01, len(standing) * len(LOOKS) * LOOK_ROUNDS))
    store.append("checks", [
        {"workload": lane.key, "program": program, "role": role, "look": 1, "round": turn,
         "seconds": lane.seconds * (1 + next(seconds)), "peak_gflops": 95.0, **at}
        for lane, program in standing for turn in range(LOOK_ROUNDS) for role in LOOKS
    ])  # fmt: skip
    shifted = [one for one in standing if draw.random() < SHIFTED]
    store.append("shifts", [
        {"workload": lane.key, "program": program, "ratio": 1.1, "confidence": 0.9999, "changed": "compiler",
         "before_seconds": lane.seconds, "seconds": 1.1 * lane.seconds, "rounds": LOOK_ROUNDS,
         "before_environment": environment, **at}
        for lane, program in shifted
    ])  # fmt: skip
    promoted = [bool(draw.random() < PROMOTED) for _ in standing]
    decided = {key: value for key, value in at.items() if key != "environment"}
    store.append("promotions", [
        {"workload": lane.key, "program": program, "rival": None, "promoted": new, "ratio": 0.95, "confidence": 0.999,
         "reason": "faster, side by side" if new else "the challenger is not faster", **decided}
        for (lane, program), new in zip(standing, promoted, strict=True)
    ])  # fmt: skip
    store.append("nights", [{
        "key": night, "registration": registration(model, place.threads), "model": f"model{model}", "run": place.run,
        **where, "environment": environment, "started": place.started, "finished": ended, "trials": RUN_ROWS,
        "watched": len(standing), "slower": len(shifted), "faster": 0, "promoted": sum(promoted), "latency_seconds": 0.01,
        "model_seconds": 0.0105, "library": "onnxruntime 1.32.0", "library_seconds": 0.012, "created": ended,
    }])  # fmt: skip


def _lane(world: World, place: Place, lane: Drawn, count: int, start: datetime) -> tuple[pa.Table, ...]:
    """Programs, measurements, rounds and sources of one workload in one run: search, then the finalists."""
    draw = world.draw
    finals = int(count * CONFIRMED)
    search = count - finals
    keys = world.hexes(search, 32)
    batch = np.arange(search) // BATCH
    true = lane.seconds * np.exp(draw.gamma(2.0, 0.35 / np.sqrt(1 + batch), search))
    fate = draw.choice(len(ERRORS) + 1, count, p=(*ERROR_SHARES, 1 - sum(ERROR_SHARES)))
    fate[search:] = len(ERRORS)
    order = [i for i in np.argsort(true) if fate[i] == len(ERRORS)][: max(finals - 1, 1)]
    again = [int(order[i % len(order)]) for i in range(finals)]
    final_keys = [keys[i] for i in again]
    where = (lane.key, place.target, place.device)
    if finals and where in world.best:
        final_keys[-1] = world.best[where]
    world.best[where] = keys[int(order[0])]
    turn = np.concatenate([batch, np.full(finals, int(batch[-1]) + 1)])
    stamp = np.datetime64(start.replace(tzinfo=None), "us") + turn * np.timedelta64(20, "s") + np.arange(count)
    created = pa.array(stamp).cast(pa.timestamp("us", tz="UTC"))
    seconds = np.concatenate([true, true[again]])
    timed = fate == len(ERRORS)
    measured = _measurements(draw, place, lane.key, keys + final_keys, turn, seconds, timed, fate, search, created)
    proposed = _programs(draw, place, lane, keys, batch, true, created[:search])
    won = proposed.slice(int(order[0]), 1)
    sources = pa.table({
        "program": won["key"], "target": [place.target], "language": ["c"], "entry": ["kernel"],
        "text": [f"void kernel(float *a) {{ /* {keys[0]} */ }}\n" * 60], "sketch": won["sketch"], "choices": won["choices"],
        "created": created[-1:],
    })  # fmt: skip
    return proposed, measured, _rounds(draw, place, lane, batch, timed, true, created[:search]), sources


def _samples(draw: np.random.Generator, seconds: np.ndarray, timed: np.ndarray, sizes: Sequence[int]) -> pa.Array:
    """Noisy times of each program, some microseconds of a clock's rounding error among the bits: as they are."""
    counts = np.where(timed, draw.choice(sizes, len(seconds)), 0)
    ends = np.concatenate([[0], np.cumsum(counts)])
    values = np.repeat(seconds, counts) * (1 + draw.gamma(1.0, 0.02, int(ends[-1])))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values))


def _measurements(
    draw: np.random.Generator, place: Place, workload: str, keys: list[str], turn: np.ndarray, seconds: np.ndarray,
    timed: np.ndarray, fate: np.ndarray, search: int, created: pa.Array,
) -> pa.Table:  # fmt: skip
    count = len(keys)
    confirmed = np.arange(count) >= search
    best = seconds * (1 + draw.gamma(1.0, 0.01, count))
    kind = pa.array([*ERRORS, None], pa.string()).take(pa.array(fate))
    message = pa.array([*(f"{e} in stage 3" for e in ERRORS), None], pa.string()).take(pa.array(fate))
    per_batch = draw.uniform(0.9, 1.1, int(turn[-1]) + 1)[turn]

    def same(value: Any) -> pa.Array:
        return pa.array([value] * count)

    return pa.table({
        "program": keys, "workload": same(workload), "run": same(place.run), "round": pa.array(turn, pa.int32()),
        "target": same(place.target), "threads": pa.array([place.threads] * count, pa.int32()),
        "compiler": same(place.compiler), "flags": same(FLAGS),
        "seconds_warm": _samples(draw, seconds, timed, SAMPLES_WARM),
        "seconds_cold": _samples(draw, seconds * 1.2, timed, SAMPLES_COLD),
        "best_seconds": pa.array(best, mask=~timed), "score": pa.array(best * per_batch, mask=~timed | confirmed),
        "verified": pa.array(timed), "max_error": pa.array(np.full(count, 3.4e-5), mask=~timed),
        "error_bound": pa.array(np.full(count, 7.8e-4), mask=~timed), "error_kind": kind, "error_message": message,
        "peak_gflops": pa.array(95 * per_batch, mask=confirmed), "build_seconds": pa.array(0.09 * per_batch),
        "measure_seconds": pa.array(draw.gamma(4.0, 0.015, count)), "confirmed": pa.array(confirmed),
        "device": same(place.device), "created": created,
    })  # fmt: skip


def _programs(
    draw: np.random.Generator, place: Place, lane: Drawn, keys: list[str], batch: np.ndarray, true: np.ndarray,
    created: pa.Array,
) -> pa.Table:  # fmt: skip
    count = len(keys)
    sketch = draw.integers(0, len(lane.sketches), count)
    holes = np.array(lane.holes)[sketch]
    ends = np.concatenate([[0], np.cumsum(holes)])
    choices = np.minimum(draw.geometric(0.2, int(ends[-1])) - 1, 19)
    made = np.where(batch == 0, 0, draw.integers(0, len(MUTATIONS), count))
    counts = np.where(made < 2, 0, 1 + (made % 3 == 0))
    of = (draw.random(int(counts.sum())) * np.repeat(batch * BATCH, counts)).astype(int)  # made before this batch
    parents = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32()), pa.array(keys).take(pa.array(of))
    )
    return pa.table({
        "key": keys, "workload": pa.array([lane.key] * count), "sketch": pa.array(lane.sketches).take(pa.array(sketch)),
        "choices": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(choices, pa.int32())),
        "run": pa.array([place.run] * count), "round": pa.array(batch, pa.int32()), "parents": parents,
        "mutation": pa.array(MUTATIONS, pa.string()).take(pa.array(made)),
        "prediction": pa.array(np.float64(np.float32(lane.seconds / true))), "seed": pa.array([7] * count),
        "target": pa.array([place.target] * count), "created": created,
    })  # fmt: skip


def _rounds(
    draw: np.random.Generator, place: Place, lane: Drawn, batch: np.ndarray, timed: np.ndarray, true: np.ndarray,
    created: pa.Array,
) -> pa.Table:  # fmt: skip
    count = int(batch[-1]) + 1
    sizes = np.bincount(batch)
    failed = np.bincount(batch, weights=~timed[: len(batch)]).astype(int)
    first = np.searchsorted(batch, np.arange(count))
    best = np.minimum.accumulate(np.minimum.reduceat(true, first))
    seconds = {f"{k}_seconds": draw.gamma(9.0, 0.1, count) for k in ("search", "train", "build", "measure")}
    return pa.table({
        "run": [place.run] * count, "round": pa.array(range(count), pa.int32()), "workload": [lane.key] * count,
        "proposed": pa.array(sizes, pa.int32()), "measured": pa.array(sizes, pa.int32()),
        "failed": pa.array(failed, pa.int32()), **seconds, "model_rank_correlation": draw.uniform(0.3, 0.9, count),
        "model_recall": draw.uniform(0.2, 0.8, count), "best_seconds": best, "incumbent_seconds": best * 1.01,
        "created": created.take(pa.array(first)),
    })  # fmt: skip


# ---------------------------------------------------------------------------------------------- what is asked


def params(connection: Connection) -> dict[str, dict[str, Any]]:
    """Question -> parameters that are about something: the last run, and the place it measured most."""

    def first(sql: str) -> tuple[Any, ...]:
        return (connection.duckdb.sql(sql).fetchall() or [(None,)])[0]

    run, workload, target, device, program = first(
        "WITH stands AS (SELECT workload, target, device, arg_max(program, created) AS program FROM promotions GROUP BY ALL) "
        "SELECT m.run, m.workload, m.target, m.device, coalesce(any_value(s.program), min(m.program)) "
        "FROM measurements m LEFT JOIN stands s USING (workload, target, device) "
        "WHERE m.run = (SELECT max_by(key, started) FROM runs) GROUP BY ALL ORDER BY count(*) DESC, workload LIMIT 1"
    )
    (model,) = first("SELECT max_by(model, started) FROM runs")
    (night,) = first("SELECT max_by(registration, finished) FROM nights")
    place = {"run": run, "workload": workload, "target": target, "device": device, "model": model}
    known = {**place, "program": program, "key": program[:8], "k": 10, "registration": night}
    return {name: {param: known.get(param) for param in params_of(name)} for name in names()}


def wide(name: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same question about everything that it can be about: NULL wherever that is allowed; None: there is no such."""
    optional = [key for key, param in params_of(name).items() if param.optional and key != "device"]
    return {**given, **dict.fromkeys(optional)} if optional and name not in WHOLE else None


WHOLE = ("training_set", "top_k")  # their whole answer is millions of rows, or needs a workload


def timed(connection: Connection, name: str, given: Mapping[str, Any]) -> tuple[float, int]:
    """Least wall seconds of some askings, and the number of rows."""
    seconds, rows = [], 0
    for _ in range(ASKS):
        start = time.perf_counter()
        rows = connection.run(name, **given).num_rows
        seconds.append(time.perf_counter() - start)
    return min(seconds), rows


def report(store: Store) -> dict[str, Any]:
    """Bytes a measurement, seconds a question. Costs as long as the questions take."""
    size = sum(path.stat().st_size for table in TABLES for path in store.parts(table).files)
    with connect(store) as connection:
        (count,) = connection.duckdb.sql("SELECT count(*) FROM measurements").fetchall()[0]
        asked = {}
        for name, given in params(connection).items():
            for label, chosen in ((name, given), (f"{name} (all)", wide(name, given))):
                if chosen is not None:
                    asked[label] = timed(connection, name, chosen)
                    print(f"{label:<26}{asked[label][0]:8.3f} s {asked[label][1]:>9} rows", flush=True)
    return {"rows": count, "bytes": size, "questions": asked}


def main() -> int:
    """Exit status 1: a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m data.scale", description="The scale bar of the store.")
    parser.add_argument("--rows", type=int, default=10_000_000, metavar="N", help="measurements to draw")
    parser.add_argument("--store", required=True, metavar="DIR", help="a new folder, or a store to be asked as it is")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of what is drawn")
    chosen = parser.parse_args()
    new = not Path(chosen.store).exists()
    store = Store.open(chosen.store)
    start = time.perf_counter()
    if new:
        fill(store, chosen.rows, chosen.seed)
    drawn = time.perf_counter()
    merged = [store.compact(table) for table in TABLES]
    compacted = time.perf_counter()
    print("\n".join(one.text for one in merged))
    found = report(store)
    bytes_a_row = found["bytes"] / max(found["rows"], 1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    slowest, (seconds, _) = max(found["questions"].items(), key=lambda item: item[1][0])
    print(
        f"{found['rows']} measurements: drawn in {drawn - start:.0f} s, compacted in {compacted - drawn:.0f} s\n"
        f"{bytes_a_row:.1f} bytes a measurement, all tables together (bar: {BYTES_A_ROW:.0f})\n"
        f"{memory / 2**20:.0f} MiB of memory at most (bar: {MEMORY_BYTES >> 20})\n"
        f"slowest question: {slowest}, {seconds:.3f} s (bar: {QUESTION_SECONDS:g})"
    )
    return int(bytes_a_row > BYTES_A_ROW or memory > MEMORY_BYTES or seconds > QUESTION_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
