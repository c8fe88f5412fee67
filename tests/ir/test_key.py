"""Text, parse and keys of DAGs: round trips, and what a key must and must not depend on."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.compute import COMBINERS, LEFT, RIGHT, Combiner, Compute, Dag, Input
from ir.evaluate import evaluate
from ir.expr import OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read, children, lt, rebuild, select
from ir.key import canonical, key, text_key
from ir.text import dag_text, parse_dag

NAMES = [
    "a",
    "pad",
    "B.pack",
    "sum",
    "inf",
    "and",
    "over",
    "output",
    "combiner",
    "/layer/conv:0",
    'q"uote',
    "x y",
    "é\\",
]
DTYPES = ["float32", "int8", "float16"]


def any_name(rng: random.Random, count: int) -> list[str]:
    return rng.sample(NAMES, count)


def any_literal(rng: random.Random) -> Const:
    number = rng.choice([0.0, 1.0, -2.5, 1e-30, 3e38, math.inf, -math.inf, math.nan, rng.uniform(-9, 9)])
    half = rng.choice([0.5, -1.0, math.inf])
    return rng.choice(
        [Const(number), Const(rng.randint(-9, 9), "int64"), Const(rng.randint(0, 9), "uint8"), Const(True, "bool"),
         Const(False, "bool"), Const(half, "float16")]
    )  # fmt: skip


def any_tree(rng: random.Random, leaves: list[Expr], depth: int) -> Expr:
    """Sensible or not: the text must not care."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([*leaves, any_literal(rng)])
    if rng.random() < 0.1:
        return Cast(rng.choice(DTYPES), any_tree(rng, leaves, depth - 1))
    name = rng.choice(list(OPERATIONS))
    return Op(name, tuple(any_tree(rng, leaves, depth - 1) for _ in range(OPERATIONS[name].arity)))


def any_dag(seed: int) -> Dag:
    rng = random.Random(seed)
    names = any_name(rng, rng.randint(2, 5))
    known: list[Input | Compute] = [
        Input(names[0], (rng.randint(0, 4),) * rng.randint(0, 2), rng.choice(DTYPES), rng.random() < 0.5)
    ]
    custom = Combiner("mine", -math.inf, lt(Param(LEFT), Param(RIGHT, "int8")), reorders=rng.random() < 0.5)
    for name in names[1:]:
        axes = [Axis(n, rng.randint(1, 4)) for n in any_name(rng, rng.randint(1, 3))]
        reads = [Read(t.name, tuple(rng.choice(axes) for _ in t.shape), t.dtype) for t in known]
        cut = rng.randint(0, len(axes))
        combiner = rng.choice([*COMBINERS.values(), custom])
        body = any_tree(rng, [*axes, *reads], 4)
        known.append(Compute(name, tuple(axes[:cut]), body, tuple(axes[cut:]), combiner, rng.choice(DTYPES)))
    computes = tuple(t for t in known if isinstance(t, Compute))
    return Dag(tuple(t for t in known if isinstance(t, Input)), computes, tuple(c.name for c in computes[-2:]))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**40))
def test_parse_reads_what_text_wrote(seed: int) -> None:
    dag = any_dag(seed)
    assert parse_dag(dag_text(dag)) == dag


@pytest.mark.parametrize(
    "line",
    ["y: float32[i=4] = x[i", "y: float32[i=4] = z[i]", "y: float33[i=4] = 1.0", "y: float32[i=4] = sin(j)",
     "y: float32[i=4] = 1.0 1.0", "y: float32[i=4] = frobnicate(i)", "y: float32[i=4] = nobody over (k=2): 1.0",
     "y: float32[i=4] = x[i] ? 2", "y: float32[i=4] = 1.0 +", "y: float32[i=four] = 1.0"],
)  # fmt: skip
def test_parse_names_the_line_it_cannot_read(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected .* in: y: float"):
        parse_dag(f"input x: float32[4]\n{line}\noutput y\n")


def test_text_refuses_a_read_of_another_dtype() -> None:
    i = Axis("i", 4)
    with pytest.raises(ValueError, match="reads x as float16"):
        dag_text(Dag((Input("x", (4,)),), (Compute("y", (i,), Read("x", (i,), "float16")),), ("y",)))


# --- keys ---------------------------------------------------------------------------------------------------------


def conv(x: str, w: str, b: str, stride: int = 1, constant: bool = True) -> Dag:
    """Padded convolution over one dimension, bias, relu; `x`, `w`, `b` name the inputs."""
    n, h, o = Axis("n", 1), Axis("h", 8 // stride), Axis("o", 3)
    p, c, kh, ci = Axis("p", 10), Axis("c", 2), Axis("kh", 3), Axis("ci", 2)
    padded = select(Op("and", (lt(0, p), lt(p, 9))), Read(x, (n, p - 1, c)), 0.0)
    body = Read("pad", (n, h * stride + kh, ci)) * Read(w, (kh, ci, o))
    return Dag(
        (Input(x, (1, 8, 2)), Input(w, (3, 2, 3), constant=constant), Input(b, (3,), constant=True)),
        (
            Compute("pad", (n, p, c), padded),
            Compute("conv", (n, h, o), body, (kh, ci)),
            Compute("bias", (n, h, o), Read("conv", (n, h, o)) + Read(b, (o,))),
            Compute("relu", (n, h, o), Op("max", (Read("bias", (n, h, o)), Const(0.0)))),
        ),
        ("relu",),
    )


def symmetric(first: str, second: str) -> Dag:
    """s = a + b and t = a * b: alike until c = s - (a / 2) tells a from b."""
    i = Axis("i", 4)
    a, b = Read(first, (i,)), Read(second, (i,))
    computes = (
        Compute("s", (i,), a + b),
        Compute("t", (i,), b * a),
        Compute("c", (i,), Read("s", (i,)) * Read("t", (i,))),
    )
    return Dag((Input(first, (4,)), Input(second, (4,))), computes, ("c",))


def twins() -> Dag:
    """Four inputs that only a search tells apart: (a + b) * (c + d)."""
    i = Axis("i", 4)
    a, b, c, d = (Read(n, (i,)) for n in "abcd")
    computes = (
        Compute("s", (i,), a + b),
        Compute("t", (i,), c + d),
        Compute("p", (i,), Read("s", (i,)) * Read("t", (i,))),
    )
    return Dag(tuple(Input(n, (4,)) for n in "abcd"), computes, ("p",))


EXAMPLES = [conv("x", "w", "b"), symmetric("a", "b"), twins()]


def shuffled(dag: Dag, rng: random.Random) -> Dag:
    """Isomorphic: other names, another order of inputs, stages and commutative operands."""
    names = {t.name: f"n{rng.random()}" for t in (*dag.inputs, *dag.computes)}

    def other(e: Expr) -> Expr:
        kids = tuple(map(other, children(e)))
        if isinstance(e, Axis):
            return Axis(f"axis of {e.name}", e.extent)
        if isinstance(e, Read):
            return Read(names[e.tensor], kids, e.dtype)
        if isinstance(e, Op) and e.name in ("add", "mul", "max", "and") and rng.random() < 0.5:
            kids = kids[::-1]
        return rebuild(e, kids) if kids else e

    def moved(c: Compute) -> Compute:
        space, reduce = ([other(a) for a in axes] for axes in (c.space, c.reduce))
        return replace(c, name=names[c.name], space=tuple(space), reduce=tuple(reduce), body=other(c.body))  # type: ignore[arg-type]

    inputs = [replace(i, name=names[i.name]) for i in dag.inputs]
    rng.shuffle(inputs)
    return Dag(tuple(inputs), tuple(map(moved, dag.computes)), tuple(names[o] for o in dag.outputs))


@pytest.mark.parametrize("dag", EXAMPLES)
@pytest.mark.parametrize("seed", range(20))
def test_isomorphic_dags_have_one_canonical_form(dag: Dag, seed: int) -> None:
    assert canonical(shuffled(dag, random.Random(seed)))[0] == canonical(dag)[0]


@pytest.mark.parametrize("dag", EXAMPLES)
def test_the_canonical_form_computes_the_same(dag: Dag) -> None:
    rng = np.random.default_rng(0)
    feeds = {i.name: rng.random(i.shape, dtype=np.float32) for i in dag.inputs}
    form, was = canonical(dag)
    got = evaluate(form, {i.name: feeds[was[i.name]] for i in form.inputs})
    want = evaluate(dag, feeds)
    for new, old in zip(form.outputs, dag.outputs, strict=True):
        assert was[new] == old
        np.testing.assert_allclose(got[new], want[old], rtol=1e-6)


@pytest.mark.parametrize("dag", EXAMPLES)
def test_the_canonical_form_is_its_own(dag: Dag) -> None:
    form, _ = canonical(dag)
    again, was = canonical(form)
    assert again == form
    assert set(was) == set(form.tensors)


def test_a_key_depends_on_structure_shape_dtype_and_role() -> None:
    base = conv("x", "w", "b")
    half = replace(base, inputs=(*base.inputs[:2], replace(base.inputs[2], shape=(5,))))
    others = [
        conv("x", "w", "b", stride=2),
        conv("x", "w", "b", constant=False),
        half,
        replace(base, outputs=("relu", "conv")),
    ]
    assert len({key(d) for d in [base, *others]}) == 5
    assert key(base) == key(conv("u", "v", "q"))


def test_what_no_output_needs_is_dropped() -> None:
    base = symmetric("a", "b")
    i = Axis("i", 4)
    extra = replace(
        base, inputs=(Input("z", (9,)), *base.inputs), computes=(*base.computes, Compute("dead", (i,), Read("a", (i,))))
    )
    assert key(extra) == key(base)


CONV = """\
input x0: float32[1, 8, 2]
constant w0: float32[3, 2, 3]
constant w1: float32[3]
pad: float32[i0=1, i1=10, i2=2] = select(0 < i1 and i1 < 9, x0[i0, i1 + -1, i2], 0.0)
conv: float32[i0=1, i1=8, i2=3] = sum over (k0=3, k1=2): pad[i0, i1 + k0, k1] * w0[k0, k1, i2]
add: float32[i0=1, i1=8, i2=3] = conv[i0, i1, i2] + w1[i2]
relu: float32[i0=1, i1=8, i2=3] = max(add[i0, i1, i2], 0.0)
output relu
"""


def test_keys_are_the_same_on_every_machine() -> None:
    dag = conv("x", "w", "b")
    assert dag_text(canonical(dag)[0]) == CONV
    assert key(dag) == text_key(CONV) == "1d06a4f7f58439f1"
