"""Transposed convolution as one dense convolution per phase of its stride; `ir.passes.phases` makes these nodes."""

from __future__ import annotations

from ir import dsl
from ir.dsl import Handle, Reduction, compute, reduce_axis
from ir.expr import Axis, Expr
from ir.operators.convolution import padded, with_bias
from ir.operators.operator import Attributes, Inputs, Operator, integer, ints, maybe, need, scaled, wide


def _conv_phases(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """y[n, r, a, .., co] = sum of x[n, r + a * moves + t, .., ci] * w[a, .., t, .., ci, co], x padded by `pads`.

    Data N, space, C. Weight: phases, taps, CI / groups, CO. Output: N, then rows and phase for each spatial
    dimension, then CO: read row-major, rows * phases is the upsampled dimension. `rows`: extents of r.
    `moves`: per dimension 1 if the second of two phases starts one cell later, else 0.
    """
    x, w, bias = need(inputs, 0), need(inputs, 1), maybe(inputs, 2)
    rank = len(x.shape) - 2
    groups, rows, moves, pads = (
        integer(attributes, "groups", 1), ints(attributes, "rows"), ints(attributes, "moves"), ints(attributes, "pads")
    )  # fmt: skip
    phases, taps, ins, outs = w.shape[:rank], w.shape[rank : 2 * rank], w.shape[-2], w.shape[-1]
    if len(w.shape) != 2 * rank + 2 or x.shape[-1] != ins * groups or outs % groups:
        raise ValueError(f"conv_phases of {x.shape} in {groups} groups with a weight of {w.shape}")
    source = padded(x, range(1, rank + 1), pads[:rank], pads[rank:], ["n", *"dhw"[-rank:], "c"])
    t, ci = [reduce_axis(n) for n in taps], reduce_axis(ins)

    def element(*i: Axis) -> Reduction:
        n, *cells, co = i
        place: list[Expr] = [
            r + a + k if m else r + k for r, a, k, m in zip(cells[::2], cells[1::2], t, moves, strict=True)
        ]
        channel = ci if groups == 1 else scaled(co // (outs // groups), ins) + ci
        return dsl.sum(wide(source[(n, *place, channel)]) * wide(w[(*cells[1::2], *t, ci, co)]), [*t, ci])

    shape = (x.shape[0], *(e for pair in zip(rows, phases, strict=True) for e in pair), outs)
    out = compute(shape, element, "conv_phases")
    return [with_bias(out, bias, len(shape) - 1, x.dtype, "conv_phases")]


OPERATORS = (Operator("conv_phases", _conv_phases),)
