"""Our own command line as a process: for what lives above this room, and for measurements that want their own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

Answer = dict[str, Any]  # JSON-able
LONGEST = 300  # characters of what it said last


class CommandError(RuntimeError):
    """It failed: one line with its last words."""


def ours(words: Sequence[str], environ: Mapping[str, str]) -> Answer:
    """What `tilewright WORDS... --json` printed. Raises CommandError; its exit status 1 is an answer too."""
    path = os.pathsep.join(p for p in sys.path if p)  # the same modules as here, wherever they lie
    command = [sys.executable, "-P", "-m", "tilewright.cli", *words]
    pipe, environment = subprocess.PIPE, {**environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, check=False
    )
    try:
        answer: Answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandError(f"tilewright {words[0]} ended with {done.returncode}: {last[:LONGEST]}") from None
    return answer
