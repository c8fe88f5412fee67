"""Networks and the paper's operators as graphs, with seeded random weights.

build("resnet50", batch=16)      build("C2D.2.b1")      operator_dag("GMM.3.b1")
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from ir.compute import Dag
from ir.fuse import compose
from ir.graph import Graph, ModelError
from ir.key import canonical
from ir.passes import optimise
from ir.zoo.builder import Builder
from ir.zoo.networks import NETWORKS
from ir.zoo.operators import PAPER, Shape

BATCHES = (1, 16)  # of the paper's benchmarks


def names() -> list[str]:
    """Everything that `build` knows; the paper's operators with their shape and batch, as in "C2D.0.b16"."""
    operators = [f"{kind}.{i}.b{b}" for kind, row in PAPER.items() for i in range(len(row.shapes)) for b in BATCHES]
    return [*NETWORKS, *operators]


NAME = re.compile(r"(?P<kind>\w+)(\.(?P<number>\d+))?(\.b(?P<batch>[1-9]\d*))?")


def build(name: str, batch: int = 1, seq: int | None = None, seed: int = 0) -> Graph:
    """The graph, with the same weights for the same seed.

    A batch in the name wins over `batch`: "C2D" is "C2D.0" is "C2D.0.b1". `seq` is the length of a text. Raises
    ModelError for an unknown name, and for a `seq` where there is no text.
    """
    b, found = Builder(name, seed), NAME.fullmatch(name)
    if found is None or found["kind"] not in NETWORKS:
        kind, shape = paper_shape(name, batch)
        return b.graph(PAPER[kind].build(b, shape))
    if found["number"]:
        raise unknown(name)
    network = NETWORKS[found["kind"]]
    if seq is not None and not network.length:
        raise ModelError(f"{name} takes no text, so seq={seq} means nothing")
    return b.graph(network.build(b, int(found["batch"] or batch), seq or network.length))


def paper_shape(name: str, batch: int = 1) -> tuple[str, Shape]:
    """ "GMM.3.b16" -> its kind and shape; the shape's number defaults to 0, the batch to `batch`."""
    found = NAME.fullmatch(name)
    if found is None or found["kind"] not in PAPER:
        raise unknown(name)
    shapes, number = PAPER[found["kind"]].shapes, int(found["number"] or 0)
    if number >= len(shapes):
        raise unknown(name)
    return found["kind"], (int(found["batch"] or batch), *shapes[number][1:])


def unknown(name: str) -> ModelError:
    known = names()
    close = get_close_matches(name, known, 5, 0.5)
    way_out = (
        f"near matches: {', '.join(close)}" if close else f"there are {', '.join(NETWORKS)}, operators such as GMM.3.b1"
    )
    return ModelError(f"no model is called {name!r}; {way_out}, and ONNX files")


def operator_dag(name: str) -> Dag:
    """The DAG of a paper operator or subgraph, ready for scheduling: channels-last, as a whole, weights constant."""
    return operator(name)[1]


def operator(name: str) -> tuple[Graph, Dag, dict[str, str]]:
    """The channels-last graph of a paper operator, its DAG, and the graph's name for each of the DAG's tensors."""
    kind, shape = paper_shape(name)
    b = Builder(name, last=True)
    graph = optimise(b.graph(PAPER[kind].build(b, shape)))
    return graph, *canonical(compose(graph, graph.nodes, graph.outputs))
