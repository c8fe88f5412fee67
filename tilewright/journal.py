"""A file of finished cases, a line each, under the settings they were measured with: what a long bench goes on from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tilewright.errors import UsageError

Report = dict[str, Any]
FREE = ("date",)  # settings that may differ: the first one stays


class Journal:
    """`done`: the report of every finished case by its name. `about`: the settings, of the file if there is one."""

    def __init__(self, path: Path | None, about: Report) -> None:
        """Without a path nothing is kept. Raises UsageError for a file of other settings, or of something else."""
        self.path, self.about = path, about
        self.done: dict[str, Report] = {}
        if path is not None and path.is_file() and path.stat().st_size:
            self._read(path)
        elif path is not None:
            self._append(path, {"settings": about})

    def add(self, report: Report) -> None:
        """One more finished case, on the disk before this returns."""
        self.done[report["case"]] = report
        if self.path is not None:
            self._append(self.path, report)

    def _append(self, path: Path, row: Report) -> None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> None:
        """What was half written when the bench was killed is cut off."""
        text = path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        try:
            first, *rows = [json.loads(line) for line in whole.splitlines()]
            kept, done = first["settings"], {row["case"]: row for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is no file of a bench; name another") from error
        was, now = flat(kept), flat(json.loads(json.dumps(self.about)))
        if other := next((k for k in {**was, **now} if k not in FREE and was.get(k) != now.get(k)), None):
            raise UsageError(f"{path}: {other} was {was.get(other)}, not {now.get(other)}; name another file")
        self.about, self.done = kept, done
        if len(whole) < len(text):
            os.truncate(path, len(whole))


def flat(settings: Report) -> Report:
    """{"versions": {"numpy": "2.4"}}  -->  {"versions.numpy": "2.4"}"""
    out: Report = {}
    for key, value in settings.items():
        parts = flat(value) if isinstance(value, dict) else {"": value}
        out |= {f"{key}.{part}".rstrip("."): v for part, v in parts.items()}
    return out
