"""The tuning as a Prefect flow. Importing this imports Prefect: the environment must be settled before.

prefect deployment run 'tune/resnet' --param trials=64 --watch
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger
from pydantic import Field

from flows.plain import STORE, Report, carry_out, request, shape
from flows.tuning import Stages, Watch
from tasks import policy
from tasks.session import Session

LIFTED = Stages(policy.propose, policy.build, policy.measure, policy.record, policy.confirm)
Positive = Annotated[int, Field(ge=1)]


def logged(event: str, session: Session, about: Any) -> None:
    """A line a round, for the log of the flow run."""
    if event == "round":
        w, best = about.lane.workload, about.lane.best_seconds
        speed = f"{best * 1e6:.1f} us, {w.dag.flops / best / 1e9:.1f} GFLOP/s" if best else "no valid program yet"
        get_run_logger().info("%s: %s (%d of %d trials)", w.name, speed, session.spent, session.request.trials)


WATCH: ContextVar[Watch] = ContextVar("WATCH", default=logged)
"""Who watches the flow in this process: nothing that a deployment could say."""


@flow(name="tune", flow_run_name="tune {model}", persist_result=False)
def tune(
    model: str,
    trials: Positive = 1000,
    budget_seconds: Annotated[float, Field(gt=0)] | None = None,
    threads: Positive = 1,
    store: str = STORE,
    seed: Annotated[int, Field(ge=0)] = 0,
    batch: Positive = 1,
    seq: Positive | None = None,
    early_stop: bool = True,
    dims: dict[str, Positive] | None = None,
) -> Report:
    """Find fast programs for a model and keep them in the store.

    Args:
        model: a name such as resnet50 or GMM.3.b1, or the path of an ONNX file.
        trials: programs to measure at most.
        budget_seconds: time to spend at most.
        threads: threads of the tuned programs; results for different numbers never mix.
        store: folder of the store. A run that was killed goes on from what it holds.
        seed: of every random choice.
        batch: size of a batch, where the name of the model leaves it open.
        seq: length of a text, where the model takes one.
        early_stop: give up a workload whose best time no longer moves beyond the noise.
        dims: extents of the symbolic dimensions of an ONNX file.
    """
    asked = request(model, trials, budget_seconds, threads, store, seed, early_stop)
    found = carry_out(asked, shape(batch, seq, dims), LIFTED, WATCH.get())
    create_table_artifact(key="tune", table=found["workloads"], description=f"{found['model']}: {found['state']}")
    return found
