"""The interpreter, and with it the property above all, without a compiler: every program of every sketch computes
its DAG, and every form on the way is legal."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ir.check import check_dag, check_nest, check_sketch
from ir.compute import Dag
from ir.evaluate import evaluate, magnitude
from ir.expr import Axis, Const, Expr, Op, Read, lt, select
from ir.interpret import Counts, NestError, run
from ir.loop import Alloc, Buffer, For, If, LoopKind, Nest, Stmt, Store
from ir.lower import lower
from ir.schedule import Program, Rfactor, Sketch
from ir.target import Target
from search.evolve import sample
from search.sketch import sketches
from tests.zoo_dags import ZOO, feeds

ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}


def sketches_of(dag: Dag) -> Iterator[Sketch]:
    """Those for one thread, and the partial results that only several threads ask for."""
    yield from sketches(dag, Target())
    yield from (s for s in sketches(dag, Target(threads=4)) if any(isinstance(x, Rfactor) for x in s.steps))


@pytest.mark.parametrize("name", ZOO)
def test_every_program_computes_its_dag_and_is_legal(name: str, fresh_seed: int) -> None:
    dag = ZOO[name]
    check_dag(dag)
    given, rng = feeds(dag, fresh_seed % 1000), np.random.default_rng(fresh_seed)
    for sketch in sketches_of(dag):
        check_sketch(sketch)
        program = sample(sketch, 1, rng).program(0)
        got = outputs(program, given)
        for o in dag.outputs:
            assert_close(dag, o, got[o], given, f"{program.values} of seed {fresh_seed}")


def outputs(program: Program, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    lowered = lower(program)
    check_nest(lowered.nest)
    arrays = dict(given)
    for _, prepare in lowered.prepare:
        arrays |= evaluate(prepare, {i.name: given[i.name] for i in prepare.inputs})
    return run(lowered.nest, arrays)


def assert_close(dag: Dag, output: str, got: np.ndarray, given: dict[str, np.ndarray], what: str) -> None:
    """Within a small multiple of the roundoff of what was added up."""
    want = evaluate(dag, given, "float64")[output]
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, what)
        return
    allowed = 64 * ROUNDOFF[got.dtype.name] * (magnitude(dag, given)[output] + 1e-30)
    assert got.shape == want.shape
    assert (np.abs(got - want) <= allowed).all(), f"{what}: off by {np.abs(got - want).max()}"


# --- by hand ----------------------------------------------------------------------------

I, J = Axis("i", 4), Axis("j", 3)


def loop(var: Axis, *body: Stmt, kind: LoopKind = "serial", extent: Expr | None = None) -> For:
    return For(var, extent if extent is not None else Const(var.extent, "int64"), body, kind)


def nest(*body: Stmt, shape: tuple[int, ...] = (4,)) -> Nest:
    return Nest((Buffer("x", (4, 3), "float32"),), (Buffer("y", shape, "float32"),), body)


X = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}


def sum_of_rows(kind: LoopKind = "serial") -> Nest:
    start = Store("y", (I,), Const(0.0))
    add = Store("y", (I,), Read("y", (I,)) + Read("x", (I, J)))
    return nest(loop(I, start, loop(J, add, kind=kind)))


@pytest.mark.parametrize("kind", ["serial", "unroll", "vector"])
def test_loop_kinds_mean_the_same(kind: LoopKind) -> None:
    np.testing.assert_array_equal(run(sum_of_rows(kind), X)["y"], X["x"].sum(axis=1))


def test_floats_round_at_every_step() -> None:
    values = np.float32(0.1) * np.arange(12, dtype=np.float32).reshape(4, 3)
    want = np.zeros(4, np.float32)
    for j in range(3):
        want += values[:, j]
    got = run(sum_of_rows(), {"x": values})["y"]
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, want)


def test_counts() -> None:
    """The row sum reads y once a step; unrolled, its row is one straight-line block."""
    serial, unrolled = Counts(), Counts()
    run(sum_of_rows(), X, serial)
    run(sum_of_rows("unroll"), X, unrolled)
    assert serial.reads == unrolled.reads == {"x": 12, "y": 12}
    assert serial.writes == {"y": 16}
    assert serial.loads == {"x": 12, "y": 12}
    assert unrolled.loads == {"x": 12, "y": 4}
    assert len(serial.touched["x"]) == 12


def test_only_the_chosen_side_is_looked_at() -> None:
    value = select(lt(I, 3), Read("x", (I + 1, Const(0, "int64"))), -1.0)
    got = run(nest(loop(I, Store("y", (I,), value))), X)["y"]
    np.testing.assert_array_equal(got, [3, 6, 9, -1])


def test_a_branch_and_a_shorter_loop() -> None:
    short = loop(J, Store("y", (I,), Read("y", (I,)) + 1.0), extent=Op("min", (I, Const(3, "int64"))))
    body = loop(I, If(lt(I, 2), (Store("y", (I,), Const(10.0)),), (Store("y", (I,), Const(20.0)),)), short)
    np.testing.assert_array_equal(run(nest(body), X)["y"], [10, 11, 22, 23])


def test_a_buffer_is_new_each_time_and_ends_with_its_block() -> None:
    zero = Const(0, "int64")
    local = Alloc("t", (1,), "float32", "stack")
    good = loop(I, local, Store("t", (zero,), Read("x", (I, zero))), Store("y", (I,), Read("t", (zero,))))
    np.testing.assert_array_equal(run(nest(good), X)["y"], X["x"][:, 0])
    stale = loop(I, local, If(lt(I, 1), (Store("t", (zero,), Const(1.0)),)), Store("y", (I,), Read("t", (zero,))))
    with pytest.raises(NestError, match=r"t\[0\] is read before it is written"):
        run(nest(stale), X)
    with pytest.raises(NestError, match="t does not exist here"):
        run(nest(good, loop(I, Store("y", (I,), Read("t", (zero,))))), X)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (loop(I, Store("y", (I + 1,), Const(0.0))), r"y\[4\] is out of bounds \[4\]"),
        (loop(I, Store("y", (I,), Read("x", (I, I)))), r"x\[3, 3\] is out of bounds \[4, 3\]"),
        (loop(I, Store("y", (I,), Read("x", (I, J - 1)))), r"x\[0, -1\] is out of bounds"),
        (loop(I, Store("y", (I,), Read("y", (I,)))), r"y\[0\] is read before it is written"),
        (loop(J, Store("y", (J,), Const(0.0))), r"output y\[3\] is never written"),
        (loop(I, Store("x", (I, Const(0, "int64")), Const(0.0))), "x is an input"),
        (loop(J, Store("y", (J,), Const(0.0)), extent=Const(4, "int64")), "loop j makes 4 trips, at most 3"),
    ],
)
def test_what_no_nest_may_do(body: Stmt, message: str) -> None:
    with pytest.raises(NestError, match=message):
        run(nest(body), X)


def test_arguments_must_fit() -> None:
    with pytest.raises(NestError, match="x is float64"):
        run(sum_of_rows(), {"x": X["x"].astype(np.float64)})
