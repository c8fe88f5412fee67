"""What other workloads teach: programs that were measured here, of this model or of earlier ones, as training rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from data.files import publish
from data.query import connect
from data.store import Store
from ir.key import parse_dag
from ir.workload import Workload
from search.cost_model import Rows, Training, fit, no_rows
from search.evolve import Space
from search.tuner import Result, known, lessons
from tasks import record
from tasks.prior import KIND, PLACE, kind_of
from tasks.space import SCHEMA, space_of
from tasks.workbench import Workbench, workbench

TRAINING = Training(trees=160, held=0.1)  # of the model that ships: more rows than a round has, and no hurry
MOST_WORKLOADS = 24  # of earlier models: bounds the start-up; a tuner trains with a sample of their rows anyway


def learnt(workload: str, space: Space, history: Sequence[Result]) -> Rows:
    """One workload's rows, in one group: they are all on one side when a model is judged by workloads."""
    rows = lessons(space, SCHEMA, known(space, history))
    return replace(rows, groups=np.full(len(rows), int(workload[:15], 16), dtype=np.int64))


def elsewhere(store: Store, bench: Workbench, ours: Iterable[str], most: int | None = MOST_WORKLOADS) -> list[Rows]:
    """Rows of workloads that are in the store, but not among `ours`, the most recently recorded first. most: None, all."""
    with connect(store) as source:
        sketched = source.run("sketch_texts", workload=None).to_pylist()
        texts = {row["workload"]: row["dag_text"] for row in sketched if row["dag_text"]}
        found = []
        for key in [k for k in reversed(texts) if k not in set(ours)][:most]:
            past = record.history(source, key, bench)
            if past:
                found.append(learnt(key, space_of(Workload(key, "", parse_dag(texts[key])), bench.target), past))
    return found


def joined(parts: Iterable[Rows]) -> Rows:
    out = no_rows(SCHEMA)
    for part in parts:
        out = out.join(part)
    return out


class PriorError(ValueError):
    """There is nothing to learn from, or nowhere to write: one line with the way out."""


def ship(stores: Iterable[Path], environ: Mapping[str, str], place: Path = PLACE) -> dict[str, Any]:
    """Train on all that the stores hold for one thread of this machine, and write the model as JSON.

    unseen: how well a model of the same settings ranks the programs of workloads that were kept from it.
    """
    parts, target = list[Rows](), None
    for root in stores:
        bench = workbench(root.parent / "work", 1, environ)
        bench.runner.close()
        parts += elsewhere(Store.open(root), bench, (), most=None)
        target = bench.target
    rows = joined(parts)
    if target is None or len(rows) < TRAINING.least:
        raise PriorError(f"{len(rows)} measured programs are too few to learn from; tune some models first")
    unseen = fit(rows, SCHEMA, TRAINING).quality
    model = fit(rows, SCHEMA, TRAINING, held=np.zeros(len(rows), dtype=bool))
    model.booster.set_attr(**{KIND: json.dumps(kind_of(target))})
    publish(place, bytes(model.booster.save_raw("json")))
    return {
        "file": str(place),
        "rows": len(rows),
        "workloads": len(parts),
        "unseen": asdict(unseen) if unseen else None,
    }
