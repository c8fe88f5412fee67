"""The order of a tuning: the one loop. The stages come in as a table, so that the same order runs them as plain
functions or as Prefect tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ir.timing import Timing
from search.tuner import Proposal
from tasks import session as verbs
from tasks.lane import Lane
from tasks.session import Session, Turn

Stage = Callable[[Session, Turn], Turn]


@dataclass(frozen=True, slots=True)
class Stages:
    """The verbs of a round and of the finish."""

    propose: Stage = verbs.propose_turn
    build: Stage = verbs.build_turn
    measure: Stage = verbs.measure_turn
    record: Stage = verbs.record_turn
    confirm: Callable[[Session, Lane], list[tuple[Proposal, Timing]]] = verbs.confirm


Watch = Callable[[str, Session, Any], None]  # event, session, what it is about


def silent(event: str, session: Session, about: Any) -> None:
    """Watches nothing."""


def tune(session: Session, stages: Stages = Stages(), watch: Watch = silent) -> None:
    """Rounds until trials, time or hope are used up, then the finalists of every workload."""
    watch("start", session, None)
    while (turn := verbs.grant(session)) is not None:
        turn = stages.propose(session, turn)
        if not turn.proposals:
            continue
        turn = stages.record(session, stages.measure(session, stages.build(session, turn)))
        watch("round", session, turn)
    for lane in session.lanes.values():
        watch("confirmed", session, (lane, stages.confirm(session, lane)))
    watch("end", session, None)
