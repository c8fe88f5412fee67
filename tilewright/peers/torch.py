"""PyTorch as a user has it: a module of torch functions with constants as parameters, in inference mode.

PyTorch reads no ONNX files, so the nodes of the graph are looked up in `TABLE` and traced into one module of straight
code. It is the graph as it came: channels first, batch normalisations as they stand in a model in eval mode (eager
PyTorch folds none; its compiler folds them itself). What reads a fresh value alone works in place where torchvision's
networks do, and a product by a constant matrix with a constant vector added is a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch._inductor.config
from torch import Tensor, fx, nn
from torch.nn import functional

from ir.graph import Graph, Node, Value
from tilewright.peers.contender import Array, Case, Given, Ready, Unsupported
from tilewright.peers.graphs import spelt_out

LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
INFERENCE = torch.inference_mode()  # entered for good: this process does nothing else


def eager(case: Case, given: Given) -> Ready:
    module, tensors = _prepared(case, given)
    return _ready(module, tensors)


def channels_last(case: Case, given: Given) -> Ready:
    module, tensors = _prepared(case, given)
    filters = [p for p in module.parameters() if p.dim() in LAYOUTS]
    if not filters:
        raise Unsupported("no filters, so nothing has channels to come last: it would be torch again")
    for p in filters:
        p.data = _last(p.data)
    return _ready(module, [_last(t) for t in tensors])


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=LAYOUTS.get(tensor.dim(), torch.contiguous_format))


def compiled(case: Case, given: Given) -> Ready:
    """By inductor, which freezes the parameters and folds what follows from them."""
    module, tensors = _prepared(case, given)
    torch._dynamo.reset()
    torch._inductor.config.freezing = True  # as an option of `compile` it comes too late for the tracer
    return _ready(torch.compile(module, fullgraph=True, dynamic=False), tensors)


def _prepared(case: Case, given: Given) -> tuple[nn.Module, list[Tensor]]:
    torch.set_num_threads(case.threads)
    if not torch.is_inference_mode_enabled():
        INFERENCE.__enter__()
    return traced(spelt_out(case.graph())), [torch.from_numpy(array) for array in given.values()]


def _ready(module: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]) -> Ready:
    def run() -> Sequence[Tensor]:
        return module(*tensors)

    def outputs() -> Sequence[Array]:
        return [o.contiguous().numpy() for o in run()]

    run()  # compiles
    return Ready(run, outputs)


# ---------------------------------------------------------------------------------------------- a graph as a module


@dataclass(frozen=True, slots=True)
class Call:
    """What a row may want to know of its node. spare: nobody else reads the first input, which is no view."""

    node: Node
    shapes: tuple[tuple[int, ...], ...]
    out: tuple[int, ...]
    spare: bool

    def get(self, name: str, default: Any) -> Any:
        return self.node.attributes.get(name, default)

    def refuse(self, what: str) -> Unsupported:
        return Unsupported(f"no row for {self.node.operator} ({self.node.name}) with {what}")


class Program(nn.Module):  # type: ignore[misc]
    """The graph, walked node by node; `traced` makes straight code of it."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph, self.calls = graph, calls_of(graph)
        used = {name for n in graph.nodes for name in n.inputs} | set(graph.outputs)
        self.parameter_of = {name: f"p{i}" for i, name in enumerate(graph.constants) if name in used}
        for name, parameter in self.parameter_of.items():
            tensor = torch.tensor(graph.constants[name])  # a copy: constants may be read-only
            self.register_parameter(parameter, nn.Parameter(tensor, requires_grad=False))

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        values: dict[str, Any] = {name: getattr(self, p) for name, p in self.parameter_of.items()}
        values |= {name: given[i] for i, name in enumerate(self.graph.inputs)}
        for call in self.calls:
            n = call.node
            values[n.outputs[0]] = TABLE[n.operator](call, *(values[i] if i else None for i in n.inputs))
        return tuple(values[o] for o in self.graph.outputs)


def traced(graph: Graph) -> nn.Module:
    """Raises Unsupported for an operator without a row, and for what a row cannot do."""
    return fx.symbolic_trace(Program(with_linear_layers(graph)).eval())


def calls_of(graph: Graph) -> tuple[Call, ...]:
    consumers, producer = graph.consumers(), graph.producer()
    calls = []
    for n in graph.nodes:
        if n.operator not in TABLE or any(n.outputs[1:]):
            raise Unsupported(f"PyTorch has no row for {n.operator}{' with several outputs' if n.outputs[1:] else ''}")
        first = n.inputs[0]
        maker = producer.get(first)
        alone = len(consumers[first]) == 1 and n.inputs.count(first) == 1 and first not in graph.outputs
        spare = alone and maker is not None and maker.operator in FRESH
        shapes = tuple(graph.values[i].shape if i else () for i in n.inputs)
        calls.append(Call(n, shapes, graph.values[n.outputs[0]].shape, spare))
    return tuple(calls)


def with_linear_layers(graph: Graph) -> Graph:
    """matmul by a constant matrix, add of a constant vector  -->  linear, by the matrix transposed

    Exporters write a linear layer so where its input has more than two dimensions.
    """
    producer, consumers = graph.producer(), graph.consumers()
    constants, nodes = dict(graph.constants), []
    for n in graph.nodes:
        product = _biased_product(graph, n, producer, consumers) if n.operator == "add" else None
        if product is None:
            nodes.append(n)
            continue
        (x, matrix), (bias,) = product.inputs, (i for i in n.inputs if i != product.outputs[0])
        turned = f"{matrix}.T"
        constants[turned] = np.ascontiguousarray(constants[matrix].T)
        nodes = [*(kept for kept in nodes if kept is not product), Node(n.name, "linear", (x, turned, bias), n.outputs)]
    values = {name: Value(name, array.shape, str(array.dtype)) for name, array in constants.items()}
    return replace(graph, nodes=tuple(nodes), constants=constants, values={**graph.values, **values})


def _biased_product(
    graph: Graph, add: Node, producer: Mapping[str, Node], consumers: Mapping[str, list[Node]]
) -> Node | None:
    """The product that becomes a linear layer together with `add`."""
    ranks = {name: graph.constants[name].ndim for name in graph.constants}
    for product, bias in (add.inputs, add.inputs[::-1]):
        n = producer.get(product)
        alone = len(consumers[product]) == 1 and product not in graph.outputs
        if n and n.operator == "matmul" and alone and ranks.get(bias) == 1 and ranks.get(n.inputs[1]) == 2:
            return n
    return None


# ---------------------------------------------------------------------------------------------- operators


def _symmetric(pads: Sequence[int]) -> bool:
    return tuple(pads[: len(pads) // 2]) == tuple(pads[len(pads) // 2 :])


def _padded(x: Tensor, pads: Sequence[int], value: float = 0.0) -> Tensor:
    """pads: all begins, then all ends, of the last dimensions; torch wants pairs, the last dimension first."""
    half = len(pads) // 2
    pairs = zip(reversed(pads[:half]), reversed(pads[half:]), strict=True)
    return functional.pad(x, [n for pair in pairs for n in pair], value=value)


def _window(c: Call, rank: int) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """strides, dilations, pads"""
    if c.get("layout", None) is not None:
        raise c.refuse("a layout of its own")
    ones = (1,) * rank
    return c.get("strides", ones), c.get("dilations", ones), c.get("pads", (0,) * 2 * rank)


def _conv(c: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    rank = len(c.out) - 2
    strides, dilations, pads = _window(c, rank)
    if not _symmetric(pads):
        x, pads = _padded(x, pads), (0,) * 2 * rank
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    return function(x, w, bias, strides, pads[:rank], dilations, c.get("groups", 1))


def _conv_transpose(c: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """What the end is padded less than the beginning is output padding."""
    rank = len(c.out) - 2
    strides, dilations, pads = _window(c, rank)
    begins, ends = pads[:rank], pads[rank:]
    more = [m + b - e for m, b, e in zip(c.get("output_padding", (0,) * rank), begins, ends, strict=True)]
    if min(more) < 0:
        raise c.refuse(f"pads {tuple(pads)}")
    function = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    return function(x, w, bias, strides, begins, more, c.get("groups", 1), dilations)


def _max_pool(c: Call, x: Tensor) -> Tensor:
    rank, kernel = len(c.out) - 2, c.get("kernel", ())
    strides, dilations, pads = _window(c, rank)
    if c.get("ceil_mode", False):
        raise c.refuse("ceil_mode")
    if not _symmetric(pads) or any(2 * p > k for p, k in zip(pads, kernel, strict=False)):
        x, pads = _padded(x, pads, float("-inf")), (0,) * 2 * rank
    function = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[rank - 1]
    return function(x, kernel, strides, pads[:rank], dilations)


def _average_pool(c: Call, x: Tensor) -> Tensor:
    rank, kernel = len(c.out) - 2, c.get("kernel", ())
    strides, dilations, pads = _window(c, rank)
    if c.get("ceil_mode", False) or not _symmetric(pads) or max(dilations) > 1:
        raise c.refuse("ceil_mode, dilations or uneven pads")
    function = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[rank - 1]
    return function(x, kernel, strides, pads[:rank], count_include_pad=c.get("count_include_pad", False))


def _batch_norm(c: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    if c.get("axis", 1) != 1:
        raise c.refuse("channels that are not second")
    return functional.batch_norm(x, mean, variance, scale, bias, False, 0.0, c.get("epsilon", 1e-5))


def _layer_norm(c: Call, x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    over = c.out[c.get("axis", -1) % len(c.out) :]
    if any(shape != over for shape in c.shapes[1:] if shape):
        raise c.refuse("parameters that broadcast")
    return functional.layer_norm(x, over, scale, bias, c.get("epsilon", 1e-5))


def _gemm(c: Call, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    alpha, beta = c.get("alpha", 1.0), c.get("beta", 1.0)
    a = a.t() if c.get("trans_a", False) else a
    if c.get("trans_b", False) and alpha == beta == 1.0:
        return functional.linear(a, b, bias)
    b = b.t() if c.get("trans_b", False) else b
    return alpha * torch.mm(a, b) if bias is None else torch.addmm(bias, a, b, beta=beta, alpha=alpha)


def _add(c: Call, x: Tensor, y: Tensor) -> Tensor:
    if c.spare and c.shapes[0] == c.out:
        x += y
        return x
    return x + y


def _clip(c: Call, x: Tensor, *bounds: Tensor) -> Tensor:
    if bounds:
        raise c.refuse("bounds that are inputs")
    low, high = c.get("low", float("-inf")), c.get("high", float("inf"))
    return functional.hardtanh(x, low, high, inplace=c.spare)


def _softmax(c: Call, x: Tensor) -> Tensor:
    axes = c.get("axes", (-1,))
    if len(axes) != 1:
        raise c.refuse(f"axes {axes}")
    return torch.softmax(x, axes[0])


def _gather(c: Call, table: Tensor, indices: Tensor) -> Tensor:
    if c.get("axis", 0) == 0 and len(c.shapes[0]) == 2:
        return functional.embedding(indices, table)
    return torch.index_select(table, c.get("axis", 0), indices.reshape(-1)).reshape(c.out)


def _slice(c: Call, x: Tensor) -> Tensor:
    starts, sizes, steps = c.get("starts", ()), c.get("sizes", ()), c.get("steps", (1,) * len(c.out))
    if min(steps, default=1) < 1:
        raise c.refuse("negative steps")
    return x[tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in zip(starts, sizes, steps, strict=True))]


def _pad(c: Call, x: Tensor, *value: Tensor) -> Tensor:
    if value or c.get("mode", "constant") != "constant":
        raise c.refuse("a mode, or a value that is an input")
    return _padded(x, c.get("pads", ()), c.get("value", 0.0))


def _reduced(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of a tensor, the dimensions to reduce, and whether they stay as ones."""

    def row(c: Call, x: Tensor) -> Tensor:
        axes = c.get("axes", tuple(range(len(c.shapes[0]))))
        return function(x, dim=axes, keepdim=c.get("keepdims", True))

    return row


def _plain(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of tensors alone."""
    return lambda c, *tensors: function(*tensors)


# Operators whose result is new memory, which the next may overwrite.
FRESH = {"add", "batch_norm", "conv", "conv_transpose", "gemm", "linear", "matmul", "mul", "sub", "div"}

TABLE: dict[str, Callable[..., Tensor]] = {
    "abs":            _plain(torch.abs),
    "add":            _add,
    "average_pool":   _average_pool,
    "batch_norm":     _batch_norm,
    "clip":           _clip,
    "concat":         lambda c, *x: torch.cat(x, c.get("axis", 0)),
    "conv":           _conv,
    "conv_transpose": _conv_transpose,
    "div":            _plain(torch.div),
    "erf":            _plain(torch.erf),
    "exp":            _plain(torch.exp),
    "expand":         lambda c, x: torch.broadcast_to(x, c.out),
    "gather":         _gather,
    "gelu":           lambda c, x: functional.gelu(x, approximate=c.get("approximate", "none")),
    "gemm":           _gemm,
    "hard_swish":     _plain(functional.hardswish),
    "layer_norm":     _layer_norm,
    "leaky_relu":     lambda c, x: functional.leaky_relu(x, c.get("alpha", 0.01)),
    "linear":         _plain(functional.linear),
    "log":            _plain(torch.log),
    "matmul":         _plain(torch.matmul),
    "max":            _plain(torch.maximum),
    "max_pool":       _max_pool,
    "min":            _plain(torch.minimum),
    "mul":            _plain(torch.mul),
    "neg":            _plain(torch.neg),
    "pad":            _pad,
    "pow":            _plain(torch.pow),
    "reduce_l2":      _reduced(torch.linalg.vector_norm),
    "reduce_max":     _reduced(torch.amax),
    "reduce_mean":    _reduced(torch.mean),
    "reduce_min":     _reduced(torch.amin),
    "reduce_sum":     _reduced(torch.sum),
    "relu":           lambda c, x: functional.relu(x, inplace=c.spare),
    "reshape":        lambda c, x: x.reshape(c.out),
    "sigmoid":        _plain(torch.sigmoid),
    "slice":          _slice,
    "softmax":        _softmax,
    "sqrt":           _plain(torch.sqrt),
    "sub":            _plain(torch.sub),
    "tanh":           _plain(torch.tanh),
    "transpose":      lambda c, x: x.permute(c.get("perm", tuple(reversed(range(len(c.out)))))),
}  # fmt: skip
