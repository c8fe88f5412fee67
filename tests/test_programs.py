"""The property above all: every program of every sketch computes its DAG.

Random programs of every sketch over a zoo of odd DAGs are built and compared with the oracle, which never saw a
schedule. The seed is fresh and printed; `--programs N` asks for more, `--seed S` repeats a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from codegen.c import PRELUDE
from codegen.machine import harness, probe, target
from codegen.oracle import Oracle
from codegen.runner import Runner, Settings
from codegen.toolchain import Binary, Parts, build, find_compiler
from ir.compute import Dag
from ir.schedule import Population
from ir.target import Target
from search.evolve import sample
from search.sketch import sketches
from search.validity import statements, tilings
from tasks.build import build_batch
from tasks.workbench import Workbench
from tests.zoo_dags import ZOO

QUICK = Settings(budget_seconds=0.0, cold_samples=0, most_samples=1)
MOST = 150  # unrolled statements of one program here: the test is about meaning, not about the compiler's patience


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    folder = tmp_path_factory.mktemp("bench")
    compiler = find_compiler(os.environ)
    machine = probe(compiler, folder / "probe")
    made = target(machine, request.param)
    with Runner(made, harness(compiler, made, folder / "harness"), QUICK) as runner:
        yield Workbench(
            compiler, machine, made, folder, Oracle(compiler, made, folder / "oracle"), runner, Parts(folder)
        )


@pytest.mark.compiler
@pytest.mark.parametrize("name", ZOO)
def test_every_program_computes_its_dag(name: str, bench: Workbench, fresh_seed: int, programs_each: int) -> None:
    dag, rng = ZOO[name], np.random.default_rng(fresh_seed)
    drawn = [p.program(r) for p in populations(dag, bench.target, rng, programs_each) for r in range(len(p))]
    keyed = [(f"{name}-{n}", program) for n, program in enumerate(drawn)]
    built = build_batch(bench, keyed)
    assert [b for b in built if not isinstance(b, Binary)] == []
    batch = bench.runner.measure([b for b in built if isinstance(b, Binary)], bench.oracle.case(dag, fresh_seed))
    wrong = [(t.failure, p.values) for t, (_, p) in zip(batch.timings, keyed, strict=True) if not t.verified]
    assert wrong == [], f"seed {fresh_seed}"


def populations(dag: Dag, target: Target, rng: np.random.Generator, each: int) -> list[Population]:
    """Random rows of every sketch, whether a search would propose them or not, as long as they compile quickly."""
    out = []
    for sketch in sketches(dag, target):
        drawn = sample(sketch, 64 * each, rng)
        size = sum((statements(t) for t in tilings(drawn).values()), start=np.zeros(len(drawn)))
        out.append(drawn.take(np.flatnonzero(size <= MOST)[:each]))
    return out


def test_the_oracle_catches_a_wrong_program(bench: Workbench) -> None:
    """The negative control: a program that adds where it should subtract nothing must be refused."""
    dag = ZOO["matmul"]
    [good] = build_batch(bench, [("good", populations(dag, bench.target, np.random.default_rng(0), 1)[0].program(0))])
    assert isinstance(good, Binary)
    source = good.kernel.source.replace(good.kernel.entry, "k_broken").replace(" * t", " * 1.01f * t")
    assert source.count("1.01f") > 0
    broken = replace(good.kernel, key="broken", entry="k_broken", source=source)
    [bad] = build([broken], bench.compiler, bench.target, bench.directory / "bad", prelude=PRELUDE)
    assert isinstance(bad, Binary)
    [timing] = bench.runner.measure([bad], bench.oracle.case(dag, 1)).timings
    assert timing.failure is not None and timing.failure.kind == "wrong"
