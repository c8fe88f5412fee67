"""A directory for others: C files, weights and a description, without any dependency but a C compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from codegen.bundle.constants import Evaluate, aligned_bytes, pack
from codegen.bundle.library import compile_flags
from codegen.bundle.manifest import Manifest, parse, text
from codegen.bundle.network import Array, Network
from codegen.bundle.source import emit
from codegen.toolchain import SPARED
from ir.evaluate import evaluate as by_numpy
from ir.target import Target

MAKEFILE = """\
# make            the example program: ./model weights.bin INPUT... OUTPUT...
# make libmodel.so
CC ?= cc
CFLAGS ?=
FLAGS = {flags}

model: main.c model.c model.h
	$(CC) $(FLAGS) $(CFLAGS) main.c model.c -o $@ $(LDFLAGS) -lm

libmodel.so: model.c model.h
	$(CC) $(FLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -shared model.c -o $@ $(LDFLAGS) -lm

clean:
	rm -f model libmodel.so
"""


class BundleError(Exception):
    """A directory is no bundle, or parts of it do not belong together: one line."""


def export(
    network: Network,
    directory: Path,
    target: Target,
    *,
    evaluate: Evaluate = by_numpy,
    prefix: str = "tilewright",
    versions: Mapping[str, str] | None = None,
) -> Manifest:
    """Write model.c, model.h, weights.bin, manifest.json, main.c and a Makefile into `directory`.

    weights.bin: the constants as the kernels read them, each at the 64-byte aligned offset that the manifest states,
    little-endian. prefix: of the C symbols. The manifest is written last, so an interrupted export is no bundle.
    """
    bundle = emit(network, target, prefix=prefix, versions=versions)
    weights = pack(network, evaluate)
    manifest = replace(bundle.manifest, weights_digest=digest(weights))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "manifest.json").unlink(missing_ok=True)
    weights.tofile(directory / "weights.bin")
    words = " ".join(f for f in compile_flags(manifest.flags) if f not in ("-fPIC", "-w", *SPARED))  # for any compiler
    files = {
        "model.h": bundle.header,
        "model.c": bundle.whole,
        "main.c": bundle.example,
        "Makefile": MAKEFILE.format(flags=words),
        "manifest.json": text(manifest),
    }
    for name, content in files.items():
        (directory / name).write_text(content, "utf-8")
    return manifest


def read_manifest(directory: Path) -> Manifest:
    """Raises BundleError."""
    path = directory / "manifest.json"
    try:
        return parse(path.read_text("utf-8"))
    except FileNotFoundError as e:
        raise BundleError(f"{directory} is no bundle: it has no manifest.json") from e
    except (ValueError, TypeError, KeyError) as e:
        raise BundleError(f"{path}: {e}") from e


def read_weights(directory: Path, manifest: Manifest) -> Array:
    """The packed constants, 64-byte aligned. Raises BundleError when the file is another than the one written."""
    path = directory / "weights.bin"
    block = aligned_bytes(manifest.weights_bytes)
    with path.open("rb") as f:
        found = f.readinto(block.data) if block.size else 0
        longer = bool(f.read(1))
    if found != block.size or longer or digest(block) != manifest.weights_digest:
        raise BundleError(f"{path} is not the file that belongs to this manifest")
    return block


def digest(weights: Array) -> str:
    return sha256(weights.data).hexdigest()
