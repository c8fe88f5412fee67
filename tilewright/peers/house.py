"""Our own contenders: the module, the peak of the cores, and the definitions of the operators."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import numpy as np

from ir.evaluate import run_graph
from tilewright.peers.contender import Case, Given, Ready


def ours(case: Case, given: Given) -> Ready:
    from tilewright import compile

    module = compile(case.loaded(), case.store, case.threads)
    call = module.bound(given)
    return Ready(call, call, tuple(choice.origin for choice in module.report))


def peak(case: Case, given: Given) -> Ready:
    """Nothing but multiply-adds; the floating operations of a call are the array that it returns."""
    from codegen.machine import harness, target
    from codegen.toolchain import find_compiler
    from tasks.workbench import machine_at

    work, compiler = work_of(case.store), find_compiler(os.environ)
    t = target(machine_at(compiler, work), case.threads)
    library = ctypes.CDLL(str(harness(compiler, t, work / "harness").path))
    out = np.zeros(case.threads * t.vector_bytes // 4 + 16, np.float32)
    arguments = (ctypes.c_void_p * 1)(out.ctypes.data)
    flops = np.array([ctypes.c_double.in_dll(library, "tilewright_peak_flops").value])

    def run() -> list[np.ndarray]:
        library.tilewright_peak(arguments, None)
        return [flops]

    return Ready(run, run)


def work_of(store: str) -> Path:
    """Where artefacts that may be deleted lie, beside the store."""
    return Path(store).absolute().parent / "work"


def defined(case: Case, given: Given) -> Ready:
    return _by_definition(case, given, None)


def exact(case: Case, given: Given) -> Ready:
    """In double precision: who is right where others differ."""
    return _by_definition(case, given, "float64")


def _by_definition(case: Case, given: Given, dtype: str | None) -> Ready:
    graph = case.graph()

    def run() -> list[np.ndarray]:
        return run_graph(graph, given, dtype)

    return Ready(run, run)
