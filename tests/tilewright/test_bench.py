"""The bench: which cases, what is said of them, and that a long one survives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ir.graph import Graph, Value
from ir.zoo import build
from ir.zoo.operators import PAPER
from tilewright.bench import SUITES, bytes_of, compared, expanded, flops_of, geomean, kind_of, summed
from tilewright.chart import batch_of, draw, drawable, panels
from tilewright.cli import app
from tilewright.commands.bench import AGAINST, Wanted, tuned
from tilewright.errors import BAD_INPUT, TuningError, UsageError
from tilewright.journal import Journal
from tilewright.page import cell, page
from tilewright.peers.contender import Case
from tilewright.peers.process import PeerError
from tilewright.peers.registry import PEERS

Report = dict[str, Any]

# ---------------------------------------------------------------------------------------------- cases


def test_the_suites_are_the_papers_operators_and_the_networks() -> None:
    ops, networks = SUITES["ops"], SUITES["networks"]
    assert len(ops) == len(set(ops)) == 12 * 4 * 2 - 4 and "C3D.0.b16" not in ops
    assert {kind_of(name) for name in ops} == set(PAPER) - {"TBS"}
    assert len(networks) == 8 and {"resnet50.b1", "resnet50.b16", "resnet18_3d.b1"} < set(networks)
    assert build("mobilenet_v2.b16").values["x"].shape[0] == 16


def test_names_patterns_and_suites_are_expanded_once_each() -> None:
    assert expanded(["GMM.0.b1", "GMM.*.b1", "GMM.0.b1"]) == [f"GMM.{i}.b1" for i in range(4)]
    assert expanded(["networks", "ops"]) == [*SUITES["networks"], *SUITES["ops"]]
    assert expanded(["a file.onnx"]) == ["a file.onnx"]
    with pytest.raises(UsageError, match="no model fits 'X"):
        expanded(["X*"])


def test_operations_are_those_of_the_shape_that_runs() -> None:
    case = Case("GMM", 16, None, None, 1, "store")
    assert flops_of(case, case.loaded()) == 2 * 16 * 128**3
    graph = Graph("g", ("x",), ("y",), (), {n: Value(n, (3, 4), "float16") for n in "xy"}, {})
    assert bytes_of(graph) == 48


# ---------------------------------------------------------------------------------------------- reports


def row(case: str, seconds: float = 1e-3, peers: Report | None = None, **more: Any) -> Report:
    """A finished case as `Bench.measured` gives it: 1 GFLOP, a peak of 2 TFLOP/s."""
    times = peers or {}
    wrong = more.get("unverified_peers", {})
    rivals = [t for who, t in times.items() if who not in wrong]
    return {
        "case": case, "kind": kind_of(case), "peak_gflops": 2000.0, "absent": {}, "origins": {"tuned": 1},
        "seconds": seconds, "median_seconds": 2 * seconds, "flops": 1e9, "gflops": 1 / seconds,
        "roofline_seconds": 5e-4, "percent_of_peak": 0.05 / seconds, "percent_of_roof": 0.05 / seconds,
        "verified": True, "max_error": 1e-6, "tolerance": 1e-4, "reference": "onnxruntime", "peers": times,
        "peer_medians": times, "unverified_peers": {}, "ratio_to_best_peer": min(rivals) / seconds if rivals else None,
        **more,
    }  # fmt: skip


ABOUT: Report = {
    "date": "2026-01-02 03:04+00:00", "trials": 256, "untuned": False, "rounds": 9, "seed": 7, "batch": 1, "seq": None,
    "dims": {}, "threads": 1, "clock": "processor", "precision": "float32", "peers": ["onnxruntime", "torch", "numpy"],
    "versions": {"tilewright": "0.1", "numpy": "2.4"},
    "machine": {"model": "a processor", "arch": "x86_64", "cores": 2, "vector_bits": 512, "l1_bytes": 32768,
                "l2_bytes": 1 << 20, "l3_bytes": 32 << 20},
}  # fmt: skip
ROWS = [
    row("GMM.0.b1", 1e-3, {"onnxruntime": 2e-3, "numpy": 4e-3}),
    row("GMM.1.b16", 2e-3, {"onnxruntime": 1e-3, "numpy": 8e-3}),
    row("CAP.0.b1", 1e-3, {"onnxruntime": 5e-4, "torch": 3e-3}, unverified_peers={"onnxruntime": float("inf")},
        absent={"numpy": "NumPy has no capsule_conv"}, ratio_to_best_peer=3.0),
    row("my|<b>model`\n.onnx", 1e-3, {"torch": 9e-3}, verified=False, max_error=0.5, ratio_to_best_peer=None),
]  # fmt: skip


def document(rows: list[Report] | None = None, broken: Report | None = None) -> Report:
    return {"command": "tilewright bench ops", **summed(ABOUT, ROWS if rows is None else rows, broken or {})}


def test_means_are_over_what_is_right() -> None:
    report = document()
    assert report["geomean_ratio_to_best_peer"] == pytest.approx((2 * 0.5 * 3) ** (1 / 3))
    assert report["smallest_ratio_to_best_peer"] == 0.5
    assert report["geomean_ratio_to_peer"] == {
        "onnxruntime": {"cases": 2, "geomean_ratio": pytest.approx(1.0)},
        "torch": {"cases": 1, "geomean_ratio": pytest.approx(3.0)},
        "numpy": {"cases": 2, "geomean_ratio": pytest.approx(4.0)},
    }
    assert report["kinds"]["GMM"]["geomean_ratio_to_best_peer"] == pytest.approx(1.0)
    assert report["kinds"]["GMM"]["geomean_percent_of_peak"] == pytest.approx((50 * 25) ** 0.5)
    empty = document([])
    assert empty["geomean_ratio_to_best_peer"] is None and empty["peak_gflops"] is None and geomean([]) is None


def test_the_page_says_everything_and_nothing_breaks_it() -> None:
    text = page(document(broken={"T2D.0.b1": "tilewright: its process ended with 1"}), "a%20chart.svg")
    assert "Written by `tilewright bench ops`" in text and "](a%20chart.svg)" in text
    assert "| GMM.0.b1 | 1 ms | 2 ms | 1000.0 | 50 | 50 | **2 ms** | - | 4 ms | 2.00 |" in text
    assert "| CAP.0.b1 | 1 ms | 2 ms | 1000.0 | 50 | 50 | 500 us (wrong) | **3 ms** | - | 3.00 |" in text
    assert "| my\\|&lt;b>model' .onnx | 1 ms (wrong) |" in text
    assert "- numpy: NumPy has no capsule_conv: CAP.0.b1" in text
    assert "- onnxruntime: wrong by inf of the output's magnitude: CAP.0.b1" in text
    assert "- T2D.0.b1 was not measured: tilewright: its process ended with 1" in text
    assert all(str(f) in text for f in ("2026-01-02", "a processor", "numpy 2.4", "| seed | 7 |", "| 256 |"))
    assert "The smallest ratio is 0.50, of GMM.1.b16." in text
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| ")]
    blocks = re.split(r"\n\n", text)
    assert len(widths) > 20 and all(
        len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
        for block in blocks
        if block.startswith("| ")
    )


def test_a_page_of_nothing_is_a_page() -> None:
    text = page(document([]), None)
    assert text.startswith("# Benchmarks\n") and "![" not in text and "Nothing." in text


def test_cells_are_bounded() -> None:
    assert len(cell("x" * 10_000)) == 200 and cell("a\n|b") == "a \\|b"


def test_panels_compare_only_where_all_have_figures() -> None:
    found = panels(ROWS)
    assert found["batch 1"]["GMM"] == {"tilewright": 1.0, "onnxruntime": 0.5, "numpy": 0.25}
    assert found["batch 16"]["GMM"] == {"tilewright": 0.5, "onnxruntime": 1.0, "numpy": pytest.approx(0.125)}
    assert found["batch 1"]["CAP"] == {"tilewright": 1.0, "torch": pytest.approx(1 / 3)}
    more = panels([*ROWS, row("GMM.2.b1", 1e-3, {"onnxruntime": 5e-4})])
    assert set(more["batch 1"]["GMM"]) == {"tilewright", "onnxruntime"}
    assert [batch_of(n) for n in ("GMM.0.b16", "resnet50.b1", "x.bin", "resnet50")] == ["batch 16", "batch 1", "", ""]


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_chart_is_drawn(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(document(), tmp_path / f"chart{suffix}")
    drawn = (tmp_path / f"chart{suffix}").read_bytes()
    assert drawn.startswith({".svg": b"<?xml", ".png": b"\x89PNG"}[suffix])
    if suffix == ".svg":
        assert all(name.encode() in drawn for name in ("GMM", "CAP", "tilewright", "onnxruntime", "batch 16"))
    draw(document([]), tmp_path / f"empty{suffix}")


def test_what_cannot_be_drawn_is_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"must end in \.svg, \.png, \.pdf"):
        drawable(Path("chart.jpg"))
    monkeypatch.setattr("tilewright.chart.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'tilewright\[report\]'"):
        drawable(Path("chart.svg"))


# ---------------------------------------------------------------------------------------------- long benches


def test_a_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    Journal(path, ABOUT).add(ROWS[0])
    with path.open("a") as file:
        file.write('{"case": "GMM.1.b1", "sec')  # killed while it wrote
    later = Journal(path, {**ABOUT, "date": "2027-01-01 00:00+00:00"})
    assert later.done == {"GMM.0.b1": ROWS[0]} and later.about["date"] == ABOUT["date"]
    later.add(ROWS[1])
    assert list(Journal(path, ABOUT).done) == ["GMM.0.b1", "GMM.1.b16"]
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": 2}, "threads was 1, not 2"),
        ({"versions": {**ABOUT["versions"], "numpy": "3"}}, "versions.numpy was 2.4, not 3"),
    ],
)
def test_a_journal_of_other_settings_is_refused(change: Report, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    Journal(path, ABOUT)
    with pytest.raises(UsageError, match=re.escape(said)):
        Journal(path, {**ABOUT, **change})


@pytest.mark.parametrize("content", ["something else", '{"a": 1}\n', "[1]\n[2]\n", "\n"])
def test_a_file_of_something_else_is_left_alone(content: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(content)
    with pytest.raises(UsageError, match="is no file of a bench"):
        Journal(path, ABOUT)
    assert path.read_text() == content


@dataclass
class Planned:
    """Stands for a bench whose figures are known, and one of whose cases breaks."""

    breaks: str = ""
    ran: list[str] = field(default_factory=list)

    def measured(self, case: Case) -> Report:
        self.ran.append(case.model)
        if case.model == self.breaks:
            raise PeerError("tilewright: its process ended with -11: no message")
        return row(case.model, 1e-3, {"numpy": 2e-3})


def test_a_broken_case_ends_nothing_and_is_tried_again(tmp_path: Path) -> None:
    cases = [Case(f"GMM.{i}.b1", 1, None, None, 1, "store") for i in range(3)]
    first, second, prepared = Planned("GMM.1.b1"), Planned(), []
    path = tmp_path / "cases.jsonl"
    report = compared(cases, first, Journal(path, ABOUT), lambda c: prepared.append(c.model), lambda text: None)  # type: ignore[arg-type]
    assert [c["case"] for c in report["cases"]] == ["GMM.0.b1", "GMM.2.b1"]
    assert report["broken"] == {"GMM.1.b1": "tilewright: its process ended with -11: no message"}
    again = compared(cases, second, Journal(path, ABOUT), lambda c: None, lambda text: None)  # type: ignore[arg-type]
    assert second.ran == ["GMM.1.b1"] and prepared == [c.model for c in cases]
    assert [c["case"] for c in again["cases"]] == [c.model for c in cases] and not again["broken"]


def test_a_fault_of_ours_is_not_hidden(tmp_path: Path) -> None:
    def fault(case: Case) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compared([Case("GMM.0.b1", 1, None, None, 1, "s")], Planned(), Journal(None, ABOUT), fault, print)  # type: ignore[arg-type]


def test_a_tuning_that_fails_has_last_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = Case("GMM.9.b1", 1, None, None, 1, str(tmp_path / "store"))
    with pytest.raises(TuningError, match=r"tuning ended with 2: no model is called 'GMM\.9\.b1'"):
        tuned(case, 4, 0, quiet=True)
    assert "GMM.9.b1" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- the command


def test_the_help_names_every_peer() -> None:
    assert all(name in AGAINST for name in PEERS)


def test_the_command_on_the_page_can_be_typed_again() -> None:
    wanted = Wanted(("ops", "a b.onnx"), "numpy", 0, True, 2, "s", 1, 64, {"n": 3}, 9, 0)
    assert wanted.command == (
        "tilewright bench ops 'a b.onnx' --against numpy --threads 2 --untuned --rounds 9 --seed 0 --seq 64 --dim n=3"
    )


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rounds", 0], "--rounds 0"),
        (["--trials", -1], "--trials -1"),
        (["--seed", -1], "--seed -1"),
        (["--trials", 8, "--untuned"], "choose one of them"),
        (["--markdown", "nowhere/page.md"], "--markdown nowhere/page.md"),
        (["--resume", "."], "--resume ."),
        (["--chart", "chart.txt"], "--chart chart.txt"),
    ],
)
def test_a_mistake_is_one_line(words: list[object], said: str) -> None:
    done = invoke("GMM.0.b1", *words)
    assert done.exit_code == BAD_INPUT and said in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.compiler
def test_a_bench_from_tuning_to_page(tmp_path: Path) -> None:
    words = (
        "GMM.0.b1", "NRM.0.b1", "--against", "numpy", "--trials", 4, "--rounds", 2, "--seed", 5,
        "--store", tmp_path / "store", "--resume", "cases.jsonl", "--markdown", "page.md", "--json",
    )  # fmt: skip
    done = invoke(*words)
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    product, norm = report["cases"]
    assert product["verified"] and product["origins"] == {"tuned": 1} and product["kind"] == "GMM"
    assert product["ratio_to_best_peer"] == pytest.approx(product["peers"]["numpy"] / product["seconds"])
    assert product["percent_of_roof"] <= 150 and product["median_seconds"] >= product["seconds"]
    assert norm["verified"] and norm["peers"]["numpy"] > 0
    assert report["seed"] == 5 and report["trials"] == 4 and report["versions"]["numpy"] and report["machine"]["model"]
    assert report["command"].startswith("tilewright bench GMM.0.b1 NRM.0.b1 --against numpy --threads 1 --trials 4")
    text = Path("page.md").read_text()
    assert "| GMM.0.b1 |" in text and str(tmp_path) not in text
    again = json.loads(invoke(*words).stdout)
    assert again == report, "nothing is measured twice"


@pytest.mark.compiler
def test_untuned_is_what_a_newcomer_gets(tmp_path: Path) -> None:
    words = ("GMM.0.b1", "--against", "numpy", "--rounds", 1, "--store", tmp_path / "store")
    assert invoke(*words, "--trials", 4, "--json").exit_code == 0
    report = json.loads(invoke(*words, "--untuned", "--json").stdout)
    assert report["untuned"] and report["cases"][0]["origins"] == {"default": 1}
    printed = invoke(*words)
    assert printed.exit_code == 0 and "against each: numpy" in printed.stdout
    (tmp_path / "store.untuned").mkdir()
    assert "store.untuned" in invoke(*words, "--untuned").stderr


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
