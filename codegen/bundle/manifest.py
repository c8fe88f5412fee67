"""What a caller must know about a compiled network, in words: `manifest.json` of a bundle, and what a `Module` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from codegen.bundle.constants import Packed
from codegen.bundle.network import Choice
from ir.graph import Value

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One entry of a profile: a call of kernel number `kernel`, or a copy into an output (-1).

    indices: which values it uses as indices and their ranges, in words.
    """

    name: str
    workload: str
    kernel: int
    indices: str = ""


@dataclass(frozen=True, slots=True)
class Scratch:
    """The arena: intermediate values below `peak_bytes`, then the workspace of the kernels.

    lower_bound_bytes: what the fullest call needs at least.
    """

    bytes: int
    peak_bytes: int
    lower_bound_bytes: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class Slice:
    """A value in the arena: where, and from which step to which it is alive.

    Of two at one offset the second may begin in the step in which the first ends: it is written in its place.
    """

    name: str
    offset: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """id: embedded in the library. prefix: of its symbols. flags: how it is compiled. weights_bytes: packed constants.

    weights_digest: SHA-256 of the packed constants in a bundle, "" before they were written.
    """

    id: str
    prefix: str
    target: str
    threads: int
    flags: tuple[str, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    steps: tuple[Step, ...]
    kernels: tuple[str, ...]
    constants: tuple[Packed, ...]
    weights_bytes: int
    arena: Scratch
    slices: tuple[Slice, ...]
    report: tuple[Choice, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    weights_digest: str = ""


def text(manifest: Manifest) -> str:
    """JSON, for people too. Names are escaped, so any name is fine."""
    found = {"format": FORMAT, **asdict(manifest), "versions": dict(manifest.versions)}
    return json.dumps(found, indent=1) + "\n"


def parse(written: str) -> Manifest:
    """Inverse of `text`. Raises ValueError for another format."""
    found = json.loads(written)
    if found.pop("format", None) != FORMAT:
        raise ValueError(f"this manifest is not of format {FORMAT}: it was written by another version")
    rows = {
        "inputs": Value, "outputs": Value, "steps": Step, "constants": Packed, "slices": Slice, "report": Choice,
    }  # fmt: skip
    for name, kind in rows.items():
        found[name] = tuple(kind(**_tuples(row)) for row in found[name])
    found["versions"] = tuple(found["versions"].items())
    return Manifest(**{**_tuples(found), "arena": Scratch(**found["arena"])})


def _tuples(found: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
