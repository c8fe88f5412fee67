"""RNN, GRU and LSTM, unrolled: the input products of all steps at once, then one cell a step.

Equations and the order of gates are those of the ONNX standard (LSTM: i o f c; GRU: z r h).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ir.frontends.onnx.builder import UNROLLED, Builder, Call
from ir.frontends.onnx.shapes import Handler, reshaped, sliced
from ir.graph import Attribute

# name -> operator, the attribute that alpha stands for, its default; beta likewise (ONNX RNN operators)
ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "Relu":        ("relu",         {}),
    "Tanh":        ("tanh",         {}),
    "Sigmoid":     ("sigmoid",      {}),
    "LeakyRelu":   ("leaky_relu",   {"alpha": 0.01}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "Elu":         ("elu",          {"alpha": 1.0}),
    "Softsign":    ("softsign",     {}),
    "Softplus":    ("softplus",     {}),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Direction:
    """One direction of one layer: our names of its matrices, transposed for x @ w; `gates` rows of `hidden` each."""

    hidden: int
    x_weight: str
    h_weight: str
    x_bias: str
    h_bias: str
    peepholes: tuple[str, ...]
    activations: tuple[Callable[[str], str], ...]
    clip: float
    linear_before_reset: bool


Cell = Callable[[Builder, Direction, str, list[str]], list[str]]


def _sum(b: Builder, *terms: str) -> str:
    out = terms[0]
    for t in terms[1:]:
        out = b.emit("add", out, t)
    return out


def _gate(b: Builder, x: str, which: int, hidden: int) -> str:
    return sliced(b, x, b.rank(x) - 1, which * hidden, hidden)


def _bounded(b: Builder, d: Direction, x: str) -> str:
    return b.emit("clip", x, low=-d.clip, high=d.clip) if d.clip else x


def _rnn_cell(b: Builder, d: Direction, x: str, state: list[str]) -> list[str]:
    """h = f(x W + h R + b)"""
    total = _sum(b, x, b.emit("matmul", state[0], d.h_weight), d.h_bias)
    return [d.activations[0](_bounded(b, d, total))]


def _gru_cell(b: Builder, d: Direction, x: str, state: list[str]) -> list[str]:
    """z, r = f(...); c = g(x W + (r h) R) or g(x W + r (h R + b)); h = (1 - z) c + z h"""
    h, n = state[0], d.hidden
    f, g = d.activations[:2]
    update_reset, candidate = sliced(b, d.h_weight, 1, 0, 2 * n), sliced(b, d.h_weight, 1, 2 * n, n)
    bias = sliced(b, d.h_bias, 0, 0, 2 * n), sliced(b, d.h_bias, 0, 2 * n, n)
    both = _sum(b, sliced(b, x, 1, 0, 2 * n), b.emit("matmul", h, update_reset), bias[0])
    both = f(_bounded(b, d, both))
    z, r = _gate(b, both, 0, n), _gate(b, both, 1, n)
    if d.linear_before_reset:
        inner = b.emit("mul", r, _sum(b, b.emit("matmul", h, candidate), bias[1]))
    else:
        inner = _sum(b, b.emit("matmul", b.emit("mul", r, h), candidate), bias[1])
    c = g(_bounded(b, d, _sum(b, _gate(b, x, 2, n), inner)))
    keep = b.emit("sub", b.scalar(1, b.dtype(z)), z)
    return [_sum(b, b.emit("mul", keep, c), b.emit("mul", z, h))]


def _lstm_cell(b: Builder, d: Direction, x: str, state: list[str]) -> list[str]:
    """i, o, f = f(...); c' = f c + i g(...); h = o h(c'); peepholes see c, the output gate c'."""
    h, c, n = state[0], state[1], d.hidden
    f, g, squash = d.activations[:3]
    total = _sum(b, x, b.emit("matmul", h, d.h_weight), d.h_bias)
    i, o, forget, new = (_gate(b, total, p, n) for p in range(4))
    if d.peepholes:
        i = _sum(b, i, b.emit("mul", d.peepholes[0], c))
        forget = _sum(b, forget, b.emit("mul", d.peepholes[2], c))
    i, forget, new = f(_bounded(b, d, i)), f(_bounded(b, d, forget)), g(_bounded(b, d, new))
    after = _sum(b, b.emit("mul", forget, c), b.emit("mul", i, new))
    if d.peepholes:
        o = _sum(b, o, b.emit("mul", d.peepholes[1], after))
    return [b.emit("mul", f(_bounded(b, d, o)), squash(after)), after]


# kind -> gates, states, activations by default, position of the initial states, cell
KINDS: Mapping[str, tuple[int, int, tuple[str, ...], Cell]] = {
    "RNN":  (1, 1, ("Tanh",),                    _rnn_cell),
    "GRU":  (3, 1, ("Sigmoid", "Tanh"),          _gru_cell),
    "LSTM": (4, 2, ("Sigmoid", "Tanh", "Tanh"),  _lstm_cell),
}  # fmt: skip


def _recurrent(b: Builder, n: Call) -> Sequence[str]:
    """Y (steps, directions, batch, hidden) and the last states (directions, batch, hidden); `layout` 1: batch first."""
    _, states, _, _ = KINDS[n.kind]
    batch_first = bool(n.integer("layout", 0))
    x = b.emit("transpose", n.input(0), perm=(1, 0, 2)) if batch_first else n.input(0)
    steps, batch, _ = b.shape(x)
    if steps > UNROLLED:
        raise ValueError(f"{steps} steps are too many to unroll")
    lengths = b.integers(n.input(4), "sequence_lens") if n.has(4) else (steps,) * batch
    directions = n.choice("direction", ("forward", "reverse", "bidirectional"), "forward")
    count = 2 if directions == "bidirectional" else 1
    runs = []
    for p in range(count):
        backward = directions == "reverse" or p == 1
        runs.append(_run(b, n, _direction(b, n, p), x, p, _order(steps, lengths, backward), lengths, batch_first))
    y = _joined(b, [r[0] for r in runs], 1)
    lasts = [_joined(b, [r[1][s] for r in runs], 0) for s in range(states)]
    if batch_first:
        return [b.emit("transpose", y, perm=(2, 0, 1, 3)), *(b.emit("transpose", s, perm=(1, 0, 2)) for s in lasts)]
    return [y, *lasts]


def _order(steps: int, lengths: Sequence[int], backward: bool) -> np.ndarray:
    """(steps, batch): which input each sample sees at each step; backward, a sample starts at its own end."""
    t = np.arange(steps)[:, None]
    own = np.asarray(lengths)[None, :]
    return np.where(t < own, own - 1 - t, t) if backward else np.broadcast_to(t, (steps, len(lengths)))


def _direction(b: Builder, n: Call, p: int) -> Direction:
    gates, _, defaults, _ = KINDS[n.kind]
    hidden = n.integer("hidden_size", b.shape(n.input(2))[2])

    def part(position: int) -> str:
        row = sliced(b, n.input(position), 0, p, 1)
        return reshaped(b, row, b.shape(row)[1:])

    wide = gates * hidden
    zero = b.filled((wide,), np.zeros((), b.dtype(n.input(0))))
    biases = (sliced(b, part(3), 0, 0, wide), sliced(b, part(3), 0, wide, wide)) if n.has(3) else (zero, zero)
    peepholes = tuple(_gate(b, part(7), g, hidden) for g in range(3)) if n.kind == "LSTM" and n.has(7) else ()
    turned = [b.emit("transpose", part(q), perm=(1, 0)) for q in (1, 2)]
    if n.integer("input_forget", 0):
        raise ValueError("coupled input and forget gates are not supported")
    return Direction(
        hidden, turned[0], turned[1], *biases, peepholes, _activations(b, n, defaults, p),
        n.real("clip", 0.0), bool(n.integer("linear_before_reset", 0)),
    )  # fmt: skip


def _activations(b: Builder, n: Call, defaults: tuple[str, ...], p: int) -> tuple[Callable[[str], str], ...]:
    count = len(defaults)
    names = n.attributes.get("activations", defaults)
    alphas, betas = n.attributes.get("activation_alpha", ()), n.attributes.get("activation_beta", ())
    if not isinstance(names, tuple) or not isinstance(alphas, tuple) or not isinstance(betas, tuple):
        raise ValueError("activations and their parameters must be lists")
    own = names[p * count : (p + 1) * count] if len(names) > count else names[:count]

    def one(at: int, name: str) -> Callable[[str], str]:
        found = next((row for kind, row in ACTIVATIONS.items() if kind.lower() == name.lower()), None)
        if found is None:
            raise ValueError(f"activation {name} is not supported")
        operator, parameters = found
        given: dict[str, Attribute] = dict(parameters)
        for key, values in (("alpha", alphas), ("beta", betas)):
            if key in parameters and at < len(values):
                given[key] = float(values[at])
        return lambda x: b.emit(operator, x, **given)

    return tuple(one(p * count + i, str(name)) for i, name in enumerate(own))


def _run(
    b: Builder,
    n: Call,
    d: Direction,
    x: str,
    p: int,
    order: np.ndarray,
    lengths: Sequence[int],
    batch_first: bool,
) -> tuple[str, list[str]]:
    """All steps of one direction: (steps, 1, batch, hidden) and the last states (1, batch, hidden)."""
    _, states, _, cell = KINDS[n.kind]
    steps, batch = order.shape
    products = b.emit("add", b.emit("matmul", x, d.x_weight), d.x_bias)
    state = [_initial(b, n, 5 + s, d, p, batch, batch_first) for s in range(states)]
    ragged = any(m != steps for m in lengths)
    same = bool((order == order[:, :1]).all())
    outputs: list[str] = []
    for t in range(steps):
        new = cell(b, d, _step(b, products, order[t], same), state)
        if ragged:
            live = b.constant((t < np.asarray(lengths))[:, None])
            new = [b.emit("where", live, a, z) for a, z in zip(new, state, strict=True)]
            outputs.append(b.emit("where", live, new[0], b.scalar(0, b.dtype(x))))
        else:
            outputs.append(new[0])
        state = new
    y = _joined(b, [reshaped(b, o, (1, 1, batch, d.hidden)) for o in outputs], 0)
    if (order[0] != 0).any() and steps > 1:
        y = _step_back(b, y, order, same)
    return y, [reshaped(b, s, (1, batch, d.hidden)) for s in state]


def _initial(b: Builder, n: Call, position: int, d: Direction, p: int, batch: int, batch_first: bool) -> str:
    if not n.has(position):
        return b.filled((batch, d.hidden), np.zeros((), b.dtype(n.input(0))))
    given = sliced(b, n.input(position), 1 if batch_first else 0, p, 1)
    return reshaped(b, given, (batch, d.hidden))


def _step(b: Builder, products: str, source: np.ndarray, same: bool) -> str:
    """The input of one step (batch, gates * hidden)."""
    _, batch, width = b.shape(products)
    if same:
        return reshaped(b, sliced(b, products, 0, int(source[0]), 1), (batch, width))
    indices = b.constant(np.broadcast_to(source[None, :, None], (1, batch, width)).astype(np.int64))
    return reshaped(b, b.emit("gather_elements", products, indices, axis=0), (batch, width))


def _step_back(b: Builder, y: str, order: np.ndarray, same: bool) -> str:
    """Outputs in the order of time. The order is its own inverse."""
    if same:
        return b.emit("gather", y, b.constant(order[:, 0].astype(np.int64)), axis=0)
    indices = b.constant(np.broadcast_to(order[:, None, :, None], b.shape(y)).astype(np.int64))
    return b.emit("gather_elements", y, indices, axis=0)


def _joined(b: Builder, parts: list[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else b.emit("concat", *parts, axis=axis)


HANDLERS: Mapping[str, Handler] = dict.fromkeys(KINDS, _recurrent)
