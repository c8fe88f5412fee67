"""Loop nest -> C text. Pure: no compiler is called here.

`unroll` loops become straight code, `vector` loops vector operations, register buffers named variables. In straight
code every distinct address is computed once and every element loaded once. What has no vector form runs lane by lane.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from pathlib import Path

from codegen.c.emitter import Emitter
from codegen.c.scalar import CTYPE
from codegen.kernel import Argument, Kernel
from ir.compute import Dag
from ir.inplace import inplace
from ir.loop import Fetch, For, If, Nest, Stmt
from ir.lower.fetch import FAR_BYTES

PRELUDE = (Path(__file__).parent / "prelude.h").read_text()

# Elements that a far constant is fetched ahead of its use where the nest does not say it better: 8 kB are far enough for
# the latency and near enough to stay. A whole panel ahead was 5 % slower where panel, next panel and image do not fit the
# second-level cache together, and never faster.
AHEAD = 2048

__all__ = ["CTYPE", "PRELUDE", "emit", "kernel"]


def kernel(
    nest: Nest, key: str, entry: str, constants: frozenset[str], prepare: tuple[tuple[str, Dag], ...] = ()
) -> Kernel:
    """The function and its calling convention; `constants` names the inputs that are known before run time."""
    roles = [(b, "constant" if b.name in constants else "input") for b in nest.inputs]
    roles += [(b, "output") for b in nest.outputs]
    arguments = tuple(Argument(b.name, b.shape, b.dtype, role) for b, role in roles)  # type: ignore[arg-type]
    far = (b.name for b in nest.inputs if b.name in dict(prepare) and 4 * prod(b.shape) >= FAR_BYTES)
    streams = dict.fromkeys(set(far) - set(_fetched(nest.body)), AHEAD)
    shared = tuple((o, i) for o, i in inplace(nest) if i not in constants)
    source, workspace = emit(nest, entry, streams, {name for pair in shared for name in pair})
    return Kernel(key, entry, source, arguments, prepare, workspace, inplace=shared)


def _fetched(body: tuple[Stmt, ...]) -> Iterator[str]:
    for s in body:
        match s:
            case Fetch(buffer, _, _):
                yield buffer
            case For(_, _, inner, _):
                yield from _fetched(inner)
            case If(_, then, orelse):
                yield from _fetched((*then, *orelse))
            case _:
                pass


def emit(
    nest: Nest, entry: str = "kernel", streams: Mapping[str, int] | None = None, shared: Collection[str] = ()
) -> tuple[str, int]:
    """C text of `void entry(void *const *arguments, void *workspace)` and the bytes of workspace it wants.

    streams: inputs that no cache holds beforehand -> elements to fetch ahead. shared: arguments that may lie in the
    memory of another. They are not `restrict`: the compiler keeps the order of their loads and stores.
    """
    e = Emitter(streams=streams or {})
    for i, b in enumerate((*nest.inputs, *nest.outputs)):
        const = "const " if i < len(nest.inputs) else ""
        name = e.declare(b.name, b.shape, b.dtype, "argument")
        restrict = "" if b.name in shared else "restrict "
        e.line(f"{const}{CTYPE[b.dtype]} *{restrict}{name} = arguments[{i}];")
    e.block(nest.body)
    return f"void {entry}(void *const *arguments, void *workspace) {{\n{e.text()}}}\n", e.workspace
