"""A model as a module: what the parts promise must survive being put together."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from codegen.machine import probe, target
from codegen.toolchain import find_compiler
from tasks.deploy import assemble
from tasks.model import load


@pytest.mark.compiler
def test_an_index_out_of_range_is_refused_and_not_read(tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 3]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [2]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3]),
    ]
    graph = helper.make_graph([helper.make_node("Gather", ["x", "i"], ["y"])], "g", values[:2], values[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "g.onnx")
    compiler = find_compiler(os.environ)
    module = assemble(load(str(tmp_path / "g.onnx")), target(probe(compiler, tmp_path / "probe"), 1), compiler, {})
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    np.testing.assert_array_equal(module(x, np.array([1, -1])), x[[1, -1]])
    with pytest.raises(IndexError, match=r"expected 'i' in -5\.\.4"):
        module(x, np.array([1, 5]))
