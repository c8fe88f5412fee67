"""Loop nest -> C text. Pure: no compiler is called here.

`unroll` loops become straight code, `vector` loops vector operations, register buffers named variables. In straight
code every distinct address is computed once and every element loaded once. What has no vector form runs lane by lane.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import isinf, isnan, prod
from operator import eq, le, lt, ne
from pathlib import Path

from codegen.kernel import Argument, Kernel
from ir.affine import ZERO, Affine, affine, interval, plus, scale
from ir.compute import Dag
from ir.expr import FLOATS, OPERATIONS, Axis, Cast, Const, Expr, Op, Param, Read, axes, dtype_of, walk
from ir.loop import Alloc, For, If, Nest, Stmt, Store

PRELUDE = (Path(__file__).parent / "prelude.h").read_text()

CTYPE = {
    "float16": "_Float16", "float32": "float", "float64": "double", "bool": "uint8_t",
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
INFIX = {"add": "+", "sub": "-", "mul": "*", "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "and": "&&", "or": "||"}
FOLDED: dict[str, Callable[[int, int], bool]] = {"lt": lt, "le": le, "eq": eq, "ne": ne}
HORIZONTAL = {"add": "hadd", "mul": "hmul", "max": "hmax", "min": "hmin"}
VECTOR_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
VECTOR_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
VECTOR_CALL = frozenset({"exp", "tanh", "erf", "sigmoid", "sqrt", "log", "floor", "abs", "max", "min"})
LIBM = {
    "exp": "exp", "log": "log", "sqrt": "sqrt", "tanh": "tanh", "erf": "erf", "sin": "sin", "cos": "cos", "tan": "tan",
    "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh", "acosh": "acosh",
    "atanh": "atanh", "floor": "floor", "ceil": "ceil", "round": "rint", "pow": "pow", "fmod": "fmod",
}  # fmt: skip
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


def kernel(
    nest: Nest, key: str, entry: str, constants: frozenset[str], prepare: tuple[tuple[str, Dag], ...] = ()
) -> Kernel:
    """The function and its calling convention; `constants` names the inputs that are known before run time."""
    roles = [(b, "constant" if b.name in constants else "input") for b in nest.inputs]
    roles += [(b, "output") for b in nest.outputs]
    arguments = tuple(Argument(b.name, b.shape, b.dtype, role) for b, role in roles)  # type: ignore[arg-type]
    source, workspace = emit(nest, entry)
    return Kernel(key, entry, source, arguments, prepare, workspace)


def emit(nest: Nest, entry: str = "kernel") -> tuple[str, int]:
    """C text of `void entry(void *const *arguments, void *workspace)` and the bytes of workspace it wants."""
    e = _Emitter()
    for i, b in enumerate((*nest.inputs, *nest.outputs)):
        const = "const " if i < len(nest.inputs) else ""
        name = e.declare(b.name, b.shape, b.dtype, "argument")
        e.line(f"{const}{CTYPE[b.dtype]} *restrict {name} = arguments[{i}];")
    e.block(nest.body)
    return f"void {entry}(void *const *arguments, void *workspace) {{\n{e.text()}}}\n", e.workspace


@dataclass(frozen=True, slots=True, eq=False)
class _Buffer:
    name: str  # in C
    shape: tuple[int, ...]
    dtype: str
    scope: str
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Vector:
    """The vector loop around a statement: its axis, lanes of a full vector, and how many are active."""

    axis: Axis
    lanes: int
    active: int


@dataclass(frozen=True, slots=True)
class _Value:
    """C text and what it is: "s" scalar, "v" vector of float, "i" vector of int32, "m" vector mask."""

    text: str
    kind: str = "s"


class _NoVector(Exception):
    """This expression has no vector form; it runs lane by lane."""


@dataclass
class _Emitter:
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    buffers: dict[str, _Buffer] = field(default_factory=dict)
    axis_names: dict[Axis, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=lambda: {"arguments", "workspace", *KEYWORDS})
    constants: dict[Axis, int] = field(default_factory=dict)  # unrolled loops: their index here
    pointers: dict[tuple[str, tuple[tuple[Axis, int], ...]], str] = field(default_factory=dict)
    loads: dict[str, _Value] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()  # buffers written in the straight code around: not to be remembered
    vector: _Vector | None = None
    workspace: int = 0
    counter: int = 0
    # by identity: the nest keeps its trees alive, and hashing a tree costs more than emitting it
    forms: dict[tuple[int, int], tuple[Affine, tuple[tuple[int, Expr], ...]]] = field(default_factory=dict)
    kept: list[_Buffer] = field(default_factory=list)  # so that no identity is used twice
    known_axes: dict[int, frozenset[Axis]] = field(default_factory=dict)

    # --- text

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

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
        self.buffers[name] = _Buffer(c_name, shape, dtype, scope, _strides(shape))
        self.kept.append(self.buffers[name])
        return c_name

    def axis(self, a: Axis) -> str:
        if a not in self.axis_names:
            self.axis_names[a] = self.unique(a.name)
        return self.axis_names[a]

    # --- statements

    def block(self, body: tuple[Stmt, ...]) -> None:
        """A C block: what is remembered inside it is forgotten behind it."""
        saved = dict(self.pointers), dict(self.loads), self.stored
        self.loads = {}
        self.stored = frozenset(_stored(body))
        self.straight(body)
        self.pointers, self.loads, self.stored = saved

    def straight(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case Alloc():
                    self.alloc(s)
                case Store():
                    self.store(s)
                case If():
                    self.condition(s)
                case For(_, _, _, "unroll"):
                    self.unroll(s)
                case For(_, _, _, "vector"):
                    self.vectorise(s)
                case For():
                    self.loop(s)

    def alloc(self, a: Alloc) -> None:
        name = self.declare(a.buffer, a.shape, a.dtype, a.scope)
        ctype = CTYPE[a.dtype]
        if a.scope == "workspace":
            self.line(f"{ctype} *restrict {name} = ({ctype} *)((char *)workspace + {self.workspace});")
            self.workspace += -(-_bytes(a) // 64) * 64
        elif a.scope == "stack":
            self.line(f"{ctype} {name}[{max(prod(a.shape), 1)}] __attribute__((aligned(64)));")
        else:
            vector = a.shape[-1] > 1
            kind = f"v{a.shape[-1]}f" if vector else ctype
            names = [f"{name}{suffix}" for suffix in _suffixes(a.shape[:-1])]
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
        if s.kind == "parallel" and self.parallel_depth == 0:
            together = _collapsible(s)
            clause = f" collapse({together})" if together > 1 else ""
            self.line(f"#pragma omp parallel for{clause} schedule(static)")
        var = self.axis(s.var)
        self.line(f"for (int64_t {var} = 0; {var} < {self.scalar(s.extent)}; {var}++) {{")
        self.parallel_depth += s.kind == "parallel"
        self.nested(s.body)
        self.parallel_depth -= s.kind == "parallel"
        self.line("}")

    parallel_depth: int = 0

    def unroll(self, s: For) -> None:
        for i in range(_constant(s.extent)):
            self.constants[s.var] = i
            self.straight(s.body)
        del self.constants[s.var]

    def vectorise(self, s: For) -> None:
        self.vector = _Vector(s.var, s.var.extent, _constant(s.extent))
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
        before = len(self.lines), self.depth, self.vector, dict(self.pointers), dict(self.loads)
        try:
            self.store_vector(s, target, self.vector)
        except _NoVector:  # found out half way: take back what was written
            written, self.depth, self.vector, self.pointers, self.loads = before
            del self.lines[written:]
            self.store_lanes(s, target, self.vector)

    def store_vector(self, s: Store, target: _Buffer, v: _Vector) -> None:
        if target.dtype != "float32" or v.lanes not in (4, 8, 16):
            raise _NoVector
        if not any(self.mentions(i, v.axis) for i in s.index):
            self.store_across(s, target, v)
        elif target.scope == "register":
            self.line(f"{self.register(target, s.index[:-1])} = {self.as_vector(self.value(s.value))};")
        else:
            form, rest = self.offset(s.buffer, s.index)
            if rest or form.coefficient(v.axis) != 1:
                raise _NoVector
            value = self.as_vector(self.value(s.value))
            at = self.address(target, form, v.axis)
            if v.active == v.lanes:
                self.line(f"*(u{v.lanes}f *)({at}) = {value};")
            else:
                self.line(f"tw_store{v.lanes}({at}, {value}, {v.active});")

    def store_across(self, s: Store, target: _Buffer, v: _Vector) -> None:
        """s = s + e over lanes      -->      s = s + tw_hadd(e)"""
        match s.value:
            case Op(name, (Read(buffer, index, _), e)) if name in HORIZONTAL and (buffer, index) == (s.buffer, s.index):
                if v.active != v.lanes:
                    raise _NoVector
                across = f"tw_{HORIZONTAL[name]}{v.lanes}({self.as_vector(self.value(e))})"
                place = self.place(target, s)
                self.line(f"{place} = {_combine(name, target.dtype, place, across)};")
            case _:
                raise _NoVector

    def store_lanes(self, s: Store, target: _Buffer, v: _Vector) -> None:
        """One lane after the other: always right, never fast."""
        var = self.axis(v.axis)
        self.vector = None
        saved_loads, saved_pointers, self.loads = self.loads, dict(self.pointers), {}
        self.line(f"for (int {var} = 0; {var} < {v.active}; {var}++) {{")
        self.depth += 1
        self.line(f"{self.place(target, s)} = {self.scalar(s.value)};")
        self.depth -= 1
        self.line("}")
        self.loads, self.pointers, self.vector = saved_loads, saved_pointers, v

    def place(self, target: _Buffer, s: Store) -> str:
        """The element a scalar store writes."""
        if target.scope == "register":
            return self.register_element(target, s.index)
        form, rest = self.offset(s.buffer, s.index)
        return self.element(target, form, rest)

    # --- addresses

    def offset(self, buffer: str, index: tuple[Expr, ...]) -> tuple[Affine, tuple[tuple[int, Expr], ...]]:
        """Row-major offset: its linear part, and (stride, index) for the indices that are not linear."""
        b = self.buffers[buffer]
        key = (id(b), id(index))
        known = self.forms.get(key)
        if known is None:
            known = self.forms[key] = _linear(index, b.strides)
        form, rest = known
        if not self.constants:
            return form, rest
        constant, terms = form.constant, []
        for a, c in form.terms:
            if a in self.constants:
                constant += c * self.constants[a]
            else:
                terms.append((a, c))
        return Affine(tuple(terms), constant), rest

    def address(self, b: _Buffer, form: Affine, lane: Axis | None) -> str:
        """`pointer + constant`, the pointer set up once for all accesses that share their moving part."""
        terms = tuple(t for t in form.terms if t[0] != lane) if lane is not None else form.terms
        if not terms:
            base = b.name
        else:
            key = (b.name, terms)
            if key not in self.pointers:
                moving = " + ".join(self.axis(a) if c == 1 else f"{self.axis(a)} * {c}" for a, c in terms)
                self.pointers[key] = self.fresh("p")
                const = "" if b.scope in ("stack", "workspace") or b.name in self.stored_names() else "const "
                self.line(f"{const}{CTYPE[b.dtype]} *{self.pointers[key]} = {b.name} + ({moving});")
            base = self.pointers[key]
        return f"{base} + {form.constant}" if form.constant else base

    def stored_names(self) -> set[str]:
        return {self.buffers[n].name for n in self.stored if n in self.buffers}

    def element(self, b: _Buffer, form: Affine, rest: tuple[tuple[int, Expr], ...]) -> str:
        parts = [self.axis(a) if c == 1 else f"{self.axis(a)} * {c}" for a, c in form.terms]
        parts += [f"{self.scalar(i)} * {stride}" if stride != 1 else self.scalar(i) for stride, i in rest]
        if form.constant or not parts:
            parts.append(str(form.constant))
        return f"{b.name}[{' + '.join(parts)}]"

    def register(self, b: _Buffer, index: tuple[Expr, ...]) -> str:
        at = [self.number(i) for i in index]
        return b.name + "".join(f"_{i}" for i in at)

    def register_element(self, b: _Buffer, index: tuple[Expr, ...]) -> str:
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
        known = self.known_axes.get(id(e))
        if known is None:
            known = self.known_axes[id(e)] = frozenset(axes(e))
        return axis in known

    # --- scalar expressions

    def scalar(self, e: Expr) -> str:
        match e:
            case Const(value, dtype):
                return _literal(value, dtype)
            case Axis():
                return str(self.constants[e]) if e in self.constants else self.axis(e)
            case Read(tensor, index, _):
                return self.scalar_read(e, tensor, index)
            case Cast(dtype, arg):
                return _cast(dtype, dtype_of(arg), self.scalar(arg))
            case Op("select", (c, then, otherwise)):
                test = self.scalar(c)
                if test in ("0", "1"):
                    return self.scalar(then if test == "1" else otherwise)
                return f"({test} ? {self.scalar(then)} : {self.scalar(otherwise)})"
            case Op("floordiv" | "mod" as name, (a, Const(n, "int64"))) if _natural(a) and n > 0:
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
        return _scalar_operation(name, dtype_of(args[0]), texts)

    def scalar_read(self, e: Expr, tensor: str, index: tuple[Expr, ...]) -> str:
        b = self.buffers[tensor]
        if b.scope == "register":
            return self.register_element(b, index)
        form, rest = self.offset(tensor, index)
        return self.element(b, form, rest)

    # --- vector expressions

    def as_vector(self, v: _Value) -> str:
        assert self.vector is not None
        if v.kind == "s":
            zero = v.text in ("0.0f", "0")
            return f"(v{self.vector.lanes}f){{}}" if zero else f"tw_splat{self.vector.lanes}({v.text})"
        if v.kind != "v":
            raise _NoVector
        return v.text

    def value(self, e: Expr) -> _Value:
        """An expression under the vector loop."""
        v = self.vector
        assert v is not None
        if isinstance(e, Read):
            return self.read(e, v)
        if not self.mentions(e, v.axis):
            return self.invariant(e)
        match e:
            case Op("select", (c, then, otherwise)):
                return self.selection(c, then, otherwise, v)
            case Op(name, args):
                return self.operation(name, args, v)
            case Axis():
                return _Value(f"tw_iota{v.lanes}()", "i")
            case Cast("float32", arg) if dtype_of(arg) == "float32":
                return self.value(arg)
            case _:
                raise _NoVector

    def invariant(self, e: Expr) -> _Value:
        """The same for all lanes: computed once."""
        if isinstance(e, Const | Axis):
            return _Value(self.scalar(e))
        if dtype_of(e) != "float32":
            return _Value(self.scalar(e))
        text = self.scalar(e)
        if any(isinstance(n, Read) and n.tensor in self.stored for n in walk(e)):
            return _Value(text)
        if text not in self.loads:
            name = self.fresh("t")
            self.line(f"float {name} = {text};")
            self.loads[text] = _Value(name)
        return self.loads[text]

    def read(self, e: Read, v: _Vector) -> _Value:
        b = self.buffers[e.tensor]
        if b.scope == "register":
            if b.shape[-1] == v.lanes and self.mentions(e.index[-1], v.axis):
                return _Value(self.register(b, e.index[:-1]), "v")
            return _Value(self.register_element(b, e.index))
        form, rest = self.offset(e.tensor, e.index)
        step = form.coefficient(v.axis)
        if any(self.mentions(i, v.axis) for _, i in rest):
            raise _NoVector
        if step == 0:
            return self.broadcast(e, b, form, rest)
        if step != 1 or b.dtype != "float32":
            raise _NoVector
        return self.load(e, b, form, rest, v)

    def broadcast(self, e: Read, b: _Buffer, form: Affine, rest: tuple[tuple[int, Expr], ...]) -> _Value:
        text = self.element(b, form, rest) if rest else f"*({self.address(b, form, None)})"
        if b.dtype != "float32":
            return _Value(text)
        return self.remember(e.tensor, text, f"float {{}} = {text};", "s")

    def load(self, e: Read, b: _Buffer, form: Affine, rest: tuple[tuple[int, Expr], ...], v: _Vector) -> _Value:
        if rest:
            first = Affine(tuple(t for t in form.terms if t[0] != v.axis), form.constant)
            at = f"&{self.element(b, first, rest)}"
        else:
            at = self.address(b, form, v.axis)
        full = v.active == v.lanes or self.padded(e, b, v)
        text = f"*(const u{v.lanes}f *)({at})" if full else f"tw_load{v.lanes}({at}, {v.active})"
        return self.remember(e.tensor, text, f"v{v.lanes}f {{}} = {text};", "v")

    def remember(self, tensor: str, text: str, declaration: str, kind: str) -> _Value:
        if tensor in self.stored:
            return _Value(text, kind)
        if text not in self.loads:
            name = self.fresh("t")
            self.line(declaration.format(name))
            self.loads[text] = _Value(name, kind)
        return self.loads[text]

    def padded(self, e: Read, b: _Buffer, v: _Vector) -> bool:
        """The inactive lanes still lie inside the same row of the buffer."""
        last = affine(e.index[-1])
        if last is None:
            return False
        moving = [a for a, _ in last.terms if a not in self.constants]
        at = last.constant + sum(c * self.constants.get(a, 0) for a, c in last.terms)
        return moving == [v.axis] and at + v.lanes <= b.shape[-1]

    def selection(self, c: Expr, then: Expr, otherwise: Expr, v: _Vector) -> _Value:
        match c:
            case Op("lt", (Axis() as lane, Const(n, _))) if lane == v.axis:
                return self.first_lanes(int(n), then, otherwise, v)
        if not self.mentions(c, v.axis):
            return self.branch(c, then, otherwise, v)
        if any(isinstance(n, Read) and self.buffers[n.tensor].scope != "register" and self.mentions(n, v.axis)
               for side in (then, otherwise) for n in walk(side)):  # fmt: skip
            raise _NoVector  # a guarded load must not touch what its guard rules out
        mask = self.value(c)
        if mask.kind != "m":
            raise _NoVector
        a, b = self.as_vector(self.value(then)), self.as_vector(self.value(otherwise))
        return _Value(f"tw_select{v.lanes}({mask.text}, {a}, {b})", "v")

    def first_lanes(self, n: int, then: Expr, otherwise: Expr, v: _Vector) -> _Value:
        self.vector = replace(v, active=n)
        new = self.as_vector(self.value(then))
        self.vector = v
        return _Value(f"tw_blend{v.lanes}({new}, {self.as_vector(self.value(otherwise))}, {n})", "v")

    def branch(self, c: Expr, then: Expr, otherwise: Expr, v: _Vector) -> _Value:
        """A condition that all lanes share: loads happen only on the side that is taken."""
        test = self.scalar(c)
        if test in ("1", "0"):
            return self.value(then if test == "1" else otherwise)
        name = self.fresh("t")
        self.line(f"v{v.lanes}f {name};")
        for head, side in ((f"if ({test}) {{", then), ("} else {", otherwise)):
            self.line(head)
            self.depth += 1
            saved = dict(self.pointers), dict(self.loads)
            self.line(f"{name} = {self.as_vector(self.value(side))};")
            self.pointers, self.loads = saved
            self.depth -= 1
        self.line("}")
        return _Value(name, "v")

    def operation(self, name: str, args: tuple[Expr, ...], v: _Vector) -> _Value:
        if name in VECTOR_COMPARE or name in ("and", "or", "not"):
            return self.mask(name, args)
        if name in ("max", "min"):
            return self.extreme(name, args, v)
        values = [self.value(a) for a in args]
        if any(x.kind == "i" for x in values):
            if name in ("add", "sub", "mul") and all(x.kind in "is" for x in values):
                return _Value(f"({values[0].text} {INFIX[name]} {_as_int(values[1])})", "i")
            raise _NoVector
        if any(x.kind == "m" for x in values) or dtype_of(args[0]) != "float32":
            raise _NoVector
        if name in VECTOR_INFIX:
            return _Value(f"({values[0].text} {VECTOR_INFIX[name]} {values[1].text})", "v")
        if name == "neg":
            return _Value(f"(-{values[0].text})", "v")
        if name == "rsqrt":
            return _Value(f"(1.f / tw_sqrt{v.lanes}({self.as_vector(values[0])}))", "v")
        if name in VECTOR_CALL:
            return _Value(f"tw_{name}{v.lanes}({', '.join(map(self.as_vector, values))})", "v")
        raise _NoVector

    def extreme(self, name: str, args: tuple[Expr, ...], v: _Vector) -> _Value:
        """max and min; against a constant, which is no NaN, one instruction."""
        a, b = args
        if dtype_of(a) != "float32":
            raise _NoVector
        first, second = self.as_vector(self.value(a)), self.as_vector(self.value(b))
        for one, other, number in ((first, second, b), (second, first, a)):
            if isinstance(number, Const) and not isnan(number.value):
                return _Value(f"tw_at{'least' if name == 'max' else 'most'}{v.lanes}({one}, {other})", "v")
        return _Value(f"tw_{name}{v.lanes}({first}, {second})", "v")

    def mask(self, name: str, args: tuple[Expr, ...]) -> _Value:
        values = [self.value(a) for a in args]
        if name in VECTOR_COMPARE:
            if any(x.kind == "m" for x in values) or all(x.kind == "s" for x in values):
                raise _NoVector
            a, b = (_as_int(x) if any(y.kind == "i" for y in values) else x.text for x in values)
            return _Value(f"({a} {VECTOR_COMPARE[name]} {b})", "m")
        if any(x.kind != "m" for x in values):
            raise _NoVector
        if name == "not":
            return _Value(f"(~{values[0].text})", "m")
        return _Value(f"({values[0].text} {'&' if name == 'and' else '|'} {values[1].text})", "m")


def _as_int(v: _Value) -> str:
    return v.text if v.kind == "i" else f"(int32_t)({v.text})"


def _bytes(a: Alloc) -> int:
    from numpy import dtype

    return prod(a.shape) * dtype(a.dtype).itemsize


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def _linear(index: tuple[Expr, ...], strides: tuple[int, ...]) -> tuple[Affine, tuple[tuple[int, Expr], ...]]:
    form, rest = ZERO, []
    for i, stride in zip(index, strides, strict=True):
        part = affine(i)
        if part is None:
            rest.append((stride, i))
        else:
            form = plus(form, scale(part, stride)) or ZERO
    terms = tuple(sorted(form.terms, key=lambda t: t[0].name))
    return Affine(terms, form.constant), tuple(rest)


def _suffixes(shape: tuple[int, ...]) -> Iterator[str]:
    if not shape:
        yield ""
        return
    for i in range(shape[0]):
        for rest in _suffixes(shape[1:]):
            yield f"_{i}{rest}"


def _stored(body: tuple[Stmt, ...]) -> Iterator[str]:
    for s in body:
        match s:
            case Store(buffer, _, _):
                yield buffer
            case For(_, _, inner, _):
                yield from _stored(inner)
            case If(_, then, orelse):
                yield from _stored(then)
                yield from _stored(orelse)
            case Alloc():
                pass


def _collapsible(s: For) -> int:
    """How many perfectly nested parallel loops stand here, with extents that do not depend on each other."""
    n = 1
    while len(s.body) == 1 and isinstance(s.body[0], For) and s.body[0].kind == "parallel":
        s = s.body[0]
        if not isinstance(s.extent, Const):
            break
        n += 1
    return n


def _constant(e: Expr) -> int:
    assert isinstance(e, Const), "an unrolled or vector loop has a constant extent"
    return int(e.value)


@cache
def _natural(e: Expr) -> bool:
    """An index known not to be negative: C division is floor division."""
    low_high = interval(e)
    return low_high is not None and low_high[0] >= 0


def _literal(value: float, dtype: str) -> str:
    if dtype == "bool":
        return "1" if value else "0"
    if dtype not in FLOATS:
        return _integer(int(value), dtype)
    if isnan(value) or isinf(value):
        special = '__builtin_nan("")' if isnan(value) else "__builtin_inf()"
        return f"(({CTYPE[dtype]}){'-' if value < 0 else ''}{special})"
    text = float(value).hex() if dtype == "float64" else repr(float(value))
    text = {"float32": f"{text}f", "float64": text}.get(dtype, f"({CTYPE[dtype]}){text}")
    return f"({text})" if text.startswith(("-", "(")) else text


def _integer(value: int, dtype: str) -> str:
    if dtype == "int64":
        if value == -(2**63):
            return "INT64_MIN"
        text = str(value) if abs(value) < 2**31 else f"{value}LL"
        return text if value >= 0 else f"({text})"
    if dtype == "uint64":
        return f"{value}ULL"
    return f"(({CTYPE[dtype]}){value})"


def _cast(dtype: str, source: str, text: str) -> str:
    if dtype == source:
        return text
    if dtype == "bool":
        return f"(({text}) != 0)"
    return f"(({CTYPE[dtype]})({text}))"


def _combine(name: str, dtype: str, a: str, b: str) -> str:
    return _scalar_operation(name, dtype, [a, b])


def _scalar_operation(name: str, dtype: str, args: list[str]) -> str:
    """One operation in C, result in the type that `ir.expr` gives it."""
    floating = dtype in FLOATS
    text = _operation_text(name, dtype, args, floating)
    narrow = dtype in ("float16", "int8", "uint8", "int16", "uint16", "uint32", "int32")
    if narrow and OPERATIONS[name].result == "same":
        return f"(({CTYPE[dtype]}){text})"
    return text


def _operation_text(name: str, dtype: str, args: list[str], floating: bool) -> str:
    suffix = "f" if dtype == "float32" else ""
    if name in INFIX:
        return f"({args[0]} {INFIX[name]} {args[1]})"
    match name:
        case "div":
            return f"({args[0]} / {args[1]})" if floating else f"({args[1]} ? {args[0]} / {args[1]} : 0)"
        case "floordiv":
            return f"floor{suffix}({args[0]} / {args[1]})" if floating else _floordiv(args)
        case "mod":
            return f"tw_fmod_floor({args[0]}, {args[1]})" if floating else _mod(args)
        case "fmod" if not floating:
            return f"({args[0]} % {args[1]})"
        case "max" | "min":
            if floating:
                return f"tw_{name}{suffix}({args[0]}, {args[1]})"
            return f"({args[0]} {'>' if name == 'max' else '<'} {args[1]} ? {args[0]} : {args[1]})"
        case "neg":
            return f"(-{args[0]})"
        case "not":
            return f"(!{args[0]})"
        case "abs":
            return f"fabs{suffix}({args[0]})" if floating else f"({args[0]} < 0 ? -{args[0]} : {args[0]})"
        case "isnan":
            return f"({args[0]} != {args[0]})"
        case "rsqrt":
            return f"(1 / sqrt{suffix}({args[0]}))"
        case "sigmoid":
            return f"(1 / (1 + exp{suffix}(-{args[0]})))"
        case _:
            return f"{LIBM[name]}{suffix}({', '.join(args)})"


def _floordiv(args: list[str]) -> str:
    """Index arithmetic is never negative, but a user's integer tensor may be."""
    return f"tw_floordiv({args[0]}, {args[1]})"


def _mod(args: list[str]) -> str:
    return f"tw_mod({args[0]}, {args[1]})"
