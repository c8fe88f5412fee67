"""History against strategies. The history is made here: real workloads and spaces, a formula for a machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.kernel import Kernel
from codegen.runner import NullRunner
from codegen.toolchain import unbuilt
from data.store import Store
from ir.key import dag_text
from ir.target import Target
from ir.timing import Failure, Timing
from ir.workload import Workload
from search.evolve import Evolution, Space
from search.features import NAMES
from search.heuristic import heuristic
from search.strategy import POLICIES, Mode, strategies
from search.tuner import Proposal, Result, Settings, Tuner, gathered
from tasks.model import load
from tasks.replay import History, ReplayError, matching, read, replay, target_of
from tasks.space import SCHEMA, space_of
from tests.data.conftest import row

TARGET = Target(features=("avx2", "fma"), vector_bytes=32, vector_registers=16, l2_bytes=524288)
MEMORY = [
    {"level": level, "bytes": size, "gb_per_second": rate}
    for level, size, rate in (
        ("l1", TARGET.l1_bytes, 190.0),
        ("l2", TARGET.l2_bytes, 98.0),
        ("l3", TARGET.l3_bytes, 60.0),
        ("dram", None, 14.0),
    )
]
MODELS = {"product": ("GMM.0.b1",), "pair": ("GMM.0.b1", "GMM.1.b1")}
FLOOR_SECONDS = 1e-5
QUICK = Evolution(size=512)


@cache
def workload(name: str) -> tuple[Workload, Space]:
    (found,) = load(name).workloads
    return found, space_of(found, TARGET)


def formula(space: Space, proposals: Sequence[Proposal]) -> dict[str, float | Failure]:
    """What a machine might take: issue slots, traffic, waste, a register tile of 64 at best, and 3 % of noise; one
    program in twenty crashes."""
    out: dict[str, float | Failure] = {}
    for name, population in zip(space.keys, gathered(space, proposals), strict=True):
        columns = dict(zip(NAMES, space.features(population, TARGET).T.astype(float), strict=True))
        cost = columns["issue.cycles"] + 0.3 * columns["traffic.l1"] + 0.5 * columns["tile.lane_waste"]
        seconds = FLOOR_SECONDS * 2 ** (4 * cost + 0.8 * np.abs(columns["tile.size"] - 6))
        for p, t in zip((p for p in proposals if p.sketch_key == name), seconds.tolist(), strict=True):
            noise, crashes = int(p.key[:6], 16) / 0xFFFFFF, int(p.key[6:10], 16) % 20 == 0
            out[p.key] = Failure("crash", "SIGSEGV") if crashes else t * (1 + 0.03 * noise)
    return out


def measured(space: Space, proposals: Sequence[Proposal]) -> list[Timing]:
    times = formula(space, proposals)
    return (
        NullRunner(lambda kernel: times[kernel.key])
        .measure([unbuilt(Kernel(p.key, "f", "", ())) for p in proposals])
        .timings
    )


@cache
def told(name: str, programs: int) -> list[tuple[Proposal, Timing]]:
    """A short search of a workload, as it would have been recorded."""
    _, space = workload(name)
    tuner, out = Tuner(space, SCHEMA, Settings(), 11, heuristic=heuristic), []
    while len(out) < programs:
        asked = tuner.ask(min(32, programs - len(out)))
        timings = measured(space, asked)
        tuner.tell([Result(p, t.best) for p, t in zip(asked, timings, strict=True)])
        out += list(zip(asked, timings, strict=True))
    return out


def rows_of(name: str, programs: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Programs and measurements."""
    w, _ = workload(name)
    proposed = [
        row(
            "programs", n / 60, key=p.key, workload=w.key, sketch=p.sketch_key, choices=list(p.choices), round=p.round,
            mutation=None if p.origin == "random" else p.origin, target=TARGET.key,
        )
        for n, (p, _) in enumerate(told(name, programs))
    ]  # fmt: skip
    timed = [
        row(
            "measurements", n / 60, program=p.key, workload=w.key, round=p.round, target=TARGET.key, verified=t.verified,
            best_seconds=t.best, error_kind=t.failure.kind if t.failure else None,
        )
        for n, (p, t) in enumerate(told(name, programs))
    ]  # fmt: skip
    return proposed, timed


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two models that share a workload, 96 and 64 programs."""
    made = Store.open(tmp_path_factory.mktemp("replay") / "store")
    made.append("devices", [row("devices", memory=MEMORY)])
    for model, names in MODELS.items():
        for n, name in enumerate(names):
            w, _ = workload(name)
            made.append("workloads", [
                row("workloads", n, key=w.key, name=w.name, dag_text=dag_text(w.dag), model=model, weight=3 - n,
                    flops=w.dag.flops, bytes=w.dag.bytes),
            ])  # fmt: skip
    for name, programs in {"GMM.0.b1": 96, "GMM.1.b1": 64}.items():
        proposed, timed = rows_of(name, programs)
        made.append("programs", proposed)
        made.append("measurements", timed)
    return made


@pytest.fixture(scope="module")
def product(store: Store) -> History:
    return read(store, "product")


@pytest.fixture(scope="module")
def pair(store: Store) -> History:
    return read(store, "pair")


def played(history: History, names: str, trials: int, seeds: int = 3, mode: Mode = "surrogate") -> dict[str, Any]:
    """With small generations."""
    quick = [replace(s, settings=replace(s.settings, evolution=QUICK)) for s in strategies(names.split(","))]
    return replay(history, quick, trials, seeds, mode)


def figures(found: dict[str, Any]) -> dict[str, Any]:
    """Strategy -> its row, without what a clock said."""
    return {s["name"]: {k: v for k, v in s.items() if k != "search_seconds"} for s in found["strategies"]}


# ---------------------------------------------------------------------------------------------- reading


def test_history_is_read_as_it_was_told(product: History) -> None:
    (case,) = product.cases
    w, space = workload("GMM.0.b1")
    assert case.workload == Workload(w.key, w.name, case.workload.dag, 1) and case.space.keys == space.keys
    assert case.rows + sum(t.best is None for _, t in told("GMM.0.b1", 96)) == len(case.told) == 96
    assert [p.key for p in case.told.proposals] == [p.key for p, _ in told("GMM.0.b1", 96)]
    wanted = [np.nan if t.best is None else t.best for _, t in told("GMM.0.b1", 96)]
    np.testing.assert_array_equal(case.told.seconds, wanted)
    assert sum(p.origin == "random" for p in case.told.proposals) > 10
    assert case.roofline_seconds == pytest.approx(max(w.dag.flops / 90e9, w.dag.bytes / 98e9))
    assert product.target == TARGET and product.device == "d" and sum(map(len, product.elsewhere)) == 64


def test_names_keys_and_models_are_found(store: Store, pair: History) -> None:
    assert [c.workload.weight for c in pair.cases] == [3, 2] and not pair.elsewhere
    rows = [
        {"model": model, "name": c.workload.name, "key": c.workload.key}
        for model, cases in (("product", pair.cases[:1]), ("pair", pair.cases))
        for c in cases
    ]
    one, other = (c.workload for c in pair.cases)
    assert [r["key"] for r in matching(rows, "pair")[1]] == [r["key"] for r in matching(rows, "a/pair.onnx")[1]]
    assert [r["key"] for r in matching(rows, "pair")[1]] == [one.key, other.key]
    for name in (other.key, other.key[:6], other.name):
        assert matching(rows, name) == (other.name, rows[2:])
    assert matching(rows, None) == (one.name, rows[:1])


def test_what_is_not_there_is_said_with_the_way_out(tmp_path: Path) -> None:
    twins = [{"model": "m", "name": "relu", "key": k} for k in ("aaaa1", "aaaa2")]
    with pytest.raises(ReplayError, match="'nope'; there are the models m and the workloads relu, which"):
        matching(twins, "nope")
    for shared in ("aaaa", "relu"):
        with pytest.raises(ReplayError, match=f"2 workloads are called '{shared}'; write more of a key: aaaa1, aaaa2"):
            matching(twins, shared)
    with pytest.raises(ReplayError, match="tilewright tune MODEL"):
        read(Store.open(tmp_path / "empty"), None)


def test_a_target_is_read_from_its_text() -> None:
    plain = {"memory": None, "isa": None}
    assert target_of({"target": "cpu-x86_64-v64-t2", **plain}) == Target(threads=2)
    assert target_of({"target": "cpu-aarch64-v16-t1", **plain}).vector_registers == 32
    with pytest.raises(ReplayError, match="no target"):
        target_of({"target": "abacus", **plain})


def test_forgotten_sketches_are_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.space.sketch_key", lambda workload, sketch: f"new-{len(str(sketch))}")
    with pytest.raises(ReplayError, match="no longer make any"):
        read(store, "product")


# ---------------------------------------------------------------------------------------------- playing


@pytest.mark.parametrize(
    ("mode", "trials"), [pytest.param("surrogate", 192, marks=pytest.mark.slow), pytest.param("pool", 80)]
)
def test_search_is_not_worse_than_random(product: History, mode: Mode, trials: int) -> None:
    """The guard of search quality: what a change of the search breaks, this shows without a machine."""
    found = figures(played(product, "evolution,random", trials, 5, mode))
    searched, drawn = found["evolution"], found["random"]
    assert searched["trials_to"]["0.9"] is not None
    blind = POLICIES[mode].warm  # trials of the first batch, before anything is learnt
    assert searched["trials_to"]["0.9"] <= max(drawn["trials_to"]["0.9"] or trials, blind)
    last = str(trials)
    assert searched["after"][last]["median"] >= drawn["after"][last]["median"]
    assert searched["batch_median"] > (1.2 * drawn["batch_median"] if mode == "surrogate" else 0)


def test_the_same_words_give_the_same_figures(product: History) -> None:
    first, second = (played(product, "evolution,no-model,random", 48, 2) for _ in range(2))
    assert figures(first) == figures(second)
    json.dumps(first, allow_nan=False)


def test_one_workload_has_no_use_for_a_budget_rule(product: History) -> None:
    found = played(product, "no-budget-rule,evolution", 40, 1)
    assert [s["same_as"] for s in found["strategies"]] == [None, "no-budget-rule"]
    first, second = figures(found).values()
    assert first["after"] == second["after"] and list(first["after"]) == ["16", "32", "40"]
    assert first["trials"] == 40 and first["rounds"] == 1 and first["batch_median"] is None


def test_a_pool_ends(product: History) -> None:
    found = played(product, "evolution,no-crossover,random", 1000, 2, "pool")
    rows = figures(found)
    assert {r["trials"] for r in rows.values()} == {96} and rows["no-crossover"]["same_as"] == "evolution"
    assert all(r["after"]["1000"]["median"] == 1 and r["trials_to"]["0.99"] <= 96 for r in rows.values())
    assert found["best_seconds"] == min(t.best for _, t in told("GMM.0.b1", 96) if t.best is not None)
    assert rows["evolution"]["rounds"] == 6 and rows["evolution"]["batch_median"] is not None


@pytest.mark.slow
def test_a_models_latency_is_the_weighted_sum(pair: History) -> None:
    found = played(pair, "evolution,no-budget-rule", 128, 2)
    rows = figures(found)
    assert rows["no-budget-rule"]["same_as"] is None
    assert rows["evolution"]["after"]["16"]["median"] is None  # the second workload has no time yet
    for r in rows.values():
        assert r["trials"] == 128 and r["rounds"] >= 4
        at = [v for v in r["latency_seconds"].values() if v is not None]
        assert at == sorted(at, reverse=True)
    best = sum(w["weight"] * w["best_seconds"] for w in found["workloads"])
    assert best <= found["best_seconds"] <= min(r["latency_seconds"]["128"] for r in rows.values())
    assert all(w["surrogate"]["rank"] > 0.5 and w["surrogate"]["error"] < 0.3 for w in found["workloads"])


def test_too_few_programs_make_no_surrogate(tmp_path: Path) -> None:
    made = Store.open(tmp_path / "store")
    w, _ = workload("GMM.0.b1")
    made.append("workloads", [row("workloads", key=w.key, name=w.name, dag_text=dag_text(w.dag))])
    proposed, timed = rows_of("GMM.0.b1", 96)
    made.append("programs", proposed[:5])
    made.append("measurements", timed[:5])
    history = read(made, None)  # no device is described, either
    with pytest.raises(ReplayError, match=r"timed programs; .*--mode pool"):
        played(history, "evolution", 8)
    assert figures(played(history, "evolution", 8, mode="pool"))["evolution"]["trials"] == 5
