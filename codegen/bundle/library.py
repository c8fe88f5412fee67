"""Bundle -> shared object: the units are compiled at once, then linked."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from codegen.bundle.source import Bundle
from codegen.toolchain import Compiler, ToolchainError, execute, first_error, slots, spoken

HIDDEN = "-fvisibility=hidden"
UNIT = 16  # kernels a file: a packed GEMM tile costs 59 ms alone, 21 ms as one of 16
MEMORY_BYTES = 2 << 30  # of one compiler


class BuildError(RuntimeError):
    """The text of a network does not compile: one line with the compiler's first error."""


def compile_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """Without what is for the linker alone."""
    return tuple(f for f in flags if f not in ("-shared", "-s") and not f.startswith("-Wl,"))


def build(
    bundle: Bundle,
    compiler: Compiler,
    directory: Path,
    *,
    unit: int = UNIT,
    jobs: int | None = None,
    timeout: float = 600.0,
) -> Path:
    """Compile and link into a file of `directory` whose name was never used before.

    unit: kernels a translation unit. jobs: compilers at once (default: one a free core). timeout: seconds a unit.
    Raises BuildError, or ToolchainError when the compiler cannot do threads.
    """
    units = bundle.units(unit)
    return build_units(units, bundle.manifest.flags, compiler, directory, jobs=jobs, timeout=timeout)


def build_units(
    units: Sequence[str],
    flags: Sequence[str],
    compiler: Compiler,
    directory: Path,
    *,
    include: Path | None = None,
    jobs: int | None = None,
    timeout: float = 600.0,
) -> Path:
    """Translation units as text -> shared object. include: a folder with their headers."""
    if "-fopenmp" in flags and not compiler.openmp:
        raise ToolchainError(f"{shlex.join(compiler.command)} has no OpenMP run time, so it builds for one thread only")
    directory.mkdir(parents=True, exist_ok=True)
    stem = directory / uuid.uuid4().hex
    objects = [Path(f"{stem}.{i}.o") for i in range(len(units))]
    folder = [f"-I{include}"] if include is not None else []
    flags = spoken(flags, compiler.kind)
    common = [*compiler.command, *compile_flags(flags), HIDDEN, *folder, "-c", "-x", "c", "-"]

    def compile_one(text: str, path: Path) -> None:
        _run([*common, "-o", str(path)], text, timeout)

    try:
        with ThreadPoolExecutor(jobs or slots(MEMORY_BYTES)) as pool:
            list(pool.map(compile_one, units, objects))
        library = Path(f"{stem}.so")
        _run([*compiler.command, *flags, *map(str, objects), "-o", str(library), "-lm"], "", timeout)
        return library
    finally:
        for path in objects:
            path.unlink(missing_ok=True)


def _run(command: Sequence[str], text: str, timeout: float) -> None:
    done = execute(command, text, timeout, MEMORY_BYTES)
    if done.code != 0:
        raise BuildError(first_error(done))
