"""The key of a DAG: the hash of a text that is the same whatever the names and the order of the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from ir.affine import Affine, affine, expression, simplify
from ir.compute import COMBINERS, SUM, Compute, Dag, Input
from ir.expr import (
    Axis,
    Cast,
    Const,
    Expr,
    Op,
    Param,
    Read,
    children,
    dtype_of,
    reads,
    rebuild,
)
from ir.text import RESERVED, dag_text, expr_text, parse_dag

__all__ = ["canonical", "dag_text", "key", "parse_dag", "stage_kind", "text_key"]

COMMUTATIVE = {"add", "mul", "max", "min", "eq", "ne", "and", "or"}
TRIES = 64  # leaves of the search among tensors that look alike; beyond it the given order decides
Colours = Mapping[str, str]


def key(dag: Dag) -> str:
    """Sixteen hexadecimal digits that depend on shapes, dtypes, roles and structure alone."""
    return text_key(dag_text(canonical(dag)[0]))


def text_key(text: str) -> str:
    """The key of a canonical text."""
    return _digest(text)


def _digest(*parts: object) -> str:
    return blake2b("\n".join(map(str, parts)).encode(), digest_size=8).hexdigest()


def canonical(dag: Dag) -> tuple[Dag, dict[str, str]]:
    """The same DAG under canonical names, and what each canonical name was called before.

    Isomorphic DAGs (other names, another order of inputs or of commutative operands) give equal results. Tensors
    that no output needs are dropped; the order of outputs is kept.

    Colour refinement (Weisfeiler-Leman): a tensor's colour is a hash of its own form, of what it reads and of how
    it is read. Tensors of one colour are told apart by trying each first; the smallest text wins.
    """
    live = _live(dag)
    colours = _refine(live, {t.name: _own(t, live.outputs) for t in live.tensors.values()})
    leaves = _leaves(live, colours, [TRIES])
    return min((_renamed(live, c) for c in leaves), key=lambda found: dag_text(found[0]))


def _live(dag: Dag) -> Dag:
    """Without what no output needs; index arithmetic in normal form."""
    needed = set(dag.outputs)
    for c in reversed(dag.computes):
        if c.name in needed:
            needed |= {r.tensor for r in reads(c.body)}
    computes = tuple(replace(c, body=_sorted_indices(simplify(c.body), c)) for c in dag.computes if c.name in needed)
    return Dag(tuple(i for i in dag.inputs if i.name in needed), computes, dag.outputs)


def _sorted_indices(e: Expr, stage: Compute) -> Expr:
    """Linear index expressions with their axes in the order of the loops."""
    if isinstance(e, Op) and e.name in ("add", "sub", "mul") and dtype_of(e) == "int64":
        form = affine(e)
        if form is not None:
            return expression(Affine(tuple(sorted(form.terms, key=lambda t: stage.axes.index(t[0]))), form.constant))
    kids = children(e)
    return rebuild(e, tuple(_sorted_indices(k, stage) for k in kids)) if kids else e


def _own(t: Input | Compute, outputs: tuple[str, ...]) -> str:
    match t:
        case Input(_, shape, dtype, constant):
            return _digest("input", shape, dtype, constant)
        case Compute(name, space, _, reduce, combiner, dtype):
            join = (combiner.identity, combiner.reorders, expr_text(combiner.body)) if reduce else ""
            places = [i for i, o in enumerate(outputs) if o == name]
            return _digest("stage", [a.extent for a in space], [a.extent for a in reduce], join, dtype, places)


def _refine(dag: Dag, colours: Colours) -> Colours:
    """Mix in the colours of what is read and of what reads, until no class splits any more."""
    classes = 0
    while classes < len(set(colours.values())):
        classes = len(set(colours.values()))
        colours = _from_readers(dag, _from_read(dag, colours))
    return colours


def _from_read(dag: Dag, colours: Colours) -> Colours:
    new = dict(colours)
    for c in dag.computes:
        new[c.name] = _digest(colours[c.name], _coloured(c.body, new, c))
    return new


def _from_readers(dag: Dag, colours: Colours) -> Colours:
    def seen(tensor: str) -> list[str]:
        marked = {**colours, tensor: "this"}
        return sorted(_digest(colours[c.name], _coloured(c.body, marked, c)) for c in dag.consumers(tensor))

    return {tensor: _digest(colour, *seen(tensor)) for tensor, colour in colours.items()}


def _coloured(e: Expr, colours: Colours, stage: Compute) -> str:
    """The expression without names: axes by position, tensors by colour, commutative operands sorted."""
    match e:
        case Axis():
            return f"axis{stage.axes.index(e)}"
        case Read(tensor, index, _):
            return f"{colours[tensor]}[{', '.join(_coloured(i, colours, stage) for i in index)}]"
        case Op(name, args):
            kids = [_coloured(a, colours, stage) for a in args]
            return f"{name}({', '.join(sorted(kids) if name in COMMUTATIVE else kids)})"
        case Cast(dtype, arg):
            return f"cast({dtype}, {_coloured(arg, colours, stage)})"
        case Const() | Param():
            return expr_text(e)


def _leaves(dag: Dag, colours: Colours, budget: list[int]) -> Iterator[Colours]:
    """Colourings in which every tensor has its own colour."""
    classes: dict[str, list[str]] = {}
    for tensor, colour in colours.items():
        classes.setdefault(colour, []).append(tensor)
    tied = min((item for item in classes.items() if len(item[1]) > 1), default=None)
    if tied is None:
        budget[0] -= 1
        yield colours
        return
    for tensor in tied[1]:
        yield from _leaves(dag, _refine(dag, {**colours, tensor: _digest(colours[tensor], "first")}), budget)
        if budget[0] <= 0:
            return


def _renamed(dag: Dag, colours: Colours) -> tuple[Dag, dict[str, str]]:
    """Names by position in a walk from the outputs, operands before their readers; constants are the last inputs."""
    roles = _roles(dag)
    ordered = {c.name: replace(c, body=_ordered(c.body, colours, c, roles)) for c in dag.computes}
    given = {i.name: i for i in dag.inputs}
    walk = sorted(_post_order(dag, ordered), key=lambda n: given[n].constant if n in given else 2)
    names = _canonical_names([given[n] if n in given else ordered[n] for n in walk])
    inputs = tuple(replace(given[n], name=names[n]) for n in walk if n in given)
    computes = tuple(_with_names(ordered[n], names) for n in walk if n in ordered)
    return Dag(inputs, computes, tuple(names[o] for o in dag.outputs)), {names[n]: n for n in walk}


def _ordered(e: Expr, colours: Colours, stage: Compute, roles: Roles) -> Expr:
    """Commutative operands in the order of their nameless texts; linear indices are in order already."""
    kids = tuple(_ordered(k, colours, stage, roles) for k in children(e))
    if not kids:
        return e
    if isinstance(e, Op) and e.name in COMMUTATIVE and dtype_of(kids[0]) != "int64":
        kids = tuple(sorted(kids, key=lambda k: (*roles.place(k, stage), _coloured(k, colours, stage))))
    return rebuild(e, kids)


@dataclass(frozen=True, slots=True)
class Roles:
    """Who comes first among commutative operands: stages, inputs, constants, literals; rows before columns."""

    ranks: Mapping[str, int]
    blank: Colours

    def place(self, e: Expr, stage: Compute) -> tuple[int, str]:
        return min((self.ranks[r.tensor] for r in reads(e)), default=3), _coloured(e, self.blank, stage)


def _roles(dag: Dag) -> Roles:
    ranks = {c.name: 0 for c in dag.computes} | {i.name: 1 + i.constant for i in dag.inputs}
    return Roles(ranks, dict.fromkeys(ranks, ""))


def _post_order(dag: Dag, ordered: Mapping[str, Compute]) -> list[str]:
    """Every tensor once, what it reads first; an explicit stack, because chains may be deep."""
    done: dict[str, None] = {}
    stack = [(o, False) for o in reversed(dag.outputs)]
    while stack:
        name, ready = stack.pop()
        if name in done:
            continue
        if ready or name not in ordered:
            done[name] = None
            continue
        stack.append((name, True))
        stack += [(r.tensor, False) for r in reversed(reads(ordered[name].body))]
    return list(done)


def _canonical_names(tensors: list[Input | Compute]) -> dict[str, str]:
    counts: dict[str, int] = {}
    out: dict[str, str] = {}
    for t in tensors:
        stem = stage_kind(t) if isinstance(t, Compute) else "w" if t.constant else "x"
        at = counts[stem] = counts.get(stem, -1) + 1
        out[t.name] = f"{stem}{at}" if isinstance(t, Input) or at else stem
    return out


def _with_names(c: Compute, names: Mapping[str, str]) -> Compute:
    new = {a: Axis(f"i{n}", a.extent) for n, a in enumerate(c.space)}
    new |= {a: Axis(f"k{n}", a.extent) for n, a in enumerate(c.reduce)}

    def rename(e: Expr) -> Expr:
        if isinstance(e, Axis):
            return new[e]
        kids = tuple(map(rename, children(e)))
        return Read(names[e.tensor], kids, e.dtype) if isinstance(e, Read) else rebuild(e, kids) if kids else e

    space, reduce = tuple(new[a] for a in c.space), tuple(new[a] for a in c.reduce)
    combiner = c.combiner if c.combiner in COMBINERS.values() else replace(c.combiner, name="combine")
    return Compute(names[c.name], space, rename(c.body), reduce, combiner if reduce else SUM, c.dtype)


def stage_kind(c: Compute) -> str:
    """One word for what a stage does, from its form alone: conv, matmul, sum, pool, relu, pad, copy, add, ..."""
    slides = any(_slides(i, c) for r in reads(c.body) for i in r.index)
    match c.body:
        case Op("mul", (Read() as a, Read() as b)) if c.reduce and c.combiner == SUM and a != b:
            return "conv" if slides else "matmul"
        case _ if c.reduce:
            return "pool" if slides else c.combiner.name if c.combiner in COMBINERS.values() else "combine"
        case Op("max", (Read(), Const(0.0, _))) | Op("max", (Const(0.0, _), Read())):
            return "relu"
        case Op("select", (_, Read(), Const())):
            return "pad"
        case Read():
            return "copy"
        case Op(name, _):
            return name if name not in RESERVED else f"{name}_"
        case Cast():
            return "cast"
        case _:
            return "fill"


def _slides(index: Expr, c: Compute) -> bool:
    """A window: one index moves with a space axis and with a reduce axis."""
    form = affine(index)
    used = {a for a, _ in form.terms} if form is not None else set()
    return bool(used & set(c.space)) and bool(used & set(c.reduce))
