"""`tilewright import`, `export` and `sync`, as typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tilewright.cli import app
from tilewright.errors import BAD_INPUT

MODEL = "GMM.0.b1"
LINE = json.dumps({
    "i": [['["matmul_auto_scheduler_test", 128, 128, 128]', "llvm", [2, 64, 64, 0, 0, 0, 0, 0], "", 1, []], [[], []]],
    "r": [[2e-4, 1e-4], 0, 1.0, 1700000000], "v": "v0.6",
})  # fmt: skip


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(w) for w in words])


def document(*words: object) -> Any:
    done = invoke(*words)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exchange") / "store"
    document("tune", MODEL, "--plain", "--trials", 8, "--store", path, "--json")
    return path


@pytest.mark.compiler
def test_a_log_comes_in_and_stands_beside_ours(store, tmp_path):
    log = tmp_path / "others.json"
    log.write_text(f"{LINE}\n{LINE[:-20]}\n")
    done = invoke("import", log, "--store", store)
    assert done.exit_code == 0, done.stderr
    assert "1 of 2 records kept" in done.stdout and "1 not read: not JSON, or cut off" in done.stdout
    assert "tilewright sql others" in done.stdout
    (told,) = document("import", log, "--store", store, "--json")["files"]
    assert (told["kept"], told["known"], told["refused"]) == (0, 1, {"not JSON, or cut off": 1})
    (row,) = document("sql", "others", "--store", store, "--json")
    assert row["their_seconds"] == 1e-4 and row["our_seconds"] > 0
    assert row["ratio"] == pytest.approx(1e-4 / row["our_seconds"])


@pytest.mark.parametrize(("content", "said"), [
    (None, "there is no such file"), ("", "no record was found"), ("hello\n", "no record was found"),
])  # fmt: skip
def test_a_file_that_is_none_is_refused(tmp_path, content, said):
    path = tmp_path / "x.log"
    if content is not None:
        path.write_text(content)
    done = invoke("import", path, "--store", tmp_path / "store")
    assert done.exit_code == BAD_INPUT and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.compiler
def test_every_measurement_goes_out_as_t4(store, tmp_path):
    names = [r["name"] for r in document("sql", "SELECT name FROM unique_workloads", "--store", store, "--json")]
    made = invoke("export", names[0], "-o", tmp_path / "t4.json", "--store", store)
    assert made.exit_code == 0, made.stderr
    results = json.loads((tmp_path / "t4.json").read_text())["results"]
    assert len(results) >= 8 and {r["invalidity"] for r in results} <= {"correct", "compile", "runtime", "timeout"}
    assert all(r["times"]["runtimes"] for r in results if r["invalidity"] == "correct")
    assert document("export", names[0], "--store", store)["results"] == results
    for words, said in (
        (("nothing",), "nothing measured is called 'nothing'"),
        ((names[0], "-o", tmp_path), "name a file in a folder that exists"),
        ((names[0], "--threads", 7), "was not measured with 7 threads"),
    ):
        refused = invoke("export", *words, "--store", store)
        assert refused.exit_code == BAD_INPUT and said in refused.stderr


@pytest.mark.compiler
def test_the_source_of_a_winner_stays(store):
    (row,) = document("sql", "SELECT program, entry, language, text FROM sources", "--store", store, "--json")
    (best,) = document("sql", "SELECT count(*) AS n FROM programs WHERE key = (SELECT program FROM sources LIMIT 1)",
                       "--store", store, "--json")  # fmt: skip
    assert best["n"] == 1 and row["language"] == "c"
    assert f"void {row['entry']}(" in row["text"] and "#include" in row["text"]
    shown = document("show", row["program"], "--store", store, "--json")
    assert shown["forms"]["source"] in row["text"]


@pytest.mark.compiler
def test_a_store_goes_elsewhere_and_back(store, tmp_path):
    place = (tmp_path / "elsewhere").as_uri()
    refused = invoke("sync", "--store", store)
    assert refused.exit_code == BAD_INPUT and "needs an ADDRESS" in refused.stderr
    assert invoke("sync", place, "--store", store).exit_code == 0
    other = tmp_path / "other"
    told = document("sync", place, "--store", other, "--json")
    assert told["tables"]["measurements"]["received"] > 0
    count = "SELECT count(*) AS n FROM measurements"
    rows = [document("sql", count, "--store", s, "--json") for s in (store, other)]
    assert rows[0] == rows[1]
    merged = invoke("sync", "--compact", "--store", other)
    assert merged.exit_code == 0 and "parts became" in merged.stdout, merged.stderr
    assert "merged" in invoke("sync", "--store", store).stdout
    assert document("sql", count, "--store", store, "--json") == rows[0]
    bad = invoke("sync", "ftp://x/y", "--store", other)
    assert bad.exit_code == BAD_INPUT and "cannot open" in bad.stderr
