"""The README's deployments on a server of their own: deployed, run by a worker, killed in mid-run, run again."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from data.store import Store
from flows.local import QUIET
from tasks.registry import Registration, register
from tests.flows.test_tune import HOME, LONGER, MODEL, alive, check_store, descendants, has_a_round, measured, rows

pytestmark = [
    pytest.mark.slow, pytest.mark.prefect, pytest.mark.compiler, pytest.mark.xdist_group("prefect"),
]  # fmt: skip
POOL = "tilewright"
DEPLOYED = {
    "tune/resnet", "tune/mobilenet", "tune/bert", "tune/vit", "nightly/nightly", "report/report", "retrain/retrain",
    "compact/compact",
}  # fmt: skip
SECONDS = 240.0  # for anything to happen; a fraction of it is needed on an idle machine


@dataclass
class Served:
    """A server on loopback, and what is started against it."""

    environ: dict[str, str]
    port: int
    logs: Path

    def prefect(self, *words: str) -> str:
        command = [sys.executable, "-m", "prefect", "--no-prompt", *words]
        done = subprocess.run(command, cwd=HOME, env=self.environ, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.logs / f"{words[0]}.log").open("ab") as log:
            command = [sys.executable, "-m", "prefect", *words]
            return subprocess.Popen(
                command, cwd=HOME, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def ask(self, path: str, what: dict[str, Any] | None = None) -> Any:
        """The API, without a client: what it says is what everybody sees."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = json.dumps(what if what is not None else {})
        connection.request(
            "GET" if path == "/health" else "POST", f"/api{path}", body, {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status < 300, (path, answer.status, text[:300])
        return json.loads(text)

    def runs(self, name: str) -> list[dict[str, Any]]:
        return [r for r in self.ask("/flow_runs/filter") if r["name"] == name]

    def artifacts(self) -> dict[str, dict[str, Any]]:
        return {a["key"]: a for a in self.ask("/artifacts/filter")}

    def said(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in self.logs.iterdir())


def until(true: Callable[[], Any], what: str, served: Served | None = None) -> Any:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.25)
    raise AssertionError(f"{what} did not happen within {SECONDS:.0f} s\n{served.said() if served else ''}")


def cut_off(process: subprocess.Popen[bytes]) -> None:
    """As a power cut would: everything that it started is gone with it."""
    process.send_signal(signal.SIGSTOP)  # so that it starts nothing while we look
    family = [process.pid, *descendants(process.pid)]
    for pid in family:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Deployed as the README says."""
    home = tmp_path_factory.mktemp("served")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    environ = {
        **os.environ, **QUIET, "PREFECT_HOME": str(home / "prefect"), "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_WORKER_QUERY_SECONDS": "1", "PYTHONPATH": str(HOME),
    }  # fmt: skip
    (home / "logs").mkdir()
    made = Served(environ, port, home / "logs")
    server = made.start("server", "start", "--host", "127.0.0.1", "--port", str(port))
    try:
        until(lambda: _healthy(made), "the server", made)
        made.prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
        made.prefect("deploy", "--all")
        yield made
    finally:
        cut_off(server)


def _healthy(served: Served) -> bool:
    try:
        return bool(served.ask("/health"))
    except OSError:
        return False


@pytest.fixture
def worker(served: Served) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        started.append(served.start("worker", "start", "--pool", POOL, "--limit", "1"))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            cut_off(process)


def test_what_is_deployed_runs_and_leaves_rows_and_artifacts(
    served: Served, worker: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    names = {f"{d['entrypoint'].rpartition('.')[2]}/{d['name']}" for d in _deployments()}
    assert names == DEPLOYED and served.ask("/deployments/count") == len(DEPLOYED)
    (nightly,) = [d for d in served.ask("/deployments/filter") if d["name"] == "nightly"]
    assert [s["schedule"]["cron"] for s in nightly["schedules"]] == ["0 2 * * *"]

    worker()
    store = tmp_path / "store"
    given = ("model=" + MODEL, "trials=8", f"store={store}")
    words = [w for g in given for w in ("--param", g)]
    served.prefect("deployment", "run", "tune/resnet", *words, "--watch")

    (run,) = rows(store, "SELECT key, state, model, latency_after FROM unique_runs")
    assert (run["state"], run["model"]) == ("finished", MODEL) and run["latency_after"] > 0
    assert rows(store, "SELECT count(*) AS n FROM measurements WHERE NOT confirmed") == [{"n": 8}]
    found = served.artifacts()
    slug = MODEL.lower().replace(".", "-")
    assert {k: a["type"] for k, a in found.items()} == {
        f"progress-{slug}": "progress", f"workloads-{slug}": "table", f"report-{slug}": "markdown",
    }  # fmt: skip
    assert float(found[f"progress-{slug}"]["data"]) == 100.0
    (line,) = json.loads(found[f"workloads-{slug}"]["data"])
    assert line["programs"] == 8 and line["before"].endswith("us") and line["after"].endswith("us")
    assert run["key"] in found[f"report-{slug}"]["data"] and "file://" in found[f"report-{slug}"]["data"]


def test_a_night_is_deployed_too(served: Served, worker: Callable[[], subprocess.Popen[bytes]], tmp_path: Path) -> None:
    worker()
    store = Store.open(tmp_path / "store")
    register(store, Registration(MODEL, MODEL, trials=8))
    served.prefect("deployment", "run", "nightly/nightly", "--param", f"store={store.root}", "--watch")
    (night,) = rows(store.root, "SELECT registration, promoted, trials, run FROM nights")
    assert (night["registration"], night["promoted"], night["trials"]) == (f"{MODEL} t1", 1, 8)
    assert rows(store.root, "SELECT key FROM unique_runs") == [{"key": night["run"]}]
    from flows.artifacts import key

    found = served.artifacts()
    tables = {k: json.loads(found[k]["data"]) for k in ("nightly-models", "nightly-changes", "nightly-promotions")}
    assert [m["model"] for m in tables["nightly-models"]] == [f"{MODEL} t1"] and tables["nightly-changes"] == []
    assert [p["why"] for p in tables["nightly-promotions"]] == ["the first that stands"]
    assert "report" in found and found[key("roofline", MODEL)]["type"] == "table"


def test_a_worker_that_is_killed_in_mid_run_is_no_loss(
    served: Served, worker: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The next scheduled run goes on under the key of the one that was cut off, with all that it had measured."""
    store, first = tmp_path / "store", worker()
    given = (f"model={LONGER}", "trials=64", f"store={store}", "early_stop=false")
    words = [w for g in given for w in ("--param", g)]
    served.prefect("deployment", "run", "tune/mobilenet", *words)
    until(lambda: first.poll() is None and has_a_round(store), "a round of the first run", served)
    cut_off(first)
    before = measured(store)
    assert 0 < len(before) < 64

    worker()
    served.prefect("deployment", "run", "tune/mobilenet", *words, "--start-in", "1 second")
    until(
        lambda: served.runs(f"tune {LONGER}")[-1:] and _states(served) == {"RUNNING", "COMPLETED"},
        "the second run",
        served,
    )
    after = measured(store)
    assert len(after) == 64 and after[: len(before)] == before
    (run,) = rows(store, "SELECT key, state FROM unique_runs")
    assert run["state"] == "finished" and {row["run"] for row in after} == {run["key"]}
    check_store(store)


def _states(served: Served) -> set[str]:
    """The server knows nothing of the first one's end: the store does."""
    return {r["state_type"] for r in served.runs(f"tune {LONGER}")}


def _deployments() -> list[dict[str, Any]]:
    return list(yaml.safe_load((HOME / "prefect.yaml").read_text())["deployments"])
