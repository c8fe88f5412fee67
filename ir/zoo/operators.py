"""The paper's operators and subgraphs (Ansor, OSDI 2020, sections 7.1 and 7.2): shapes, definitions, flops.

Shapes are those of Ansor's scripts (TVM's `te_workload.CONFIGS`). Only useful multiplications count as flops: none
by the zeros that a transposed convolution inserts. Values of weights are those of the benchmark's ONNX files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from ir.zoo.builder import Builder

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PaperOperator:
    """One row: configurations (the first number is the batch), definition (writes nodes, returns the output), flops."""

    title: str
    shapes: tuple[Shape, ...]
    build: Callable[[Builder, Shape], str]
    flops: Callable[[Shape], float]


@dataclass(frozen=True, slots=True)
class Conv:
    """A convolution's numbers; `size` and `out` are spatial."""

    batch: int
    size: Shape
    inputs: int
    outputs: int
    kernel: int
    stride: int
    pad: int
    dilation: int = 1
    groups: int = 1

    @property
    def taps(self) -> Shape:
        return (self.kernel,) * len(self.size)

    @property
    def out(self) -> Shape:
        reach = self.dilation * (self.kernel - 1) + 1
        return tuple((h + 2 * self.pad - reach) // self.stride + 1 for h in self.size)

    @property
    def attributes(self) -> dict[str, Shape]:
        rank = len(self.size)
        return {"strides": (self.stride,) * rank, "pads": (self.pad,) * 2 * rank}


def conv_of(shape: Shape, rank: int = 2) -> Conv:
    """N, *spatial, CI, CO, k, s, p[, dilation[, groups]]"""
    return Conv(shape[0], shape[1 : 1 + rank], *shape[1 + rank :])


def depthwise_of(shape: Shape) -> Conv:
    """N, H, W, C, k, s, p"""
    n, h, w, c, k, s, p = shape
    return Conv(n, (h, w), c, c, k, s, p, groups=c)


# --- definitions ------------------------------------------------------------------------------------------------


def values(b: Builder, place: int, shape: Shape, scale: float = 1.0) -> np.ndarray:
    """Constant number `place`: uniform in -scale .. scale."""
    return (np.random.default_rng(200 + place + b.seed).random(shape, dtype=np.float32) * 2 - 1) * np.float32(scale)


def image(b: Builder, conv: Conv) -> str:
    shape = (conv.batch, *conv.size, conv.inputs) if b.last else (conv.batch, conv.inputs, *conv.size)
    return b.input("x", shape)


def weights(b: Builder, conv: Conv) -> np.ndarray:
    inner = conv.inputs // conv.groups
    return values(b, 0, (conv.outputs, inner, *conv.taps), 1 / sqrt(inner * prod(conv.taps)))


def convolution(b: Builder, conv: Conv, name: str = "y", *bias: str) -> str:
    rank = len(conv.size)
    return b.convolution(
        image(b, conv), weights(b, conv), *bias,
        name=name, dilations=(conv.dilation,) * rank, groups=conv.groups, **conv.attributes,
    )  # fmt: skip


def transposed(b: Builder, shape: Shape) -> str:
    conv = conv_of(shape)
    w = values(b, 0, (conv.inputs, conv.outputs, *conv.taps), 1 / sqrt(conv.inputs * prod(conv.taps)))
    return b.transposed(image(b, conv), w, name="y", **conv.attributes)


def layer(b: Builder, shape: Shape) -> str:
    """Convolution with bias, batch normalisation with neutral statistics, relu."""
    conv = conv_of(shape)
    c = conv.outputs
    bias, scale, offset = (b.constant(values(b, i + 1, (c,)), n) for i, n in enumerate(("bias", "scale", "offset")))
    mean, variance = b.constant(np.zeros(c, np.float32), "mean"), b.constant(np.ones(c, np.float32), "var")
    y = convolution(b, conv, "c0", bias)
    normed = b.node("batch_norm", y, scale, offset, mean, variance, name="c1", epsilon=0.0, axis=3 if b.last else 1)
    return b.node("relu", normed, name="y")


def gemm(b: Builder, shape: Shape) -> str:
    batch, n, m, k = shape
    return b.node("matmul", b.input("a", (batch, n, k)), b.input("b", (batch, k, m)), name="y")


def capsule(b: Builder, shape: Shape) -> str:
    """4 x 4 matrices as channels."""
    n, h, w, ci, co, k, s, p = shape
    x = b.input("x", (n, h, w, 4, 4, ci))
    weight = b.constant(values(b, 0, (k, k, 4, 4, ci, co), 1 / sqrt(k * k * 4 * ci)), "w")
    return b.node("capsule_conv", x, weight, name="y", strides=(s, s), pads=(p,) * 4)


def norm(b: Builder, shape: Shape) -> str:
    return b.node("reduce_l2", b.input("a", shape), name="y", axes=(1, 2), keepdims=False)


def scores(b: Builder, shape: Shape, name: str = "y") -> str:
    """Queries and keys lie as (batch, sequence, head, dimension): two transposes and a batched product."""
    batch, length, heads, size = shape
    q, v = (b.input(n, (batch, length, heads, size)) for n in ("q", "v"))
    rows = b.node("transpose", q, name="qt", perm=(0, 2, 1, 3))
    columns = b.node("transpose", v, name="vt", perm=(0, 2, 3, 1))
    return b.node("matmul", rows, columns, name=name)


def softmax_scores(b: Builder, shape: Shape) -> str:
    return b.node("softmax", scores(b, shape, "s"), name="y", axes=(-1,))


# --- flops --------------------------------------------------------------------------------------------------------


def conv_flops(conv: Conv) -> float:
    return 2.0 * conv.batch * conv.outputs * (conv.inputs // conv.groups) * prod(conv.out) * prod(conv.taps)


def transposed_flops(shape: Shape) -> float:
    conv = conv_of(shape)
    return 2.0 * conv.batch * conv.inputs * conv.outputs * prod(conv.size) * prod(conv.taps)


def gemm_flops(shape: Shape) -> float:
    return 2.0 * prod(shape)


def capsule_flops(shape: Shape) -> float:
    n, h, w, ci, co, k, s, p = shape
    return 4**3 * conv_flops(Conv(n, (h, w), ci, co, k, s, p))


def scores_flops(shape: Shape) -> float:
    batch, length, heads, size = shape
    return 2.0 * batch * heads * length * length * size


# --- the table ----------------------------------------------------------------------------------------------------

C2D = (
    (1, 224, 224, 3, 64, 7, 2, 3),
    (1, 56, 56, 64, 64, 1, 1, 0),
    (1, 14, 14, 256, 256, 3, 1, 1),
    (1, 7, 7, 512, 512, 3, 1, 1),
)
TBG = ((1, 128, 12, 64), (1, 128, 16, 64), (1, 64, 12, 128), (1, 128, 12, 128))

PAPER: dict[str, PaperOperator] = {
    "C1D": PaperOperator(
        "1D convolution: N, L, CI, CO, kernel, stride, pad",
        ((1, 256, 64, 128, 3, 2, 1), (1, 128, 128, 256, 1, 2, 0), (1, 64, 256, 256, 5, 1, 2), (1, 32, 512, 512, 3, 1, 1)),
        lambda b, s: convolution(b, conv_of(s, 1)),
        lambda s: conv_flops(conv_of(s, 1)),
    ),
    "C2D": PaperOperator(
        "2D convolution: N, H, W, CI, CO, kernel, stride, pad",
        C2D,
        lambda b, s: convolution(b, conv_of(s)),
        lambda s: conv_flops(conv_of(s)),
    ),
    "C3D": PaperOperator(
        "3D convolution: N, D, H, W, CI, CO, kernel, stride, pad",
        tuple((1, 16, *s[1:]) for s in C2D),
        lambda b, s: convolution(b, conv_of(s, 3)),
        lambda s: conv_flops(conv_of(s, 3)),
    ),
    "GMM": PaperOperator(
        "matrix product: batch, N, M, K",
        ((1, 128, 128, 128), (1, 512, 32, 512), (1, 512, 512, 512), (1, 1024, 1024, 1024)),
        gemm,
        gemm_flops,
    ),
    "GRP": PaperOperator(
        "grouped convolution: N, H, W, CI, CO, kernel, stride, pad, dilation, groups",
        ((1, 56, 56, 64, 128, 3, 2, 1, 1, 4), *((*s, 1, 4) for s in C2D[1:])),
        lambda b, s: convolution(b, conv_of(s)),
        lambda s: conv_flops(conv_of(s)),
    ),
    "DIL": PaperOperator(
        "dilated convolution: N, H, W, CI, CO, kernel, stride, pad, dilation",
        tuple((*s, 2) for s in C2D),
        lambda b, s: convolution(b, conv_of(s)),
        lambda s: conv_flops(conv_of(s)),
    ),
    "DEP": PaperOperator(
        "depthwise convolution: N, H, W, C, kernel, stride, pad",
        ((1, 112, 112, 32, 3, 1, 1), (1, 112, 112, 64, 3, 2, 1), (1, 14, 14, 512, 3, 2, 1), (1, 7, 7, 1024, 3, 1, 1)),
        lambda b, s: convolution(b, depthwise_of(s)),
        lambda s: conv_flops(depthwise_of(s)),
    ),
    "T2D": PaperOperator(
        "transposed 2D convolution: N, H, W, CI, CO, kernel, stride, pad",
        ((1, 4, 4, 512, 256, 4, 2, 1), (1, 8, 8, 256, 128, 4, 2, 1), (1, 16, 16, 128, 64, 4, 2, 1), (1, 32, 32, 64, 3, 4, 2, 1)),
        transposed,
        transposed_flops,
    ),
    "CAP": PaperOperator(
        "capsule convolution of 4 x 4 matrices: N, H, W, CI, CO, kernel, stride, pad",
        ((1, 16, 16, 32, 32, 3, 2, 1), (1, 8, 8, 32, 32, 3, 1, 1), (1, 16, 16, 8, 16, 3, 2, 1), (1, 8, 8, 16, 16, 3, 1, 1)),
        capsule,
        capsule_flops,
    ),
    "NRM": PaperOperator(
        "matrix 2-norm: batch, M, N",
        ((1, 256, 256), (1, 512, 512), (1, 1024, 1024), (1, 4096, 1024)),
        norm,
        gemm_flops,
    ),
    "CBR": PaperOperator(
        "convolution, bias, batch normalisation, relu: N, H, W, CI, CO, kernel, stride, pad",
        (C2D[0], (1, 56, 56, 64, 128, 3, 2, 1), (1, 28, 28, 128, 256, 1, 2, 0), C2D[3]),
        layer,
        lambda s: conv_flops(conv_of(s)),
    ),
    "TBG": PaperOperator("transposes and batched product: batch, sequence, heads, dimension", TBG, scores, scores_flops),
    "TBS": PaperOperator("TBG, then softmax over the last dimension", TBG, softmax_scores, scores_flops),
}  # fmt: skip
