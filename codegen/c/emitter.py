"""Statements: blocks, loops, unrolled and vectorised code, stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

import numpy as np

from codegen.c.scalar import CTYPE, combine
from codegen.c.scope import Buffer
from codegen.c.vector import CACHE_LINE, ZERO, NoVector, Vector, Vectors
from ir.expr import Const, Expr, Op, Read
from ir.loop import Alloc, Fetch, For, If, Stmt, Store

HORIZONTAL = {"add": "hadd", "mul": "hmul", "max": "hmax", "min": "hmin"}


@dataclass
class Emitter(Vectors):
    """Writes a nest, statement by statement. `workspace`: bytes it wants from the caller."""

    parallel_depth: int = 0
    together: int = 0  # loops that are still to come under one `collapse`
    writes: dict[int, frozenset[str]] = field(default_factory=dict)  # block, by identity -> buffers it writes

    def block(self, body: tuple[Stmt, ...]) -> None:
        """A C block: what is remembered inside it is forgotten behind it."""
        loads, stored, anchors = self.loads, self.stored, len(self.anchors)
        self.loads = {}
        self.stored = self.stored_in(body)
        if not self.anchors:
            self.written = frozenset(self.buffers[b].name for b in self.stored if b in self.buffers)
            self.anchor()
        self.straight(body)
        self.loads, self.stored = loads, stored
        del self.anchors[anchors:]

    def stored_in(self, body: tuple[Stmt, ...]) -> frozenset[str]:
        """Buffers that a block writes, in whatever depth."""
        found = self.writes.get(id(body))
        if found is None:
            found = self.writes[id(body)] = frozenset().union(*map(self.stored_by, body))
        return found

    def stored_by(self, s: Stmt) -> frozenset[str]:
        match s:
            case Store(buffer, _, _):
                return frozenset((buffer,))
            case For(_, _, inner, _):
                return self.stored_in(inner)
            case If(_, then, orelse):
                return self.stored_in(then) | self.stored_in(orelse)
            case Alloc() | Fetch():
                return frozenset()

    def straight(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case Alloc():
                    self.alloc(s)
                case Store():
                    self.store(s)
                case Fetch():
                    self.fetch(s)
                case If():
                    self.condition(s)
                case For(_, _, _, "unroll"):
                    self.unroll(s)
                case For(_, _, _, "vector"):
                    self.vectorise(s)
                case For():
                    self.loop(s)

    def fetch(self, s: Fetch) -> None:
        """Into the second-level cache, line by line."""
        b = self.buffers[s.buffer]
        start, at = self.address(self.access(s.buffer, s.index)), self.fresh("f")
        line = CACHE_LINE // np.dtype(b.dtype).itemsize
        self.line(f"for (int {at} = 0; {at} < {s.elements}; {at} += {line}) __builtin_prefetch({start} + {at}, 0, 2);")

    def alloc(self, a: Alloc) -> None:
        name = self.declare(a.buffer, a.shape, a.dtype, a.scope)
        ctype = CTYPE[a.dtype]
        if a.scope == "workspace":
            self.line(f"{ctype} *restrict {name} = ({ctype} *)((char *)workspace + {self.workspace});")
            self.workspace += -(-_bytes(a) // 64) * 64
        elif a.scope == "stack":
            self.line(f"{ctype} {name}[{max(prod(a.shape), 1)}] __attribute__((aligned(64)));")
            self.homes[name] = len(self.anchors)
            self.anchor()
        else:
            vector = a.shape[-1] > 1
            kind = f"v{a.shape[-1]}f" if vector else ctype
            names = [f"{name}{suffix}" for suffix in suffixes(a.shape[:-1])]
            for i in range(0, len(names), 12):
                self.line(f"{kind} {', '.join(names[i : i + 12])};")

    def condition(self, s: If) -> None:
        test = self.scalar(s.condition)
        if test in ("1", "0"):
            self.straight(s.then if test == "1" else s.orelse)
            return
        self.line(f"if ({test}) {{")
        self.nested(s.then)
        if s.orelse:
            self.line("} else {")
            self.nested(s.orelse)
        self.line("}")

    def nested(self, body: tuple[Stmt, ...]) -> None:
        self.depth += 1
        self.block(body)
        self.depth -= 1

    def loop(self, s: For) -> None:
        n = self.trips(s.extent)
        parallel = s.kind == "parallel"
        if parallel and self.parallel_depth == 0:
            self.together = _collapsible(s)
            clause = f" collapse({self.together})" if self.together > 1 else ""
            self.line(f"#pragma omp parallel for{clause} schedule(static)")
        self.together -= parallel and self.together > 0
        grouped = self.together > 0  # nothing may stand between loops that are collapsed
        before: list[str] = []
        self.lines.append(before)
        head = len(self.lines)
        self.line("for")
        var = self.axis(s.var)
        self.used.discard(s.var)
        self.levels[s.var] = len(self.anchors)
        self.parallel_depth += parallel
        self.depth += 1
        anchors = len(self.anchors)
        if not grouped:
            self.anchor(before if s.kind == "serial" and _innermost(s.body) else None)
        self.block(s.body)
        steps = [] if grouped else self.anchors[anchors].steps
        del self.anchors[anchors:]
        self.depth -= 1
        self.parallel_depth -= parallel
        self.lines[head] = "  " * self.depth + self.head(s, var, n, steps)
        self.line("}")

    def trips(self, extent: Expr) -> str:
        text = self.scalar(extent)
        if isinstance(extent, Const):
            return text
        name = self.fresh("n")
        self.line(f"const int64_t {name} = {text};")
        return name

    def head(self, s: For, var: str, n: str, steps: list[tuple[str, int, str]]) -> str:
        """Counts by a pointer where only pointers move."""
        moved = "".join(f", {p} += {stride}" for p, stride, _ in steps)
        if s.var not in self.used and steps and steps[0][1] > 0:
            pointer, stride, kind = steps[0]
            return f"for ({kind}{pointer}_end = {pointer} + {n} * {stride}; {pointer} < {pointer}_end; {moved[2:]}) {{"
        return f"for (int64_t {var} = 0; {var} < {n}; {var}++{moved}) {{"

    def unroll(self, s: For) -> None:
        self.constants[s.var] = 0
        if self.turned(s, s.body):
            del self.constants[s.var]
            return
        for i in range(constant(s.extent)):
            self.constants[s.var] = i
            self.straight(s.body)
        del self.constants[s.var]

    def turned(self, rows: For, body: tuple[Stmt, ...]) -> bool:
        """y[u, l] = x[l, u] for a few rows u and the lanes l: loaded along u, turned in registers."""
        match body:
            case (For(var, Const(1), inner, "unroll"),):
                self.constants[var] = 0
                done = self.turned(rows, inner)
                del self.constants[var]
                return done
            case (For(lane, extent, (Store(_, _, Read()) as store,), "vector"),):
                return self.turn(rows, Vector(lane, lane.extent, constant(extent)), store)
            case _:
                return False

    def turn(self, rows: For, v: Vector, s: Store) -> bool:
        assert isinstance(s.value, Read)
        target, source = self.buffers[s.buffer], self.buffers[s.value.tensor]
        n = constant(rows.extent)
        plain = all(b.dtype == "float32" and b.scope != "register" for b in (target, source)) and target is not source
        if not plain or v.lanes not in (4, 8, 16) or not 2 <= n <= v.lanes:
            return False
        to, at = self.access(s.buffer, s.index, v.axis), self.access(s.value.tensor, s.value.index, v.axis)
        stride, along = dict(to.unrolled).get(rows.var, 0), dict(at.unrolled).get(rows.var, 0)
        if to.rest or at.rest or to.lane != 1 or along != 1 or at.lane in (0, 1) or stride == 0:
            return False
        part = "" if n == v.lanes == v.active else "_part"
        sizes = f", {n}, {v.active}" if part else ""
        self.line(f"tw_turn{part}{v.lanes}({self.address(at)}, {at.lane}, {self.address(to)}, {stride}{sizes});")
        return True

    def vectorise(self, s: For) -> None:
        self.vector = Vector(s.var, s.var.extent, constant(s.extent))
        if s.var.extent == 1:
            self.vector = None
            self.constants[s.var] = 0
        self.straight(s.body)
        self.vector = None
        self.constants.pop(s.var, None)

    def store(self, s: Store) -> None:
        target = self.buffers[s.buffer]
        if self.vector is None:
            self.line(f"{self.place(target, s)} = {self.scalar(s.value)};")
            return
        written, depth, vector, known = len(self.lines), self.depth, self.vector, len(self.loads)
        try:
            self.store_vector(s, target, vector)
        except NoVector:  # found out half way: take back what was written
            self.depth, self.vector = depth, vector
            del self.lines[written:]
            self.forget(known)
            self.store_lanes(s, target, vector)

    def store_vector(self, s: Store, target: Buffer, v: Vector) -> None:
        if target.dtype != "float32" or v.lanes not in (4, 8, 16):
            raise NoVector
        if target.scope == "register":
            if not self.mentions(s.index[-1], v.axis):
                return self.store_across(s, target, v)
            return self.store_register(s, self.register(target, s.index[:-1]))
        x = self.access(s.buffer, s.index, v.axis)
        if x.lane == 0 and not any(self.mentions(i, v.axis) for _, i in x.rest):
            return self.store_across(s, target, v)
        if x.rest or x.lane != 1:
            raise NoVector
        value = self.as_vector(self.value(s.value))
        at = self.address(x)
        whole = v.active == v.lanes
        self.line(f"*(u{v.lanes}f *)({at}) = {value};" if whole else f"tw_store{v.lanes}({at}, {value}, {v.active});")

    def store_register(self, s: Store, name: str) -> None:
        match s.value:
            case Op("add", (Read(buffer, index, _), e)) if (buffer, index) == (s.buffer, s.index):
                term = self.value(e)
                if term.kind not in "sv":
                    raise NoVector
                if term.text != ZERO:  # which changes nothing but -0, and a sum that began at 0 never is that
                    self.line(f"{name} = ({name} + {term.text});")
            case _:
                self.line(f"{name} = {self.as_vector(self.value(s.value))};")

    def store_across(self, s: Store, target: Buffer, v: Vector) -> None:
        """s = s + e over lanes      -->      s = s + tw_hadd(e)"""
        match s.value:
            case Op(name, (Read(buffer, index, _), e)) if name in HORIZONTAL and (buffer, index) == (s.buffer, s.index):
                if v.active != v.lanes:
                    raise NoVector
                across = f"tw_{HORIZONTAL[name]}{v.lanes}({self.as_vector(self.value(e))})"
                place = self.place(target, s)
                self.line(f"{place} = {combine(name, target.dtype, place, across)};")
            case _:
                raise NoVector

    def store_lanes(self, s: Store, target: Buffer, v: Vector) -> None:
        """One lane after the other: always right, never fast."""
        var = self.axis(v.axis)
        self.vector = None
        saved, self.loads = self.loads, {}
        self.line(f"for (int {var} = 0; {var} < {v.active}; {var}++) {{")
        self.depth += 1
        self.line(f"{self.place(target, s)} = {self.scalar(s.value)};")
        self.depth -= 1
        self.line("}")
        self.loads, self.vector = saved, v

    def place(self, target: Buffer, s: Store) -> str:
        """The element a scalar store writes."""
        if target.scope == "register":
            return self.register_element(target, s.index)
        return self.element(self.access(s.buffer, s.index))


def _bytes(a: Alloc) -> int:
    return prod(a.shape) * np.dtype(a.dtype).itemsize


def suffixes(shape: tuple[int, ...]) -> Iterator[str]:
    if not shape:
        yield ""
        return
    for i in range(shape[0]):
        for rest in suffixes(shape[1:]):
            yield f"_{i}{rest}"


def _innermost(body: tuple[Stmt, ...]) -> bool:
    """No loop is left inside, once unrolled."""
    for s in body:
        match s:
            case For(_, _, inner, kind) if kind in ("serial", "parallel") or not _innermost(inner):
                return False
            case If(_, then, orelse) if not (_innermost(then) and _innermost(orelse)):
                return False
            case _:
                pass
    return True


def _collapsible(s: For) -> int:
    """How many perfectly nested parallel loops stand here, with extents that do not depend on each other."""
    n = 1
    while len(s.body) == 1 and isinstance(s.body[0], For) and s.body[0].kind == "parallel":
        s = s.body[0]
        if not isinstance(s.extent, Const):
            break
        n += 1
    return n


def constant(e: Expr) -> int:
    assert isinstance(e, Const), "an unrolled or vector loop has a constant extent"
    return int(e.value)
