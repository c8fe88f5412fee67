"""The figures of a report, on stores whose figures are known; every list in it has an end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from data.query import Connection, connect
from data.store import Store
from tasks.explain import explain
from tasks.report import MOST_NAME, MOST_POINTS, Curve, ModelReport, curve, name_of, report
from tasks.subject import SubjectError
from tests.data.conftest import row
from tests.tasks.test_replay import told, workload
from tests.tasks.tuned import EACH, HOSTILE, MODEL, NAMES, PROGRAMS, hostile, searched, started, tuned

WEIGHTS = dict(zip(NAMES, (3, 2), strict=True))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with connect(tuned(tmp_path_factory.mktemp("report") / "store")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pair(source: Connection) -> ModelReport:
    (found,) = report(source, MODEL).models
    return found


def fastest(name: str, programs: int) -> float:
    return min(t.best for _, t in told(name, programs) if t.best is not None)


def test_runs_and_latencies(pair: ModelReport) -> None:
    assert [(r.key, r.trials, r.confirmed, r.before, r.after) for r in pair.runs] == [
        ("first", 2 * EACH, 6, 8e-4, 6e-4), ("second", 2 * EACH, 7 + _new(), 8e-4, 3e-4),
    ]  # fmt: skip
    assert pair.last.speedup == pytest.approx(8 / 3) and pair.marks == (0, 2 * EACH)


def _new() -> int:
    """Former winners that the second run's finalists do not hold anyway, after the first."""
    return sum(_former_takes_part_apart(name) for name in NAMES) - 1


def _former_takes_part_apart(name: str) -> int:
    known = sorted((t.best, p.key) for p, t in told(name, PROGRAMS) if t.best is not None)[:3]
    former = min((t.best, p.key) for p, t in told(name, EACH) if t.best is not None)
    return int(former not in known)


def test_the_model_takes_the_sum_of_its_workloads(pair: ModelReport) -> None:
    best = {name: 1.05 * fastest(name, PROGRAMS) for name in NAMES}
    assert pair.seconds == pytest.approx(sum(WEIGHTS[n] * best[n] for n in NAMES))
    assert (pair.missing, pair.unconfirmed) == (0, 0) and pair.timed_seconds == pair.seconds
    roofs = sum(w.weight * (w.roof_seconds or 0) for w in pair.workloads)
    assert pair.roof_share == pytest.approx(roofs / (pair.seconds or 1))


def test_curves_fall_over_all_runs(pair: ModelReport) -> None:
    n, seconds = pair.curve.points[-1]
    assert n == 4 * EACH and seconds == pytest.approx(sum(w * fastest(name, PROGRAMS) for name, w in WEIGHTS.items()))
    first, start = pair.curve.points[0]
    assert EACH < first <= EACH + 4 and start > seconds  # the second workload has its first time then
    times = [t for _, t in pair.curve.points]
    assert times == sorted(times, reverse=True)
    for s in pair.sections:
        assert s.curve.points[-1][0] == PROGRAMS


def test_a_curve_has_its_steps_and_an_end() -> None:
    inf = float("inf")
    assert curve([]) == curve([(1, inf)]) == Curve(())
    assert curve([(1, inf), (2, 5.0), (3, 5.0), (4, 3.0), (5, 3.0), (6, 3.0)]) == Curve(((2, 5.0), (4, 3.0), (6, 3.0)))
    long = curve([(n, 1e6 - n) for n in range(10_000)])
    assert len(long.points) == MOST_POINTS and long.points[0] == (0, 1e6) and long.points[-1] == (9_999, 1e6 - 9_999)


def test_changes_are_winners_that_beat_the_former_ones(pair: ModelReport) -> None:
    changed = [name for name in NAMES if fastest(name, PROGRAMS) < fastest(name, EACH)]
    assert pair.before is not None and pair.before.key == "first" and pair.compared == 2
    assert {c.name for c in pair.changes} == {workload(n)[0].name for n in changed} and changed
    for c in pair.changes:
        assert c.gain == pytest.approx(c.before_seconds / c.seconds) and c.gain > 1


def test_a_section_says_how_its_program_is_made(pair: ModelReport, source: Connection) -> None:
    for s in pair.sections:
        _, space = next(x for x in map(workload, NAMES) if x[0].key == s.placed.key)
        assert s.placed.bounds and s.cut == 0
        assert s.source.count(f"k_{s.placed.program}") and "#pragma" not in s.dag_text and "output" in s.dag_text
        assert {rule for _, rule in s.steps} <= {r for sketch in space.sketches for r in sketch.rules}
        assert any(step.startswith("Tile ") for step, _ in s.steps)
        assert s.choices == explain(source, s.placed.key).choices


def test_the_cost_model_is_judged_round_by_round(pair: ModelReport) -> None:
    assert [(j.round, j.rank, j.recall) for j in pair.judgements] == [(0, 0.5, 0.25), (1, 0.75, 0.25)]
    for j in pair.judgements:
        assert j.predicted is not None and 0.1 <= j.predicted <= 0.5 and j.error is not None and j.error > 0


def test_failures_are_those_of_the_last_run(pair: ModelReport) -> None:
    crashed = sum(t.failure is not None for name in NAMES for _, t in told(name, PROGRAMS)[EACH:])
    assert [(e.kind, e.count, e.message) for e in pair.errors] == [("crash", crashed, "SIGSEGV")] and crashed


# ---------------------------------------------------------------------------------------------- what may be missing


def test_an_empty_store_has_no_model(tmp_path: Path) -> None:
    with connect(Store.open(tmp_path / "store")) as opened:
        found = report(opened, None)
        assert (found.models, found.hidden, found.skipped) == ((), 0, ())
        with pytest.raises(SubjectError, match="no run yet"):
            report(opened, "resnet18")


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    with connect(started(tmp_path / "store")) as opened:
        (m,) = report(opened, None).models
    assert (m.seconds, m.roof_share, m.missing, m.before, m.changes, m.errors) == (None, None, 2, None, (), ())
    assert m.last.state == "running" and m.curve == Curve(()) and all(s.source == "" for s in m.sections)


def test_a_search_without_finalists_is_not_confirmed(tmp_path: Path) -> None:
    store = started(tmp_path / "store")
    searched(store, 0)
    with connect(store) as opened:
        (m,) = report(opened, None).models
    assert (m.missing, m.unconfirmed) == (0, 2)
    assert m.seconds == pytest.approx(sum(w * fastest(name, EACH) for name, w in WEIGHTS.items()))


def test_other_peoples_names_are_short_lines(tmp_path: Path) -> None:
    assert name_of("a\nb\tc ") == "a b c" and len(name_of("x" * 1000)) == MOST_NAME
    with connect(hostile(tmp_path / "store")) as opened:
        (m,) = report(opened, None).models
    assert m.errors[0].message == HOSTILE and m.sections[0].placed.name == HOSTILE and m.sections[0].source == ""


def test_many_models_and_unknown_targets(tmp_path: Path) -> None:
    store = started(tmp_path / "store")
    store.append("runs", [row("runs", key=f"r{n}", model=f"m{n}", target="abacus") for n in range(2)])
    store.append("runs", [row("runs", key=f"s{n}", model=f"n{n}") for n in range(9)])
    with connect(store) as opened:
        found = report(opened, None)
    assert len(found.models) + len(found.skipped) == 6 and found.hidden == 6
    assert all("'abacus' is no target" in reason for reason in found.skipped)
