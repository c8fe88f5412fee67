"""DAGs whose output may lie in the memory of an input, and DAGs that look like it; and what "in place" means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from ir.compute import Dag
from ir.dsl import Stage, cast, compute, dag, lt, max, maximum, placeholder, reduce_axis, select, tanh
from ir.expr import Axis, Const, Expr, Read, Term, children, rebuild
from ir.loop import Alloc, Buffer, For, If, Nest, Stmt, Store
from tests.zoo_dags import conv, matmul

Pairs = tuple[tuple[str, str], ...]


def conv_residual() -> Dag:
    """The end of a block of ResNet: bias, residual, relu behind a padded convolution of odd sizes."""
    y = conv(1, 5, 3, 2, 19, 3, 1, 1)
    bias, skip = placeholder((19,), "bias", constant=True), placeholder(y.shape, "skip")
    return dag([compute(y.shape, lambda *i: maximum(y[i] + bias[i[-1]] + skip[i], 0.0), "out")])


def added(element: Callable[..., Expr]) -> Dag:
    """out = element(product, s, i, j) behind a matrix product."""
    c, s = matmul(7, 21, 5), placeholder((7, 21), "s")
    return dag([compute((7, 21), lambda i, j: element(c, s, i, j), "out")])


def two_eligible() -> Dag:
    c, p, q = matmul(9, 21, 7), placeholder((9, 21), "p"), placeholder((9, 21), "q")
    return dag([compute((9, 21), lambda i, j: c[i, j] + p[i, j] * q[i, j], "out")])


def two_outputs(first: str, second: str) -> Dag:
    given = {n: placeholder((5, 23), n) for n in "ab"}
    one = compute((5, 23), lambda i, j: tanh(given[first][i, j]), "one")
    return dag([one, compute((5, 23), lambda i, j: given[second][i, j] * 2.0, "two")], [*given.values()])


def output_of_output() -> Dag:
    a, b = placeholder((5, 23), "a"), placeholder((5, 23), "b")
    one = compute((5, 23), lambda i, j: tanh(a[i, j]), "one")
    return dag([one, compute((5, 23), lambda i, j: one[i, j] + b[i, j], "two")])


def normalised() -> Stage:
    """Its rows' maxima are needed before an element may go."""
    x, k = placeholder((7, 19), "x"), reduce_axis(19)
    top = compute((7,), lambda i: max(x[i, k], k), "top")
    return compute((7, 19), lambda i, j: x[i, j] - top[i], "out")


def operand_too() -> Stage:
    """The residual is an operand of the product as well."""
    a = placeholder((11, 11), "A")
    c = matmul(11, 11, 11, left=a, name="C")
    return compute((11, 11), lambda i, j: c[i, j] + a[i, j], "out")


def converted() -> Stage:
    n = placeholder((5, 23), "n", "int32")
    return compute((5, 23), lambda i, j: cast(n[i, j], "float32") * 2.0, "out")


def flat_ones() -> Stage:
    """The same elements in the same order under another shape."""
    s = placeholder((1, 6, 1, 35), "s")
    return compute((6, 35), lambda i, j: tanh(s[0, i, 0, j]), "out")


def scaled(shape: tuple[int, ...], at: Callable[..., tuple[Term, ...]]) -> Dag:
    c, s = matmul(9, 9, 5), placeholder(shape, "s")
    return dag([compute((9, 9), lambda i, j: c[i, j] + s[at(i, j)], "out")])


DAGS: dict[str, tuple[Dag, Pairs]] = {
    "residual behind a convolution":  (conv_residual(), (("out", "skip"),)),
    "residual":                       (added(lambda c, s, i, j: maximum(c[i, j] + s[i, j], 0.0)), (("out", "s"),)),
    "x + x":                          (added(lambda c, s, i, j: s[i, j] + c[i, j] * s[i, j]), (("out", "s"),)),
    "guarded":                        (added(lambda c, s, i, j: select(lt(i, 4), c[i, j], s[i, j])), (("out", "s"),)),
    "two inputs":                     (two_eligible(), (("out", "p"), ("out", "q"))),
    "two outputs of two inputs":      (two_outputs("a", "b"), (("one", "a"), ("two", "b"))),
    "another shape, the same order":  (dag([flat_ones()]), (("out", "s"),)),
    "an output of an output":         (output_of_output(), (("two", "b"),)),
    "two outputs of one input":       (two_outputs("a", "a"), ()),
    "maxima first":                   (dag([normalised()]), ()),
    "also an operand":                (dag([operand_too()]), ()),
    "another dtype":                  (dag([converted()]), ()),
    "broadcast":                      (scaled((1, 9), lambda i, j: (0, j)), ()),
    "shifted":                        (added(lambda c, s, i, j: c[i, j] + s[i, (j + 1) % 21]), ()),
    "here and beside":                (added(lambda c, s, i, j: c[i, j] + s[i, j] + s[6 - i, j]), ()),
    "transposed":                     (scaled((9, 9), lambda i, j: (j, i)), ()),
}  # fmt: skip


# --- what it means


def shared(nest: Nest, pair: tuple[str, str]) -> Nest:
    """The nest with one memory for both of the pair: filled from the input, and the output at the end."""
    output = next(b for b in nest.outputs if b.name == pair[0])
    source = next(b for b in nest.inputs if b.name == pair[1])
    shapes = {output.name: output.shape, source.name: source.shape}
    size, at = prod(output.shape), Axis("at", prod(output.shape))
    memory = Buffer("memory", (size,), output.dtype)

    def copied(store: Store) -> For:
        return For(at, Const(size, "int64"), (store,))

    def here(name: str) -> tuple[Expr, ...]:
        return place_of(at, shapes[name])

    fill = Store(memory.name, (at,), Read(source.name, here(source.name), source.dtype))
    leave = Store(output.name, here(output.name), Read(memory.name, (at,), output.dtype))
    body = moved(nest.body, shapes, memory.name)
    return replace(
        nest, body=(Alloc(memory.name, (size,), output.dtype, "workspace"), copied(fill), *body, copied(leave))
    )


def place_of(at: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    return tuple((at // prod(shape[d + 1 :])) % n for d, n in enumerate(shape))


def moved(body: tuple[Stmt, ...], shapes: dict[str, tuple[int, ...]], memory: str) -> tuple[Stmt, ...]:
    def offset(index: tuple[Expr, ...], shape: tuple[int, ...]) -> tuple[Expr, ...]:
        out: Expr = Const(0, "int64")
        for d, i in enumerate(index):
            out = out + i * prod(shape[d + 1 :])
        return (out,)

    def e(x: Expr) -> Expr:
        x = rebuild(x, tuple(map(e, children(x)))) if children(x) else x
        return (
            Read(memory, offset(x.index, shapes[x.tensor]), x.dtype)
            if isinstance(x, Read) and x.tensor in shapes
            else x
        )

    def statement(s: Stmt) -> Stmt:
        match s:
            case Alloc():
                return s
            case For(_, _, inner, _):
                return replace(s, body=tuple(map(statement, inner)))
            case If(_, then, orelse):
                return replace(s, then=tuple(map(statement, then)), orelse=tuple(map(statement, orelse)))
            case Store(buffer, index, value):
                if buffer not in shapes:
                    return replace(s, value=e(value))
                return Store(memory, offset(index, shapes[buffer]), e(value))

    return tuple(map(statement, body))
