"""Matrix products and sums of products. Sums of float16 are kept in float32."""

from __future__ import annotations

from collections.abc import Sequence

from ir import dsl
from ir.dsl import Handle, Reduction, cast, compute, reduce_axis
from ir.expr import Expr, dtype_of
from ir.operators.operator import (
    Attributes,
    Inputs,
    Operator,
    at,
    broadcast,
    flag,
    is_float,
    maybe,
    narrowed,
    need,
    real,
    text,
    wide,
)


def _matmul(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """NumPy's matmul: leading dimensions broadcast, a rank-1 operand is a row or a column that disappears."""
    a, b = need(inputs, 0), need(inputs, 1)
    if not a.shape or not b.shape:
        raise ValueError("matmul of a scalar")
    if a.dtype != b.dtype:
        raise ValueError(f"matmul of {a.dtype} and {b.dtype}: cast one of them")
    inner = b.shape[-2] if len(b.shape) > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise ValueError(f"matmul of {a.shape} and {b.shape}: the inner dimensions {a.shape[-1]} and {inner} differ")
    batch = broadcast(a.shape[:-2], b.shape[:-2])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    k = reduce_axis(inner, "k")

    def element(*i: Expr) -> Reduction:
        lead, rest = i[: len(batch)], i[len(batch) :]
        row, column = rest[: len(rows)], rest[len(rows) :]
        left = _batched(a, lead, (*row, k))
        right = _batched(b, lead, (k, *column))
        return dsl.sum(wide(left) * wide(right), k)

    names = [*(f"b{d}" for d in range(len(batch))), *"i"[: len(rows)], *"j"[: len(columns)]]
    out = compute((*batch, *rows, *columns), element, "matmul", names)
    return [narrowed(out, a.dtype, "matmul_cast")]


def _batched(x: Handle, lead: Sequence[Expr], own: tuple[Expr, ...]) -> Expr:
    extents = x.shape[: len(x.shape) - len(own)]
    mine = lead[len(lead) - len(extents) :]
    return x[(*(0 if e == 1 else i for i, e in zip(mine, extents, strict=True)), *own)]


def _gemm(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """alpha * op(a) @ op(b) + beta * c, op a transposition if `trans_a`, `trans_b`; c broadcasts."""
    a, b, c = need(inputs, 0), need(inputs, 1), maybe(inputs, 2)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ValueError(f"gemm of {a.shape} and {b.shape}: both must be matrices")
    turn_a, turn_b = flag(attributes, "trans_a"), flag(attributes, "trans_b")
    alpha, beta = real(attributes, "alpha", 1.0), real(attributes, "beta", 1.0)
    (m, ka) = a.shape[::-1] if turn_a else a.shape
    (kb, n) = b.shape[::-1] if turn_b else b.shape
    if ka != kb:
        raise ValueError(f"gemm of {a.shape} and {b.shape}: the inner dimensions {ka} and {kb} differ")
    k = reduce_axis(ka, "k")

    def product(i: Expr, j: Expr) -> Reduction:
        return dsl.sum(wide(a[(k, i) if turn_a else (i, k)]) * wide(b[(j, k) if turn_b else (k, j)]), k)

    out = compute((m, n), product, "gemm")
    if alpha == 1.0 and (c is None or beta == 0.0):
        return [narrowed(out, a.dtype, "gemm_cast")]
    if c is not None and broadcast((m, n), c.shape) != (m, n):
        raise ValueError(f"gemm adds {c.shape} to {(m, n)}")

    def finished(i: Expr, j: Expr) -> Expr:
        scaled = _weighted(out[i, j], alpha)
        addend = None if c is None or beta == 0.0 else _weighted(wide(at(c, (i, j))), beta)
        return cast(scaled if addend is None else scaled + addend, a.dtype)

    return [compute((m, n), finished, "gemm_bias")]


def _weighted(x: Expr, factor: float) -> Expr:
    if factor == 1.0:
        return x
    return x * (factor if is_float(dtype_of(x)) else int(factor))


def _einsum(inputs: Inputs, attributes: Attributes) -> list[Handle]:
    """NumPy's einsum: repeated labels are diagonals, "..." broadcasts, no arrow means sorted single labels."""
    operands = [need(inputs, p) for p in range(len(inputs))]
    equation = text(attributes, "equation").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ValueError(f"einsum {equation} names {len(terms)} operands, not {len(operands)}")
    labels = [_labels(t, len(x.shape), equation) for t, x in zip(terms, operands, strict=True)]
    extents = _label_extents(labels, operands, equation)
    out = _output_labels(labels, arrow, right, equation)
    summed = [name for name in extents if name not in out]
    axis = {name: reduce_axis(extents[name], name) for name in summed}

    def element(*i: Expr) -> Expr | Reduction:
        place: dict[str, Expr] = {**dict(zip(out, i, strict=True)), **axis}
        factors = [
            wide(x[tuple(0 if e == 1 and extents[n] != 1 else place[n] for n, e in zip(ls, x.shape, strict=True))])
            for x, ls in zip(operands, labels, strict=True)
        ]
        body = factors[0]
        for f in factors[1:]:
            body = body * f
        return dsl.sum(body, list(axis.values())) if axis else body

    made = compute([extents[name] for name in out], element, "einsum", out)
    return [narrowed(made, operands[0].dtype, "einsum_cast")]


def _labels(term: str, rank: int, equation: str) -> list[str]:
    """One label a dimension; those of an ellipsis are _1, _2, ... counted from the right."""
    head, dots, tail = term.partition("...")
    missing = rank - len(head) - len(tail)
    if missing < 0 or (missing and not dots) or (not (head + tail).isalpha() and head + tail):
        raise ValueError(f"einsum {equation}: {term!r} does not describe {rank} dimensions")
    return [*head, *(f"_{n}" for n in range(missing, 0, -1)), *tail]


def _label_extents(labels: list[list[str]], operands: list[Handle], equation: str) -> dict[str, int]:
    extents: dict[str, int] = {}
    for names, x in zip(labels, operands, strict=True):
        for name, extent in zip(names, x.shape, strict=True):
            known = extents.setdefault(name, extent)
            if known != extent and 1 not in (known, extent):
                raise ValueError(f"einsum {equation}: {name} is both {known} and {extent}")
            extents[name] = extent if known == 1 else known
    return extents


def _output_labels(labels: list[list[str]], arrow: str, right: str, equation: str) -> list[str]:
    every = [name for names in labels for name in names]
    dots = sorted({n for n in every if n.startswith("_")}, key=lambda n: -int(n[1:]))
    if not arrow:
        return [*dots, *sorted(n for n in set(every) if every.count(n) == 1 and n not in dots)]
    head, ellipsis, tail = right.partition("...")
    out = [*head, *(dots if ellipsis else []), *tail]
    if len(set(out)) != len(out) or not set(out) <= set(every):
        raise ValueError(f"einsum {equation}: the output {right!r} is not made of distinct input labels")
    return out


OPERATORS = (
    Operator("matmul", _matmul),
    Operator("gemm",   _gemm),
    Operator("einsum", _einsum),
)  # fmt: skip
