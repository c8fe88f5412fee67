"""Graph -> Graph: the whole network channels-last."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ir.graph import Attribute, Graph, Node
from ir.operators import elementwise
from ir.passes.rewrite import Rewrite

Order = tuple[int, ...]  # an order lists the dimensions of a value as they lie in memory, outermost first

LONG_ROW = 24  # outputs; in shorter rows many lanes stay empty, and channels last pays for its transposes
FEW_CHANNELS = 4
LETTERS = {1: "W", 2: "HW", 3: "DHW"}
ELEMENTWISE = frozenset(o.name for o in elementwise.OPERATORS) - {"quantize", "dequantize", "trilu"}


def channels_last(graph: Graph) -> Graph:
    """x -> conv (NCHW) -> relu -> mean over (2, 3) -> y

        -->      x -> transpose -> conv (NHWC) -> relu -> mean over (1, 2) -> y

    Every value has an order in memory, which operators pass on; a transpose node only changes the order and vanishes.
    Convolutions and pools want channels last, element-wise operators what they get, most others the declared order.
    A transpose is written where a value is wanted in an order in which it does not lie yet; constants are transposed
    before run time. The graph's inputs and outputs keep their declared order.
    """
    s = State(Rewrite.of(graph))
    for name in (*graph.inputs, *graph.constants):
        s.lies(name, name, identity(graph, name))
    for node in graph.nodes:
        RULES.get(node.operator, plain)(s, node)
    for name in graph.outputs:
        s.deliver(name)
    return s.new.graph()


def identity(graph: Graph, name: str) -> Order:
    return tuple(range(len(graph.values[name].shape)))


@dataclass(frozen=True, slots=True)
class State:
    """How far the rewriting has come: for each value of the old graph, its names in the new one by order."""

    new: Rewrite
    names: dict[str, dict[Order, str]] = field(default_factory=dict)

    @property
    def old(self) -> Graph:
        return self.new.source

    def shape(self, name: str) -> tuple[int, ...]:
        return self.old.values[name].shape

    def rank(self, name: str) -> int:
        return len(self.shape(name))

    def lies(self, name: str, physical: str, order: Order) -> None:
        self.names.setdefault(name, {})[order] = physical

    def order(self, name: str) -> Order:
        """The order in which the value was made."""
        return next(iter(self.names[name]))

    def get(self, name: str, order: Order) -> str:
        """The value in an order, transposed at most once for all that want it."""
        have = self.names[name]
        if order not in have:
            first, physical = next(iter(have.items()))
            have[order] = self._moved(physical, tuple(first.index(d) for d in order), name)
        return have[order]

    def _moved(self, physical: str, perm: Order, name: str) -> str:
        """Dimensions of extent 1 have no place in memory: moving only those is a reshape."""
        shape = self.new.values[physical].shape
        if physical in self.new.constants:
            return self.new.constant(
                np.ascontiguousarray(self.new.constants[physical].transpose(perm)), f"{name}.turned"
            )
        wide = [p for p in perm if shape[p] != 1]
        if wide == sorted(wide):
            return self.new.add("reshape", (physical,), {"shape": tuple(shape[p] for p in perm)}, f"{name}.turned")
        return self.new.add("transpose", (physical,), {"perm": perm}, f"{name}.turned")

    def declared(self, name: str) -> str:
        return self.get(name, tuple(range(self.rank(name)))) if name else ""

    def emit(
        self, node: Node, inputs: Sequence[str], attributes: Mapping[str, Attribute], orders: Sequence[Order]
    ) -> None:
        """Write the node; its outputs lie in `orders`. A value in its declared order keeps its name."""
        outputs = []
        for name, order in zip(node.outputs, orders, strict=True):
            plain = order == tuple(sorted(order))
            physical = name if plain or not name else self.new.fresh(f"{name}.last")
            outputs.append(physical)
            if name:
                shape = tuple(self.shape(name)[d] for d in order)
                self.new.values[physical] = replace(self.old.values[name], name=physical, shape=shape)
                self.lies(name, physical, order)
        self.new.nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes))

    def deliver(self, name: str) -> None:
        """An output in its declared order, under its own name."""
        if self.declared(name) != name and name not in {o for n in self.new.nodes for o in n.outputs}:
            self._rename_output(name)

    def _rename_output(self, name: str) -> None:
        made = self.declared(name)
        at, node = next(((i, n) for i, n in enumerate(self.new.nodes) if made in n.outputs), (-1, None))
        exclusive = (
            node is not None and made.startswith(f"{name}.") and not any(made in n.inputs for n in self.new.nodes)
        )
        if node is not None and exclusive:
            self.new.nodes[at] = replace(node, outputs=tuple(name if o == made else o for o in node.outputs))
        else:
            self.new.add("identity", (made,), {}, name, output=name)


# --- rules --------------------------------------------------------------------------------------------------------


def last_order(rank: int) -> Order:
    return (0, *range(2, rank), 1)


def plain(s: State, node: Node) -> None:
    """Everything in the declared order."""
    s.emit(
        node,
        [s.declared(i) for i in node.inputs],
        node.attributes,
        [tuple(range(s.rank(o))) if o else () for o in node.outputs],
    )


def _layout(s: State, node: Node) -> str:
    rank = s.rank(node.inputs[0]) - 2
    return str(node.attributes.get("layout", "NC" + LETTERS.get(rank, "")))


def windowed(s: State, node: Node) -> None:
    """Convolutions and pools; weights become space + IO (space + OI if transposed)."""
    rank = s.rank(node.inputs[0])
    if _layout(s, node)[1] != "C" or rank - 2 not in LETTERS:
        return plain(s, node)
    if s.order(node.inputs[0]) == tuple(range(rank)) and _works_as_it_lies(s, node):
        return plain(s, node)
    order, weights = last_order(rank), (*range(2, rank), 1, 0)
    inputs = [s.get(node.inputs[0], order)]
    inputs += [s.get(i, weights) for i in node.inputs[1:2]]
    inputs += [s.declared(i) for i in node.inputs[2:]]
    s.emit(node, inputs, {**node.attributes, "layout": f"N{LETTERS[rank - 2]}C"}, [order] * len(node.outputs))


def _works_as_it_lies(s: State, node: Node) -> bool:
    """Channels first, in rows that are long enough for lanes: nothing is worth a transpose."""
    long = s.shape(node.outputs[0])[-1] >= LONG_ROW
    return long and (_by_channel(s, node) or _by_pixel(s, node) or _of_an_image(s, node))


def _by_channel(s: State, node: Node) -> bool:
    """Each channel is worked on by itself: one order serves as well as another."""
    channels = s.shape(node.inputs[0])[1]
    return node.operator.endswith("_pool") or (node.operator == "conv" and node.attributes.get("groups", 1) == channels)


def _by_pixel(s: State, node: Node) -> bool:
    """A product of matrices: weights times pixels in rows, or pixels times weights."""
    if node.operator != "conv":
        return False
    steps = node.attributes.get("strides", ())
    alone = all(n == 1 for n in s.shape(node.inputs[1])[2:]) and isinstance(steps, tuple) and set(steps) <= {1}
    return alone and not any(_ints(node, "pads", ()))


def _of_an_image(s: State, node: Node) -> bool:
    """From few channels straight to the graph's outputs: lanes run along rows, and the large result is not transposed."""
    few = node.operator == "conv" and s.shape(node.inputs[0])[1] <= FEW_CHANNELS
    return few and _leaves(s.old, node.outputs[0])


def _leaves(graph: Graph, name: str) -> bool:
    """Nothing but element-wise operators stands between the value and the graph's outputs."""
    users = [n for n in graph.nodes if name in n.inputs]
    return all(n.operator in ELEMENTWISE and all(_leaves(graph, o) for o in n.outputs) for n in users)


def image(s: State, node: Node) -> None:
    """depth_to_space and its inverse."""
    if str(node.attributes.get("layout", "NCHW")) != "NCHW":
        return plain(s, node)
    order = last_order(4)
    s.emit(node, [s.get(node.inputs[0], order)], {**node.attributes, "layout": "NHWC"}, [order])


def pointwise(s: State, node: Node) -> None:
    """All operands in the order of the largest that is not in its declared one; smaller ranks get leading ones."""
    rank = s.rank(node.outputs[0])
    full = [i for i in node.inputs if i and s.rank(i) == rank and i not in s.old.constants]
    size = {i: (prod(s.shape(i)), s.order(i) != tuple(range(rank))) for i in full}
    order = s.order(max(full, key=lambda i: size[i])) if full else tuple(range(rank))
    s.emit(
        node, [_operand(s, i, order) if i else "" for i in node.inputs], node.attributes, [order] * len(node.outputs)
    )


def _operand(s: State, name: str, order: Order) -> str:
    """Broadcasting aligns at the right: an operand of lower rank is widened before it is moved."""
    missing = len(order) - s.rank(name)
    if order == tuple(range(len(order))) or prod(s.shape(name)) == 1:
        return s.declared(name)
    if not missing:
        return s.get(name, order)
    wide = (*(1,) * missing, *s.shape(name))
    shape = tuple(wide[d] for d in order)
    moved = [d - missing for d in order if d >= missing and wide[d] != 1]
    tail = [d for d in range(s.rank(name)) if s.shape(name)[d] != 1]
    if moved == tail:
        return _reshaped(s, s.declared(name), shape, name)
    turned = s.get(name, tuple(d - missing for d in order if d >= missing))
    return _reshaped(s, turned, shape, name)


def _reshaped(s: State, physical: str, shape: tuple[int, ...], name: str) -> str:
    while shape and shape[0] == 1 and len(shape) > len(s.new.values[physical].shape):
        shape = shape[1:]  # broadcasting adds leading ones by itself
    if s.new.values[physical].shape == shape:
        return physical
    if physical in s.new.constants:
        return s.new.constant(s.new.constants[physical].reshape(shape), f"{name}.wide")
    return s.new.add("reshape", (physical,), {"shape": shape}, f"{name}.wide")


def relabel(s: State, node: Node) -> None:
    """A transpose moves nothing: the value lies as before, its dimensions have other numbers."""
    x, rank = node.inputs[0], s.rank(node.inputs[0])
    perm = node.attributes.get("perm", tuple(reversed(range(rank))))
    assert isinstance(perm, tuple)
    for order, physical in s.names[x].items():
        s.lies(node.outputs[0], physical, tuple(perm.index(d) for d in order))


def reshape(s: State, node: Node) -> None:
    """Groups of dimensions that become groups of others pass if each group lies together in memory, in its order.

    (N, C, H, W) lying as N, H, W, C      -->      (N, C, H * W) lying as N, H * W, C
    """
    x = node.inputs[0]
    source, target, order = s.shape(x), s.shape(node.outputs[0]), s.order(x)
    groups = reshape_groups(source, target)
    if groups is not None:
        wide = [d for d in order if source[d] != 1]
        at = sorted(range(len(groups)), key=lambda g: wide.index(groups[g][0][0]))
        if [d for g in at for d in groups[g][0]] == wide:
            out = with_ones([d for g in at for d in groups[g][1]], target)
            shape = tuple(target[d] for d in out)
            return s.emit(node, [s.get(x, order)], {**node.attributes, "shape": shape}, [out])
    plain(s, node)


def with_ones(wide: Sequence[int], shape: Sequence[int]) -> Order:
    """Dimensions of extent 1 go where they keep the order closest to the declared one: behind their predecessor."""
    out = list(wide)
    for d in range(len(shape)):
        if d not in out:
            out.insert(out.index(d - 1) + 1 if d else 0, d)
    return tuple(out)


def reshape_groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]] | None:
    """(2, 3, 4) to (6, 2, 2)      -->      [([0, 1], [0]), ([2], [1, 2])], ones left out; None for empty tensors."""
    if 0 in source:
        return None
    left, right = ([d for d, n in enumerate(shape) if n != 1] for shape in (source, target))
    groups = []
    while left:
        ours, theirs = [left.pop(0)], [right.pop(0)]
        while (a := prod(source[d] for d in ours)) != (b := prod(target[d] for d in theirs)):
            (ours if a < b else theirs).append((left if a < b else right).pop(0))
        groups.append((ours, theirs))
    return groups


def reduction(s: State, node: Node) -> None:
    """Axes are renumbered; what remains keeps its order."""
    x = node.inputs[0]
    rank, order = s.rank(x), s.order(x)
    axes = {a % rank for a in _ints(node, "axes", tuple(range(rank)))}
    moved = tuple(sorted(order.index(a) for a in axes))
    if node.attributes.get("keepdims", True):
        out = order
    else:
        kept = [d for d in range(rank) if d not in axes]
        out = tuple(kept.index(d) for d in order if d in kept)
    s.emit(node, [s.get(x, order)], {**node.attributes, "axes": moved}, [out] * len(node.outputs))


def renumbered(s: State, node: Node) -> None:
    """`axis` and `axes` follow the dimensions; further inputs are vectors along the axis, or there are none."""
    x = node.inputs[0]
    rank, order = s.rank(x), s.order(x)
    attributes = dict(node.attributes)
    if "axes" in attributes or node.operator in DEFAULT_AXES:
        axes = _ints(node, "axes", DEFAULT_AXES.get(node.operator))
        attributes["axes"] = tuple(sorted(order.index(a % rank) for a in axes))
    else:
        attributes["axis"] = order.index(_int(node, "axis", 1) % rank)
    inputs = [s.get(x, order), *(s.declared(i) for i in node.inputs[1:])]
    s.emit(node, inputs, attributes, [order] * len(node.outputs))


DEFAULT_AXES: Mapping[str, Order] = {"softmax": (-1,), "log_softmax": (-1,)}


def normalised(s: State, node: Node) -> None:
    """Moments of each sample: `axis` follows its dimension, as long as the samples stay outermost."""
    if s.order(node.inputs[0])[0] == 0:
        renumbered(s, node)
    else:
        plain(s, node)


def trailing(s: State, node: Node) -> None:
    """Moments over the dimensions from `axis` on, which must lie innermost and in order."""
    x = node.inputs[0]
    rank, order = s.rank(x), s.order(x)
    first = _int(node, "axis", -1) % rank
    if order[first:] != tuple(range(first, rank)):
        return plain(s, node)
    s.emit(
        node,
        [s.get(x, order), *(s.declared(i) for i in node.inputs[1:])],
        node.attributes,
        [order if o else () for o in node.outputs],
    )


def quantised(s: State, node: Node) -> None:
    """Scale and zero point are scalars or vectors along `axis`."""
    if any(i and s.rank(i) > 1 for i in node.inputs[1:]) or not s.rank(node.inputs[0]):
        plain(s, node)
    else:
        renumbered(s, node)


def concat(s: State, node: Node) -> None:
    """In the order of the largest operand."""
    order = s.order(max(node.inputs, key=lambda i: (i not in s.old.constants, prod(s.shape(i)))))
    axis = order.index(_int(node, "axis", 0) % len(order))
    s.emit(node, [s.get(i, order) for i in node.inputs], {**node.attributes, "axis": axis}, [order])


def by_dimension(*lists: str) -> Rule:
    """Operators with attributes that have one entry (or a begin and an end) for each dimension."""

    def rule(s: State, node: Node) -> None:
        x = node.inputs[0]
        rank, order = s.rank(x), s.order(x)
        if s.rank(node.outputs[0]) != rank:
            return plain(s, node)
        attributes = dict(node.attributes)
        for name in lists:
            values = attributes.get(name)
            if isinstance(values, tuple):
                parts = (values[i : i + rank] for i in range(0, len(values), rank))
                attributes[name] = tuple(int(part[d]) for part in parts for d in order)
        inputs = [s.get(x, order), *(s.declared(i) for i in node.inputs[1:])]
        s.emit(node, inputs, attributes, [order])

    return rule


def _ints(node: Node, name: str, default: Order | None) -> Order:
    found = node.attributes.get(name, default)
    assert isinstance(found, tuple)
    return tuple(int(v) for v in found)


def _int(node: Node, name: str, default: int) -> int:
    found = node.attributes.get(name, default)
    assert isinstance(found, int)
    return found


Rule = Callable[[State, Node], None]

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, pointwise),
    **dict.fromkeys(("conv", "conv_transpose", "max_pool", "average_pool", "lp_pool"), windowed),
    **dict.fromkeys(("depth_to_space", "space_to_depth"), image),
    **dict.fromkeys(("softmax", "log_softmax", "batch_norm"), renumbered),
    **dict.fromkeys(("instance_norm", "group_norm"), normalised),
    **dict.fromkeys(("layer_norm", "rms_norm"), trailing),
    **dict.fromkeys(("quantize", "dequantize"), quantised),
    **dict.fromkeys((f"reduce_{n}" for n in (
        "sum", "mean", "max", "min", "prod", "l1", "l2", "log_sum", "sum_square", "log_sum_exp")), reduction),
    "transpose": relabel,
    "reshape":   reshape,
    "concat":    concat,
    "slice":     by_dimension("starts", "sizes", "steps"),
    "pad":       by_dimension("pads"),
    "tile":      by_dimension("repeats"),
    "expand":    by_dimension("shape"),
    "resize":    by_dimension("sizes", "numerator", "offset", "denominator"),
}  # fmt: skip
