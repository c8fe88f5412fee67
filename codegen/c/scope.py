"""Names, buffers, addresses and scalar expressions: what a piece of C text is written with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from operator import eq, le, lt, ne
from typing import NamedTuple

from codegen.c.scalar import CTYPE, cast, literal, operation
from ir.affine import ZERO, Affine, affine, interval, plus, scale
from ir.expr import Axis, Cast, Const, Expr, Op, Param, Read, children, dtype_of

NONE: frozenset[Axis] = frozenset()
FOLDED: dict[str, Callable[[int, int], bool]] = {"lt": lt, "le": le, "eq": eq, "ne": ne}
KEYWORDS = frozenset(
    [
        "auto",
        "break",
        "case",
        "char",
        "const",
        "continue",
        "default",
        "do",
        "double",
        "else",
        "enum",
        "extern",
        "float",
        "for",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "register",
        "restrict",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "typedef",
        "union",
        "unsigned",
        "void",
        "volatile",
        "while",
    ]
)


Moving = tuple[tuple[Axis, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    name: str  # in C
    shape: tuple[int, ...]
    dtype: str
    scope: str
    strides: tuple[int, ...]


class Value(NamedTuple):
    """C text and what it is: "s" scalar, "v" vector of float, "i" vector of int32, "m" vector mask."""

    text: str
    kind: str = "s"


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One element of a buffer, taken apart once for all iterations of the unrolled loops around it.

    moving: (axis, stride) of loops, without the lane. unrolled: the same of unrolled loops. lane: stride along the
    vector loop's axis. rest: (stride, index) for indices that are not linear.
    """

    buffer: Buffer
    moving: Moving
    unrolled: tuple[tuple[Axis, int], ...]
    constant: int
    lane: int
    rest: tuple[tuple[int, Expr], ...]


@dataclass(slots=True, eq=False)
class Anchor:
    """Where pointers are set up: at the head of a loop, or behind a local buffer. All code that follows shares them.

    lines: the text there. steps: of a loop without loops inside, what each turn adds to its pointers.
    """

    lines: list[str]
    depth: int
    pointers: dict[tuple[str, Moving], str] = field(default_factory=dict)
    before: list[str] | None = None  # text in front of such a loop
    steps: list[tuple[str, int, str]] = field(default_factory=list)  # (pointer, stride, its C type)


@dataclass
class Scope:
    """The text so far and what is known where it ends: names, pointers that were set up, elements that were loaded."""

    lines: list[str | list[str]] = field(default_factory=list)
    depth: int = 1
    buffers: dict[str, Buffer] = field(default_factory=dict)
    axis_names: dict[Axis, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: {"arguments", "workspace", *KEYWORDS})
    constants: dict[Axis, int] = field(default_factory=dict)  # unrolled loops: their index here
    anchors: list[Anchor] = field(default_factory=list)
    levels: dict[Axis, int] = field(default_factory=dict)  # loop -> number of the anchor at its head
    homes: dict[str, int] = field(default_factory=dict)  # local buffer -> number of the anchor behind it
    used: set[Axis] = field(default_factory=set)  # loops whose index appears in the text
    written: frozenset[str] = frozenset()  # all buffers that the nest writes
    loads: dict[str, Value] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()  # buffers written in the straight code around: not to be remembered
    workspace: int = 0
    counter: int = 0
    # by identity: the nest keeps its trees alive, and hashing a tree costs more than emitting it
    accesses: dict[tuple[int, int, Axis | None], Access] = field(default_factory=dict)
    kept: list[Buffer] = field(default_factory=list)  # so that no identity is used twice
    known_axes: dict[int, frozenset[Axis]] = field(default_factory=dict)
    known_reads: dict[int, frozenset[str]] = field(default_factory=dict)
    entries: dict[tuple[int, tuple[int, ...]], str] = field(default_factory=dict)
    margins: dict[int, Affine | None] = field(default_factory=dict)  # of comparisons: what must not be negative
    passing: list[Expr] = field(default_factory=list)  # trees that are not the nest's, kept alive for the same reason

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def text(self) -> str:
        flat = (x for part in self.lines for x in ([part] if isinstance(part, str) else part))
        return "\n".join(flat) + "\n"

    def anchor(self, before: list[str] | None = None) -> None:
        lines: list[str] = []
        self.lines.append(lines)
        self.anchors.append(Anchor(lines, self.depth, before=before))

    def forget(self, mark: int) -> None:
        """Go back to where so many loads were known: the table only grows."""
        while len(self.loads) > mark:
            self.loads.popitem()

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{stem}{self.counter}"

    def unique(self, name: str) -> str:
        """A C identifier for any name."""
        stem = re.sub(r"[^A-Za-z0-9_]", "_", name)[:40] or "x"
        stem = f"x{stem}" if stem[0].isdigit() or stem in KEYWORDS else stem
        out, n = stem, 1
        while out in self.taken:
            n += 1
            out = f"{stem}_{n}"
        self.taken.add(out)
        return out

    def declare(self, name: str, shape: tuple[int, ...], dtype: str, scope: str) -> str:
        old = self.buffers.get(name)
        c_name = old.name if old is not None and scope in ("register", "stack") else self.unique(name)
        self.buffers[name] = Buffer(c_name, shape, dtype, scope, strides_of(shape))
        self.kept.append(self.buffers[name])
        return c_name

    def axis(self, a: Axis) -> str:
        if a not in self.axis_names:
            self.axis_names[a] = self.unique(a.name)
        self.used.add(a)
        return self.axis_names[a]

    def access(self, buffer: str, index: tuple[Expr, ...], lane: Axis | None = None) -> Access:
        b = self.buffers[buffer]
        key = (id(b), id(index), lane)
        known = self.accesses.get(key)
        if known is None:
            known = self.accesses[key] = self.taken_apart(b, index, lane)
        return known

    def taken_apart(self, b: Buffer, index: tuple[Expr, ...], lane: Axis | None) -> Access:
        """Row-major offset by who adds to it."""
        form, rest = linear(index, b.strides)
        moving = tuple((a, c) for a, c in form.terms if a != lane and a not in self.constants)
        unrolled = tuple((a, c) for a, c in form.terms if a in self.constants)
        return Access(b, moving, unrolled, form.constant, form.coefficient(lane) if lane else 0, rest)

    def fixed(self, x: Access) -> int:
        """The constant part of the offset in this iteration of the unrolled loops."""
        at = x.constant
        for a, c in x.unrolled:
            at += c * self.constants[a]
        return at

    def address(self, x: Access, further: int = 0) -> str:
        """`pointer + constant`, the pointer set up once for all accesses that share their moving part."""
        at = self.fixed(x) + further
        base = self.row(x) if x.rest else self.pointer(x.buffer, x.moving)
        return f"{base} + {at}" if at else base

    def row(self, x: Access) -> str:
        """A pointer for the accesses of one piece of straight code that share what is not linear: see `loads`."""
        text = f"&{self.element(x, 0)}"
        if text not in self.loads:
            name = self.fresh("p")
            self.line(f"{self.pointee(x.buffer)}{name} = {text};")
            self.loads[text] = Value(name)
        return self.loads[text].text

    def pointee(self, b: Buffer) -> str:
        const = "const " if b.scope == "argument" and b.name not in self.written else ""
        return f"{const}{CTYPE[b.dtype]} *"

    def pointer(self, b: Buffer, moving: Moving) -> str:
        """p = b + i * 64 + k * 8      -->      for (i) { q = b + i * 64; p = q; for (k) { .. p += 8 } }"""
        if not moving:
            return b.name
        level = max(self.homes.get(b.name, 0), *(self.levels[a] for a, _ in moving))
        anchor = self.anchors[level]
        known = anchor.pointers.get((b.name, moving))
        if known is not None:
            return known
        here = [(a, c) for a, c in moving if self.levels[a] == level]
        if here and len(here) < len(moving):
            start = self.pointer(b, tuple(x for x in moving if x not in here))
        else:
            start, here = b.name, list(moving)
        name, kind = self.fresh("p"), self.pointee(b)
        anchor.pointers[b.name, moving] = name
        if anchor.before is not None and len(here) == 1 and self.levels[here[0][0]] == level:
            anchor.before.append("  " * (anchor.depth - 1) + f"{kind}{name} = {start};")
            anchor.steps.append((name, here[0][1], kind))
        else:
            anchor.lines.append("  " * anchor.depth + f"{kind}{name} = {start} + {self.sum_of(here)};")
        return name

    def sum_of(self, moving: Iterable[tuple[Axis, int]]) -> str:
        return " + ".join(self.axis(a) if c == 1 else f"{self.axis(a)} * {c}" for a, c in moving)

    def element(self, x: Access, at: int | None = None) -> str:
        """With another constant part, if one is given."""
        parts = [self.sum_of(x.moving)] if x.moving else []
        parts += [f"{self.scalar(i)} * {stride}" if stride != 1 else self.scalar(i) for stride, i in x.rest]
        at = self.fixed(x) if at is None else at
        if at or not parts:
            parts.append(str(at))
        return f"{x.buffer.name}[{' + '.join(parts)}]"

    def register(self, b: Buffer, index: tuple[Expr, ...]) -> str:
        at = [self.number(i) for i in index]
        return b.name + "".join(f"_{i}" for i in at)

    def register_element(self, b: Buffer, index: tuple[Expr, ...]) -> str:
        name = self.register(b, index[:-1])
        return f"{name}[{self.scalar(index[-1])}]" if b.shape[-1] > 1 else name

    def number(self, e: Expr) -> int:
        if isinstance(e, Axis):
            return self.constants[e]
        if isinstance(e, Const):
            return int(e.value)
        form = affine(e)
        assert form is not None
        return form.constant + sum(c * self.constants[a] for a, c in form.terms)

    def mentions(self, e: Expr, axis: Axis) -> bool:
        return axis in self.axes_of(e)

    def axes_of(self, e: Expr) -> frozenset[Axis]:
        found = self.known_axes.get(id(e))
        if found is None:
            own: frozenset[Axis] = frozenset((e,)) if isinstance(e, Axis) else NONE
            found = self.known_axes[id(e)] = own.union(*map(self.axes_of, children(e)))
        return found

    def reads_of(self, e: Expr) -> frozenset[str]:
        """Names of the tensors."""
        found = self.known_reads.get(id(e))
        if found is None:
            own: frozenset[str] = frozenset((e.tensor,)) if isinstance(e, Read) else frozenset()
            found = self.known_reads[id(e)] = own.union(*map(self.reads_of, children(e)))
        return found

    def here(self, *trees: Expr) -> tuple[int, ...]:
        """Where the unrolled loops that some trees depend on stand."""
        return tuple(self.constants[a] for e in trees for a in self.axes_of(e) if a in self.constants)

    def is_settled(self, e: Expr) -> bool:
        """A number, by unrolled loops alone: such as an entry of a table."""
        return not self.reads_of(e) and self.axes_of(e) <= self.constants.keys()

    def settle(self, e: Expr) -> str:
        """The text of what is settled: a table of thirty entries is one long choice, and is asked for each of them."""
        key = id(e), self.here(e)
        if key not in self.entries:
            entry = e
            while isinstance(entry, Op) and entry.name == "select":
                entry = entry.args[1 if self.holds(entry.args[0]) else 2]
            self.entries[key] = self.scalar(entry)
        return self.entries[key]

    def holds(self, c: Expr) -> bool:
        """A settled condition."""
        match c:
            case Op("eq", (Axis() as a, Const(n, _))):
                return self.constants[a] == n
            case Op("and", (a, b)):
                return self.holds(a) and self.holds(b)
            case Op("ne", (entry, Const() as n)):
                return self.settle(entry) != self.scalar(n)
            case _:
                return self.scalar(c) != "0"

    def scalar(self, e: Expr) -> str:
        match e:
            case Const(value, dtype):
                return literal(value, dtype)
            case Axis():
                return str(self.constants[e]) if e in self.constants else self.axis(e)
            case Read(tensor, index, _):
                return self.scalar_read(e, tensor, index)
            case Cast(dtype, arg):
                return cast(dtype, dtype_of(arg), self.scalar(arg))
            case Op("select", (c, then, otherwise)):
                test = self.scalar(c)
                if test in ("0", "1"):
                    return self.scalar(then if test == "1" else otherwise)
                return f"({test} ? {self.scalar(then)} : {self.scalar(otherwise)})"
            case Op("floordiv" | "mod" as name, (a, Const(n, "int64"))) if natural(a) and n > 0:
                return f"({self.scalar(a)} {'/' if name == 'floordiv' else '%'} {n})"
            case Op(name, args):
                return self.scalar_operation(name, args)
            case Param():
                raise AssertionError("a combiner's parameter outside its combiner")

    def scalar_operation(self, name: str, args: tuple[Expr, ...]) -> str:
        """Conditions on unrolled indices are known here: the side that is not taken is never written."""
        texts = [self.scalar(a) for a in args]
        if name in FOLDED and all(t.isdigit() for t in texts):
            return str(int(FOLDED[name](*map(int, texts))))
        if name in ("and", "or") and (fixed := "0" if name == "and" else "1") in texts:
            return fixed
        if name in ("and", "or") and len(rest := [t for t in texts if not t.isdigit()]) < 2:
            return rest[0] if rest else texts[0]
        return operation(name, dtype_of(args[0]), texts)

    def scalar_read(self, e: Expr, tensor: str, index: tuple[Expr, ...]) -> str:
        b = self.buffers[tensor]
        if b.scope == "register":
            return self.register_element(b, index)
        return self.element(self.access(tensor, index))


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def linear(index: tuple[Expr, ...], strides: tuple[int, ...]) -> tuple[Affine, tuple[tuple[int, Expr], ...]]:
    form, rest = ZERO, []
    for i, stride in zip(index, strides, strict=True):
        part = affine(i)
        if part is None:
            rest.append((stride, i))
        else:
            form = plus(form, scale(part, stride)) or ZERO
    terms = tuple(sorted(form.terms, key=lambda t: t[0].name))
    return Affine(terms, form.constant), tuple(rest)


@cache
def natural(e: Expr) -> bool:
    """An index known not to be negative: C division is floor division."""
    low_high = interval(e)
    return low_high is not None and low_high[0] >= 0
