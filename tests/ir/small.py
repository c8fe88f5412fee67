"""Small graphs for tests: every kind of block of the zoo at odd sizes, and random chains of operators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np

from ir.graph import Graph
from ir.zoo.builder import Builder
from ir.zoo.networks import basic, bert, bottleneck, classifier, conv_bn, inverted_residual, upsample, vit

SEED = 1


def tiny_resnet() -> Graph:
    b = Builder("resnet", SEED)
    x = conv_bn(b, b.input("x", (1, 3, 15, 18)), 8, (7, 7), (2, 2))
    x = b.node("max_pool", x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    return b.graph(classifier(b, bottleneck(b, bottleneck(b, x, 4, 1), 6, 2), 10))


def tiny_mobilenet() -> Graph:
    b = Builder("mobilenet", SEED)
    x = conv_bn(b, b.input("x", (2, 3, 15, 18)), 8, (3, 3), (2, 2), act="relu6")
    return b.graph(classifier(b, inverted_residual(b, inverted_residual(b, x, 8, 1, 6), 12, 2, 6), 10))


def tiny_3d() -> Graph:
    b = Builder("3d", SEED)
    x = conv_bn(b, b.input("x", (1, 3, 5, 9, 12)), 4, (3, 7, 7), (1, 2, 2))
    return b.graph(classifier(b, basic(b, basic(b, x, 4, 1, 3), 6, 2, 3), 5))


def tiny_dcgan() -> Graph:
    b = Builder("dcgan", SEED)
    x = b.linear(b.input("x", (2, 10)), 3 * 5 * 16)
    x = b.node("relu", b.batch_norm(b.node("reshape", x, shape=(2, 16, 3, 5))))
    x = b.node("relu", b.batch_norm(upsample(b, x, 9)))
    return b.graph(b.node("tanh", upsample(b, x, 3, bias=True)))


def tiny_bert() -> Graph:
    b = Builder("bert", SEED)
    return b.graph(bert(b, b.input("x", (2, 7), "int64"), words=50, d=16, heads=2, layers=2))


def tiny_vit() -> Graph:
    b = Builder("vit", SEED)
    return b.graph(vit(b, b.input("x", (2, 3, 12, 20)), patch=4, d=16, heads=2, layers=2, classes=10))


NETWORKS: list[Callable[[], Graph]] = [tiny_resnet, tiny_mobilenet, tiny_3d, tiny_dcgan, tiny_bert, tiny_vit]


def feeds(graph: Graph, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def values(name: str) -> np.ndarray:
        v = graph.values[name]
        numbers = rng.integers(0, 7, v.shape) if v.dtype.startswith("int") else rng.random(v.shape) * 2 - 1
        return np.asarray(numbers, v.dtype)

    return {name: values(name) for name in graph.inputs}


def assert_close(got: list[np.ndarray], want: list[np.ndarray], tolerance: float = 1e-5) -> None:
    """Within `tolerance` of the largest magnitude: the order of sums may differ."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        scale = max(1.0, float(np.abs(w[np.isfinite(w)]).max(initial=0.0)))
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * scale)


# --- random chains ------------------------------------------------------------------------------------------------

Step = Callable[[Builder, random.Random, str], str]


def _conv(b: Builder, rng: random.Random, x: str) -> str:
    c, k, groups = b.shape(x)[1], rng.choice([1, 2, 3]), rng.choice([1, 1, 2])
    groups = groups if c % groups == 0 else 1
    return b.conv(
        x, rng.choice([2, 4, 6]) * groups, (k, 3), (1, rng.choice([1, 2])), (1, 2), groups, rng.random() < 0.5
    )


def _depthwise(b: Builder, rng: random.Random, x: str) -> str:
    return b.conv(x, b.shape(x)[1], (3, 3), (2, 1), (1, 1), groups=b.shape(x)[1])


def _transposed(b: Builder, rng: random.Random, x: str) -> str:
    c, outs, k, s = b.shape(x)[1], rng.choice([3, 10]), rng.choice([2, 3, 4]), rng.choice([2, 3])
    return b.transposed(x, b.uniform((c, outs, k, k), -1, 1), strides=(s, 1), pads=(1, 0, 0, 1))


def _norm(b: Builder, rng: random.Random, x: str) -> str:
    return b.batch_norm(x)


def _vector(b: Builder, rng: random.Random, x: str) -> str:
    """Operands that broadcast: along channels, along columns, a scalar, a whole image."""
    _, c, h, w = b.shape(x)
    shape = rng.choice([(c, 1, 1), (1, c, 1, 1), (w,), (h, 1), (), (1, 1, h, w), (c, h, w)])
    return b.node(rng.choice(["mul", "add", "sub"]), x, b.constant(b.uniform(shape, -1, 1)))


def _self(b: Builder, rng: random.Random, x: str) -> str:
    y = b.node(rng.choice(["sigmoid", "relu", "neg"]), x)
    return b.node("add", x, y)


def _turned(b: Builder, rng: random.Random, x: str) -> str:
    """Height and width exchanged."""
    return b.node("transpose", x, perm=(0, 1, 3, 2))


def _pool(b: Builder, rng: random.Random, x: str) -> str:
    kind = rng.choice(["max_pool", "average_pool"])
    return b.node(kind, x, kernel=(3, 2), strides=(1, 2), pads=(1, 0, 1, 1), ceil_mode=rng.random() < 0.5)


def _concat(b: Builder, rng: random.Random, x: str) -> str:
    y = b.node("relu", x)
    return b.node("concat", x, y, axis=rng.choice([1, -1]))


def _slice(b: Builder, rng: random.Random, x: str) -> str:
    n, c, h, w = b.shape(x)
    return b.node("slice", x, starts=(0, 0, h - 1, 0), steps=(1, 1, -1, 1), sizes=(n, c, h, max(w - 1, 1)))


def _pad(b: Builder, rng: random.Random, x: str) -> str:
    return b.node("pad", x, pads=(0, 1, 0, 0, 0, 0, 1, 2), mode="constant", value=0.5)


def _softmax(b: Builder, rng: random.Random, x: str) -> str:
    return b.node("softmax", x, axes=(rng.choice([1, -1]),))


def _centred(b: Builder, rng: random.Random, x: str) -> str:
    return b.node("sub", x, b.node("reduce_mean", x, axes=rng.choice([(1,), (2, 3), (-1,)]), keepdims=True))


def _flat(b: Builder, rng: random.Random, x: str) -> str:
    """Through (n, c, h * w) and back."""
    n, c, h, w = b.shape(x)
    y = b.node("relu", b.node("reshape", x, shape=(n, c, h * w)))
    return b.node("reshape", y, shape=(n, c, h, w))


def _tokens(b: Builder, rng: random.Random, x: str) -> str:
    """Pixels as tokens: a product over channels, and back."""
    n, c, h, w = b.shape(x)
    y = b.node("transpose", b.node("reshape", x, shape=(n, c, h * w)), perm=(0, 2, 1))
    y = b.layer_norm(b.linear(y, c))
    return b.node("reshape", b.node("transpose", y, perm=(0, 2, 1)), shape=(n, c, h, w))


STEPS: list[Step] = [
    _conv, _depthwise, _transposed, _norm, _vector, _self, _turned, _pool, _concat, _slice, _pad, _softmax, _centred, _flat,
    _tokens,
]  # fmt: skip


def random_graph(seed: int) -> Graph:
    """A chain of seven operators over an image with odd sides; earlier values come back as residuals."""
    rng = random.Random(seed)
    b = Builder(f"random{seed}", seed)
    x = b.input("x", (rng.choice([1, 2]), 4, 5, 7))
    seen = [x]
    for _ in range(7):
        x = rng.choice(STEPS)(b, rng, x)
        x = next(_residual(b, rng, seen, x))
        seen.append(x)
    second = rng.choice(seen[1:])
    return b.graph(x) if rng.random() < 0.7 or second == x else b.graph(x, second)


def _residual(b: Builder, rng: random.Random, seen: list[str], x: str) -> Iterator[str]:
    same = [s for s in seen if b.shape(s) == b.shape(x)]
    yield b.node("add", x, rng.choice(same)) if same and rng.random() < 0.5 else x
