"""The roofs of a device and what is known of programs under them, on a store whose figures can be worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.query import Connection, connect
from data.store import Store
from ir.key import dag_text
from ir.schedule import Population
from ir.target import Target
from tasks.roofline import ARITHMETIC, Bound, bounds, program_of, roofline, served, space_at
from tasks.subject import Level, Subject, SubjectError, device_of, matching, subjects
from tests.data.conftest import row
from tests.tasks.test_replay import TARGET, workload
from tests.tasks.tuned import FAR_BYTES, MODEL, NAMES, hostile, started, tuned
from tests.zoo_dags import dag, matmul

PEAK = 90.0  # GFLOP/s, as `tests.data.conftest` has it
RATES = {"l1": 190.0, "l2": 98.0, "l3": 60.0, "dram": 14.0}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with connect(tuned(tmp_path_factory.mktemp("roofline") / "store")) as opened:
        yield opened


@pytest.fixture(scope="module")
def subject(source: Connection) -> Subject:
    (found,) = subjects(source)
    return found


# ---------------------------------------------------------------------------------------------- whose


def test_a_subject_has_its_runs_and_where_they_ran(subject: Subject) -> None:
    assert subject == Subject(MODEL, TARGET.key, 1, "d", ("first", "second")) and subject.last_run == "second"


def test_models_are_found_by_name_file_and_shape() -> None:
    known = [Subject(m, "t", n, "d", ("r",)) for m, n in (("resnet50", 1), ("resnet50", 2), ("net batch=2", 1))]
    assert matching(known, "resnet") == matching(known, "a/resnet50.onnx") == known[:2]
    assert matching(known, "resnet50", 2) == known[1:2] and matching(known, "net") == known[2:]
    with pytest.raises(SubjectError, match=r"no model called 'nope' was tuned; there are resnet50, net batch=2$"):
        matching(known, "nope")
    with pytest.raises(SubjectError, match=r"resnet50 was not tuned for 8 threads; it was for 1, 2$"):
        matching(known, "resnet50", 8)
    with pytest.raises(SubjectError, match="no run yet; tilewright tune MODEL"):
        matching([], "nope")


def test_a_device_is_what_was_recorded(source: Connection) -> None:
    device = device_of(source, "d", TARGET.key)
    assert device.peak == PEAK and device.rates == RATES
    assert device.sizes == {"l1": TARGET.l1_bytes, "l2": TARGET.l2_bytes, "l3": TARGET.l3_bytes}
    assert [device.holding(n) for n in (1, TARGET.l1_bytes + 1, 1 << 40)] == ["l1", "l2", "dram"]
    two = replace(device, target=replace(device.target, threads=2))
    assert two.peak == 2 * PEAK and two.rates["dram"] == 28.0 and two.holding(TARGET.l1_bytes + 1) == "l1"


def test_an_unknown_device_has_no_roof(source: Connection) -> None:
    device = device_of(source, None, TARGET.key)
    assert (device.peak, device.rates, device.roof_seconds(1e9, 1e6)) == (None, {}, None)
    with pytest.raises(SubjectError, match="'abacus' is no target"):
        device_of(source, "d", "abacus")


# ---------------------------------------------------------------------------------------------- roofs and bounds


def test_every_workload_is_placed(source: Connection, subject: Subject) -> None:
    found = roofline(source, subject).workloads
    assert {w.name for w in found} == {workload(n)[0].name for n in NAMES}
    assert [w.total_seconds for w in found] == sorted((w.total_seconds for w in found), reverse=True)
    for w in found:
        product = next(x for x, _ in map(workload, NAMES) if x.key == w.key).dag
        assert w.confirmed and w.seconds is not None and w.trials == 64
        assert w.intensity == product.flops / product.bytes and w.gflops == pytest.approx(
            product.flops / w.seconds / 1e9
        )
        roof = max(product.flops / (PEAK * 1e9), product.bytes / 98e9)  # both products lie in the second level
        assert w.roof_share == pytest.approx(roof / w.seconds) and w.peak_share == pytest.approx((w.gflops or 0) / PEAK)


def test_bounds_are_amounts_over_rates(source: Connection, subject: Subject) -> None:
    for w in roofline(source, subject).workloads:
        by_name = {b.what: b for b in w.bounds}
        assert set(by_name) == {ARITHMETIC, *RATES}
        assert by_name[ARITHMETIC].seconds == pytest.approx(by_name[ARITHMETIC].amount / (PEAK * 1e9))
        for level, rate in RATES.items():
            assert by_name[level].seconds == pytest.approx(by_name[level].amount / (rate * 1e9))
        times = [b.seconds for b in w.bounds]
        assert times == sorted(times, reverse=True) and w.bound in by_name
        assert w.intensities["l1"] == pytest.approx(w.flops / by_name["l1"].amount)


@pytest.mark.parametrize(
    ("needed", "bound", "share"),
    [
        ({ARITHMETIC: 0.5, "l2": 0.7}, "l2", 0.7),
        ({ARITHMETIC: 0.95, "l2": 1.6}, ARITHMETIC, 0.95),  # too high an estimate, and the peak is nearly reached
        ({ARITHMETIC: 0.4, "l2": 1.6}, "l2", 1.0),
        ({ARITHMETIC: 1.1, "l2": 0.2}, ARITHMETIC, 1.0),
        ({}, None, None),
    ],
)
def test_an_estimate_above_the_time_counts_as_all_of_it(
    needed: dict[str, float], bound: str | None, share: float | None, source: Connection, subject: Subject
) -> None:
    given = tuple(Bound(what, 1.0, 2e-3 * part) for what, part in needed.items())
    w = replace(roofline(source, subject).workloads[0], seconds=2e-3, bounds=given)
    assert (w.bound, w.bound_share) == (bound, share)
    assert replace(w, seconds=None).bound is None


def test_constants_come_from_behind_the_models_others(source: Connection) -> None:
    """A product's second operand is a constant: alone it stays near, in a large model it comes from memory."""
    device, constants = device_of(source, "d", TARGET.key), 4 * 128 * 64
    product = dag([matmul(32, 64, 128)])
    at = {"workload": "w", "name": "product", "weight": 1, "flops": product.flops, "dag_text": dag_text(product)}
    space = space_at(at, device)
    assert space is not None and space_at({**at, "dag_text": "?"}, device) is None
    best = {"sketch": space.keys[0], "choices": [0] * len(space.sketches[0].holes)}
    program, flops = program_of(at, best, device)
    assert program is not None and flops == product.flops
    population = Population(program.sketch, np.array([program.choices], dtype=np.int32))
    near, far = served(population, device, 0), served(population, device, FAR_BYTES)
    assert near["dram"] == 0 and near["l1"] == far["l1"] > 0
    assert far["dram"] >= constants and far["l3"] >= constants
    assert {b.what: b.amount for b in bounds(program, device, FAR_BYTES)}["dram"] == far["dram"]
    assert bounds(program, replace(device, levels=()), 0) == bounds(program, replace(device, peak_gflops=None), 0) == ()


# ---------------------------------------------------------------------------------------------- what may be missing


def test_a_run_that_has_just_begun_has_workloads_without_times(tmp_path: Path) -> None:
    with connect(started(tmp_path / "store")) as opened:
        found = roofline(opened, subjects(opened)[0])
    assert found.device.peak is None and len(found.workloads) == 2
    for w in found.workloads:
        assert (w.program, w.seconds, w.gflops, w.roof_share, w.bound, w.total_seconds) == (
            None,
            None,
            None,
            None,
            None,
            0,
        )


def test_forgotten_sketches_and_unreadable_dags_keep_their_figures(
    source: Connection, subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(hostile(tmp_path / "store")) as opened:
        (unread,) = roofline(opened, subjects(opened)[0]).workloads
    assert (unread.seconds, unread.bounds, unread.roof_seconds) == (1e-3, (), None)
    monkeypatch.setattr("tasks.space.sketch_key", lambda workload, sketch: f"new-{len(str(sketch))}")
    for w in roofline(source, subject).workloads:
        assert w.seconds and w.bounds == () and w.roof_share


def test_levels_without_a_rate_are_left_out(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    memory = [{"level": "L2", "bytes": 1, "gb_per_second": 9.0}, {"level": "L1", "bytes": 1, "gb_per_second": None}]
    store.append("devices", [row("devices", memory=memory)])
    with connect(store) as opened:
        assert device_of(opened, "d", Target().key).levels == (Level("l2", 1, 9.0),)
