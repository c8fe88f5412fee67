"""Whole networks with seeded random weights, channels-first, as exporters write them.

Shapes are the usual ones (ResNet: He 2015; MobileNet-V2: Sandler 2018; 3D-ResNet: Tran 2018; DCGAN: Radford 2015;
BERT: Devlin 2018; ViT: Dosovitskiy 2020). Batch-norm statistics are random, so that folding them matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from ir.zoo.builder import Builder


@dataclass(frozen=True, slots=True)
class Network:
    """One row. `build(builder, batch, length)` returns the output; `length`: of a text, 0 where there is none."""

    title: str
    build: Callable[[Builder, int, int], str]
    length: int = 0


def conv_bn(
    b: Builder, x: str, outputs: int, kernel: Sequence[int], stride: Sequence[int], groups: int = 1, act: str = "relu"
) -> str:
    """Half-padded convolution, batch norm, activation ("" for none)."""
    y = b.batch_norm(b.conv(x, outputs, kernel, stride, groups=groups))
    if act == "relu6":
        return b.node("clip", y, low=0.0, high=6.0)
    return b.node(act, y) if act else y


def residual(b: Builder, x: str, y: str, outputs: int, stride: Sequence[int]) -> str:
    """relu(y + x), x projected where the shapes differ."""
    if b.shape(x) != b.shape(y):
        x = conv_bn(b, x, outputs, (1,) * len(stride), stride, act="")
    return b.node("relu", b.node("add", y, x))


def classifier(b: Builder, x: str, classes: int) -> str:
    """Global average, flatten, linear."""
    rank = len(b.shape(x))
    mean = b.node("reduce_mean", x, axes=tuple(range(2, rank)), keepdims=True)
    return b.linear(b.node("reshape", mean, shape=b.shape(x)[:2]), classes)


# --- image classification -----------------------------------------------------------------------------------------


def bottleneck(b: Builder, x: str, c: int, stride: int) -> str:
    y = conv_bn(b, x, c, (1, 1), (1, 1))
    y = conv_bn(b, y, c, (3, 3), (stride, stride))
    y = conv_bn(b, y, 4 * c, (1, 1), (1, 1), act="")
    return residual(b, x, y, 4 * c, (stride, stride))


def basic(b: Builder, x: str, c: int, stride: int, rank: int = 2) -> str:
    y = conv_bn(b, x, c, (3,) * rank, (stride,) * rank)
    y = conv_bn(b, y, c, (3,) * rank, (1,) * rank, act="")
    return residual(b, x, y, c, (stride,) * rank)


def resnet(b: Builder, batch: int, block: Callable[[Builder, str, int, int], str], depths: Sequence[int]) -> str:
    x = conv_bn(b, b.input("x", (batch, 3, 224, 224)), 64, (7, 7), (2, 2))
    x = b.node("max_pool", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for stage, depth in enumerate(depths):
        for i in range(depth):
            x = block(b, x, 64 << stage, 2 if stage and i == 0 else 1)
    return classifier(b, x, 1000)


def resnet50(b: Builder, batch: int, _: int) -> str:
    return resnet(b, batch, bottleneck, (3, 4, 6, 3))


def resnet18(b: Builder, batch: int, _: int) -> str:
    return resnet(b, batch, basic, (2, 2, 2, 2))


def resnet18_3d(b: Builder, batch: int, _: int) -> str:
    x = conv_bn(b, b.input("x", (batch, 3, 16, 112, 112)), 64, (3, 7, 7), (1, 2, 2))
    for stage in range(4):
        for i in range(2):
            x = basic(b, x, 64 << stage, 2 if stage and i == 0 else 1, rank=3)
    return classifier(b, x, 400)


MOBILE_STAGES = (  # expansion, channels, blocks, stride
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
)  # fmt: skip


def mobilenet_v2(b: Builder, batch: int, _: int) -> str:
    x = conv_bn(b, b.input("x", (batch, 3, 224, 224)), 32, (3, 3), (2, 2), act="relu6")
    for expansion, c, blocks, stride in MOBILE_STAGES:
        for i in range(blocks):
            x = inverted_residual(b, x, c, 1 if i else stride, expansion)
    return classifier(b, conv_bn(b, x, 1280, (1, 1), (1, 1), act="relu6"), 1000)


def inverted_residual(b: Builder, x: str, c: int, stride: int, expansion: int) -> str:
    wide = b.shape(x)[1] * expansion
    y = x if expansion == 1 else conv_bn(b, x, wide, (1, 1), (1, 1), act="relu6")
    y = conv_bn(b, y, wide, (3, 3), (stride, stride), groups=wide, act="relu6")
    y = conv_bn(b, y, c, (1, 1), (1, 1), act="")
    return b.node("add", x, y) if b.shape(x) == b.shape(y) else y


# --- generation ---------------------------------------------------------------------------------------------------


def dcgan(b: Builder, batch: int, _: int) -> str:
    """The generator: a vector of 100 becomes an image of 3 x 64 x 64."""
    x = b.linear(b.input("x", (batch, 100)), 4 * 4 * 512)
    x = b.node("relu", b.batch_norm(b.node("reshape", x, shape=(batch, 512, 4, 4))))
    for c in (256, 128, 64):
        x = b.node("relu", b.batch_norm(upsample(b, x, c)))
    return b.node("tanh", upsample(b, x, 3, bias=True))


def upsample(b: Builder, x: str, outputs: int, bias: bool = False) -> str:
    """Transposed convolution 4 x 4, stride 2: twice the size."""
    c = b.shape(x)[1]
    bound = 1 / sqrt(outputs * 16)
    w = b.uniform((c, outputs, 4, 4), -bound, bound)
    extra = [b.weight((outputs,), outputs * 16)] if bias else []
    return b.transposed(x, w, *extra, strides=(2, 2), pads=(1, 1, 1, 1))


# --- transformers -------------------------------------------------------------------------------------------------


def attention(b: Builder, x: str, heads: int) -> str:
    """Scaled dot products; queries and keys each carry the square root of the scale, as PyTorch exports it."""
    batch, length, d = b.shape(x)
    scale = b.constant(np.array((d // heads) ** -0.25, np.float32))

    def split(perm: tuple[int, ...]) -> str:
        parts = b.node("reshape", b.linear(x, d), shape=(batch, length, heads, d // heads))
        return b.node("transpose", parts, perm=perm)

    q, k, v = split((0, 2, 1, 3)), split((0, 2, 3, 1)), split((0, 2, 1, 3))
    scores = b.node("matmul", b.node("mul", q, scale), b.node("mul", k, scale))
    mixed = b.node("matmul", b.node("softmax", scores, axes=(-1,)), v)
    joined = b.node("reshape", b.node("transpose", mixed, perm=(0, 2, 1, 3)), shape=(batch, length, d))
    return b.linear(joined, d)


def mlp(b: Builder, x: str) -> str:
    d = b.shape(x)[-1]
    return b.linear(b.node("gelu", b.linear(x, 4 * d)), d)


def post_norm_layer(b: Builder, x: str, heads: int) -> str:
    x = b.layer_norm(b.node("add", x, attention(b, x, heads)))
    return b.layer_norm(b.node("add", x, mlp(b, x)))


def pre_norm_layer(b: Builder, x: str, heads: int) -> str:
    x = b.node("add", x, attention(b, b.layer_norm(x), heads))
    return b.node("add", x, mlp(b, b.layer_norm(x)))


def bert_base(b: Builder, batch: int, length: int) -> str:
    """Token numbers in, the pooled first token out."""
    return bert(b, b.input("x", (batch, length), "int64"), words=30522, d=768, heads=12, layers=12)


def bert(b: Builder, tokens: str, words: int, d: int, heads: int, layers: int) -> str:
    length = b.shape(tokens)[1]
    x = b.node("gather", b.weight((words, d), d), tokens, axis=0)
    for table in (b.weight((length, d), d), b.weight((d,), d)):  # positions, the type of the only segment
        x = b.node("add", x, table)
    x = b.layer_norm(x)
    for _ in range(layers):
        x = post_norm_layer(b, x, heads)
    return b.node("tanh", b.linear(first_token(b, x), d))


def first_token(b: Builder, x: str) -> str:
    batch, _, d = b.shape(x)
    row = b.node("slice", x, starts=(0, 0, 0), sizes=(batch, 1, d), steps=(1, 1, 1))
    return b.node("reshape", row, shape=(batch, d))


def vit_b16(b: Builder, batch: int, _: int) -> str:
    return vit(b, b.input("x", (batch, 3, 224, 224)), patch=16, d=768, heads=12, layers=12, classes=1000)


def vit(b: Builder, image: str, patch: int, d: int, heads: int, layers: int, classes: int) -> str:
    batch = b.shape(image)[0]
    x = b.conv(image, d, (patch, patch), (patch, patch), (0, 0), bias=True)
    x = b.node("reshape", x, shape=(batch, d, prod(b.shape(x)[2:])))
    x = b.node("transpose", x, perm=(0, 2, 1))
    token = b.constant(b.uniform((1, 1, d), -0.02, 0.02))
    x = b.node("concat", b.node("expand", token, shape=(batch, 1, d)), x, axis=1)
    x = b.node("add", x, b.constant(b.uniform((1, b.shape(x)[1], d), -0.02, 0.02)))
    for _ in range(layers):
        x = pre_norm_layer(b, x, heads)
    return b.linear(first_token(b, b.layer_norm(x)), classes)


NETWORKS: dict[str, Network] = {
    "resnet50":     Network("ResNet-50, 224 x 224", resnet50),
    "resnet18":     Network("ResNet-18, 224 x 224", resnet18),
    "mobilenet_v2": Network("MobileNet-V2, 224 x 224", mobilenet_v2),
    "resnet18_3d":  Network("3D-ResNet-18, 16 frames of 112 x 112", resnet18_3d),
    "dcgan":        Network("DCGAN generator, 64 x 64", dcgan),
    "bert_base":    Network("BERT base", bert_base, 128),
    "vit_b16":      Network("ViT-B/16, 224 x 224", vit_b16),
}  # fmt: skip
