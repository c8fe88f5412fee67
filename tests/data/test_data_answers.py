"""Every question: on an empty store, and on the store of `conftest.fill`, whose answers can be worked out by hand.

workload w, target t1, device d (times in ms; "score" is drift-corrected):

    trial  program     time  score  then
    1      slow        4
    2      wrong       -            wrong
    3      broken      -            crash
    4      fast        2     2.2    confirmed twice: 2.0 and 2.2
    5      lucky       1     2.0    never confirmed
    6      unverified  0.001        not verified
    7      racy        0.01         verified once, wrong the next time

workload v: relu 0.5. Another target and another device hold times that would win if they were mixed in.
"""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.query import Connection, QueryError, connect, names, run, text
from data.store import Store
from tests.data.conftest import NOON

W = {"workload": "w", "target": "cpu-x86_64-v64-t1", "device": "d"}
MINUTE = timedelta(minutes=1)
ALL = {"target": "cpu-x86_64-v64-t1", "workload": None, "device": "d"}
PARAM = re.compile(r"^--   \$(\w+)\s+(VARCHAR|BIGINT|DOUBLE)\b", re.MULTILINE)


@pytest.fixture(scope="module")
def answers(tmp_path_factory, request) -> Connection:
    """One connection to the whole store: these tests only read."""
    store = Store.open(tmp_path_factory.mktemp("answers"))
    request.getfixturevalue("fill_store")(store)
    with connect(store) as connection:
        yield connection


def ms(value: float) -> Any:
    return pytest.approx(value * 1e-3)


# ---------------------------------------------------------------- the files


def test_there_is_a_question_for_every_need():
    assert names() == (
        "best_program", "calibration", "changes", "checked", "device", "errors", "find", "history", "imported_keys",
        "incumbent", "lineage", "measured_keys", "model_quality", "model_workloads", "models", "others", "places",
        "progress", "registered", "regressions", "roofline", "rules_that_pay", "run_summary", "samples",
        "sketch_texts", "standing", "timed", "told", "top_k", "training_set", "tuning_cost", "weighed",
    )  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_the_header_asks_a_question_and_names_the_params(answers, name):
    sql = text(name)
    assert re.match(r"-- [A-Z][^?]*\?", sql), "the first line is the question"
    named = {name for statement in answers.duckdb.extract_statements(sql) for name in statement.named_parameters}
    assert {name for name, _ in PARAM.findall(sql)} == named
    assert not re.search(r"\{|%s", sql)


@pytest.mark.parametrize("name", names())
def test_an_empty_store_answers_with_no_rows(empty, name):
    params = {param: "x" if kind == "VARCHAR" else 3 for param, kind in PARAM.findall(text(name))}
    assert empty.run(name, **params).num_rows == 0
    assert empty.run(name, **dict.fromkeys(params)).num_rows == 0


@pytest.fixture(scope="module")
def empty(tmp_path_factory) -> Connection:
    with connect(Store.open(tmp_path_factory.mktemp("empty"))) as connection:
        yield connection


def test_what_is_no_question_is_refused(empty):
    for name in ("views", "../views", "nothing", ""):
        with pytest.raises(QueryError, match=r"no question named .*; there are best_program,"):
            empty.run(name)
    with pytest.raises(QueryError, match=r"^errors needs \$run; give None for NULL$"):
        empty.run("errors")
    with pytest.raises(QueryError, match=r"^errors has no \$runn; it has \$run$"):
        empty.run("errors", run="r", runn="r")


def test_a_value_of_another_type_is_refused_in_one_line(answers):
    with pytest.raises(QueryError, match=r"^Conversion Error: .*many.*$"):
        answers.run("top_k", k="many", **W)


# ---------------------------------------------------------------- the answers


def test_best_program_is_the_confirmed_one(answers):
    (best,) = answers.run("best_program", **W).to_pylist()
    assert (best["program"], best["confirmed"], best["measured"]) == ("fast", True, 3)
    assert best["seconds"] == ms(2.1)
    assert best["fastest_seconds"] == ms(2.0)
    assert (best["sketch_text"], best["choices"]) == ("sketch one", [1, 1])
    assert (best["entry"], best["source_text"]) == ("fast", "void fast(void) {}")


def test_best_program_of_every_workload_and_of_any_machine(answers):
    best = answers.run("best_program", **ALL).to_pylist()
    assert [(row["program"], row["confirmed"]) for row in best] == [("relu", False), ("fast", True)]
    assert best[0]["source_text"] is None
    assert answers.run("best_program", **{**W, "device": "e"})["program"].to_pylist() == ["slow"]
    assert answers.run("best_program", **{**W, "device": None})["program"].to_pylist() == ["fast"]
    assert answers.run("best_program", **{**W, "target": "cpu-x86_64-v64-t2"})["seconds"].to_pylist() == [1e-5]


def test_best_program_takes_its_choices_from_its_source_where_they_are_recorded(store, make_row):
    """And from among all programs where they are not."""
    store.append("programs", [make_row("programs", key="b", workload="v", choices=[9])])
    store.append("measurements", [
        make_row("measurements", program="a", best_seconds=1e-3), make_row("measurements", program="b", workload="v"),
    ])  # fmt: skip
    told = make_row("sources", program="a", sketch="s", choices=[4, 2])
    store.append("sources", [told, make_row("sources", program="b")])
    with connect(store) as connection:
        rows = connection.run("best_program", **ALL).to_pylist()
    assert [(r["program"], r["sketch"], r["choices"]) for r in rows] == [("b", "s", [9]), ("a", "s", [4, 2])]


def test_top_k(answers):
    top = answers.run("top_k", k=2, **W).to_pylist()
    assert [(row["rank"], row["program"]) for row in top] == [(1, "fast"), (2, "lucky")]
    top = answers.run("top_k", k=10, **W).to_pylist()
    assert [row["program"] for row in top] == ["fast", "lucky", "slow"]


def test_incumbent_is_the_lowest_score_confirmed_or_not(answers):
    (incumbent,) = answers.run("incumbent", **W).to_pylist()
    assert (incumbent["program"], incumbent["confirmed"]) == ("lucky", False)
    assert incumbent["score"] == ms(2.0)
    assert answers.run("incumbent", **ALL)["workload"].to_pylist() == ["v", "w"]


def test_training_set_has_throughput_relative_to_the_best(answers):
    learnt = {row["program"]: row for row in answers.run("training_set", **W).to_pylist()}
    assert {name: row["label"] for name, row in learnt.items()} == {
        "lucky": 1.0, "slow": pytest.approx(0.5), "fast": pytest.approx(2.0 / 2.0, abs=0.1),
        "wrong": 0.0, "broken": 0.0, "unverified": 0.0, "racy": 0.0,
    }  # fmt: skip
    assert {name for name, row in learnt.items() if row["failed"]} == {"wrong", "broken", "unverified", "racy"}
    assert learnt["racy"]["seconds"] is None
    assert learnt["slow"]["seconds"] == ms(4.0)
    assert (learnt["fast"]["sketch"], learnt["fast"]["choices"]) == ("s1", [1, 1])
    labels = {row["program"]: row["label"] for row in answers.run("training_set", **ALL).to_pylist()}
    assert labels["relu"] == labels["lucky"] == 1.0  # each workload has its own best


def test_measured_keys_hold_failures_too(answers):
    keys = answers.run("measured_keys", **W).to_pylist()
    assert [row["program"] for row in keys] == ["broken", "fast", "lucky", "racy", "slow", "unverified", "wrong"]
    assert keys[0] == {"program": "broken", "sketch": "s2", "choices": [5]}
    assert answers.run("measured_keys", **{**W, "device": "e"})["program"].to_pylist() == ["slow"]


def test_sketch_texts(answers):
    assert answers.run("sketch_texts", workload="w").to_pylist()[0] == {
        "workload": "w", "sketch": "s1", "text": "sketch one", "rules": ["tile", "tile", "unroll"], "holes": "[]",
        "dag_text": "C[i, j] += A[i, k] * B[k, j]",
    }  # fmt: skip
    assert answers.run("sketch_texts", workload=None).num_rows == 3


def test_told_is_what_the_tuner_heard(answers):
    told = answers.run("told", **W).to_pylist()
    assert [row["program"] for row in told] == [
        "slow",
        "wrong",
        "broken",
        "fast",
        "lucky",
        "unverified",
        "racy",
        "racy",
    ]
    assert [row["seconds"] for row in told] == [ms(4), None, None, ms(2.2), ms(2.0), None, None, None]
    assert (told[3]["parents"], told[3]["mutation"], told[3]["round"]) == (["slow"], "tile-size unroll", 1)


def test_progress_counts_failures_and_leaves_the_finalists_out(answers):
    trials = answers.run("progress", run="r").to_pylist()
    assert [row["trial"] for row in trials] == list(range(1, 10))
    of_w = [row for row in trials if row["workload"] == "w"]
    assert [row["program"] for row in of_w] == [
        "slow",
        "wrong",
        "broken",
        "fast",
        "lucky",
        "unverified",
        "racy",
        "racy",
    ]
    assert [row["best_seconds"] for row in of_w] == [ms(t) for t in (4, 4, 4, 2.2, 2.0, 2.0, 2.0, 2.0)]
    assert [row["workload_trial"] for row in of_w] == list(range(1, 9))
    assert of_w[1]["seconds"] is None
    assert of_w[1]["error_kind"] == "wrong"
    assert of_w[3]["elapsed_seconds"] == 600.0


def test_errors(answers):
    errors = answers.run("errors", run="r").to_pylist()
    assert [(row["kind"], row["count"], row["programs"], row["first_message"]) for row in errors] == [
        ("wrong", 2, 2, "off by 3"), ("crash", 1, 1, "signal 11"), ("unverified", 1, 1, None),
    ]  # fmt: skip
    assert errors[0]["share"] == pytest.approx(2 / 11)
    assert answers.run("errors", run="r2").num_rows == 0
    assert answers.run("errors", run=None).num_rows == 3


def test_history_is_in_the_order_of_time(answers):
    history = answers.run("history", **W).to_pylist()
    assert len(history) == 10
    assert [row["created"] for row in history] == sorted(row["created"] for row in history)
    best = [row["best_so_far_seconds"] for row in history]
    assert best == [ms(t) for t in (4, 4, 4, 2, 1, 1, 1, 1, 1, 1)]


def test_model_quality(answers):
    rounds = [row for row in answers.run("model_quality", run="r").to_pylist() if row["workload"] == "w"]
    assert [(row["round"], row["model_rank_correlation"], row["model_recall"], row["trained_on"]) for row in rounds] == [
        (0, None, None, 0), (1, 0.7, 0.5, 4),
    ]  # fmt: skip


def test_rules_that_pay(answers):
    rows = answers.run("rules_that_pay", run="r", target=None).to_pylist()
    causes = {(row["kind"], row["name"]): row for row in rows}
    assert set(causes) == {
        ("rule", "tile"), ("rule", "unroll"), ("rule", "inline"), ("rule", "skip"),
        ("mutation", "tile-size"), ("mutation", "unroll"), ("mutation", "crossover"), ("mutation", "sampled"),
    }  # fmt: skip
    tile = causes["rule", "tile"]  # slow, wrong, fast: named twice by the sketch, counted once
    assert (tile["tried"], tile["failed"], tile["improved"]) == (3, 1, 1)
    assert tile["best_gain"] == tile["mean_gain"] == pytest.approx(4 / 2.2)
    crossover = causes["mutation", "crossover"]
    assert (crossover["improved"], crossover["improved_share"]) == (1, 1.0)
    assert crossover["best_gain"] == pytest.approx(2.2 / 2.0)
    assert causes["rule", "skip"]["improved"] == 0  # the first of a workload improves on nothing
    assert causes["rule", "skip"]["best_gain"] is None


def test_run_summary_has_the_last_word_of_each_run(answers):
    second, first = answers.run("run_summary", run=None).to_pylist()
    assert (first["run"], first["state"], first["speedup"], first["wall_seconds"]) == ("r", "finished", 2.0, 1800.0)
    counts = {"measured": 11, "failed": 4, "confirmed": 2, "workloads": 2, "rounds": 2}
    assert {name: first[name] for name in counts} == counts
    assert first["search_seconds"] == pytest.approx(0.3)
    assert (second["run"], second["state"], second["finished"], second["speedup"]) == ("r2", "running", None, None)
    assert answers.run("run_summary", run="r2").num_rows == 1


def test_tuning_cost(answers):
    cost = answers.run("tuning_cost", run="r").to_pylist()
    assert [(row["workload"], row["name"], row["rounds"], row["measured"]) for row in cost] == [
        ("v", "relu_64", 1, 1), ("w", "matmul_8x8x8", 2, 9),
    ]  # fmt: skip
    assert [row["total_seconds"] for row in cost] == [pytest.approx(10.0), pytest.approx(2.0)]
    assert [row["share"] for row in cost] == [pytest.approx(10 / 12), pytest.approx(2 / 12)]
    assert cost[1]["seconds_per_trial"] == pytest.approx(2.0 / 9)


def test_models_are_named_with_their_runs_and_where_they_ran(answers):
    assert [(m["model"], m["target"], m["device"], m["runs"]) for m in answers.run("models").to_pylist()] == [
        ("m", "cpu-x86_64-v64-t1", "e", ["r2"]), ("m", "cpu-x86_64-v64-t1", "d", ["r"]),
    ]  # fmt: skip


def test_a_run_that_measured_nothing_counts_for_the_last_device(store, make_row):
    store.append("runs", [make_row("runs", key="first"), make_row("runs", 5, key="idle", started=NOON + 5 * MINUTE)])
    assert [m["device"] for m in run(store, "models").to_pylist()] == [None]
    store.append("measurements", [make_row("measurements", run="first", device="d")])
    (found,) = run(store, "models").to_pylist()
    assert (found["device"], found["runs"]) == ("d", ["first", "idle"])


def test_model_workloads_are_those_of_the_last_run(store, make_row):
    def recorded(*keys, minute):
        store.append(
            "workloads", [make_row("workloads", minute + i / 60, key=k, model="m") for i, k in enumerate(keys)]
        )
        store.append("runs", [make_row("runs", minute + 1, key=f"at {minute}", started=NOON + minute * MINUTE)])

    question = {"model": "m", "target": "cpu-x86_64-v64-t1", "device": "d"}
    recorded("old", "b", minute=1)
    recorded("b", "a", minute=9)
    store.append("workloads", [make_row("workloads", 10, key="b", model="another")])
    store.append("measurements", [
        make_row("measurements", 1, workload="b", far_bytes=5), make_row("measurements", 2, workload="b", far_bytes=7),
        make_row("measurements", 3, workload="b", confirmed=True), make_row("measurements", 4, workload="b", device="e"),
        make_row("measurements", 2, workload="b", program="q", verified=False),
    ])  # fmt: skip
    found = run(store, "model_workloads", **question).to_pylist()
    assert [(w["workload"], w["trials"], w["failed"], w["far_bytes"]) for w in found] == [
        ("b", 3, 1, 0), ("a", 0, 0, None),
    ]  # fmt: skip


def test_device(answers):
    (found,) = answers.run("device", device="d").to_pylist()
    assert (found["peak_gflops"], found["memory"][0]["gb_per_second"]) == (90.0, 200.0)
    assert answers.run("device", device="nobody").num_rows == 0


def test_changes_compare_within_one_round(store, make_row):
    def final(minute, run, program, seconds, **more):
        return make_row("measurements", minute, run=run, program=program, best_seconds=seconds, confirmed=True, **more)

    store.append("measurements", [
        final(1, "first", "old", 4e-3), final(1, "first", "other", 5e-3),
        final(9, "second", "old", 6e-3), final(9, "second", "new", 3e-3), final(9, "second", "new", 3e-3),
        final(9, "second", "new", 1e-3, device="e"), final(9, "second", "alone", 1e-3, workload="v"),
    ])  # fmt: skip
    found = {(c["workload"], c["program"], c["gain"]): c for c in run(store, "changes", run="second").to_pylist()}
    assert set(found) == {("w", "new", 2.0), ("w", "new", None), ("v", "alone", None)}
    change = found["w", "new", 2.0]
    assert (change["before_run"], change["before_program"], change["before_seconds"]) == ("first", "old", 4e-3)
    assert (change["again_seconds"], change["seconds"]) == (6e-3, 3e-3)
    assert [c["before_run"] for c in run(store, "changes", run="first").to_pylist()] == [None]


def test_timed_programs_in_the_search_and_side_by_side(answers):
    found = answers.run("timed", **W).to_pylist()
    assert [(t["program"], t["sketch"], t["choices"]) for t in found] == [
        ("fast", "s1", [1, 1]), ("lucky", "s2", [6]), ("slow", "s1", [0, 0]),
    ]  # fmt: skip
    assert [t["search_seconds"] for t in found] == [ms(2.2), ms(2.0), ms(4)]
    assert [t["confirmed_seconds"] for t in found] == [ms(2.1), None, None]


def test_confirmed_times_are_of_the_last_round_alone(store, make_row):
    for minute, name, seconds in ((1, "first", 1e-3), (9, "second", 2e-3)):
        store.append("measurements", [make_row("measurements", minute, run=name, best_seconds=seconds, confirmed=True)])
    store.append("measurements", [make_row("measurements", 2, run="first", program="q", confirmed=True)])
    store.append("programs", [make_row("programs"), make_row("programs", key="q")])
    found = {t["program"]: t["confirmed_seconds"] for t in run(store, "timed", **W).to_pylist()}
    assert found == {"p": 2e-3, "q": None}


def test_lineage_goes_back_to_what_was_sampled(store, make_row):
    bred = (("child", ["mother", "father"], "crossover"), ("mother", ["seed"], "tile-size"), ("seed", [], None))
    store.append("programs", [
        make_row("programs", 9 - i, key=key, parents=parents, mutation=mutation, round=9 - i)
        for i, (key, parents, mutation) in enumerate(bred)
    ])  # fmt: skip
    store.append("programs", [make_row("programs", 20, key="seed", parents=["child"])])  # proposed again: no circle
    store.append("measurements", [make_row("measurements", program="mother", best_seconds=3e-3, score=2e-3)])
    found = run(store, "lineage", program="child", **W).to_pylist()
    assert [(p["step"], p["program"], p["mutation"], p["seconds"]) for p in found] == [
        (0, "child", "crossover", None), (1, "mother", "tile-size", 2e-3), (2, "seed", None, None),
    ]  # fmt: skip


# ---------------------------------------------------------------- the promises, against a model in Python

ROW = st.fixed_dictionaries({
    "program": st.sampled_from("abc"),
    "best_seconds": st.one_of(st.none(), st.sampled_from([1e-3, 2e-3, 3e-3])),
    "score": st.one_of(st.none(), st.sampled_from([1e-3, 2e-3, 3e-3])),
    "verified": st.booleans(),
    "error_kind": st.sampled_from([None, None, None, "wrong", "timeout"]),
    "confirmed": st.booleans(),
    "target": st.sampled_from(["t1", "t2"]),
    "device": st.sampled_from(["d", "e"]),
})  # fmt: skip


def median(values: list[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def expected_best(rows: list[dict]) -> tuple[str, float] | None:
    ranked = []
    for name in "abc":
        mine = [row for row in rows if (row["program"], row["target"], row["device"]) == (name, "t1", "d")]
        good = [row for row in mine if row["verified"] and row["error_kind"] is None and row["best_seconds"]]
        sure = [row["best_seconds"] for row in good if row["confirmed"]]
        if good and not any(row["error_kind"] == "wrong" for row in mine):
            ranked.append((not sure, median(sure or [row["score"] or row["best_seconds"] for row in good]), name))
    return (min(ranked)[2], min(ranked)[1]) if ranked else None


drawn = count()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(ROW, min_size=1, max_size=12))
def test_the_best_program_is_verified_confirmed_first_and_of_its_target_alone(empty, make_row, rows):
    workload = f"drawn {next(drawn)}"
    store = empty.store
    proposed = sorted({(row["program"], row["target"]) for row in rows})
    store.append("programs", [make_row("programs", key=p, target=t, workload=workload) for p, t in proposed])
    store.append("measurements", [make_row("measurements", i, workload=workload, **row) for i, row in enumerate(rows)])
    best = empty.run("best_program", workload=workload, target="t1", device="d").to_pylist()
    expected = expected_best(rows)
    assert [row["program"] for row in best] == ([expected[0]] if expected else [])
    assert [row["seconds"] for row in best] == ([pytest.approx(expected[1])] if expected else [])
    for device in ("d", None):
        [beat] = empty.run("incumbent", workload=workload, target="t1", device=device).to_pylist() or [None]
        among = "SELECT program, device, score FROM results WHERE trusted AND workload = $w AND target = 't1'"
        where, order = "AND ($d IS NULL OR device = $d)", "ORDER BY score, program, device LIMIT 1"
        [lowest] = empty.duckdb.execute(f"{among} {where} {order}", {"w": workload, "d": device}).fetchall() or [None]
        assert (beat and (beat["program"], beat["device"], beat["score"])) == lowest
