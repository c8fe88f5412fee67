"""Program -> loop nest.

Every stage that is left after inlining has a `Tiling`: sizes level by level. The nest of a stage is its levels,
outermost first; at the innermost S level stands the register tile, whose accumulators live across the last R level.
A tile that sticks out is a second, smaller register tile behind an `If`, never a scalar tail.

A population's programs differ in a few choices, so what does not depend on them is made once: the DAG after each step,
and the nest of each `Scene`. Both are remembered by what they are made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ir.affine import ZERO
from ir.compute import Compute, Dag, Input
from ir.loop import Alloc, Buffer, Nest, Stmt
from ir.lower.nest import StageNest, positions
from ir.lower.region import Local, whole
from ir.lower.scene import Scene, tensors_read
from ir.same import Same
from ir.schedule import Block, ComputeAt, Fuse, Pack, Program, Rfactor, Step, Tile
from ir.tiling import Tiling, tiling
from ir.transform import apply, hoist, unit_axes

Numbers = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A nest and the constants it wants prepared: argument name -> DAG over the workload's inputs."""

    nest: Nest
    prepare: tuple[tuple[str, Dag], ...]


def lower(program: Program) -> Lowered:
    values = program.values
    steps = program.sketch.steps
    dag = _without_units(Same(program.sketch.dag))
    tiles = {s.stage: s for s in steps if isinstance(s, Tile)}

    def tile(stage: str, axis: str) -> int:
        s = dag.stage(stage)
        a = next(x for x in s.axes if x.name == axis)
        t = tiling(s, tiles[stage], values.get)
        return int(t.register(a) if a in s.space else t.sizes[a][0])

    for step in steps:
        dag = _applied(Same(dag), step, _numbers(dag, step, values, tile))
    dag, prepare = _hoisted(Same(dag))
    return Lowered(Builder(dag, program, tiles).nest(), prepare)


# --- the DAG, step by step


@lru_cache(maxsize=1024)
def _without_units(dag: Same[Dag]) -> Dag:
    return unit_axes(dag.it)


def _numbers(dag: Dag, step: Step, values: Mapping[str, int], tile: Callable[[str, str], int]) -> Numbers:
    """What a step asks of the choices."""
    match step:
        case Rfactor(stage, _):
            return ((f"{stage}.rfactor", values[f"{stage}.rfactor"]),)
        case Pack(stage, _, axis):
            return tuple((a, tile(stage, a)) for a in (axis, *(r.name for r in dag.stage(stage).reduce)))
        case Block(stage, _, axis):
            return ((axis, tile(stage, axis)),)
        case _:
            return ()


@lru_cache(maxsize=4096)
def _applied(dag: Same[Dag], step: Step, numbers: Numbers) -> Dag:
    known = dict(numbers)
    return apply(dag.it, step, known, lambda stage, axis: known[axis])


@lru_cache(maxsize=1024)
def _hoisted(dag: Same[Dag]) -> tuple[Dag, tuple[tuple[str, Dag], ...]]:
    return hoist(dag.it)


# --- the nests at the root


@dataclass
class Builder:
    """One program's stages, which of them run at the root, and which inside another's nest."""

    dag: Dag
    program: Program
    tiles: Mapping[str, Tile]
    consumer: dict[str, Compute] = field(default_factory=dict)  # producer -> the stage fused behind it
    host: dict[str, tuple[str, int]] = field(default_factory=dict)  # stage -> (nest it runs in, inside how many loops)
    choices: dict[str, dict[str, int]] = field(default_factory=dict)  # stage -> what its tiling asked for

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
        return {c.name: self._plan(c) for c in self.dag.computes}

    def _plan(self, stage: Compute) -> Tiling:
        asked, values = self.choices.setdefault(stage.name, {}), self.program.values

        def get(name: str, default: int) -> int:
            asked[name] = values.get(name, default)
            return asked[name]

        return tiling(stage, self.tiles.get(stage.name), get)

    def nest(self) -> Nest:
        behind = {c.name for c in self.consumer.values()}
        body: list[Stmt] = []
        for c in self.dag.computes:
            if c.name in self.host or c.name in behind:
                continue
            last = self.consumer.get(c.name, c)
            if last.name not in self.dag.outputs:
                body.append(Alloc(last.name, last.shape, last.dtype, "workspace"))
            body += _nest_of(self._scene(c.name))
        outputs = [self.dag[o] for o in self.dag.outputs]
        return Nest(
            tuple(Buffer(i.name, i.shape, i.dtype) for i in self.dag.inputs),
            tuple(Buffer(o.name, o.shape, o.dtype) for o in outputs),
            tuple(body),
        )

    def _scene(self, root: str) -> Scene:
        assert self.plans  # which ask for the choices
        led = {root} | {s for s, (nest, _) in self.host.items() if nest == root}
        names = led | {c.name for p, c in self.consumer.items() if p in led}
        stages = tuple(Same(c) for c in self.dag.computes if c.name in names)
        read = frozenset[str]().union(*map(tensors_read, stages)) - names
        return Scene(
            root,
            stages,
            tuple(self._given(t) for t in sorted(read)),
            tuple(self.tiles[s.it.name] for s in stages if s.it.name in self.tiles),
            tuple(choice for s in stages for choice in self.choices[s.it.name].items()),
            tuple((s, nest, at) for s, (nest, at) in self.host.items() if nest == root),
            tuple((p, c.name) for p, c in self.consumer.items() if p in led),
        )

    def _given(self, tensor: str) -> Input:
        t = self.dag[tensor]
        return t if isinstance(t, Input) else Input(t.name, t.shape, t.dtype)


@lru_cache(maxsize=1024)
def _nest_of(scene: Scene) -> tuple[Stmt, ...]:
    stage = scene.dag.stage(scene.root)
    out = scene.consumer.get(stage.name, stage).name
    return StageNest(
        scene, scene.plans[stage.name], whole(stage.shape), Local(out, (ZERO,) * len(stage.shape)), {}
    ).build()
