"""The operators of the graph, each defined in the tensor-expression language."""

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
    )
    for operator in table.OPERATORS
}


def infer(
    operator: str, inputs: Sequence[Value | None], attributes: Mapping[str, Attribute]
) -> list[tuple[tuple[int, ...], str]]:
    """(shape, dtype) of every output that the operator can give: those of its definition."""
    handles = [None if v is None else placeholder(v.shape, f"in{i}", v.dtype) for i, v in enumerate(inputs)]
    return [(h.shape, h.dtype) for h in OPERATORS[operator].define(handles, attributes)]
