"""Winograd's minimal filtering: a sliding reduction with fewer multiplications (Lavin and Gray, CVPR 2016).

F(m, r) computes m neighbouring results of a filter of r taps with m + r - 1 multiplications in place of m * r: both
operands are evaluated as polynomials at m + r - 1 points, multiplied there, and interpolated back (Cook-Toom).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import prod

from ir.affine import ZERO, Affine, affine, expression, simplify
from ir.compute import SUM, Compute, Dag, identity
from ir.expr import Axis, Const, Expr, Op, Read, axes, eq, lt, ne, select

Matrix = tuple[tuple[Fraction, ...], ...]

# Infinity is always the last point. Small ones of either sign around 1 keep most digits: with 0, 1, -1, 2, -2 the error of
# F(4, 3) in two dimensions is 5.5 times that of the direct sums, with these 1.6 times (128 channels, float32, measured).
POINTS = {
    len(points): tuple(map(Fraction, points))
    for points in (
        (),
        ("0",),
        ("1", "-1"),
        ("0", "1", "-1"),
        ("1/2", "-1/2", "3/2", "-3/2"),
        ("0", "3/4", "-3/4", "3/2", "-3/2"),
    )
}


@dataclass(frozen=True, slots=True)
class Slide:
    """One dimension along which a window slides a step at a time: data index `out + apart * tap + beside`, weight index
    `tap`.

    data, weight: number of that dimension in the operand's index. apart: distance of the taps (a dilation). beside: what
    other axes add, such as the phase of a transposed convolution.
    """

    out: Axis
    tap: Axis
    data: int
    weight: int
    apart: int = 1
    beside: Affine = ZERO


@dataclass(frozen=True, slots=True)
class Sliding:
    """out[.., i, ..] = sum over tap, .. of data[.., i + tap, ..] * weight[.., tap, ..], the weight known before run time."""

    data: Read
    weight: Read
    slides: tuple[Slide, ...]


@dataclass(frozen=True, slots=True)
class Filtering:
    """F(m, r): y = back @ ((weight @ w) * (data @ x)) for x of m + r - 1 values, w of r taps, y of m."""

    data: Matrix
    weight: Matrix
    back: Matrix


# --- the matrices -----------------------------------------------------------------------


@cache
def filtering(m: int, r: int) -> Filtering:
    """Cook-Toom at `POINTS` and infinity. Raises ValueError where there are too few."""
    n = m + r - 1
    if n - 1 not in POINTS:
        raise ValueError(f"F({m}, {r}) needs {n} points, of which there are {max(POINTS) + 1} at most")
    points = POINTS[n - 1]
    back = tuple((*(p**i for p in points), Fraction(i == m - 1)) for i in range(m))
    factors = [prod((p - q for q in points if q != p), start=Fraction(1)) for p in points]
    weight = (
        *(tuple(p**k / f for k in range(r)) for p, f in zip(points, factors, strict=True)),
        tuple(Fraction(k == r - 1) for k in range(r)),
    )
    columns = [_solved(back, weight, shift) for shift in range(n)]
    return Filtering(tuple(zip(*columns, strict=True)), weight, back)


def _solved(back: Matrix, weight: Matrix, shift: int) -> tuple[Fraction, ...]:
    """The column of the data's matrix that makes result i the sum of data[i + k] * weight[k]: for all i and k,
    sum over points of back[i] * weight[k] * column = (i + k == shift)."""
    m, n, r = len(back), len(weight), len(weight[0])
    rows = [
        [*(back[i][p] * weight[p][k] for p in range(n)), Fraction(i + k == shift)] for i in range(m) for k in range(r)
    ]
    for c in range(n):
        pivot = next(i for i in range(c, len(rows)) if rows[i][c])
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [x / rows[c][c] for x in rows[c]]
        for i, row in enumerate(rows):
            if i != c and row[c]:
                rows[i] = [x - row[c] * y for x, y in zip(row, rows[c], strict=True)]
    return tuple(row[-1] for row in rows[:n])


def table(i: Expr, j: Expr, matrix: Sequence[Sequence[Fraction | float]]) -> Expr:
    """A matrix of numbers as selects on its indices, row by row."""
    out: Expr = Const(0.0)
    for p, row in enumerate(matrix):
        entries: Expr = Const(0.0)
        for q, value in enumerate(row):
            entries = select(eq(j, q), Const(float(value)), entries) if value else entries
        out = select(eq(i, p), entries, out) if any(row) else out
    return out


def weighted(entry: Expr, value: Expr) -> Expr:
    """A table's entry times a value; zeros take no part: unrolled, they cost nothing."""
    return select(ne(entry, 0.0), entry * value, Const(0.0))


# --- what slides ------------------------------------------------------------------------


def sliding(stage: Compute, constants: frozenset[str]) -> Sliding | None:
    """The stage as a window of data times constant weights; None when it is something else."""
    match stage.body:
        case Op("mul", (Read() as a, Read() as b)) if stage.combiner == SUM and stage.dtype == "float32":
            for data, weight in ((a, b), (b, a)):
                if weight.tensor in constants and data.tensor not in constants:
                    slides = tuple(s for r in stage.reduce if (s := _slide(stage, data, weight, r)) is not None)
                    return Sliding(data, weight, slides) if slides else None
    return None


def _slide(stage: Compute, data: Read, weight: Read, tap: Axis) -> Slide | None:
    at = [d for d, i in enumerate(data.index) if tap in axes(i)]
    by = [d for d, i in enumerate(weight.index) if tap in axes(i)]
    if tap.extent < 2 or len(at) != 1 or len(by) != 1 or weight.index[by[0]] != tap:
        return None
    form = affine(data.index[at[0]])
    if form is None or form.constant or any(c < 1 for _, c in form.terms):
        return None
    used = [a for i in (*data.index, *weight.index) for a in axes(i)]
    alone = [a for a, c in form.terms if c == 1 and a in stage.space and used.count(a) == 1]
    if not alone:
        return None
    out = max(alone, key=lambda a: a.extent)
    beside = tuple((a, c) for a, c in form.terms if a not in (out, tap))
    if any(a not in stage.space for a, _ in beside):
        return None
    return Slide(out, tap, at[0], by[0], form.coefficient(tap), Affine(beside, 0))


# --- the rewrite ------------------------------------------------------------------------


def winograd(dag: Dag, name: str, m: int, constants: frozenset[str]) -> Dag:
    """y[i] = sum over k, t of x[i + t, k] * w[t, k]      -->

    y.data[p, i', k] = sum_u D[p, u] * x[i' * m + u, k];  y.weight[p, k] = sum_t W[p, t] * w[t, k]
    y.product[p, i'] = sum_k y.data[p, i', k] * y.weight[p, k];  y[i] = sum_p B[i % m, p] * y.product[p, i / m]

    for the last two dimensions that slide, one after the other. Of taps d apart, x[i + d * t], tiles begin at each of d
    neighbours and take every d-th value.
    """
    stage = dag.stage(name)
    found = sliding(stage, constants)
    assert found is not None, f"{name} does not slide"
    slides = found.slides[-2:]
    parts = [_Part(s, m, Axis(f"{name}.{s.out.name}.point", m + s.tap.extent - 1)) for s in slides]
    before = [*_transformed_data(dag, name, found.data, parts), *_transformed_weight(dag, name, found.weight, parts)]
    data, weight = (c.name for c in (before[len(parts) - 1], before[-1]))
    product = _product(stage, found, parts, data, weight)
    after = _back(stage, product, parts)
    out: list[Compute] = []
    for c in dag.computes:
        out += [*before, product, *after] if c.name == name else [c]
    return replace(dag, computes=tuple(out))


@dataclass(frozen=True, slots=True)
class _Part:
    """A sliding dimension cut into tiles of m results. point: which of the multiplications."""

    slide: Slide
    m: int
    point: Axis

    @property
    def tile(self) -> Axis:
        return Axis(f"{self.slide.out.name}.tile", -(-self.slide.out.extent // self.reach))

    @property
    def reach(self) -> int:
        """Results from one tile to the next: with taps apart, as many tiles lie in each other."""
        return self.m * self.slide.apart

    @property
    def space(self) -> tuple[Axis, ...]:
        """What numbers the tiles: which of those that lie in each other, then how far on."""
        lag = Axis(f"{self.slide.out.name}.lag", self.slide.apart)
        return (self.tile,) if self.slide.apart == 1 else (lag, self.tile)

    @property
    def where(self) -> tuple[Expr, ...]:
        """The tile that a result is in."""
        a = self.slide.out
        return (a // self.reach,) if self.slide.apart == 1 else (a % self.slide.apart, a // self.reach)

    @property
    def result(self) -> Expr:
        """Which result of its tile it is."""
        a = self.slide.out
        return (a if self.slide.apart == 1 else a // self.slide.apart) % self.m

    def at(self, u: Expr) -> Expr:
        """Index of the u-th value of data that a tile reads."""
        first = expression(self.slide.beside) + sum(self.space[:-1], start=Const(0, "int64"))
        return simplify((self.tile * self.m + u) * self.slide.apart + first)

    @property
    def matrices(self) -> Filtering:
        return filtering(self.m, self.slide.tap.extent)


def _transformed_data(dag: Dag, name: str, read: Read, parts: list[_Part]) -> list[Compute]:
    """One stage a dimension; points stand in front, the first dimension's first."""
    dims: list[tuple[Axis, ...]] = [
        (Axis(f"{name}.{read.tensor}.{d}", extent),) for d, extent in enumerate(dag[read.tensor].shape)
    ]
    tensor, front, out = read.tensor, list[Axis](), []
    for n, part in enumerate(parts):
        d, u = part.slide.data, Axis(f"{name}.u", part.point.extent)
        [whole], at = dims[d], part.at(u)
        index = (*front, *(a if e != d else at for e, axes_ in enumerate(dims) for a in axes_))
        value = select(lt(at, whole.extent), Read(tensor, index, read.dtype), identity(0, read.dtype))
        dims[d] = (*(a for a, _ in part.slide.beside.terms), *part.space)
        body = weighted(table(part.point, u, part.matrices.data), simplify(value))
        tensor = f"{name}.data{n}"
        out.append(Compute(tensor, (*front, part.point, *(a for axes_ in dims for a in axes_)), body, (u,)))
        front.append(part.point)
    return out


def _transformed_weight(dag: Dag, name: str, read: Read, parts: list[_Part]) -> list[Compute]:
    """One stage a dimension, in the order of the data's; the dimension of the taps goes."""
    dims = [Axis(f"{name}.{read.tensor}.{d}", extent) for d, extent in enumerate(dag[read.tensor].shape)]
    tensor, front, left, out = read.tensor, list[Axis](), dims, []
    for n, part in enumerate(parts):
        tap = dims[part.slide.weight]
        body = weighted(table(part.point, tap, part.matrices.weight), Read(tensor, (*front, *left), read.dtype))
        left = [a for a in left if a != tap]
        tensor = f"{name}.weight{n}"
        out.append(Compute(tensor, (*front, part.point, *left), body, (tap,)))
        front.append(part.point)
    return out


def _product(stage: Compute, found: Sliding, parts: list[_Part], data: str, weight: str) -> Compute:
    """One product of matrices for every point."""
    points, spaces = tuple(p.point for p in parts), {p.slide.out: p.space for p in parts}
    at: list[tuple[Expr, ...]] = [(i,) for i in found.data.index]
    for p in parts:
        at[p.slide.data] = (*(a for a, _ in p.slide.beside.terms), *p.space)
    taps = {p.slide.weight for p in parts}
    x = Read(data, (*points, *(i for indices in at for i in indices)), found.data.dtype)
    w = Read(weight, (*points, *(i for d, i in enumerate(found.weight.index) if d not in taps)), found.weight.dtype)
    gone = {p.slide.tap for p in parts}
    left = tuple(a for a in stage.reduce if a not in gone)
    space = (*points, *(s for a in stage.space for s in spaces.get(a, (a,))))
    return replace(stage, name=f"{stage.name}.product", space=space, reduce=left, body=x * w)


def _back(stage: Compute, product: Compute, parts: list[_Part]) -> list[Compute]:
    """The first dimension into a stage of its own, its result in front; the last one into the stage itself."""
    tiles, last = {p.slide.out: p.where for p in parts}, parts[-1]
    source, front, before = product, list[Expr](), list[Compute]()
    if len(parts) > 1:
        first = parts[0]
        result = Axis(f"{stage.name}.{first.slide.out.name}.result", first.m)
        values = Read(product.name, product.space, product.dtype)
        body = weighted(table(result, first.point, first.matrices.back), values)
        source = Compute(f"{stage.name}.back", (result, *product.space[1:]), body, (first.point,))
        before, front = [source], [first.result]
    index = (i for a in stage.space for i in tiles.get(a, (a,)))
    value = Read(source.name, (*front, last.point, *index), stage.dtype)
    body = weighted(table(last.result, last.point, last.matrices.back), value)
    return [*before, replace(stage, body=body, reduce=(last.point,))]


def saving(dag: Dag, name: str, m: int, constants: frozenset[str]) -> float:
    """How many times fewer steps the stage takes, transforms of data and results included, those of weights not."""
    before = {c.name for c in dag.computes} - {name}
    stages = [c for c in winograd(dag, name, m, constants).computes if c.name not in before]
    weights = f"{name}.weight"
    steps = sum(prod(a.extent for a in c.axes) for c in stages if not c.name.startswith(weights))
    return prod(a.extent for a in dag.stage(name).axes) / steps


__all__ = ["Filtering", "Slide", "Sliding", "filtering", "saving", "sliding", "table", "weighted", "winograd"]
