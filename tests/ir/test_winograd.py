"""Winograd's algorithm is the same sums: its matrices are exact, its DAG equals the direct one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ir.compute import MAX, Compute, Dag, Input
from ir.evaluate import evaluate
from ir.expr import Axis, Read
from ir.winograd import filtering, saving, sliding, winograd

WEIGHTS = frozenset({"w"})


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (2, 2), (3, 2), (4, 2), (2, 5), (3, 3), (1, 3), (3, 4)])
def test_minimal_filtering_is_exact(m: int, r: int) -> None:
    f = filtering(m, r)
    rng = np.random.default_rng(m * 10 + r)
    x = [Fraction(int(v)) for v in rng.integers(-9, 10, m + r - 1)]
    w = [Fraction(int(v)) for v in rng.integers(-9, 10, r)]

    def times(matrix: tuple[tuple[Fraction, ...], ...], vector: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]

    products = [a * b for a, b in zip(times(f.data, x), times(f.weight, w), strict=True)]
    assert times(f.back, products) == [sum(x[i + k] * w[k] for k in range(r)) for i in range(m)]


def test_f23_is_the_published_one() -> None:
    """Lavin and Gray, equation 5, up to the sign of a point's factor, which data and weight share."""
    f = filtering(2, 3)
    assert f.back == ((1, 1, 1, 0), (0, 1, -1, 1))
    assert [tuple(abs(x) for x in row) for row in f.weight] == [
        (1, 0, 0), (Fraction(1, 2),) * 3, (Fraction(1, 2),) * 3, (0, 0, 1)
    ]  # fmt: skip
    assert [tuple(abs(x) for x in row) for row in f.data] == [(1, 0, 1, 0), (0, 1, 1, 0), (0, 1, 1, 0), (0, 1, 0, 1)]


def test_points_run_out_with_a_reason() -> None:
    with pytest.raises(ValueError, match=r"F\(8, 3\) needs 10 points, of which there are 6 at most"):
        filtering(8, 3)


def conv2d(height: int, width: int, taps: tuple[int, int], stride: int = 1, dilation: int = 1, groups: int = 1) -> Dag:
    """Batch 2, 4 channels in, 6 out: data is as large as the windows need."""
    n, i, j, g, o = Axis("n", 2), Axis("i", height), Axis("j", width), Axis("g", groups), Axis("o", 6 // groups)
    r, s, c = Axis("r", taps[0]), Axis("s", taps[1]), Axis("c", 4 // groups)
    at = (n, i * stride + r * dilation, j * stride + s * dilation, g * (4 // groups) + c)
    y = Compute("y", (n, i, j, g, o), Read("x", at) * Read("w", (r, s, g, c, o)), (r, s, c))
    shape = (2, *(stride * (e - 1) + dilation * (t - 1) + 1 for e, t in zip((height, width), taps, strict=True)), 4)
    weight = Input("w", (*taps, groups, 4 // groups, 6 // groups), constant=True)
    return Dag((Input("x", shape), weight), (y,), ("y",))


def phases(height: int, width: int) -> Dag:
    """What a transposed convolution of stride 2 is made of: every phase has its own taps, and starts its own way on."""
    i, p, j, q, o = Axis("i", height), Axis("p", 2), Axis("j", width), Axis("q", 2), Axis("o", 3)
    r, s, c = Axis("r", 2), Axis("s", 2), Axis("c", 4)
    y = Compute("y", (i, p, j, q, o), Read("x", (i + p + r, j + q + s, c)) * Read("w", (p, q, r, s, c, o)), (r, s, c))
    weight = Input("w", (2, 2, 2, 2, 4, 3), constant=True)
    return Dag((Input("x", (height + 2, width + 2, 4)), weight), (y,), ("y",))


def conv1d(length: int, taps: int) -> Dag:
    i, o, r, c = Axis("i", length), Axis("o", 5), Axis("r", taps), Axis("c", 3)
    y = Compute("y", (i, o), Read("w", (o, r, c)) * Read("x", (c, i + r)), (r, c))
    return Dag((Input("x", (3, length + taps - 1)), Input("w", (5, taps, 3), constant=True)), (y,), ("y",))


CASES = {
    "as wide as high":      (conv2d(8, 8, (3, 3)), 4),
    "neither divides":      (conv2d(7, 9, (3, 3)), 4),
    "smaller than a tile":  (conv2d(3, 1, (3, 3)), 4),
    "oblong taps":          (conv2d(6, 5, (2, 3)), 3),
    "five taps":            (conv2d(4, 7, (5, 5)), 2),
    "one dimension slides": (conv2d(6, 6, (1, 3)), 4),
    "groups":               (conv2d(6, 5, (3, 3), groups=2), 2),
    "taps apart":           (conv2d(9, 6, (3, 3), dilation=2), 4),
    "taps far apart":       (conv2d(7, 4, (2, 3), dilation=3), 2),
    "phases":               (phases(5, 7), 4),
    "channels first":       (conv1d(13, 3), 4),
    "one dimension":        (conv1d(11, 5), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_same_sums(name: str) -> None:
    dag, m = CASES[name]
    rewritten = winograd(dag, "y", m, WEIGHTS)
    rng = np.random.default_rng(3)
    given = {i.name: rng.integers(-4, 5, i.shape).astype(np.float32) for i in dag.inputs}
    expected = evaluate(dag, given, dtype="float64")["y"]
    np.testing.assert_allclose(evaluate(rewritten, given, dtype="float64")["y"], expected, atol=1e-9)
    assert rewritten.outputs == dag.outputs and rewritten.inputs == dag.inputs


def pooled() -> Dag:
    i, r = Axis("i", 6), Axis("r", 3)
    return Dag((Input("x", (8,)),), (Compute("y", (i,), Read("x", (i + r,)), (r,), MAX),), ("y",))


@pytest.mark.parametrize(
    "dag",
    [conv2d(5, 5, (3, 3), stride=2), conv2d(5, 5, (1, 1)), pooled()],
    ids=["stride 2", "one tap", "another combiner"],
)
def test_what_does_not_slide(dag: Dag) -> None:
    assert sliding(dag.stage("y"), WEIGHTS) is None


def test_weights_must_be_known_before_run_time() -> None:
    assert sliding(conv2d(5, 5, (3, 3)).stage("y"), frozenset()) is None


def test_saving_counts_the_transforms() -> None:
    """F(4x4, 3x3) of one 4x4 tile, batch 2, 4 channels in and 6 out: 36 products a pair of channels in place of 144."""
    data = 2 * 4 * 6 * (6 * 6 + 6 * 6)  # six points of each of six columns, then of each of six rows
    back = 2 * 6 * (6 * 4 * 6 + 4 * 4 * 6)
    steps = data + 2 * 36 * 4 * 6 + back
    assert saving(conv2d(4, 4, (3, 3)), "y", 4, WEIGHTS) == pytest.approx(2 * 16 * 9 * 4 * 6 / steps)
