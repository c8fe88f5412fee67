"""Program -> loop nest.

Every stage that is left after inlining has a `Tiling`: sizes level by level. The nest of a stage is its levels,
outermost first; at the innermost S level stands the register tile, whose accumulators live across the last R level.
A tile that sticks out is a second, smaller register tile behind an `If`, never a scalar tail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ir.affine import ZERO, Forms
from ir.compute import Compute, Dag
from ir.expr import Expr, Read
from ir.loop import Alloc, Buffer, Nest, Stmt
from ir.lower.nest import StageNest, positions
from ir.lower.region import Local, whole
from ir.schedule import ComputeAt, Fuse, Program, Tile
from ir.tiling import Tiling, tiling
from ir.transform import apply, hoist, rewrite_reads, unit_axes


@dataclass(frozen=True, slots=True)
class Lowered:
    """A nest and the constants it wants prepared: argument name -> DAG over the workload's inputs."""

    nest: Nest
    prepare: tuple[tuple[str, Dag], ...]


def lower(program: Program) -> Lowered:
    values = program.values
    steps = program.sketch.steps
    dag = unit_axes(program.sketch.dag)
    tiles = {s.stage: s for s in steps if isinstance(s, Tile)}

    def tile(stage: str, axis: str) -> int:
        s = dag.stage(stage)
        a = next(x for x in s.axes if x.name == axis)
        t = tiling(s, tiles[stage], values.get)
        return int(t.register(a) if a in s.space else t.sizes[a][0])

    for step in steps:
        dag = apply(dag, step, values, tile)
    dag, prepare = hoist(dag)
    return Lowered(Builder(dag, program, tiles).nest(), prepare)


@dataclass
class Builder:
    """One program's stages, which of them run at the root, and which inside another's nest."""

    dag: Dag
    program: Program
    tiles: Mapping[str, Tile]
    consumer: dict[str, Compute] = field(default_factory=dict)  # producer -> the stage fused behind it
    host: dict[str, tuple[str, int]] = field(default_factory=dict)  # stage -> (nest it runs in, inside how many loops)

    forms: Forms = field(default_factory=dict)  # linear forms of the stages' indices
    epilogues: dict[str, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        values = self.program.values
        for s in self.program.sketch.steps:
            match s:
                case Fuse(stage, consumer, _):
                    self.consumer[stage] = self.dag.stage(consumer)
                case ComputeAt(stage, consumer) if values.get(f"{stage}.at", 0):
                    self.host[stage] = (self._driver(consumer), values[f"{stage}.at"])
                case _:
                    pass
        self._drop_illegal_hosts()

    def _driver(self, stage: str) -> str:
        """The stage whose loops run `stage`: its fused producer, or itself."""
        return next((p for p, c in self.consumer.items() if c.name == stage), stage)

    def _drop_illegal_hosts(self) -> None:
        """A stage can be computed inside a nest only if every consumer runs there, no further out than it."""
        for c in reversed(self.dag.computes):
            if c.name not in self.host:
                continue
            nest, level = self.host[c.name]
            users = [self._driver(u.name) for u in self.dag.consumers(c.name)]
            fits = all(
                u == nest or (u in self.host and self.host[u][0] == nest and self.host[u][1] >= level) for u in users
            )
            if not fits or nest in self.host or level > positions(self.plans[nest]) or c.name in self.dag.outputs:
                del self.host[c.name]

    @cached_property
    def plans(self) -> dict[str, Tiling]:
        return {c.name: tiling(c, self.tiles.get(c.name), self.program.values.get) for c in self.dag.computes}

    def epilogue(self, consumer: Compute, producer: str) -> Expr:
        """A fused consumer's body, with a mark where it reads its producer: index rewriting leaves marks alone."""
        if consumer.name not in self.epilogues:
            self.epilogues[consumer.name] = rewrite_reads(consumer.body, producer, lambda r: Read("", (), r.dtype))
        return self.epilogues[consumer.name]

    def nest(self) -> Nest:
        behind = {c.name for c in self.consumer.values()}
        body: list[Stmt] = []
        for c in self.dag.computes:
            if c.name in self.host or c.name in behind:
                continue
            last = self.consumer.get(c.name, c)
            if last.name not in self.dag.outputs:
                body.append(Alloc(last.name, last.shape, last.dtype, "workspace"))
            body += StageNest(
                self, self.plans[c.name], whole(c.shape), Local(last.name, (ZERO,) * len(c.shape)), {}
            ).build()
        outputs = [self.dag[o] for o in self.dag.outputs]
        return Nest(
            tuple(Buffer(i.name, i.shape, i.dtype) for i in self.dag.inputs),
            tuple(Buffer(o.name, o.shape, o.dtype) for o in outputs),
            tuple(body),
        )
