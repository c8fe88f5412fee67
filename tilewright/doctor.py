"""What was found on this machine, what is missing, and how to get it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from codegen.toolchain import Binary, Compiler, ToolchainError, find_compiler
from data.store import Store, StoreError
from ir.key import key
from ir.workload import Workload
from ir.zoo import operator_dag
from tasks.build import build_batch
from tasks.deploy import guess
from tasks.space import space_of
from tasks.workbench import Workbench, workbench

State = Literal["ok", "missing", "broken", "note"]
LOW_DISK = 2 << 30  # bytes; a long tuning's objects and records take a few hundred MB
BUSY = 0.5  # of a core by others: figures scatter
OPTIONAL = {
    "prefect":     "flows and schedules; pip install prefect, or use --plain",
    "onnxruntime": "a peer for bench and run --check; pip install onnxruntime",
    "openvino":    "a peer for bench; pip install openvino",
    "torch":       "a peer for bench; pip install torch, from its CPU index",
    "matplotlib":  "charts of bench; pip install 'tilewright[report]'",
    "onnx":        "reading ONNX files; pip install onnx",
    "optuna":      "searching architectures; pip install 'tilewright[nas]'",
    "plotly":      "HTML reports; pip install 'tilewright[report]'",
    "distributed": "measuring on other boards; pip install 'tilewright[farm]'",
    "cupy":        "CUDA; pip install 'tilewright[cuda]'",
}  # fmt: skip
PROJECTS = {"cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked for, how it is, and what was found or how to get it."""

    what: str
    state: State
    said: str


def findings(store: Path, threads: int) -> Iterator[Finding]:
    """One after the other, so that they can be shown as they come; the slow ones take seconds."""
    yield Finding("system", "ok", f"{platform.system()} {platform.machine()}, Python {platform.python_version()}")
    yield _store(store)
    yield _disk(store)
    yield _load()
    try:
        compiler = find_compiler(os.environ)
    except ToolchainError as error:
        yield Finding("compiler", "broken", str(error))
    else:
        yield from _hardware(compiler, store, threads)
    for name, about in OPTIONAL.items():
        found = _version(name)
        yield Finding(name, "ok" if found else "missing", found or about)


def _hardware(compiler: Compiler, store: Path, threads: int) -> Iterator[Finding]:
    openmp = "with OpenMP" if compiler.openmp else "without OpenMP: one thread only"
    yield Finding("compiler", "ok" if compiler.openmp else "note", f"{compiler.version}, {openmp}")
    try:
        bench = workbench(store.parent / "work", threads, os.environ)
    except (ToolchainError, OSError) as error:
        yield Finding("machine", "broken", str(error))
        return
    with bench.runner:
        m = bench.machine
        yield Finding("processor", "ok", f"{m.model}, {m.cores} cores, vectors of {8 * m.vector_bytes} bits")
        caches = ", ".join(f"L{n} {size >> 10} KiB" for n, size in ((1, m.l1_bytes), (2, m.l2_bytes), (3, m.l3_bytes)))
        rates = ", ".join(f"{level} {rate:.0f}" for level, rate in m.bandwidth.items())
        yield Finding("caches", "ok", caches)
        yield Finding("bandwidth", "ok", f"{rates} GB/s, one core")
        yield Finding("peak", "ok", f"{m.peak_gflops:.1f} GFLOP/s of float32, one core")
        yield _program(bench)


def _program(bench: Workbench) -> Finding:
    """One program from its definition to a verified time."""
    what, dag = "one program", operator_dag("GMM.0.b1")
    space = space_of(Workload(key(dag), "matmul", dag), bench.target)
    (built,) = build_batch(bench, [("doctor", guess(space))])
    if not isinstance(built, Binary):
        return Finding(what, "broken", built.message)
    (timing,) = bench.runner.measure([built], bench.oracle.case(dag, 0)).timings
    built.path.unlink(missing_ok=True)
    if timing.best is None:
        return Finding(what, "broken", timing.failure.message if timing.failure else "not verified")
    return Finding(what, "ok", f"built, verified, {dag.flops / timing.best / 1e9:.1f} GFLOP/s (128 x 128 x 128)")


def _store(store: Path) -> Finding:
    try:
        Store.open(store)
    except StoreError as error:
        return Finding("store", "broken", str(error))
    return Finding("store", "ok", f"{store} is writable")


def _disk(store: Path) -> Finding:
    place = next(p for p in (store, *store.parents) if p.exists())
    free = shutil.disk_usage(place).free
    return Finding("disk", "ok" if free > LOW_DISK else "note", f"{free / (1 << 30):.1f} GiB free")


def _load() -> Finding:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = load > BUSY * cores
    advice = "; others are busy here, and times will scatter" if busy else ""
    return Finding("load", "note" if busy else "ok", f"{load:.1f} on {cores} usable cores{advice}")


def _version(name: str) -> str | None:
    for project in PROJECTS.get(name, (name,)):
        try:
            return version(project)
        except PackageNotFoundError:
            continue
    return None
