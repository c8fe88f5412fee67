"""Binaries of programs that stand, as they were built when they came to stand: beside them a later night can see whether
the compiler, the flags or our own text has made a program slower, whatever the machine does.

    <beside the store>/kept/<device>/<target>/<program>/program.so
                                                        kept.json    what is needed to call it, and what built it
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from codegen.c import PRELUDE
from codegen.environment import Environment
from codegen.kernel import Argument, Kernel
from codegen.toolchain import Binary
from ir.text import dag_text, parse_dag

BINARY, WORDS = "program.so", "kept.json"


@dataclass(frozen=True, slots=True)
class Kept:
    """built: the environment of its day; what acted on the build still holds. text: a digest of all that was compiled."""

    binary: Binary
    built: Environment
    text: str


def text_of(kernel: Kernel, prelude: str = PRELUDE) -> str:
    """The same for the same translation unit."""
    return blake2b(f"{prelude}\n{kernel.text}".encode(), digest_size=8).hexdigest()


def kept(folder: Path) -> Kept | None:
    """What lies there; None: nothing, or nothing that can be used."""
    try:
        said = json.loads((folder / WORDS).read_text())
        kernel = _kernel(said["kernel"])
        built, text = Environment(**said["environment"]), str(said["text"])
    except (OSError, ValueError, KeyError, TypeError):  # a file of another version, or half of one: it is built anew
        return None
    binary = Binary(folder / BINARY, kernel.entry, kernel.key, kernel)
    return Kept(binary, built, text) if binary.path.is_file() else None


def keep(folder: Path, binary: Binary, built: Environment, prelude: str = PRELUDE) -> Kept:
    """Copied aside and renamed, so that it is there whole or as it was."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix="."))
    shutil.copyfile(binary.path, aside / BINARY)
    text = text_of(binary.kernel, prelude)
    words = {"kernel": _words(binary.kernel), "environment": asdict(built), "text": text}
    (aside / WORDS).write_text(json.dumps(words))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(aside, folder)
    return Kept(Binary(folder / BINARY, binary.entry, binary.key, binary.kernel), built, text)


def _words(kernel: Kernel) -> dict[str, Any]:
    return {**asdict(replace(kernel, prepare=())), "prepare": [[name, dag_text(dag)] for name, dag in kernel.prepare]}


def _kernel(said: Mapping[str, Any]) -> Kernel:
    """Inverse of `_words` after a trip through JSON."""
    arguments = tuple(Argument(**{**a, "shape": tuple(a["shape"])}) for a in said["arguments"])
    prepare = tuple((str(name), parse_dag(text)) for name, text in said["prepare"])
    inplace = tuple((str(output), str(read)) for output, read in said["inplace"])
    parts = tuple(map(str, said["parts"]))
    return Kernel(**{**said, "arguments": arguments, "prepare": prepare, "inplace": inplace, "parts": parts})
