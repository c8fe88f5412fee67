"""Expressions under a vector loop: one operation for all lanes, or the news that there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan

from codegen.c.scalar import INFIX
from codegen.c.scope import Access, Buffer, Scope, Value
from ir.affine import Affine, affine, bounds, expression, plus, scale
from ir.expr import Axis, Cast, Const, Expr, Op, Read, all_of, conjuncts, dtype_of, walk

VECTOR_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
VECTOR_COMPARE = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}
CACHE_LINE = 64  # bytes
ZERO = "0.0f"
VECTOR_CALL = frozenset({"exp", "tanh", "erf", "sigmoid", "sqrt", "log", "floor", "abs", "max", "min"})


@dataclass(frozen=True, slots=True)
class Vector:
    """The vector loop around a statement: its axis, lanes of a full vector, and how many are active."""

    axis: Axis
    lanes: int
    active: int


class NoVector(Exception):
    """This expression has no vector form; it runs lane by lane."""


@dataclass
class Vectors(Scope):
    """Adds the vector loop around the statement, if there is one."""

    vector: Vector | None = None
    streams: Mapping[str, int] = field(default_factory=dict)  # input -> elements to fetch ahead of its loads

    def as_vector(self, v: Value) -> str:
        assert self.vector is not None
        if v.kind == "s":
            zero = v.text in (ZERO, "0")
            return f"(v{self.vector.lanes}f){{}}" if zero else f"tw_splat{self.vector.lanes}({v.text})"
        if v.kind != "v":
            raise NoVector
        return v.text

    def value(self, e: Expr) -> Value:
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
                return Value(f"tw_iota{v.lanes}()", "i")
            case Cast("float32", arg) if dtype_of(arg) == "float32":
                return self.value(arg)
            case _:
                raise NoVector

    def invariant(self, e: Expr) -> Value:
        """The same for all lanes: computed once."""
        if isinstance(e, Const | Axis):
            return Value(self.scalar(e))
        if dtype_of(e) != "float32":
            return Value(self.scalar(e))
        if self.is_settled(e):
            return Value(self.settle(e))
        text = self.scalar(e)
        if self.reads_of(e) & self.stored:
            return Value(text)
        if text not in self.loads:
            name = self.fresh("t")
            self.line(f"float {name} = {text};")
            self.loads[text] = Value(name)
        return self.loads[text]

    def read(self, e: Read, v: Vector) -> Value:
        b = self.buffers[e.tensor]
        if b.scope == "register":
            if b.shape[-1] == v.lanes and self.mentions(e.index[-1], v.axis):
                return Value(self.register(b, e.index[:-1]), "v")
            return Value(self.register_element(b, e.index))
        x = self.access(e.tensor, e.index, v.axis)
        if any(self.mentions(i, v.axis) for _, i in x.rest):
            raise NoVector
        if x.lane == 0:
            return self.broadcast(e, x)
        if b.dtype != "float32" or x.lane not in (1, 2):
            raise NoVector
        return self.load(e, x, v) if x.lane == 1 else self.load_even(e, x, v)

    def broadcast(self, e: Read, x: Access) -> Value:
        text = f"*({self.address(x)})"
        if x.buffer.dtype != "float32":
            return Value(text)
        return self.remember(e.tensor, text, f"float {{}} = {text};", "s")

    def load(self, e: Read, x: Access, v: Vector) -> Value:
        at = self.address(x)
        full = v.active == v.lanes or self.padded(e, x.buffer, v)
        text = f"*(const u{v.lanes}f *)({at})" if full else f"tw_load{v.lanes}({at}, {v.active})"
        known = text in self.loads
        value = self.remember(e.tensor, text, f"v{v.lanes}f {{}} = {text};", "v")
        if e.tensor in self.streams and not known and 4 * self.fixed(x) % CACHE_LINE == 0:
            self.line(f"__builtin_prefetch({self.address(x, self.streams[e.tensor])}, 0, 2);")
        return value

    def load_even(self, e: Read, x: Access, v: Vector) -> Value:
        """Every other element: two loads, woven."""
        at = self.address(x)
        text = f"tw_even{v.lanes}({at})" if v.active == v.lanes else f"tw_even_part{v.lanes}({at}, {v.active})"
        return self.remember(e.tensor, text, f"v{v.lanes}f {{}} = {text};", "v")

    def remember(self, tensor: str, text: str, declaration: str, kind: str) -> Value:
        if tensor in self.stored:
            return Value(text, kind)
        if text not in self.loads:
            name = self.fresh("t")
            self.line(declaration.format(name))
            self.loads[text] = Value(name, kind)
        return self.loads[text]

    def padded(self, e: Read, b: Buffer, v: Vector) -> bool:
        """The inactive lanes still lie inside the same row of the buffer."""
        last = affine(e.index[-1])
        if last is None:
            return False
        moving = [a for a, _ in last.terms if a not in self.constants]
        at = last.constant + sum(c * self.constants.get(a, 0) for a, c in last.terms)
        return moving == [v.axis] and at + v.lanes <= b.shape[-1]

    def selection(self, c: Expr, then: Expr, otherwise: Expr, v: Vector) -> Value:
        """Once for all users in straight code, as loads are: a guarded element serves every row of a transform."""
        if self.is_settled(c):
            return self.value(then if self.holds(c) else otherwise)
        sides = (c, then, otherwise)
        read = frozenset[str]().union(*map(self.reads_of, sides))
        if read & self.stored or any(self.buffers[t].scope == "register" for t in read):
            return self.selected(*sides, v)
        key = f"select {v.active} {[id(e) for e in sides]} {self.here(*sides)}"
        if key not in self.loads:
            self.passing += sides
            value = self.selected(*sides, v)
            if value.kind != "v":
                return value
            if not value.text.isidentifier():
                name = self.fresh("t")
                self.line(f"v{v.lanes}f {name} = {value.text};")
                value = Value(name, "v")
            self.loads[key] = value
        return self.loads[key]

    def selected(self, c: Expr, then: Expr, otherwise: Expr, v: Vector) -> Value:
        match c:
            case Op("lt", (Axis() as lane, Const(n, _))) if lane == v.axis:
                return self.first_lanes(int(n), then, otherwise, v)
        if not self.mentions(c, v.axis):
            return self.branch(c, then, otherwise, v)
        if self.is_window(then, otherwise, v):
            return self.window(c, then, otherwise, v)
        if any(isinstance(n, Read) and self.buffers[n.tensor].scope != "register" and self.mentions(n, v.axis)
               for side in (then, otherwise) if self.reads_of(side) for n in walk(side)):  # fmt: skip
            raise NoVector  # a guarded load must not touch what its guard rules out
        mask = self.value(c)
        if mask.kind != "m":
            raise NoVector
        a, b = self.as_vector(self.value(then)), self.as_vector(self.value(otherwise))
        return Value(f"tw_select{v.lanes}({mask.text}, {a}, {b})", "v")

    def is_window(self, then: Expr, otherwise: Expr, v: Vector) -> bool:
        """A guarded row: adjacent elements where the guard holds, zeros elsewhere."""
        if not isinstance(then, Read) or not isinstance(otherwise, Const) or otherwise.value != 0:
            return False
        b = self.buffers[then.tensor]
        if b.scope == "register" or b.dtype != "float32":
            return False
        x = self.access(then.tensor, then.index, v.axis)
        return x.lane == 1 and not x.rest

    def window(self, c: Expr, then: Expr, otherwise: Expr, v: Vector) -> Value:
        """select(1 <= j and j < n and ok, x[j - 1], 0): where it is ok, the lanes from the first to the last that hold."""
        shared = [k for k in conjuncts(c) if not self.mentions(k, v.axis)]
        lanes = [k for k in conjuncts(c) if self.mentions(k, v.axis)]
        if shared:
            guard, row = all_of(*shared), Op("select", (all_of(*lanes), then, otherwise))
            self.passing += (guard, row)  # known by identity from now on
            return self.branch(guard, row, otherwise, v)
        assert isinstance(then, Read)
        low, high = ["0"], [str(v.active)]
        for k in lanes:
            form = at_least_zero(k)
            if form is None or abs(form.coefficient(v.axis)) != 1:
                raise NoVector
            rising = form.coefficient(v.axis) > 0
            rest = self.settled(form, v.axis)
            if bounds(rest)[0] >= (0 if rising else v.active - 1):
                continue  # for all lanes, always
            text = self.scalar(expression(rest))
            (low if rising else high).append(f"-({text})" if rising else f"({text}) + 1")
        x = self.access(then.tensor, then.index, v.axis)
        if len(low) == len(high) == 1:
            return self.load(then, x, v)
        at = self.address(x)
        text = f"tw_window{v.lanes}({at}, {nested('tw_larger', low)}, {nested('tw_smaller', high)})"
        return self.remember(then.tensor, text, f"v{v.lanes}f {{}} = {text};", "v")

    def always(self, k: Expr) -> bool:
        """A comparison that holds wherever its loops are, those that are unrolled where they stand."""
        if id(k) not in self.margins:
            self.passing.append(k)
            self.margins[id(k)] = at_least_zero(k)
        form = self.margins[id(k)]
        return form is not None and bounds(self.settled(form))[0] >= 0

    def settled(self, form: Affine, without: Axis | None = None) -> Affine:
        """The form without an axis, unrolled loops where they stand."""
        kept = tuple((a, n) for a, n in form.terms if a != without and a not in self.constants)
        return Affine(kept, form.constant + sum(n * self.constants.get(a, 0) for a, n in form.terms if a != without))

    def first_lanes(self, n: int, then: Expr, otherwise: Expr, v: Vector) -> Value:
        self.vector = replace(v, active=n)
        new = self.as_vector(self.value(then))
        self.vector = v
        return Value(f"tw_blend{v.lanes}({new}, {self.as_vector(self.value(otherwise))}, {n})", "v")

    def branch(self, c: Expr, then: Expr, otherwise: Expr, v: Vector) -> Value:
        """A condition that all lanes share: loads happen only on the side that is taken."""
        open_ = [k for k in conjuncts(c) if not self.always(k)]
        test = self.scalar(all_of(*open_)) if open_ else "1"
        if test in ("1", "0"):
            return self.value(then if test == "1" else otherwise)
        name = self.fresh("t")
        self.line(f"v{v.lanes}f {name};")
        for head, side in ((f"if ({test}) {{", then), ("} else {", otherwise)):
            self.line(head)
            self.depth += 1
            known = len(self.loads)
            self.line(f"{name} = {self.as_vector(self.value(side))};")
            self.forget(known)
            self.depth -= 1
        self.line("}")
        return Value(name, "v")

    def operation(self, name: str, args: tuple[Expr, ...], v: Vector) -> Value:
        if name in VECTOR_COMPARE or name in ("and", "or", "not"):
            return self.mask(name, args)
        if name in ("max", "min"):
            return self.extreme(name, args, v)
        values = [self.value(a) for a in args]
        if any(x.kind == "i" for x in values):
            if name in ("add", "sub", "mul") and all(x.kind in "is" for x in values):
                return Value(f"({values[0].text} {INFIX[name]} {as_int(values[1])})", "i")
            raise NoVector
        if any(x.kind == "m" for x in values) or dtype_of(args[0]) != "float32":
            raise NoVector
        if name in VECTOR_INFIX:
            return Value(f"({values[0].text} {VECTOR_INFIX[name]} {values[1].text})", "v")
        if name == "neg":
            return Value(f"(-{values[0].text})", "v")
        if name == "rsqrt":
            return Value(f"(1.f / tw_sqrt{v.lanes}({self.as_vector(values[0])}))", "v")
        if name in VECTOR_CALL:
            return Value(f"tw_{name}{v.lanes}({', '.join(map(self.as_vector, values))})", "v")
        raise NoVector

    def extreme(self, name: str, args: tuple[Expr, ...], v: Vector) -> Value:
        """max and min; against a constant, which is no NaN, one instruction."""
        a, b = args
        if dtype_of(a) != "float32":
            raise NoVector
        first, second = self.as_vector(self.value(a)), self.as_vector(self.value(b))
        for one, other, number in ((first, second, b), (second, first, a)):
            if isinstance(number, Const) and not isnan(number.value):
                return Value(f"tw_at{'least' if name == 'max' else 'most'}{v.lanes}({one}, {other})", "v")
        return Value(f"tw_{name}{v.lanes}({first}, {second})", "v")

    def mask(self, name: str, args: tuple[Expr, ...]) -> Value:
        values = [self.value(a) for a in args]
        if name in VECTOR_COMPARE:
            if any(x.kind == "m" for x in values) or all(x.kind == "s" for x in values):
                raise NoVector
            a, b = (as_int(x) if any(y.kind == "i" for y in values) else x.text for x in values)
            return Value(f"({a} {VECTOR_COMPARE[name]} {b})", "m")
        if any(x.kind != "m" for x in values):
            raise NoVector
        if name == "not":
            return Value(f"(~{values[0].text})", "m")
        return Value(f"({values[0].text} {'&' if name == 'and' else '|'} {values[1].text})", "m")


def at_least_zero(c: Expr) -> Affine | None:
    """A comparison as a linear form that must not be negative: 1 <= j as j - 1, j < n as n - 1 - j."""
    match c:
        case Op("le" | "lt" as name, (a, b)):
            return plus(plus(affine(b), scale(affine(a), -1)), Affine((), -1 if name == "lt" else 0))
        case _:
            return None


def nested(function: str, texts: Sequence[str]) -> str:
    """f(a, f(b, c))"""
    return texts[0] if len(texts) == 1 else f"{function}({texts[0]}, {nested(function, texts[1:])})"


def as_int(v: Value) -> str:
    return v.text if v.kind == "i" else f"(int32_t)({v.text})"
