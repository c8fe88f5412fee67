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


def build(name: str, batch: int = 1, seq: int | None = None, seed: int = 0) -> Graph:
    """The graph, with the same weights for the same seed.

    A number or batch in the name wins over `batch`: "C2D" is "C2D.0" is "C2D.0.b1". `seq` is the length of a text.
    Raises ModelError for an unknown name, and for a `seq` where there is no text.
    """
    b = Builder(name, seed)
    head, *options = name.split(".")
    if head not in NETWORKS:
        kind, shape = paper_shape(name, batch)
        return b.graph(PAPER[kind].build(b, shape))
    network = NETWORKS[head]
    if seq is not None and not network.length:
        raise ModelError(f"{head} takes no text, so seq={seq} means nothing")
    if len(options) > 1 or any(not re.fullmatch(r"b\d+", o) for o in options):
        raise unknown(name)
    return b.graph(network.build(b, int(options[0][1:]) if options else batch, seq or network.length))


def paper_shape(name: str, batch: int = 1) -> tuple[str, Shape]:
    """ "GMM.3.b16" -> its kind and shape; the shape's number defaults to 0, the batch to `batch`."""
    kind, *options = name.split(".")
    numbers = [o for o in options if o.isdigit()]
    batches = [o[1:] for o in options if o.startswith("b") and o[1:].isdigit()]
    at = int(numbers[0]) if numbers else 0
    if kind not in PAPER or len(numbers) + len(batches) != len(options) or at >= len(PAPER[kind].shapes):
        raise unknown(name)
    return kind, (int(batches[0]) if batches else batch, *PAPER[kind].shapes[at][1:])


def unknown(name: str) -> ModelError:
    known = names()
    close = get_close_matches(name, known, 5, 0.5)
    return ModelError(
        f"no model is called {name!r}; {'near matches: ' + ', '.join(close) if close else 'try ir.zoo.names()'}"
    )


def operator_dag(name: str) -> Dag:
    """The DAG of a paper operator or subgraph, ready for scheduling: channels-last, as a whole, weights constant."""
    return operator(name)[1]


def operator(name: str) -> tuple[Graph, Dag, dict[str, str]]:
    """The channels-last graph of a paper operator, its DAG, and the graph's name for each of the DAG's tensors."""
    kind, shape = paper_shape(name)
    b = Builder(name, last=True)
    graph = optimise(b.graph(PAPER[kind].build(b, shape)))
    return graph, *canonical(compose(graph, graph.nodes, graph.outputs))
