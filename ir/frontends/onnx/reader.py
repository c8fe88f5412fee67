"""From bytes to a checked ModelProto and arrays. The file is not trusted."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

from ir.graph import ModelError

Source = str | Path | bytes | ModelProto

DTYPES: Mapping[int, str] = {
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64", TensorProto.FLOAT16: "float16",
    TensorProto.INT8: "int8", TensorProto.INT16: "int16", TensorProto.INT32: "int32", TensorProto.INT64: "int64",
    TensorProto.UINT8: "uint8", TensorProto.UINT16: "uint16", TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64", TensorProto.BOOL: "bool",
}  # fmt: skip

DOMAINS = ("", "ai.onnx")  # two spellings of the standard's own domain


def shown(name: str, limit: int = 80) -> str:
    """A name from the file in one line of an error message."""
    return repr(name if len(name) <= limit else name[: limit - 3] + "...")


def one_line(text: str) -> str:
    """Text from the file may hold anything; an error message is one line."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def titled(kind: str, name: str, outputs: Sequence[str]) -> str:
    """A node in an error message: its kind, and its name or else what it makes."""
    return f"{kind if kind.isidentifier() else shown(kind)} node {shown(name or next(filter(None, outputs), ''))}"


def dtype_name(element_type: int, what: str) -> str:
    if element_type not in DTYPES:
        known = {v: k for k, v in TensorProto.DataType.items()}
        kind = known.get(element_type, str(element_type)).lower()
        raise ModelError(f"{what} has element type {kind}, which is not supported; convert the model to float32")
    return DTYPES[element_type]


def read_model(source: Source) -> tuple[ModelProto, Path | None]:
    """The parsed model and the folder that its external data must lie in (None: it came without a file)."""
    if isinstance(source, ModelProto):
        model, folder = source, None
    elif isinstance(source, bytes):
        model, folder = _parsed(source, "the bytes"), None
    else:
        path = Path(source)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise ModelError(f"cannot read {shown(str(path))}: {error.strerror}") from error
        model, folder = _parsed(data, shown(str(path))), path.parent
    _check_header(model)
    return model, folder


def _parsed(data: bytes, what: str) -> ModelProto:
    if not data:
        raise ModelError(f"{what}: empty; an ONNX model is expected")
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError) as error:
        raise ModelError(f"{what}: no ONNX model, or a truncated one; export it again") from error
    return model


def _check_header(model: ModelProto) -> None:
    if not model.HasField("graph") or not model.graph.output:
        raise ModelError("the model has no graph with outputs; is it an ONNX file?")
    newest = onnx.defs.onnx_opset_version()
    _check_text(model)
    for imported in model.opset_import:
        if imported.domain in DOMAINS and not 1 <= imported.version <= newest:
            raise ModelError(
                f"opset {imported.version} is not known (1 to {newest} are); convert the model with "
                f"onnx.version_converter or install a newer onnx"
            )


def _check_text(model: ModelProto) -> None:
    """Protobuf hands over a string that is no UTF-8 as bytes; every name must be text from here on."""
    bodies: list[GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    names: list[object] = [i.domain for i in model.opset_import]
    while bodies:
        body = bodies.pop()
        names.append(body.name)
        if isinstance(body, GraphProto):
            names += [v.name for v in (*body.input, *body.output, *body.initializer)]
            names += [d.dim_param for v in body.input for d in v.type.tensor_type.shape.dim]
            names += [e for t in body.initializer for x in t.external_data for e in (x.key, x.value)]
        else:
            names += [*body.input, *body.output, body.domain, *(a.name for a in body.attribute_proto)]
        for node in body.node:
            names += [node.name, node.op_type, node.domain, *node.input, *node.output]
            names += [n for a in node.attribute for n in (a.name, a.ref_attr_name)]
            bodies += [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
    if not all(isinstance(n, str) for n in names):
        raise ModelError("a name in the model is no UTF-8 text; the file is damaged, export it again")


def opsets(imports: Sequence[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Domain -> version. Models before IR 3 declare none and mean 1."""
    found = {"" if i.domain in DOMAINS else i.domain: i.version for i in imports}
    return {"": 1, **found}


# --- tensors ----------------------------------------------------------------------------------------------------


def tensor(proto: TensorProto, folder: Path | None, what: str) -> np.ndarray:
    """The values of an initialiser or attribute; every size is checked before anything is allocated."""
    dtype = dtype_name(proto.data_type, what)
    shape = tuple(proto.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has dimensions {shape}; one is negative")
    size = prod(shape) * np.dtype(dtype).itemsize
    if proto.data_location == TensorProto.EXTERNAL:
        data = _external(proto, folder, size, what)
        return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).astype(dtype, copy=False).reshape(shape)
    if proto.HasField("raw_data") and len(proto.raw_data) != size:
        raise ModelError(f"{what} has {len(proto.raw_data)} bytes of data, but its shape {shape} needs {size}")
    try:
        return np.asarray(numpy_helper.to_array(proto), dtype).reshape(shape)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{what} of shape {shape} has other data than its shape needs") from error


def _external(proto: TensorProto, folder: Path | None, size: int, what: str) -> bytes:
    """External data, only from a plain file inside the model's own folder."""
    entries = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"{what} lies in the file {shown(location)}; load the model by its path, not from memory")
    path = _inside(folder, location, what)
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or size)
    except ValueError as error:
        raise ModelError(f"{what}: offset and length of its external data must be integers") from error
    if length != size or offset < 0:
        raise ModelError(f"{what}: its external data has {length} bytes at {offset}, but its shape needs {size}")
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < offset + size:
            raise ModelError(f"{what}: the file {shown(location)} ends before the data does; copy it again")
        file.seek(offset)
        return file.read(size)


def _inside(folder: Path, location: str, what: str) -> Path:
    """A name below the folder; no step of it may be a link, so that the file cannot point elsewhere."""
    parts = Path(location).parts
    if not location or "\0" in location or Path(location).is_absolute() or ".." in parts:
        raise ModelError(
            f"{what}: its external data is at {shown(location)}; only files in the model's own folder are read"
        )
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise ModelError(
                f"{what}: its external data {shown(location)} is a symbolic link; put the file itself there"
            )
    if not path.is_file():
        raise ModelError(f"{what}: the external data file {shown(location)} is missing; it belongs beside the model")
    return path


# --- attributes -------------------------------------------------------------------------------------------------

Attributes = Mapping[str, object]


def attribute(proto: AttributeProto, folder: Path | None, what: str) -> object:
    """int, float, str, tuples of them, an array for a tensor, a GraphProto for a subgraph."""
    match proto.type:
        case AttributeProto.INT:
            return int(proto.i)
        case AttributeProto.FLOAT:
            return float(proto.f)
        case AttributeProto.STRING:
            return proto.s.decode("utf-8", "replace")
        case AttributeProto.INTS:
            return tuple(int(i) for i in proto.ints)
        case AttributeProto.FLOATS:
            return tuple(float(f) for f in proto.floats)
        case AttributeProto.STRINGS:
            return tuple(s.decode("utf-8", "replace") for s in proto.strings)
        case AttributeProto.TENSOR:
            return tensor(proto.t, folder, what)
        case AttributeProto.GRAPH:
            return proto.g
        case other:
            raise ModelError(f"{what} is of kind {other}, which is not supported")


def captured(graph: GraphProto) -> set[str]:
    """Names that a subgraph, and the subgraphs inside it, may take from outside."""
    names: set[str] = set()
    stack = [graph]
    while stack:
        inner = stack.pop()
        for node in inner.node:
            names.update(node.input)
            stack += [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
        names.update(o.name for o in inner.output)
    return names - {""}


# --- shapes of inputs -------------------------------------------------------------------------------------------


def bound_shapes(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]
) -> dict[str, tuple[tuple[int, ...], str]]:
    """(shape, dtype) of every input. A shape given for one input binds its symbols for all the others."""
    names = {i.name for i in inputs}
    for name in shapes:
        if name not in names:
            raise ModelError(
                f"shapes names {shown(name)}, which is no input; inputs are {', '.join(map(shown, names))}"
            )
    known = dict(dims)
    for proto in inputs:
        if proto.name in shapes:
            _bind(proto, tuple(shapes[proto.name]), known)
    return {p.name: (_shape(p, shapes, known), _element_type(p)) for p in inputs}


def _element_type(proto: onnx.ValueInfoProto) -> str:
    if not proto.type.HasField("tensor_type"):
        raise ModelError(f"input {shown(proto.name)} is no tensor; sequences, maps and optionals are not supported")
    return dtype_name(proto.type.tensor_type.elem_type, f"input {shown(proto.name)}")


def _bind(proto: onnx.ValueInfoProto, shape: tuple[int, ...], known: dict[str, int]) -> None:
    """Check a given shape against the declared one and take its symbols from it."""
    what = f"the shape {shape} given for input {shown(proto.name)}"
    if not proto.type.tensor_type.HasField("shape"):
        return
    declared = proto.type.tensor_type.shape.dim
    if len(declared) != len(shape):
        raise ModelError(f"{what} has {len(shape)} dimensions; the model declares {len(declared)}")
    for d, size in zip(declared, shape, strict=True):
        if d.HasField("dim_value") and d.dim_value >= 0 and d.dim_value != size:
            raise ModelError(f"{what} differs from the declared one: {size} for {d.dim_value}")
        if d.dim_param and known.setdefault(d.dim_param, size) != size:
            raise ModelError(f"{what} makes {shown(d.dim_param)} {size}; elsewhere it is {known[d.dim_param]}")


def _shape(
    proto: onnx.ValueInfoProto, shapes: Mapping[str, Sequence[int]], known: Mapping[str, int]
) -> tuple[int, ...]:
    if proto.name in shapes:
        out = tuple(int(d) for d in shapes[proto.name])
    elif not proto.type.HasField("tensor_type"):
        out = ()
    elif not proto.type.tensor_type.HasField("shape"):
        raise ModelError(f"input {shown(proto.name)} has no shape; give shapes={{{shown(proto.name)}: (...)}}")
    else:
        out = tuple(_extent(proto.name, p, d, known) for p, d in enumerate(proto.type.tensor_type.shape.dim))
    if any(d < 0 for d in out):
        raise ModelError(f"input {shown(proto.name)} has shape {out}; an extent is negative")
    return out


def _extent(name: str, position: int, dim: onnx.TensorShapeProto.Dimension, known: Mapping[str, int]) -> int:
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    if dim.dim_param in known and dim.dim_param:
        return int(known[dim.dim_param])
    where = f"dimension {position} of input {shown(name)}"
    if dim.dim_param:
        raise ModelError(
            f"{where} is {shown(dim.dim_param)}; give dims={{{shown(dim.dim_param)}: size}}, or --dim {shown(dim.dim_param)}=SIZE"
        )
    size = f"{dim.dim_value}" if dim.HasField("dim_value") else "open and has no name"
    raise ModelError(f"{where} is {size}; give shapes={{{shown(name)}: (...)}}")
