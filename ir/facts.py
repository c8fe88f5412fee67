"""Linear facts: what loops, branches and selects say about indices, and what follows from them.

A fact is a linear form that is never positive. Quotients and remainders stand as axes of their own, and what is known
of them are facts again. Incomplete, but enough for tiles, tails, clipped regions and flattened reductions.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from ir.affine import ZERO, Affine, affine, bounds, interval, plus, scale
from ir.expr import Axis, Const, Expr, Op, walk


def at_most(e: Expr, limit: int) -> bool:
    match e:
        case Op("min", (a, b)):
            return at_most(a, limit) or at_most(b, limit)
        case _:
            found = interval(e)
            return found is not None and found[1] <= limit


def form_of(e: Expr) -> Affine | None:
    """Linear in axes and in quotients and remainders, each of which stands as an axis of its own."""
    return affine(_named(e))


def _named(e: Expr) -> Expr:
    match e:
        case Op("floordiv" | "mod", _) if (found := interval(e)) is not None:
            low, high = found
            return Op("add", (Axis(str(e), high - low + 1), Const(low, "int64")))
        case Op(name, args):
            return Op(name, tuple(map(_named, args)))
        case _:
            return e


def of_divisions(e: Expr, facts: tuple[Affine, ...]) -> Iterator[Affine]:
    """q = x // n means n * q <= x; with x <= c that is q <= c // n, rounded down. What x has beyond a fact may be
    bounded by a fact about one axis."""
    single = [f for f in facts if len(f.terms) == 1]
    for node in walk(e):
        match node:
            case Op("floordiv", (x, Const(n, _))):
                below = plus(scale(form_of(node), int(n)), scale(form_of(x), -1))
                for fact in (ZERO, *facts):
                    sum_ = plus(below, fact)
                    yield from _fact(sum_)
                    for f in single:
                        [(a, c)] = f.terms
                        if c == 1 and sum_ is not None and sum_.coefficient(a) < 0:
                            yield from _fact(plus(sum_, scale(f, -sum_.coefficient(a))))
            case _:
                pass


def never_positive(form: Affine, facts: tuple[Affine, ...], depth: int = 2) -> bool:
    """form <= 0 follows from the ranges of its axes, or with a multiple of a fact (each <= 0) taken away."""
    if bounds(form)[1] <= 0:
        return True
    if depth == 0:
        return False
    for n, fact in enumerate(facts):
        for a, c in fact.terms:
            times = form.coefficient(a) // c if form.coefficient(a) % c == 0 else 0
            if times > 0:
                less = plus(form, scale(fact, -times))
                if less is not None and never_positive(less, facts[:n] + facts[n + 1 :], depth - 1):
                    return True
    return False


def _fact(form: Affine | None) -> Iterator[Affine]:
    """form <= 0, and what follows for the terms that share a divisor when the others are at their smallest."""
    if form is None or not form.terms:
        return
    for by in {gcd(*(c for _, c in form.terms)), *(abs(c) for _, c in form.terms)}:
        kept = tuple((a, c // by) for a, c in form.terms if c % by == 0)
        least = sum(min(0, c * (a.extent - 1)) for a, c in form.terms if c % by)
        yield Affine(kept, -(-(form.constant + least) // by))  # over integers: rounded up


def facts_of(condition: Expr, holds: bool) -> Iterator[Affine]:
    """Linear consequences of a condition, or of its negation."""
    match condition, holds:
        case (Op("and", (a, b)), True) | (Op("or", (a, b)), False):
            yield from facts_of(a, holds)
            yield from facts_of(b, holds)
        case Op("not", (a,)), _:
            yield from facts_of(a, not holds)
        case Op("le", (a, b)), True:
            yield from _less(a, b, 0)
        case Op("lt", (a, b)), True:
            yield from _less(a, b, 1)
        case Op("le", (a, b)), False:
            yield from _less(b, a, 1)
        case Op("lt", (a, b)), False:
            yield from _less(b, a, 0)
        case Op("eq", (a, b)), True:
            yield from _less(a, b, 0)
            yield from _less(b, a, 0)
        case _:
            return


def _less(a: Expr, b: Expr, by: int) -> Iterator[Affine]:
    """a + by <= b"""
    left = plus(form_of(a), Affine((), by))
    for bound in _bounds_of(b):
        match bound:
            case Op("floordiv", (x, Const(n, _))) if n > 0:  # m <= x // n is m * n <= x
                yield from _fact(plus(scale(left, int(n)), scale(form_of(x), -1)))
            case _:
                yield from _fact(plus(left, scale(form_of(bound), -1)))


def _bounds_of(e: Expr) -> list[Expr]:
    """Expressions whose smallest is e: a minimum is taken apart, also within sums and quotients."""
    match e:
        case Op("min", (a, b)):
            return [*_bounds_of(a), *_bounds_of(b)]
        case Op("add" | "sub" | "floordiv" as name, (a, b)):
            return [Op(name, (x, b)) for x in _bounds_of(a)]
        case _:
            return [e]


def below(var: Axis, extent: Expr) -> Iterator[Affine]:
    """var < extent"""
    yield from _less(var, extent, 1)
