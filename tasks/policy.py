"""Every Prefect setting of a tuning, on one screen. For `flows` alone: everyone else calls the plain verbs.

The store remembers, Prefect does not: nothing is cached or persisted, and a flow that was killed goes on because its
next step follows from the store. A task carries a whole round: a call costs 5 to 10 ms, so a candidate of its own would
cost more than measuring it. `opaque`: Prefect would walk thousands of proposals looking for futures.

A tag only where somebody may want to limit it: before each call of a task with tags, Prefect asks the server for their
limits, which costs more than the rest of the call (40 ms of CPU in client and server, against 16).

No timeouts: Prefect cannot stop native code. The limits of the compiler and of the kernels kill what hangs
(`codegen.toolchain.build`, `codegen.runner.Settings`).

Retries only where the machine may be at fault and nothing was left behind: a compiler that did not start, a measuring
child that died before its first program. A second `propose` would give the same answer; a second `record` or `confirm`
would write everything twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import opaque

from tasks import session

Verb = Callable[..., Any]
RETRY_SECONDS = 5.0


def lift(verb: Verb, name: str, run_name: str, tags: tuple[str, ...] = (), retries: int = 0) -> Verb:
    """verb(session, turn)      -->      the same as a Prefect task, run in the same process and thread"""
    lifted = task(
        name=name,
        task_run_name=run_name,
        tags=list(tags) or None,
        retries=retries,
        retry_delay_seconds=RETRY_SECONDS,
        cache_policy=NO_CACHE,
        persist_result=False,
    )(verb)
    return lambda *arguments: lifted(*map(opaque, arguments))


propose, build, measure, record, confirm = (
    lift(session.propose_turn, "propose", "propose {turn.lane.workload.name}"),
    lift(session.build_turn,   "build",   "build {turn.lane.workload.name}",   retries=1),
    lift(session.measure_turn, "measure", "measure {turn.lane.workload.name}", ("hardware",), retries=1),
    lift(session.record_turn,  "record",  "record {turn.lane.workload.name}"),
    lift(session.confirm,      "confirm", "confirm {lane.workload.name}",      ("hardware",)),
)  # fmt: skip
