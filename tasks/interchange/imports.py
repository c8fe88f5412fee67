"""Files of other tuners -> rows of the table `imports`; what cannot be read or mapped is counted, with its reason."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from data.query import run as question
from data.store import Store
from tasks.interchange.formats import Record, RecordError, record
from tasks.interchange.mapping import Mapped, Unmapped, mapped

LINE_CHARACTERS = 1 << 20  # of one record: a long trace has some thousands
PART_ROWS = 10_000
COMMENT = "#"


class LogError(ValueError):
    """A file that cannot be read at all: one line."""


@dataclass(slots=True)
class Imported:
    """What became of a file: lines with something on them are kept, known already, or refused.

    failed: kept ones that say a program failed. mapped: kept ones of a workload of ours; unmapped: the others, by
    reason; refused: lines that are no records, by reason.
    """

    file: str
    lines: int = 0
    kept: int = 0
    known: int = 0
    failed: int = 0
    mapped: int = 0
    unmapped: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)


def imported(store: Store, path: Path) -> Imported:
    """Read a log into the store; a second time adds nothing. Raises LogError: it cannot be opened."""
    known = set(question(store, "imported_keys").column("key").to_pylist())
    found = Imported(path.name)
    answers: dict[str, Mapped | str] = {}
    records = _records(path, found)
    while some := list(islice(records, PART_ROWS)):
        rows = []
        for number, line, one in some:
            key = blake2b(line.encode(), digest_size=16).hexdigest()
            if key in known:
                found.known += 1
                continue
            known.add(key)
            rows.append({"key": key, "file": path.name, "line": number, **_row(one, _workload(one, answers), found)})
        store.append("imports", rows)
        found.kept += len(rows)
    return found


def _records(path: Path, found: Imported) -> Iterator[tuple[int, str, Record]]:
    """Line number from 1, text, record. Comments and empty lines do not count."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            number = 0
            while line := file.readline(LINE_CHARACTERS):
                number += 1
                if not (text := line.strip()) or text.startswith(COMMENT):
                    continue
                found.lines += 1
                try:
                    if len(line) == LINE_CHARACTERS:
                        raise RecordError(f"longer than {LINE_CHARACTERS} characters")
                    one = record(text)
                except RecordError as error:
                    _count(found.refused, str(error))
                    continue
                yield number, text, one
    except (OSError, UnicodeDecodeError, EOFError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a text file"
        raise LogError(f"cannot read {path}: {why}") from error


def _workload(one: Record, answers: dict[str, Mapped | str]) -> Mapped | str:
    """The workload, or why there is none; a log says the same of a task thousands of times."""
    task = json.dumps([one.tool, one.task, one.arguments], default=str)
    if task not in answers:
        try:
            answers[task] = mapped(one)
        except Unmapped as error:
            answers[task] = str(error)
    return answers[task]


def _row(one: Record, workload: Mapped | str, found: Imported) -> Mapping[str, Any]:
    found.failed += one.error_kind is not None
    known = workload if isinstance(workload, Mapped) else None
    if isinstance(workload, Mapped):
        found.mapped += 1
    else:
        _count(found.unmapped, workload)
    return {
        "tool": one.tool, "version": one.version, "task": one.task, "arguments": json.dumps(one.arguments),
        "target": one.target, "configuration": json.dumps(one.configuration), "seconds": list(one.seconds),
        "best_seconds": one.best_seconds, "error_kind": one.error_kind, "recorded": one.recorded,
        "workload": known.key if known else None, "flops": known.flops if known else None,
        "unmapped": None if isinstance(workload, Mapped) else workload,
    }  # fmt: skip


def _count(reasons: dict[str, int], reason: str) -> None:
    reasons[reason] = reasons.get(reason, 0) + 1
