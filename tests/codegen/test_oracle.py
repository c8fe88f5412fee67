"""The naive C program against NumPy: values, bounds, guarded reads, inputs, and the files of a case."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from codegen.naive import FUNCTIONS
from codegen.oracle import Case, Oracle, OracleError, inputs
from codegen.toolchain import find_compiler
from ir.compute import COMBINERS, MAX, SUM, Combiner, Compute, Dag, Input
from ir.dsl import combiner, compute, dag, placeholder, reduce, reduce_axis
from ir.dsl import max as max_of
from ir.dsl import sum as sum_of
from ir.evaluate import evaluate
from ir.expr import FLOATS, INTEGERS, OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read, all_of, call, le, lt, select
from ir.target import Target

pytestmark = pytest.mark.compiler


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    return Oracle(find_compiler(os.environ), Target(), tmp_path_factory.mktemp("cases"), run_seconds=60)


def agree(oracle: Oracle, d: Dag, seed: int = 0, exact: bool = False) -> None:
    """Double NumPy equals the naive program; NumPy in the declared dtypes stays within the bounds."""
    values = inputs(d, seed, exact)
    answers = oracle.answers(d, values, exact)
    double, declared = evaluate(d, values, "float64"), evaluate(d, values)
    for name, answer in answers.items():
        with np.errstate(all="ignore"):
            sure = np.isfinite(answer.bound)
            np.testing.assert_allclose(answer.value[sure], double[name][sure], rtol=1e-9, atol=1e-12, err_msg=name)
            got = declared[name].astype(np.float64)
            near = np.abs(got - answer.value.astype(np.float64)) <= answer.bound
            same = (got == answer.value) | (np.isnan(got) & np.isnan(answer.value.astype(np.float64)))
            assert np.all(near | same | ~sure), (name, got[~near], answer.value[~near], answer.bound[~near])


# ---------------------------------------------------------------------------------------------- examples


def matmul(m: int, n: int, k: int, dtype: str = "float32") -> Dag:
    a, b, r = placeholder((m, k), "a", dtype), placeholder((k, n), "b", dtype), reduce_axis(k)
    return dag([compute((m, n), lambda i, j: sum_of(a[i, r] * b[r, j], r), "c")])


def conv(h: int, c: int, oc: int) -> Dag:
    x, w = placeholder((h, h, c), "x"), placeholder((3, 3, c, oc), "w")
    ky, kx, kc = reduce_axis(3), reduce_axis(3), reduce_axis(c)

    def padded(y: Expr, z: Expr, i: Expr) -> Expr:
        inside = all_of(le(1, y), lt(y, h + 1), le(1, z), lt(z, h + 1))
        return select(inside, x[y - 1, z - 1, i], 0.0)

    p = compute((h + 2, h + 2, c), padded, "p")
    return dag([compute((h, h, oc), lambda y, z, o: sum_of(p[y + ky, z + kx, kc] * w[ky, kx, kc, o], (ky, kx, kc)))])


def softmax(n: int, m: int) -> Dag:
    x, k, q = placeholder((n, m), "x"), reduce_axis(m), reduce_axis(m)
    top = compute((n,), lambda i: max_of(x[i, k], k), "top")
    e = compute((n, m), lambda i, j: call("exp", x[i, j] - top[i]), "e")
    total = compute((n,), lambda i: sum_of(e[i, q], q), "total")
    return dag([compute((n, m), lambda i, j: e[i, j] / total[i], "y"), top])


def gather(n: int, m: int) -> Dag:
    table, rows = placeholder((n, m), "table"), placeholder((7,), "rows", "int32")
    return dag([compute((7, m), lambda i, j: table[rows[i], j] * 2.0)])


@pytest.mark.parametrize("d", [matmul(7, 9, 33), conv(5, 3, 4), softmax(3, 17), gather(5, 4), matmul(1, 1, 1000)])
@pytest.mark.parametrize("exact", [False, True])
def test_examples(oracle: Oracle, d: Dag, exact: bool) -> None:
    agree(oracle, d, exact=exact)


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "uint8", "int32", "int64"])
def test_dtypes(oracle: Oracle, dtype: str) -> None:
    agree(oracle, matmul(4, 5, 9, dtype))


def test_bounds_see_one_missing_term_of_thousands(oracle: Oracle) -> None:
    d = matmul(16, 16, 4096)
    values = inputs(d, 3)
    answer = oracle.answers(d, values)["c"]
    without = values["a"][:, 1:].astype(np.float64) @ values["b"][1:].astype(np.float64)
    seen = np.abs(without - answer.value) > answer.bound
    assert seen.mean() > 0.9


@pytest.mark.parametrize("n", [1000, 100_003])
@pytest.mark.parametrize("low", [-1.0, 0.5])
def test_bounds_hold_for_the_worst_order_of_a_sum(oracle: Oracle, n: int, low: float) -> None:
    """One float32 accumulator from left to right, also where all terms have one sign."""
    x, k = placeholder((8, n), "x"), reduce_axis(n)
    d = dag([compute((8,), lambda i: sum_of(x[i, k], k), "s")])
    values = np.random.default_rng(n).uniform(low, 1, (8, n)).astype("float32")
    answer = oracle.answers(d, {"x": values})["s"]
    got = np.add.accumulate(values, axis=1, dtype="float32")[:, -1]
    assert np.all(np.abs(got - answer.value) < answer.bound)


def test_exact_cases_have_no_tolerance(oracle: Oracle) -> None:
    for d in (matmul(5, 6, 700), conv(4, 2, 3)):
        (answer,) = oracle.answers(d, inputs(d, 0, exact=True), exact=True).values()
        assert not answer.bound.any()


def test_exact_falls_back_where_a_sum_outgrows_the_mantissa(oracle: Oracle) -> None:
    d = matmul(2, 2, 3000, "float16")
    (answer,) = oracle.answers(d, inputs(d, 0, exact=True), exact=True).values()
    assert answer.bound.all()


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int8"])
@pytest.mark.parametrize("extent", [0, 1, 6])
def test_combiners(oracle: Oracle, name: str, dtype: str, extent: int) -> None:
    i, k = Axis("i", 3), Axis("k", extent)
    reduced = Compute("y", (i,), Read("x", (i, k), dtype), (k,), COMBINERS[name], dtype)
    agree(oracle, Dag((Input("x", (3, extent), dtype),), (reduced,), ("y",)))


def test_user_combiners_start_from_their_identity(oracle: Oracle) -> None:
    x, k = placeholder((4, 9), "x"), reduce_axis(9)
    logsumexp = combiner(lambda a, b: call("log", call("exp", a) + call("exp", b)), -np.inf, commutes=True)
    ordered = combiner(lambda a, b: a * 0.5 + b, 0.0)
    first = compute((4,), lambda i: reduce(x[i, k], k, logsumexp), "lse")
    second = compute((4,), lambda i: reduce(x[i, k], k, ordered), "horner")
    agree(oracle, dag([first, second]))


def test_scalars_and_empty_tensors(oracle: Oracle) -> None:
    x, k = placeholder((5,), "x"), reduce_axis(5)
    agree(oracle, dag([compute((), lambda: sum_of(x[k], k))]))
    agree(oracle, matmul(0, 3, 4))
    agree(oracle, matmul(3, 2, 0))


# ---------------------------------------------------------------------------------------------- every operation


def values_for(name: str, dtype: str) -> list[Expr]:
    i, j = Axis("i", 6), Axis("j", 5)
    args = [Read("a", (i, j), dtype), Read("b", (i, j), dtype)]
    return [Op("lt", (args[0], args[1])), *args] if name == "select" else list(args[: OPERATIONS[name].arity])


OF_FLOATS = {*FUNCTIONS, "sqrt", "pow", "isnan"}
TYPED = [
    (name, dtype)
    for name in OPERATIONS
    for dtype in ("float32", "float64", "int32", "uint8")
    if name not in ("and", "or", "not") and (dtype in FLOATS or name not in OF_FLOATS)
]


@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_operations(oracle: Oracle, name: str, dtype: str) -> None:
    e = Op(name, tuple(values_for(name, dtype)))
    result = "bool" if OPERATIONS[name].result == "bool" else dtype
    given = (Input("a", (6, 5), dtype), Input("b", (6, 5), dtype))
    agree(oracle, Dag(given, (Compute("y", (Axis("i", 6), Axis("j", 5)), e, dtype=result),), ("y",)), seed=5)


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, "bool"])
def test_casts(oracle: Oracle, source: str) -> None:
    i = Axis("i", 40)
    x = Read("x", (i,), source)
    bodies = {t: Cast(t, x) for t in ("float16", "float32", "float64", "int8", "int32", "uint64", "bool")}
    if source in FLOATS:  # conversion of what does not fit is undefined in C
        bodies = {t: e for t, e in bodies.items() if not t.startswith("u")}
    computes = tuple(Compute(f"to_{t}", (i,), e, dtype=t) for t, e in bodies.items())
    agree(oracle, Dag((Input("x", (40,), source),), computes, tuple(c.name for c in computes)))


def test_constants(oracle: Oracle) -> None:
    i = Axis("i", 2)
    given = [(np.inf, "float32"), (-np.inf, "float64"), (np.nan, "float32"), (0.1, "float32"), (1e9, "float16"),
             (-(2**63), "int64"), (2**64 - 1, "uint64"), (-128, "int8"), (True, "bool")]  # fmt: skip
    computes = tuple(Compute(f"c{n}", (i,), Const(v, t), dtype=t) for n, (v, t) in enumerate(given))
    answers = oracle.answers(Dag((), computes, tuple(c.name for c in computes)), {})
    for c, (v, t) in zip(computes, given, strict=True):
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(answers[c.name].value.astype(t), np.full(2, v, t))


def test_rounding_at_a_tie_may_go_either_way(oracle: Oracle) -> None:
    """0.1 * 5 is 0.5 in real numbers and on either side of it in floats; only there the bound is wide."""
    x = placeholder((3,), "x")
    rounded = compute((3,), lambda i: call("round", x[i] * 5.0), "y")
    chosen = compute((3,), lambda i: select(lt(x[i] * 3.0, 0.75), 1.0, 9.0), "z")
    d = dag([rounded, chosen])
    found = oracle.answers(d, {"x": np.array([0.1, 0.2, 0.25], "float32")})
    np.testing.assert_array_equal(found["y"].bound >= 1, [True, False, False])
    np.testing.assert_array_equal(found["z"].bound >= 8, [False, False, True])


def test_nan_propagates_through_max(oracle: Oracle) -> None:
    i, k = Axis("i", 1), Axis("k", 3)
    d = Dag((Input("x", (1, 3)),), (Compute("y", (i,), Read("x", (i, k)), (k,), MAX),), ("y",))
    for place in range(3):
        x = np.zeros((1, 3), "float32")
        x[0, place] = np.nan
        assert np.isnan(oracle.answers(d, {"x": x})["y"].value).all()


# ---------------------------------------------------------------------------------------------- random DAGs


class Growing:
    """Random DAGs over every form: guarded reads, gathers, casts, user combiners, diamonds."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs = (Input("x", (4, 3)), Input("y", (4, 3)), Input("n", (4, 3), "int32"), Input("w", (3,), "float64"))
        self.tensors: dict[str, tuple[tuple[int, ...], str]] = {t.name: (t.shape, t.dtype) for t in self.inputs}

    def pick(self, options: list[str]) -> str:
        return options[self.rng.integers(len(options))]

    def read(self, axes: tuple[Axis, ...], dtype: str) -> Expr:
        names = [n for n, (shape, t) in self.tensors.items() if t == dtype]
        name = self.pick(names)
        index, guards = [], []
        for extent in self.tensors[name][0]:
            a = axes[self.rng.integers(len(axes))]
            shift = int(self.rng.integers(-1, 2))
            at: Expr = a + shift if shift else a
            if self.rng.random() < 0.15:
                n = Read("n", (Const(1, "int64"), Const(2, "int64")), "int32")
                at = Cast("int64", n) % 3
            index.append(at)
            guards += [le(0, at), lt(at, extent)]
        return select(all_of(*guards), Read(name, tuple(index), dtype), 0.5 if dtype in FLOATS else 3)

    def expr(self, axes: tuple[Axis, ...], dtype: str, depth: int) -> Expr:
        if depth == 0:
            return self.read(axes, dtype)
        real = dtype in FLOATS
        kind = self.rng.random()
        if kind < 0.1:
            other = self.pick(["float32", "int32", "float64"])
            return Cast(dtype, self.bounded(self.expr(axes, other, depth - 1), other))
        if kind < 0.25:
            a, b = self.expr(axes, dtype, depth - 1), self.expr(axes, dtype, depth - 1)
            return select(Op(self.pick(["lt", "le"]), (a, b)), self.expr(axes, dtype, depth - 1), a)
        if kind < 0.5 and real:
            name = self.pick(["neg", "abs", "exp", "tanh", "erf", "sigmoid", "sin", "atan", "floor", "round", "asinh"])
            return Op(name, (self.bounded(self.expr(axes, dtype, depth - 1), dtype),))
        names = (
            ["add", "sub", "mul", "max", "min"]
            if real
            else ["add", "sub", "mul", "max", "min", "div", "floordiv", "mod"]
        )
        return Op(self.pick(names), (self.expr(axes, dtype, depth - 1), self.expr(axes, dtype, depth - 1)))

    def bounded(self, e: Expr, dtype: str) -> Expr:
        low, high = (Const(v if dtype in FLOATS else int(v), dtype) for v in (-4.0, 4.0))
        return Op("min", (Op("max", (e, low)), high))

    def combiner(self, dtype: str) -> Combiner:
        if self.rng.random() < 0.2 and dtype in FLOATS:
            left, right = Param("left", dtype), Param("right", dtype)
            return Combiner("norm", 0.0, Op("sqrt", (left * left + right * right,)))
        return [SUM, MAX, COMBINERS["min"]][self.rng.integers(3)]

    def dag(self, stages: int) -> Dag:
        computes = []
        for s in range(stages):
            dtype = self.pick(["float32", "float32", "int32", "float64"])
            space = (Axis("i", 4), Axis("j", 3))
            over = (Axis("k", 3), Axis("l", 2))[: self.rng.choice([0, 0, 0, 1, 2])]
            body = self.expr((*space, *over), dtype, int(self.rng.integers(1, 4)))
            computes.append(Compute(f"s{s}", space, body, over, self.combiner(dtype) if over else SUM, dtype))
            self.tensors[f"s{s}"] = ((4, 3), dtype)
        return Dag(self.inputs, tuple(computes), tuple(c.name for c in computes))


@pytest.mark.parametrize("seed", range(40))
def test_random_dags(oracle: Oracle, seed: int) -> None:
    agree(oracle, Growing(seed).dag(4), seed)


# ---------------------------------------------------------------------------------------------- refusals and inputs


def test_a_read_out_of_bounds_is_refused(oracle: Oracle) -> None:
    i = Axis("i", 4)
    d = Dag(
        (Input("x", (4,)),), (Compute("fine", (i,), Const(1.0)), Compute("bad", (i,), Read("x", (i + 1,)))), ("bad",)
    )
    with pytest.raises(OracleError, match="'bad' reads out of bounds"):
        oracle.answers(d, inputs(d, 0))


def test_a_run_that_takes_too_long_is_killed(oracle: Oracle) -> None:
    hasty = Oracle(oracle.compiler, oracle.target, oracle.directory, run_seconds=0.3)
    d = matmul(2000, 2000, 2000)
    with pytest.raises(OracleError, match=r"killed after"):
        hasty.answers(d, inputs(d, 0))


@pytest.mark.parametrize("d", [conv(4, 2, 3), softmax(2, 3), gather(5, 2)])
def test_inputs_are_seeded(d: Dag) -> None:
    a, b, c = inputs(d, 1), inputs(d, 1), inputs(d, 2)
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name])
        assert not np.array_equal(value, c[name])
        assert value.dtype == d[name].dtype and value.shape == d[name].shape


def test_inputs_fit_where_they_stand() -> None:
    i = Axis("i", 500)
    row = Op("add", (Read("n", (i,), "int64"), Const(3, "int64")))
    root = Op("sqrt", (Read("v", (i,)) + 0.001,))
    given = (Input("n", (500,), "int64"), Input("v", (500,)), Input("t", (10,)))
    d = Dag(given, (Compute("y", (i,), Read("t", (row,)) / root),), ("y",))
    values = inputs(d, 0)
    assert values["n"].min() == 0 and 0 < values["n"].max() <= 6
    assert values["v"].min() >= 0.1
    assert np.abs(values["t"]).min() >= 0.05


def test_a_case_is_computed_once(oracle: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = Oracle(oracle.compiler, oracle.target, tmp_path)
    d = softmax(2, 5)
    first = once.case(d, 7)
    assert once.case(d, 8).key != first.key != once.case(d, 7, exact=True).key
    np.testing.assert_array_equal(np.load(first.inputs["x"]), inputs(d, 7)["x"])
    np.testing.assert_allclose(np.load(first.expected["y"]), evaluate(d, inputs(d, 7))["y"], rtol=1e-5)
    modified = first.expected["y"].stat().st_mtime_ns
    again: Callable[[Dag, int], Case] = Oracle(oracle.compiler, oracle.target, tmp_path).case
    assert again(d, 7) == first
    assert first.expected["y"].stat().st_mtime_ns == modified
    assert not [p for p in tmp_path.iterdir() if p.name.startswith("tmp")]
