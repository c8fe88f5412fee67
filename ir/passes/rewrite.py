"""What the graph passes share: a graph under reconstruction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ir.graph import Attribute, Graph, Node, Value
from ir.operators import infer


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A copy of a graph's values and constants, and the nodes so far. Names already taken stay taken."""

    source: Graph
    nodes: list[Node] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph) -> Rewrite:
        return Rewrite(graph, [], dict(graph.values), dict(graph.constants))

    def graph(self) -> Graph:
        """The outputs keep their names."""
        return replace(self.source, nodes=tuple(self.nodes), values=self.values, constants=self.constants)

    def fresh(self, stem: str) -> str:
        """`stem`, or `stem.1`, `stem.2`, ... whichever is not taken."""
        name, n = stem, 0
        while name in self.values:
            n += 1
            name = f"{stem}.{n}"
        return name

    def constant(self, array: np.ndarray, stem: str) -> str:
        name = self.fresh(stem)
        self.values[name] = Value(name, array.shape, str(array.dtype))
        self.constants[name] = array
        return name

    def add(
        self, operator: str, inputs: tuple[str, ...], attributes: Mapping[str, Attribute], stem: str, output: str = ""
    ) -> str:
        """A new node with one output: called `output` if given, else freshly after `stem`."""
        name = output or self.fresh(stem)
        shape, dtype = infer(operator, [self.values[i] if i else None for i in inputs], attributes)[0]
        self.values[name] = Value(name, shape, dtype)
        self.nodes.append(Node(name, operator, inputs, (name,), attributes))
        return name


def renamed(node: Node, new: Mapping[str, str]) -> Node:
    """The node reading other values."""
    return replace(node, inputs=tuple(new.get(i, i) for i in node.inputs))


def is_channels_last(node: Node) -> bool:
    """Whether a convolution or pool says so; without a layout channels come first."""
    return str(node.attributes.get("layout", "")).endswith("C")
