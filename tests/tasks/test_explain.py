"""Why a program: decisions against the nearest measured programs, by hand and on a store of real sketches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from data.query import Connection, connect
from tasks.explain import Effect, Timed, decisions, explain, holes, of_choices, of_steps, ratio, scale, spoken, steps
from tasks.space import sketch_text
from tasks.subject import SubjectError
from tests.tasks.test_replay import TARGET, told, workload
from tests.tasks.tuned import NAMES, PROGRAMS, started, tuned


def timed(name: str, sketch: str = "s", search: float | None = 1.0, final: float | None = None, **chosen: str) -> Timed:
    return Timed(name, sketch, chosen, search, final)


# ---------------------------------------------------------------------------------------------- as text


def test_decisions_join_the_sizes_of_an_axis() -> None:
    names = ["C.i.1", "C.i.2", "C.cache.j.1", "C.unroll"]
    assert decisions(names, [4, 8, 2, 1]) == {"C.i": "4 x 8", "C.cache.j": "2", "C.unroll": "1"}
    assert decisions([], []) == {}


def test_a_sketch_is_read_from_its_text() -> None:
    for _, space in map(workload, NAMES):
        for sketch in space.sketches:
            text = sketch_text(sketch)
            assert steps(text) == [str(s) for s in sketch.steps]
            assert holes(text) == [(h.name, h.options) for h in sketch.holes]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("Tile(stage='C', structure='SSRS', vector='j')", "Tile C, structure SSRS, vector j"),
        ("Tile(stage='C', structure='SS', vector='')", "Tile C, structure SS"),
        ("Inline(stage='P.block')", "Inline P.block"),
        ("Winograd(stage='conv', m=4)", "Winograd conv, m 4"),
        ("Tile(stage=open('x'))", "Tile(stage=open('x'))"),
        ("of another version", "of another version"),
        ("<script>", "<script>"),
    ],
)
def test_steps_are_spoken(step: str, said: str) -> None:
    assert spoken(step) == said


# ---------------------------------------------------------------------------------------------- what decisions gave


def test_times_of_the_search_are_brought_to_the_finalists() -> None:
    best, other = timed("best", search=3.0, final=2.0), timed("other", search=2.0)
    known = [best, other, timed("a", search=1.0, final=1.2), timed("b", search=1.0, final=1.2)]
    assert scale(known) == 1.2 and scale([other]) == 1.0
    assert ratio(best, other, 1.2) == (pytest.approx(2.0 * 1.2 / 2.0), False)
    assert ratio(best, known[2], 1.2) == (pytest.approx(0.6), True)
    assert ratio(best, timed("none", search=None), 1.2) is None


def test_a_choice_is_compared_with_the_fastest_of_the_nearest() -> None:
    best = timed("best", search=1.0, i="4", j="8", k="1")
    known = [
        best,
        timed("slow", search=2.0, i="2", j="8", k="1"), timed("slower", search=3.0, i="1", j="8", k="1"),
        timed("far", search=1.1, i="4", j="2", k="2"), timed("other sketch", sketch="t", search=0.5, i="1", j="8", k="1"),
    ]  # fmt: skip
    assert list(of_choices(best, known)) == [
        Effect("i", "4", "2", "slow", 2.0, False, 0, 2),
        Effect("j", "8", "2", "far", 1.1, False, 1, 1),
        Effect("k", "1", "2", "far", 1.1, False, 1, 1),
    ]


def test_what_is_too_far_away_says_nothing() -> None:
    best = timed("best", a="1", b="1", c="1", d="1", e="1")
    assert list(of_choices(best, [best, timed("far", a="2", b="2", c="2", d="2", e="2")])) == []
    assert list(of_choices(best, [best])) == []


def test_a_step_is_compared_with_the_best_sketch_without_it() -> None:
    texts = {
        "s": "Pack(stage='C')\nTile(stage='C', structure='SSRSRS')\nHole(name='x', options=(1,))",
        "t": "Tile(stage='C', structure='SSRSRS')", "u": "Winograd(stage='C', m=2)\nTile(stage='P', structure='SS')",
    }  # fmt: skip
    sketches = {key: {"text": text} for key, text in texts.items()}
    best = timed("best", final=1.0)
    known = [
        best, timed("one", "t", 9.0, 1.4), timed("two", "t", 9.0, 1.5), timed("three", "u", 9.0, 2.0), timed("none", "t", None),
    ]  # fmt: skip
    assert list(of_steps(best, known, sketches)) == [
        Effect("without Pack C", "Pack C", "", "one", 1.4, True, 0, 3),
        Effect("with Winograd C, m 2", "Pack C; Tile C, structure SSRSRS", "Winograd C, m 2; Tile P, structure SS", "three",
               2.0, True, 1, 1),
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------- on a store


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with connect(tuned(tmp_path_factory.mktemp("explain") / "store")) as opened:
        yield opened


def winner(name: str) -> str:
    return min((t.best, p.key) for p, t in told(name, PROGRAMS) if t.best is not None)[1]


def test_the_best_program_of_a_workload_is_explained(source: Connection) -> None:
    w, space = workload(NAMES[0])
    found = explain(source, w.name)
    assert (found.program, found.is_best, found.where.confirmed) == (winner(NAMES[0]), True, True)
    assert found.device.target == TARGET and found.where.bounds and found.where.roof_share
    sketch = next(s for s in space.sketches if [spoken(str(x)) for x in s.steps] == list(found.steps))
    assert found.rules == sketch.rules and set(found.choices) == set(
        decisions([h.name for h in sketch.holes], [0] * 99)
    )
    assert found.of_choices and all(e.ratio >= 1 / 1.05 for e in found.of_choices)  # it won its round
    assert found.lineage[0].program == found.program and found.lineage[0].run in ("first", "second")


def test_keys_name_workloads_and_programs(source: Connection) -> None:
    w, _ = workload(NAMES[1])
    assert explain(source, w.key) == explain(source, w.key[:8]) == explain(source, w.name, threads=1)
    other = next(p.key for p, t in told(NAMES[1], PROGRAMS) if t.best is not None and p.key != winner(NAMES[1]))
    found = explain(source, other)
    assert (found.program, found.is_best, found.where.program) == (other, False, other)
    assert found.where.seconds is not None and found.where.name == w.name


def test_what_is_not_there_is_said_with_the_way_out(source: Connection, tmp_path: Path) -> None:
    w, _ = workload(NAMES[0])
    for wanted in ("nope", "", "ffffffffffff", "%"):
        with pytest.raises(SubjectError, match=r"nothing measured is called .*; tilewright sql"):
            explain(source, wanted)
    with pytest.raises(SubjectError, match=f"{w.name} was not measured with 7 threads; it was with 1"):
        explain(source, w.name, threads=7)
    failed = next(p.key for p, t in told(NAMES[0], PROGRAMS) if t.best is None)
    with pytest.raises(SubjectError, match="has no verified time"):
        explain(source, failed)
    with connect(started(tmp_path / "store")) as opened, pytest.raises(SubjectError, match="nothing measured"):
        explain(opened, w.name)
