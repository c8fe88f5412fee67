"""Every form as text, and sketches back from it. The text of DAGs has its own properties beside their keys."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.compute import Compute, Dag, Input
from ir.expr import Axis, Read, call
from ir.forms import KINDS, parse_dag, parse_sketch, steps_text, text
from ir.lower import lower
from ir.schedule import (
    CacheWrite,
    ComputeAt,
    Fuse,
    Hole,
    Inline,
    Pack,
    Program,
    Rfactor,
    Sketch,
    Step,
    Tile,
)
from ir.target import Target
from search.sketch import sketches
from tests.zoo_dags import ZOO

TARGETS = [Target(), Target(threads=4)]


@pytest.mark.parametrize("name", ZOO)
def test_dags_and_sketches_of_the_zoo_come_back(name: str) -> None:
    dag = ZOO[name]
    assert parse_dag(text(dag)) == dag
    for target in TARGETS:
        for sketch in sketches(dag, target):
            assert parse_sketch(text(sketch)) == sketch


NAMES = st.one_of(
    st.sampled_from(["C", "B.pack", "by", "hole", "in", "at", "schedule", "lanes", "tile-and-fuse", "x y", "inf", "1"]),
    st.just('/conv:0 "q"'),
    st.text("abc_.é\\-", min_size=1, max_size=4),
)
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Inline, NAMES),
    st.builds(CacheWrite, NAMES),
    st.builds(Rfactor, NAMES, st.sampled_from(["outer", "inner"])),
    st.builds(Pack, NAMES, NAMES, NAMES),
    st.builds(Tile, NAMES, st.sampled_from(["SSRSRS", "SRS", "SS"]), st.one_of(st.just(""), NAMES)),
    st.builds(Fuse, NAMES, NAMES, st.integers(0, 9)),
    st.builds(ComputeAt, NAMES, NAMES),
)
OPTIONS = st.lists(st.integers(-1, 1 << 40), min_size=1, max_size=4).map(tuple)
HOLES = st.builds(Hole, NAMES, OPTIONS, st.sampled_from(KINDS), NAMES, st.one_of(st.just(""), NAMES))


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=5), st.lists(HOLES, max_size=4), st.lists(NAMES, min_size=5, max_size=5), st.booleans())
def test_any_sketch_comes_back(steps: list[Step], holes: list[Hole], rules: list[str], named: bool) -> None:
    """Sensible or not, whatever its names."""
    sketch = Sketch(ZOO["matmul"], tuple(steps), tuple(holes), tuple(rules[: len(steps)]) if named else ())
    assert parse_sketch(text(sketch)) == sketch


@pytest.mark.parametrize(
    "line",
    [
        "frob C", "tile C", "fuse C into D", "fuse C in D at 2", "inline C C", "pack B for C",
        "hole C.i.1 tile C i", "hole C.i.1 frob C: 1",
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected .* in: "):
        parse_sketch(f"{text(ZOO['matmul'])}\nschedule\n{line}")


def test_a_sketch_has_a_schedule_and_a_rule_for_all_steps_or_none() -> None:
    with pytest.raises(ValueError, match="schedule"):
        parse_sketch(text(ZOO["matmul"]))
    with pytest.raises(ValueError, match="1 rules made 2 steps"):
        text(Sketch(ZOO["matmul"], (Inline("a"), Inline("b")), (), ("inline",)))


# --- golden -----------------------------------------------------------------------------


def small() -> Program:
    i, j, k = Axis("i", 5), Axis("j", 4), Axis("k", 3)
    product = Compute("C", (i, j), Read("A", (i, k)) * Read("B", (k, j)), (k,))
    relu = Compute("D", (i, j), call("max", Read("C", (i, j)), 0.0))
    dag = Dag((Input("A", (5, 3)), Input("B", (3, 4), constant=True)), (product, relu), ("D",))
    sketch = Sketch(dag).then(Fuse("C", "D", 2), rule="tile-and-fuse")
    holes = Hole("C.vector", (16,), "vector", "C"), Hole("C.i.1", (1, 2), "tile", "C", "i")
    sketch = sketch.then(Tile("C", "SRS", "j"), *holes, rule="tile")
    return Program(sketch, (0, 1))


def test_text_of_a_program() -> None:
    assert text(small()) == PROGRAM
    assert steps_text(small().sketch) == PROGRAM.partition("schedule\n")[2].partition("\nC.vector =")[0]


def test_text_of_a_nest() -> None:
    assert text(lower(small()).nest) == NEST


def test_text_of_an_expression() -> None:
    i = Axis("i", 5)
    assert text(call("max", Read("x", (i * 2 + 1,)) * 3.0, 0.0)) == "max(x[i * 2 + 1] * 3.0, 0.0)"
    assert text(replace(i, name="a b")) == '"a b"'


PROGRAM = """\
input A: float32[5, 3]
constant B: float32[3, 4]
C: float32[i=5, j=4] = sum over (k=3): A[i, k] * B[k, j]
D: float32[i=5, j=4] = max(C[i, j], 0.0)
output D
schedule
fuse C into D at 2 by "tile-and-fuse"
tile C SRS lanes j by tile
hole C.vector vector C: 16
hole C.i.1 tile C i: 1, 2
C.vector = 16
C.i.1 = 2"""
NEST = """\
input A: float32[5, 3]
input B: float32[3, 4]
output D: float32[5, 4]
for C_i_0s < 3:
  if C_i_0s * 2 + 2 <= 5:
    register C_acc: float32[2, 1, 4]
    unroll for C_i_u < 2:
      unroll for C_j_v < 1:
        vector for C_j_l < 4:
          C_acc[C_i_u, C_j_v, C_j_l] = 0.0
    for C_k_k < 3:
      unroll for C_i_u < 2:
        unroll for C_j_v < 1:
          vector for C_j_l < 4:
            C_acc[C_i_u, C_j_v, C_j_l] = C_acc[C_i_u, C_j_v, C_j_l] + A[C_i_0s * 2 + C_i_u, C_k_k] * B[C_k_k, C_j_v * 4 + C_j_l]
    unroll for C_i_u < 2:
      unroll for C_j_v < 1:
        vector for C_j_l < 4:
          D[C_i_0s * 2 + C_i_u, C_j_v * 4 + C_j_l] = max(C_acc[C_i_u, C_j_v, C_j_l], 0.0)
  else:
    register C_acc: float32[1, 4]
    unroll for C_j_v < 1:
      vector for C_j_l < 4:
        C_acc[C_j_v, C_j_l] = 0.0
    for C_k_k < 3:
      unroll for C_j_v < 1:
        vector for C_j_l < 4:
          C_acc[C_j_v, C_j_l] = C_acc[C_j_v, C_j_l] + A[C_i_0s * 2, C_k_k] * B[C_k_k, C_j_v * 4 + C_j_l]
    unroll for C_j_v < 1:
      vector for C_j_l < 4:
        D[C_i_0s * 2, C_j_v * 4 + C_j_l] = max(C_acc[C_j_v, C_j_l], 0.0)"""
