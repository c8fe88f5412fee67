"""The tensor-expression language: what it builds, and what it refuses."""

from __future__ import annotations

import pytest

from ir import dsl
from ir.compute import COMBINERS, Compute
from ir.dsl import cast, combiner, compute, dag, maximum, placeholder, reduce, reduce_axis, select
from ir.expr import Axis, Const, Op, Read, lt, walk


def matmul(n: int = 4) -> dsl.Stage:
    a, b, k = placeholder((n, n), "a"), placeholder((n, n), "b"), reduce_axis(n)
    return compute((n, n), lambda i, j: dsl.sum(a[i, k] * b[k, j], k), "c")


def test_a_matrix_product() -> None:
    i, j, k = Axis("i", 4), Axis("j", 4), Axis("k", 4)
    body = Op("mul", (Read("a", (i, k)), Read("b", (k, j))))
    assert dag([matmul()]).computes == (Compute("c", (i, j), body, (k,), COMBINERS["sum"]),)


def test_the_dag_forgets_handles_and_stands_in_order() -> None:
    c = matmul()
    relu = compute(c.shape, lambda i, j: maximum(c[i, j], 0), "relu")
    d = dag([relu, c])
    assert [t.name for t in d.inputs] == ["a", "b"]
    assert [s.name for s in d.computes] == ["c", "relu"] and d.outputs == ("relu", "c")
    assert all(type(n) is not dsl.Access for s in d.computes for n in walk(s.body))


def test_equal_names_get_a_suffix_even_inside_one_body() -> None:
    x, y = placeholder((3,), "x"), placeholder((3,), "x")
    first = compute((3,), lambda i: x[i] - y[i], "x")
    (stage,) = dag([first]).computes
    assert stage.name == "x_2"
    assert stage.body == Op("sub", (Read("x", (Axis("i", 3),)), Read("x_1", (Axis("i", 3),))))


def test_inputs_keep_the_order_asked_for() -> None:
    x, y = placeholder((3,), "x"), placeholder((3,), "y")
    out = compute((3,), lambda i: x[i], "out")
    assert [t.name for t in dag([out], [y, x]).inputs] == ["y", "x"]


def test_reduction_axes_without_a_name_are_named_alike_each_time() -> None:
    def twice() -> dsl.Stage:
        x, p, q = placeholder((2, 3, 4), "x"), reduce_axis(3), reduce_axis(4)
        return compute((2,), lambda k: dsl.max(x[k, p, q], [p, q]), "m")

    assert [a.name for a in dag([twice()]).computes[0].reduce] == ["k1", "k2"]
    assert dag([twice()]) == dag([twice()])


def test_axes_by_name_and_any_number_of_them() -> None:
    x = placeholder((2, 3), "x")
    assert [a.name for a in compute((2, 3), lambda *i: x[i], "y").space] == ["i0", "i1"]
    assert [a.name for a in compute((2, 3), lambda *i: x[i], "y", ["n", "c"]).space] == ["n", "c"]


def test_dtypes_follow_the_element() -> None:
    x = placeholder((3,), "x", "int8")
    assert compute((3,), lambda i: x[i] + 1).dtype == "int8"
    assert compute((3,), lambda i: cast(x[i], "float32") * 0.5).dtype == "float32"
    assert compute((3,), lambda i: lt(x[i], 3)).dtype == "bool"
    assert compute((3,), lambda i: i).dtype == "int64"
    assert compute((), lambda: 1.5).body == Const(1.5)


def test_any_combiner() -> None:
    x, k = placeholder((5,), "x"), reduce_axis(5)
    horner = combiner(lambda a, b: a * 2 + b, 0.0, name="horner")
    stage = compute((), lambda: reduce(x[k], k, horner), "h")
    assert not stage.combiner.reorders and combiner(lambda a, b: a + b, 0, commutes=True).reorders


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: placeholder((2, -1), "x"), "0 or more"),
        (lambda: placeholder((2.5,), "x"), "integer"),
        (lambda: placeholder("ab", "x"), "not a sequence of integers"),
        (lambda: placeholder((2,), "x", "float99"), "unknown dtype"),
        (lambda: reduce_axis(-3), "0 or more"),
        (lambda: placeholder((2, 3), "x")[0], "2 dimensions, not 1"),
        (lambda: placeholder((2,), "x")[-1], "negative"),
        (lambda: placeholder((2,), "x")[0.5], "not an integer"),
        (lambda: placeholder((2,), "x")[0:1], "not by slices"),
        (lambda: compute((2, 2), lambda i: i), "takes 1 indices"),
        (lambda: compute((2,), lambda i: reduce_axis(3, "r")), "axis r"),
        (lambda: compute((2,), lambda i: placeholder((2,), "x")[i] + i), "cast one of them"),
        (lambda: compute((2,), lambda i: select(i, 1.0, 2.0)), "not bool"),
        (lambda: compute((2,), lambda i: dsl.call("and", lt(i, 1), i)), "and of"),
        (lambda: compute((2,), lambda i: dsl.sum(i, reduce_axis(3, "i"))), "twice"),
        (lambda: compute((2,), lambda i: dsl.sum(i, reduce_axis(3)) * 2), "stage of its own"),
        (lambda: dsl.sum(1.0, []), "at least one axis"),
        (lambda: compute((2,), lambda i: i, axes=["a", "b"]), "1 distinct axis names"),
        (lambda: combiner(lambda a, b: a + placeholder((), "x")[()], 0), "two arguments alone"),
        (lambda: dag([placeholder((2,), "x")]), "is an input"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(build: object, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        build()  # type: ignore[operator]


def test_a_chain_of_thousands_of_stages() -> None:
    x = placeholder((2,), "x")
    stage = compute((2,), lambda i: x[i], "s")
    for _ in range(2000):
        before = stage
        stage = compute((2,), lambda i, b=before: b[i] + 1.0, "s")
    assert len(dag([stage]).computes) == 2001
