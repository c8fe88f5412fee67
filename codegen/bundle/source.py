"""Network -> C text. Pure: no compiler is called here.

Values go by number, so no name of the user reaches the text; kernels get names of our own by a macro around each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from codegen.bundle.constants import Constant, Stored, behind, constants, layout, weights_bytes
from codegen.bundle.manifest import Manifest, Scratch, Slice, Step
from codegen.bundle.memory import MemoryPlan, Place, plan
from codegen.bundle.network import Extent, Indices, Network, NetworkError, extent, extents
from codegen.c import CTYPE, PRELUDE
from codegen.kernel import Kernel
from codegen.toolchain import flags, identity
from ir.target import Target

HERE = Path(__file__).parent
RUNTIME, RUNTIME_HEADER, EXAMPLE = ((HERE / n).read_text() for n in ("runtime.c", "runtime.h", "example.c"))
KERNEL = '__attribute__((visibility("hidden"), noinline)) void {}(void *const *arguments, void *workspace);'
API = '__attribute__((visibility("default")))'


@dataclass(frozen=True)
class Bundle:
    """header: `model.h`. kernels: one function each, parts: what it calls. driver: tables, the steps, the entry points."""

    header: str
    kernels: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]
    prototypes: tuple[str, ...]
    driver: str
    example: str
    manifest: Manifest

    @property
    def whole(self) -> str:
        """All of it as one translation unit, `model.h` included by name."""
        return "\n".join(['#include "model.h"', _guard(self.manifest), PRELUDE, self._kernels(0, None), self.driver])

    def units(self, size: int) -> tuple[str, ...]:
        """The same as translation units that stand alone, `size` kernels each; the driver in the last."""
        starts = range(0, len(self.kernels), size)
        files = [f"{PRELUDE}\n{self._kernels(at, at + size)}" for at in starts]
        last = "\n".join([self.header, *self.prototypes, self.driver])
        return (f"{files[0]}\n{last}",) if len(files) == 1 else (*files, last)

    def _kernels(self, first: int, last: int | None) -> str:
        parts = dict.fromkeys(p for parts in self.parts[first:last] for p in parts)
        return "\n".join([*self.prototypes[first:last], *parts, *self.kernels[first:last]])


def emit(
    network: Network, target: Target, *, prefix: str = "tilewright", versions: Mapping[str, str] | None = None
) -> Bundle:
    """C text and description. prefix: of the C symbols; two networks in one program need two.

    versions: whatever the manifest should remember of what made it. Raises NetworkError.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", prefix):
        raise NetworkError(f"prefix {prefix!r}: lower-case letters, digits and _ only")
    memory, wanted, numbers = plan(network), constants(network), _numbers(network)
    manifest = _manifest(network, target, memory, wanted, numbers, prefix, dict(versions or {}))
    kernels = {identity(c.kernel): c.kernel for c in network.calls}
    steps = list(_steps(network, memory, wanted, numbers))
    driver = _driver(manifest, steps, memory)
    header = _renamed(_header(manifest), prefix)
    functions = tuple(_function(k, f"{prefix}_k{i}") for i, k in enumerate(kernels.values()))
    prototypes = tuple(KERNEL.format(f"{prefix}_k{i}") for i in range(len(functions)))
    parts = tuple(k.parts for k in kernels.values())
    called = (p for own in parts for p in own)
    content = "\0".join([repr(asdict(replace(manifest, report=()))), header, PRELUDE, *called, *functions, driver])
    manifest = replace(manifest, id=sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32])
    driver = _renamed(f'{driver}\nconst char tilewright_id[] = "{manifest.id}";\n', prefix)
    return Bundle(header, functions, parts, prototypes, driver, _renamed(EXAMPLE, prefix), manifest)


def _renamed(text: str, prefix: str) -> str:
    return text.replace("tilewright_", f"{prefix}_").replace("TILEWRIGHT_", f"{prefix.upper()}_")


def _numbers(network: Network) -> dict[str, int]:
    """Kernels by identity: calls of the same program share its function."""
    return {name: i for i, name in enumerate(dict.fromkeys(identity(c.kernel) for c in network.calls))}


def _function(kernel: Kernel, name: str) -> str:
    """The source under another name; a macro renames every occurrence, whatever the text looks like."""
    return f"#define {kernel.entry} {name}\n{kernel.source}\n#undef {kernel.entry}\n"


# ---------------------------------------------------------------------------------------------- description


def _manifest(
    network: Network,
    target: Target,
    memory: MemoryPlan,
    wanted: Sequence[Constant],
    numbers: Mapping[str, int],
    prefix: str,
    versions: Mapping[str, str],
) -> Manifest:
    packed = layout(network, wanted)
    called = [
        Step(c.name, c.workload, numbers[identity(c.kernel)], ", ".join(map(str, c.indices))) for c in network.calls
    ]
    copied = [Step(f"copy to {network.outputs[c.output].name}", "", -1) for c in memory.copies]
    arena = Scratch(memory.arena_bytes, memory.peak_bytes, memory.lower_bound_bytes, memory.workspace_bytes)
    return Manifest(
        id="",
        prefix=prefix,
        target=target.key,
        threads=target.threads,
        flags=flags(target, final=True),
        inputs=network.inputs,
        outputs=network.outputs,
        steps=(*called, *copied),
        kernels=tuple({identity(c.kernel): c.kernel.key for c in network.calls}.values()),
        constants=packed,
        weights_bytes=weights_bytes(packed),
        arena=arena,
        slices=tuple(Slice(b.name, memory.places[b.name].at, b.bytes, b.first, b.last) for b in memory.buffers),
        report=network.report,
        versions=tuple(versions.items()),
    )


def _header(m: Manifest) -> str:
    """`model.h`: sizes as macros, then the entry points."""
    sizes = {
        "INPUTS": len(m.inputs),
        "OUTPUTS": len(m.outputs),
        "CONSTANTS": len(m.constants),
        "STEPS": len(m.steps),
        "THREADS": m.threads,
        "ARENA_BYTES": m.arena.bytes,
        "WEIGHTS_BYTES": m.weights_bytes,
    }
    guard = "TILEWRIGHT_MODEL_H"
    lines = [f"#ifndef {guard}", f"#define {guard}", f"#define TILEWRIGHT_API {API}"]
    lines += [f"#define TILEWRIGHT_{name} {value}" for name, value in sizes.items()]
    return "\n".join([*lines, RUNTIME_HEADER, "#endif", ""])


def _guard(m: Manifest) -> str:
    """Says what is missing instead of a hundred unknown types."""
    tests = {"-mavx512f": "__AVX512F__", "-mavx2": "__AVX2__"}
    wanted = [test for flag, test in tests.items() if flag in m.flags]
    lines = [f'#ifndef {test}\n#error "compile this file with the flags in the Makefile"\n#endif' for test in wanted]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------- steps


def _steps(
    network: Network, memory: MemoryPlan, wanted: Sequence[Constant], numbers: Mapping[str, int]
) -> Iterator[str]:
    """A statement for each call, then for each copy."""
    index = {c: i for i, c in enumerate(wanted)}

    def whole(name: str) -> str:
        root = network.root(name)
        return _pointer(memory.places[root] if root in memory.places else Place("constant", index[Stored(root)]))

    sizes = extents(network)
    for call, row in zip(network.calls, behind(network), strict=True):
        moving = [i for i in call.indices if network.root(i.value) not in network.constants]
        checks = [_check(i, whole(i.value), sizes[network.root(i.value)]) for i in moving]
        pointers = [
            whole(value) if c is None else _pointer(Place("constant", index[c]))
            for (_, value), c in zip(call.pointers(), row, strict=True)
        ]
        yield " ".join([*checks, _call(numbers[identity(call.kernel)], pointers)])
    for copy in memory.copies:
        yield f"memcpy(outputs[{copy.output}], {whole(copy.value)}, {copy.bytes});"


def _call(number: int, pointers: Sequence[str]) -> str:
    return f"{{ void *const p[] = {{{', '.join(pointers) or '0'}}}; tilewright_k{number}(p, workspace); }}"


def _check(indices: Indices, pointer: str, size: Extent) -> str:
    """Leave the step when an index is out of range."""
    i = indices
    return (
        f"for (int64_t i = {i.first}; i < {size.elements}; i += {i.step}) "
        f"{{ int64_t at = (({CTYPE[size.dtype]} *)({pointer}))[i]; if (at < {i.low} || at > {i.high}) return 1; }}"
    )


def _pointer(p: Place) -> str:
    match p.base:
        case "input":
            return f"(void *)inputs[{p.at}]"
        case "constant":
            return f"(void *)constants[{p.at}]"
        case "output":
            return f"outputs[{p.at}]"
        case "arena":
            return f"arena + {p.at}"


def _driver(m: Manifest, steps: Sequence[str], memory: MemoryPlan) -> str:
    cases = [f"  case {i}: {step} break;" for i, step in enumerate(steps)]
    return "\n".join(
        [
            "#include <string.h>",
            "#include <time.h>",
            "#ifdef _OPENMP",
            "#include <omp.h>",
            "#endif",
            _table("const int64_t tilewright_input_bytes", [extent(v).bytes for v in m.inputs]),
            _table("const int64_t tilewright_output_bytes", [extent(v).bytes for v in m.outputs]),
            _table("static const int64_t tilewright_offsets", [c.offset for c in m.constants]),
            "static int tilewright_step(int step, const void *const *inputs, void *const *outputs, char *arena,",
            "                           const void *const *constants) {",
            f"  void *workspace = arena + {memory.peak_bytes};",
            "  (void)inputs, (void)outputs, (void)constants, (void)workspace;",
            "  switch (step) {",
            *cases,
            "  }",
            "  return 0;",
            "}",
            RUNTIME,
        ]
    )


def _table(declaration: str, numbers: Sequence[int]) -> str:
    """One element more than needed, since C has no empty arrays."""
    return f"{declaration}[] = {{{', '.join(map(str, [*numbers, 0]))}}};"
