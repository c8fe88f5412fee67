"""One line of a tuning log, as other tuners write it, in one form.

Ansor (auto_scheduler v0.5, v0.6)   {"i": [[workload, target, hardware, ..], state], "r": [[s..], error, total, time], "v"}
AutoTVM 0.2                         {"input": [target, task, args, ..], "config", "result": [[s..], error, total, time]}
MetaSchedule                        [workload number, [trace, [s..], target, arguments]]

Times are seconds in all of them. Whatever else a line holds stays as it came, in `configuration`; it is data, and
nothing here runs it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

LIMIT_SECONDS = 1e9  # logs say 1e10 for "no time"
ERRORS = {1: "compile", 2: "compile", 3: "compile", 4: "crash", 5: "wrong", 6: "timeout", 7: "timeout", 8: "crash"}
ANSOR_VERSIONS = ("v0.5", "v0.6")
AUTOTVM_VERSIONS = (0.2, "0.2")


class RecordError(ValueError):
    """A line that is no record: why, in a few words that are alike for lines that fail alike."""


@dataclass(frozen=True, slots=True)
class Record:
    """What another tuner measured.

    tool, version: who wrote it. task, arguments: what was computed, in its terms. target: where, in its terms.
    configuration: how. seconds: every sample of a call [s]. error_kind: as in `measurements`; None: it ran.
    """

    tool: str
    version: str
    task: str
    arguments: Any
    target: str
    configuration: Any
    seconds: tuple[float, ...]
    error_kind: str | None
    recorded: datetime | None

    @property
    def best_seconds(self) -> float | None:
        return min(self.seconds, default=None) if self.error_kind is None else None


def record(line: str) -> Record:
    """The record of a line. RecordError: it is none."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError("not JSON, or cut off") from error
    form = next((f for f in FORMATS if f.claims(content)), None)
    if form is None:
        raise RecordError("no format that is known")
    try:
        return form.read(content)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, RecordError):
            raise
        raise RecordError(f"not as {form.name} writes it") from error


@dataclass(frozen=True, slots=True)
class Format:
    """claims: whether a line looks like this one's. read: raises RecordError, LookupError, TypeError or ValueError."""

    name: str
    claims: Callable[[Any], bool]
    read: Callable[[Any], Record]


def _ansor(line: Mapping[str, Any]) -> Record:
    if line["v"] not in ANSOR_VERSIONS:
        raise RecordError(f"Ansor records of version {str(line['v'])[:20]}")
    task, state = line["i"]
    key, target, hardware = task[0], str(task[1]), task[2]
    name, *arguments = json.loads(key)
    costs, error, recorded = line["r"][0], line["r"][1], line["r"][3]
    how = {"hardware": hardware, "steps": state[1]}
    return Record("ansor", line["v"], str(name), arguments, target, how, *_result(costs, error), _time(recorded))


def _autotvm(line: Mapping[str, Any]) -> Record:
    if line["version"] not in AUTOTVM_VERSIONS:
        raise RecordError(f"AutoTVM records of version {str(line['version'])[:20]}")
    target, task, arguments = line["input"][:3]
    costs, error, _, recorded = line["result"]
    how = {name: value for name, _, value in line["config"]["entity"]}
    return Record(
        "autotvm", str(line["version"]), str(task), arguments, str(target), how, *_result(costs, error), _time(recorded)
    )


def _metaschedule(line: Sequence[Any]) -> Record:
    number, (trace, costs, target, arguments) = line
    text = target if isinstance(target, str) else json.dumps(target, sort_keys=True)
    failed = not costs
    return Record(
        "metaschedule", "", f"workload {int(number)}", arguments, text, trace, *_result(costs or [], int(failed)), None
    )


def _result(costs: Sequence[Any], error: int) -> tuple[tuple[float, ...], str | None]:
    """Samples and the kind of error. RecordError: it says that it ran, and has no time."""
    kind = ERRORS.get(int(error), "crash") if error else None
    seconds = tuple(s for s in map(float, costs) if 0 < s < LIMIT_SECONDS)
    if kind is None and not seconds:
        raise RecordError("no usable time")
    return (seconds, None) if kind is None else ((), kind)


def _time(seconds: Any) -> datetime | None:
    number = float(seconds)
    return datetime.fromtimestamp(number, UTC) if math.isfinite(number) and 0 < number < 1e11 else None


FORMATS = (
    Format("Ansor", lambda line: isinstance(line, dict) and {"i", "r", "v"} <= set(line), _ansor),
    Format("AutoTVM", lambda line: isinstance(line, dict) and {"input", "config", "result", "version"} <= set(line), _autotvm),
    Format("MetaSchedule", lambda line: isinstance(line, list) and len(line) == 2 and isinstance(line[0], int)
           and isinstance(line[1], list), _metaschedule),
)  # fmt: skip
