"""The sketches of known DAGs. The reference counts are those of Ansor's own tests (4 cores): where ours differ on
purpose, the case says why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import pytest

from ir.compute import MAX, MIN, Compute, Dag, Input
from ir.expr import Axis, Read, call, lt, select
from ir.schedule import Block, CacheWrite, Fuse, Inline, Pack, Rfactor, Sketch, Tile, Winograd
from ir.target import Target
from ir.winograd import table
from search.sketch import CPU, Rule, State, sketches, skip

FOUR = Target(threads=4)
FUSED_ONCE = "the consumer reads the accumulators themselves, so that Ansor's two fusion levels are one program"
NO_PLAIN = "a consumer that can be fused always is: unfused, the tile crosses memory twice"
BLOCKED = "a padded image is copied anyway: it may as well lie in the order of the outer reduction loop"
IN_PLACE = "an operand that is not known before run time is packed, or read where it lies if that is in rows"
LANES = "Ansor's inner rfactor is a plain nest with lanes on the reduction, held in registers"
FILTERED = "a window that slides over constant weights may also be filtered minimally, in tiles of two sizes"


def matmul(n: int, m: int, k: int) -> Dag:
    i, j, r = Axis("i", n), Axis("j", m), Axis("k", k)
    c = Compute("C", (i, j), Read("A", (i, r)) * Read("B", (r, j)), (r,))
    return Dag((Input("A", (n, k)), Input("B", (k, m))), (c,), ("C",))


def two_matmuls() -> Dag:
    one = matmul(512, 512, 512)
    i, j, r = Axis("i", 512), Axis("j", 512), Axis("r", 512)
    d = Compute("D", (i, j), Read("C", (i, r)) * Read("E", (r, j)), (r,))
    return Dag((*one.inputs, Input("E", (512, 512))), (*one.computes, d), ("D",))


def conv_bn_relu() -> Dag:
    h, w, c = Axis("h", 58), Axis("w", 58), Axis("c", 64)
    y, x, o = Axis("y", 56), Axis("x", 56), Axis("o", 64)
    p, q, r = Axis("p", 3), Axis("q", 3), Axis("r", 64)
    inside = lt(h, 57)
    pad = Compute("pad", (h, w, c), select(inside, Read("X", (h + -1, w + -1, c)), 0.0))
    conv = Compute("conv", (y, x, o), Read("pad", (y + p, x + q, r)) * Read("W", (p, q, r, o)), (p, q, r))
    scale = Compute("scale", (y, x, o), Read("conv", (y, x, o)) * Read("S", (o,)))
    shift = Compute("shift", (y, x, o), Read("scale", (y, x, o)) + Read("T", (o,)))
    relu = Compute("relu", (y, x, o), call("max", Read("shift", (y, x, o)), 0.0))
    inputs = (Input("X", (56, 56, 64)), Input("W", (3, 3, 64, 64), constant=True))
    return Dag((*inputs, Input("S", (64,)), Input("T", (64,))), (pad, conv, scale, shift, relu), ("relu",))


def max_pool() -> Dag:
    y, x, c, p, q = Axis("y", 28), Axis("x", 28), Axis("c", 64), Axis("p", 2), Axis("q", 2)
    pool = Compute("pool", (y, x, c), Read("X", (y * 2 + p, x * 2 + q, c)), (p, q), MAX)
    return Dag((Input("X", (56, 56, 64)),), (pool,), ("pool",))


def row_min() -> Dag:
    i, k = Axis("i", 10), Axis("k", 1024)
    return Dag((Input("X", (10, 1024)),), (Compute("m", (i,), Read("X", (i, k)), (k,), MIN),), ("m",))


def softmax() -> Dag:
    i, k = Axis("i", 1024), Axis("k", 1024)
    m = Compute("m", (i,), Read("X", (i, k)), (k,), MAX)
    e = Compute("e", (i, k), call("exp", Read("X", (i, k)) - Read("m", (i,))))
    s = Compute("s", (i,), Read("e", (i, k)), (k,))
    y = Compute("y", (i, k), Read("e", (i, k)) / Read("s", (i,)))
    return Dag((Input("X", (1024, 1024)),), (m, e, s, y), ("y",))


def zero_rank() -> Dag:
    i, k = Axis("i", 128), Axis("k", 128)
    return Dag((Input("X", (128, 128)),), (Compute("s", (), Read("X", (i, k)), (i, k)),), ("s",))


def winograd() -> Dag:
    """The three stages of F(2, 3) in one dimension: transform the tiles, multiply, transform back (Lavin and Gray)."""
    forward = ((1.0, 0.0, -1.0, 0.0), (0.0, 1.0, 1.0, 0.0), (0.0, -1.0, 1.0, 0.0), (0.0, 1.0, 0.0, -1.0))
    backward = ((1.0, 1.0, 1.0, 0.0), (0.0, 1.0, -1.0, -1.0))
    p, t, c, q = Axis("p", 4), Axis("t", 14), Axis("c", 32), Axis("q", 4)
    v = Compute("V", (p, t, c), table(p, q, forward) * Read("X", (t * 2 + q, c)), (q,))
    o, r = Axis("o", 64), Axis("r", 32)
    m = Compute("M", (p, t, o), Read("V", (p, t, r)) * Read("U", (p, r, o)), (r,))
    s, k = Axis("s", 2), Axis("k", 4)
    y = Compute("Y", (t, s, o), table(s, k, backward) * Read("M", (k, t, o)), (k,))
    return Dag((Input("X", (30, 32)), Input("U", (4, 32, 64), constant=True)), (v, m, y), ("Y",))


@dataclass(frozen=True)
class Conformance:
    """`reference`: Ansor's count. `ours`: what we derive. `why`: the reason for the difference, if any."""

    dag: Dag
    reference: int
    ours: int
    why: str = ""


CASES = {
    "matmul 512":      Conformance(matmul(512, 512, 512), 3, 4, f"{FUSED_ONCE}; {IN_PLACE}"),
    "matmul 8x8x512":  Conformance(matmul(8, 8, 512),     5, 6, f"{FUSED_ONCE}; {LANES}; {IN_PLACE}"),
    "two matmuls":     Conformance(two_matmuls(),         9, 16, f"{FUSED_ONCE}; {IN_PLACE}"),
    "conv bn relu":    Conformance(conv_bn_relu(),        3, 6, f"{FUSED_ONCE}; {NO_PLAIN}; {BLOCKED}; {FILTERED}"),
    "max pool":        Conformance(max_pool(),            1, 1),
    "row min":         Conformance(row_min(),             3, 2, LANES),
    "softmax":         Conformance(softmax(),             9, 4, LANES),
    "winograd":        Conformance(winograd(),            3, 2, FUSED_ONCE),
    "zero rank":       Conformance(zero_rank(),           3, 2, LANES),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_sketch_counts(name: str) -> None:
    case = CASES[name]
    assert len(sketches(case.dag, FOUR)) == case.ours
    assert case.ours == case.reference or case.why


def kinds(sketch: Sketch) -> list[str]:
    return [type(s).__name__ for s in sketch.steps]


def direct(dag: Dag, target: Target) -> list[Sketch]:
    return [s for s in sketches(dag, target) if "Winograd" not in kinds(s)]


def test_epilogue_is_inlined_and_fused() -> None:
    for found in direct(conv_bn_relu(), FOUR):
        assert [s.stage for s in found.steps if isinstance(s, Inline)][:2] == ["shift", "scale"]
        assert [(s.stage, s.consumer) for s in found.steps if isinstance(s, Fuse)] == [("conv", "relu")]
        assert [(s.tensor, s.axis) for s in found.steps if isinstance(s, Pack)] == [("W", "o")]


def test_a_padded_image_may_lie_in_the_order_of_the_outer_reduction() -> None:
    """The padding itself moves into the copy; operands that are read where they lie are not copied for it."""
    plain, blocked = direct(conv_bn_relu(), FOUR)
    assert "Block" not in kinds(plain)
    assert [(s.stage, s.tensor, s.axis) for s in blocked.steps if isinstance(s, Block)] == [("conv", "pad", "r")]
    assert "pad" in [s.stage for s in blocked.steps if isinstance(s, Inline)]
    assert not any("Block" in kinds(s) for s in sketches(matmul(512, 512, 512), FOUR))


def test_a_sliding_window_may_be_filtered_minimally() -> None:
    """Tiles of two and of four; the epilogue is fused behind the last transform, whose table is unrolled in whole
    periods, and one product of matrices a point is packed and tiled like any other."""
    found = [s for s in sketches(conv_bn_relu(), FOUR) if "Winograd" in kinds(s)]
    assert sorted({s.m for k in found for s in k.steps if isinstance(s, Winograd)}) == [2, 4]
    for sketch in found:
        [m] = [s.m for s in sketch.steps if isinstance(s, Winograd)]
        assert ("conv", "relu") in [(s.stage, s.consumer) for s in sketch.steps if isinstance(s, Fuse)]
        holes = {h.name: h.options for h in sketch.holes}
        assert holes["conv.x.2"] == (m,) and all(n % m == 0 for n in holes["conv.y.1"])
        assert holes["conv.unroll"] == (m + 2,)
        assert next(s.axis for s in sketch.steps if isinstance(s, Pack)) == "o"
        tiled = {s.stage: s.structure for s in sketch.steps if isinstance(s, Tile)}
        assert "SSRSRS" in (tiled.get("conv.product"), tiled.get("conv.product.cache"))
        assert not any(n.startswith("conv.product") and ".point.3" in n for n in holes), "points share nothing"


def test_matmul_without_consumer_gets_a_write_cache() -> None:
    cached, _, plain, _ = sketches(matmul(512, 512, 512), FOUR)
    assert isinstance(cached.steps[0], CacheWrite) and "CacheWrite" not in kinds(plain)


def test_what_is_not_known_before_run_time_may_be_read_where_it_lies() -> None:
    found = sketches(matmul(512, 512, 512), FOUR)
    assert [sum(isinstance(s, Pack) for s in k.steps) for k in found] == [1, 0, 1, 0]
    known = replace(matmul(512, 512, 512), inputs=(Input("A", (512, 512)), Input("B", (512, 512), constant=True)))
    assert all("Pack" in kinds(s) for s in sketches(known, FOUR))


def test_one_thread_needs_no_partial_results() -> None:
    assert not any(isinstance(s, Rfactor) for k in sketches(row_min(), Target(threads=1)) for s in k.steps)
    assert any(isinstance(s, Rfactor) for k in sketches(row_min(), FOUR) for s in k.steps)


def test_row_reductions_run_along_the_row() -> None:
    [found] = sketches(row_min(), Target(threads=1))
    [tile] = [s for s in found.steps if isinstance(s, Tile)]
    assert tile.vector == "k"


def test_holes_are_unique_and_ascend() -> None:
    for case in CASES.values():
        for sketch in sketches(case.dag, FOUR):
            names = [h.name for h in sketch.holes]
            assert len(set(names)) == len(names)
            assert all(list(h.options) == sorted(set(h.options)) and h.options for h in sketch.holes)


def test_a_prime_extent_has_a_real_space() -> None:
    found = next(s for s in sketches(matmul(509, 509, 509), Target()) if "CacheWrite" not in kinds(s))
    assert found.size > 1e6
    assert next(h for h in found.holes if h.name == "C.i.3").options == tuple(range(1, 15))


def test_user_rules_come_first() -> None:
    """Ansor's custom rule test: a user's rule beside ours adds its sketch, two in all for a stage it answers for."""

    def mine(state: State, stage: Compute) -> list[State]:
        return list(skip(state, stage))

    rule = Rule("mine", when=lambda state, stage: stage.name == "C", then=mine)
    found = sketches(matmul(512, 512, 512), FOUR, (rule, *CPU))
    assert len(found) == 1 + CASES["matmul 512"].ours
    assert not any(isinstance(s, Tile) and s.structure == "SSRSRS" for s in found[0].steps)


def test_infinities_are_identities() -> None:
    assert MAX.identity == -inf and MIN.identity == inf
