"""The graph: a network as nodes over named, statically shaped values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

Attribute = int | float | str | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


class ModelError(ValueError):
    """The model cannot be taken: one line with the cause and the way out."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor between nodes; every dimension is known."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class Node:
    """One operator. `operator` names a row of `ir.operators.OPERATORS`; an absent optional input is ""."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order. `constants` holds the values known before run time, by name.

    Every name that occurs has a `Value` in `values`. Passes return a new graph.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, np.ndarray]

    def with_nodes(self, nodes: tuple[Node, ...]) -> Graph:
        return replace(self, nodes=nodes)

    def producer(self) -> dict[str, Node]:
        """The node that makes each value."""
        return {o: n for n in self.nodes for o in n.outputs if o}

    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read each value."""
        out: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                if name:
                    out.setdefault(name, []).append(node)
        return out
