"""Stores and rows for the tests of the room `data`. Rows are whole: a test names only what it is about."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from data.store import Store

ROOT = Path(__file__).parents[2]
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
TARGET = "cpu-x86_64-v64-t1"

DEFAULTS: dict[str, dict[str, Any]] = {
    "workloads": {
        "key": "w", "name": "matmul_8x8x8", "dag_text": "C[i, j] += A[i, k] * B[k, j]", "flops": 1024.0, "bytes": 768.0,
        "space_size": 1e4, "inputs": "A f32[8,8], B f32[8,8]", "outputs": "C f32[8,8]", "model": "m", "weight": 1,
        "origin": ["node"],
    },
    "sketches": {"key": "s", "workload": "w", "text": "tile C SSRSRS", "rules": ["tile"], "holes": "[]"},
    "programs": {
        "key": "p", "workload": "w", "sketch": "s", "choices": [1, 2, 3], "run": "r", "round": 0, "parents": [],
        "mutation": None, "prediction": 0.5, "seed": 7, "target": TARGET,
    },
    "measurements": {
        "program": "p", "workload": "w", "run": "r", "round": 0, "target": TARGET, "threads": 1, "compiler": "cc 1",
        "flags": "-O3", "seconds_warm": [2e-3, 1e-3], "seconds_cold": [3e-3], "best_seconds": 1e-3, "score": None,
        "verified": True, "max_error": 1e-7, "error_bound": 1e-5, "error_kind": None, "error_message": None,
        "peak_gflops": 100.0, "build_seconds": 0.1, "measure_seconds": 0.05, "confirmed": False, "far_bytes": 0, "device": "d",
    },
    "rounds": {
        "run": "r", "round": 0, "workload": "w", "proposed": 4, "measured": 4, "failed": 1, "search_seconds": 0.1,
        "train_seconds": 0.2, "build_seconds": 0.3, "measure_seconds": 0.4, "model_rank_correlation": None,
        "model_recall": None, "best_seconds": 1e-3, "incumbent_seconds": None,
    },
    "runs": {
        "key": "r", "model": "m", "target": TARGET, "threads": 1, "seed": 7, "trials": 64, "budget_seconds": None,
        "started": NOON, "finished": None, "state": "running", "latency_before": None, "latency_after": None,
        "version": "0.1", "settings": "{}", "environment": None,
    },
    "devices": {
        "key": "d", "isa": ["avx2", "fma"], "vector_bytes": 32, "cores": 2, "peak_gflops": 90.0,
        "memory": [{"level": "L1", "bytes": 32768, "gb_per_second": 200.0}], "compiler": "cc 1", "measured": NOON,
    },
    "sources": {"program": "p", "target": TARGET, "language": "c", "entry": "kernel", "text": "void kernel(void) {}",
                "sketch": None, "choices": None},
    "environments": {
        "key": "e", "compiler": "cc 1", "flags": "-O3", "code": "0.1 abc", "kernel": "Linux 6", "microcode": "0x1",
        "libraries": "libc 2", "probe": "abc",
    },
    "registrations": {
        "key": "m t1", "model": "m", "label": "m", "threads": 1, "batch": 1, "seq": None, "dims": None, "trials": 64,
        "budget_seconds": None, "active": True,
    },
    "checks": {
        "night": "n", "workload": "w", "program": "p", "role": "kept", "look": 1, "round": 0, "seconds": 1e-3,
        "peak_gflops": 100.0, "target": TARGET, "device": "d", "environment": "e",
    },
    "shifts": {
        "night": "n", "workload": "w", "program": "p", "target": TARGET, "device": "d", "ratio": 1.1, "confidence": 0.999,
        "changed": "compiler", "before_seconds": 1e-3, "seconds": 1.1e-3, "rounds": 15, "before_environment": "e",
        "environment": "f",
    },
    "promotions": {
        "night": "n", "workload": "w", "program": "p", "rival": None, "promoted": True, "ratio": None, "confidence": None,
        "reason": "the first that stands", "target": TARGET, "device": "d",
    },
    "nights": {
        "key": "n", "registration": "m t1", "model": "m", "run": None, "target": TARGET, "device": "d", "environment": "e",
        "started": NOON, "finished": NOON + timedelta(minutes=10), "trials": 64, "watched": 2, "slower": 0, "faster": 0,
        "promoted": 0, "latency_seconds": 2e-3, "model_seconds": None, "library": None, "library_seconds": None,
    },
    "imports": {
        "key": "k", "tool": "ansor", "version": "v0.6", "file": "x.log", "line": 3, "task": "t", "arguments": "[1]",
        "target": "llvm", "configuration": "{}", "seconds": [2e-3, 1e-3], "best_seconds": 1e-3, "error_kind": None,
        "recorded": None, "workload": None, "flops": None, "unmapped": "no definition of t",
    },
}  # fmt: skip

Rows = Callable[..., dict[str, Any]]


def row(table: str, minute: float = 0, **values: Any) -> dict[str, Any]:
    """A row of a table, written `minute` minutes after noon."""
    return {"created": NOON + timedelta(minutes=minute), **DEFAULTS[table], **values}


@pytest.fixture
def make_row() -> Rows:
    return row


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def whole_store(store: Store) -> Store:
    """Two workloads, two runs, two targets; failures of every kind; see `test_data_answers.py` for what it holds."""
    fill(store)
    return store


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a Python process in the checkout; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, args)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def failing() -> Callable[..., Any]:
    """A context in which the n-th call of a function raises, and the others work."""
    return _failing


@contextmanager
def _failing(owner: Any, name: str, error: BaseException, after: int = 0) -> Iterator[list[int]]:
    """`owner.name` works `after` times, then raises. Yields the number of calls, as a list of one."""
    real, calls = getattr(owner, name), [0]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise error
        return real(*args, **kwargs)

    setattr(owner, name, wrapper)
    try:
        yield calls
    finally:
        setattr(owner, name, real)


def fill(store: Store) -> None:
    store.append("workloads", [row("workloads", key="w"), row("workloads", key="v", name="relu_64", weight=3)])
    store.append("workloads", [row("workloads", 1, key="w", weight=2)])  # seen again by a second run
    store.append("sketches", [
        row("sketches", key="s1", rules=["tile", "tile", "unroll"], text="sketch one"),
        row("sketches", key="s2", rules=["inline"], text="sketch two"),
        row("sketches", key="s3", workload="v", rules=["skip"], text="sketch three"),
    ])  # fmt: skip
    store.append("programs", [
        row("programs", key="slow", sketch="s1", choices=[0, 0]),
        row("programs", key="wrong", sketch="s1", choices=[0, 1]),
        row("programs", key="broken", sketch="s2", choices=[5]),
        row("programs", key="fast", sketch="s1", choices=[1, 1], mutation="tile-size unroll", parents=["slow"], round=1),
        row("programs", key="lucky", sketch="s2", choices=[6], mutation="crossover", parents=["slow", "fast"], round=1),
        row("programs", key="unverified", sketch="s2", choices=[7], round=1),
        row("programs", key="racy", sketch="s2", choices=[8], round=1),
        row("programs", key="relu", workload="v", sketch="s3", choices=[0]),
        row("programs", 31, key="slow", sketch="s1", choices=[0, 0], run="r2", target="cpu-x86_64-v64-t2"),
    ])  # fmt: skip
    failed = {"best_seconds": None, "verified": False, "seconds_warm": [], "seconds_cold": []}
    crash = {**failed, "error_kind": "crash", "error_message": "signal 11"}
    wrong = {**failed, "error_kind": "wrong", "error_message": "off by 3"}
    store.append("measurements", [
        row("measurements", 1, program="slow", best_seconds=4e-3),
        row("measurements", 2, program="wrong", **wrong),
        row("measurements", 3, program="broken", **crash),
        row("measurements", 3, program="relu", workload="v", best_seconds=5e-4),
    ])  # fmt: skip
    store.append("measurements", [
        row("measurements", 11, program="fast", round=1, best_seconds=2e-3, score=2.2e-3),
        row("measurements", 12, program="lucky", round=1, best_seconds=1e-3, score=2e-3),
        row("measurements", 13, program="unverified", round=1, best_seconds=1e-6, verified=False),
        row("measurements", 14, program="racy", round=1, best_seconds=1e-5),
        row("measurements", 15, program="racy", round=1, **wrong),
    ])  # fmt: skip
    store.append("measurements", [  # the finalists' round, twice for one of them
        row("measurements", 21, program="fast", round=2, best_seconds=2.0e-3, confirmed=True),
        row("measurements", 22, program="fast", round=2, best_seconds=2.2e-3, confirmed=True),
    ])  # fmt: skip
    store.append("measurements", [  # another thread count, another machine: never mixed in
        row("measurements", 31, program="slow", run="r2", target="cpu-x86_64-v64-t2", threads=2, best_seconds=1e-5),
        row("measurements", 32, program="slow", run="r2", device="e", best_seconds=3e-5),
    ])  # fmt: skip
    store.append("rounds", [
        row("rounds", round=0),
        row("rounds", 10, round=1, measured=5, failed=2, model_rank_correlation=0.7, model_recall=0.5),
        row("rounds", 10, round=0, workload="v", proposed=1, measured=1, failed=0, measure_seconds=9.4),
    ])  # fmt: skip
    store.append("runs", [row("runs")])
    store.append("runs", [row("runs", 30, state="finished", finished=NOON + timedelta(minutes=30),
                              latency_before=8e-3, latency_after=4e-3)])  # fmt: skip
    store.append("runs", [row("runs", 31, key="r2", started=NOON + timedelta(minutes=31))])
    store.append("sources", [row("sources", program="fast", text="void fast(void) {}", entry="fast")])
    store.append("devices", [row("devices")])


@pytest.fixture(scope="session")
def fill_store() -> Callable[[Store], None]:
    return fill
