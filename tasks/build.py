"""Programs -> binaries: lower, write C, compile in batches. One bad program costs only itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from codegen.c import PRELUDE, kernel
from codegen.kernel import Kernel
from codegen.toolchain import Binary, build, slots
from ir.lower import lower
from ir.schedule import Program
from ir.timing import Failure
from tasks.workbench import Workbench

UNIT = (
    16  # programs a translation unit: fewer repeat prelude and parts, more keep a core waiting at either end of a batch
)
COMPILER_BYTES = 2 << 30  # address space one compiler may fill


def kernel_of(program: Program, key: str) -> Kernel:
    """The C function of a program; `key` names it in records and in the binary."""
    lowered = lower(program)
    constants = {i.name for i in program.sketch.dag.inputs if i.constant} | {name for name, _ in lowered.prepare}
    return kernel(lowered.nest, key, f"k_{re.sub('[^0-9A-Za-z]', '_', key)}", frozenset(constants), lowered.prepare)


def build_batch(
    bench: Workbench, programs: Sequence[tuple[str, Program]], directory: Path | None = None
) -> list[Binary | Failure]:
    """Binaries in the order of the programs (key, program). While the compiler works on one unit, the next is written."""
    folder, workers = directory or bench.directory / "built", slots(COMPILER_BYTES)
    size = max(1, min(UNIT, -(-len(programs) // workers)))  # a small batch still feeds every worker

    def compiled(made: list[Kernel | Failure]) -> list[Binary | Failure]:
        kernels = [k for k in made if isinstance(k, Kernel)]
        where, how = (bench.compiler, bench.target, folder), bench.parts
        built = iter(build(kernels, *where, prelude=PRELUDE, unit=size, jobs=1, parts=how) if kernels else ())
        return [next(built) if isinstance(k, Kernel) else k for k in made]

    with ThreadPoolExecutor(workers) as pool:
        units = [
            pool.submit(compiled, [_kernel(program, key) for key, program in programs[i : i + size]])
            for i in range(0, len(programs), size)
        ]
        return [answer for unit in units for answer in unit.result()]


def _kernel(program: Program, key: str) -> Kernel | Failure:
    """A program that cannot be lowered is a fault of ours, but it must not end a run of hours: it becomes a failure
    that is recorded and counted, and the property tests look for its kind."""
    try:
        return kernel_of(program, key)
    except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return Failure("compile", f"lowering: {type(error).__name__}: {str(error)[:200]}")
