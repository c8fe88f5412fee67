"""Loop nest -> C text. Pure: no compiler is called here.

`unroll` loops become straight code, `vector` loops vector operations, register buffers named variables. In straight
code every distinct address is computed once and every element loaded once. What has no vector form runs lane by lane.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import groupby
from math import prod
from pathlib import Path

from codegen.c.emitter import Emitter
from codegen.c.scalar import CTYPE
from codegen.kernel import Argument, Kernel
from ir.compute import Dag
from ir.expr import reads
from ir.inplace import inplace
from ir.loop import Alloc, Fetch, Nest, Stmt, Store, expressions, statements
from ir.lower.fetch import FAR_BYTES
from ir.same import Same

PRELUDE = (Path(__file__).parent / "prelude.h").read_text()

# Elements that a far constant is fetched ahead of its use where the nest does not say it better: 8 kB are far enough for
# the latency and near enough to stay. A whole panel ahead was 5 % slower where panel, next panel and image do not fit the
# second-level cache together, and never faster.
AHEAD = 2048

Piece = tuple[Same[Stmt], ...]

__all__ = ["CTYPE", "PRELUDE", "Text", "emit", "kernel"]


def kernel(
    nest: Nest, key: str, entry: str, constants: frozenset[str], prepare: tuple[tuple[str, Dag], ...] = ()
) -> Kernel:
    """The function and its calling convention; `constants` names the inputs that are known before run time."""
    roles = [(b, "constant" if b.name in constants else "input") for b in nest.inputs]
    roles += [(b, "output") for b in nest.outputs]
    arguments = tuple(Argument(b.name, b.shape, b.dtype, role) for b, role in roles)  # type: ignore[arg-type]
    fetched = frozenset[str]().union(*(_used(Same(s)).fetched for s in nest.body))
    far = (b.name for b in nest.inputs if b.name in dict(prepare) and 4 * prod(b.shape) >= FAR_BYTES)
    streams = dict.fromkeys(set(far) - fetched, AHEAD)
    shared = tuple((o, i) for o, i in inplace(nest) if i not in constants)
    text = emit(nest, entry, streams, {name for pair in shared for name in pair})
    return Kernel(key, entry, text.entry, arguments, prepare, text.workspace, inplace=shared, parts=text.parts)


@dataclass(frozen=True, slots=True)
class Text:
    """entry: the function that is called. parts: those that it calls. workspace: bytes it wants."""

    entry: str
    parts: tuple[str, ...]
    workspace: int

    @property
    def whole(self) -> str:
        return "\n".join((*self.parts, self.entry))


def emit(
    nest: Nest, entry: str = "kernel", streams: Mapping[str, int] | None = None, shared: Collection[str] = ()
) -> Text:
    """C text of `void entry(void *const *arguments, void *workspace)`.

    Of several nests at the root each becomes a function of its own, which is named after its text. streams: inputs that
    no cache holds beforehand -> elements to fetch ahead. shared: arguments that may lie in the memory of another. They
    are not `restrict`: the compiler keeps the order of their loads and stores.
    """
    e, given = Emitter(streams=streams or {}), dict[str, _Given]()
    for i, b in enumerate((*nest.inputs, *nest.outputs)):
        const = "const " if i < len(nest.inputs) else ""
        name = e.declare(b.name, b.shape, b.dtype, "argument")
        restrict = "" if b.name in shared else "restrict "
        e.line(f"{const}{CTYPE[b.dtype]} *{restrict}{name} = arguments[{i}];")
        given[b.name] = _Given(b.name, b.shape, b.dtype, b.name in shared, e.streams.get(b.name, 0))
    pieces = list(_pieces(nest.body))
    parts: list[str] = []
    if sum(not isinstance(p, Alloc) for p in pieces) < 2:
        e.block(nest.body)
        pieces = []
    for p in pieces:
        if isinstance(p, Alloc):
            e.alloc(p)
            given[p.buffer] = _Given(p.buffer, p.shape, p.dtype)
        else:
            touched = frozenset[str]().union(*(_used(s).buffers for s in p))
            operands = tuple(g for name, g in given.items() if name in touched)
            name, text = _part(p, operands)
            e.line(f"{name}({', '.join(e.buffers[g.name].name for g in operands)});")
            parts.append(text)
    text = f"void {entry}(void *const *arguments, void *workspace) {{\n{e.text()}}}\n"
    return Text(text, tuple(dict.fromkeys(parts)), e.workspace)


def _pieces(body: tuple[Stmt, ...]) -> Iterator[Alloc | Piece]:
    """What stands at the root, in turn: buffers of the workspace, and statements that can be functions of their own. One
    that keeps buffers of its own at the root stays together with what stands beside it."""
    for is_buffer, run in groupby(body, lambda s: isinstance(s, Alloc) and s.scope == "workspace"):
        statements_ = tuple(run)
        if is_buffer:
            yield from (s for s in statements_ if isinstance(s, Alloc))
        elif any(isinstance(s, Alloc) for s in statements_):
            yield tuple(map(Same, statements_))
        else:
            yield from ((Same(s),) for s in statements_)


@dataclass(frozen=True, slots=True)
class _Given:
    """A buffer from outside a part. ahead: elements to fetch ahead, if it comes from memory."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    shared: bool = False
    ahead: int = 0


@lru_cache(maxsize=1024)
def _part(piece: Piece, operands: tuple[_Given, ...]) -> tuple[str, str]:
    """Name and text of the function that a piece becomes. Never inlined: it is the same code in every program."""
    e, body = Emitter(streams={g.name: g.ahead for g in operands if g.ahead}), tuple(s.it for s in piece)
    written = e.stored_in(body)
    parameters = []
    for g in operands:
        name = e.declare(g.name, g.shape, g.dtype, "argument")
        const, restrict = "" if g.name in written else "const ", "" if g.shared else "restrict "
        parameters.append(f"{const}{CTYPE[g.dtype]} *{restrict}{name}")
    e.block(body)
    text = f"({', '.join(parameters)}) {{\n{e.text()}}}\n"
    stem = next((e.buffers[g.name].name for g in operands if g.name in written), "part")
    name = f"{stem}_{sha256(text.encode()).hexdigest()[:16]}"
    return name, f"TW_PART void {name}{text}"


@dataclass(frozen=True, slots=True)
class _Used:
    buffers: frozenset[str]
    fetched: frozenset[str]


@lru_cache(maxsize=1024)
def _used(s: Same[Stmt]) -> _Used:
    """What a statement at the root reads, writes or fetches, its own buffers among it."""
    inside = list(statements((s.it,)))
    fetched = frozenset(x.buffer for x in inside if isinstance(x, Fetch))
    stored = {x.buffer for x in inside if isinstance(x, Store)}
    read = {r.tensor for e, _ in expressions((s.it,)) for r in reads(e)}
    return _Used(fetched | stored | read, fetched)
