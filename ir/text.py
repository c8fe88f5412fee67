"""The text of a DAG, and back.

    input x0: float32[1, 58, 58, 64]
    constant w0: float32[3, 3, 64, 64]
    conv: float32[i0=1, i1=56, i2=56, i3=64] = sum over (k0=3, k1=3, k2=64): x0[i0, i1 + k0, i2 + k1, k2] * w0[k0, k1, k2, i3]
    relu: float32[i0=1, i1=56, i2=56, i3=64] = max(conv[i0, i1, i2, i3], 0.0)
    output relu

A literal without a dtype is int64 (`3`), float32 (`3.0`, `inf`) or bool (`true`); others say it: `float16(3.0)`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ir.compute import COMBINERS, LEFT, RIGHT, SUM, Combiner, Compute, Dag, Input
from ir.expr import (
    DTYPES,
    FLOATS,
    OPERATIONS,
    Axis,
    Cast,
    Const,
    Expr,
    Op,
    Param,
    Read,
    reads,
)

INFIX = {  # operation -> symbol, binding strength; all group to the left
    "or": ("or", 1), "and": ("and", 2),
    "lt": ("<", 3), "le": ("<=", 3), "eq": ("==", 3), "ne": ("!=", 3),
    "add": ("+", 4), "sub": ("-", 4),
    "mul": ("*", 5), "div": ("/", 5), "floordiv": ("//", 5), "mod": ("%", 5),
}  # fmt: skip
ATOM = 6
SYMBOLS = {symbol: (name, strength) for name, (symbol, strength) in INFIX.items()}
RESERVED = {"and", "or", "true", "false", "inf", "nan", "over"}
PLAIN = re.compile(r"[A-Za-z_][\w.]*\Z", re.ASCII)


# --- text -------------------------------------------------------------------------------------------------------


def dag_text(dag: Dag) -> str:
    """One line a tensor; `parse_dag` reads it back. Raises ValueError when names or dtypes contradict each other."""
    dtypes = {t.name: t.dtype for t in dag.tensors.values()}
    custom = _custom_combiners(dag)
    lines = [_combiner_line(c) for c in custom]
    lines += [
        f"{'constant' if i.constant else 'input'} {_name(i.name)}: {i.dtype}[{_list(i.shape)}]" for i in dag.inputs
    ]
    lines += [_stage_line(c, dtypes) for c in dag.computes]
    lines += [f"output {', '.join(_name(o) for o in dag.outputs)}"]
    return "\n".join(lines) + "\n"


def _custom_combiners(dag: Dag) -> list[Combiner]:
    custom = [c for c in dict.fromkeys(s.combiner for s in dag.computes) if COMBINERS.get(c.name) != c]
    used = {s.combiner.name for s in dag.computes if COMBINERS.get(s.combiner.name) == s.combiner}
    names = [*used, *(c.name for c in custom)]
    doubled = [n for n in names if names.count(n) > 1]
    if doubled:
        raise ValueError(f"two combiners are called {doubled[0]}")
    return custom


def _combiner_line(c: Combiner) -> str:
    kind = "reorders" if c.reorders else "ordered"
    return f"combiner {_name(c.name)} {kind} from {float(c.identity)!r}: {expr_text(c.body)}"


def _stage_line(c: Compute, dtypes: Mapping[str, str]) -> str:
    for r in reads(c.body):
        if dtypes.get(r.tensor) != r.dtype:
            raise ValueError(f"{c.name} reads {r.tensor} as {r.dtype}, but it is {dtypes.get(r.tensor, 'unknown')}")
    over = f"{_name(c.combiner.name)} over ({_axes(c.reduce)}): " if c.reduce or c.combiner != SUM else ""
    return f"{_name(c.name)}: {c.dtype}[{_axes(c.space)}] = {over}{expr_text(c.body)}"


def _axes(axes: tuple[Axis, ...]) -> str:
    return ", ".join(f"{_name(a.name)}={a.extent}" for a in axes)


def _list(items: tuple[int, ...]) -> str:
    return ", ".join(map(str, items))


def _name(name: str) -> str:
    """Quoted unless it reads as one word."""
    return name if PLAIN.match(name) and name not in RESERVED else json.dumps(name)


def expr_text(e: Expr) -> str:
    """An expression as one line, with as few parentheses as its reading needs."""
    return _expr(e)[0]


def _expr(e: Expr) -> tuple[str, int]:
    match e:
        case Const():
            return _literal(e), ATOM
        case Axis(name, _):
            return _name(name), ATOM
        case Param(name, dtype):
            return (name if dtype == "float32" else f"{name}:{dtype}"), ATOM
        case Read(tensor, index, _):
            return f"{_name(tensor)}[{', '.join(map(expr_text, index))}]", ATOM
        case Cast(dtype, arg):
            return f"cast({dtype}, {expr_text(arg)})", ATOM
        case Op(name, (left, right)) if name in INFIX:
            symbol, strength = INFIX[name]
            return f"{_operand(left, strength)} {symbol} {_operand(right, strength + 1)}", strength
        case Op(name, args):
            return f"{name}({', '.join(map(expr_text, args))})", ATOM


def _operand(e: Expr, needed: int) -> str:
    text, strength = _expr(e)
    return text if strength >= needed else f"({text})"


def _literal(c: Const) -> str:
    text = repr(float(c.value)) if c.dtype in FLOATS else repr(int(c.value))
    match c.dtype:
        case "float32" | "int64":
            return text
        case "bool":
            return "true" if c.value else "false"
        case _:
            return f"{c.dtype}({text})"


# --- parse ------------------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r"""\s*(?:(?P<number>-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|inf\b|nan\b))
          |(?P<string>"(?:[^"\\]|\\.)*")|(?P<name>[A-Za-z_][\w.]*)
          |(?P<sign><=|==|!=|//|[-+*/%<=()\[\],:]))""",
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # number, string, name, sign, end
    text: str

    @property
    def name(self) -> str:
        return str(json.loads(self.text)) if self.kind == "string" else self.text


END = Token("end", "end of line")


def parse_dag(text: str) -> Dag:
    """The DAG that `dag_text` wrote. Raises ValueError with the line that it cannot read."""
    known = Known({}, dict(COMBINERS))
    inputs: list[Input] = []
    computes: list[Compute] = []
    outputs: tuple[str, ...] = ()
    for line in filter(str.strip, text.splitlines()):
        p = Parser(line, known)
        match p.word(), p.peek(1).kind:
            case "combiner", "name" | "string":
                c = p.combiner()
                known.combiners[c.name] = c
            case (("input" | "constant"), "name" | "string"):
                inputs.append(p.input())
            case "output", "name" | "string":
                outputs = p.outputs()
            case _:
                computes.append(p.stage())
    return Dag(tuple(inputs), tuple(computes), outputs)


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier lines defined."""

    dtypes: dict[str, str]
    combiners: dict[str, Combiner]


class Parser:
    """One line, by recursive descent."""

    def __init__(self, line: str, known: Known) -> None:
        self.line, self.known, self.at = line, known, 0
        self.tokens = list(self._tokens())
        self.axes: dict[str, Axis] = {}

    def _tokens(self) -> Iterator[Token]:
        end, size = 0, len(self.line.rstrip())
        while end < size:
            found = TOKEN.match(self.line, end)
            if found is None or found.lastgroup is None:
                raise self.wrong(f"a name, a number or a sign at {self.line[end:]!r}")
            end = found.end()
            yield Token(found.lastgroup, found[found.lastgroup])

    def wrong(self, wanted: str) -> ValueError:
        return ValueError(f"expected {wanted} in: {self.line}")

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else END

    def word(self) -> str:
        return self.peek().text

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def accept(self, sign: str) -> bool:
        if self.word() != sign:
            return False
        self.at += 1
        return True

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            raise self.wrong(f"{sign!r} before {self.word()!r}")

    def name(self) -> str:
        token = self.next()
        if token.kind not in ("name", "string"):
            raise self.wrong(f"a name, not {token.text!r},")
        return token.name

    def dtype(self) -> str:
        name = self.name()
        if name not in DTYPES:
            raise self.wrong(f"a dtype, not {name!r},")
        return name

    def integer(self) -> int:
        token = self.next()
        if token.kind != "number" or not token.text.lstrip("-").isdigit():
            raise self.wrong(f"an integer, not {token.text!r},")
        return int(token.text)

    def done(self) -> None:
        if self.peek() is not END:
            raise self.wrong(f"the end before {self.word()!r}")

    def input(self) -> Input:
        constant = self.next().text == "constant"
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        shape: list[int] = []
        while not self.accept("]"):
            shape.append(self.integer())
            self.accept(",")
        self.done()
        self.known.dtypes[name] = dtype
        return Input(name, tuple(shape), dtype, constant)

    def outputs(self) -> tuple[str, ...]:
        self.next()
        names = [self.name()]
        while self.accept(","):
            names.append(self.name())
        self.done()
        return tuple(names)

    def combiner(self) -> Combiner:
        self.next()
        name, reorders = self.name(), self.name() == "reorders"
        self.expect("from")
        start = float(self.next().text)
        self.expect(":")
        body = self.expr()
        self.done()
        return Combiner(name, start, body, reorders)

    def stage(self) -> Compute:
        name = self.name()
        self.expect(":")
        dtype = self.dtype()
        self.expect("[")
        space = self.axis_list("]")
        self.expect("=")
        reduces = self.peek(1).text == "over" and self.peek(2).text == "("
        over, reduce = self.reduction() if reduces else (SUM, ())
        body = self.expr()
        self.done()
        self.known.dtypes[name] = dtype
        return Compute(name, space, body, reduce, over, dtype)

    def reduction(self) -> tuple[Combiner, tuple[Axis, ...]]:
        name = self.name()
        if name not in self.known.combiners:
            raise self.wrong(f"a combiner, not {name!r},")
        self.expect("over")
        self.expect("(")
        axes = self.axis_list(")")
        self.expect(":")
        return self.known.combiners[name], axes

    def axis_list(self, close: str) -> tuple[Axis, ...]:
        out: list[Axis] = []
        while not self.accept(close):
            name = self.name()
            self.expect("=")
            out.append(Axis(name, self.integer()))
            self.accept(",")
        self.axes |= {a.name: a for a in out}
        return tuple(out)

    def expr(self, strength: int = 1) -> Expr:
        """Operands joined by signs of at least `strength`, grouped to the left."""
        left = self.atom()
        while self.peek().kind in ("sign", "name") and SYMBOLS.get(self.word(), ("", 0))[1] >= strength:
            operation, own = SYMBOLS[self.next().text]
            left = Op(operation, (left, self.expr(own + 1)))
        return left

    def atom(self) -> Expr:
        token = self.next()
        if token.text == "(":
            inner = self.expr()
            self.expect(")")
            return inner
        if token.kind == "number":
            return number(token.text)
        if token.kind not in ("name", "string"):
            raise self.wrong(f"an expression before {token.text!r}")
        if token.text in ("true", "false"):
            return Const(token.text == "true", "bool")
        if self.accept("["):
            return self.read(token.name)
        if token.kind == "name" and self.accept("("):
            return self.called(token.text)
        return self.variable(token.name)

    def variable(self, name: str) -> Expr:
        if name in self.axes:
            return self.axes[name]
        if name in (LEFT, RIGHT):
            return Param(name, self.dtype() if self.accept(":") else "float32")
        raise self.wrong(f"an axis of this stage, not {name!r},")

    def read(self, tensor: str) -> Expr:
        if tensor not in self.known.dtypes:
            raise self.wrong(f"a tensor of an earlier line, not {tensor!r},")
        return Read(tensor, self.arguments("]"), self.known.dtypes[tensor])

    def called(self, name: str) -> Expr:
        if name == "cast":
            dtype = self.dtype()
            self.expect(",")
            [arg] = self.arguments(")")
            return Cast(dtype, arg)
        if name in DTYPES:
            literal = self.next().text
            self.expect(")")
            return replace(number(literal), dtype=name)
        if name not in OPERATIONS:
            raise self.wrong(f"an operation, not {name!r},")
        return Op(name, self.arguments(")"))

    def arguments(self, close: str) -> tuple[Expr, ...]:
        out: list[Expr] = []
        while not self.accept(close):
            out.append(self.expr())
            if not self.accept(",") and self.word() != close:
                raise self.wrong(f"',' or {close!r} before {self.word()!r}")
        return tuple(out)


def number(text: str) -> Const:
    if text.lstrip("-").isdigit():
        return Const(int(text), "int64")
    return Const(math.nan if text == "nan" else float(text), "float32")
