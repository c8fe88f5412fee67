"""The operators of the graph, each defined in the tensor-expression language.

Attributes are plain numbers, strings and tuples; what has a default may be left out. Axes count from the back when
negative. An input in brackets may be absent ("").

    relu, exp, add, mul, max, where, ...         element by element, NumPy's broadcasting; see `elementwise`
    leaky_relu elu celu thresholded_relu swish   alpha          hard_sigmoid, selu   alpha, beta or gamma
    gelu                approximate "none" | "tanh"             shrink               bias, lambd
    clip                x, [low], [high]; low, high             cast                 to
    quantize            x, scale, [zero]; axis, block_size, to  dequantize           x, scale, [zero]; axis, block_size
    trilu               k, upper                                is_inf               detect_positive, detect_negative
    reduce_sum ...      axes, keepdims                          argmax, argmin       axis, keepdims, select_last
    cumsum, cumprod     axis, exclusive, reverse                softmax, log_softmax axes
    layer_norm          x, [scale], [bias]; axis, epsilon       -> y, mean, 1 / standard deviation
    rms_norm            x, [scale]; axis, epsilon               lp_normalize         axis, p
    batch_norm          x, scale, bias, mean, variance; axis, epsilon
    instance_norm       x, scale, bias; axis, epsilon           group_norm           ... and groups
    lrn                 size, axis, alpha, beta, bias
    matmul                                                      einsum               equation
    gemm                a, b, [c]; trans_a, trans_b, alpha, beta
    conv                x, w, [bias]; layout, groups, strides, dilations, pads
    conv_transpose      ... and output_padding                  capsule_conv         strides, dilations, pads
    max_pool            kernel, layout, strides, dilations, pads, ceil_mode; max_pool_index also column_major
    average_pool        ... and count_include_pad               lp_pool              ... and p
    transpose           perm                                    reshape, expand      shape
    concat              axis                                    slice                starts, steps, sizes: one a dimension
    pad                 x, [value]; pads, mode, value           tile                 repeats
    depth_to_space, space_to_depth   block, mode, layout        resize               see `resizing`
    gather, gather_elements          x, indices; axis           gather_nd            batch_dims
    scatter_elements                 x, indices, updates; axis, reduction; scatter_nd without axis
    grid_sample         x, grid; mode, padding, align_corners
    one_hot             indices, values; depth, axis            top_k                k, axis, largest -> values, indices
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.dsl import placeholder
from ir.graph import Attribute, Value
from ir.operators import (
    convolution,
    elementwise,
    indexing,
    movement,
    normalisation,
    phases,
    pooling,
    product,
    reduction,
    resizing,
    sampling,
)
from ir.operators.operator import Operator

OPERATORS: Mapping[str, Operator] = {
    operator.name: operator
    for table in (
        elementwise,
        reduction,
        normalisation,
        product,
        convolution,
        phases,
        pooling,
        movement,
        indexing,
        resizing,
        sampling,
    )
    for operator in table.OPERATORS
}


def infer(
    operator: str, inputs: Sequence[Value | None], attributes: Mapping[str, Attribute]
) -> list[tuple[tuple[int, ...], str]]:
    """(shape, dtype) of every output that the operator can give: those of its definition."""
    handles = [None if v is None else placeholder(v.shape, f"in{i}", v.dtype) for i, v in enumerate(inputs)]
    return [(h.shape, h.dtype) for h in OPERATORS[operator].define(handles, attributes)]
