"""Why this program: what each of its decisions gave, what it was bred from, and what holds it back; from the store alone.

A decision is compared with the nearest measured programs that took another one. A choice: programs of the same sketch
that differ in it, if possible in nothing else. A step: the fastest program of a sketch without it.
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from data.query import Connection
from ir.schedule import Population
from search.evolve import Space
from tasks.roofline import Placed, placed, space_at
from tasks.subject import Device, SubjectError, device_of, place_of

Row = Mapping[str, Any]
MOST_OTHERS = 3  # differences beside the one in question; a program further away says nothing about it
DECISIVE = (
    "Winograd",
    "Rfactor",
    "CacheWrite",
    "Fuse",
    "Block",
    "Pack",
    "ComputeAt",
    "Inline",
    "Tile",
)  # others follow
MOST_SKETCHES = 12  # other sketches that are told


@dataclass(frozen=True, slots=True)
class Effect:
    """One decision and the fastest measured program that decided otherwise.

    ratio: its time over that of the program explained, above 1 is slower. side_by_side: both of the last finalists'
    round; else one was timed in the search alone. others: further differences between the two. programs: how many
    measured ones decided otherwise and are as near.
    """

    what: str
    here: str
    there: str
    program: str
    ratio: float
    side_by_side: bool
    others: int
    programs: int


@dataclass(frozen=True, slots=True)
class Ancestor:
    """mutation: how the search made it from its first parent; None: sampled. seconds: of the search; None: it failed."""

    program: str
    mutation: str | None
    run: str
    round: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """rules: of `steps`, one each. choices: decision -> value. lineage: the program first."""

    where: Placed
    device: Device
    program: str
    is_best: bool
    rules: tuple[str, ...]
    steps: tuple[str, ...]
    choices: Mapping[str, str]
    of_steps: tuple[Effect, ...]
    of_choices: tuple[Effect, ...]
    lineage: tuple[Ancestor, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """A verified program as `timed.sql` has it. decisions: of its choices, tile sizes of one axis as one."""

    program: str
    sketch: str
    decisions: Mapping[str, str]
    search_seconds: float | None
    confirmed_seconds: float | None


def explain(source: Connection, wanted: str, threads: int | None = None) -> Explanation:
    """wanted: the name of a workload, or the beginning of a workload's or program's key. Raises SubjectError."""
    place, program = place_of(source, wanted, threads)
    where = {"workload": place["workload"], "target": place["target"], "device": place["device"]}
    best = next(iter(source.run("best_program", **where).to_pylist()), None)
    if best is None:
        raise SubjectError(f"no program of {place['name']} was verified yet; tilewright tune measures more")
    device = device_of(source, place["device"], place["target"])
    sketches = {s["sketch"]: s for s in source.run("sketch_texts", workload=place["workload"]).to_pylist()}
    known = timed(source.run("timed", **where).to_pylist(), sketches, space_at(place, device))
    mine = next((t for t in known if t.program == (program or best["program"])), None)
    if mine is None:
        raise SubjectError(f"program {program or best['program']} has no verified time on {place['target']}")
    shown = best if mine.program == best["program"] else _as_best(mine, source, where)
    sketch, bred = sketches[mine.sketch], source.run("lineage", program=mine.program, **where).to_pylist()
    return Explanation(
        placed(place, shown, device), device, mine.program, mine.program == best["program"], tuple(sketch["rules"]),
        tuple(map(spoken, steps(sketch["text"]))), mine.decisions, tuple(of_steps(mine, known, sketches)),
        tuple(of_choices(mine, known)), tuple(_ancestor(row) for row in bred),
    )  # fmt: skip


def _ancestor(row: Row) -> Ancestor:
    return Ancestor(row["program"], row["mutation"], row["run"], row["round"], row["seconds"])


def _as_best(mine: Timed, source: Connection, where: Row) -> Row:
    """A program that is not the best one, as a row of `best_program`."""
    rows = source.run("top_k", k=None, **where).to_pylist()
    return next(r for r in rows if r["program"] == mine.program)


def timed(rows: Sequence[Row], sketches: Mapping[str, Row], space: Space | None) -> list[Timed]:
    """Rows of the question `timed`, their choices as values: those that take effect, where today's rules make the sketch."""
    values: dict[str, Sequence[int]] = {}
    for key in {r["sketch"] for r in rows} & sketches.keys():
        mine = [r for r in rows if r["sketch"] == key]
        options = [options for _, options in json.loads(sketches[key]["holes"])]
        found: Any = [[o[c] for o, c in zip(options, r["choices"], strict=False)] for r in mine]
        if space is not None and key in space.keys:
            choices = np.array([r["choices"] for r in mine], dtype=np.int32).reshape(len(mine), -1)
            found = space.canonical(Population(space.sketches[space.keys.index(key)], choices)).tolist()
        values |= {r["program"]: v for r, v in zip(mine, found, strict=True)}
    names = {key: [name for name, _ in json.loads(s["holes"])] for key, s in sketches.items()}
    return [
        Timed(
            r["program"], r["sketch"], decisions(names[r["sketch"]], values[r["program"]]), r["search_seconds"],
            r["confirmed_seconds"],
        )
        for r in rows if r["program"] in values
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------- decisions as text


def decisions(names: Sequence[str], values: Sequence[int]) -> dict[str, str]:
    """Holes and their values -> decision -> value; the sizes of one axis, outermost first, are one decision.

    ["C.i.1", "C.i.2", "C.unroll"], [4, 8, 1]  -->  {"C.i": "4 x 8", "C.unroll": "1"}
    """
    out: dict[str, str] = {}
    for name, value in zip(names, values, strict=False):
        head, _, level = name.rpartition(".")
        what = head if level.isdecimal() else name
        out[what] = f"{out[what]} x {value}" if what in out else str(value)
    return out


def steps(text: str) -> list[str]:
    """The steps of a sketch's text; the lines after them are its holes."""
    return [line for line in text.splitlines() if line and not line.startswith("Hole(")]


def holes(text: str) -> list[tuple[str, Sequence[int]]]:
    """Name and options of the holes in a sketch's text."""
    found = [read(line) for line in text.splitlines() if line.startswith("Hole(")]
    return [(words["name"], words["options"]) for _, words in found if {"name", "options"} <= words.keys()]


def spoken(step: str) -> str:
    """ "Tile(stage='C', structure='SSRS', vector='j')"  -->  "Tile C, structure SSRS, vector j"; other text as it is."""
    kind, words = read(step)
    first, rest = words.pop("stage", ""), [f"{name} {value}" for name, value in words.items() if value != ""]
    return ", ".join([f"{kind} {first}".strip(), *rest])


def read(line: str) -> tuple[str, dict[str, Any]]:
    """ "Tile(stage='C')"  -->  ("Tile", {"stage": "C"}); a line that reads otherwise is a kind without words."""
    try:
        call = ast.parse(line, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            return call.func.id, {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
    except (SyntaxError, ValueError):  # another version's words
        pass
    return line, {}


# ---------------------------------------------------------------------------------------------- what they gave


def scale(known: Sequence[Timed]) -> float:
    """Confirmed seconds a second of the search, over the programs that have both: their clocks and neighbours differ."""
    both = [t.confirmed_seconds / t.search_seconds for t in known if t.confirmed_seconds and t.search_seconds]
    return median(both) if both else 1.0


def ratio(mine: Timed, other: Timed, factor: float) -> tuple[float, bool] | None:
    """Time over time, and whether they ran side by side; else times of the search are brought to the finalists' by
    `factor`. None where one of them has no time."""
    if mine.confirmed_seconds and other.confirmed_seconds:
        return other.confirmed_seconds / mine.confirmed_seconds, True
    one, two = (t.confirmed_seconds or factor * (t.search_seconds or 0.0) for t in (mine, other))
    return (two / one, False) if one and two else None


def of_choices(mine: Timed, known: Sequence[Timed]) -> Iterator[Effect]:
    """One a decision that some near program took otherwise; the one that gave most first."""
    near: dict[str, list[tuple[int, Effect]]] = {}
    factor = scale(known)
    for other in known:
        if other.sketch != mine.sketch or (compared := ratio(mine, other, factor)) is None:
            continue
        apart = [what for what, value in mine.decisions.items() if other.decisions.get(what) != value]
        for what in apart if len(apart) <= 1 + MOST_OTHERS else ():
            effect = Effect(
                what, mine.decisions[what], other.decisions.get(what, "-"), other.program, *compared, len(apart) - 1, 1
            )
            near.setdefault(what, []).append((len(apart) - 1, effect))
    yield from sorted((_nearest(found) for found in near.values()), key=lambda e: (e.others, -e.ratio, e.what))


def _nearest(found: Sequence[tuple[int, Effect]]) -> Effect:
    """Of the programs with the fewest other differences the fastest."""
    fewest = min(others for others, _ in found)
    nearest = [effect for others, effect in found if others == fewest]
    e = min(nearest, key=lambda e: (e.ratio, e.program))
    return Effect(e.what, e.here, e.there, e.program, e.ratio, e.side_by_side, e.others, len(nearest))


def of_steps(mine: Timed, known: Sequence[Timed], sketches: Mapping[str, Row]) -> Iterator[Effect]:
    """One a sketch of other steps, by its fastest program; the nearest first."""
    here = steps(sketches[mine.sketch]["text"])
    counts, factor = Counter(t.sketch for t in known), scale(known)
    best: dict[str, tuple[float, bool, Timed]] = {}
    for other in known:
        compared = ratio(mine, other, factor)
        if other.sketch != mine.sketch and compared is not None:
            best[other.sketch] = min(best.get(other.sketch, (*compared, other)), (*compared, other), key=lambda b: b[0])
    found = [_effect(here, steps(sketches[key]["text"]), *of, counts[key]) for key, of in best.items()]
    yield from sorted(found, key=lambda e: (e.others, e.ratio, e.program))[:MOST_SKETCHES]


def _effect(
    here: Sequence[str], there: Sequence[str], ratio: float, side_by_side: bool, other: Timed, count: int
) -> Effect:
    """Named after the step that decides most of those in which the two differ."""
    lost = list((Counter(here) - Counter(there)).elements())
    gained = list((Counter(there) - Counter(here)).elements())
    first = min([*lost, *gained], key=_weight, default="")
    what = f"{'without' if first in lost else 'with'} {spoken(first)}" if first else "the same steps"
    others = max(len(lost), len(gained), 1) - 1
    mine, theirs = ("; ".join(map(spoken, found)) for found in (lost, gained))
    return Effect(what, mine, theirs, other.program, ratio, side_by_side, others, count)


def _weight(step: str) -> int:
    kind = step.partition("(")[0]
    return DECISIVE.index(kind) if kind in DECISIVE else len(DECISIVE)
