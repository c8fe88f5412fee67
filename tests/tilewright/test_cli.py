"""The command line, as a newcomer and a script meet it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import tilewright
from data.schema import TABLES
from tilewright.cli import app, budget_seconds, dims_of
from tilewright.errors import BAD_INPUT, INTERRUPTED, UsageError, told
from tilewright.peers.answers import deviation, tolerance
from tilewright.view import duration, seconds, spark

HOME = Path(__file__).parents[2]
MODEL = "GMM.0.b1"
COMMANDS = ("tune", "run", "bench", "show", "sql", "report", "roofline", "explain", "doctor")


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(w) for w in words])


def started(*words: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(HOME), **environ}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def document(*words: object) -> Any:
    """What a command prints with --json."""
    done = invoke(*words, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that one small tuning has filled."""
    path = tmp_path_factory.mktemp("cli") / "store"
    document("tune", MODEL, "--plain", "--trials", 8, "--store", path)
    return path


# ---------------------------------------------------------------------------------------------- help


def test_help_names_every_command_and_waits_for_nobody(tmp_path: Path) -> None:
    begin = time.perf_counter()
    code = (
        "import sys\nfrom tilewright.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'prefect', 'xgboost', 'duckdb', 'pyarrow', 'onnx', 'numpy', 'rich.table'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
    assert all(name in done.stdout for name in COMMANDS)
    assert time.perf_counter() - begin < 5, "0.3 s on an idle machine"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help(name: str) -> None:
    done = invoke(name, "--help")
    assert done.exit_code == 0 and "Usage:" in done.stdout and "--store" in done.stdout


def test_no_command_shows_the_help() -> None:
    assert invoke().stdout == invoke("--help").stdout
    assert invoke("--version").stdout.strip() == f"tilewright {tilewright.__version__}"


# ---------------------------------------------------------------------------------------------- mistakes


def complaint(done: Result | subprocess.CompletedProcess[str]) -> str:
    """The one line of a refused command."""
    status = done.exit_code if isinstance(done, Result) else done.returncode
    assert status == BAD_INPUT and done.stdout == "" and "Traceback" not in done.stderr, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("tilewright: ")
    return line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tune"], "Missing argument 'MODEL'"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["tune", MODEL, "--frobnicate"], "No such option"),
        (["tune", MODEL, "--trials", "many"], "'--trials'"),
        (["tune", MODEL, "--trials", "0"], "0 trials: at least one"),
        (["tune", MODEL, "--trials", "-5"], "-5 trials"),
        (["tune", MODEL, "--budget", "soon"], "--budget 'soon': write a time"),
        (["tune", MODEL, "--budget", "0m"], "--budget '0m'"),
        (["tune", MODEL, "--threads", "4096"], "cores may be used here"),
        (["tune", MODEL, "--seed", "-1"], "seed -1"),
        (["tune", MODEL, "--batch", "0"], "batch = 0"),
        (["tune", MODEL, "--dim", "batch"], "--dim 'batch': write NAME=N"),
        (["tune", "resnet51"], "resnet50"),
        (["tune", "GMM.9"], "GMM.3.b1"),
        (["tune", "missing/model.onnx"], "missing/model.onnx"),
        (["run", "nope"], "no model is called 'nope'"),
        (["run", MODEL, "--rounds", "0"], "--rounds 0"),
        (["bench", "NOPE.*"], "no model fits 'NOPE.*'"),
        (["bench", MODEL, "--against", "tvm"], "no peer is called 'tvm'; there are onnxruntime, openvino"),
        (["sql", "SELECT 1", "--limit", "0"], "--limit 0"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    plain = ["--plain"] if words[0] == "tune" and len(words) > 1 else []
    place = ["--store", str(tmp_path / "store")] if words[0] in COMMANDS and len(words) > 1 else []
    assert said in complaint(invoke(*words, *plain, *place))


@pytest.mark.parametrize("words", [["sql", "SELECT 1"], ["show", "ab"]])
def test_asking_makes_no_store(words: list[str], tmp_path: Path) -> None:
    assert "there is no store at" in complaint(invoke(*words, "--store", tmp_path / "none"))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("content", [b"", b"this is no model", b"\x08\x07\x12\x04abcd"])
def test_a_malformed_file_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    said = complaint(invoke("tune", tmp_path / "bad.onnx", "--plain", "--store", tmp_path / "store"))
    assert "model" in said and not (tmp_path / "store").exists()


def onnx_file(path: Path, operator: str, shape: list[Any]) -> Path:
    onnx = pytest.importorskip("onnx")
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph([onnx.helper.make_node(operator, ["x"], ["y"], name="n")], "g", [x], [y])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_an_unknown_operator_and_an_open_dimension_are_named(tmp_path: Path) -> None:
    unknown = onnx_file(tmp_path / "unknown.onnx", "StringNormalizer", [4])
    assert "StringNormalizer" in complaint(invoke("tune", unknown, "--plain", "--store", tmp_path / "store"))
    open_ = onnx_file(tmp_path / "open.onnx", "Relu", ["some_length", 4])
    assert "some_length" in complaint(invoke("tune", open_, "--plain", "--store", tmp_path / "store"))


def test_an_unwritable_store_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in complaint(invoke("tune", MODEL, "--plain", "--store", tmp_path / "file"))
    assert "/proc/" in complaint(invoke("tune", MODEL, "--plain", "--store", "/proc/tilewright/store"))


def test_no_compiler_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    done = started("tune", MODEL, "--plain", cwd=tmp_path, PATH=str(tmp_path), TILEWRIGHT_CC="no-such-compiler")
    assert "no-such-compiler" in complaint(done) and "apt-get install gcc" in complaint(done)


def test_a_full_disk_is_one_line_and_a_bug_is_not() -> None:
    assert told(OSError(28, "No space left on device", "some/file")) == (
        "some/file: the disk is full; free some space, or name another place with --store"
    )
    assert "the disk is full" in str(told(OSError("16384 requested and 7152 written")))
    assert told(UsageError("two\nlines")) == "two lines"
    assert told(ZeroDivisionError("a fault of ours")) is None
    assert told(OSError("no number")) is None


def test_interrupted_before_the_first_program_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.plain.load", interrupt)
    done = invoke("tune", MODEL, "--plain", "--store", tmp_path / "store")
    assert done.exit_code == INTERRUPTED and len(done.stderr.splitlines()) == 1


# ---------------------------------------------------------------------------------------------- what was typed


@pytest.mark.parametrize(
    ("text", "wanted"), [("90", 90), ("90s", 90), ("30m", 1800), ("1h30m", 5400), ("0.5h", 1800), ("1m5s", 65)]
)
def test_budgets(text: str, wanted: float) -> None:
    assert budget_seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "m", "1d", "-5m", "30m1h", "nan", "1e3"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="1h30m"):
        budget_seconds(text)


def test_dimensions() -> None:
    assert dims_of(["batch=1", "a=b=7"]) == {"batch": 1, "a=b": 7}
    assert dims_of(None) is dims_of([]) is None
    with pytest.raises(UsageError, match="NAME=N"):
        dims_of(["batch=x"])


# ---------------------------------------------------------------------------------------------- results


@pytest.mark.compiler
def test_json_is_one_document_and_nothing_else(store: Path, tmp_path: Path) -> None:
    done = started(
        "tune", MODEL, "--plain", "--trials", 4, "--seed", 3, "--store", tmp_path / "s", "--json", cwd=tmp_path
    )
    assert done.returncode == 0 and done.stderr == ""
    report = json.loads(done.stdout)
    assert report["trials"] == 4 and report["model"] == MODEL
    for words in (["run", MODEL, "--check", "--rounds", "2"], ["doctor"], ["sql", "SELECT * FROM runs"]):
        done = started(*words, "--store", store, "--json", cwd=tmp_path)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        json.loads(done.stdout)


@pytest.mark.compiler
def test_run_checks_its_outputs(store: Path) -> None:
    report = document("run", MODEL, "--check", "--store", store, "--rounds", 2)
    assert report["verified"] and report["max_error"] <= report["tolerance"] and report["seconds"] > 0
    assert report["origins"] == {"tuned": 1}
    told_people = invoke("run", MODEL, "--check", "--store", store, "--rounds", 2)
    assert told_people.exit_code == 0 and "right: largest error" in told_people.stdout


@pytest.mark.compiler
def test_bench_compares_verified_figures(store: Path) -> None:
    words = ("bench", MODEL, "CAP.0", "--against", "numpy", "--store", store, "--rounds", 2)
    report = document(*words)
    product, capsule = report["cases"]
    assert report["threads"] == 1 and report["peak_gflops"] > 1
    assert product["verified"] and product["peers"]["numpy"] > 0
    assert product["ratio_to_best_peer"] == pytest.approx(product["peers"]["numpy"] / product["seconds"])
    assert product["gflops"] == pytest.approx(product["flops"] / product["seconds"] / 1e9)
    assert report["geomean_ratio_to_best_peer"] == pytest.approx(product["ratio_to_best_peer"])
    assert capsule["verified"] and not capsule["peers"] and "capsule_conv" in capsule["absent"]["numpy"]


@pytest.mark.compiler
def test_show_prints_every_form(store: Path) -> None:
    (program, *_), (workload, *_) = (
        document("sql", f"SELECT key FROM {table} ORDER BY key", "--store", store)
        for table in ("programs", "workloads")
    )
    shown = document("show", program["key"][:12], "--store", store)
    assert set(shown["forms"]) == {"DAG", "sketch", "choices", "nest", "source", "assembly"}
    assert all(shown["forms"].values()) and shown["key"] == program["key"]
    text = invoke("show", workload["key"], "--store", store).stdout
    assert text.startswith(f"workload {workload['key']}") and "--- source" in text
    assert "nothing has a key" in complaint(invoke("show", "zzz", "--store", store))
    assert "nothing has a key" in complaint(invoke("show", "", "--store", store))


@pytest.mark.compiler
def test_sql_answers_and_refuses(store: Path) -> None:
    question = "SELECT name, weight, NULL AS nothing FROM workloads"
    assert document("sql", question, "--store", store)[0]["weight"] == 1
    (header, row) = csv.reader(io.StringIO(invoke("sql", question, "--store", store, "--csv").stdout))
    assert header == ["name", "weight", "nothing"] and row[1:] == ["1", ""]
    assert "1 row" in invoke("sql", question, "--store", store).stdout
    assert "COPY" in complaint(invoke("sql", "COPY (SELECT 1) TO 'x'", "--store", store))
    assert "nowhere" in complaint(invoke("sql", "SELECT * FROM nowhere", "--store", store))
    cut = invoke("sql", "SELECT * FROM range(5)", "--limit", 2, "--store", store)
    assert cut.exit_code == 0 and "only the first 2 rows" in cut.stderr


def test_sql_alone_lists_the_tables() -> None:
    assert all(f"{name}: " in invoke("sql").stdout for name in TABLES)


@pytest.mark.compiler
def test_the_doctor_says_what_is_here_and_what_is_missing(tmp_path: Path) -> None:
    done = invoke("doctor", "--store", tmp_path / "store", "--json")
    report = json.loads(done.stdout)
    found = {f["what"]: f for f in report["findings"]}
    assert done.exit_code == 0 and report["healthy"]
    assert {"compiler", "peak", "bandwidth", "one program", "store"} <= set(found)
    assert found["one program"]["state"] == found["store"]["state"] == "ok"
    sick = started("doctor", cwd=tmp_path, TILEWRIGHT_CC="no-such-compiler")
    assert sick.returncode == 1 and "BROKEN  compiler" in sick.stdout and "apt-get install gcc" in sick.stdout


# ---------------------------------------------------------------------------------------------- the public face


@pytest.mark.compiler
def test_the_public_face(store: Path, tmp_path: Path) -> None:
    assert tilewright.load(MODEL).name == MODEL
    module = tilewright.compile(MODEL, store=str(store))
    assert isinstance(module, tilewright.Module) and module.report[0].origin == "tuned"
    a, b = np.random.default_rng(0).random((2, 1, 128, 128), dtype=np.float32)
    assert np.allclose(module(a, b), a @ b, rtol=1e-4)
    assert tilewright.compile(MODEL, store=str(tmp_path / "none" / "store")).report[0].origin == "default"
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tilewright.nonsense


# ---------------------------------------------------------------------------------------------- small things


def test_deviation_is_in_units_of_the_outputs_magnitude() -> None:
    right = np.array([1.0, -200.0, np.inf, np.nan])
    assert deviation([right], [right]) == 0
    assert deviation([right + np.array([1.0, 0, 0, 0])], [right]) == pytest.approx(1 / 200)
    assert deviation([np.zeros(4)], [right]) == deviation([right[:3]], [right]) == deviation([], [right]) == np.inf
    assert deviation([np.zeros(0)], [np.zeros(0)]) == 0 and tolerance(tilewright.load(MODEL).graph) == 1e-4


def test_figures_for_people() -> None:
    assert [seconds(t) for t in (2.5, 0.0123, 4.2e-5, 7e-9, None)] == ["2.5 s", "12.3 ms", "42 us", "7 ns", "-"]
    assert [duration(t) for t in (5, 65, 3723)] == ["5s", "1m05s", "1h02m"]
    assert spark([4.0, 2.0, 1.0]) == "█▃▁" and spark([1.0]) == "▁" and len(spark([float(i) for i in range(500)])) == 40


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing may be written where the tests are run."""
    monkeypatch.chdir(tmp_path)
    yield
