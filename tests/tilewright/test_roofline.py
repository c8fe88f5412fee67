"""`tilewright roofline` and `tilewright explain`, as a newcomer and a script meet them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.tasks.test_replay import TARGET, workload
from tests.tasks.tuned import HOSTILE, MODEL, NAMES, RUNS, hostile, searched, started, tuned
from tilewright.cli import app
from tilewright.errors import BAD_INPUT
from tilewright.figures import figure, percent, times

NAME = workload(NAMES[0])[0].name


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned(tmp_path_factory.mktemp("roofline") / "store").root


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(w) for w in words])


def complaint(done: Result) -> str:
    assert done.exit_code == BAD_INPUT and done.stdout == "", done.output
    (line,) = done.stderr.splitlines()
    return line


def test_figures_have_three_digits() -> None:
    assert [figure(x) for x in (0.1234, 1.234, 123.4, 1234.5, None)] == ["0.123", "1.23", "123", "1,234", "-"]
    assert [percent(x) for x in (0.5, 1.23, None)] == ["50", "123", "-"]
    assert [times(x) for x in (1.4, 0.8, 1.01, 0.99, None)] == [
        "1.40x slower", "1.25x faster", "the same", "the same", "-",
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------- roofline


def test_a_table_for_people(store: Path) -> None:
    done = invoke("roofline", MODEL, "--store", store)
    assert done.exit_code == 0, done.stderr
    head, names, *rows = done.stdout.splitlines()
    assert head == f"pair on {TARGET.key}: peak 90 GFLOP/s; L1 190, L2 98, L3 60, memory 14 GB/s"
    assert names.split()[:6] == ["workload", "times", "flop/B", "L1", "L2", "L3"]
    assert {row.split()[0] for row in rows[:2]} == {workload(n)[0].name for n in NAMES}
    assert "% of roof: the roof is the peak" in done.stdout and "*" not in done.stdout


def test_json_is_one_document(store: Path) -> None:
    found = json.loads(invoke("roofline", MODEL, "--store", store, "--json").stdout)
    assert (found["model"], found["device"]["peak_gflops"]) == (MODEL, 90.0)
    assert found["device"]["gb_per_second"] == {"l1": 190.0, "l2": 98.0, "l3": 60.0, "dram": 14.0}
    for w in found["workloads"]:
        assert w["confirmed"] and w["roof_share"] == pytest.approx(w["roof_seconds"] / w["seconds"])
        assert w["bound"] in {b["what"] for b in w["bounds"]} and set(w["intensities"]) <= {"l1", "l2", "l3", "dram"}


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    store = started(tmp_path / "store")
    bare = invoke("roofline", MODEL, "--store", store.root).stdout
    assert (
        "peak not known" in bare and "-: no program was verified yet" in bare and "does not describe the device" in bare
    )
    searched(store, 0)
    assert (
        "*: of the search; no finalists' round has confirmed it"
        in invoke("roofline", MODEL, "--store", store.root).stdout
    )


# ---------------------------------------------------------------------------------------------- explain


def test_an_explanation_for_people(store: Path) -> None:
    done = invoke("explain", NAME, "--store", store)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{NAME} (") and " of roof" in lines[1] and "(confirmed)" in lines[1]
    assert lines[3].startswith("bound by ") and lines[3].endswith("(estimates)")
    for title in ("steps, and the rule that made each", "what the steps gave", "what the choices gave", "bred from"):
        assert title in lines
    assert any(line.startswith("  Tile matmul") and ", structure S" in line for line in lines)
    assert any(f"of run {run}" in lines[-1] for run in RUNS)


def test_an_explanation_for_machines(store: Path) -> None:
    found = json.loads(invoke("explain", NAME, "--store", store, "--json").stdout)
    assert found["is_best"] and found["workload"]["name"] == NAME and found["lineage"][0]["program"] == found["program"]
    assert {"what", "here", "there", "ratio", "side_by_side", "others", "programs", "program"} == set(
        found["of_choices"][0]
    )
    assert all(s["rule"] for s in found["steps"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["roofline", "nope"], "no model called 'nope' was tuned; there are pair"),
        (["roofline", MODEL, "--threads", "3"], "pair was not tuned for 3 threads; it was for 1"),
        (["explain", "nope"], "nothing measured is called 'nope', and no key begins so; tilewright sql"),
        (["explain", NAME, "--threads", "3"], "was not measured with 3 threads; it was with 1"),
        (["explain"], "issing argument"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, store: Path) -> None:
    assert said in complaint(invoke(*words, "--store", store))


@pytest.mark.parametrize("command", ["roofline", "explain", "report"])
def test_asking_makes_no_store(command: str, tmp_path: Path) -> None:
    assert "there is no store at" in complaint(invoke(command, "pair", "--store", tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_hostile_names_are_printed_as_they_are(tmp_path: Path) -> None:
    store = hostile(tmp_path / "store")
    for words in (["roofline", f"</title>{HOSTILE}"], ["explain", HOSTILE]):
        done = invoke(*words, "--store", store.root)
        assert done.exit_code == 0, done.stderr
        assert HOSTILE in done.stdout
