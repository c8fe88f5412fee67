"""Every Prefect setting of a tuning, on one screen. For `flows` alone: everyone else calls the plain verbs.

The store remembers, Prefect does not: nothing is cached or persisted, and a flow that was killed goes on because its
next step follows from the store. A task carries a whole round: a call costs 5 to 10 ms, a candidate of its own would
cost more than measuring it. `opaque`: Prefect would walk thousands of proposals looking for futures.

No timeouts: Prefect cannot stop native code. The compiler's and the kernels' own limits kill what hangs
(`codegen.toolchain.build`, `codegen.runner.Settings`).

Retries only for what may fail by the machine's fault and left nothing behind: a compiler that could not be started, a
measuring child that died before its first program. A second `propose` would give the same answer; a second `record`
would learn and write everything twice.
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


def lift(verb: Verb, name: str, about: str, tags: list[str], retries: int = 0) -> Verb:
    """verb(session, turn)      -->      the same as a Prefect task, called in the same process and thread"""
    lifted: Verb = task(
        verb,
        name=name,
        task_run_name=f"{name} {{{about}.workload.name}}",
        tags=tags,
        retries=retries,
        retry_delay_seconds=RETRY_SECONDS,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
    return lambda *arguments: lifted(*map(opaque, arguments))


# ----------------------------------------------------- run name: verb + workload; tags say which resource it keeps busy
propose = lift(session.propose_turn, "propose", "turn.lane", ["search"])
build   = lift(session.build_turn,   "build",   "turn.lane", ["compiler"], retries=1)
measure = lift(session.measure_turn, "measure", "turn.lane", ["hardware"], retries=1)
record  = lift(session.record_turn,  "record",  "turn.lane", ["store"])
confirm = lift(session.confirm,      "confirm", "lane",      ["compiler", "hardware", "store"])
# fmt: skip
