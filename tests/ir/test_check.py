"""What the checks refuse, each case by its message. That they accept what the arrows make is tested with the
interpreter, on the whole zoo."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ir.check import Illegal, check_dag, check_nest, check_sketch
from ir.compute import LEFT, RIGHT, Combiner, Compute, Dag, Input
from ir.expr import Axis, Cast, Const, Expr, Op, Param, Read, eq, le, lt, select
from ir.loop import Alloc, Buffer, For, If, LoopKind, Nest, Stmt, Store
from ir.schedule import ComputeAt, Fuse, Hole, Inline, Pack, Rfactor, Sketch, Tile
from tests.zoo_dags import ZOO

I, J, K = Axis("i", 8), Axis("j", 6), Axis("k", 5)


def number(n: int) -> Const:
    return Const(n, "int64")


# --- DAG --------------------------------------------------------------------------------


def dag_of(*computes: Compute, outputs: tuple[str, ...] | None = None) -> Dag:
    return Dag((Input("x", (8, 5)), Input("n", (8,), "int64")), computes, outputs or (computes[-1].name,))


def stage(body: Expr, name: str = "y", **other: object) -> Compute:
    return replace(Compute(name, (I,), body), **other)  # type: ignore[arg-type]


X = Read("x", (I, number(0)))


@pytest.mark.parametrize(
    ("dag", "message"),
    [
        (dag_of(stage(X), stage(X)), "y is defined twice"),
        (dag_of(stage(Read("z", (I,))), stage(X, "z")), "y reads z before it is defined"),
        (dag_of(stage(X), outputs=("x",)), "output x is no stage"),
        (dag_of(stage(X), outputs=("q",)), "output q is no stage"),
        (dag_of(stage(Read("x", (I,)))), "y reads x with 1 of 2 indices"),
        (dag_of(stage(Read("x", (I, K)))), "y uses axis k, which it does not iterate over"),
        (dag_of(stage(X, space=(I, I))), "y has two axes of one name"),
        (dag_of(stage(Read("x", (I, number(0)), "float64"), dtype="float64")), "y reads x as float64, it is float32"),
        (dag_of(stage(X, dtype="float64")), "y is float64 and its body float32"),
        (dag_of(stage(X + Read("n", (I,), "int64"))), "y: add of float32 and int64"),
        (dag_of(stage(Op("and", (X, X)), dtype="bool")), "y: and of float32"),
        (dag_of(stage(Op("select", (X, X, X)))), "y: select by float32"),
        (dag_of(stage(Op("exp", (X, X)))), "y: exp takes 1 arguments"),
        (dag_of(stage(Op("frob", (X,)))), "y: there is no operation frob"),
        (dag_of(stage(Cast("float31", X), dtype="float31")), "y has the unknown dtype float31"),
        (dag_of(stage(Read("x", (I, X)))), "y reads x at a float32"),
        (dag_of(stage(Read("x", (I + 1, number(0))))), "y reads x at 1 to 8 of 8 in dimension 0, unguarded"),
        (dag_of(stage(Read("x", (I, I - 1)))), "y reads x at -1 to 6 of 5 in dimension 1, unguarded"),
        (dag_of(stage(Param("left"))), "y uses a combiner's parameter"),
        (dag_of(stage(X, combiner=Combiner("odd", 0.0, Param("middle")))), "the combiner of y has parameters middle"),
    ],
)
def test_dags_that_mean_nothing(dag: Dag, message: str) -> None:
    with pytest.raises(Illegal, match=message):
        check_dag(dag)


def test_a_guard_or_data_may_lead_out_of_bounds() -> None:
    check_dag(dag_of(stage(select(lt(I, 7), Read("x", (I + 1, number(0))), 0.0))))
    check_dag(dag_of(stage(Read("x", (Read("n", (I,), "int64"), number(0))))))


# --- sketch -----------------------------------------------------------------------------

PRODUCT = ZOO["matmul and relu"]
C = PRODUCT.stage("C")
FIRST = Combiner("first", 0.0, Op("select", (eq(Param(LEFT), 0.0), Param(RIGHT), Param(LEFT))), reorders=False)
ORDERED = dag_of(Compute("y", (I,), Read("x", (I, K)), (K,), FIRST))
TILED = Sketch(PRODUCT).then(Tile("C", "SSRSRS", "j"), Hole("C.i.1", (1, 2), "tile", "C", "i"))


def with_hole(*holes: Hole) -> Sketch:
    return replace(TILED, holes=holes)


@pytest.mark.parametrize(
    ("sketch", "message"),
    [
        (Sketch(PRODUCT).then(Tile("Q", "SRS", "")), "Tile of Q, which is no stage"),
        (Sketch(PRODUCT).then(Tile("A", "SRS", "")), "Tile of A, which is no stage"),
        (TILED.then(Tile("C", "SRS", "j")), "Tile of C, for the second time"),
        (Sketch(PRODUCT).then(Tile("C", "SS", "j")), "SS has no place for its reduction"),
        (Sketch(PRODUCT).then(Tile("C", "RSRS", "j")), "RSRS does not begin and end with S"),
        (Sketch(PRODUCT).then(Tile("C", "S", "j")), "S has no register tile"),
        (Sketch(PRODUCT).then(Tile("C", "SXRS", "j")), "SXRS is no structure"),
        (Sketch(PRODUCT).then(Tile("C", "SRS", "q")), "Tile of C: it has no axis q"),
        (Sketch(PRODUCT).then(Tile("C", "SSRSRS", "k")), "lanes on k, which SSRSRS splits"),
        (Sketch(ORDERED).then(Tile("y", "SRS", "k")), "lanes on k, whose reduction must keep its order"),
        (Sketch(ORDERED).then(Rfactor("y", "outer")), "Rfactor of y, whose reduction must keep its order"),
        (Sketch(PRODUCT).then(Rfactor("C", "outer")), "Rfactor of C without its hole"),
        (Sketch(PRODUCT).then(Inline("C")), "Inline of C, which reduces or leaves"),
        (Sketch(PRODUCT).then(Inline("relu")), "Inline of relu, which reduces or leaves"),
        (Sketch(PRODUCT).then(Pack("C", "Q", "j")), "Pack of C: it does not read Q"),
        (Sketch(PRODUCT).then(Pack("C", "B", "k")), "Pack of C: it has no space axis k"),
        (Sketch(PRODUCT).then(Fuse("C", "A", 2)), "Fuse of C into A, which is no stage"),
        (Sketch(PRODUCT).then(Fuse("relu", "C", 2)), "Fuse of relu into C, which is not its only consumer"),
        (Sketch(PRODUCT).then(ComputeAt("C", "relu")), "ComputeAt of C without its hole"),
        (with_hole(Hole("C.i.1", (), "tile", "C", "i")), "hole C.i.1 has no options"),
        (with_hole(Hole("C.i.1", (2, 1), "tile", "C", "i")), r"hole C.i.1 do not ascend: \[2, 1\]"),
        (with_hole(Hole("C.i.1", (0, 1), "tile", "C", "i")), "hole C.i.1 has a tile of 0"),
        (with_hole(Hole("C.i.1", (1,), "tile", "D", "i")), "hole C.i.1 is not of its group D"),
        (with_hole(Hole("C.q.1", (1,), "tile", "C", "q")), "hole C.q.1 is of axis q, which C has not"),
        (with_hole(Hole("C.k.2", (1,), "tile", "C", "k")), "hole C.k.2 is no level of SSRSRS"),
        (with_hole(*TILED.holes, *TILED.holes), "two holes are called C.i.1"),
        (replace(TILED, rules=("a", "b")), "2 rules made 1 steps"),
    ],
)
def test_sketches_that_mean_nothing(sketch: Sketch, message: str) -> None:
    assert C.reduce[0].name == "k"
    with pytest.raises(Illegal, match=message):
        check_sketch(sketch)


# --- nest -------------------------------------------------------------------------------


def loop(var: Axis, *body: Stmt, kind: LoopKind = "serial", extent: Expr | None = None) -> For:
    return For(var, extent if extent is not None else number(var.extent), body, kind)


def nest(*body: Stmt) -> Nest:
    inputs = Buffer("x", (8, 6), "float32"), Buffer("at", (8,), "int64")
    return Nest(inputs, (Buffer("y", (8, 6), "float32"),), body)


PUT = Store("y", (I, J), Read("x", (I, J)))
ZERO = Const(0.0)


def at(i: Expr, j: Expr) -> Store:
    return Store("y", (i, j), ZERO)


REGISTER = Alloc("acc", (4, 1), "float32", "register")
ILLEGAL: list[tuple[tuple[Stmt, ...], str]] = [
    ((loop(I, loop(J, at(I + 1, J))),), "store to y, dimension 0: may reach beyond 7"),
    ((loop(I, loop(J, at(I, J - 1))),), "store to y, dimension 1: may be below 0"),
    ((loop(I, loop(J, Store("y", (I, J), Read("x", (I, I))))),), "read of x, dimension 1: may reach beyond 5"),
    ((loop(I, loop(J, at(I, (I + J) // 2))),), "store to y, dimension 1: may reach beyond 5"),
    ((loop(I, at(I, J)),), "store to y, dimension 1: j has no loop here"),
    ((loop(I, loop(J, Store("y", (I,), ZERO))),), "store to y with 1 of 2 indices"),
    ((loop(I, loop(J, Store("z", (I, J), ZERO))),), "store to z, which is not allocated here"),
    ((loop(I, loop(J, PUT, Store("x", (I, J), ZERO))),), "input x is stored to"),
    ((loop(I, loop(J, Store("y", (I, J), Const(0, "int64")))),), "y is float32 and gets int64"),
    ((loop(I, loop(I, at(I, number(0)))),), "loop i stands inside itself"),
    ((loop(I, loop(J, PUT, extent=number(7))),), "loop j may make more than 6 trips"),
    ((loop(I, loop(J, PUT, kind="vector", extent=Op("min", (I, number(6))))),), "vector loop j has no constant extent"),
    ((loop(I, loop(J, PUT), kind="vector"),), "vector loop i holds more than stores|stands inside a vector loop"),
    ((loop(I, loop(J, PUT, kind="parallel")),), "parallel loop j stands inside others: serial"),
    ((loop(I, loop(J, at(number(0), J)), kind="parallel"),), "iterations of i may store to one element of y"),
    ((loop(I, loop(J, at(number(0), I // 2)), kind="parallel"),), "iterations of i may store to one element of y"),
    ((loop(I, Alloc("t", (4,), "float32", "workspace"), loop(J, PUT)),), "workspace t is allocated inside a loop"),
    ((Alloc("y", (4,), "float32", "stack"),), "y is allocated over an argument"),
    ((REGISTER, loop(K, If(lt(K, 4), (Store("acc", (K, number(0)), ZERO),)))), "a register is chosen at run time"),
    ((), "output y is never stored to"),
]


@pytest.mark.parametrize(("body", "message"), ILLEGAL)
def test_nests_that_no_arrow_may_make(body: tuple[Stmt, ...], message: str) -> None:
    with pytest.raises(Illegal, match=message):
        check_nest(nest(*body))


T, U = Axis("t", 3), Axis("u", 3)


def tiled(tail: int) -> Nest:
    """8 rows in tiles of 3: the last has 2."""
    full = loop(U, loop(J, at(T * 3 + U, J)), kind="unroll")
    rest = loop(U, loop(J, at(T * 3 + U, J)), kind="unroll", extent=number(tail))
    return nest(loop(T, If(le(T * 3 + 3, 8), (full,), (rest,)), kind="parallel"))


def test_tails_are_shown_to_fit() -> None:
    check_nest(tiled(2))
    with pytest.raises(Illegal, match="store to y, dimension 0: may reach beyond 7"):
        check_nest(tiled(3))


def test_bounds_follow_from_extents_selects_and_quotients() -> None:
    rows = Op("min", (number(3), 8 - T * 3))
    check_nest(nest(loop(T, loop(U, loop(J, at(T * 3 + U, J)), extent=rows))))
    guarded = select(lt(I, 7), Read("x", (I + 1, J)), 0.0)
    check_nest(nest(loop(I, loop(J, Store("y", (I, J), guarded)))))
    flat = Axis("f", 64)
    divided = select(lt(flat, 48), Read("x", (flat // 6, flat % 6)), 0.0)
    check_nest(nest(loop(I, loop(J, PUT)), loop(flat, Store("y", (number(0), number(0)), divided))))
    loose = select(lt(flat, 49), Read("x", (flat // 6, flat % 6)), 0.0)
    with pytest.raises(Illegal, match="read of x, dimension 0: may reach beyond 7"):
        check_nest(nest(loop(flat, Store("y", (number(0), number(0)), loose))))


def test_a_branch_that_is_never_taken_is_not_looked_at() -> None:
    check_nest(nest(loop(I, loop(J, PUT, If(lt(I, -1), (at(I + 9, J),))))))


def test_the_index_may_be_data() -> None:
    check_nest(nest(loop(I, loop(J, Store("y", (I, J), Read("x", (Read("at", (I,), "int64"), J)))))))
