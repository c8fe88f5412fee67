"""Recorded history against strategies: the same rounds as a tuning, with no compiler and no machine.

read -> cases -> play (ask, answer, tell) -> compare
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from codegen.machine import registers
from data.query import Connection, ask, connect
from data.store import Store
from ir.key import parse_dag
from ir.target import Target
from ir.workload import Workload
from search.budget import Grant, Policy, Progress
from search.cost_model import Rows
from search.evolve import Space
from search.strategy import (
    POLICIES,
    Answer,
    Held,
    Mode,
    Strategy,
    TooFewRows,
    best_after,
    effective,
    exactly,
    fit_surrogate,
    milestones,
    pool,
    recorded_seconds,
    results,
    smoothly,
    trials_to,
)
from search.tuner import Known, Proposal, Result, Tuner, known, lessons
from tasks.lessons import MOST_WORKLOADS, joined, learnt
from tasks.model import ALIASES
from tasks.space import SCHEMA, least_flops, space_of
from tasks.workbench import roofline_seconds

Row = Mapping[str, Any]
Document = dict[str, Any]  # JSON-able
Said = Callable[[str], None]

SHARES = (0.90, 0.95, 0.99)  # of the best, that a strategy takes so many trials to reach
KEY = re.compile(r"[0-9a-f]{4,}")
TARGET = re.compile(r"(?P<kind>\w+)-(?P<arch>\w+)-v(?P<vector_bytes>\d+)-t(?P<threads>\d+)")  # of `Target.key`

MEASURED = """
SELECT w.model, w.key, any_value(w.name) AS name, max(w.weight)::INTEGER AS weight, any_value(w.dag_text) AS dag_text,
       any_value(w.flops) AS flops, any_value(w.bytes) AS bytes, r.target, r.device, r.programs,
       any_value(d.isa) AS isa, any_value(d.peak_gflops) AS peak_gflops, any_value(d.memory) AS memory
FROM workloads w
JOIN (SELECT workload, target, device, count(*) AS programs FROM results WHERE trusted GROUP BY ALL) r
  ON r.workload = w.key
LEFT JOIN unique_devices d ON d.key = r.device
GROUP BY w.model, w.key, r.target, r.device, r.programs
ORDER BY r.programs DESC, w.key, w.model, r.target, r.device
"""
ROWS = 1_000_000  # of that answer
LISTED = 5  # names in a message


class ReplayError(ValueError):
    """There is nothing to replay, or not what was asked for: one line with the way out."""


# ---------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Case:
    """A recorded workload. rows: in the store; those of sketches that the rules no longer make are not in `told`."""

    workload: Workload
    space: Space
    told: Known
    rows: int
    roofline_seconds: float


@dataclass(frozen=True)
class History:
    """What is replayed, a model or one workload, and what the store's other workloads teach. One target, one device."""

    name: str
    target: Target
    device: str
    cases: tuple[Case, ...]
    elsewhere: tuple[Rows, ...]


def read(store: Store, wanted: str | None) -> History:
    """The history of a model, or of a workload by its key, the beginning of one or its name; without a wish, of the
    workload with most programs. Where there are several targets or devices, of that with most. Raises ReplayError."""
    rows = ask(store, MEASURED, ROWS).to_pylist()
    if not rows:
        raise ReplayError(f"no measured program in {store.root}; tilewright tune MODEL measures some")
    name, chosen = matching(rows, wanted)
    first = chosen[0]
    here = [r for r in rows if (r["target"], r["device"]) == (first["target"], first["device"])]
    target = target_of(first)
    with connect(store) as source:
        mine = [r for r in chosen if r in here]
        cases = tuple(_case(source, {**r, "weight": r["weight"] if len(mine) > 1 else 1}, target) for r in mine)
        others = list({r["key"]: r for r in here if r["key"] not in {m["key"] for m in mine}}.values())
        return History(name, target, first["device"], cases, tuple(_lessons(source, others[:MOST_WORKLOADS], target)))


def matching(rows: Sequence[Row], wanted: str | None) -> tuple[str, list[Row]]:
    """What a name means, and its rows, those with most programs first. Raises ReplayError."""
    if wanted is None:
        return str(rows[0]["name"]), [r for r in rows if r["key"] == rows[0]["key"]][:1]
    model = PurePath(wanted).stem if wanted.endswith(".onnx") else ALIASES.get(wanted, wanted)
    of_model = [r for r in rows if r["model"] == model]
    if of_model:
        return model, of_model
    called = [r for r in rows if r["name"] == wanted or (KEY.fullmatch(wanted) and r["key"].startswith(wanted))]
    keys = list(dict.fromkeys(r["key"] for r in called))
    if len(keys) > 1:
        raise ReplayError(f"{len(keys)} workloads are called {wanted!r}; write more of a key: {some(keys)}")
    if not keys:
        models, workloads = (list(dict.fromkeys(r[k] for r in rows)) for k in ("model", "name"))
        raise ReplayError(
            f"nothing measured is called {wanted!r}; there are the models {some(models)} and the workloads "
            f"{some(workloads)}, which their keys name too"
        )
    return str(called[0]["name"]), called[:1]


def some(names: Sequence[str]) -> str:
    """The first few, for a message."""
    return ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")


def target_of(row: Row) -> Target:
    """The target that records were made for; sizes that the store does not know are those of `Target`. Raises
    ReplayError."""
    found = TARGET.fullmatch(row["target"])
    if found is None:
        raise ReplayError(f"{row['target']!r} is no target that this version knows")
    width, plain = int(found["vector_bytes"]), Target()
    sizes = {m["level"].lower(): m["bytes"] for m in row["memory"] or ()}
    return Target(
        found["kind"], found["arch"], tuple(row["isa"] or ()), int(found["threads"]), width,
        registers(found["arch"], width),
        *(sizes.get(level) or getattr(plain, f"{level}_bytes") for level in ("l1", "l2", "l3")),
    )  # fmt: skip


def _case(source: Connection, row: Row, target: Target) -> Case:
    told = source.run("told", workload=row["key"], target=row["target"], device=row["device"]).to_pylist()
    workload = Workload(row["key"], row["name"], parse_dag(row["dag_text"]), row["weight"])
    space = space_of(workload, target)
    columns = known(space, [_result(r) for r in told])
    if not np.isfinite(columns.seconds).any():
        raise ReplayError(f"{row['name']}: the sketch rules no longer make any of its {row['programs']} programs")
    return Case(workload, space, columns, row["programs"], _roofline_seconds(row, least_flops(space), target.threads))


def _result(row: Row) -> Result:
    """Of the questions `told` and `training_set`. Of where a program came from, only whether it was drawn."""
    drawn = "mutation" in row and row["mutation"] is None
    choices, round_ = tuple(row["choices"]), row["round"]
    return Result(
        Proposal(row["program"], row["sketch"], choices, round_, "random" if drawn else "evolved"), row["seconds"]
    )


def _lessons(source: Connection, others: Sequence[Row], target: Target) -> Iterator[Rows]:
    """What other workloads teach, the most measured ones."""
    if not others:
        return
    answer = source.run("training_set", workload=None, target=others[0]["target"], device=others[0]["device"])
    taught: dict[str, list[Result]] = {}
    for row in answer.to_pylist():
        taught.setdefault(row["workload"], []).append(_result(row))
    for other in others:
        workload = Workload(other["key"], other["name"], parse_dag(other["dag_text"]))
        yield learnt(workload.key, space_of(workload, target), taught.get(workload.key, []))


def _roofline_seconds(row: Row, flops: float, threads: int) -> float:
    """From the store's description of the machine; 0 where there is none."""
    levels = {m["level"].lower(): m for m in row["memory"] or ()}
    if not row["peak_gflops"] or "dram" not in levels:
        return 0.0
    sizes = {name: m["bytes"] or 0 for name, m in levels.items()}
    bandwidth = {name: m["gb_per_second"] for name, m in levels.items()}
    return roofline_seconds(flops, row["bytes"], row["peak_gflops"], sizes, bandwidth, threads)


# ---------------------------------------------------------------------------------------------- playing


@dataclass(frozen=True)
class Stage:
    """A case made ready to be played: the space that strategies search, and what answers there."""

    case: Case
    space: Space
    answer: Answer
    held: Held | None  # of the surrogate


def staged(case: Case, mode: Mode) -> Stage:
    """Raises ReplayError when there is too little to fit a surrogate to."""
    recorded = recorded_seconds(case.told)
    if mode == "pool":
        return Stage(case, pool(case.space, case.told), exactly(recorded), None)
    random = np.array([p.origin == "random" for p in case.told.proposals], dtype=bool)
    features = lessons(case.space, SCHEMA, case.told).features
    try:
        surrogate = fit_surrogate(features, case.told.seconds, random)
    except TooFewRows as few:
        raise ReplayError(f"{case.workload.name}: {few}; replay it with --mode pool, or measure more") from few
    return Stage(case, case.space, smoothly(case.space, surrogate, recorded), surrogate.held)


@dataclass
class Player:
    """One workload in one play."""

    stage: Stage
    tuner: Tuner
    best: float = float("inf")
    taught: Rows | None = None
    over: bool = False  # no program is left, or none can be found

    @property
    def weighted(self) -> float:
        """Seconds; infinite while there is no time."""
        return self.stage.case.workload.weight * self.best


@dataclass
class Play:
    """One strategy with one seed.

    latency: after each trial, the weighted sum of the best seconds; NaN while a workload has none. best: workload ->
    seconds. middles: (workload, median seconds of a batch), the first batch of a workload left out. search_seconds:
    of this process's processor time, to train and to propose.
    """

    latency: list[float] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)
    middles: list[tuple[str, float]] = field(default_factory=list)
    search_seconds: float = 0.0
    rounds: int = 0


def play(
    stages: Sequence[Stage], elsewhere: Sequence[Rows], strategy: Strategy, policy: Policy, trials: int, seed: int
) -> Play:
    """Rounds until the trials are used up or nothing is left to try. The default program, which a tuning measures
    first, gets no place: it would hide what a strategy finds."""
    out, players = Play(), {s.case.workload.key: _player(s, strategy, seed) for s in stages}
    while grant := _granted(players, strategy, policy, trials - len(out.latency)):
        player = players[grant.key]
        start = process_time()
        if strategy.lessons:
            beside = [p.taught for p in players.values() if p is not player and p.taught is not None]
            player.tuner.hear(joined([*beside, *elsewhere]))
        asked = player.tuner.ask(grant.trials)
        out.search_seconds += process_time() - start
        player.over = not asked
        if asked:
            _told(out, players, player, asked, strategy.lessons and len(players) > 1)
    out.best = {k: p.best for k, p in players.items()}
    return out


def _player(stage: Stage, strategy: Strategy, seed: int) -> Player:
    return Player(stage, Tuner(stage.space, SCHEMA, strategy.settings, seed, heuristic=strategy.heuristic))


def _granted(players: Mapping[str, Player], strategy: Strategy, policy: Policy, left: int) -> Grant | None:
    return strategy.deal([_progress(p) for p in players.values() if not p.over], left, policy)


def _progress(player: Player) -> Progress:
    """As `Lane.progress`."""
    case = player.stage.case
    w = case.workload
    return player.tuner.progress(w.key, w.weight, case.roofline_seconds, w.dag.flops, w.name.split("_")[0])


def _told(out: Play, players: Mapping[str, Player], player: Player, asked: Sequence[Proposal], teach: bool) -> None:
    """The answers reach the tuner, the books, and the other workloads."""
    first = not player.tuner.state.history
    seconds = player.stage.answer(asked)
    player.tuner.tell(results(asked, seconds))
    for s in seconds:
        player.best = min(player.best, float("inf") if s is None else s)
        total = sum(p.weighted for p in players.values())
        out.latency.append(total if np.isfinite(total) else float("nan"))
    timed = [s for s in seconds if s is not None]
    if timed and not first:
        out.middles.append((player.stage.case.workload.key, median(timed)))
    if teach:
        key, state = player.stage.case.workload.key, player.tuner.state
        player.taught = learnt(key, player.stage.space, state.history)
    out.rounds += 1


# ---------------------------------------------------------------------------------------------- comparing


def replay(
    history: History, wanted: Sequence[Strategy], trials: int, seeds: int, mode: Mode, said: Said = lambda text: None
) -> Document:
    """Every strategy with every seed, 0 and up. The same for the same store and the same words, but for
    `search_seconds`. Raises ReplayError."""
    stages = [staged(case, mode) for case in history.cases]
    cores = {s: effective(s, mode, len(stages)) for s in wanted}
    names = {core: s.name for s, core in reversed(cores.items())}  # the first of those that are the same here
    plays: dict[Strategy, list[Play]] = {core: [] for core in cores.values()}
    for core in plays:
        for seed in range(seeds):
            said(f"{history.name}: {names[core]}, seed {seed + 1} of {seeds}")
            plays[core].append(play(stages, history.elsewhere, core, POLICIES[mode], trials, seed))
    lowest, best = _best(stages, [p for found in plays.values() for p in found], mode)
    same = {s: names[core] if names[core] != s.name else None for s, core in cores.items()}
    rows = [_row(s, same[s], plays[core], lowest, best, trials) for s, core in cores.items()]
    return {
        "name": history.name, "mode": mode, "target": history.target.key, "device": history.device, "trials": trials,
        "seeds": seeds, "best_seconds": lowest, "shares": list(SHARES), "lessons": sum(map(len, history.elsewhere)),
        "workloads": [_workload(s, best[s.case.workload.key]) for s in stages], "strategies": rows,
    }  # fmt: skip


def _best(stages: Sequence[Stage], plays: Sequence[Play], mode: Mode) -> tuple[float | None, dict[str, float]]:
    """The best of all, seconds of the whole and of each workload: that of the pool; with a surrogate nobody knows, so
    it is what any play found. None: no play has a time for everything."""
    if mode == "pool":
        best = {s.case.workload.key: float(np.nanmin(s.case.told.seconds)) for s in stages}
        return sum(s.case.workload.weight * best[s.case.workload.key] for s in stages), best
    ends = [p.latency[-1] for p in plays if p.latency and np.isfinite(p.latency[-1])]
    return min(ends, default=None), {k: min(p.best[k] for p in plays) for k in plays[0].best}


def _workload(stage: Stage, best: float) -> Document:
    """`recorded_seconds` is the fastest of the rows, `best_seconds` what any play found."""
    case, held = stage.case, stage.held
    return {
        "key": case.workload.key, "name": case.workload.name, "weight": case.workload.weight, "rows": case.rows,
        "used": len(case.told), "recorded_seconds": float(np.nanmin(case.told.seconds)),
        "best_seconds": best if np.isfinite(best) else None,
        "surrogate": {"rows": held.rows, "rank": held.rank, "error": held.error} if held else None,
    }  # fmt: skip


def _row(
    strategy: Strategy, same: str | None, plays: Sequence[Play], lowest: float | None, best: Mapping[str, float],
    trials: int,
) -> Document:  # fmt: skip
    """Figures over the seeds. Speeds are relative to the best of all: 1 is as fast."""
    curves = [np.array(p.latency) for p in plays]
    at = milestones(trials)
    speeds = {n: [lowest / best_after(c, n) if lowest else float("nan") for c in curves] for n in at}
    middles = [median(best[k] / s for k, s in p.middles) for p in plays if p.middles]
    return {
        "name": strategy.name, "says": strategy.says, "same_as": same,
        "after": {str(n): _spread(v) for n, v in speeds.items()},
        "latency_seconds": {str(n): _middle([best_after(c, n) for c in curves]) for n in at},
        "trials_to": {str(s): _middle([trials_to(c, lowest / s if lowest else 0.0) for c in curves]) for s in SHARES},
        "batch_median": _middle(middles), "rounds": _middle([p.rounds for p in plays]),
        "trials": _middle([len(p.latency) for p in plays]),
        "search_seconds": median(p.search_seconds for p in plays),
    }  # fmt: skip


def _spread(values: Sequence[float]) -> Document:
    """Not a number (no time yet) counts as the slowest of all."""
    counted = [v if np.isfinite(v) else 0.0 for v in values]
    return {"median": _middle(values), "low": min(counted), "high": max(counted)}


def _middle(values: Sequence[float]) -> float | None:
    """The median; None when it is no finite number, or there are none. Not a number sorts last, as if infinite."""
    if not values:
        return None
    found = median(float("inf") if np.isnan(v) else float(v) for v in values)
    return found if np.isfinite(found) else None
