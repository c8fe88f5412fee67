"""The tuning as a Prefect flow. Importing this imports Prefect: the environment must be settled before.

prefect deployment run 'tune/resnet' --param trials=64 --watch
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Annotated

from prefect import flow
from prefect.logging import get_run_logger
from pydantic import Field

from flows.artifacts import Progress, show_tuning
from flows.plain import STORE, Report, carry_out, request, shape
from flows.tuning import Stages, Watch
from tasks import policy

LIFTED = Stages(policy.propose, policy.build, policy.measure, policy.record, policy.confirm)
Positive = Annotated[int, Field(ge=1)]


WATCH: ContextVar[Watch | None] = ContextVar("WATCH", default=None)
"""Who watches the flow in this process, nothing that a deployment could say; by default its log and its artifacts do."""


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
    watch = WATCH.get() or Progress()
    found = carry_out(asked, shape(batch, seq, dims), LIFTED, watch, get_run_logger().warning)
    show_tuning(found)
    return found
