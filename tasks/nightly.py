"""A night of one registered model, as verbs: look, (tune,) settle, weigh, close. The order is `flows.night`'s.

look     what stands is measured again, a few rounds each; what looks changed is suspect
settle   suspects once more, in other processes and hours later: only that is judged. Then what the tuning found
         against what stands (`tasks.promotion`)
weigh    the model as a whole beside a library (`tasks.promotion`)
close    the night's row and its document (`tasks.night`)
"""

from __future__ import annotations

from statistics import median

from codegen.environment import AT_RUN, Environment, changes
from data.query import connect
from ir.timing import Failure
from tasks import record
from tasks.diary import (
    AGAIN,
    FIRST,
    Change,
    Place,
    record_changes,
    record_checks,
    record_decisions,
    record_failure,
)
from tasks.kept import keep, text_of
from tasks.night import Night, close
from tasks.promotion import decide, weigh
from tasks.regression import (
    RULE,
    Sample,
    Shift,
    between_nights,
    of_this_machine,
    side_by_side,
    suspicious,
    verdicts,
)
from tasks.standing import Contest, Role, Watched, decided_rows, folder_of, measured, rebuilt_for, watched
from tasks.workbench import Workbench

KNOWN, NEW, JUDGED = 6, 15, 15  # rounds: of a first look, of one that nothing is known of, and of what is judged

__all__ = ["close", "look", "settle", "weigh"]

# ---------------------------------------------------------------------------------------------- look


def look(night: Night) -> Night:
    """Measure what stands; those that look changed since earlier nights, or by a build of today, are suspects."""
    with night.measuring() as bench:
        night.now = night.surroundings(bench.compiler, bench.target, night.release, bench.runner.harness.path)
        night.place = Place(night.key, bench.target.key, bench.machine.key)
        record.record_device(night.store, bench)
        with connect(night.store) as source:
            decided = decided_rows(source, bench)
            night.decided = {key: row["program"] for key, row in decided.items()}
            rows = record.confirmed(source, bench) | decided
            night.watched = watched(source, bench, night.model, rows, night.now)
        night.rule = of_this_machine([[p.samples for p in w.past] for w in night.watched.values()])
        found = night.watched.values()
        measured(bench, [Contest(w, FIRST, w.binaries, KNOWN if w.past else NEW) for w in found], FIRST)
    _record_look(night, FIRST)
    night.suspects = [key for key, w in night.watched.items() if _suspect(night, w)]
    return night


def _suspect(night: Night, w: Watched) -> bool:
    return bool(w.failed) or any(suspicious(shift) for shift in _shifts(night, w, FIRST).values())


def _shifts(night: Night, w: Watched, look: int) -> dict[Role, Shift | None]:
    """What a look says: of the kept binary against its earlier nights, of the new one against the kept one."""
    now, new = w.samples(look, "kept"), w.samples(look, "built")
    out: dict[Role, Shift | None] = {}
    if w.past and "kept" not in w.failed:
        out["kept"] = between_nights(_normal(night, w), now, w.clocked, night.rule)
    if w.built is not None and not w.failed:
        out["built"] = side_by_side([s.seconds for s in now], [s.seconds for s in new])
    return out


def _normal(night: Night, w: Watched) -> list[tuple[Sample, ...]]:
    """The nights to compare with: without the last one, if that differed and nothing says why."""
    nights = [p.samples for p in w.past]
    return nights[:-1] if _last_night(night, w) is not None else nights


def _last_night(night: Night, w: Watched) -> Shift | None:
    """What was large on the night before, which by time alone was no change yet."""
    nights = [p.samples for p in w.past]
    if len(nights) < 2 or _explained(night, w):
        return None
    found = between_nights(nights[:-1], nights[-1], w.clocked, night.rule)
    return found if found is not None and found.large else None


def _record_look(night: Night, look: int) -> None:
    roles = {w.key: {role: w.ran_in(night.now, role) for role in w.binaries} for w in night.watched.values()}
    record.record_environments(night.store, [night.now, *(e for of in roles.values() for e in of.values())])
    record_checks(night.store, night.place, look, [
        (w, {role: {"program": w.key, "environment": e.key} for role, e in roles[w.key].items()})
        for w in night.watched.values()
    ])  # fmt: skip


# ---------------------------------------------------------------------------------------------- settle


def settle(night: Night) -> Night:
    """Judge the suspects on new rounds, then decide who stands; new binaries are kept for the nights to come."""
    with night.measuring() as bench:
        _look_again(night, bench)
        night.changes = judged(night)
        for w in night.watched.values():
            if failure := w.failure:
                record_failure(night.store, night.place, bench, w, failure, night.now)
            elif w.built is not None:
                keep(folder_of(bench, w.key), w.built, night.now)
        night.decisions = decide(night, bench)
    record_changes(night.store, night.place, night.changes)
    record_decisions(night.store, night.place, night.decisions)
    return night


def _look_again(night: Night, bench: Workbench) -> None:
    """A program that was wrong once needs no second look; every other failure may have been the machine's."""
    suspects = [night.watched[key] for key in night.suspects]
    for w in suspects:
        w.failed = {role: f for role, f in w.failed.items() if f.kind == "wrong"}
    measured(bench, [Contest(w, AGAIN, w.binaries, JUDGED) for w in suspects], AGAIN)
    _record_look(night, AGAIN)


def judged(night: Night) -> list[Change]:
    """Failures first, then changes, the worst first; certain for all suspects of the night together."""
    suspects = [night.watched[key] for key in night.suspects]
    failed = [_failed(night, w, f) for w in suspects if (f := w.failure) is not None]
    seen = [
        (w, role, shift)
        for w in suspects
        for role, shift in _shifts(night, w, AGAIN).items()
        if shift is not None and (role == "built" or _explained(night, w) or _lasts(night, w, shift))
    ]
    said = verdicts([shift for _, _, shift in seen])
    found = [
        _change(night, w, role, shift, sure) for (w, role, shift), (true, sure) in zip(seen, said, strict=True) if true
    ]
    return failed + sorted(found, key=lambda c: -(c.ratio or 0.0))


def _explained(night: Night, w: Watched) -> bool:
    """Something that acts on running programs is not what it was on the night before."""
    return bool(changes(w.past[-1].environment, w.ran_in(night.now, "kept"), AT_RUN))


def _lasts(night: Night, w: Watched, shift: Shift) -> bool:
    """The night before had it too. By time alone a program changes for an evening, whatever its neighbours' memory traffic
    does (nights on a shared machine: up to 2.7 times, and back); what stays is worth an alarm one night later."""
    before = _last_night(night, w)
    return before is not None and (before.ratio > 1) == (shift.ratio > 1)


def _failed(night: Night, w: Watched, failure: Failure) -> Change:
    before = w.past[-1].environment if w.past else None
    what = (w.workload.key, w.workload.name, w.key, None, None, (failure.kind,))
    return Change(*what, _before_seconds(w), None, 0, before, night.now, failure.message)


def _change(night: Night, w: Watched, role: Role, shift: Shift, sure: float) -> Change:
    """By its own nights: what acts on running programs may be the cause. By its new build: what acts on building."""
    now, seconds = w.ran_in(night.now, role), median(s.seconds for s in w.samples(AGAIN, role))
    if role == "kept":
        before: Environment | None = w.past[-1].environment
        causes = changes(w.past[-1].environment, now, AT_RUN) or ("time",)
        before_seconds = _before_seconds(w)
    else:
        before, causes = w.ran_in(night.now, "kept"), _causes_of_build(w, night.now)
        before_seconds = median(s.seconds for s in w.samples(AGAIN, "kept"))
    what = (w.workload.key, w.workload.name, w.key, shift.ratio, sure, causes)
    return Change(*what, before_seconds, seconds, shift.rounds, before, now)


def _causes_of_build(w: Watched, now: Environment) -> tuple[str, ...]:
    assert w.built is not None
    return rebuilt_for(w.kept, text_of(w.built.kernel), now)


def _before_seconds(w: Watched) -> float | None:
    samples = [s.seconds for p in w.past[: RULE.level] for s in p.samples]
    return median(samples) if samples else None
