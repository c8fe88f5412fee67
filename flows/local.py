"""The flow from a command line: with the user's Prefect server, or with one of our own that lives as long as we do.

Prefect's own temporary server is not used: it sits in our process group, so that Ctrl-C kills it before it was told of
the flow's end; it writes to our terminal; and it survives us when we are killed.
"""

from __future__ import annotations

import atexit
import fcntl
import http.client
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from flows.tuning import Watch
from tasks.outcome import Report

START_SECONDS = 300.0  # 7 s on an idle machine, over 120 s at a load of 7 a core; one that dies is noticed at once
STOP_SECONDS = 5.0
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    # One SQLite transaction a task event stalls the next flow for 10 to 30 s: write in batches.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "50",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "200",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_READ_BATCH_SIZE": "50",
}  # fmt: skip

# Of a server of our own, which has one flow and no one to look at it: it keeps the runs of the flow and of its tasks.
# What it leaves out would compete with the measurement for the same cores.
BARE = {
    "PREFECT_LOGGING_TO_API_ENABLED": "false",  # the log is a file: `log_to`
    "PREFECT_SERVER_EVENTS_STREAM_OUT_ENABLED": "false",
    **{
        f"PREFECT_SERVER_SERVICES_{service}_ENABLED": "false"
        for service in (
            "CANCELLATION_CLEANUP", "CLEANUP_RECONCILER", "EVENT_PERSISTER", "FOREMAN", "LATE_RUNS", "PAUSE_EXPIRATIONS",
            "SCHEDULER", "TRIGGERS",
        )
    },
}  # fmt: skip

# The server is killed by the kernel when we are (prctl PR_SET_PDEATHSIG), however we end; if we were gone before it
# asked for that, it does not start. Not SIGTERM: a server may wait for its connections before it heeds that.
LAUNCH = f"""
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, {int(signal.SIGKILL)})
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "prefect", "server", "start", "--no-ui", *sys.argv[2:]])
"""


class ServerError(RuntimeError):
    """Prefect's server does not start: one line with the log's place and the way out."""


def run(
    arguments: Mapping[str, Any],
    folder: Path,
    watch: Watch,
    meanwhile: Callable[[], None],
    environ: MutableMapping[str, str] = os.environ,
) -> Report:
    """The flow's report. `folder`: where Prefect's files and logs go. `meanwhile`: done while the server starts.

    Prefect is imported here, not before: it reads its settings from the environment then. Raises ServerError.
    """
    _ready(folder, meanwhile, environ)
    from flows.tune import tune

    with _watched(folder, watch):
        report: Report = tune(**arguments)
        return report


def run_night(
    arguments: Mapping[str, Any],
    folder: Path,
    watch: Watch,
    meanwhile: Callable[[], None],
    environ: MutableMapping[str, str] = os.environ,
) -> dict[str, Any]:
    """As `run`, of the flow `nightly`."""
    _ready(folder, meanwhile, environ)
    from flows.nightly import nightly

    with _watched(folder, watch):
        document: dict[str, Any] = nightly(**arguments)
        return document


def _ready(folder: Path, meanwhile: Callable[[], None], environ: MutableMapping[str, str]) -> None:
    """The environment in which Prefect may be imported, with a server in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in QUIET.items():
        environ.setdefault(name, value)
    if configured(environ):
        meanwhile()
    else:
        _serve(folder, meanwhile, environ)


@contextmanager
def _watched(folder: Path, watch: Watch) -> Iterator[None]:
    from flows.tune import WATCH

    log_to(folder / "prefect.log")
    token = WATCH.set(watch)
    try:
        yield
    finally:
        WATCH.reset(token)


def configured(environ: Mapping[str, str]) -> bool:
    """Whether the user has a Prefect server: in the environment, or in the active profile."""
    if environ.get("PREFECT_API_URL"):
        return True
    home = Path(environ.get("PREFECT_HOME") or Path.home() / ".prefect")
    try:
        known = tomllib.loads((home / "profiles.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError):  # none, or one that Prefect will complain about itself
        return False
    profile = known.get("profiles", {}).get(environ.get("PREFECT_PROFILE") or known.get("active"), {})
    return bool(profile.get("PREFECT_API_URL"))


def _serve(folder: Path, meanwhile: Callable[[], None], environ: MutableMapping[str, str]) -> None:
    """A server until this process ends, named in the environment.

    Prefect sends its last events and logs while the interpreter exits, and waits for an answer. What is registered
    before Prefect is imported runs after that.
    """
    with ExitStack() as started:
        home = started.enter_context(_home(Path(environ.get("PREFECT_HOME") or folder)))
        log = started.enter_context((folder / "server.log").open("ab"))
        environ["PREFECT_HOME"] = str(home)
        for name, value in BARE.items():
            environ.setdefault(name, value)
        port = _free_port()
        server = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(os.getpid()), "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=dict(environ), start_new_session=True,
        )  # fmt: skip
        started.callback(_stop, server)
        meanwhile()
        _wait_for(server, port, Path(log.name))
        environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
        atexit.register(started.pop_all().close)


@contextmanager
def _home(wanted: Path) -> Iterator[Path]:
    """Prefect's home, ours alone: two servers on one SQLite file block each other, so a second one gets its own."""
    wanted.mkdir(parents=True, exist_ok=True)
    with (wanted / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            aside = Path(tempfile.mkdtemp(prefix="prefect"))
            try:
                yield aside
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        else:
            yield wanted


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    way_out = f"see {log}, or tune without Prefect: --plain"
    while not _healthy(port):
        if server.poll() is not None:
            raise ServerError(f"Prefect's server ended with {server.returncode}; {way_out}")
        if time.monotonic() > deadline:
            raise ServerError(f"Prefect's server did not start within {START_SECONDS:.0f} s; {way_out}")
        time.sleep(0.1)


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)  # not urllib: no proxy may answer for us
    try:
        connection.request("GET", "/api/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def log_to(path: Path) -> None:
    """Prefect's log lines go to a file: on the terminal they would tear the live view."""
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    for name in ("", "prefect._internal", "uvicorn", "fastapi"):
        logger = logging.getLogger(name)
        for old in [h for h in logger.handlers if type(h).__module__.split(".")[0] == "prefect"]:
            logger.removeHandler(old)
        logger.addHandler(handler)
