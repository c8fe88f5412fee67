"""The tuning as plain functions and as a Prefect flow: the same order, the same programs, the same report."""

from __future__ import annotations

import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from data.query import ask, skipped
from data.query import run as question
from data.schema import TABLES
from data.store import Store
from flows.plain import RequestError, Shape, plain, request
from ir.graph import ModelError

HOME = Path(__file__).parents[2]
MODEL, LONGER = "GMM.0.b1", "C1D.2.b1"  # the second is far from its roof, so that its tuning goes on
KEYS = {
    "model", "target", "threads", "trials", "seconds", "latency_before_seconds", "latency_after_seconds", "verified",
    "programs_per_second", "search_seconds", "build_seconds", "measure_seconds", "errors", "workloads",
}  # fmt: skip
WORKLOAD_KEYS = {"key", "name", "weight", "flops", "best_seconds", "gflops", "percent_of_peak", "trials"}
PARAMETERS = ("model", "trials", "budget_seconds", "threads", "store", "seed", "batch", "seq", "early_stop", "dims")


def rows(store: Path, sql: str) -> list[dict[str, Any]]:
    return list(ask(Store(store), sql).to_pylist())


def check_report(report: dict[str, Any], trials: int) -> None:
    assert set(report) >= KEYS and json.loads(json.dumps(report)) == report
    (w,) = report["workloads"]
    assert set(w) >= WORKLOAD_KEYS
    assert report["trials"] == w["trials"] == trials and report["state"] == "finished" and report["verified"]
    assert report["latency_after_seconds"] == w["best_seconds"] > 0 and report["latency_before_seconds"] > 0
    assert w["gflops"] == pytest.approx(w["flops"] / w["best_seconds"] / 1e9)


# ---------------------------------------------------------------------------------------------- plain


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, list[str]]:
    """A report, the store that it speaks of, and the events that were watched."""
    store, events = tmp_path_factory.mktemp("plain") / "store", []
    report = plain(MODEL, trials=8, store=str(store), watch=lambda event, session, about: events.append(event))
    return report, store, events


@pytest.mark.compiler
def test_a_report_says_what_happened(tuned: tuple[dict[str, Any], Path, list[str]]) -> None:
    report, store, events = tuned
    check_report(report, 8)
    assert events == ["start", "round", "confirmed", "end"]
    assert [r["n"] for r in rows(store, "SELECT count(*) AS n FROM measurements WHERE NOT confirmed")] == [8]
    assert json.loads(Path(report["report"]).read_text()) == report
    (run,) = question(Store(store), "run_summary", run=report["run"]).to_pylist()
    assert run["state"] == "finished" and run["latency_after"] == report["latency_after_seconds"]


@pytest.mark.compiler
def test_ctrl_c_keeps_what_was_recorded(tmp_path: Path) -> None:
    def interrupt(event: str, session: object, about: object) -> None:
        if event == "round":
            raise KeyboardInterrupt

    report = plain(MODEL, trials=100, store=str(tmp_path / "store"), watch=interrupt)
    assert report["state"] == "stopped" and report["trials"] == 64 and not report["verified"]
    assert report["latency_after_seconds"] > 0
    assert rows(tmp_path / "store", "SELECT state FROM unique_runs") == [{"state": "stopped"}]


def test_the_plain_way_needs_no_prefect() -> None:
    code = "import sys, flows.plain, flows.local; print(sorted({'prefect', 'pydantic'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"trials": 0}, "0 trials"),
        ({"trials": -3}, "-3 trials"),
        ({"budget_seconds": 0.0}, "budget of 0.0 s"),
        ({"budget_seconds": float("nan")}, "budget of nan s"),
        ({"threads": 0}, "0 threads"),
        ({"threads": 4096}, "cores may be used here"),
        ({"seed": -1}, "seed -1"),
        ({"batch": 0}, "batch = 0"),
        ({"seq": 0}, "seq = 0"),
        ({"dims": {"n": 0}}, "n = 0"),
    ],
)
def test_a_senseless_request_is_refused_before_anything_is_made(wrong: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=said):
        plain(MODEL, store=str(tmp_path / "store"), **wrong)
    assert not list(tmp_path.iterdir())


def test_an_unknown_model_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no model is called 'nope'"):
        plain("nope", store=str(tmp_path / "store"))
    assert not list(tmp_path.iterdir())


def test_shapes_are_part_of_a_runs_name() -> None:
    assert Shape().label("m") == "m"
    assert Shape(16, 128, {"n": 3}).label("m") == "m batch=16 seq=128 n=3"
    assert request(MODEL, 1, 2.0, 1, "s", 0, True).store.is_absolute()


# ---------------------------------------------------------------------------------------------- as a flow


def test_the_flow_takes_what_the_plain_way_takes() -> None:
    """Without importing Prefect: the deployment's parameters, and those of both ways, have the same names."""
    assert (*inspect.signature(plain).parameters,) == (*PARAMETERS, "watch")
    for deployment in yaml.safe_load((HOME / "prefect.yaml").read_text())["deployments"]:
        if deployment["entrypoint"] == "flows.tune.tune":
            assert set(deployment.get("parameters") or {}) <= set(PARAMETERS)


@pytest.mark.prefect
def test_the_flow_has_the_signature_of_the_plain_way() -> None:
    from flows.tune import tune

    flow, function = inspect.signature(tune.fn).parameters, inspect.signature(plain).parameters
    assert {n: p.default for n, p in flow.items()} == {n: p.default for n, p in function.items() if n != "watch"}
    assert set(tune.parameters.properties) == set(PARAMETERS) and tune.parameters.required == ["model"]


@pytest.mark.prefect
def test_every_stage_is_lifted_with_nothing_cached_and_nothing_persisted() -> None:
    from prefect.cache_policies import NO_CACHE
    from prefect.tasks import Task

    from tasks import policy

    lifted = [f.__closure__[0].cell_contents for f in (policy.propose, policy.build, policy.measure, policy.record)]
    assert all(isinstance(task, Task) for task in lifted)
    assert {task.name: task.retries for task in lifted} == {"propose": 0, "build": 1, "measure": 1, "record": 0}
    assert all(t.cache_policy == NO_CACHE and t.persist_result is False and t.timeout_seconds is None for t in lifted)


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.compiler
@pytest.mark.usefixtures("prefect_server")
def test_the_flow_finds_what_the_plain_way_finds(tuned: tuple[dict[str, Any], Path, list[str]], tmp_path: Path) -> None:
    """The same seed proposes the same programs, and Prefect knows what ran."""
    from prefect.client.orchestration import get_client

    from flows.tune import tune

    state = tune(MODEL, trials=8, store=str(tmp_path / "store"), return_state=True)
    assert state.is_completed()
    check_report(state.result(), 8)
    programs = "SELECT DISTINCT key FROM programs ORDER BY key"
    assert rows(tmp_path / "store", programs) == rows(tuned[1], programs)
    with get_client(sync_client=True) as client:
        assert [run.name for run in client.read_flow_runs()] == [f"tune {MODEL}"]


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.usefixtures("prefect_server")
def test_a_mistake_in_a_flow_run_says_what_is_wrong() -> None:
    from flows.tune import tune

    with pytest.raises(ModelError, match="no model is called 'nope'"):
        tune("nope")


# ---------------------------------------------------------------------------------------------- several, and killed ones


def command(store: Path, model: str, *words: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "tilewright.cli", "tune", model, "--store", str(store), "--json", *words]
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    pipe = subprocess.PIPE
    return subprocess.Popen(line, cwd=store.parent, env=environment, stdout=pipe, stderr=pipe, text=True)


def check_store(store: Path) -> None:
    """Every file can be read, and every measurement has its program."""
    for name in TABLES:
        parts = Store(store).parts(name, deep=True)
        assert not parts.skipped, parts.skipped
    orphans = (
        "SELECT count(*) AS n FROM measurements m ANTI JOIN programs p ON p.key = m.program AND p.workload = m.workload"
    )
    answer = ask(Store(store), orphans)
    assert answer.to_pylist() == [{"n": 0}] and skipped(answer) == 0


@pytest.mark.slow
@pytest.mark.compiler
def test_two_tuners_share_a_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    same = ("--plain", "--trials", "8", "--no-early-stop")  # the second may begin where the first has ended
    both = [command(store, MODEL, *same, "--seed", str(seed)) for seed in (1, 2)]
    reports = [json.loads(p.communicate(timeout=300)[0]) for p in both]
    assert [p.returncode for p in both] == [0, 0] and len({r["run"] for r in reports}) == 2
    check_store(store)
    counted = rows(store, "SELECT run, count(*) AS n FROM measurements WHERE NOT confirmed GROUP BY run")
    assert {r["run"]: r["n"] for r in counted} == {r["run"]: 8 for r in reports}


def descendants(pid: int) -> list[int]:
    """Children of a process, their children, and so on; what has gone meanwhile is left out."""
    try:
        lines = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return []
    found = [int(child) for line in lines for child in line.split()]
    return found + [d for child in found for d in descendants(child)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def outlive(family: Sequence[int], seconds: float) -> list[int]:
    """Those that are still there after so long."""
    deadline = time.monotonic() + seconds
    while any(map(alive, family)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [pid for pid in family if alive(pid)]


def kill(process: subprocess.Popen[str], seconds: float) -> Sequence[int]:
    """As a power cut would, after so long; the processes that it had."""
    time.sleep(seconds)
    family = descendants(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return family


@pytest.mark.slow
@pytest.mark.compiler
def test_a_killed_tuning_goes_on_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store, family = tmp_path / "store", []
    rng = random.Random(5)
    words = ("--plain", "--trials", "130", "--seed", "9", "--no-early-stop")
    for _ in range(3):
        family += kill(command(store, LONGER, *words), rng.uniform(2.0, 6.0))
    out, errors = (last := command(store, LONGER, *words)).communicate(timeout=300)
    assert last.returncode == 0, errors
    report = json.loads(out)
    assert report["state"] == "finished" and report["trials"] == 130
    check_store(store)
    assert len(rows(store, "SELECT DISTINCT key FROM runs")) == 1, "the killed run was continued"
    assert not outlive(family, 20.0)


def measured(store: Path) -> list[dict[str, Any]]:
    return rows(store, "SELECT * FROM measurements WHERE NOT confirmed ORDER BY created")


def has_a_round(store: Path) -> bool:
    seeds = (store / name / "seed.parquet" for name in TABLES)
    return all(seed.is_file() for seed in seeds) and bool(rows(store, "SELECT run FROM rounds"))


def kill_in_mid_run(process: subprocess.Popen[str], store: Path, seconds: float) -> tuple[Sequence[int], str]:
    """Killed when a round is in the store; the processes that it had, and their command lines."""
    deadline = time.monotonic() + seconds
    while not has_a_round(store):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"no round within {seconds:.0f} s"
        time.sleep(0.2)
    process.send_signal(signal.SIGSTOP)  # so that it starts no child while we look
    family = descendants(process.pid)
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in family if alive(pid)]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return family, " ".join(lines).replace("\0", " ")


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.compiler
def test_a_killed_flow_goes_on_under_its_key_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Prefect forgets it with its server; the store does not. The second one starts while the first one's are dying."""
    store, words = tmp_path / "store", ("--trials", "64", "--seed", "9", "--no-early-stop")
    family, lines = kill_in_mid_run(command(store, LONGER, *words), store, 240.0)
    assert "prefect server start" in lines and "child.py" in lines, "there was something to leave behind"
    before = measured(store)
    second = command(store, LONGER, *words)
    try:
        assert not outlive(family, 30.0)
        out, errors = second.communicate(timeout=300)
    finally:
        second.kill()
    assert second.returncode == 0, errors
    report, after = json.loads(out), measured(store)
    assert report["state"] == "finished" and report["trials"] == len(after) == 64
    assert 0 < len(before) < 64 and after[: len(before)] == before
    assert {row["run"] for row in after} == {report["run"]} and len(rows(store, "SELECT DISTINCT key FROM runs")) == 1
    check_store(store)


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.compiler
def test_the_command_line_brings_its_own_server_and_takes_it_away(tmp_path: Path) -> None:
    """Killed, it leaves no server; then the same command ends with one document on stdout and silence on stderr."""
    words = (tmp_path / "store", MODEL, "--trials", "8")
    family = kill(command(*words), 4.0)
    assert family, "Prefect's server was starting"
    out, errors = (second := command(*words)).communicate(timeout=300)
    assert second.returncode == 0 and errors == "", errors
    check_report(json.loads(out), 8)
    assert not [pid for pid in family if alive(pid)]
    assert "Completed" in (tmp_path / "prefect" / "prefect.log").read_text()
