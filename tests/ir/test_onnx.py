"""ONNX models: what they mean as graphs, how shapes are bound, and how broken files are refused."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import ModelProto, TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from ir.evaluate import run_graph  # noqa: E402
from ir.frontends.onnx import load  # noqa: E402
from ir.graph import Graph, ModelError  # noqa: E402

F, I64 = TensorProto.FLOAT, TensorProto.INT64
RNG = [np.random.default_rng(0)]


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order() -> None:
    RNG[0] = np.random.default_rng(1)


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG[0].standard_normal(shape).astype(dtype)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, np.ndarray | Sequence[int | str | None] | None],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
    functions: Sequence[Any] = (),
) -> ModelProto:
    """inputs: an array as an example, or a shape of float32 with numbers, names or None."""
    given = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        if isinstance(v, np.ndarray)
        else helper.make_tensor_value_info(k, F, v)
        for k, v in inputs.items()
    ]
    made = [helper.make_tensor_value_info(o, F, None) for o in outputs]
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", given, made, stored)
    domains = [helper.make_opsetid("", opset), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10, functions=list(functions))


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(kind, inputs, outputs, **attributes)


def run(
    kind: str, *inputs: np.ndarray | None, constants: Mapping[int, Any] | None = None, outputs: int = 1, opset: int = 18, **a: Any
) -> list[np.ndarray]:  # fmt: skip
    """One ONNX node; `constants` are the inputs, by position, that are initialisers."""
    fixed = {f"c{p}": np.asarray(v) for p, v in (constants or {}).items()}
    count = max(len(inputs), *(p + 1 for p in (constants or {0: 0})))
    live = {f"x{p}": v for p, v in enumerate(inputs) if v is not None}
    names = [n if (n := f"c{p}") in fixed else n if (n := f"x{p}") in live else "" for p in range(count)]
    m = model(
        [node(kind, names, [f"y{i}" for i in range(outputs)], **a)],
        live,
        [f"y{i}" for i in range(outputs)],
        fixed,
        opset,
    )
    return run_graph(load(m), live)


def refused(m: Any, words: str, **how: Any) -> None:
    """One line that holds these words."""
    with pytest.raises(ModelError, match=words) as caught:
        load(m, **how)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


ADD = model([node("Add", ["x", "w"], ["y"])], {"x": (4,)}, ["y"], {"w": np.arange(4, dtype=np.float32)})


# --- reading ----------------------------------------------------------------------------------------------------


def test_a_path_bytes_and_a_proto_are_the_same(tmp_path: Path) -> None:
    path, x = tmp_path / "m.onnx", normal(4)
    path.write_bytes(ADD.SerializeToString())
    for source in (path, str(path), ADD.SerializeToString(), ADD):
        np.testing.assert_array_equal(run_graph(load(source), {"x": x})[0], x + np.float32([0, 1, 2, 3]))


def external(tmp_path: Path, location: str, length: int = 16, offset: int = 0) -> Path:
    w = TensorProto(name="w", data_type=F, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", length), ("offset", offset)):
        w.external_data.add(key=key, value=str(value))
    m = ModelProto()
    m.CopyFrom(ADD)
    m.graph.initializer[0].CopyFrom(w)
    (tmp_path / "m").mkdir(exist_ok=True)
    path = tmp_path / "m" / "model.onnx"
    path.write_bytes(m.SerializeToString())
    return path


def test_external_data_beside_the_model(tmp_path: Path) -> None:
    path = external(tmp_path, "sub/w.bin", offset=8)
    (path.parent / "sub").mkdir()
    (path.parent / "sub" / "w.bin").write_bytes(b"12345678" + np.arange(4, dtype="<f4").tobytes())
    np.testing.assert_array_equal(run_graph(load(path), {"x": np.zeros(4)})[0], np.arange(4))
    refused(path.read_bytes(), "load the model by its path")


def test_external_data_elsewhere_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    refused(external(tmp_path, "../secret.bin"), "only files in the model's own folder")
    refused(external(tmp_path, "sub/../../secret.bin"), "only files in the model's own folder")
    refused(external(tmp_path, str(tmp_path / "secret.bin")), "only files in the model's own folder")
    refused(external(tmp_path, ""), "only files in the model's own folder")
    (tmp_path / "m" / "link.bin").symlink_to("../secret.bin")
    refused(external(tmp_path, "link.bin"), "symbolic link")
    (tmp_path / "m" / "folder").symlink_to("..")
    refused(external(tmp_path, "folder/secret.bin"), "symbolic link")
    refused(external(tmp_path, "nowhere.bin"), "missing")
    (tmp_path / "m" / "short.bin").write_bytes(bytes(8))
    refused(external(tmp_path, "short.bin"), "ends before the data does")
    refused(external(tmp_path, "short.bin", length=8), "8 bytes at 0, but its shape needs 16")
    refused(external(tmp_path, "short.bin", offset=-4), "at -4")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    raw = ADD.SerializeToString()
    refused(b"", "empty")
    refused(raw[: len(raw) // 2], "truncated")
    refused(b"PK\x03\x04 this is no model", "no ONNX model")
    refused(ModelProto().SerializeToString() or b"\x08\x0a", "no graph")
    refused(tmp_path / "nowhere.onnx", "cannot read")
    refused(tmp_path, "cannot read")
    refused(raw.replace(b"Add", b"A\xffd"), "no UTF-8 text")


def test_damaged_weights_are_refused() -> None:
    for dims, words in (([400], "16 bytes of data, but its shape"), ([-4], "negative"), ([1 << 40, 1 << 40], "needs")):
        m = ModelProto()
        m.CopyFrom(ADD)
        m.graph.initializer[0].dims[:] = dims
        refused(m, words)
    m.graph.initializer[0].CopyFrom(TensorProto(name="w", data_type=F, dims=[4], float_data=[1, 2]))
    refused(m, "other data than its shape needs")
    m.graph.initializer[0].data_type = TensorProto.BFLOAT16
    refused(m, "element type bfloat16")


def test_broken_graphs_are_refused() -> None:
    x = {"x": (4,)}
    refused(model([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])], x, ["b"]), "cycle")
    refused(model([node("Add", ["x", "ghost"], ["y"])], x, ["y"]), "'ghost'.* not defined")
    refused(model([node("Relu", ["x"], ["z"])], x, ["y"]), "'y'.* not defined")
    refused(model([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])], x, ["y"]), "'y' is written twice")
    refused(model([node("Relu", ["x"], ["x"])], x, ["x"]), "'x' is written twice")
    unknown = r"operator ai.onnx::FancyOp \(FancyOp node 'n1'\) is unknown"
    refused(model([node("FancyOp", ["x"], ["y"], name="n1")], x, ["y"]), unknown)
    refused(model([node("Relu", ["x"], ["y"], domain="my.own")], x, ["y"]), "my.own::Relu .* is not|my.own::Relu")
    refused(model([node("NonMaxSuppression", ["x"], ["y"])], x, ["y"]), "NonMaxSuppression .* not supported")
    refused(model([node("Relu", ["x"], ["y"])], x, ["y"], opset=999), "opset 999 is not known")
    refused(
        model([node("MatMul", ["x", "w"], ["y"])], x, ["y"], {"w": normal(3, 2)}), "MatMul node 'y': .* 4 and 3 differ"
    )
    refused(model([node("Conv", ["x"], ["y"])], {"x": (1, 1, 4)}, ["y"]), "Conv node 'y': .* missing")
    refused(model([node("Softmax", ["x"], ["y"], axis="one")], x, ["y"]), "attribute axis")
    refused(model([node("Dropout", ["x", "", "t"], ["y"])], x, ["y"], {"t": np.asarray(True)}), "training mode")
    strings = model([node("Identity", ["x"], ["y"])], {}, ["y"])
    strings.graph.input.append(helper.make_tensor_value_info("x", TensorProto.STRING, (2,)))
    refused(strings, "element type string")


def test_hostile_sizes_are_refused_before_memory_is_taken() -> None:
    huge = np.array([1 << 40, 1 << 20])
    shape = {"s": huge}
    refused(model([node("ConstantOfShape", ["s"], ["y"])], {}, ["y"], shape), "larger than")
    numbers = {"a": np.asarray(0), "b": np.asarray(1 << 50), "c": np.asarray(1)}
    refused(model([node("Range", ["a", "b", "c"], ["y"])], {}, ["y"], numbers), "too many")
    loop = model([node("Expand", ["x", "s"], ["y"])], {"x": (1,)}, ["y"], shape)
    assert load(loop).values["y"].shape == (1 << 40, 1 << 20)  # a shape alone costs nothing


def test_damaged_bytes_are_refused_or_understood() -> None:
    """Any change of a few bytes gives a graph or one clear line; no other exception, whatever the file says."""
    conv = node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1], auto_pad="NOTSET")
    shape = [node("Shape", ["a"], ["s"]), node("Reshape", ["a", "s"], ["b"]), node("Softmax", ["b"], ["y"], axis=1)]
    raw = model([conv, *shape], {"x": (1, 2, 5, 5)}, ["y"], {"w": normal(2, 2, 3, 3)}).SerializeToString()
    rng, seen = random.Random(7), Counter[str]()
    for _ in range(3000):
        damaged = bytearray(raw)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            seen[type(load(bytes(damaged))).__name__] += 1
        except ModelError as error:
            assert "\n" not in str(error)
            seen["ModelError"] += 1
    assert set(seen) == {"Graph", "ModelError"}


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [["a.b", "a_b", "a/b", "a:b", "a b"], ["int", "for", "NULL", "__func__"], ["10", "ü中", 'q"q', "new\nline", "*/ x"],
     ["n" * 5000, "n" * 5001], ["y", "y/add", "y/add_1", "y_1"]],
)  # fmt: skip
def test_names_of_any_kind(names: list[str]) -> None:
    nodes = [node("Add", [a, "one"], [b], name=a) for a, b in pairwise(names)]
    g = load(model(nodes, {names[0]: (3,)}, [names[-1]], {"one": np.ones(1, np.float32)}))
    assert g.inputs == (names[0],) and g.outputs == (names[-1],)
    np.testing.assert_array_equal(run_graph(g, {names[0]: np.zeros(3)})[0], np.full(3, len(names) - 1))


def test_five_thousand_nodes_in_a_row() -> None:
    nodes = [node("Add", [f"v{i}", "one"], [f"v{i + 1}"]) for i in range(5000)]
    g = load(model(nodes[::-1], {"v0": (4,)}, ["v5000"], {"one": np.ones(1, np.float32)}))
    assert [n.outputs for n in g.nodes] == [(f"v{i + 1}",) for i in range(5000)]


def test_outputs_that_no_node_makes() -> None:
    """An input, a constant, one value twice, an alias: each output gets a node and keeps its name where it can."""
    nodes = [node("Relu", ["x"], ["r"]), node("Identity", ["r"], ["i"]), node("Identity", ["x"], ["j"])]
    g = load(model(nodes, {"x": (3,)}, ["r", "i", "j", "x", "c"], {"c": np.ones(2, np.float32)}))
    assert g.outputs[:3] == ("r", "i", "j")
    assert {o for n in g.nodes for o in n.outputs} >= set(g.outputs)
    x = normal(3)
    for found, expected in zip(run_graph(g, {"x": x}), [x.clip(0), x.clip(0), x, x, np.ones(2)], strict=True):
        np.testing.assert_array_equal(found, expected)


def test_initialisers() -> None:
    """Unused ones vanish; one that is also an input is a constant, unless a value is given."""
    m = ModelProto()
    m.CopyFrom(ADD)
    m.graph.input.append(helper.make_tensor_value_info("w", F, (4,)))
    m.graph.initializer.append(numpy_helper.from_array(np.zeros(9), "never_used"))
    g = load(m)
    assert g.inputs == ("x",) and set(g.constants) == {"w"}
    other = load(m, known={"w": np.full(4, 5, np.float32)})
    np.testing.assert_array_equal(run_graph(other, {"x": np.zeros(4)})[0], np.full(4, 5))


def test_absent_outputs_and_dead_nodes() -> None:
    nodes = [node("Dropout", ["x"], ["d", ""]), node("Exp", ["x"], ["dead"]), node("Add", ["d", "x"], ["y"])]
    g = load(model(nodes, {"x": (3,)}, ["y"], opset=13))
    assert [n.operator for n in g.nodes] == ["add"]


# --- shapes -----------------------------------------------------------------------------------------------------


def reshaper() -> ModelProto:
    """Flattens by Shape, Gather, Unsqueeze, Concat, as exporters write it, then multiplies by a mask of x's size."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "first"], ["n1"]),
        node("Concat", ["n1", "minus"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["r"]),
        node("Slice", ["s", "one", "three"], ["hw"]),
        node("ReduceProd", ["hw"], ["size"], keepdims=0),
        node("Cast", ["size"], ["f"], to=F),
        node("Div", ["r", "f"], ["y"]),
    ]
    constants = {
        "zero": np.asarray(0), "first": np.array([0]), "minus": np.array([-1]), "one": np.array([1]),
        "three": np.array([3]),
    }  # fmt: skip
    return model(nodes, {"x": ("batch", "height", 4)}, ["y"], constants)


@pytest.mark.parametrize("how", [{"dims": {"batch": 2, "height": 3}}, {"shapes": {"x": (2, 3, 4)}},
                                 {"dims": {"batch": 2}, "shapes": {"x": [2, 3, 4]}}])  # fmt: skip
def test_shape_arithmetic_is_folded_once_shapes_are_bound(how: dict[str, Any]) -> None:
    g = load(reshaper(), **how)
    assert [n.operator for n in g.nodes] == ["reshape", "div"]
    x = normal(2, 3, 4)
    np.testing.assert_allclose(run_graph(g, {"x": x})[0], x.reshape(2, 12) / 12, rtol=1e-6)


def test_open_dimensions_say_how_to_bind_them() -> None:
    refused(reshaper(), r"dimension 0 of input 'x' is 'batch'; give dims=\{'batch': size\}")
    refused(reshaper(), "'height'", dims={"batch": 1})
    refused(reshaper(), "makes 'batch' 3; elsewhere it is 2", dims={"batch": 2}, shapes={"x": (3, 3, 4)})
    refused(reshaper(), "5 for 4", shapes={"x": (2, 3, 5)})
    refused(reshaper(), "has 2 dimensions; the model declares 3", shapes={"x": (2, 3)})
    refused(reshaper(), "negative", dims={"batch": -1, "height": 3})
    refused(reshaper(), "no input", shapes={"z": (1,)})
    relu = [node("Relu", ["x"], ["y"])]
    refused(model(relu, {"x": (None, 3)}, ["y"]), r"dimension 0 of input 'x' is open .* give shapes=\{'x'")
    refused(model(relu, {"x": (-1, 3)}, ["y"]), r"dimension 0 of input 'x' is -1; give shapes")
    refused(model(relu, {"x": None}, ["y"]), r"input 'x' has no shape")
    assert load(model(relu, {"x": (-1, 3)}, ["y"]), shapes={"x": (0, 3)}).values["y"].shape == (0, 3)


def test_one_symbol_of_two_inputs_is_bound_once() -> None:
    m = model([node("Add", ["x", "z"], ["y"])], {"x": ("n", 2), "z": ("n", 1)}, ["y"])
    assert load(m, shapes={"x": (5, 2)}).values["y"].shape == (5, 2)


def test_shapes_from_run_time_values_need_known() -> None:
    m = model([node("Reshape", ["x", "s"], ["y"])], {"x": (2, 3), "s": np.zeros(1, np.int64)}, ["y"])
    refused(m, r"'s'\) is only known at run time, but it decides a shape; .*known=")
    refused(m, "known names 't'", known={"t": np.array([6])})
    g = load(m, known={"s": np.array([6])})
    assert g.inputs == ("x",) and g.values["y"].shape == (6,)


@pytest.mark.parametrize(
    ("target", "zeros", "expected"),
    [([0, -1], 0, (2, 12)), ([-1, 0, 4], 0, (2, 3, 4)), ([4, 0, -1], 0, (4, 3, 2)), ([1, 24, 1], 0, (1, 24, 1))],
)
def test_reshape(target: list[int], zeros: int, expected: tuple[int, ...]) -> None:
    x = normal(2, 3, 4)
    np.testing.assert_array_equal(run("Reshape", x, constants={1: target}, allowzero=zeros)[0], x.reshape(expected))


def test_reshape_of_nothing_and_wrong_shapes() -> None:
    empty = np.zeros((2, 0), np.float32)
    assert run("Reshape", empty, constants={1: [0, 2]}, allowzero=1)[0].shape == (0, 2)
    for target, words in (
        ([-1, -1], "no shape"),
        ([5, -1], "cannot be seen"),
        ([2, 3, 0, 0], "does not have"),
        ([7], "6 elements"),
    ):
        with pytest.raises(ModelError, match=words):
            run("Reshape", normal(2, 3), constants={1: target})


@pytest.mark.parametrize("axis", [0, 1, 3, -1])
def test_flatten(axis: int) -> None:
    x = normal(2, 3, 4)
    rows = int(np.prod(x.shape[: axis % 3 if axis < 0 else axis]))
    np.testing.assert_array_equal(run("Flatten", x, axis=axis)[0], x.reshape(rows, -1))


def test_expand_keeps_extents_where_the_shape_says_one() -> None:
    x = normal(2, 1, 4)
    np.testing.assert_array_equal(run("Expand", x, constants={1: [5, 1, 3, 1]})[0], np.broadcast_to(x, (5, 2, 3, 4)))


def test_views_of_old_and_new_opsets() -> None:
    x = normal(1, 3, 1)
    np.testing.assert_array_equal(run("Squeeze", x)[0], x.reshape(3))
    np.testing.assert_array_equal(run("Squeeze", x, constants={1: [-1]})[0], x.reshape(1, 3))
    np.testing.assert_array_equal(run("Squeeze", x, opset=11, axes=[0])[0], x.reshape(3, 1))
    np.testing.assert_array_equal(run("Unsqueeze", x, opset=11, axes=[0, 4])[0], x.reshape(1, 1, 3, 1, 1))
    np.testing.assert_array_equal(run("Unsqueeze", x, constants={1: [-1, 0]})[0], x.reshape(1, 1, 3, 1, 1))
    with pytest.raises(ModelError, match="not all 1"):
        run("Squeeze", x, constants={1: [1]})


IMIN, IMAX = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (9, 0, -1),
        (9, 2, -3),
        (-1, IMIN, -1),
        (-1, IMIN, -4),
        (100, -100, -2),
        (0, 5, -1),
        (5, 5, 1),
        (2, IMAX, 3),
        (-3, -1, 1),
    ],
)
def test_slice(start: int, end: int, step: int) -> None:
    x = normal(10)
    expected = x[slice(start, None if end == IMIN else end, step)]
    np.testing.assert_array_equal(run("Slice", x, constants={1: [start], 2: [end], 3: [0], 4: [step]})[0], expected)


def test_slice_axes_and_old_form() -> None:
    x = normal(3, 4, 5)
    how = {1: np.int32([-1, 1]), 2: np.int32([-100, 2147483647]), 3: np.int32([-1, 0]), 4: np.int32([-2, 1])}
    np.testing.assert_array_equal(run("Slice", x, constants=how)[0], x[1:, :, ::-2])
    np.testing.assert_array_equal(run("Slice", x, opset=9, starts=[1, 1], ends=[3, -1])[0], x[1:3, 1:-1])


def test_split_pad_and_friends() -> None:
    x = normal(7, 2)
    parts = run("Split", x, outputs=3, num_outputs=3)
    assert [p.shape[0] for p in parts] == [3, 3, 1]
    np.testing.assert_array_equal(np.concatenate(parts), x)
    assert [p.shape[0] for p in run("Split", x, outputs=2, constants={1: [5, 2]})] == [5, 2]
    assert [p.shape[0] for p in run("Split", x, outputs=2, opset=11, split=[0, 7])] == [0, 7]
    np.testing.assert_array_equal(
        run("Pad", x, constants={1: [1, -1], 2: np.float32(3), 3: [0]})[0],
        np.pad(x[:-1], ((1, 0), (0, 0)), constant_values=3),
    )
    np.testing.assert_array_equal(
        run("Pad", x, opset=2, pads=[0, 1, 0, 0], mode="edge")[0], np.pad(x, ((0, 0), (1, 0)), "edge")
    )
    np.testing.assert_array_equal(run("Trilu", x, constants={1: 1}, upper=0)[0], np.tril(x, 1))
    np.testing.assert_array_equal(run("Tile", x, constants={1: [1, 3]})[0], np.tile(x, (1, 3)))
    np.testing.assert_array_equal(run("EyeLike", x, k=1)[0], np.eye(7, 2, 1, dtype=np.float32))
    values, places = run("TopK", x, constants={1: [2]}, axis=0, outputs=2)
    np.testing.assert_array_equal(values, -np.sort(-x, axis=0)[:2])
    np.testing.assert_array_equal(np.take_along_axis(x, places, 0), values)


# --- numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("opset", [11, 13])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_softmax_before_opset_13_flattens(kind: str, opset: int, axis: int | None) -> None:
    x = normal(2, 3, 4)
    at = {"axis": axis} if axis is not None else {}
    if opset < 13:
        first = (1 if axis is None else axis) % 3
        flat = x.reshape(int(np.prod(x.shape[:first])), -1)
        expected = run(kind, flat, opset=13, axis=1)[0].reshape(x.shape)
    else:
        expected = ReferenceEvaluator(model([node(kind, ["x"], ["y"], **at)], {"x": x}, ["y"], opset=13)).run(
            None, {"x": x}
        )[0]
    np.testing.assert_allclose(run(kind, x, opset=opset, **at)[0], expected, rtol=1e-5, atol=1e-6)


def test_clip_in_all_its_forms() -> None:
    x = np.array([-1e30, -5, 0.5, 9, np.nan], np.float32)
    low, high = np.asarray(-1, np.float32), np.asarray(6, np.float32)
    np.testing.assert_array_equal(run("Clip", x, None, high)[0], np.minimum(x, 6))
    np.testing.assert_array_equal(run("Clip", x, low)[0], np.maximum(x, -1))
    np.testing.assert_array_equal(run("Clip", x)[0], x)
    np.testing.assert_array_equal(run("Clip", x, constants={1: low, 2: high})[0], np.clip(x, -1, 6))
    np.testing.assert_array_equal(run("Clip", x, opset=6, max=6.0)[0], np.minimum(x, 6))
    np.testing.assert_array_equal(run("Clip", x[:4], high, low)[0], np.full(4, -1))


def test_integers_divide_as_in_c() -> None:
    a, b = np.array([8, -8, 7, -7]), np.array([-3, 3, -2, -2])
    np.testing.assert_array_equal(run("Div", a, b)[0], [-2, -2, -3, 3])
    np.testing.assert_array_equal(run("Mod", a, b)[0], np.mod(a, b))
    np.testing.assert_array_equal(run("Mod", a, b, fmod=1)[0], np.fmod(a, b))


def test_variadic_and_mixed_types() -> None:
    a, b, c = normal(3), normal(2, 1), np.array([np.nan, 0, 0], np.float32)
    np.testing.assert_array_equal(run("Max", a, b, c)[0], np.maximum(np.maximum(a, b), c))
    np.testing.assert_allclose(run("Mean", a, b)[0], (a + b) / 2, rtol=1e-6)
    np.testing.assert_array_equal(run("Sum", a)[0], a)
    np.testing.assert_allclose(run("Pow", np.abs(a), np.array([2, 0, 3]))[0], np.abs(a) ** [2, 0, 3], rtol=1e-5)
    np.testing.assert_array_equal(run("Pow", np.array([4, 9]), np.float32([0.5, 0.5]))[0], [2, 3])
    np.testing.assert_array_equal(
        run("PRelu", normal(2, 4) * 0 - 1, np.arange(4, dtype=np.float32))[0][0], [0, -1, -2, -3]
    )
    with pytest.raises(ModelError, match="before opset 7"):
        run("Add", normal(2, 3), normal(3), opset=6, broadcast=1)


def test_reductions_by_attribute_and_by_input() -> None:
    x = normal(2, 3, 4)
    np.testing.assert_allclose(run("ReduceSum", x, opset=11, axes=[1], keepdims=0)[0], x.sum(1), rtol=1e-5)
    np.testing.assert_allclose(run("ReduceSum", x, constants={1: [-1, 0]})[0], x.sum((0, 2), keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(run("ReduceMean", x, keepdims=0)[0], x.mean(), rtol=1e-5)
    empty = np.zeros(0, np.int64)
    np.testing.assert_array_equal(run("ReduceSum", x, constants={1: empty}, noop_with_empty_axes=1)[0], x)
    np.testing.assert_array_equal(
        run("ReduceMax", np.zeros((2, 0), np.float32), constants={1: [1]}, opset=20)[0], [[-np.inf]] * 2
    )


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dilation"), [(9, 3, 1, 2), (10, 4, 2, 3), (5, 3, 3, 2), (8, 2, 1, 1)]
)
def test_auto_pad_counts_the_dilated_kernel(auto_pad: str, size: int, kernel: int, stride: int, dilation: int) -> None:
    x, w = normal(1, 2, size), normal(3, 2, kernel)
    reach = (kernel - 1) * dilation + 1
    total = 0 if auto_pad == "VALID" else max((-(-size // stride) - 1) * stride + reach - size, 0)
    begin = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
    how: dict[str, Any] = {"strides": [stride], "dilations": [dilation]}
    if reach > size + total:
        pytest.skip("no window fits")
    found = run("Conv", x, w, auto_pad=auto_pad, **how)[0]
    np.testing.assert_allclose(found, run("Conv", x, w, pads=[begin, total - begin], **how)[0], rtol=1e-6)


def test_conv_transpose_derives_its_pads() -> None:
    x, w = normal(1, 2, 5), normal(2, 3, 3)
    whole = run("ConvTranspose", x, w, strides=[2])[0]
    assert whole.shape == (1, 3, 11)
    how: dict[str, Any] = {"strides": [2]}
    np.testing.assert_array_equal(run("ConvTranspose", x, w, auto_pad="SAME_UPPER", **how)[0], whole[..., :10])
    np.testing.assert_array_equal(run("ConvTranspose", x, w, auto_pad="SAME_LOWER", **how)[0], whole[..., 1:])
    np.testing.assert_array_equal(run("ConvTranspose", x, w, output_shape=[8], **how)[0], whole[..., 2:10])
    np.testing.assert_array_equal(
        run("ConvTranspose", x, w, pads=[1, 1], output_padding=[1], **how)[0][..., :9], whole[..., 1:10]
    )


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
def test_pools(kind: str) -> None:
    x = normal(1, 2, 7, 8)
    how: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    m = model([node(kind, ["x"], ["y"], **how)], {"x": x}, ["y"])
    np.testing.assert_allclose(
        run(kind, x, **how)[0], ReferenceEvaluator(m).run(None, {"x": x})[0], rtol=1e-5, atol=1e-6
    )


def test_max_pool_indices_and_global_pools() -> None:
    x = normal(2, 3, 6, 5)
    best, at = run("MaxPool", x, kernel_shape=[2, 2], outputs=2)
    np.testing.assert_array_equal(x.ravel()[at], best)
    np.testing.assert_allclose(run("GlobalAveragePool", x)[0], x.mean((2, 3), keepdims=True), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(run("GlobalMaxPool", x)[0], x.max((2, 3), keepdims=True))
    np.testing.assert_allclose(run("GlobalLpPool", x, p=2)[0], np.sqrt((x * x).sum((2, 3), keepdims=True)), rtol=1e-5)


@pytest.mark.parametrize("kind", ["BatchNormalization", "InstanceNormalization", "LayerNormalization"])
def test_normalisations(kind: str) -> None:
    x, p = normal(2, 4, 3, 3), [np.abs(normal(4)) + np.float32(0.1) for _ in range(4)]
    count = {"BatchNormalization": 4, "InstanceNormalization": 2}.get(kind, 0)
    inputs = [x, *p[:count], *([normal(3, 3), normal(3, 3)] if kind == "LayerNormalization" else [])]
    attributes = {"LayerNormalization": {"axis": 2}}.get(kind, {"epsilon": 1e-3})
    feeds = {f"x{i}": v for i, v in enumerate(inputs)}
    expected = ReferenceEvaluator(model([node(kind, list(feeds), ["y"], **attributes)], feeds, ["y"])).run(None, feeds)[
        0
    ]
    np.testing.assert_allclose(run(kind, *inputs, **attributes)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("opset", "count"), [(18, 2), (21, 4)])
def test_group_norm_by_group_and_by_channel(opset: int, count: int) -> None:
    x, scale, bias = normal(2, 4, 3), normal(count), normal(count)
    split = x.reshape(2, 2, -1).astype(np.float64)
    normed = ((split - split.mean(2, keepdims=True)) / np.sqrt(split.var(2, keepdims=True) + 1e-5)).reshape(x.shape)
    wide = (np.repeat(p, 4 // count)[:, None] for p in (scale, bias))
    expected = normed * next(wide) + next(wide)
    np.testing.assert_allclose(
        run("GroupNormalization", x, scale, bias, opset=opset, num_groups=2)[0], expected, rtol=1e-4, atol=1e-5
    )


def test_gather_with_run_time_indices() -> None:
    x = normal(3, 4)
    m = model([node("Gather", ["x", "i"], ["y"], axis=1)], {"x": x, "i": np.array([0, -1])}, ["y"])
    g = load(m)
    np.testing.assert_array_equal(run_graph(g, {"x": x, "i": np.array([0, -1])})[0], x[:, [0, -1]])
    with pytest.raises(IndexError, match="index 4 is outside"):
        run_graph(g, {"x": x, "i": np.array([0, 4])})


# --- resizing ---------------------------------------------------------------------------------------------------

MODES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"]


@pytest.mark.parametrize("coordinates", MODES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("size", [(8, 10), (1, 3), (6, 4), (4, 5)])
def test_resize_to_sizes(coordinates: str, mode: str, size: tuple[int, int]) -> None:
    if (coordinates, mode, size) == ("pytorch_half_pixel", "cubic", (1, 3)):
        pytest.skip("for a length of 1 the reference takes -0.5 where the standard says 0")
    x = normal(1, 1, 4, 5)
    how = {"mode": mode, "coordinate_transformation_mode": coordinates}
    nodes = [node("Resize", ["x", "", "", "s"], ["y"], **how)]
    m = model(nodes, {"x": x}, ["y"], {"s": np.array([1, 1, *size])}, opset=19)
    np.testing.assert_allclose(
        run_graph(load(m), {"x": x})[0], ReferenceEvaluator(m).run(None, {"x": x})[0], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("scale", [2.0, 1.5, 0.6, 0.5])
def test_resize_by_scales(nearest: str, scale: float) -> None:
    x = normal(2, 10)
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": nearest}
    exact = np.arange(int(10 * scale + 1e-6)) / round(scale, 3)
    exact = np.round(exact, 6)
    at = {"floor": np.floor(exact), "ceil": np.ceil(exact), "round_prefer_floor": np.ceil(exact - 0.5),
          "round_prefer_ceil": np.floor(exact + 0.5)}[nearest].clip(0, 9).astype(int)  # fmt: skip
    found = run("Resize", x, constants={2: np.float32([1, scale])}, **how)[0]
    np.testing.assert_array_equal(found, x[:, at])


def test_nearest_by_two_reads_one_cell_by_integer_division() -> None:
    x = normal(1, 1, 2, 2)
    m = model([node("Resize", ["x", "", "s"], ["y"], mode="nearest")], {"x": x}, ["y"], {"s": np.float32([1, 1, 2, 2])})
    (resize,) = load(m).nodes
    assert resize.operator == "resize" and resize.attributes["denominator"] == (1, 1, 4, 4)
    np.testing.assert_array_equal(run_graph(load(m), {"x": x})[0], x.repeat(2, 2).repeat(2, 3))
    old = run("Upsample", x, constants={1: np.float32([1, 1, 2, 2])}, opset=9)[0]
    np.testing.assert_array_equal(old, x.repeat(2, 2).repeat(2, 3))


def test_crop_and_resize_extrapolates() -> None:
    x, roi = normal(1, 1, 4, 4), np.float32([0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7])
    how = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
    nodes = [node("Resize", ["x", "r", "", "s"], ["y"], **how)]
    m = model(nodes, {"x": x}, ["y"], {"r": roi, "s": np.array([1, 1, 3, 3])}, opset=19)
    np.testing.assert_allclose(
        run_graph(load(m), {"x": x})[0], ReferenceEvaluator(m).run(None, {"x": x})[0], rtol=1e-4, atol=1e-5
    )


# --- quantisation -----------------------------------------------------------------------------------------------


def test_quantised_arithmetic() -> None:
    x = np.array([-127, 128, 0.5], np.float32)
    y, scale, zero = run("DynamicQuantizeLinear", x, outputs=3)
    np.testing.assert_array_equal(y, [0, 255, 127])
    assert scale == 1 and zero == 127
    a, b = np.arange(12, dtype=np.uint8).reshape(3, 4), np.arange(-8, 0, dtype=np.int8).reshape(4, 2)
    rows = np.array([1, 2, 3], np.uint8)
    found = run("MatMulInteger", a, b, rows)[0]
    np.testing.assert_array_equal(found, (a.astype(int) - rows[:, None]) @ b.astype(int))
    image, w, zero = np.arange(25, dtype=np.uint8).reshape(1, 1, 5, 5), np.ones((1, 1, 3, 3), np.uint8), np.uint8(9)
    centred = np.pad(image.astype(int) - 9, ((0, 0), (0, 0), (1, 1), (1, 1)))
    sums = np.lib.stride_tricks.sliding_window_view(centred[0, 0], (3, 3)).sum((2, 3))
    np.testing.assert_array_equal(run("ConvInteger", image, w, np.asarray(zero), pads=[1, 1, 1, 1])[0][0, 0], sums)


def test_quantise_by_axis_and_back() -> None:
    x, scale, zero = normal(2, 3, 4) * 20, np.float32([0.1, 0.5, 2]), np.int8([-5, 0, 7])
    q = run("QuantizeLinear", x, constants={1: scale, 2: zero}, axis=1)[0]
    np.testing.assert_array_equal(q, np.clip(np.rint(x / scale[:, None]) + zero[:, None], -128, 127))
    back = run("DequantizeLinear", q, constants={1: scale, 2: zero}, axis=-2)[0]
    np.testing.assert_array_equal(back, ((q.astype(np.int32) - zero[:, None]) * scale[:, None]).astype(np.float32))


# --- control flow, functions, recurrence ------------------------------------------------------------------------


def branch(name: str, kind: str) -> Any:
    """x is taken from the outer graph."""
    out = helper.make_tensor_value_info(name, F, None)
    return helper.make_graph([node(kind, ["x"], [name])], name, [], [out])


def conditional(nodes: Sequence[Any], condition: str, constants: Mapping[str, np.ndarray]) -> ModelProto:
    both = {"then_branch": branch("inner", "Exp"), "else_branch": branch("inner", "Neg")}
    return model([*nodes, node("If", [condition], ["y"], **both)], {"x": ("n",)}, ["y"], constants)


def test_if_takes_the_branch_that_is_known() -> None:
    shape = [node("Shape", ["x"], ["s"]), node("Equal", ["s", "three"], ["e"]), node("Squeeze", ["e"], ["c"])]
    m = conditional(shape, "c", {"three": np.array([3])})
    assert [n.operator for n in load(m, dims={"n": 3}).nodes] == ["exp"]
    assert [n.operator for n in load(m, dims={"n": 4}).nodes] == ["neg"]
    late = conditional([node("ReduceMax", ["x"], ["m"], keepdims=0), node("Cast", ["m"], ["c"], to=9)], "c", {})
    refused(late, "condition of If node 'y'.* only known at run time", dims={"n": 3})


def test_loops_are_unrolled() -> None:
    """y starts at x and doubles; the values before are collected."""
    inside = [
        node("Add", ["v", "v"], ["twice"]), node("Identity", ["v"], ["row"]), node("Identity", ["go"], ["on"]),
    ]  # fmt: skip
    infos = [
        helper.make_tensor_value_info("i", I64, ()),
        helper.make_tensor_value_info("go", 9, ()),
        helper.make_tensor_value_info("v", F, (2,)),
    ]
    outs = [helper.make_tensor_value_info(n, F, None) for n in ("on", "twice", "row")]
    body = helper.make_graph(inside, "body", infos, outs)
    m = model(
        [node("Loop", ["trips", "", "x"], ["y", "rows"], body=body)],
        {"x": (2,)},
        ["y", "rows"],
        {"trips": np.asarray(3)},
    )
    y, rows = run_graph(load(m), {"x": np.float32([1, 2])})
    np.testing.assert_array_equal(y, [8, 16])
    np.testing.assert_array_equal(rows, [[1, 2], [2, 4], [4, 8]])
    endless = model(
        [node("Loop", ["trips", "", "x"], ["y"], body=body)], {"x": (2,)}, ["y"], {"trips": np.asarray(1 << 40)}
    )
    endless.graph.node[0].output.append("rows")
    refused(endless, "too many to unroll")


def test_scans_are_unrolled() -> None:
    inside = [node("Add", ["acc", "row"], ["next"]), node("Identity", ["next"], ["out"])]
    infos = [helper.make_tensor_value_info(n, F, (2,)) for n in ("acc", "row")]
    outs = [helper.make_tensor_value_info(n, F, None) for n in ("next", "out")]
    body = helper.make_graph(inside, "body", infos, outs)
    scan = node("Scan", ["start", "x"], ["last", "all"], body=body, num_scan_inputs=1, scan_input_directions=[1])
    x = normal(4, 2)
    last, rows = run_graph(load(model([scan], {"x": x}, ["last", "all"], {"start": np.zeros(2, np.float32)})), {"x": x})
    np.testing.assert_allclose(rows, np.cumsum(x[::-1], 0), rtol=1e-5)
    np.testing.assert_allclose(last, x.sum(0), rtol=1e-5)


def test_functions_of_the_model_are_inlined() -> None:
    """Attributes pass through by reference, optional inputs may be absent, functions call functions."""
    reference = node("LeakyRelu", ["a"], ["b"])
    reference.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    ids = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    leaky = helper.make_function("mine", "Leaky", ["a"], ["b"], [reference], ids, ["slope"])
    clip = [node("Clip", ["a", "", "high"], ["c"]), node("Leaky", ["c"], ["b"], domain="mine", slope=0.5)]
    both = helper.make_function("mine", "Both", ["a", "high"], ["b"], clip, ids)
    nodes = [node("Both", ["x"], ["t"], domain="mine"), node("Both", ["t", "one"], ["y"], domain="mine")]
    m = model(nodes, {"x": (4,)}, ["y"], {"one": np.asarray(1, np.float32)}, functions=[leaky, both])
    x = np.float32([-4, -1, 0.5, 3])
    found = run_graph(load(m), {"x": x})[0]
    np.testing.assert_array_equal(found, [-1, -0.25, 0.5, 1])
    itself = helper.make_function("mine", "Self", ["a"], ["b"], [node("Self", ["a"], ["b"], domain="mine")], ids)
    refused(
        model([node("Self", ["x"], ["y"], domain="mine")], {"x": (4,)}, ["y"], functions=[itself]),
        "does one call itself",
    )


def test_functions_of_the_standard_are_inlined() -> None:
    """Attention and friends have no row of their own; the standard defines them by others."""
    q, k, v = normal(1, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = (weights / weights.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(run("Attention", q, k, v, opset=23)[0], expected, rtol=1e-4, atol=1e-5)
    x = normal(2, 3, 4, 4)
    axes = (0, 2, 3)
    expected = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True))
    np.testing.assert_allclose(run("MeanVarianceNormalization", x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [None, [5, 2, 3]])
def test_recurrences(kind: str, direction: str, lengths: list[int] | None) -> None:
    runtime = pytest.importorskip("onnxruntime")
    gates, states = {"RNN": (1, 1), "GRU": (3, 1), "LSTM": (4, 2)}[kind]
    count = 2 if direction == "bidirectional" else 1
    x, w, r = normal(5, 3, 2), normal(count, gates * 4, 2), normal(count, gates * 4, 4)
    constants: dict[str, np.ndarray] = {"w": w, "r": r, "b": normal(count, gates * 8)}
    if lengths is not None:
        constants["l"] = np.int32(lengths)
    starts = {f"s{i}": normal(count, 3, 4) for i in range(states)}
    names = ["x", "w", "r", "b", "l" if lengths is not None else "", *starts]
    extra = {"linear_before_reset": 1} if kind == "GRU" and direction == "forward" else {}
    outputs = ["y", *(f"last{i}" for i in range(states))]
    m = model(
        [node(kind, names, outputs, hidden_size=4, direction=direction, **extra)],
        {"x": x},
        outputs,
        {**constants, **starts},
        opset=14,
    )
    expected = runtime.InferenceSession(m.SerializeToString()).run(None, {"x": x})
    for found, right in zip(run_graph(load(m), {"x": x}), expected, strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)


# --- whole networks ---------------------------------------------------------------------------------------------


def residual_network() -> tuple[ModelProto, np.ndarray]:
    """Convolution, batch norm, a residual block with a strided shortcut, pools, a linear layer: a ResNet's parts."""
    constants: dict[str, np.ndarray] = {}
    nodes = []

    def conv(x: str, y: str, ins: int, outs: int, k: int, stride: int) -> None:
        constants[f"{y}.w"] = normal(outs, ins, k, k) * np.float32(0.2)
        how = {"strides": [stride] * 2, "pads": [k // 2] * 4, "kernel_shape": [k, k]}
        nodes.append(node("Conv", [x, f"{y}.w"], [f"{y}.c"], **how))
        for what in ("scale", "shift", "mean"):
            constants[f"{y}.{what}"] = normal(outs)
        constants[f"{y}.var"] = np.abs(normal(outs)) + np.float32(0.5)
        nodes.append(
            node("BatchNormalization", [f"{y}.c", *(f"{y}.{p}" for p in ("scale", "shift", "mean", "var"))], [y])
        )

    conv("x", "a", 3, 8, 7, 2)
    nodes += [
        node("Relu", ["a"], ["ar"]),
        node("MaxPool", ["ar"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    ]
    conv("p", "b", 8, 16, 3, 2)
    nodes.append(node("Relu", ["b"], ["br"]))
    conv("br", "c", 16, 16, 3, 1)
    conv("p", "d", 8, 16, 1, 2)
    constants["fc"], constants["fc.b"] = normal(10, 16), normal(10)
    nodes += [
        node("Add", ["c", "d"], ["e"]), node("Relu", ["e"], ["er"]), node("GlobalAveragePool", ["er"], ["g"]),
        node("Flatten", ["g"], ["f"]), node("Gemm", ["f", "fc", "fc.b"], ["y"], transB=1),
    ]  # fmt: skip
    return model(nodes, {"x": ("batch", 3, 32, 32)}, ["y"], constants), normal(2, 3, 32, 32)


def test_a_residual_network_agrees_with_onnxruntime() -> None:
    runtime = pytest.importorskip("onnxruntime")
    m, x = residual_network()
    g = load(m, dims={"batch": 2})
    assert Counter(n.operator for n in g.nodes)["conv"] == 4 and len(g.nodes) == 16
    expected = runtime.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(run_graph(g, {"x": x})[0], expected, rtol=1e-3, atol=1e-4)


def test_every_node_names_a_row_and_every_value_has_a_shape() -> None:
    g: Graph = load(residual_network()[0], dims={"batch": 1})
    from ir.operators import OPERATORS

    assert all(n.operator in OPERATORS for n in g.nodes)
    assert {n for node_ in g.nodes for n in (*node_.inputs, *node_.outputs)} == set(g.values)
    assert len({n.name for n in g.nodes}) == len(g.nodes)


# --- the standard's own suite -----------------------------------------------------------------------------------

OUT_OF_REACH = re.compile(
    r"element type|no tensor|before opset 9|training|is not supported; replace|sequence|RandomUniform|is unknown; replace"
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_standards_own_node_tests() -> None:
    """All models of `onnx.backend.test.case.node`: right, or out of reach for a reason that the message says."""
    from onnx.backend.test.case.node import collect_testcases

    passed, wrong = 0, []
    for case in collect_testcases(""):
        try:
            passed += _right(case)
        except ModelError as error:
            if not OUT_OF_REACH.search(str(error)):
                wrong.append(f"{case.name}: {error}")
        except AssertionError as error:
            wrong.append(f"{case.name}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)
    assert passed >= 1390, passed


def _right(case: Any) -> bool:
    """Inputs that decide shapes are fixed on loading, because our shapes are static."""
    names = [i.name for i in case.model.graph.input]
    for inputs, outputs in case.data_sets:
        if any(isinstance(v, list | dict) or v is None for v in (*inputs, *outputs)):
            return False
        feeds = {n: _array(v) for n, v in zip(names, inputs, strict=False)}
        try:
            g = load(case.model, {n: v.shape for n, v in feeds.items()})
        except ModelError as error:
            if "known at run time" not in str(error):
                raise
            small = {n: v for n, v in feeds.items() if v.dtype.kind in "iub" or (v.ndim < 2 and v.size < 10)}
            g = load(case.model, {n: v.shape for n, v in feeds.items() if n not in small}, known=small)
        for found, value in zip(run_graph(g, feeds), outputs, strict=False):
            expected = _array(value)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            rtol = max(case.rtol or 1e-3, 5e-3 if found.dtype == np.float16 else 0)
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=case.atol or 1e-7)
    return True


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
