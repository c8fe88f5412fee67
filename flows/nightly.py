"""The night as a Prefect flow. Importing this imports Prefect: the environment must be settled before.

prefect deployment run 'nightly/nightly' --watch
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.events import emit_event
from prefect.logging import get_run_logger
from pydantic import Field

from flows.artifacts import show_night, show_page, show_rooflines
from flows.night import STORE, Steps, night, wanted
from flows.tune import tune
from tasks import policy

Document = dict[str, Any]
LIFTED = Steps(
    policy.look, tune, policy.settle, policy.weigh, policy.close, policy.compact, policy.retrain, policy.report
)


@flow(name="nightly", flow_run_name="nightly", persist_result=False)
def nightly(
    store: str = STORE,
    models: list[str] | None = None,
    trials: Annotated[int, Field(ge=0)] | None = None,
    budget_seconds: Annotated[float, Field(gt=0)] | None = None,
) -> Document:
    """Measure again what stands, go on tuning, and let what is clearly faster stand; then the upkeep of the store.

    Args:
        store: folder of the store, with the registrations.
        models: registrations by key, label or model; all of them when left out.
        trials: programs to measure for each model instead of what it was registered with; 0 tunes nothing.
        budget_seconds: time to spend on each model instead of what it was registered with.
    """
    document = night(wanted(store, models, trials, budget_seconds), LIFTED, get_run_logger().info)
    show_night(document)
    show_rooflines(Path(document["store"]))
    show_page(document)
    _tell(document)
    return document


def _tell(document: Document) -> None:
    """An event for each change, for automations that write to people."""
    for m in document["models"]:
        for c in m["changes"]:
            name = f"tilewright.workload.{c['workload']}"
            emit_event("tilewright.shift", {"prefect.resource.id": name, "prefect.resource.name": c["name"]}, payload=c)
