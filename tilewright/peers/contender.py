"""What a contender is given, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ir.graph import Graph
from tasks.model import Model, graph_of, load

Array = np.ndarray
Given = Mapping[str, Array]  # the model's inputs by name
Outputs = Callable[[], Sequence[Array]]


class Unsupported(Exception):
    """This contender cannot run this model; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model as it was asked for: everything that a process must know to load it. threads: of every contender."""

    model: str
    batch: int
    seq: int | None
    dims: Mapping[str, int] | None
    threads: int
    store: str

    def loaded(self) -> Model:
        """Down to the workloads, which takes seconds for a network. Raises ModelError."""
        return load(self.model, self.batch, self.seq, self.dims)

    def graph(self) -> Graph:
        """As it came. Raises ModelError."""
        return graph_of(self.model, self.batch, self.seq, self.dims)


@dataclass(frozen=True, slots=True)
class Ready:
    """A contender that can run, its buffers bound. `run` is what is timed; `outputs` runs and answers, and may copy.

    origins: where each workload's program came from, for ours.
    """

    run: Callable[[], object]
    outputs: Outputs
    origins: tuple[str, ...] = ()


Loader = Callable[[Case, Given], Ready]  # the arrays given must outlive what is ready
