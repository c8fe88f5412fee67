"""Upkeep of a store as Prefect flows, each for itself; `flows.nightly` does all of it. Importing this imports Prefect."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prefect import flow

from flows.artifacts import show_page, show_rooflines, table
from flows.night import STORE, page
from tasks import policy

Document = dict[str, Any]


@flow(name="report", flow_run_name="report", persist_result=False)
def report(store: str = STORE) -> Document:
    """Write the page of all models that were tuned last.

    Args:
        store: folder of the store.
    """
    root = Path(store).absolute()
    document = page(root, policy.report)
    show_rooflines(root)
    show_page(document)
    return document


@flow(name="retrain", flow_run_name="retrain", persist_result=False)
def retrain(store: str = STORE) -> Document:
    """Train the prior model on all that this store knows of this machine; it lies beside the store, with its quality.

    Args:
        store: folder of the store.
    """
    found: Document = policy.retrain(Path(store).absolute(), os.environ)
    unseen = found["unseen"] or {}
    table("prior", [{**found, "unseen": None, **unseen}], "the prior model, judged on workloads that were kept from it")
    return found


@flow(name="compact", flow_run_name="compact", persist_result=False)
def compact(store: str = STORE) -> list[Document]:
    """Merge small parts of the store and move damaged ones away.

    Args:
        store: folder of the store.
    """
    found: list[Document] = policy.compact(Path(store).absolute())
    table("compaction", found, "parts of the store that were merged")
    return found
