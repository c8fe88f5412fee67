"""Nights of a small model. Everything is real, gcc and the store too, but for the clock: times come from a formula with the
noise of real machines, so that twenty nights pass in seconds and one kernel is slower by ten per cent and no more."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from typing import Any

import pytest

from codegen.environment import Environment, environment
from codegen.oracle import Case
from codegen.runner import Batch
from codegen.toolchain import Binary
from data.query import run as question
from data.store import Store
from ir.fuse import workloads
from ir.key import dag_text
from ir.passes import optimise
from ir.timing import Failure, Timing
from ir.zoo.builder import Builder
from search.heuristic import heuristic
from search.tuner import Proposal, Settings, Tuner
from tasks import nightly, record
from tasks.model import Model
from tasks.night import Document, Night, calm_bench
from tasks.promotion import LIBRARY
from tasks.registry import Registration
from tasks.space import SCHEMA, sketch_text, space_of
from tasks.workbench import Workbench
from tests.data.conftest import NOON, row

pytestmark = pytest.mark.compiler
SIZES = (16, 24, 40)
Seconds = Callable[[Binary], float | Failure]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    with calm_bench(tmp_path_factory.mktemp("nights") / "work", 1, os.environ) as made:
        yield made


@pytest.fixture(scope="module")
def model() -> Model:
    """Three products, so three workloads."""
    b = Builder("small")
    x = b.input("x", (8, 8))
    for size in SIZES:
        x = b.node("relu", b.node("matmul", x, b.weight((b.shape(x)[1], size), size)))
    graph = b.graph(x)
    return Model("small", graph, workloads(optimise(graph)))


@dataclass
class Clock:
    """A runner whose times are a formula: drift of the clock, common to all, jitter, bursts of other load, and what a
    program has by chance in one process."""

    seconds: Seconds
    harness: Binary
    rng: random.Random
    drift: float
    burst: int = 0
    chance: dict[Path, float] = field(default_factory=dict)

    def renew(self) -> None:
        self.chance.clear()

    def measure(
        self, binaries: Sequence[Binary], case: Case, incumbent: Binary | None = None, far_bytes: int = 0
    ) -> Batch:
        now = self.drift + self.rng.gauss(0, 0.02)
        self.burst = self.rng.randint(1, 3) if self.rng.random() < 0.05 else max(self.burst - 1, 0)
        load = self.rng.uniform(1.1, 2.0) if self.burst else 1.0
        return Batch(
            [self.timing(b, load * exp(-now)) for b in binaries], 100 * exp(now) / (load if load > 1.4 else 1.0)
        )

    def timing(self, b: Binary, factor: float) -> Timing:
        seconds = self.seconds(b)
        if isinstance(seconds, Failure):
            return Timing(b.key, failure=seconds)
        chance = self.chance.setdefault(b.path, exp(self.rng.gauss(0, 0.01)))
        return Timing(b.key, (seconds * factor * chance * (1 + abs(self.rng.gauss(0, 0.05))),), verified=True)


@dataclass
class Nights:
    """A store of its own and the nights that it has seen."""

    store: Store
    model: Model
    bench: Workbench
    programs: dict[str, list[Proposal]]
    rng: random.Random = field(default_factory=lambda: random.Random(11))

    def night(self, seconds: Seconds, compiler: str = "", answer: Any = None, **columns: str) -> Document:
        """From look to close. compiler: another version of it; columns: of the environment, as it is found."""
        found = self.bench.compiler
        here = replace(self.bench, directory=self.store.root.parent / "work",
                       compiler=replace(found, version=compiler or found.version))  # fmt: skip
        drift, harness = self.rng.gauss(0, 0.05), self.bench.runner.harness

        @contextmanager
        def opened(*_: object) -> Iterator[Workbench]:
            yield replace(here, runner=Clock(seconds, harness, self.rng, drift))  # type: ignore[arg-type]

        def surroundings(*given: Any) -> Environment:
            return replace(environment(*given), **columns)

        started = Night(
            self.store, Registration("small", "small"), self.model, "test", bench=opened, surroundings=surroundings,
            compare=lambda words, environ: answer,
        )  # fmt: skip
        return nightly.close(nightly.weigh(nightly.settle(nightly.look(started))))

    def found(self, workload: int, program: int, minute: float, seconds: float = 1e-6) -> None:
        """A tuning has confirmed this program as the fastest of a workload."""
        w = self.model.workloads[workload]
        self.store.append("measurements", [
            row("measurements", minute, workload=w.key, program=self.programs[w.key][program].key, run=f"tuned {minute}",
                target=self.bench.target.key, device=self.bench.machine.key, best_seconds=seconds, confirmed=True),
        ])  # fmt: skip

    def best(self) -> dict[str, str]:
        return {key: r["program"] for key, r in record.confirmed(self.store, self.bench).items()}

    def key(self, workload: int, program: int = 0) -> str:
        return self.programs[self.model.workloads[workload].key][program].key

    def rows(self, table: str, order: str = "created") -> list[dict[str, Any]]:
        from data.query import ask

        return list(ask(self.store, f"SELECT * FROM {table} ORDER BY {order}", 100_000).to_pylist())


@pytest.fixture
def nights(tmp_path: Path, model: Model, bench: Workbench) -> Nights:
    """Each workload has two programs; the first is confirmed."""
    store, programs = Store.open(tmp_path / "store"), {}
    (tmp_path / "work").mkdir()
    for w in model.workloads:
        space = space_of(w, bench.target)
        programs[w.key] = Tuner(space, SCHEMA, Settings(), 3, heuristic=heuristic).ask(2)
        store.append("workloads", [row("workloads", key=w.key, name=w.name, dag_text=dag_text(w.dag), model="small")])
        store.append("sketches", [
            row("sketches", key=key, workload=w.key, text=sketch_text(s))
            for key, s in zip(space.keys, space.sketches, strict=True)
        ])  # fmt: skip
        store.append("programs", [
            row("programs", key=p.key, workload=w.key, sketch=p.sketch_key, choices=list(p.choices), target=bench.target.key)
            for p in programs[w.key]
        ])  # fmt: skip
    made = Nights(store, model, bench, programs)
    for n in range(len(model.workloads)):
        made.found(n, 0, minute=n)
    return made


def steady(b: Binary) -> float:
    """Each program has a time of its own."""
    return 1e-5 * (1 + int(b.key[:4], 16) / 0xFFFF)


def slow(key: str, factor: float = 1.10, of: Callable[[Binary], bool] = lambda b: True) -> Seconds:
    return lambda b: steady(b) * (factor if b.key == key and of(b) else 1.0)


def built_today(b: Binary) -> bool:
    return "kept" not in b.path.parts


def only(document: Document) -> dict[str, Any]:
    (change,) = document["changes"]
    assert isinstance(change, dict)
    return change


# ---------------------------------------------------------------------------------------------- changes


def test_twenty_nights_without_a_change_raise_no_alarm(nights: Nights) -> None:
    """Jitter of five per cent, bursts, a clock that drifts by five per cent between nights, the same for all."""
    documents = [nights.night(steady) for _ in range(20)]
    assert [d["changes"] for d in documents] == [[]] * 20
    assert documents[-1]["watched"] == 3 and documents[-1]["latency_seconds"] > 0
    assert nights.rows("shifts") == [] and len(nights.rows("nights")) == 20
    assert sum(d["suspects"] for d in documents) > 0, "there was noise that looked like a change"
    raw = question(nights.store, "regressions", target=nights.bench.target.key, workload=None, ratio=1.05)
    assert raw.num_rows > 0, "medians of nights alone would have raised some"


@pytest.mark.parametrize(
    ("columns", "changed"),
    [
        ({}, ["time"]),
        ({"kernel": "Linux 7.1"}, ["kernel"]),
        ({"microcode": "0x2b", "libraries": "libc 2.99"}, ["microcode", "libraries"]),
    ],
)
def test_ten_per_cent_in_one_kernel_are_reported_with_their_cause(
    nights: Nights, columns: dict[str, str], changed: list[str]
) -> None:
    for _ in range(3):
        assert not nights.night(steady)["changes"]
    if changed == ["time"]:
        assert not nights.night(slow(nights.key(1)))["changes"], "by time alone it must last"
    c = only(nights.night(slow(nights.key(1)), **columns))
    w = nights.model.workloads[1]
    assert (c["workload"], c["name"], c["program"]) == (w.key, w.name, nights.key(1))
    assert list(c["changed"]) == changed and list(c["causes"]) == [n for n in changed if n != "time"]
    assert 1.05 < c["ratio"] < 1.15 and c["confidence"] > 0.99
    (shift,) = nights.rows("shifts")
    assert (shift["workload"], shift["changed"], shift["ratio"]) == (w.key, ", ".join(changed), c["ratio"])


def test_an_evening_is_no_change(nights: Nights) -> None:
    """What a neighbour does to one program for a night, up or down, and every second night."""
    for _ in range(3):
        nights.night(steady)
    for factor in (1.4, 1.0, 0.7, 1.0, 1.7):
        assert not nights.night(slow(nights.key(1), factor))["changes"]
        assert not nights.night(steady)["changes"]


def test_a_change_is_reported_once_and_is_then_normal(nights: Nights) -> None:
    for _ in range(2):
        nights.night(steady)
    assert [nights.night(slow(nights.key(1)))["slower"] for _ in range(2)] == [0, 1]
    assert [nights.night(slow(nights.key(1)))["changes"] for _ in range(4)] == [[]] * 4
    assert not nights.night(steady)["changes"]
    better = only(nights.night(steady))
    assert better["ratio"] < 1 and list(better["changed"]) == ["time"]


def test_a_compiler_that_makes_one_kernel_slower_is_named(nights: Nights) -> None:
    """The binary of yesterday lies beside the new one: whatever the machine does, it does to both."""
    nights.night(steady)
    document = nights.night(slow(nights.key(2), of=built_today), compiler="gcc 13.1")
    c = only(document)
    assert c["workload"] == nights.model.workloads[2].key and list(c["changed"]) == ["compiler"]
    assert c["causes"] == {"compiler": [nights.bench.compiler.version, "gcc 13.1"]}
    assert 1.07 < c["ratio"] < 1.13 and document["slower"] == 1
    roles = {(r["role"], r["look"]) for r in nights.rows("checks") if r["night"] == document["night"]}
    assert {("kept", 1), ("built", 1), ("kept", 2), ("built", 2)} <= roles
    assert not nights.night(slow(nights.key(2), of=lambda b: True), compiler="gcc 13.1")["changes"], "kept from now on"
    raw = question(nights.store, "regressions", target=nights.bench.target.key, workload=c["workload"], ratio=1.05)
    assert "compiler" in [r["changed"] for r in raw.to_pylist() if not r["before_run"].startswith("tuned")]


def test_a_new_compiler_that_changes_nothing_is_no_cause(nights: Nights) -> None:
    for _ in range(2):
        nights.night(steady)
    assert not nights.night(steady, compiler="gcc 13.1")["changes"]


def test_everything_slower_names_every_program(nights: Nights) -> None:
    for _ in range(3):
        nights.night(steady)
    document = nights.night(lambda b: 1.12 * steady(b), kernel="Linux 7.1")
    assert document["slower"] == 3 and {tuple(c["changed"]) for c in document["changes"]} == {("kernel",)}


def test_a_program_that_became_wrong_never_stands_again(nights: Nights) -> None:
    nights.night(steady)
    nights.found(0, 1, minute=60)
    nights.found(0, 0, minute=61)
    wrong = Failure("wrong", "y[3]: got 1, expected 2")
    document = nights.night(lambda b: wrong if b.key == nights.key(0) else steady(b))
    c = only(document)
    assert c["ratio"] is None and list(c["changed"]) == ["wrong"] and "y[3]" in c["message"] and document["slower"] == 1
    assert nights.best()[nights.model.workloads[0].key] == nights.key(0, 1)
    (d,) = document["decisions"]
    assert (d["program"], d["rival"], d["promoted"]) == (nights.key(0, 1), nights.key(0), True) and "fails" in d[
        "reason"
    ]
    assert nights.night(steady)["decisions"] == []


def test_a_crash_that_does_not_come_again_is_no_change(nights: Nights) -> None:
    nights.night(steady)
    calls = []

    def once(b: Binary) -> float | Failure:
        calls.append(b.key)
        return Failure("crash", "SIGSEGV") if calls.count(b.key) == 1 and b.key == nights.key(0) else steady(b)

    assert not nights.night(once)["changes"] and nights.best()[nights.model.workloads[0].key] == nights.key(0)


# ---------------------------------------------------------------------------------------------- promotions


@pytest.mark.parametrize(("factor", "promoted"), [(1.10, False), (1.02, False), (1.0, False), (0.85, True)])
def test_only_what_is_clearly_faster_is_promoted(nights: Nights, factor: float, promoted: bool) -> None:
    """A finalists' round said that the second program is better; side by side decides."""
    first = nights.night(steady)
    assert [(d["promoted"], d["rival"]) for d in first["decisions"]] == [(True, None)] * 3
    nights.found(1, 1, minute=later())
    old, new = nights.key(1), nights.key(1, 1)
    document = nights.night(lambda b: steady_of(old) * factor if b.key == new else steady(b))
    (d,) = document["decisions"]
    assert (d["program"], d["rival"]) == ((new, old) if promoted else (old, new))
    assert d["promoted"] is promoted and d["ratio"] == pytest.approx(factor, abs=0.05)
    (last,) = [r for r in nights.rows("promotions") if r["night"] == document["night"]]
    assert last["program"] == d["program"] and last["reason"] == d["reason"]


def steady_of(key: str) -> float:
    return 1e-5 * (1 + int(key[:4], 16) / 0xFFFF)


def later() -> float:
    """Now, in minutes after the noon of `row`."""
    return (datetime.now(UTC) - NOON).total_seconds() / 60 + 0.001


def test_a_decision_counts_until_the_next_finalists_round(nights: Nights) -> None:
    old, new, key = nights.key(1), nights.key(1, 1), nights.model.workloads[1].key
    nights.night(steady)
    nights.found(1, 1, minute=later())
    assert nights.best()[key] == new, "a tuning by day counts at once"
    nights.night(lambda b: steady_of(old) * 1.1 if b.key == new else steady(b))
    assert nights.best()[key] == old, "the night has seen that it is slower"
    nights.found(1, 1, minute=later())
    assert nights.best()[key] == new


def test_promoted_programs_go_back_if_the_model_falls_behind_the_library(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import promotion

    monkeypatch.setattr(promotion, "find_spec", lambda name: object())
    monkeypatch.setattr(promotion, "version", lambda name: "9.9")
    key = nights.model.workloads[1].key

    def answer(ours: float) -> dict[str, Any]:
        case = {"verified": True, "unverified_peers": {}, "seconds": ours, "peers": {LIBRARY: 2e-3}}
        return {"cases": [case]}

    first = nights.night(steady, answer=answer(1.00e-3))
    assert (first["library"], first["library_seconds"]) == (f"{LIBRARY} 9.9", 2e-3)
    nights.found(1, 1, minute=later())
    better: Seconds = lambda b: steady_of(nights.key(1)) * 0.8 if b.key == nights.key(1, 1) else steady(b)  # noqa: E731
    document = nights.night(better, answer=answer(1.10e-3))
    assert [d["promoted"] for d in document["decisions"]] == [True, False] and document["promoted"] == 0
    assert "taken back" in document["decisions"][-1]["reason"]
    assert nights.best()[key] == nights.key(1)
    nights.found(1, 1, minute=later())
    assert nights.night(better, answer=answer(1.09e-3))["promoted"] == 1, "beside the last night it is as fast"


def test_the_first_night_of_an_untuned_model_watches_nothing(tmp_path: Path, model: Model, bench: Workbench) -> None:
    (tmp_path / "work").mkdir()
    document = Nights(Store.open(tmp_path / "store"), model, bench, {}).night(steady)
    assert document["watched"] == 0 and document["changes"] == [] and document["latency_seconds"] is None
