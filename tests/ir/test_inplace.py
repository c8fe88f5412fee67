"""What may be written in place: never a wrong pair, and every residual."""

from __future__ import annotations

import numpy as np
import pytest

from ir.compute import Dag
from ir.evaluate import evaluate
from ir.expr import Axis, Const, Expr, Op, Read, le, lt, select
from ir.inplace import MOST_POINTS, inplace, stores
from ir.interpret import Counts, NestError, run
from ir.loop import Alloc, Buffer, For, If, LoopKind, Nest, Stmt, Store
from ir.lower import lower
from search.evolve import sample
from tests.inplace_dags import DAGS, shared
from tests.ir.test_interpret import sketches_of
from tests.zoo_dags import ZOO, feeds


def nests_of(dag: Dag, seed: int, each: int) -> list[tuple[Nest, dict[str, np.ndarray]]]:
    """Random programs of every sketch, with what they read."""
    rng, given, out = np.random.default_rng(seed), feeds(dag, seed % 1000), []
    for sketch in sketches_of(dag):
        population = sample(sketch, each, rng)
        for row in range(each):
            lowered, arrays = lower(population.program(row)), dict(given)
            for _, prepare in lowered.prepare:
                arrays |= evaluate(prepare, {i.name: given[i.name] for i in prepare.inputs})
            out.append((lowered.nest, arrays))
    return out


@pytest.mark.parametrize("name", DAGS)
def test_every_residual_is_found_and_nothing_else(name: str, fresh_seed: int) -> None:
    """By programs of every sketch: tiles that do not divide, partial results, several threads."""
    dag, pairs = DAGS[name]
    found = [inplace(nest) for nest, _ in nests_of(dag, fresh_seed, 4)]
    assert set().union(*map(set, found)) <= {*pairs} and found.count(pairs) > len(found) / 2, f"seed {fresh_seed}"


@pytest.mark.parametrize("name", [*DAGS, "elementwise", "blur", "products", "total"])
def test_in_place_means_the_same(name: str, fresh_seed: int) -> None:
    """The interpreter finds in one memory what it finds in two; and the stores are counted as it counts them."""
    dag = DAGS[name][0] if name in DAGS else ZOO[name]
    for nest, arrays in nests_of(dag, fresh_seed, 1):
        counts = Counts()
        wanted = run(nest, arrays, counts)
        for o in nest.outputs:
            assert stores(nest, o.name) == counts.writes[o.name], f"seed {fresh_seed}"
        for pair in inplace(nest):
            np.testing.assert_array_equal(
                run(shared(nest, pair), arrays)[pair[0]], wanted[pair[0]], f"seed {fresh_seed}"
            )


# --- by hand

I, J = Axis("i", 4), Axis("j", 3)
X, Y, Z = Buffer("x", (4, 3), "float32"), Buffer("y", (4, 3), "float32"), Buffer("z", (4, 3), "float32")
DATA = {"x": np.arange(12, dtype=np.float32).reshape(4, 3), "z": np.ones((4, 3), np.float32)}
HERE = Read("x", (I, J))


def loop(var: Axis, *body: Stmt, extent: Expr | int | None = None, kind: LoopKind = "serial") -> For:
    trips = Const(var.extent if extent is None else extent, "int64") if isinstance(extent, int | None) else extent
    return For(var, trips, body, kind)


def nest(*body: Stmt) -> Nest:
    return Nest((X, Z), (Y,), body)


def each(value: Expr, index: tuple[Expr, ...] = (I, J)) -> Stmt:
    return loop(I, loop(J, Store("y", index, value)))


FIRST, AGAIN, K = Axis("i", 3), Axis("n", 2), Axis("k", 3)
ROW, LEFT = AGAIN * 3 + K, Op("min", (Const(3, "int64"), 4 - AGAIN * 3))
REGISTER, ZERO = Alloc("r", (1,), "float32", "register"), (Const(0, "int64"),)
GOOD: dict[str, Stmt] = {
    "at its place": each(HERE * 2.0),
    "twice at its place": each(HERE + HERE * Read("z", (I, I * 0))),
    "in the other order": loop(J, loop(I, Store("y", (I, J), HERE)), kind="parallel"),
    "in a vector": loop(I, loop(J, Store("y", (I, J), HERE), kind="vector"), kind="unroll"),
    "on one side": each(select(lt(I, J), HERE, 1.0)),
    "in two branches": loop(I, loop(J, If(lt(I, 2), (Store("y", (I, J), HERE),), (Store("y", (I, J), HERE + 1.0),)))),
    "once of two times": loop(AGAIN, If(le(1, AGAIN), (each(HERE),))),
    "short loops": loop(AGAIN, loop(K, loop(J, Store("y", (ROW, J), Read("x", (ROW, J)))), extent=LEFT)),
}  # fmt: skip
BAD: dict[str, tuple[Stmt, ...]] = {
    "beside it": (each(Read("x", (I, 2 - J))),),
    "beside it, too": (each(HERE + Read("x", (3 - I, J))),),
    "at an index that is data": (each(Read("x", (I, Op("mod", (J * 1 + 3, Const(3, "int64")))))),),
    "computed again": (each(HERE * 2.0), each(HERE * 3.0)),
    "tiles that overlap": (loop(AGAIN, loop(K, loop(J, Store("y", (AGAIN + K, J), Read("x", (AGAIN + K, J)) * 2.0)))),),
    "over and over": (loop(AGAIN, each(HERE + 1.0)),),
    "a partial sum": (each(HERE), each(Read("y", (I, J)) + 1.0)),
    "as a condition": (loop(I, loop(J, If(lt(HERE, 2.0), (Store("y", (I, J), HERE),), (Store("y", (I, J), Const(1.0)),)))),),
    "copied before": (
        Alloc("t", (4, 3), "float32", "workspace"),
        loop(I, loop(J, Store("t", (I, J), HERE))),
        each(Read("t", (3 - I, J)) + HERE),
    ),
    "kept in a register": (loop(I, loop(J, REGISTER, Store("r", ZERO, HERE), Store("y", (I, J), Read("r", ZERO)))),),
    "never": (each(Const(1.0)),),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good_nests(name: str) -> None:
    found = nest(GOOD[name])
    assert inplace(found) == (("y", "x"),)
    np.testing.assert_array_equal(run(shared(found, ("y", "x")), DATA)["y"], run(found, DATA)["y"])


@pytest.mark.parametrize("name", BAD)
def test_bad_nests(name: str) -> None:
    assert inplace(nest(*BAD[name])) == ()


@pytest.mark.parametrize(
    "name", ["beside it", "beside it, too", "computed again", "tiles that overlap", "over and over"]
)
def test_why_they_are_bad(name: str) -> None:
    """The negative control: one memory gives other values."""
    found = nest(*BAD[name])
    assert (run(shared(found, ("y", "x")), DATA)["y"] != run(found, DATA)["y"]).any()


def test_what_is_not_known_is_not_in_place() -> None:
    """A branch on data, and one that depends on more than can be counted; unless it is of no matter."""
    data = loop(I, loop(J, If(lt(Read("z", (I, J)), 2.0), (Store("y", (I, J), HERE),))))
    assert stores(nest(data), "y") is None and stores(nest(data), "t") == 0
    assert inplace(nest(data)) == ()
    many, most = Axis("many", MOST_POINTS + 1), Axis("most", MOST_POINTS + 1)
    x, y = (Buffer(n, (many.extent,), "float32") for n in "xy")
    store = Store("y", (many,), Read("x", (many,)))
    whole = Nest((x,), (y,), (loop(many, store),))
    assert inplace(whole) == (("y", "x"),) and stores(whole, "y") == many.extent
    assert inplace(Nest((x,), (y,), (loop(many, If(lt(many, most.extent), (store,))),))) == ()
    assert stores(Nest((), (), (loop(many, loop(I, If(lt(many, I), (store,)))),)), "y") is None


def test_an_incomplete_nest_is_none() -> None:
    """What the count rests on: the form promises complete outputs, and the interpreter sees to it."""
    with pytest.raises(NestError, match="never written"):
        run(nest(loop(FIRST, loop(J, Store("y", (FIRST, J), Read("x", (FIRST, J)))))), DATA)
