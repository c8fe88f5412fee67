"""Tilewright finds fast implementations of tensor programs by searching.

    import tilewright
    tilewright.tune("model.onnx", trials=512)       # what is learnt goes to the store
    module = tilewright.compile("model.onnx")       # the best known programs, as a function of NumPy arrays
    y = module(x)

Importing this imports nothing heavy: that is done by the first call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codegen.module import Module
    from tasks.model import Model

__version__ = "0.1.0"
__all__ = ["Module", "__version__", "compile", "load", "tune"]

STORE = ".tilewright/store"


def load(source: str, batch: int = 1, seq: int | None = None, dims: Mapping[str, int] | None = None) -> Model:
    """A model down to its workloads: a name such as "resnet50" or "GMM.3.b1", or the path of an ONNX file.

    dims: extents of the file's symbolic dimensions. Raises ir.graph.ModelError: one line, the cause and the way out.
    """
    from tasks.model import load as load_model

    return load_model(source, batch, seq, dims)


def tune(
    model: str,
    trials: int = 1000,
    budget_seconds: float | None = None,
    threads: int = 1,
    store: str = STORE,
    seed: int = 0,
    batch: int = 1,
    seq: int | None = None,
    early_stop: bool = True,
    dims: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Search for fast programs, without Prefect; what is learnt goes to the store. Returns the report (JSON-able).

    Stops when `trials` programs are measured, `budget_seconds` are spent, or (`early_stop`) nothing moves any more. A
    run that was killed goes on where it was.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else XGBoost's threads spin, five times slower on busy cores
    from flows.plain import plain

    return plain(model, trials, budget_seconds, threads, store, seed, batch, seq, early_stop, dims)


def compile(
    model: str | Model,
    store: str = STORE,
    threads: int = 1,
    batch: int = 1,
    seq: int | None = None,
    dims: Mapping[str, int] | None = None,
) -> Module:
    """The best known program of every workload, as one function of NumPy arrays.

    What was never tuned runs a guess; `module.report` says which program came from where.
    """
    from tasks.deploy import assemble
    from tasks.workbench import workbench

    loaded = load(model, batch, seq, dims) if isinstance(model, str) else model
    root = Path(store).absolute()
    bench = workbench(root.parent / "work", threads, os.environ)
    try:
        return assemble(loaded, bench.target, bench.compiler, _best(root, bench))
    finally:
        bench.runner.close()


def _best(root: Path, bench: Any) -> dict[str, dict[str, Any]]:
    """Workload key -> its best recorded program; nothing where there is no store."""
    from data.store import Store
    from tasks.record import confirmed

    return confirmed(Store.open(root), bench) if root.is_dir() else {}


def __getattr__(name: str) -> Any:
    """`tilewright.Module`, imported when it is asked for (PEP 562)."""
    if name != "Module":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from codegen.module import Module

    return Module
