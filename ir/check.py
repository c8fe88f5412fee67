"""What is legal at each form. Run between the arrows in tests: an error names the place, in one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ir.affine import ZERO, Affine, affine, bounds, scale
from ir.compute import LEFT, RIGHT, Compute, Dag, Tensor
from ir.expr import (
    DTYPES,
    INTEGERS,
    OPERATIONS,
    Axis,
    Cast,
    Const,
    Expr,
    Op,
    Param,
    Read,
    axes,
    children,
    dtype_of,
    reads,
    walk,
)
from ir.facts import at_most, below, facts_of, form_of, never_positive, of_divisions
from ir.loop import Alloc, Fetch, For, If, Nest, Stmt, Store
from ir.schedule import Block, CacheWrite, ComputeAt, Fuse, Hole, Inline, Pack, Rfactor, Sketch, Step, Tile, Winograd
from ir.transform import apply, blockable, constants, unit_axes
from ir.winograd import sliding


class Illegal(ValueError):
    """A form that no arrow may produce."""


def require(holds: bool, message: str) -> None:
    if not holds:
        raise Illegal(message)


# --- DAG --------------------------------------------------------------------------------


def check_dag(dag: Dag) -> None:
    """Raises Illegal: names defined once and before use, ranks and dtypes that agree, reads that stay inside."""
    known: dict[str, Tensor] = {}
    tensors: list[Tensor] = [*dag.inputs, *dag.computes]
    for t in tensors:
        require(t.name not in known, f"{t.name} is defined twice")
        require(t.dtype in DTYPES, f"{t.name} has the unknown dtype {t.dtype}")
        require(all(n >= 0 for n in t.shape), f"{t.name} has the shape {list(t.shape)}")
        if isinstance(t, Compute):
            _check_stage(t, known)
        known[t.name] = t
    require(bool(dag.outputs), "nothing leaves the DAG")
    for o in dag.outputs:
        require(isinstance(known.get(o), Compute), f"output {o} is no stage")


def _check_stage(c: Compute, known: dict[str, Tensor]) -> None:
    names = [a.name for a in c.axes]
    require(len(set(names)) == len(names), f"{c.name} has two axes of one name among {', '.join(names)}")
    strange = axes(c.body) - set(c.axes)
    require(not strange, f"{c.name} uses axis {_names(strange)}, which it does not iterate over")
    require(not any(isinstance(n, Param) for n in walk(c.body)), f"{c.name} uses a combiner's parameter")
    for e in walk(c.body):
        _check_types(c.name, e)
    require(dtype_of(c.body) == c.dtype, f"{c.name} is {c.dtype} and its body {dtype_of(c.body)}")
    for r in reads(c.body):
        _check_read(c.name, r, known)
    _check_guarded(c.name, c.body, known)
    free = {p.name for p in walk(c.combiner.body) if not isinstance(p, Const | Op | Cast | Param)}  # type: ignore[union-attr]
    require(not free, f"the combiner of {c.name} reads {', '.join(sorted(free))}")
    parameters = {p.name for p in walk(c.combiner.body) if isinstance(p, Param)}
    require(parameters <= {LEFT, RIGHT}, f"the combiner of {c.name} has parameters {', '.join(sorted(parameters))}")


def _names(found: set[Axis]) -> str:
    return ", ".join(sorted(a.name for a in found))


def _check_types(place: str, e: Expr) -> None:
    match e:
        case Op(name, args):
            require(name in OPERATIONS, f"{place}: there is no operation {name}")
            require(len(args) == OPERATIONS[name].arity, f"{place}: {name} takes {OPERATIONS[name].arity} arguments")
            values = args[1:] if name == "select" else args
            dtypes = sorted({dtype_of(a) for a in values})
            require(len(dtypes) == 1, f"{place}: {name} of {' and '.join(dtypes)}")
            logic = OPERATIONS[name].kind == "logic"
            require(not logic or dtypes == ["bool"], f"{place}: {name} of {dtypes[0]}")
            require(name != "select" or dtype_of(args[0]) == "bool", f"{place}: select by {dtype_of(args[0])}")
        case Const(_, dtype) | Cast(dtype, _) | Param(_, dtype):
            require(dtype in DTYPES, f"{place}: unknown dtype {dtype}")
        case Read() | Axis():
            pass


def _check_read(place: str, r: Read, known: dict[str, Tensor]) -> None:
    require(r.tensor in known, f"{place} reads {r.tensor} before it is defined")
    t = known[r.tensor]
    require(r.dtype == t.dtype, f"{place} reads {r.tensor} as {r.dtype}, it is {t.dtype}")
    require(len(r.index) == len(t.shape), f"{place} reads {r.tensor} with {len(r.index)} of {len(t.shape)} indices")
    for i in r.index:
        require(dtype_of(i) in INTEGERS, f"{place} reads {r.tensor} at a {dtype_of(i)}")


def _check_guarded(place: str, e: Expr, known: dict[str, Tensor]) -> None:
    """Reads out of bounds are legal only under a select."""
    match e:
        case Op("select", (condition, _, _)):
            return _check_guarded(place, condition, known)
        case Read(tensor, index, _):
            for d, (i, extent) in enumerate(zip(index, known[tensor].shape, strict=True)):
                form = affine(i)
                if form is not None and all(a.extent > 0 for a, _ in form.terms):
                    low, high = bounds(form)
                    inside = low >= 0 and high < extent
                    require(
                        inside, f"{place} reads {tensor} at {low} to {high} of {extent} in dimension {d}, unguarded"
                    )
    for k in children(e):
        _check_guarded(place, k, known)


# --- sketch -----------------------------------------------------------------------------


def check_sketch(sketch: Sketch) -> None:
    """Raises Illegal: steps that name what is there, one tile a stage, holes with a meaning."""
    check_dag(sketch.dag)
    for h in sketch.holes:
        _check_hole(h)
    names = [h.name for h in sketch.holes]
    doubled = {n for n in names if names.count(n) > 1}
    require(not doubled, f"two holes are called {min(doubled, default='')}")
    require(len(sketch.rules) in (0, len(sketch.steps)), f"{len(sketch.rules)} rules made {len(sketch.steps)} steps")
    dag, nominal = unit_axes(sketch.dag), {h.name: h.options[0] for h in sketch.holes}
    tiled: dict[str, Tile] = {}
    for step in sketch.steps:
        require(isinstance(dag.tensors.get(step.stage), Compute), f"{_name(step)} of {step.stage}, which is no stage")
        _check_step(sketch, step, dag, tiled)
        if isinstance(step, Tile):
            tiled[step.stage] = step
        dag = apply(dag, step, nominal, lambda stage, axis: 4)
    check_dag(dag)
    for h in sketch.holes:
        if h.kind == "tile" and h.group in tiled:
            _check_level(h, dag.stage(h.group), tiled[h.group])


def _name(step: Step) -> str:
    return type(step).__name__


def _check_hole(h: Hole) -> None:
    require(bool(h.options), f"hole {h.name} has no options")
    rising = all(a < b for a, b in zip(h.options, h.options[1:], strict=False))
    require(rising, f"the options of hole {h.name} do not ascend: {list(h.options)}")
    require(h.name.startswith(f"{h.group}."), f"hole {h.name} is not of its group {h.group}")
    require(h.kind != "tile" or h.options[0] >= 1, f"hole {h.name} has a tile of {h.options[0]}")


def _check_level(h: Hole, stage: Compute, tile: Tile) -> None:
    """A tile hole "stage.axis.level" is one that `ir.tiling` reads."""
    a = next((x for x in stage.axes if x.name == h.axis), None)
    require(a is not None, f"hole {h.name} is of axis {h.axis}, which {stage.name} has not")
    levels = tile.structure.count("S" if a in stage.space else "R") + (a in stage.reduce and h.axis == tile.vector)
    expected = {f"{h.group}.{h.axis}.{n}" for n in range(1, levels)}
    require(h.name in expected, f"hole {h.name} is no level of {tile.structure}")


def _check_step(sketch: Sketch, step: Step, dag: Dag, tiled: dict[str, Tile]) -> None:
    stage, place = dag.stage(step.stage), f"{_name(step)} of {step.stage}"
    match step:
        case Inline():
            require(not stage.reduce and stage.name not in dag.outputs, f"{place}, which reduces or leaves")
        case CacheWrite():
            require(stage.name not in tiled, f"{place}, which is tiled already")
        case Rfactor():
            require(bool(stage.reduce) and stage.combiner.reorders, f"{place}, whose reduction must keep its order")
            require(f"{step.stage}.rfactor" in sketch.column, f"{place} without its hole")
        case Winograd(_, m):
            require(sliding(stage, constants(dag)) is not None, f"{place}: no window slides in it")
            require(2 <= m <= 6, f"{place}: tiles of {m}")
        case Pack(_, tensor, axis):
            require(any(r.tensor == tensor for r in reads(stage.body)), f"{place}: it does not read {tensor}")
            require(axis in [a.name for a in stage.space], f"{place}: it has no space axis {axis}")
        case Block(_, tensor, axis):
            k = next((a for a in stage.reduce if a.name == axis), None)
            require(k is not None, f"{place}: it has no reduce axis {axis}")
            assert k is not None
            require(blockable(stage, tensor, k), f"{place}: {axis} is no dimension of {tensor}")
        case Tile():
            require(step.stage not in tiled, f"{place}, for the second time")
            _check_tile(place, step, stage)
        case Fuse(_, consumer, _):
            after = dag.tensors.get(consumer)
            require(isinstance(after, Compute), f"{place} into {consumer}, which is no stage")
            assert isinstance(after, Compute)
            require(dag.consumers(step.stage) == (after,), f"{place} into {consumer}, which is not its only consumer")
            require(not after.reduce and after.shape == stage.shape, f"{place} into {consumer} of another form")
        case ComputeAt(_, consumer):
            require(isinstance(dag.tensors.get(consumer), Compute), f"{place} in {consumer}, which is no stage")
            require(f"{step.stage}.at" in sketch.column, f"{place} without its hole")
            require(stage.name not in dag.outputs, f"{place}, which leaves")


def _check_tile(place: str, tile: Tile, stage: Compute) -> None:
    letters = tile.structure
    require(set(letters) <= {"S", "R"}, f"{place}: {letters} is no structure")
    require(letters.startswith("S") and letters.endswith("S"), f"{place}: {letters} does not begin and end with S")
    require(letters.count("S") > 1, f"{place}: {letters} has no register tile")
    require("R" in letters or not stage.reduce, f"{place}: {letters} has no place for its reduction")
    require(tile.vector in ("", *(a.name for a in stage.axes)), f"{place}: it has no axis {tile.vector}")
    if any(a.name == tile.vector for a in stage.reduce):
        require(stage.combiner.reorders, f"{place}: lanes on {tile.vector}, whose reduction must keep its order")
        require(letters.count("R") == 1, f"{place}: lanes on {tile.vector}, which {letters} splits")


# --- nest -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Buffer:
    shape: tuple[int, ...]
    dtype: str
    scope: str  # of ir.loop, or "input", "output"
    depth: int  # loops around its allocation


@dataclass(frozen=True, slots=True)
class _Place:
    """What is known at a statement: buffers, the loops around it from the outside in, and what holds there.

    facts: linear forms that are never positive.
    """

    buffers: dict[str, _Buffer]
    loops: tuple[For, ...] = ()
    facts: tuple[Affine, ...] = ()

    @property
    def fixed(self) -> set[Axis]:
        return {f.var for f in self.loops if f.kind in ("unroll", "vector")}

    def knowing(self, condition: Expr, holds: bool) -> _Place:
        return replace(self, facts=(*self.facts, *facts_of(condition, holds)))


def check_nest(nest: Nest) -> None:
    """Raises Illegal: accesses inside their buffers, legal kinds of loops, no races, all outputs stored to.

    Bounds are shown by linear arithmetic from the loops, the branches and the selects around an access; indices that
    are not linear are bounded where `ir.affine.interval` can. What cannot be shown is an error.
    """
    buffers = {b.name: _Buffer(b.shape, b.dtype, "input", 0) for b in nest.inputs}
    buffers |= {b.name: _Buffer(b.shape, b.dtype, "output", 0) for b in nest.outputs}
    require(len(buffers) == len(nest.inputs) + len(nest.outputs), "two arguments have one name")
    _check_block(nest.body, _Place(buffers))
    stored = {s.buffer for s in _stores(nest.body)}
    for b in nest.outputs:
        require(b.name in stored or 0 in b.shape, f"output {b.name} is never stored to")


def _stores(body: tuple[Stmt, ...]) -> Iterator[Store]:
    for s in body:
        match s:
            case Store():
                yield s
            case For():
                yield from _stores(s.body)
            case If():
                yield from _stores((*s.then, *s.orelse))
            case Alloc() | Fetch():
                pass


def _check_block(body: tuple[Stmt, ...], place: _Place) -> None:
    if any(bounds(fact)[0] > 0 for fact in place.facts):
        return  # never reached
    place = replace(place, buffers=dict(place.buffers))
    for s in body:
        match s:
            case Alloc(buffer, shape, dtype, scope):
                taken = place.buffers.get(buffer)
                require(
                    taken is None or taken.scope in ("register", "stack"), f"{buffer} is allocated over an argument"
                )
                require(scope != "workspace" or not place.loops, f"workspace {buffer} is allocated inside a loop")
                place.buffers[buffer] = _Buffer(shape, dtype, scope, len(place.loops))
            case Store():
                _check_store(s, place)
            case Fetch(buffer, index, elements):
                require(buffer in place.buffers, f"{buffer} is fetched, which is no buffer")
                require(len(index) == len(place.buffers[buffer].shape), f"{buffer} is fetched at {len(index)} indices")
                require(elements > 0, f"{elements} elements of {buffer} are fetched")
                for i in index:
                    _check_value("an index of a fetch", i, place)
            case If(condition, then, orelse):
                _check_value("a condition", condition, place)
                _check_block(then, place.knowing(condition, True))
                _check_block(orelse, place.knowing(condition, False))
            case For():
                _check_loop(s, place)


def _check_loop(s: For, place: _Place) -> None:
    name = s.var.name
    require(all(f.var != s.var for f in place.loops), f"loop {name} stands inside itself")
    _check_value(f"the extent of {name}", s.extent, place)
    inside = [f.kind for f in place.loops]
    if s.kind in ("unroll", "vector"):
        require(isinstance(s.extent, Const), f"{s.kind} loop {name} has no constant extent")
    require("vector" not in inside, f"loop {name} stands inside a vector loop")
    outermost = s.kind != "parallel" or set(inside) <= {"parallel"}
    require(outermost, f"parallel loop {name} stands inside others: {', '.join(inside)}")
    if s.kind == "vector":
        require(all(isinstance(x, Store) for x in s.body), f"vector loop {name} holds more than stores")
    require(at_most(s.extent, s.var.extent), f"loop {name} may make more than {s.var.extent} trips")
    before = replace(place, loops=(*place.loops, s))
    _check_block(s.body, replace(before, facts=(*place.facts, *below(s.var, s.extent))))


def _check_store(s: Store, place: _Place) -> None:
    _check_access("store to", s.buffer, s.index, place)
    target = place.buffers[s.buffer]
    require(target.scope != "input", f"input {s.buffer} is stored to")
    require(dtype_of(s.value) == target.dtype, f"{s.buffer} is {target.dtype} and gets {dtype_of(s.value)}")
    _check_value(f"what {s.buffer} gets", s.value, place)
    for at, loop in enumerate(place.loops):
        if loop.kind == "parallel" and target.depth <= at:
            inner = {f.var for f in place.loops[at + 1 :]}
            require(
                _distinct(s.index, loop.var, inner),
                f"iterations of {loop.var.name} may store to one element of {s.buffer}",
            )


def _distinct(index: tuple[Expr, ...], var: Axis, inner: set[Axis]) -> bool:
    """Some index steps further with the loop than all that is inside it reaches."""
    for i in index:
        form = affine(i)
        if form is not None and form.coefficient(var):
            reach = sum(abs(c) * (a.extent - 1) for a, c in form.terms if a in inner)
            if reach < abs(form.coefficient(var)):
                return True
    return False


def _check_value(where: str, e: Expr, place: _Place) -> None:
    """Types, axes and accesses of an expression, each side of a select knowing its condition."""
    _check_types(where, e)
    match e:
        case Op("select", (condition, then, otherwise)):
            _check_value(where, condition, place)
            _check_value(where, then, place.knowing(condition, True))
            _check_value(where, otherwise, place.knowing(condition, False))
            return
        case Op("and", (first, second)):
            _check_value(where, first, place)
            _check_value(where, second, place.knowing(first, True))
            return
        case Axis():
            require(any(f.var == e for f in place.loops), f"{where} uses {e.name} outside its loop")
        case Param():
            require(False, f"{where} uses the combiner's parameter {e.name}")
        case Read(tensor, index, dtype):
            _check_access("read of", tensor, index, place)
            found = place.buffers[tensor].dtype
            require(dtype == found, f"{where} reads {tensor} as {dtype}, it is {found}")
        case _:
            pass
    for k in children(e):
        _check_value(where, k, place)


def _check_access(what: str, buffer: str, index: tuple[Expr, ...], place: _Place) -> None:
    require(buffer in place.buffers, f"{what} {buffer}, which is not allocated here")
    b = place.buffers[buffer]
    require(len(index) == len(b.shape), f"{what} {buffer} with {len(index)} of {len(b.shape)} indices")
    for d, (i, extent) in enumerate(zip(index, b.shape, strict=True)):
        where = f"{what} {buffer}, dimension {d}"
        strange = axes(i) - {f.var for f in place.loops}
        require(not strange, f"{where}: {_names(strange)} has no loop here")
        if b.scope == "register":
            require(axes(i) <= place.fixed, f"{where}: a register is chosen at run time")
        _check_bounds(where, i, extent, place)


def _check_bounds(where: str, index: Expr, extent: int, place: _Place) -> None:
    form = form_of(index)
    if form is None:
        return  # the index is data
    facts = (*place.facts, *of_divisions(index, place.facts))
    require(never_positive(scale(form, -1) or ZERO, facts), f"{where}: may be below 0")
    above = Affine(form.terms, form.constant - extent + 1)
    inside = never_positive(above, facts) or _quotient_below(index, extent, place)
    require(inside, f"{where}: may reach beyond {extent - 1}")


def _quotient_below(index: Expr, extent: int, place: _Place) -> bool:
    """x / n < extent where x < extent * n"""
    match index:
        case Op("floordiv", (x, Const(n, _))) if n > 0 and (form := form_of(x)) is not None:
            facts = (*place.facts, *of_divisions(x, place.facts))
            return never_positive(Affine(form.terms, form.constant - extent * int(n) + 1), facts)
        case _:
            return False
