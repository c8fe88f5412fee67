"""Schedule steps that rewrite the DAG itself: inline, cache_write, rfactor, pack, block; winograd has its own module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from ir.affine import affine, replace_axes, simplify
from ir.compute import Compute, Dag, Input, identity
from ir.expr import Axis, Const, Expr, Read, axes, children, lt, reads, rebuild, select
from ir.schedule import Block, CacheWrite, Inline, Pack, Rfactor, Step, Winograd
from ir.winograd import winograd

Tile = Callable[[str, str], int]  # stage, axis -> its innermost tile of a space axis, its inner tile of a reduce axis


def apply(dag: Dag, step: Step, values: Mapping[str, int], tile: Tile) -> Dag:
    """The DAG after one step; steps that only shape loops leave it alone. values: hole name -> chosen option."""
    match step:
        case Inline(stage):
            return inline(dag, stage)
        case CacheWrite(stage):
            return cache_write(dag, stage)
        case Rfactor(stage, side):
            return rfactor(dag, stage, side, values[f"{stage}.rfactor"])
        case Winograd(stage, m):
            return winograd(dag, stage, m, constants(dag))
        case Pack(stage, tensor, axis):
            return pack(dag, stage, tensor, axis, lambda a: tile(stage, a))
        case Block(stage, tensor, axis):
            return block(dag, stage, tensor, axis, tile(stage, axis))
        case _:
            return dag


def rewrite_reads(e: Expr, tensor: str, new: Callable[[Read], Expr]) -> Expr:
    """Replace every read of `tensor`, innermost first."""
    kids = children(e)
    if kids:
        e = rebuild(e, tuple(rewrite_reads(k, tensor, new) for k in kids))
    return new(e) if isinstance(e, Read) and e.tensor == tensor else e


def inline(dag: Dag, name: str) -> Dag:
    """B[i] = A[i] * 2; C[i] = B[i] + 1      -->      C[i] = A[i] * 2 + 1"""
    stage = dag.stage(name)

    def body(read: Read) -> Expr:
        return replace_axes(stage.body, dict(zip(stage.space, read.index, strict=True)))

    kept = tuple(
        replace(c, body=simplify(rewrite_reads(c.body, name, body))) if c in dag.consumers(name) else c
        for c in dag.computes
        if c.name != name
    )
    return replace(dag, computes=kept)


def cache_write(dag: Dag, name: str) -> Dag:
    """C[i] = sum_k ...      -->      C.cache[i] = sum_k ...; C[i] = C.cache[i]"""
    stage = dag.stage(name)
    cache = replace(stage, name=f"{name}.cache")
    copy = Compute(name, stage.space, Read(cache.name, stage.space, stage.dtype), dtype=stage.dtype)
    return _replace(dag, name, cache, copy)


def rfactor(dag: Dag, name: str, side: str, parts: int) -> Dag:
    """s[i] = sum_k x[i, k]      -->      s.rf[i, f] = sum_ko x[i, k(f, ko)]; s[i] = sum_f s.rf[i, f]

    "outer": k = f * chunk + ko, "inner": k = ko * parts + f; indices past the end add the identity. The reduction's
    axes are taken as one, row-major. Legal only for a combiner that reorders.
    """
    stage = dag.stage(name)
    assert stage.combiner.reorders, f"{stage.combiner.name} must keep its order"
    length = prod(a.extent for a in stage.reduce)
    chunk = -(-length // parts)
    f, ko = Axis(f"{name}.f", parts), Axis(f"{name}.ko", chunk)
    k: Expr = f * chunk + ko if side == "outer" else ko * parts + f
    inside = select(lt(k, length), stage.body, identity(stage.combiner.identity, stage.dtype))
    body = replace_axes(inside, dict(zip(stage.reduce, _unflatten(k, stage.reduce), strict=True)))
    partial = replace(stage, name=f"{name}.rf", space=(*stage.space, f), reduce=(ko,), body=body)
    final = replace(stage, reduce=(f,), body=Read(partial.name, (*stage.space, f), stage.dtype))
    return _replace(dag, name, partial, final)


def _unflatten(k: Expr, over: tuple[Axis, ...]) -> list[Expr]:
    out: list[Expr] = []
    for i, a in enumerate(over):
        below = prod(x.extent for x in over[i + 1 :])
        here = k // below if below > 1 else k
        out.append(simplify(here % a.extent) if i else here)
    return out


def pack(dag: Dag, name: str, tensor: str, axis: str, tile: Callable[[str], int]) -> Dag:
    """.. B[k, j] ..      -->      B.pack[j / N, k / M, k % M, j % N], zero-padded to whole tiles

    Dimensions: the other space axes of the read, the tile number, the reduce axes in the order of the loops (outer
    parts, then inner ones), the lane. tile: axis name -> size. A sliding window (two axes in one index) must have been
    ruled out by `packable`.
    """
    stage = dag.stage(name)
    [read] = {r for r in reads(stage.body) if r.tensor == tensor}
    used = set().union(*(axes(i) for i in read.index))
    j = next(a for a in stage.space if a.name == axis)
    before = tuple(a for a in stage.space if a in used and a != j)
    lanes = _Split.of(j, tile(axis), "tile", "lane")
    parts = [_parted(a, tile(a.name)) for a in stage.reduce if a in used]
    splits = [lanes, *parts]
    index = tuple(replace_axes(i, {s.axis: s.whole for s in splits}) for i in read.index)
    value: Expr = Read(tensor, index, read.dtype)
    for s in splits:
        value = select(lt(s.whole, s.axis.extent), value, identity(0, read.dtype))
    order = (*before, lanes.outer, *(p.outer for p in parts), *(p.inner for p in parts), lanes.inner)
    packed = Compute(f"{tensor}.pack", order, simplify(value), dtype=read.dtype)
    at = (*before, lanes.number, *(p.number for p in parts), *(p.rest for p in parts), lanes.rest)
    new = Read(packed.name, at, read.dtype)
    body = rewrite_reads(stage.body, tensor, lambda r: new if r == read else r)
    return _replace(dag, name, packed, replace(stage, body=body))


@dataclass(frozen=True, slots=True)
class _Split:
    """An axis in two parts: axis = outer * size + inner."""

    axis: Axis
    outer: Axis
    inner: Axis

    @classmethod
    def of(cls, axis: Axis, size: int, outer: str, inner: str) -> _Split:
        return cls(axis, Axis(f"{axis.name}.{outer}", -(-axis.extent // size)), Axis(f"{axis.name}.{inner}", size))

    @property
    def whole(self) -> Expr:
        return simplify(self.outer * self.inner.extent + self.inner)

    @property
    def number(self) -> Expr:
        return self.axis // self.inner.extent

    @property
    def rest(self) -> Expr:
        return self.axis % self.inner.extent


def _parted(axis: Axis, size: int) -> _Split:
    """A reduction in parts, none longer than the whole: unlike lanes, they are not padded for their own sake."""
    return _Split.of(axis, min(size, axis.extent), "part", "inner")


def block(dag: Dag, name: str, tensor: str, axis: str, size: int) -> Dag:
    """.. P[i + w, k] ..      -->      P.block[k / M, i + w, k % M], zero-padded to whole parts

    The dimension of P that k alone indexes is split, its outer part goes to the front: see `blockable`.
    """
    stage = dag.stage(name)
    k = next(a for a in stage.reduce if a.name == axis)
    found = list(dict.fromkeys(r for r in reads(stage.body) if r.tensor == tensor))
    d = found[0].index.index(k)
    shape = dag[tensor].shape
    split = _parted(Axis(axis, shape[d]), size)
    others = tuple(Axis(f"{tensor}.{n}", extent) for n, extent in enumerate(shape) if n != d)
    index = (*others[:d], split.whole, *others[d:])
    value = select(lt(split.whole, shape[d]), Read(tensor, index, found[0].dtype), identity(0, found[0].dtype))
    blocked = Compute(f"{tensor}.block", (split.outer, *others, split.inner), simplify(value), dtype=found[0].dtype)

    def new(r: Read) -> Read:
        rest = (*r.index[:d], *r.index[d + 1 :])
        return Read(blocked.name, (k // split.inner.extent, *rest, k % split.inner.extent), r.dtype)

    return _replace(dag, name, blocked, replace(stage, body=rewrite_reads(stage.body, tensor, new)))


def blockable(stage: Compute, tensor: str, k: Axis) -> bool:
    """Every read of the tensor has one dimension that is k alone, always the same one, and k nowhere else."""
    places = set()
    for r in reads(stage.body):
        if r.tensor == tensor:
            where = [d for d, i in enumerate(r.index) if k in axes(i)]
            if len(where) != 1 or r.index[where[0]] != k:
                return False
            places.add(where[0])
    return len(places) == 1


def packable(stage: Compute, read: Read, shape: tuple[int, ...]) -> bool:
    """Each element is read under one combination of axes: packing copies it once, not once per window."""
    forms = [affine(i) for i in read.index]
    if any(f is None for f in forms):
        return False
    used = set().union(*(axes(i) for i in read.index))
    return used <= set(stage.axes) and prod(a.extent for a in used) <= prod(shape)


def constant_stages(dag: Dag) -> dict[str, Compute]:
    """Stages that depend on constant inputs alone: known before run time."""
    known = {i.name for i in dag.inputs if i.constant}
    out: dict[str, Compute] = {}
    for c in dag.computes:
        used = {r.tensor for r in reads(c.body)}
        if used and used <= known and c.name not in dag.outputs:
            known.add(c.name)
            out[c.name] = c
    return out


def constants(dag: Dag) -> frozenset[str]:
    """Names of all tensors that are known before run time."""
    return frozenset({i.name for i in dag.inputs if i.constant} | set(constant_stages(dag)))


def hoist(dag: Dag) -> tuple[Dag, tuple[tuple[str, Dag], ...]]:
    """Split off what is known before run time: the remaining DAG, and a small DAG for each constant it still reads."""
    known = constant_stages(dag)
    kept = tuple(c for c in dag.computes if c.name not in known)
    needed = {r.tensor for c in kept for r in reads(c.body)}
    prepared = tuple((n, _closure(dag, n)) for n in known if n in needed)
    inputs = tuple(i for i in dag.inputs if i.name in needed or not i.constant)
    new = tuple(Input(n, known[n].shape, known[n].dtype, constant=True) for n, _ in prepared)
    return Dag((*inputs, *new), kept, dag.outputs), prepared


def _closure(dag: Dag, name: str) -> Dag:
    wanted, keep = {name}, []
    for c in reversed(dag.computes):
        if c.name in wanted:
            keep.append(c)
            wanted |= {r.tensor for r in reads(c.body)}
    return Dag(tuple(i for i in dag.inputs if i.name in wanted), tuple(reversed(keep)), (name,))


def _replace(dag: Dag, name: str, *new: Compute) -> Dag:
    out: list[Compute] = []
    for c in dag.computes:
        out += new if c.name == name else (c,)
    return replace(dag, computes=tuple(out))


def unit_axes(dag: Dag) -> Dag:
    """for i in 0..0 carries nothing: reads of an axis of extent 1 become 0, reductions over it vanish."""
    return replace(dag, computes=tuple(map(_without_unit_axes, dag.computes)))


def _without_unit_axes(c: Compute) -> Compute:
    ones: dict[Axis, Expr] = {a: Const(0, "int64") for a in c.axes if a.extent == 1}
    kept = tuple(a for a in c.reduce if a.extent != 1)
    if c.reduce and not kept:
        kept = c.reduce[-1:]  # a reduction stays one: its combiner may do more than pass the value on
        ones.pop(kept[0], None)
    return replace(c, body=replace_axes(c.body, ones), reduce=kept) if ones else c
