"""Graph -> Graph: transposed convolutions without multiplications by inserted zeros."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from ir.graph import Graph, Node
from ir.passes.rewrite import Rewrite, is_channels_last

NARROW = 8  # fewer channels than this leave most lanes of a vector empty (8 floats: AVX2)


def split_phases(graph: Graph) -> Graph:
    """conv_transpose(x, w), stride 2      -->      reshape(conv_phases(x, w by phase)) (and a slice where it is too long)

    Output o of a transposed convolution sums x[i] w[k] over o + p = i * s + k. With o = s * r + a only the taps
    k = (a + p) mod s + s * t meet it: each phase a is a dense convolution over i = r + (a + p) div s - t. Taps are
    turned round, so that they count upwards; a kernel that s does not divide gets zero taps.

    With fewer than `NARROW` output channels the phases become channels too. Channels-last nodes with constant weights
    and no dilation; others stay.
    """
    new = Rewrite.of(graph)
    for node in graph.nodes:
        if node.operator == "conv_transpose" and _splits(graph, node):
            _split(new, node)
        else:
            new.nodes.append(node)
    return new.graph()


def _splits(graph: Graph, node: Node) -> bool:
    dilations = node.attributes.get("dilations", ())
    assert isinstance(dilations, tuple)
    known = all(i in graph.constants for i in node.inputs[1:] if i)
    return is_channels_last(node) and known and set(dilations) <= {1}


@dataclass(frozen=True, slots=True)
class Phases:
    """One spatial dimension. `together`: all phases read the same cells, as channels of one convolution must."""

    size: int  # of the input
    out: int
    kernel: int
    stride: int
    pad: int
    together: bool

    @property
    def move(self) -> int:
        """1 if the second of two phases reads one cell further than the first."""
        return self.pad % self.stride if self.stride == 2 and not self.together else 0

    @property
    def shift(self) -> int:
        """Outputs computed before the first that counts, so that the first phase meets the first tap."""
        return self.pad % self.stride - self.move

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
    out = new.values[node.outputs[0]].shape
    dims = _dimensions(new, node, together=False)
    if out[-1] < NARROW and _groups(node) == 1 and min(d.stride for d in dims) > 1:
        together = _dimensions(new, node, together=True)
        if all(d.begin >= 0 and d.end >= 0 for d in together):
            return _split_narrow(new, node, together)
    weight = new.constant(phase_weights(new.constants[node.inputs[1]], dims, _groups(node)), f"{node.inputs[1]}.phases")
    inputs = (_cut(new, node, dims), weight, *node.inputs[2:])
    _deliver(new, node, dims, new.add("conv_phases", inputs, _attributes(node, dims), f"{node.name}.phases"))


def _dimensions(new: Rewrite, node: Node, together: bool) -> list[Phases]:
    x, out = new.values[node.inputs[0]].shape, new.values[node.outputs[0]].shape
    kernel, rank = new.constants[node.inputs[1]].shape, len(x) - 2
    strides, pads = _ints(node, "strides", 1, rank), _ints(node, "pads", 0, 2 * rank)
    return [Phases(*row, together) for row in zip(x[1:-1], out[1:-1], kernel[:rank], strides, pads[:rank], strict=True)]


def _split_narrow(new: Rewrite, node: Node, dims: list[Phases]) -> None:
    """Few output channels: the phases are channels of one convolution, and the image is put together afterwards.

    y[r * 2 + a - 1, c] = conv[r, a * C + c]
    """
    rank, outs = len(dims), new.values[node.outputs[0]].shape[-1]
    w = phase_weights(new.constants[node.inputs[1]], dims, 1)
    strides = tuple(d.stride for d in dims)
    w = np.moveaxis(w, range(rank), range(rank + 1, 2 * rank + 1)).reshape(*(d.taps for d in dims), w.shape[-2], -1)
    bias = [np.tile(new.constants[b], prod(strides)) for b in node.inputs[2:] if b]
    constants = (new.constant(np.ascontiguousarray(c), f"{node.name}.phases") for c in (w, *bias))
    attributes = {"pads": (*(d.begin for d in dims), *(d.end for d in dims)), "layout": node.attributes["layout"]}
    cells = new.add("conv", (node.inputs[0], *constants), attributes, f"{node.name}.phases")
    batch, rows = new.values[cells].shape[0], tuple(d.rows for d in dims)
    apart = new.add("reshape", (cells,), {"shape": (batch, *rows, *strides, outs)}, f"{node.name}.apart")
    perm = (0, *(d for i in range(rank) for d in (1 + i, 1 + rank + i)), 2 * rank + 1)
    _deliver(new, node, dims, new.add("transpose", (apart,), {"perm": perm}, f"{node.name}.woven"))


def _deliver(new: Rewrite, node: Node, dims: list[Phases], cells: str) -> None:
    """N, rows, phases, .., C as an image, without what was computed too much."""
    out = new.values[node.outputs[0]].shape
    whole = (out[0], *(d.rows * d.stride for d in dims), out[-1])
    if whole == out:
        new.add("reshape", (cells,), {"shape": whole}, node.name, output=node.outputs[0])
        return
    image = new.add("reshape", (cells,), {"shape": whole}, f"{node.name}.whole")
    window = {"starts": (0, *(d.shift for d in dims), 0), "sizes": out, "steps": (1,) * len(out)}
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
    return new.add(
        "slice", (x.name,), {"starts": starts, "sizes": sizes, "steps": (1,) * len(starts)}, f"{node.name}.cut"
    )


def phase_weights(w: np.ndarray, dims: list[Phases], groups: int) -> np.ndarray:
    """space, O / groups, I      -->      phases, taps, I / groups, O"""
    rank = len(dims)
    each, ins = w.shape[-2], w.shape[-1] // groups
    w = w.reshape(*w.shape[:rank], each, groups, ins)
    w = np.moveaxis(w, (rank, rank + 1, rank + 2), (rank + 2, rank + 1, rank)).reshape(
        *w.shape[:rank], ins, groups * each
    )
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
