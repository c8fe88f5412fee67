"""Every Prefect setting of a tuning, on one screen. For `flows` alone: everyone else calls the plain verbs.

The store remembers, Prefect does not: nothing is cached or persisted, and a flow that was killed goes on because its
next step follows from the store. A task carries a whole round: a call costs 5 to 10 ms, so a candidate of its own would
cost more than measuring it. `opaque`: Prefect would walk thousands of proposals looking for futures.

A tag only where somebody may want to limit it: before each call of a task with tags, Prefect asks the server for their
limits, which costs more than the rest of the call (40 ms of CPU in client and server, against 16).

No timeouts where something is measured: Prefect cannot stop native code. The limits of the compiler and of the kernels
kill what hangs (`codegen.toolchain.build`, `codegen.runner.Settings`). What only reads and writes has one.

Retries only where the machine may be at fault and nothing was left behind: a compiler that did not start, a measuring
child that died before its first program. A second `propose` would give the same answer; a second `record` or `confirm`
would write everything twice. Upkeep may be repeated: each part of it is whole or was not begun.

No limit of concurrency either, here or in `prefect.yaml`: a slot of the server's outlives a worker that was killed, for
minutes, or for ever if the server was stopped as well. The device's lease (`tasks.lease`) dies with its holder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import opaque

from tasks import command, nightly, session, upkeep

Verb = Callable[..., Any]
RETRY_SECONDS = 5.0
HOUR = 3600.0


def lift(
    verb: Verb,
    name: str,
    run_name: str,
    tags: tuple[str, ...] = (),
    retries: int = 0,
    timeout_seconds: float | None = None,
) -> Verb:
    """verb(session, turn)      -->      the same as a Prefect task, run in the same process and thread"""
    lifted = task(
        name=name,
        task_run_name=run_name,
        tags=list(tags) or None,
        retries=retries,
        retry_delay_seconds=RETRY_SECONDS,
        timeout_seconds=timeout_seconds,
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

look, settle, weigh, close = (
    lift(nightly.look,   "look",   "look at {night.registration.key}", ("hardware",)),
    lift(nightly.settle, "settle", "settle {night.registration.key}",  ("hardware",)),
    lift(nightly.weigh,  "weigh",  "weigh {night.registration.key}",   ("hardware",)),
    lift(nightly.close,  "close",  "close {night.registration.key}"),
)  # fmt: skip

compact, retrain, report = (
    lift(upkeep.compacted, "compact", "compact", retries=2, timeout_seconds=HOUR),
    lift(upkeep.retrained, "retrain", "retrain", retries=1, timeout_seconds=HOUR),
    lift(command.ours,     "report",  "report",  retries=1, timeout_seconds=HOUR),
)  # fmt: skip
