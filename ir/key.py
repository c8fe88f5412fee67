"""The text of a DAG, the same text whatever the names, and the key made of it.

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
from hashlib import blake2b

from ir.affine import Affine, affine, expression, simplify
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
    children,
    dtype_of,
    reads,
    rebuild,
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


# --- canonical form ---------------------------------------------------------------------------------------------

COMMUTATIVE = {"add", "mul", "max", "min", "eq", "ne", "and", "or"}
TRIES = 64  # leaves of the search among tensors that look alike; beyond it the given order decides
Colours = Mapping[str, str]


def key(dag: Dag) -> str:
    """Sixteen hexadecimal digits that depend on shapes, dtypes, roles and structure alone."""
    return text_key(dag_text(canonical(dag)[0]))


def text_key(text: str) -> str:
    """The key of a canonical text."""
    return _digest(text)


def _digest(*parts: object) -> str:
    return blake2b("\n".join(map(str, parts)).encode(), digest_size=8).hexdigest()


def canonical(dag: Dag) -> tuple[Dag, dict[str, str]]:
    """The same DAG under canonical names, and what each canonical name was called before.

    Isomorphic DAGs (other names, another order of inputs or of commutative operands) give equal results. Tensors
    that no output needs are dropped; the order of outputs is kept.

    Colour refinement (Weisfeiler-Leman): a tensor's colour is a hash of its own form, of what it reads and of how
    it is read. Tensors of one colour are told apart by trying each first; the smallest text wins.
    """
    live = _live(dag)
    colours = _refine(live, {t.name: _own(t, live.outputs) for t in live.tensors.values()})
    leaves = _leaves(live, colours, [TRIES])
    return min((_renamed(live, c) for c in leaves), key=lambda found: dag_text(found[0]))


def _live(dag: Dag) -> Dag:
    """Without what no output needs; index arithmetic in normal form."""
    needed = set(dag.outputs)
    for c in reversed(dag.computes):
        if c.name in needed:
            needed |= {r.tensor for r in reads(c.body)}
    computes = tuple(replace(c, body=_sorted_indices(simplify(c.body), c)) for c in dag.computes if c.name in needed)
    return Dag(tuple(i for i in dag.inputs if i.name in needed), computes, dag.outputs)


def _sorted_indices(e: Expr, stage: Compute) -> Expr:
    """Linear index expressions with their axes in the order of the loops."""
    if isinstance(e, Op) and e.name in ("add", "sub", "mul") and dtype_of(e) == "int64":
        form = affine(e)
        if form is not None:
            return expression(Affine(tuple(sorted(form.terms, key=lambda t: stage.axes.index(t[0]))), form.constant))
    kids = children(e)
    return rebuild(e, tuple(_sorted_indices(k, stage) for k in kids)) if kids else e


def _own(t: Input | Compute, outputs: tuple[str, ...]) -> str:
    match t:
        case Input(_, shape, dtype, constant):
            return _digest("input", shape, dtype, constant)
        case Compute(name, space, _, reduce, combiner, dtype):
            join = (combiner.identity, combiner.reorders, expr_text(combiner.body)) if reduce else ""
            places = [i for i, o in enumerate(outputs) if o == name]
            return _digest("stage", [a.extent for a in space], [a.extent for a in reduce], join, dtype, places)


def _refine(dag: Dag, colours: Colours) -> Colours:
    """Mix in the colours of what is read and of what reads, until no class splits any more."""
    classes = 0
    while classes < len(set(colours.values())):
        classes = len(set(colours.values()))
        colours = _from_readers(dag, _from_read(dag, colours))
    return colours


def _from_read(dag: Dag, colours: Colours) -> Colours:
    new = dict(colours)
    for c in dag.computes:
        new[c.name] = _digest(colours[c.name], _coloured(c.body, new, c))
    return new


def _from_readers(dag: Dag, colours: Colours) -> Colours:
    def seen(tensor: str) -> list[str]:
        marked = {**colours, tensor: "this"}
        return sorted(_digest(colours[c.name], _coloured(c.body, marked, c)) for c in dag.consumers(tensor))

    return {tensor: _digest(colour, *seen(tensor)) for tensor, colour in colours.items()}


def _coloured(e: Expr, colours: Colours, stage: Compute) -> str:
    """The expression without names: axes by position, tensors by colour, commutative operands sorted."""
    match e:
        case Axis():
            return f"axis{stage.axes.index(e)}"
        case Read(tensor, index, _):
            return f"{colours[tensor]}[{', '.join(_coloured(i, colours, stage) for i in index)}]"
        case Op(name, args):
            kids = [_coloured(a, colours, stage) for a in args]
            return f"{name}({', '.join(sorted(kids) if name in COMMUTATIVE else kids)})"
        case Cast(dtype, arg):
            return f"cast({dtype}, {_coloured(arg, colours, stage)})"
        case Const() | Param():
            return expr_text(e)


def _leaves(dag: Dag, colours: Colours, budget: list[int]) -> Iterator[Colours]:
    """Colourings in which every tensor has its own colour."""
    classes: dict[str, list[str]] = {}
    for tensor, colour in colours.items():
        classes.setdefault(colour, []).append(tensor)
    tied = min((item for item in classes.items() if len(item[1]) > 1), default=None)
    if tied is None:
        budget[0] -= 1
        yield colours
        return
    for tensor in tied[1]:
        yield from _leaves(dag, _refine(dag, {**colours, tensor: _digest(colours[tensor], "first")}), budget)
        if budget[0] <= 0:
            return


def _renamed(dag: Dag, colours: Colours) -> tuple[Dag, dict[str, str]]:
    """Names by position in a walk from the outputs, operands before their readers; constants are the last inputs."""
    roles = _roles(dag)
    ordered = {c.name: replace(c, body=_ordered(c.body, colours, c, roles)) for c in dag.computes}
    given = {i.name: i for i in dag.inputs}
    walk = sorted(_post_order(dag, ordered), key=lambda n: given[n].constant if n in given else 2)
    names = _canonical_names([given[n] if n in given else ordered[n] for n in walk])
    inputs = tuple(replace(given[n], name=names[n]) for n in walk if n in given)
    computes = tuple(_with_names(ordered[n], names) for n in walk if n in ordered)
    return Dag(inputs, computes, tuple(names[o] for o in dag.outputs)), {names[n]: n for n in walk}


def _ordered(e: Expr, colours: Colours, stage: Compute, roles: Roles) -> Expr:
    """Commutative operands in the order of their nameless texts; linear indices are in order already."""
    kids = tuple(_ordered(k, colours, stage, roles) for k in children(e))
    if not kids:
        return e
    if isinstance(e, Op) and e.name in COMMUTATIVE and dtype_of(kids[0]) != "int64":
        kids = tuple(sorted(kids, key=lambda k: (*roles.place(k, stage), _coloured(k, colours, stage))))
    return rebuild(e, kids)


@dataclass(frozen=True, slots=True)
class Roles:
    """Who comes first among commutative operands: stages, inputs, constants, literals; rows before columns."""

    ranks: Mapping[str, int]
    blank: Colours

    def place(self, e: Expr, stage: Compute) -> tuple[int, str]:
        return min((self.ranks[r.tensor] for r in reads(e)), default=3), _coloured(e, self.blank, stage)


def _roles(dag: Dag) -> Roles:
    ranks = {c.name: 0 for c in dag.computes} | {i.name: 1 + i.constant for i in dag.inputs}
    return Roles(ranks, dict.fromkeys(ranks, ""))


def _post_order(dag: Dag, ordered: Mapping[str, Compute]) -> list[str]:
    """Every tensor once, what it reads first; an explicit stack, because chains may be deep."""
    done: dict[str, None] = {}
    stack = [(o, False) for o in reversed(dag.outputs)]
    while stack:
        name, ready = stack.pop()
        if name in done:
            continue
        if ready or name not in ordered:
            done[name] = None
            continue
        stack.append((name, True))
        stack += [(r.tensor, False) for r in reversed(reads(ordered[name].body))]
    return list(done)


def _canonical_names(tensors: list[Input | Compute]) -> dict[str, str]:
    counts: dict[str, int] = {}
    out: dict[str, str] = {}
    for t in tensors:
        stem = stage_kind(t) if isinstance(t, Compute) else "w" if t.constant else "x"
        at = counts[stem] = counts.get(stem, -1) + 1
        out[t.name] = f"{stem}{at}" if isinstance(t, Input) or at else stem
    return out


def _with_names(c: Compute, names: Mapping[str, str]) -> Compute:
    new = {a: Axis(f"i{n}", a.extent) for n, a in enumerate(c.space)}
    new |= {a: Axis(f"k{n}", a.extent) for n, a in enumerate(c.reduce)}

    def rename(e: Expr) -> Expr:
        if isinstance(e, Axis):
            return new[e]
        kids = tuple(map(rename, children(e)))
        return Read(names[e.tensor], kids, e.dtype) if isinstance(e, Read) else rebuild(e, kids) if kids else e

    space, reduce = tuple(new[a] for a in c.space), tuple(new[a] for a in c.reduce)
    combiner = c.combiner if c.combiner in COMBINERS.values() else replace(c.combiner, name="combine")
    return Compute(names[c.name], space, rename(c.body), reduce, combiner if reduce else SUM, c.dtype)


def stage_kind(c: Compute) -> str:
    """One word for what a stage does, from its form alone: conv, matmul, sum, pool, relu, pad, copy, add, ..."""
    slides = any(_slides(i, c) for r in reads(c.body) for i in r.index)
    match c.body:
        case Op("mul", (Read() as a, Read() as b)) if c.reduce and c.combiner == SUM and a != b:
            return "conv" if slides else "matmul"
        case _ if c.reduce:
            return "pool" if slides else c.combiner.name if c.combiner in COMBINERS.values() else "combine"
        case Op("max", (Read(), Const(0.0, _))) | Op("max", (Const(0.0, _), Read())):
            return "relu"
        case Op("select", (_, Read(), Const())):
            return "pad"
        case Read():
            return "copy"
        case Op(name, _):
            return name if name not in RESERVED else f"{name}_"
        case Cast():
            return "cast"
        case _:
            return "fill"


def _slides(index: Expr, c: Compute) -> bool:
    """A window: one index moves with a space axis and with a reduce axis."""
    form = affine(index)
    used = {a for a, _ in form.terms} if form is not None else set()
    return bool(used & set(c.space)) and bool(used & set(c.reduce))
