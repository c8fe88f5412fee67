"""Integer index arithmetic: linear forms, bounds, and the few simplifications that tiling needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ir.expr import Axis, Cast, Const, Expr, Op, Read, children, rebuild


@dataclass(frozen=True, slots=True)
class Affine:
    """constant + sum of coefficient * axis. Zero coefficients are absent."""

    terms: tuple[tuple[Axis, int], ...]
    constant: int

    def coefficient(self, axis: Axis) -> int:
        for a, c in self.terms:
            if a == axis:
                return c
        return 0


ZERO = Affine((), 0)


def affine(e: Expr) -> Affine | None:
    """The linear form of an index expression; None when it is not linear in its axes."""
    match e:
        case Const(value, _):
            return Affine((), int(value)) if int(value) == value else None
        case Axis():
            return Affine(((e, 1),), 0)
        case Cast(_, arg):
            return affine(arg)
        case Op("neg", (a,)):
            return scale(affine(a), -1)
        case Op("add", (a, b)):
            return plus(affine(a), affine(b))
        case Op("sub", (a, b)):
            return plus(affine(a), scale(affine(b), -1))
        case Op("mul", (a, b)):
            x, y = affine(a), affine(b)
            if x is None or y is None:
                return None
            if not x.terms:
                return scale(y, x.constant)
            return scale(x, y.constant) if not y.terms else None
        case _:
            return None


def plus(x: Affine | None, y: Affine | None) -> Affine | None:
    if x is None or y is None:
        return None
    if not y.terms:
        return Affine(x.terms, x.constant + y.constant)
    terms = dict(x.terms)
    for a, c in y.terms:
        terms[a] = terms.get(a, 0) + c
    return Affine(tuple((a, c) for a, c in terms.items() if c), x.constant + y.constant)


def scale(x: Affine | None, by: int) -> Affine | None:
    if x is None:
        return None
    return Affine(tuple((a, c * by) for a, c in x.terms), x.constant * by) if by else ZERO


def total(parts: Iterable[Affine]) -> Affine:
    out: Affine | None = ZERO
    for p in parts:
        out = plus(out, p)
    assert out is not None
    return out


def expression(x: Affine) -> Expr:
    """Back to a tree, the constant last."""
    out: Expr | None = None
    for a, c in x.terms:
        term: Expr = a if c == 1 else Op("mul", (a, Const(c, "int64")))
        out = term if out is None else Op("add", (out, term))
    if out is None:
        return Const(x.constant, "int64")
    return Op("add", (out, Const(x.constant, "int64"))) if x.constant else out


def bounds(x: Affine) -> tuple[int, int]:
    """Smallest and largest value when every axis runs over its extent (empty axes count as extent 1)."""
    low = high = x.constant
    for a, c in x.terms:
        reach = c * max(a.extent - 1, 0)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high


def interval(e: Expr) -> tuple[int, int] | None:
    """Bounds of an integer expression; None when unknown."""
    form = affine(e)
    if form is not None:
        return bounds(form)
    match e:
        case Op("floordiv", (a, Const(c, _))) if c > 0:
            inner = interval(a)
            return None if inner is None else (inner[0] // int(c), inner[1] // int(c))
        case Op("mod", (_, Const(c, _))) if c > 0:
            return 0, int(c) - 1
        case Op("add", (a, b)):
            x, y = interval(a), interval(b)
            return None if x is None or y is None else (x[0] + y[0], x[1] + y[1])
        case Op("mul", (a, Const(c, _))) if c >= 0:
            x = interval(a)
            return None if x is None else (x[0] * int(c), x[1] * int(c))
        case Op("min", (a, b)):
            x, y = interval(a), interval(b)
            return None if x is None or y is None else (min(x[0], y[0]), min(x[1], y[1]))
        case _:
            return None


def simplify(e: Expr) -> Expr:
    """Normal form of an index or condition: linear parts collected, i*N+r divided by N where 0 <= r < N.

    (i * 16 + l) / 16 --> i        (i * 16 + l) % 16 --> l        i < 8 (i in 0..7) --> true
    """
    kids = children(e)
    if kids:
        e = rebuild(e, tuple(simplify(k) for k in kids))
    return simplify_node(e)


def simplify_node(e: Expr) -> Expr:
    """One step of `simplify`, the children being in normal form."""
    match e:
        case Op("floordiv" | "mod" as name, (a, Const(c, _))) if c > 0:
            return _divide(name, a, int(c)) or e
        case Op("lt" | "le" as name, (a, b)):
            return _compare(name, a, b) or e
        case Op("and", (a, b)):
            return _conjunction(a, b) or e
        case Op("or", (Const(True, _), _)) | Op("or", (_, Const(True, _))):
            return Const(True, "bool")
        case Op("or", (Const(False, _), other)) | Op("or", (other, Const(False, _))):
            return other
        case Op("select", (Const(chosen, _), then, otherwise)):
            return then if chosen else otherwise
        case Op("add" | "sub" | "mul", _):
            form = affine(e)
            return expression(form) if form is not None and _is_integer(e) else e
        case _:
            return e


def _is_integer(e: Expr) -> bool:
    match e:
        case Const(_, dtype) | Cast(dtype, _) | Read(_, _, dtype):
            return dtype == "int64"
        case Axis():
            return True
        case Op(_, args):
            return all(map(_is_integer, args))
        case _:
            return False


def _divide(name: str, a: Expr, by: int) -> Expr | None:
    form = affine(a)
    if form is None:
        return None
    whole = Affine(tuple((x, c // by) for x, c in form.terms if c % by == 0), form.constant // by)
    rest = Affine(tuple((x, c) for x, c in form.terms if c % by), form.constant % by)
    low, high = bounds(rest)
    if low < 0 or high >= by:
        return None
    return expression(whole if name == "floordiv" else rest)


def _compare(name: str, a: Expr, b: Expr) -> Expr | None:
    difference = plus(affine(a), scale(affine(b), -1))
    if difference is None:
        return None
    low, high = bounds(difference)
    limit = 0 if name == "le" else -1
    if high <= limit:
        return Const(True, "bool")
    return Const(False, "bool") if low > limit else None


def _conjunction(a: Expr, b: Expr) -> Expr | None:
    for one, other in ((a, b), (b, a)):
        match one:
            case Const(True, _):
                return other
            case Const(False, _):
                return Const(False, "bool")
    return None


Forms = dict[int, tuple[Expr, Affine | None]]  # by identity; the tree is kept, so that its identity stays its own


def place(e: Expr, where: Mapping[Axis, Affine], forms: Forms) -> Expr:
    """`replace_axes` for linear replacements: indices are composed as linear forms, which `forms` remembers. What stands
    in a tree twice is placed once."""
    return _place(e, where, forms, {})


def _place(e: Expr, where: Mapping[Axis, Affine], forms: Forms, done: dict[int, Expr]) -> Expr:
    if id(e) not in done:
        done[id(e)] = _placed(e, where, forms, done)
    return done[id(e)]


def _placed(e: Expr, where: Mapping[Axis, Affine], forms: Forms, done: dict[int, Expr]) -> Expr:
    known = forms.get(id(e))
    if known is None:
        known = forms[id(e)] = e, affine(e) if _is_integer(e) else None
    form = known[1]
    if form is not None:
        if not any(a in where for a, _ in form.terms):
            return e
        moved: Affine | None = Affine((), form.constant)
        for a, c in form.terms:
            moved = plus(moved, scale(where.get(a) or Affine(((a, 1),), 0), c))
        assert moved is not None
        return expression(moved)
    kids = children(e)
    placed = tuple(_place(k, where, forms, done) for k in kids)
    if all(new is old for new, old in zip(placed, kids, strict=True)):
        return e
    e = rebuild(e, placed)
    return simplify_node(e) if isinstance(e, Op) else e


def replace_axes(e: Expr, new: Mapping[Axis, Expr]) -> Expr:
    """Substitute axes and bring the result to normal form."""
    from ir.expr import substitute

    return simplify(substitute(e, new))  # type: ignore[arg-type]
