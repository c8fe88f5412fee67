"""What one nest at the root is made from. Equal scenes have equal nests, and programs of one sketch share most of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from ir.affine import Forms
from ir.compute import Compute, Dag, Input
from ir.expr import Expr, Read, reads
from ir.same import Same
from ir.schedule import Tile
from ir.tiling import Tiling, tiling
from ir.transform import rewrite_reads


@dataclass(frozen=True)
class Scene:
    """stages: those that run in the nest, in topological order. root: the one whose loops it has. given: what they read
    from outside. tiles, choices: theirs alone. hosts: (stage, nest it runs in, inside how many loops). behind: (producer,
    the stage fused behind it).
    """

    root: str
    stages: tuple[Same[Compute], ...]
    given: tuple[Input, ...]
    tiles: tuple[Tile, ...]
    choices: tuple[tuple[str, int], ...]
    hosts: tuple[tuple[str, str, int], ...]
    behind: tuple[tuple[str, str], ...]
    forms: Forms = field(default_factory=dict, compare=False)  # linear forms of the stages' indices
    epilogues: dict[str, Expr] = field(default_factory=dict, compare=False)

    @cached_property
    def dag(self) -> Dag:
        return Dag(self.given, tuple(s.it for s in self.stages), ())

    @cached_property
    def plans(self) -> dict[str, Tiling]:
        tiles, chosen = {t.stage: t for t in self.tiles}, dict(self.choices)
        return {c.name: tiling(c, tiles.get(c.name), chosen.get) for c in self.dag.computes}

    @cached_property
    def host(self) -> dict[str, tuple[str, int]]:
        return {stage: (nest, at) for stage, nest, at in self.hosts}

    @cached_property
    def consumer(self) -> dict[str, Compute]:
        return {producer: self.dag.stage(consumer) for producer, consumer in self.behind}

    def epilogue(self, consumer: Compute, producer: str) -> Expr:
        """A fused consumer's body, with a mark where it reads its producer: index rewriting leaves marks alone."""
        if consumer.name not in self.epilogues:
            self.epilogues[consumer.name] = rewrite_reads(consumer.body, producer, lambda r: Read("", (), r.dtype))
        return self.epilogues[consumer.name]


@lru_cache(maxsize=4096)
def tensors_read(stage: Same[Compute]) -> frozenset[str]:
    return frozenset(r.tensor for r in reads(stage.it.body))
