"""The best known program of every workload, as one module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.bundle.network import Choice, Origin
from codegen.bundle.partition import network
from codegen.module import Module, compile_network
from codegen.toolchain import Compiler
from ir.schedule import Program
from ir.target import Target
from ir.workload import Workload
from search.evolve import Space, sample_valid
from tasks.build import kernel_of
from tasks.model import Model
from tasks.prior import prior
from tasks.space import space_of

Best = Mapping[str, Mapping[str, Any]]  # workload key -> row of the question `best_program`

GUESSES = 512  # random valid programs a sketch among which the default is chosen


@dataclass(frozen=True, slots=True)
class Pick:
    """The program chosen for a workload, and why."""

    program: Program
    key: str
    origin: Origin
    detail: str


def pick(workload: Workload, target: Target, best: Best) -> Pick:
    """The recorded best, if its sketch still exists; else a guess."""
    space = space_of(workload, target)
    row = best.get(workload.key)
    if row is not None and row["sketch"] in space.keys:
        sketch = space.sketches[space.keys.index(row["sketch"])]
        return Pick(Program(sketch, tuple(row["choices"])), row["program"], "tuned", f"{row['seconds'] * 1e6:.1f} us")
    return Pick(guess(space), f"default-{workload.key}", "default", "never measured here")


def guess(space: Space, seed: int = 0) -> Program:
    """What to use when nothing was measured: the prior's favourite among random valid programs."""
    rng, score = np.random.default_rng(seed), prior(space.target)
    found: list[tuple[float, Program]] = []
    for sketch in space.sketches:
        population = sample_valid(space, sketch, GUESSES, rng).population
        if len(population):
            scores = score(space.features(population, space.target))
            row = int(np.argmax(scores))
            found.append((float(scores[row]), population.program(row)))
    if not found:
        return Program(space.sketches[0], (0,) * len(space.sketches[0].holes))
    return max(found, key=lambda f: f[0])[1]


def _choices(model: Model, picks: Mapping[str, Pick]) -> tuple[Choice, ...]:
    return tuple(Choice(w.key, w.name, picks[w.key].origin, w.weight, picks[w.key].detail) for w in model.workloads)


def assemble(model: Model, target: Target, compiler: Compiler, best: Best) -> Module:
    """One library for the whole network. Untuned workloads run a guess, and `module.report` says so."""
    picks = {w.key: pick(w, target, best) for w in model.workloads}
    kernels = {key: kernel_of(p.program, p.key) for key, p in picks.items()}
    return compile_network(network(model.partition, kernels, _choices(model, picks)), compiler, target)
