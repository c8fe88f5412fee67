"""Graph -> workloads: which nodes become one kernel, and the compute DAG of each.

    transpose -> conv -> add -> relu -> max_pool      -->      transpose_conv_add_relu, max_pool

A group is an anchor (a convolution, a product, a reduction, a softmax, ...) with the moves that feed it alone and the
element-wise nodes that follow it. Whatever fits nowhere is a workload of its own, so no graph is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ir.compute import Dag
from ir.dsl import Handle, placeholder
from ir.dsl import dag as dag_of
from ir.evaluate import evaluate
from ir.expr import Const, Expr, Read, children, rebuild
from ir.graph import Graph, ModelError, Node
from ir.key import canonical, dag_text, text_key
from ir.operators import OPERATORS, elementwise
from ir.operators.operator import IndexBound
from ir.passes.axes import plain_axes
from ir.passes.rewrite import is_channels_last
from ir.workload import Workload

VIEWS = frozenset({"reshape"})  # the same elements in the same order: no work
MOVES = frozenset({"transpose", "slice", "pad", "expand", "cast"})  # may be computed where they are read
ELEMENTWISE = frozenset(o.name for o in elementwise.OPERATORS) | {"batch_norm"}


@dataclass(frozen=True, slots=True)
class Fusion:
    """How far to go. `attention`: softmax and the product after it join the product before it if the scores have at
    most so many elements; 0 keeps the three apart."""

    attention: int = 0


@dataclass(frozen=True, slots=True)
class Bound:
    """Elements first, first + step, ... of `value` are run-time indices of `node`: they must lie in low..high."""

    node: str
    value: str
    low: int
    high: int
    first: int = 0
    step: int = 1

    def check(self, value: np.ndarray) -> None:
        IndexBound(0, self.low, self.high).check(self.node, value.reshape(-1)[self.first :: self.step])


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a workload. Values are in the order of the DAG's inputs and outputs, equal up to a reshape."""

    workload: Workload
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """Calls in the order of execution. `aliases`: value -> the value whose buffer it is, under another shape."""

    graph: Graph
    calls: tuple[Call, ...]
    aliases: Mapping[str, str]
    workloads: tuple[Workload, ...]


def workloads(graph: Graph, fusion: Fusion = Fusion()) -> Partition:
    """Cut a graph into workloads; equal ones (by key) are one `Workload` with a weight and its origins."""
    groups = Groups(graph, fusion)
    groups.form()
    aliases = _aliases(graph, groups)
    calls = [_call(graph, nodes) for nodes in groups.ordered()]
    unique = {w.key: w for w in _joined([c.workload for c in calls])}
    return Partition(
        graph, tuple(replace(c, workload=unique[c.workload.key]) for c in calls), aliases, tuple(unique.values())
    )


def execute(partition: Partition, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The graph's outputs, call by call, by the interpreter: what a runtime must do.

    Raises IndexError for a run-time index out of bounds.
    """
    graph, buffers = partition.graph, {**partition.graph.constants, **inputs}

    def value(name: str) -> np.ndarray:
        return np.asarray(buffers[partition.aliases.get(name, name)])

    for call in partition.calls:
        for b in call.bounds:
            b.check(value(b.value))
        dag = call.workload.dag
        given = {i.name: value(n).reshape(i.shape) for i, n in zip(dag.inputs, call.inputs, strict=True)}
        made = evaluate(dag, given)
        buffers |= {n: made[o] for o, n in zip(dag.outputs, call.outputs, strict=True)}
    return [value(o).reshape(graph.values[o].shape) for o in graph.outputs]


# --- which nodes go together --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Groups:
    """Node number -> group number, growing; a group is called like its first member. Contracted, it has no cycle."""

    graph: Graph
    fusion: Fusion
    owner: list[int] = field(default_factory=list)
    members: dict[int, list[int]] = field(default_factory=dict)
    maker: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for i, node in enumerate(self.graph.nodes):
            self.maker |= {o: i for o in node.outputs if o}
            for name in dict.fromkeys(node.inputs):
                self.readers.setdefault(name, []).append(i)
        self.owner = list(range(len(self.graph.nodes)))
        self.members = {i: [i] for i in self.owner}

    def form(self) -> None:
        nodes = range(len(self.graph.nodes))
        anchors = [i for i in nodes if self._operator(i) not in ELEMENTWISE | MOVES | VIEWS]
        for i in anchors:
            if self.owner[i] == i:
                self._grow(i)
        for i in anchors:
            if self.owner[i] == i:
                self._feed(i)
        for i in nodes:
            if self.members.get(i) == [i] and self._operator(i) in ELEMENTWISE | MOVES:
                self._grow(i)

    def ordered(self) -> Iterator[list[Node]]:
        """Groups after what they read, each with its nodes in the order of the graph; lone views are no groups."""
        done: set[int] = set()

        def visit(group: int) -> Iterator[int]:
            if group not in done:
                done.add(group)
                for before in sorted(self._before(group)):
                    yield from visit(before)
                yield group

        order = (g for start in sorted(self.members) for g in visit(start))
        yield from ([self.graph.nodes[i] for i in sorted(self.members[g])] for g in order if not self.is_view(g))

    def is_view(self, group: int) -> bool:
        return all(self._operator(i) in VIEWS for i in self.members[group])

    def _operator(self, i: int) -> str:
        return self.graph.nodes[i].operator

    def _before(self, group: int) -> set[int]:
        made = {self.maker[n] for i in self.members[group] for n in self.graph.nodes[i].inputs if n in self.maker}
        return {self.owner[i] for i in made} - {group}

    def _depends(self, group: int, on: int) -> bool:
        """Whether `group` needs a result of `on`, however indirectly."""
        seen, stack = {group}, [group]
        while stack:
            here = stack.pop()
            if here == on:
                return True
            fresh = self._before(here) - seen
            seen |= fresh
            stack += fresh
        return False

    def _join(self, group: int, node: int) -> None:
        for i in self.members.pop(self.owner[node]):
            self.owner[i] = group
            self.members[group].append(i)

    # --- what follows: conv -> add -> relu

    def _grow(self, group: int) -> None:
        """Take element-wise nodes after the group as long as, again and again, a single value leaves."""
        while (region := self._region(group)) is not None:
            for i in region:
                self._join(group, i)

    def _region(self, group: int) -> list[int] | None:
        """The next few nodes after which a single value leaves: y -> (y * 0.5), erf(y) + 1 -> their product."""
        region: list[int] = []
        while (i := self._next_reader(group, region)) is not None and self._fits(group, region, i):
            region.append(i)
            if len(self._leaving(group, region)) == 1 and self._operator(i) not in VIEWS:
                return region
        return None

    def _leaving(self, group: int, region: list[int]) -> list[str]:
        inside = {*self.members[group], *region}
        made = [o for i in inside for o in self.graph.nodes[i].outputs if o]
        return [o for o in made if o in self.graph.outputs or any(r not in inside for r in self.readers.get(o, []))]

    def _next_reader(self, group: int, region: list[int]) -> int | None:
        leaving = self._leaving(group, region)
        if (not region and len(leaving) != 1) or any(o in self.graph.outputs for o in leaving):
            return None
        inside = {*self.members[group], *region}
        return min((r for o in leaving for r in self.readers[o] if r not in inside), default=None)

    def _fits(self, group: int, region: list[int], i: int) -> bool:
        node, inside = self.graph.nodes[i], {*self.members[group], *region}
        if self.members.get(i) != [i] or len(node.outputs) != 1 or not self._follows(inside, node):
            return False
        others = {self.owner[self.maker[n]] for n in node.inputs if n in self.maker and self.maker[n] not in inside}
        return not any(self._depends(o, group) or o in region for o in others)

    def _follows(self, inside: set[int], node: Node) -> bool:
        """Element by element over the same space as what it reads in the group, or a view of it; moves follow moves."""
        if node.operator in VIEWS:
            return True
        if node.operator in MOVES - {"expand", "pad"}:
            return all(self._operator(i) in ELEMENTWISE | MOVES | VIEWS for i in inside)
        shapes = {self.graph.values[n].shape for n in node.inputs if self.maker.get(n) in inside}
        if node.operator in ELEMENTWISE:
            return shapes == {self.graph.values[node.outputs[0]].shape}
        return self._is_attention(inside, node)

    def _is_attention(self, inside: set[int], node: Node) -> bool:
        size = prod(self.graph.values[node.inputs[0]].shape)
        operators = [self._operator(i) for i in inside]
        wanted = {
            "softmax": operators.count("matmul") == 1,
            "matmul": "softmax" in operators and operators.count("matmul") == 1,
        }
        first = self.maker.get(node.inputs[0])
        return size <= self.fusion.attention and wanted.get(node.operator, False) and first in inside

    # --- what feeds: transpose -> reshape -> matmul

    def _feed(self, group: int) -> None:
        """Take the moves that only this group reads; views alone stay outside, where they are free.

        Run-time indices stay outside too: a runtime must see them to refuse those out of bounds.
        """
        nodes = [self.graph.nodes[i] for i in self.members[group]]
        checked = {bound.value for bound in _bounds(self.graph, nodes)}
        for name in [n for node in nodes for n in node.inputs if n not in checked]:
            chain = list(self._chain(group, name))
            while chain and self._operator(chain[-1]) in VIEWS:
                chain.pop()
            for i in chain:
                self._join(group, i)

    def _chain(self, group: int, name: str) -> Iterator[int]:
        """Moves and views upwards from a value, while nothing outside reads them."""
        inside = set(self.members[group])
        while (i := self.maker.get(name)) is not None and self.members.get(i) == [i]:
            alone = name not in self.graph.outputs and all(r in inside for r in self.readers[name])
            if self._operator(i) not in MOVES | VIEWS or not alone:
                return
            inside.add(i)
            yield i
            name = self.graph.nodes[i].inputs[0]


def _aliases(graph: Graph, groups: Groups) -> dict[str, str]:
    """Lone views, each led back to the value that has the buffer."""
    out: dict[str, str] = {}
    for i, node in enumerate(graph.nodes):
        if groups.members.get(i) == [i] and groups.is_view(i):
            out[node.outputs[0]] = out.get(node.inputs[0], node.inputs[0])
    return out


# --- one group -> one DAG -----------------------------------------------------------------------------------------


def compose(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str]) -> Dag:
    """The nodes' definitions strung together; inputs are called like the graph's values.

    Constants of one element become literals. Axes are the plainest possible, so that shapes of inputs and outputs
    equal those of the graph's values up to a reshape.
    """
    handles: dict[str, Handle] = {}
    for node in nodes:
        given = [_handle(graph, handles, name) if name else None for name in node.inputs]
        made = OPERATORS[node.operator].define(given, node.attributes)
        handles |= {name: h for name, h in zip(node.outputs, made, strict=False) if name}
    dag = dag_of([handles[o] for o in outputs])
    scalars = {i.name: graph.constants[i.name] for i in dag.inputs if i.constant and prod(i.shape) == 1}
    return plain_axes(bind(dag, scalars))


def _handle(graph: Graph, handles: dict[str, Handle], name: str) -> Handle:
    if name not in handles:
        v = graph.values[name]
        handles[name] = placeholder(v.shape, name, v.dtype, constant=name in graph.constants)
    return handles[name]


def bind(dag: Dag, scalars: Mapping[str, np.ndarray]) -> Dag:
    """y[i] = x[i] * s[0]  (s constant, 0.125)      -->      y[i] = x[i] * 0.125"""

    def rewrite(e: Expr) -> Expr:
        if isinstance(e, Read) and e.tensor in scalars:
            return Const(scalars[e.tensor].item(), e.dtype)
        kids = children(e)
        return rebuild(e, tuple(map(rewrite, kids))) if kids else e

    inputs = tuple(i for i in dag.inputs if i.name not in scalars)
    return replace(dag, inputs=inputs, computes=tuple(replace(c, body=rewrite(c.body)) for c in dag.computes))


def _call(graph: Graph, nodes: Sequence[Node]) -> Call:
    inside = {n.name for n in nodes}
    readers = graph.consumers()
    outputs = [
        o for n in nodes for o in n.outputs
        if o and (o in graph.outputs or any(r.name not in inside for r in readers.get(o, [])))
    ]  # fmt: skip
    dag = compose(graph, nodes, outputs)
    form, was = canonical(dag)
    given = dict(zip(dag.outputs, outputs, strict=True))
    names = tuple(n.name for n in nodes)
    workload = Workload(text_key(dag_text(form)), workload_name(graph, nodes), form, 1, (names,))
    return Call(
        workload,
        tuple(was[i.name] for i in form.inputs),
        tuple(given[was[o]] for o in form.outputs),
        names,
        _bounds(graph, nodes),
    )


def _bounds(graph: Graph, nodes: Sequence[Node]) -> tuple[Bound, ...]:
    """What must hold for indices that come at run time; constants are checked here (ModelError)."""
    return tuple(b for node in nodes for b in _bounds_of(graph, node) if not _known(graph, b))


def _bounds_of(graph: Graph, node: Node) -> Iterator[Bound]:
    shapes = [graph.values[i].shape if i else None for i in node.inputs]
    for b in OPERATORS[node.operator].bounds(shapes, node.attributes):
        name = node.inputs[b.input]
        every = b.component is None
        yield Bound(node.name, name, b.low, b.high, b.component or 0, 1 if every else graph.values[name].shape[-1])


def _known(graph: Graph, bound: Bound) -> bool:
    if bound.value in graph.constants:
        try:
            bound.check(graph.constants[bound.value])
        except IndexError as e:
            raise ModelError(str(e)) from e
    return bound.value in graph.constants


def _joined(found: Sequence[Workload]) -> Iterator[Workload]:
    by_key: dict[str, list[Workload]] = {}
    for w in found:
        by_key.setdefault(w.key, []).append(w)
    for same in by_key.values():
        yield replace(same[0], weight=len(same), origin=tuple(names for w in same for names in w.origin))


# --- names --------------------------------------------------------------------------------------------------------

LONGEST = 60  # characters of operator names in a workload's name


def workload_name(graph: Graph, nodes: Sequence[Node]) -> str:
    """ "conv2d_1x56x56x64_k3x3x64_add_relu": the anchor, the shape of its data, its weight, then what follows."""
    at = next((i for i, n in enumerate(nodes) if n.operator not in ELEMENTWISE | MOVES | VIEWS), 0)
    anchor = nodes[at]
    before = "_".join(n.operator for n in nodes[:at] if n.operator not in VIEWS)
    after = "_".join(n.operator for n in nodes[at + 1 :] if n.operator not in VIEWS)
    data = _by_x(graph.values[anchor.inputs[0]].shape if anchor.inputs else graph.values[anchor.outputs[0]].shape)
    kind = (
        f"{anchor.operator}{len(graph.values[anchor.inputs[0]].shape) - 2}d"
        if anchor.operator in WINDOWED
        else anchor.operator
    )
    parts = [
        before[:LONGEST],
        kind,
        data,
        WEIGHT_NAMES.get(anchor.operator, _no_weight)(graph, anchor),
        after[:LONGEST],
    ]
    return "_".join(p for p in parts if p)


def _by_x(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _no_weight(graph: Graph, node: Node) -> str:
    return ""


def _window_name(graph: Graph, node: Node) -> str:
    """k3x3x64 (kernel, output channels), s2 and g4 where they are not 1."""
    w = graph.values[node.inputs[1]].shape
    kernel, outs = (w[:-2], w[-1]) if is_channels_last(node) else (w[2:], w[0])
    strides, groups = node.attributes.get("strides", ()), node.attributes.get("groups", 1)
    largest = max((int(s) for s in strides), default=1) if isinstance(strides, tuple) else 1
    suffix = (f"s{largest}" if largest > 1 else "", f"g{groups}" if groups != 1 else "")
    return "_".join([f"k{_by_x((*kernel, outs))}", *filter(None, suffix)])


def _columns_name(graph: Graph, node: Node) -> str:
    shape = graph.values[node.outputs[0]].shape
    return f"n{shape[-1]}" if shape else ""


WINDOWED = frozenset({"conv", "conv_transpose", "conv_phases"})
WEIGHT_NAMES = {
    "conv":           _window_name,
    "conv_transpose": _window_name,
    "matmul":         _columns_name,
    "gemm":           _columns_name,
    "conv_phases":    _columns_name,
}  # fmt: skip
