"""The questions about months: regressions, roofline, calibration; and that every question works in a plain client."""

from __future__ import annotations

import duckdb
import pytest

from data import query
from data.query import asks, connect, names, params_of, run, text
from data.schema import TABLES

TARGET = "cpu-x86_64-v64-t1"
WRONG = {"best_seconds": None, "verified": False, "error_kind": "wrong"}


@pytest.fixture
def measured(store, make_row):
    """measured(minute, program, milliseconds or None for wrong, **columns): one confirmed measurement."""

    def add(minute: float, program: str, ms: float | None, **values: object) -> None:
        timed = WRONG if ms is None else {"best_seconds": ms * 1e-3}
        row = make_row("measurements", minute, **{"program": program, "confirmed": True, **timed, **values})
        store.append("measurements", [row])

    return add


def test_regressions_name_what_changed(store, make_row, measured):
    store.append("workloads", [make_row("workloads")])
    measured(1, "a", 2.0, run="r1")
    measured(2, "a", 2.2, run="r1")  # twice in one round: the median, 2.1
    measured(3, "a", 2.52, run="r2", compiler="cc 2")
    measured(4, "a", 1.26, run="r3", compiler="cc 2", flags="-O1", device="e")
    measured(5, "a", 1.89, run="r4", compiler="cc 2", flags="-O1", device="e")
    measured(1, "steady", 1.0, run="r1")
    measured(3, "steady", 1.04, run="r2")
    measured(1, "racy", 1.0, run="r1")
    measured(3, "racy", 2.0, run="r2")
    measured(4, "racy", None, run="r3")
    measured(1, "searched", 1.0, run="r1", confirmed=False)
    measured(3, "searched", 9.0, run="r2", confirmed=False)
    found = run(store, "regressions", target=TARGET, workload=None, ratio=None).to_pylist()
    assert [(r["program"], r["before_run"], r["run"], r["ratio"], r["changed"]) for r in found] == [
        ("a", "r3", "r4", pytest.approx(1.5), "time"),
        ("a", "r1", "r2", pytest.approx(1.2), "compiler"),
        ("a", "r2", "r3", pytest.approx(0.5), "device, flags"),
    ]
    assert (found[1]["before_seconds"], found[1]["name"]) == (pytest.approx(2.1e-3), "matmul_8x8x8")
    assert run(store, "regressions", target=TARGET, workload="w", ratio=1.02).num_rows == 4
    assert run(store, "regressions", target=TARGET, workload="v", ratio=None).num_rows == 0
    assert run(store, "regressions", target="t2", workload=None, ratio=None).num_rows == 0


def test_roofline_stands_beside_the_peak(store, make_row, measured):
    """4e9 operations over 1e9 bytes: 4 a byte; at 10 GB/s the roof is 40, below the peak of 100."""
    store.append("workloads", [
        make_row("workloads", key="thin", flops=4e9, bytes=1e9), make_row("workloads", key="thick", flops=4e9, bytes=1e7),
    ])  # fmt: skip
    levels = [
        {"level": "l1", "bytes": 32768, "gb_per_second": 200.0},
        {"level": "dram", "bytes": None, "gb_per_second": 10.0},
    ]
    store.append("devices", [make_row("devices", memory=levels, peak_gflops=90.0)])
    measured(1, "p", 200.0, workload="thin", peak_gflops=100.0)  # 20 GFLOP/s
    measured(2, "q", 100.0, workload="thin", confirmed=False)  # faster, and never confirmed
    measured(1, "p", 80.0, workload="thick", peak_gflops=None)  # 50 GFLOP/s; the device's own peak: 90
    thin, thick = run(store, "roofline", target=TARGET, workload=None, device="d").to_pylist()
    assert (thin["program"], thin["gflops"], thin["flops_per_byte"]) == ("p", pytest.approx(20.0), 4.0)
    assert (thin["roof_gflops"], thin["roof_share"], thin["peak_share"]) == (
        40.0,
        pytest.approx(0.5),
        pytest.approx(0.2),
    )
    assert (thin["bound"], thick["bound"]) == ("memory", "arithmetic")
    assert (thick["peak_gflops"], thick["roof_share"]) == (90.0, pytest.approx(50 / 90))
    assert run(store, "roofline", target=TARGET, workload="thick", device=None).num_rows == 1


def test_calibration_is_prediction_against_what_came(store, make_row):
    """Best of the run: 1 ms. Labels of round 1: 1, 0.5, 0 (failed); predictions 0.8, 0.6, 0.1."""
    for program, prediction, round_, ms in (
        ("first", None, 0, 4.0), ("a", 0.8, 1, 1.0), ("b", 0.6, 1, 2.0), ("c", 0.1, 1, None), ("alone", 0.5, 2, 2.0),
    ):  # fmt: skip
        store.append("programs", [make_row("programs", key=program, prediction=prediction, round=round_)])
        timed = WRONG if ms is None else {"best_seconds": ms * 1e-3}
        store.append("measurements", [make_row("measurements", program=program, round=round_, **timed)])
    first, second = run(store, "calibration", run="r", workload=None).to_pylist()  # round 0 had no model
    assert (first["round"], first["programs"], first["failed"]) == (1, 3, 1)
    assert (first["predicted"], first["measured"]) == (pytest.approx(0.5), pytest.approx(0.5))
    assert first["bias"] == pytest.approx(0.0, abs=1e-12)
    assert first["mean_absolute_error"] == pytest.approx((0.2 + 0.1 + 0.1) / 3)
    assert first["rank_correlation"] == pytest.approx(1.0)
    assert (second["round"], second["bias"], second["rank_correlation"]) == (2, pytest.approx(0.0), None)
    assert run(store, "calibration", run="r2", workload=None).num_rows == 0


def test_a_plain_client_answers_the_same(whole_store):
    given = {
        "run": "r", "workload": "w", "target": TARGET, "device": "d", "k": 3, "key": "", "ratio": 1.0, "program": "fast",
        "model": "m", "registration": None,
    }  # fmt: skip
    with duckdb.connect() as plain, connect(whole_store) as ours:
        plain.execute("SET TimeZone = 'UTC'")
        plain.execute("SET VARIABLE store = $root", {"root": str(whole_store.root)})
        for script in query.NO_QUESTIONS[::-1]:
            plain.execute((query.SQL / f"{script}.sql").read_text())
        for table in TABLES:
            assert (
                plain.sql(f"SELECT count(*) FROM {table}").fetchall()
                == ours.duckdb.sql(f"SELECT count(*) FROM {table}").fetchall()
            )
        for name in names():
            params = {param: given[param] for param in params_of(name)}
            answer = plain.execute(text(name), params or None).to_arrow_table()
            assert answer.to_pylist() == ours.run(name, **params).to_pylist(), name


def test_every_question_is_listed_with_its_question():
    for name in names():
        assert asks(name).endswith("?") and "--" not in asks(name)
    assert params_of("top_k")["k"].type == "BIGINT" and params_of("top_k")["device"].optional
    assert not params_of("top_k")["workload"].optional
