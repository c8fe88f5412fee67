"""What other workloads teach: programs that were measured here, of this model or of earlier ones, as training rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from data.query import connect
from data.store import Store
from ir.key import parse_dag
from ir.workload import Workload
from search.cost_model import Rows, no_rows
from search.evolve import Space
from search.tuner import Result, known, lessons
from tasks import record
from tasks.space import SCHEMA, space_of
from tasks.workbench import Workbench

MOST_WORKLOADS = 24  # of earlier models: bounds the start-up; a tuner trains with a sample of their rows anyway


def learnt(workload: str, space: Space, history: Sequence[Result]) -> Rows:
    """One workload's rows, in one group: they are all on one side when a model is judged by workloads."""
    rows = lessons(space, SCHEMA, known(space, history))
    return replace(rows, groups=np.full(len(rows), int(workload[:15], 16), dtype=np.int64))


def elsewhere(store: Store, bench: Workbench, ours: Iterable[str]) -> list[Rows]:
    """Rows of workloads that are in the store, but not among `ours`, the most recently recorded first."""
    with connect(store) as source:
        sketched = source.run("sketch_texts", workload=None).to_pylist()
        texts = {row["workload"]: row["dag_text"] for row in sketched if row["dag_text"]}
        found = []
        for key in [k for k in reversed(texts) if k not in set(ours)][:MOST_WORKLOADS]:
            past = record.history(source, key, bench)
            if past:
                found.append(learnt(key, space_of(Workload(key, "", parse_dag(texts[key])), bench.target), past))
    return found


def joined(parts: Iterable[Rows]) -> Rows:
    out = no_rows(SCHEMA)
    for part in parts:
        out = out.join(part)
    return out
