"""The graph under construction: names, shapes, values known before run time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ir.evaluate import run_node
from ir.frontends.onnx.reader import shown, titled
from ir.graph import Attribute, Graph, ModelError, Node, Value
from ir.operators import infer

FOLD_ELEMENTS = 1 << 16  # shape arithmetic and small tables; folding large weights is a graph pass
UNROLLED = 1024  # steps of a loop or recurrence; more would make a graph that nobody can compile
KNOWN_BYTES = 1 << 31  # no constant made up by a node may be larger: a hostile file asks for terabytes


@dataclass(frozen=True, slots=True)
class Call:
    """One ONNX node, its inputs already our names, its attributes plain values."""

    kind: str
    domain: str
    version: int
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object]

    @property
    def title(self) -> str:
        return titled(self.kind, self.name, self.outputs)

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] != ""

    def input(self, position: int) -> str:
        """Our name of an input, "" if it is absent."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def integer(self, name: str, default: int | None = None) -> int:
        found = self.attributes.get(name, default)
        if not isinstance(found, int):
            raise ValueError(f"attribute {name} is {found!r}, not an integer")
        return found

    def ints(self, name: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        found = self.attributes.get(name, default)
        if not isinstance(found, tuple) or not all(isinstance(i, int) for i in found):
            raise ValueError(f"attribute {name} is {found!r}, not integers")
        return found

    def real(self, name: str, default: float | None = None) -> float:
        found = self.attributes.get(name, default)
        if not isinstance(found, int | float):
            raise ValueError(f"attribute {name} is {found!r}, not a number")
        return float(found)

    def text(self, name: str, default: str) -> str:
        found = self.attributes.get(name, default)
        if not isinstance(found, str):
            raise ValueError(f"attribute {name} is {found!r}, not a string")
        return found

    def choice(self, name: str, options: Iterable[str], default: str) -> str:
        found = self.text(name, default)
        if found not in options:
            raise ValueError(f"attribute {name} is {found!r}, not one of {', '.join(options)}")
        return found


@dataclass(slots=True)
class Builder:
    """Emits nodes of our graph. What is computed from known small values is folded at once."""

    values: dict[str, Value] = field(default_factory=dict)
    known: dict[str, np.ndarray] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    node_names: set[str] = field(default_factory=set)
    base: str = "n"  # names of what is emitted start with it
    made: set[str] = field(default_factory=set)  # values emitted for the ONNX node at hand

    # --- questions

    def shape(self, name: str) -> tuple[int, ...]:
        return self._value(name).shape

    def rank(self, name: str) -> int:
        return len(self._value(name).shape)

    def dtype(self, name: str) -> str:
        return self._value(name).dtype

    def _value(self, name: str) -> Value:
        if not name:
            raise ValueError("an input that it needs is missing")
        return self.values[name]

    def value(self, name: str, what: str) -> np.ndarray:
        """The value of an operand that must be known before run time, because it decides a shape."""
        if not name:
            raise ValueError(f"{what} is missing")
        if name not in self.known:
            raise ModelError(
                f"{what} ({shown(name)}) is only known at run time, but it decides a shape; "
                f"fix the input that it depends on with known={{...}} or export the model with fixed shapes"
            )
        return self.known[name]

    def integers(self, name: str, what: str) -> tuple[int, ...]:
        return tuple(int(v) for v in self.value(name, what).ravel())

    # --- answers

    def fresh(self, name: str) -> str:
        """`name`, or with a number if it is taken."""
        return next(n for n in _candidates(name) if n not in self.values)

    def input(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        self.values[name] = Value(name, shape, dtype)
        self.inputs.append(name)
        return name

    def constant(self, array: np.ndarray, name: str = "") -> str:
        if array.nbytes > KNOWN_BYTES and array.base is None:
            raise ModelError(f"a constant of shape {array.shape} is larger than {KNOWN_BYTES} bytes")
        name = self.fresh(name or f"{self.base}/constant")
        self.made.add(name)
        self.values[name] = Value(name, array.shape, str(array.dtype))
        self.known[name] = array
        return name

    def filled(self, shape: Sequence[int], value: np.ndarray) -> str:
        """A constant that repeats one value; it takes no memory."""
        bytes_ = prod(shape) * value.dtype.itemsize
        if any(d < 0 for d in shape) or bytes_ > KNOWN_BYTES:
            raise ModelError(f"a constant of shape {tuple(shape)} is negative or larger than {KNOWN_BYTES} bytes")
        return self.constant(np.broadcast_to(value.reshape(()), tuple(shape)))

    def scalar(self, value: float, dtype: str) -> str:
        return self.constant(np.asarray(value, dtype))

    def emit(self, operator: str, *inputs: str, **attributes: Attribute) -> str:
        """One node with one output that is wanted; see `emit_all`."""
        return self.emit_all(operator, inputs, 1, attributes)[0]

    def emit_all(
        self, operator: str, inputs: Sequence[str], outputs: int, attributes: Mapping[str, Attribute]
    ) -> list[str]:
        """Add a node, or the constants that it would compute. Trailing absent inputs are dropped."""
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        made = infer(operator, [self.values[n] if n else None for n in given], attributes)[:outputs]
        names: list[str] = []
        for shape, dtype in made:
            names.append(self.fresh(f"{self.base}/{operator}"))
            self.values[names[-1]] = Value(names[-1], shape, dtype)
        self.made.update(names)
        node = Node(self._node_name(operator), operator, tuple(given), tuple(names), dict(attributes))
        if self._folds(node):
            self.known.update(run_node(self.values, node, self.known))
        else:
            self.nodes.append(node)
        return names

    def _folds(self, node: Node) -> bool:
        """Work that pays at once: everything is known, and both sides are small."""
        sizes = [prod(self.values[n].shape) for n in (*node.inputs, *node.outputs) if n]
        return all(n in self.known for n in node.inputs if n) and max(sizes, default=0) <= FOLD_ELEMENTS

    def _node_name(self, operator: str) -> str:
        name = next(n for n in _candidates(f"{self.base}/{operator}") if n not in self.node_names)
        self.node_names.add(name)
        return name

    def rename(self, old: str, new: str, since: int) -> None:
        """Give a fresh value the name that the model has for it. Only nodes from `since` on can mention it."""
        self.made.discard(old)
        self.values[new] = replace(self.values.pop(old), name=new)
        if old in self.known:
            self.known[new] = self.known.pop(old)
        for at in range(since, len(self.nodes)):
            self.nodes[at] = _with_names(self.nodes[at], {old: new})

    def graph(self, name: str, outputs: Sequence[tuple[str, str]]) -> Graph:
        """Close the graph. `outputs`: (name in the model, our name of the value).

        Each output is made by a node of its own and keeps its name, unless an input or a constant has that name.
        """
        made_by_node = {o for n in self.nodes for o in n.outputs}
        wanted_names = {wanted for wanted, _ in outputs}
        renamed: dict[str, str] = {}
        finals: list[str] = []
        for wanted, ours in outputs:
            free = wanted not in self.values and wanted not in finals
            if ours in made_by_node and ours == wanted and ours not in finals:
                finals.append(ours)
            elif ours in made_by_node and free and ours not in wanted_names and ours not in renamed:
                renamed[ours] = wanted
                finals.append(wanted)
            else:
                finals.append(self._copied(ours, wanted if free else self.fresh(f"{wanted}/output")))
        nodes = [_with_names(n, renamed) for n in _live(self.nodes, {*finals, *renamed})]
        used = {n for node in nodes for n in (*node.inputs, *node.outputs) if n} | set(self.inputs)
        every = {renamed.get(n, n): v for n, v in self.values.items()}
        values = {n: replace(v, name=n) for n, v in every.items() if n in used}
        constants = {n: a for n, a in self.known.items() if n in used}
        return Graph(name, tuple(self.inputs), tuple(finals), tuple(nodes), values, constants)

    def _copied(self, ours: str, final: str) -> str:
        self.base = final
        self.values[final] = replace(self.values[ours], name=final)
        self.nodes.append(Node(self._node_name("identity"), "identity", (ours,), (final,), {}))
        return final


def _with_names(node: Node, new: Mapping[str, str]) -> Node:
    if not any(n in new for n in (*node.inputs, *node.outputs)):
        return node
    return replace(
        node, inputs=tuple(new.get(n, n) for n in node.inputs), outputs=tuple(new.get(n, n) for n in node.outputs)
    )


def _candidates(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}_{i}" for i in itertools.count(1))


def _live(nodes: Sequence[Node], outputs: set[str]) -> list[Node]:
    """Nodes that some output needs, in order."""
    needed = set(outputs)
    out: list[Node] = []
    for node in reversed(nodes):
        if needed & set(node.outputs):
            out.append(node)
            needed.update(node.inputs)
    return out[::-1]
