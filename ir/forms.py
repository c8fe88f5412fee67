"""Every form as text: `text(x)`. DAGs and sketches come back: `parse_dag(text(dag)) == dag`, and so for sketches.

A sketch is its DAG (see `ir.text`), then a line a step and a line a hole:

    schedule
    pack B for C along j by pack
    block P for C along k by block
    tile C SSRSRS lanes j by tile
    hole C.i.1 tile C i: 1, 2, 3, 4
    hole C.unroll unroll C: 1, 2, 4
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import cast, get_args

from ir.compute import Dag
from ir.expr import Axis, Cast, Const, Expr, Op, Param, Read
from ir.loop import Alloc, Buffer, Fetch, For, If, Nest, Stmt, Store
from ir.schedule import (
    Block,
    CacheWrite,
    ComputeAt,
    Fuse,
    Hole,
    HoleKind,
    Inline,
    Pack,
    Program,
    Rfactor,
    Sketch,
    Step,
    Tile,
    Winograd,
)
from ir.text import PLAIN, RESERVED, Known, Parser, dag_text, expr_text, parse_dag

__all__ = ["parse_dag", "parse_sketch", "steps_text", "text"]

KINDS: tuple[str, ...] = get_args(HoleKind)


def text(x: Expr | Dag | Sketch | Program | Nest) -> str:
    """Readable, with no line feed at the end. Raises ValueError when names or dtypes contradict each other."""
    match x:
        case Const() | Axis() | Param() | Read() | Op() | Cast():
            return expr_text(x)
        case Dag():
            return dag_text(x).rstrip("\n")
        case Sketch():
            return f"{text(x.dag)}\nschedule\n{steps_text(x)}".rstrip("\n")
        case Program():
            return "\n".join([text(x.sketch), *(f"{_name(name)} = {value}" for name, value in x.values.items())])
        case Nest():
            return "\n".join(_nest(x))


# --- sketches ---------------------------------------------------------------------------


def steps_text(sketch: Sketch) -> str:
    """The lines after "schedule": with the workload's DAG they are the sketch."""
    if len(sketch.rules) not in (0, len(sketch.steps)):
        raise ValueError(f"{len(sketch.rules)} rules made {len(sketch.steps)} steps")
    made = [f" by {_name(rule)}" for rule in sketch.rules] or [""] * len(sketch.steps)
    steps = [f"{_step(step)}{by}" for step, by in zip(sketch.steps, made, strict=True)]
    return "\n".join([*steps, *map(_hole, sketch.holes)])


def _name(name: str) -> str:

    return name if PLAIN.match(name) and name not in RESERVED else json.dumps(name)


def _step(step: Step) -> str:
    stage = _name(step.stage)
    match step:
        case Inline():
            return f"inline {stage}"
        case CacheWrite():
            return f"cache {stage}"
        case Rfactor(_, side):
            return f"rfactor {stage} {side}"
        case Winograd(_, m):
            return f"winograd {stage} by {m}"
        case Pack(_, tensor, axis):
            return f"pack {_name(tensor)} for {stage} along {_name(axis)}"
        case Block(_, tensor, axis):
            return f"block {_name(tensor)} for {stage} along {_name(axis)}"
        case Tile(_, structure, vector):
            return f"tile {stage} {_name(structure)}" + (f" lanes {_name(vector)}" if vector else "")
        case Fuse(_, consumer, level):
            return f"fuse {stage} into {_name(consumer)} at {level}"
        case ComputeAt(_, consumer):
            return f"compute {stage} in {_name(consumer)}"


def _hole(h: Hole) -> str:
    axis = f" {_name(h.axis)}" if h.axis else ""
    return f"hole {_name(h.name)} {h.kind} {_name(h.group)}{axis}: {', '.join(map(str, h.options))}"


def parse_sketch(written: str) -> Sketch:
    """The sketch that `text` wrote. Raises ValueError with the line that it cannot read."""
    lines = written.splitlines()
    if "schedule" not in lines:
        raise ValueError("expected a line 'schedule' after the DAG")
    at = lines.index("schedule")
    steps: list[Step] = []
    rules: list[str] = []
    holes: list[Hole] = []
    for line in filter(str.strip, lines[at + 1 :]):
        p = Parser(line, Known({}, {}))
        if p.word() == "hole" and p.peek(1).text != ":":
            holes.append(_parse_hole(p))
        else:
            steps.append(_parse_step(p))
            rules += [p.name()] if p.accept("by") else []
        p.done()
    return Sketch(parse_dag("\n".join(lines[:at])), tuple(steps), tuple(holes), tuple(rules))


def _parse_step(p: Parser) -> Step:
    match p.next().text:
        case "inline":
            return Inline(p.name())
        case "cache":
            return CacheWrite(p.name())
        case "rfactor":
            stage, side = p.name(), p.name()
            return Rfactor(stage, "outer" if side == "outer" else "inner")
        case "winograd":
            stage = p.name()
            p.expect("by")
            return Winograd(stage, p.integer())
        case "pack":
            tensor, stage, axis = p.name(), _after(p, "for"), _after(p, "along")
            return Pack(stage, tensor, axis)
        case "block":
            tensor, stage, axis = p.name(), _after(p, "for"), _after(p, "along")
            return Block(stage, tensor, axis)
        case "tile":
            stage, structure = p.name(), p.name()
            return Tile(stage, structure, p.name() if p.accept("lanes") else "")
        case "fuse":
            stage, consumer = p.name(), _after(p, "into")
            p.expect("at")
            return Fuse(stage, consumer, p.integer())
        case "compute":
            return ComputeAt(p.name(), _after(p, "in"))
        case _:
            raise p.wrong("a step")


def _after(p: Parser, word: str) -> str:
    p.expect(word)
    return p.name()


def _parse_hole(p: Parser) -> Hole:
    p.expect("hole")
    name, kind, group = p.name(), p.name(), p.name()
    if kind not in KINDS:
        raise p.wrong(f"a kind of hole, not {kind!r},")
    axis = "" if p.accept(":") else p.name()
    if axis:
        p.expect(":")
    options = [p.integer()]
    while p.accept(","):
        options.append(p.integer())
    return Hole(name, tuple(options), cast(HoleKind, kind), group, axis)


# --- nests ------------------------------------------------------------------------------


def _nest(nest: Nest) -> Iterator[str]:
    """Arguments, then a line a statement, indented."""
    yield from (f"input {_buffer(b)}" for b in nest.inputs)
    yield from (f"output {_buffer(b)}" for b in nest.outputs)
    yield from _block(nest.body, "")


def _buffer(b: Buffer) -> str:
    return f"{_name(b.name)}: {b.dtype}{list(b.shape)}"


def _block(body: Iterable[Stmt], indent: str) -> Iterator[str]:
    for s in body:
        match s:
            case Alloc(buffer, shape, dtype, scope):
                yield f"{indent}{scope} {_name(buffer)}: {dtype}{list(shape)}"
            case Store(buffer, index, value):
                yield f"{indent}{_name(buffer)}[{', '.join(map(expr_text, index))}] = {expr_text(value)}"
            case Fetch(buffer, index, elements):
                yield f"{indent}fetch {elements} from {_name(buffer)}[{', '.join(map(expr_text, index))}]"
            case If(condition, then, orelse):
                yield f"{indent}if {expr_text(condition)}:"
                yield from _block(then, indent + "  ")
                if orelse:
                    yield f"{indent}else:"
                    yield from _block(orelse, indent + "  ")
            case For(var, extent, inner, kind):
                prefix = "" if kind == "serial" else f"{kind} "
                yield f"{indent}{prefix}for {_name(var.name)} < {expr_text(extent)}:"
                yield from _block(inner, indent + "  ")
