"""Fetching ahead: every line of the next part once, a share a tile, whatever the loops are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ir.compute import Compute, Dag, Input
from ir.expr import OPERATIONS, Axis, Cast, Const, Expr, Op, Read
from ir.loop import Fetch, For, If, Nest, Stmt
from ir.lower import lower
from ir.schedule import Program, Sketch
from ir.target import Target
from search.sketch import sketches

I, J, K = Axis("i", 48), Axis("j", 256), Axis("k", 512)
LANES = 8


def product() -> Dag:
    c = Compute("C", (I, J), Read("A", (I, K)) * Read("B", (K, J)), (K,))
    return Dag((Input("A", (48, 512)), Input("B", (512, 256), constant=True)), (c,), ("C",))


def program(**sizes: int) -> Program:
    """The plain sketch with these sizes; the others are the smallest."""
    [sketch] = [s for s in sketches(product(), Target(vector_bytes=4 * LANES)) if "cache-write" not in s.rules]
    return Program(sketch, tuple(_choice(sketch, n, sizes) for n in range(len(sketch.holes))))


def _choice(sketch: Sketch, n: int, sizes: dict[str, int]) -> int:
    hole = sketch.holes[n]
    wanted = sizes.get(hole.name.removeprefix("C.").replace(".", ""))
    return 0 if wanted is None else hole.options.index(wanted)


def number(e: Expr, at: dict[Axis, int]) -> int:
    match e:
        case Const(value, _):
            return int(value)
        case Axis():
            return at[e]
        case Cast(_, arg):
            return number(arg, at)
        case Op(name, args):
            return int(OPERATIONS[name].numpy(*(np.asarray(number(a, at)) for a in args)))
        case _:
            raise AssertionError(e)


def fetched(nest: Nest, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first element, elements) of every fetch of B.pack, in the order of the run."""

    def walk(body: tuple[Stmt, ...], at: dict[Axis, int]) -> Iterator[tuple[int, int]]:
        for s in body:
            match s:
                case Fetch(_, index, elements):
                    strides = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
                    yield sum(number(i, at) * n for i, n in zip(index, strides, strict=True)), elements
                case If(condition, then, orelse):
                    yield from walk(then if number(condition, at) else orelse, at)
                case For(var, extent, inner, "serial"):
                    for n in range(number(extent, at)):
                        yield from walk(inner, {**at, var: n})
                case _:
                    pass

    return list(walk(nest.body, {}))


@pytest.mark.parametrize(
    "sizes",
    [
        {"i2": 8, "i3": 6, "j3": 2, "k1": 512, "order": 1},  # whole reductions, one panel a pass
        {"i2": 8, "i3": 6, "j3": 2, "k1": 128, "order": 1},  # four parts of each panel
        {"i2": 8, "i3": 6, "j3": 2, "j2": 4, "k1": 128, "order": 1},  # passes over four panels in turn
        {"i2": 8, "i3": 6, "j3": 2, "j2": 4, "k1": 512, "order": 1},
    ],
)
def test_a_pass_fetches_what_the_next_one_reads(sizes: dict[str, int]) -> None:
    """48 rows in 8 tiles; panels of 16 columns. All parts but the first are fetched, each before its pass."""
    nest = lower(program(**sizes)).nest
    shape = next(b.shape for b in nest.inputs if b.name == "B.pack")
    found = fetched(nest, shape)
    part, tiles = sizes["k1"] * 2 * LANES, 8
    passes = 512 * 256 // part
    assert len(found) == passes * tiles
    starts = []
    for n in range(passes):
        shares = found[n * tiles : (n + 1) * tiles]
        starts.append(shares[0][0])
        covered = {x for first, elements in shares for x in range(first, first + elements)}
        assert set(range(starts[-1], starts[-1] + part)) <= covered
    parts, panels = 512 // sizes["k1"], sizes.get("j2", 1)
    order = [  # of the parts in time: groups of panels, then parts, then panels
        ((group * panels + panel) * parts + p) * part
        for group in range(16 // panels) for p in range(parts) for panel in range(panels)
    ]  # fmt: skip
    if parts > 1 or panels == 1:
        expected = [*order[1:], 512 * 256]
        jumps = [n for n in range(passes) if starts[n] != expected[n]]
        assert all((n + 1) % (parts * panels) == 0 for n in jumps), "only the way to the next group may be missed"
    else:
        assert starts == [*order[1:], 512 * 256]


def test_few_tiles_or_alternating_panels_fetch_nothing() -> None:
    assert not fetched(lower(program(i2=2, i3=6, j3=2, k1=512, order=1)).nest, (16, 1, 512, 16))
    assert not fetched(lower(program(i2=8, i3=6, j2=4, j3=2, k1=512, order=0)).nest, (16, 1, 512, 16))
