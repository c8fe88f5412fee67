"""ONNX models as graphs: opset 1 to the newest that the installed onnx knows, static shapes after binding.

Shape arithmetic (Shape, Gather, Concat, ... on known values) is evaluated while importing, by our own definitions:
onnx's shape inference propagates data only partly, and folding passes of others would run before shapes are bound.
Functions of the model, and of the standard where an operator has no row of its own, are inlined; an `If` takes the
branch that its condition names, `Loop` and `Scan` are unrolled: what decides must be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ir.frontends.onnx.importer import Importer
from ir.frontends.onnx.reader import Source, opsets, read_model
from ir.graph import Graph


def load(
    source: Source,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    known: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """The graph of an ONNX model: a path, its bytes, or a ModelProto.

    shapes: input name -> shape. dims: symbolic dimension -> extent, for all inputs that mention it.
    known: values of inputs that decide shapes, fixed from now on; also replaces an initialiser of that name.
    A model that cannot be taken is a ModelError of one line: the cause and the way out.
    """
    model, folder = read_model(source)
    functions = {(f.domain, f.name): f for f in model.functions}
    importer = Importer(folder, functions, dict(known or {}))
    return importer.run(model.graph, opsets(model.opset_import), shapes or {}, dims or {})
