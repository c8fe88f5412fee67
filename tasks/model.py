"""A model by name or file, down to its workloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ir.fuse import Partition, workloads
from ir.graph import Graph, ModelError
from ir.passes import optimise
from ir.workload import Workload
from ir.zoo import build, names

ALIASES = {"resnet": "resnet50", "mobilenet": "mobilenet_v2", "bert": "bert_base", "vit": "vit_b16"}


@dataclass(frozen=True)
class Model:
    """graph: as it came. partition: of the optimised graph, whose values keep the names of inputs and outputs."""

    name: str
    graph: Graph
    partition: Partition

    @property
    def workloads(self) -> tuple[Workload, ...]:
        return self.partition.workloads


def load(source: str, batch: int = 1, seq: int | None = None, dims: Mapping[str, int] | None = None) -> Model:
    """A zoo name (`resnet50`, `GMM.3.b1`), or the path of an ONNX file. Raises ModelError."""
    graph = graph_of(source, batch, seq, dims)
    return Model(
        graph.name if source.endswith(".onnx") is False else Path(source).stem, graph, workloads(optimise(graph))
    )


def graph_of(source: str, batch: int, seq: int | None, dims: Mapping[str, int] | None) -> Graph:
    name = ALIASES.get(source, source)
    if name.split(".")[0] in {n.split(".")[0] for n in names()}:
        return build(name, batch, seq)
    if "/" in source or "." in source or Path(source).exists():
        from ir.frontends.onnx import load as load_onnx

        return load_onnx(Path(source), dims=dims)
    return build(name, batch, seq)  # raises: names like it are in the message


__all__ = ["Model", "ModelError", "load"]
