"""Dag -> Dag: the fewest, plainest axes. Every tensor keeps its elements in the same row-major order.

Inputs and outputs may get another shape with the same elements in memory: a caller passes the same buffers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ir.affine import affine, simplify
from ir.compute import Compute, Dag, Tensor
from ir.expr import Axis, Const, Expr, Op, Read, children, dtype_of, reads, rebuild, substitute, walk

Dim = tuple[str, int]  # a tensor's name and a position in its shape
ZERO = Const(0, "int64")
LANES = 8  # floats in the shorter of the usual vectors (AVX2)


def plain_axes(dag: Dag) -> Dag:
    """Axes of extent 1 dropped, axes split where a division takes them apart, copies dropped, neighbours merged.

    x[n, y, x, co // 16 * 16 + ci]      -->      x[y, x, g, ci]
    """
    return merge_axes(drop_copies(split_axes(drop_unit_axes(dag))))


# --- axes of extent 1 ---------------------------------------------------------------------------------------------


def drop_unit_axes(dag: Dag) -> Dag:
    """y[n, h, c] = x[n, h] * w[0, c]  (n < 1)      -->      y[h, c] = x[h] * w[c]

    A tensor of one element keeps its last dimension, a reduction its last axis.
    """
    kept = {t.name: _wide_dims(t.shape) for t in dag.tensors.values()}

    def narrow(e: Expr) -> Expr:
        kids = tuple(map(narrow, children(e)))
        if isinstance(e, Read):
            return Read(e.tensor, tuple(kids[d] for d in kept[e.tensor]), e.dtype)
        return rebuild(e, kids) if kids else e

    def stage(c: Compute) -> Compute:
        space = tuple(c.space[d] for d in kept[c.name])
        reduce = tuple(a for a in c.reduce if a.extent != 1) or c.reduce[-1:]
        ones: dict[Expr, Expr] = {a: ZERO for a in c.axes if a.extent == 1 and a not in space}
        return replace(c, space=space, reduce=reduce, body=simplify(narrow(substitute(c.body, ones))))

    inputs = tuple(replace(i, shape=tuple(i.shape[d] for d in kept[i.name])) for i in dag.inputs)
    return replace(dag, inputs=inputs, computes=tuple(map(stage, dag.computes)))


def _wide_dims(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for d, n in enumerate(shape) if n != 1) or tuple(range(len(shape)))[-1:]


# --- classes: dimensions and axes that must change together -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Classes:
    """Dimensions read at a plain axis of the same extent belong together with that axis, across the whole DAG."""

    of_dim: Mapping[Dim, Dim]
    of_axis: Mapping[tuple[str, Axis], Dim | None]  # reduce axes that read no whole dimension have none

    def members(self) -> dict[Dim, list[Dim]]:
        out: dict[Dim, list[Dim]] = {}
        for dim, root in self.of_dim.items():
            out.setdefault(root, []).append(dim)
        return out


def classes_of(dag: Dag) -> Classes:
    parent: dict[Dim, Dim] = {(t.name, d): (t.name, d) for t in dag.tensors.values() for d in range(len(t.shape))}
    axis_dim: dict[tuple[str, Axis], Dim] = {}

    def root(dim: Dim) -> Dim:
        while parent[dim] != dim:
            dim = parent[dim]
        return dim

    for c in dag.computes:
        axis_dim |= {(c.name, a): (c.name, d) for d, a in enumerate(c.space)}
        for r in reads(c.body):
            for d, i in enumerate(r.index):
                if isinstance(i, Axis) and i.extent == dag[r.tensor].shape[d]:
                    mine = axis_dim.setdefault((c.name, i), (r.tensor, d))
                    parent[root((r.tensor, d))] = root(mine)
    axes = {(c.name, a): axis_dim.get((c.name, a)) for c in dag.computes for a in c.axes}
    return Classes({d: root(d) for d in parent}, {k: None if v is None else root(v) for k, v in axes.items()})


# --- splitting ----------------------------------------------------------------------------------------------------


def split_axes(dag: Dag) -> Dag:
    """y[i] = x[i // 3, i % 3]  (i < 12)      -->      y[a, b] = x[a, b]  (a < 4, b < 3)

    Also where a reader takes a dimension apart: x[a * 3 + b] splits that dimension of x. A split is kept if it
    leaves fewer divisions and sums of axes in the whole DAG.
    """
    while True:
        better = next((s for s in _splits(dag) if _tangle(s) < _tangle(dag)), None)
        if better is None:
            return dag
        dag = better


def _splits(dag: Dag) -> Iterator[Dag]:
    classes = classes_of(dag)
    extents = {classes.of_dim[(t.name, d)]: n for t in dag.tensors.values() for d, n in enumerate(t.shape)}
    for which, size in dict.fromkeys(_candidates(dag, classes)):
        fits = 1 < size < extents[which] and extents[which] % size == 0
        if fits and not (size < LANES and _empties_lanes(dag, classes, which)):
            yield split(dag, classes, which, size)


def _empties_lanes(dag: Dag, classes: Classes, which: Dim) -> bool:
    """A reduction's innermost axis would become short only because a later stage takes its result apart."""

    def divides(c: Compute, a: Axis) -> bool:
        return any(isinstance(e, Op) and e.name in ("floordiv", "mod") and e.args[0] == a for e in walk(c.body))

    stages = [c for c in dag.computes if c.reduce and c.space and classes.of_axis[(c.name, c.space[-1])] == which]
    return any(not divides(c, c.space[-1]) for c in stages)


def _candidates(dag: Dag, classes: Classes) -> Iterator[tuple[Dim, int]]:
    """Axes divided by a number, and dimensions read at a * n + b with b < n."""
    for c in dag.computes:
        for e in walk(c.body):
            match e:
                case Op("floordiv" | "mod", (Axis() as a, Const(n, _))):
                    found = classes.of_axis[(c.name, a)]
                    if found is not None:
                        yield found, int(n)
                case Read(tensor, index, _):
                    for d, i in enumerate(index):
                        yield from ((classes.of_dim[(tensor, d)], n) for n in _digits(i))


def _digits(e: Expr) -> list[int]:
    """a * n + b, with b below n, is a number with two digits in base n."""
    form = affine(e)
    if form is None or len(form.terms) < 2 or form.constant:
        return []
    return [c for _, c in form.terms if c > 1 and sum(k * (a.extent - 1) for a, k in form.terms if k < c) < c]


def _tangle(dag: Dag) -> int:
    """Divisions, and sums of two axes, in index arithmetic."""
    return sum(_knots(e) for c in dag.computes for e in walk(c.body))


def _knots(e: Expr) -> int:
    match e:
        case Op("floordiv" | "mod", _):
            return int(dtype_of(e) == "int64")
        case Op("add" | "sub", (a, b)):
            return int(all(any(isinstance(n, Axis) for n in walk(x)) for x in (a, b)) and dtype_of(e) == "int64")
        case _:
            return 0


def split(dag: Dag, classes: Classes, which: Dim, size: int) -> Dag:
    """Every dimension and axis of one class becomes two, the inner one of extent `size`."""

    def halves(a: Axis) -> tuple[Axis, Axis]:
        return Axis(f"{a.name}.hi", a.extent // size), Axis(f"{a.name}.lo", size)

    def shape(t: Tensor) -> tuple[int, ...]:
        parts = ((n // size, size) if classes.of_dim[(t.name, d)] == which else (n,) for d, n in enumerate(t.shape))
        return tuple(n for part in parts for n in part)

    def index(r: Read) -> tuple[Expr, ...]:
        parts = (
            (i // size, i % size) if classes.of_dim[(r.tensor, d)] == which else (i,) for d, i in enumerate(r.index)
        )
        return tuple(i for part in parts for i in part)

    def stage(c: Compute) -> Compute:
        mine = {a: halves(a) for a in c.axes if classes.of_axis[(c.name, a)] == which}
        new: dict[Expr, Expr] = {a: high * size + low for a, (high, low) in mine.items()}
        body = simplify(_reindexed(substitute(c.body, new), index))
        space, reduce = (tuple(x for a in axes for x in mine.get(a, (a,))) for axes in (c.space, c.reduce))
        return replace(c, space=space, reduce=reduce, body=body)

    return replace(
        dag, inputs=tuple(replace(i, shape=shape(i)) for i in dag.inputs), computes=tuple(map(stage, dag.computes))
    )


def _reindexed(e: Expr, index: Callable[[Read], tuple[Expr, ...]]) -> Expr:
    kids = tuple(_reindexed(k, index) for k in children(e))
    if isinstance(e, Read):
        return Read(e.tensor, index(Read(e.tensor, kids, e.dtype)), e.dtype)
    return rebuild(e, kids) if kids else e


# --- copies -------------------------------------------------------------------------------------------------------


def drop_copies(dag: Dag) -> Dag:
    """t[i, j] = x[i, j]; y = f(t[i, j])      -->      y = f(x[i, j])

    A copy that is an output stays, unless what it copies can take its name: a stage that no one else reads.
    """
    for c in dag.computes:
        source = _copied(dag, c)
        if source is None:
            continue
        if c.name not in dag.outputs:
            return drop_copies(_without(dag, c.name, source.name))
        if isinstance(source, Compute) and source.name not in dag.outputs and len(dag.consumers(source.name)) == 1:
            return drop_copies(_absorbed(dag, c, source))
    return dag


def _copied(dag: Dag, c: Compute) -> Tensor | None:
    """What the stage copies element by element, if it does."""
    if isinstance(c.body, Read) and not c.reduce and c.body.index == c.space:
        source = dag[c.body.tensor]
        return source if source.shape == c.shape and source.dtype == c.dtype else None
    return None


def _without(dag: Dag, name: str, source: str) -> Dag:
    def rename(e: Expr) -> Expr:
        kids = tuple(map(rename, children(e)))
        if isinstance(e, Read):
            return Read(source if e.tensor == name else e.tensor, kids, e.dtype)
        return rebuild(e, kids) if kids else e

    return replace(dag, computes=tuple(replace(c, body=rename(c.body)) for c in dag.computes if c.name != name))


def _absorbed(dag: Dag, copy: Compute, source: Compute) -> Dag:
    kept = (c for c in dag.computes if c.name != copy.name)
    return replace(dag, computes=tuple(replace(c, name=copy.name) if c == source else c for c in kept))


# --- merging ------------------------------------------------------------------------------------------------------


def merge_axes(dag: Dag) -> Dag:
    """y[n, h, w, c] = max(x[n, h, w, c], 0)      -->      y[i] = max(x[i], 0)

    Two classes merge if they stand side by side wherever they occur, in tensors and in loops.
    """
    while True:
        classes = classes_of(dag)
        pair = next((p for p in _neighbours(classes) if _mergeable(dag, classes, *p)), None)
        if pair is None:
            return dag
        dag = merge(dag, classes, *pair)


def _neighbours(classes: Classes) -> Iterable[tuple[Dim, Dim]]:
    pairs = (
        (root, classes.of_dim[(tensor, d + 1)])
        for (tensor, d), root in classes.of_dim.items()
        if (tensor, d + 1) in classes.of_dim
    )
    return dict.fromkeys(p for p in pairs if p[0] != p[1])


def _mergeable(dag: Dag, classes: Classes, left: Dim, right: Dim) -> bool:
    side_by_side = all(
        (root != left or classes.of_dim.get((t, d + 1)) == right)
        and (root != right or classes.of_dim.get((t, d - 1)) == left)
        for (t, d), root in classes.of_dim.items()
    )
    return side_by_side and all(_merge_allowed(classes, c, left, right) for c in dag.computes)


def _merge_allowed(classes: Classes, c: Compute, left: Dim, right: Dim) -> bool:
    """In this stage the two axes run one inside the other, and only ever index together."""
    pairs = {
        (a, b) for axes in (c.space, c.reduce) for a, b in pairwise(axes)
        if classes.of_axis[(c.name, a)] == left and classes.of_axis[(c.name, b)] == right
    }  # fmt: skip
    mine = {a for a in c.axes if classes.of_axis[(c.name, a)] in (left, right)}
    if mine != {a for pair in pairs for a in pair} or len(mine) != 2 * len(pairs):
        return False
    used = Counter(e for e in walk(c.body) if e in mine)
    paired: Counter[Expr] = Counter()
    for r in reads(c.body):
        for d, i in enumerate(r.index):
            if classes.of_dim[(r.tensor, d)] == left:
                if (i, r.index[d + 1]) not in pairs:
                    return False
                paired.update((i, r.index[d + 1]))
    return used == paired


def merge(dag: Dag, classes: Classes, left: Dim, right: Dim) -> Dag:
    """Each pair of neighbours becomes one dimension, one axis."""

    def shape(t: Tensor) -> tuple[int, ...]:
        at = [d for d in range(len(t.shape)) if classes.of_dim[(t.name, d)] == right]
        return tuple(n * t.shape[d + 1] if d + 1 in at else n for d, n in enumerate(t.shape) if d not in at)

    def joined(c: Compute) -> dict[Expr, Axis]:
        """The left axis of each pair -> the new one."""
        pairs = [p for axes in (c.space, c.reduce) for p in pairwise(axes)]
        return {
            a: Axis(a.name, a.extent * b.extent)
            for a, b in pairs
            if classes.of_axis[(c.name, a)] == left and classes.of_axis[(c.name, b)] == right
        }

    def stage(c: Compute) -> Compute:
        new = joined(c)

        def rewrite(e: Expr) -> Expr:
            if isinstance(e, Axis):
                return new.get(e, e)
            kids = tuple(map(rewrite, children(e)))
            if isinstance(e, Read):
                return Read(
                    e.tensor, tuple(k for d, k in enumerate(kids) if classes.of_dim[(e.tensor, d)] != right), e.dtype
                )
            return rebuild(e, kids) if kids else e

        space, reduce = (
            tuple(new.get(a, a) for a in axes if classes.of_axis[(c.name, a)] != right) for axes in (c.space, c.reduce)
        )
        return replace(c, space=space, reduce=reduce, body=rewrite(c.body))

    inputs = tuple(replace(i, shape=shape(i)) for i in dag.inputs)
    return replace(dag, inputs=inputs, computes=tuple(map(stage, dag.computes)))
