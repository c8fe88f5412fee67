"""Graph -> Graph: transposed convolutions without multiplications by inserted zeros."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from ir.graph import Graph, Node
from ir.passes.rewrite import Rewrite


def split_phases(graph: Graph) -> Graph:
    """conv_transpose(x, w), stride 2      -->      reshape(conv_phases(x, w by phase)) (and a slice where it is too long)

    Output o of a transposed convolution sums x[i] w[k] over o + p = i * s + k. With o = s * r + a only the taps
    k = (a + p) mod s + s * t meet it: each phase a is a dense convolution over i = r + (a + p) div s - t. Taps are
    turned round, so that they count upwards; a kernel that s does not divide gets zero taps.

    Channels-last nodes with constant weights and no dilation; others stay.
    """
    new = Rewrite.of(graph)
    for node in graph.nodes:
        if node.operator == "conv_transpose" and _splits(graph, node):
            _split(new, node)
        else:
            new.nodes.append(node)
    return new.graph()


def _splits(graph: Graph, node: Node) -> bool:
    layout, dilations = str(node.attributes.get("layout", "")), node.attributes.get("dilations", ())
    assert isinstance(dilations, tuple)
    return layout.endswith("C") and node.inputs[1] in graph.constants and set(dilations) <= {1}


@dataclass(frozen=True, slots=True)
class Phases:
    """One spatial dimension."""

    size: int  # of the input
    out: int
    kernel: int
    stride: int
    pad: int

    @property
    def shift(self) -> int:
        """Phases move together if the padding is a multiple of the stride, and two phases move by one cell. For
        more phases the first `shift` outputs are computed and dropped instead."""
        return 0 if self.stride <= 2 else self.pad % self.stride

    @property
    def move(self) -> int:
        return self.pad % self.stride if self.stride == 2 else 0

    @property
    def taps(self) -> int:
        return -(-self.kernel // self.stride)

    @property
    def rows(self) -> int:
        return -(-(self.out + self.shift) // self.stride)

    @property
    def begin(self) -> int:
        """Cells of padding before the input; fewer than none cut it."""
        return self.taps - 1 - self.pad // self.stride

    @property
    def end(self) -> int:
        return self.rows + self.move + self.taps - 1 - self.size - self.begin

    def tap(self, phase: int, t: int) -> int:
        """Which tap of the kernel tap t of a phase is; past the kernel's end there are zeros."""
        return (phase + self.move) % self.stride + self.stride * (self.taps - 1 - t)


def _split(new: Rewrite, node: Node) -> None:
    x, out = new.values[node.inputs[0]], new.values[node.outputs[0]]
    w = new.constants[node.inputs[1]]
    rank = len(x.shape) - 2
    strides, pads = (_ints(node, "strides", 1, rank), _ints(node, "pads", 0, 2 * rank))
    dims = [Phases(*row) for row in zip(x.shape[1:-1], out.shape[1:-1], w.shape[:rank], strides, pads[:rank], strict=True)]
    weight = new.constant(phase_weights(w, dims, _groups(node)), f"{node.inputs[1]}.phases")
    data = _cut(new, node, dims)
    cells = new.add("conv_phases", (data, weight, *node.inputs[2:]), _attributes(node, dims), f"{node.name}.phases")
    whole = (x.shape[0], *(d.rows * d.stride for d in dims), out.shape[-1])
    if whole == out.shape:
        new.add("reshape", (cells,), {"shape": whole}, node.name, output=node.outputs[0])
        return
    image = new.add("reshape", (cells,), {"shape": whole}, f"{node.name}.whole")
    window = {"starts": (0, *(d.shift for d in dims), 0), "sizes": out.shape, "steps": (1,) * (rank + 2)}
    new.add("slice", (image,), window, node.name, output=node.outputs[0])


def _attributes(node: Node, dims: list[Phases]) -> dict[str, tuple[int, ...] | int]:
    borders = [max(d.begin, 0) for d in dims] + [max(d.end, 0) for d in dims]
    return {
        "rows": tuple(d.rows for d in dims),
        "moves": tuple(d.move for d in dims),
        "pads": tuple(borders),
        "groups": _groups(node),
    }


def _cut(new: Rewrite, node: Node, dims: list[Phases]) -> str:
    """Without the first cells of the input, which a padding wider than the kernel hides."""
    x = new.values[node.inputs[0]]
    starts = (0, *(max(-d.begin, 0) for d in dims), 0)
    if not any(starts):
        return x.name
    sizes = tuple(n - s for n, s in zip(x.shape, starts, strict=True))
    return new.add("slice", (x.name,), {"starts": starts, "sizes": sizes, "steps": (1,) * len(starts)}, f"{node.name}.cut")


def phase_weights(w: np.ndarray, dims: list[Phases], groups: int) -> np.ndarray:
    """space, O / groups, I      -->      phases, taps, I / groups, O"""
    rank = len(dims)
    each, ins = w.shape[-2], w.shape[-1] // groups
    w = w.reshape(*w.shape[:rank], each, groups, ins)
    w = np.moveaxis(w, (rank, rank + 1, rank + 2), (rank + 2, rank + 1, rank)).reshape(*w.shape[:rank], ins, groups * each)
    out = np.zeros((*(d.stride for d in dims), *(d.taps for d in dims), ins, groups * each), w.dtype)
    for place in product(*(range(d.stride) for d in dims), *(range(d.taps) for d in dims)):
        tap = tuple(d.tap(a, t) for d, a, t in zip(dims, place[:rank], place[rank:], strict=True))
        if all(k < d.kernel for k, d in zip(tap, dims, strict=True)):
            out[place] = w[tap]
    return out


def _groups(node: Node) -> int:
    groups = node.attributes.get("groups", 1)
    assert isinstance(groups, int)
    return groups


def _ints(node: Node, name: str, default: int, count: int) -> tuple[int, ...]:
    found = node.attributes.get(name, (default,) * count)
    assert isinstance(found, tuple)
    return tuple(int(v) for v in found)
