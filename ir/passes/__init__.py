"""Graph -> Graph: pure functions that keep what a graph computes and make it cheaper to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ir.graph import Graph
from ir.passes.batch_norm import fold_batch_norms
from ir.passes.cleanup import (
    fold_constants,
    join_moves,
    merge_equal,
    remove_dead,
    remove_identities,
    turn_gemm_constants,
)
from ir.passes.layout import channels_last
from ir.passes.phases import split_phases


@dataclass(frozen=True, slots=True)
class Pass:
    """A named function of a graph. `why` is what it saves."""

    name: str
    apply: Callable[[Graph], Graph]
    why: str


PASSES = (
    Pass("fold-constants",      fold_constants,      "what is known before run time is computed before run time"),
    Pass("remove-identities",   remove_identities,   "nothing is not worth a kernel"),
    Pass("fold-batch-norms",    fold_batch_norms,    "a factor per channel fits into the weights"),
    Pass("turn-gemm-constants", turn_gemm_constants, "one form of product, so one schedule"),
    Pass("channels-last",       channels_last,       "channels in lanes; transposes at the border alone"),
    Pass("split-phases",        split_phases,        "no multiplications by inserted zeros"),
    Pass("fold-constants",      fold_constants,      "what the passes before have made constant"),
    Pass("join-moves",          join_moves,          "one move instead of two"),
    Pass("remove-identities",   remove_identities,   "moves that turned out to be none"),
    Pass("merge-equal",         merge_equal,         "nothing is computed twice"),
    Pass("remove-dead",         remove_dead,         "nothing is computed in vain"),
)  # fmt: skip


def optimise(graph: Graph, passes: tuple[Pass, ...] = PASSES) -> Graph:
    """The graph after every pass, in order."""
    for step in passes:
        graph = step.apply(graph)
    return graph
