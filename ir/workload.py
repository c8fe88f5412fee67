"""The tuning unit: a fused subgraph, its DAG and where it occurs."""

from __future__ import annotations

from dataclasses import dataclass

from ir.compute import Dag


@dataclass(frozen=True, slots=True)
class Workload:
    """A compute DAG with a stable key.

    key:    canonical (names, constant values and the order of inputs do not matter; shape, dtype, role do)
    name:   for people, such as "conv2d_1x56x56x64_add_relu"
    weight: how often it occurs in the model
    origin: the graph nodes it was made of, one tuple an occurrence
    """

    key: str
    name: str
    dag: Dag
    weight: int = 1
    origin: tuple[tuple[str, ...], ...] = ()
