"""One measuring process at a time, and a lease that ends with its holder however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.lease import VARIABLE, LeaseError, leased

HOME = Path(__file__).parents[2]
HOLD = """
import os, sys
from tasks.lease import leased
with leased(sys.argv[1], os.environ, lambda text: print("waiting:", text, flush=True)):
    print("got it", flush=True)
    sys.stdin.read()
print("gave it back", flush=True)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {VARIABLE: str(tmp_path / "leases")}


@pytest.fixture
def holders(environ: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def holder(what: str, environ: dict[str, str], started: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    environment = {**os.environ, **environ, "PYTHONPATH": str(HOME)}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", HOLD, what], env=environment, stdin=pipe, stdout=pipe, text=True)
    started.append(process)
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("kill", [False, True])
def test_who_comes_second_is_told_and_waits(
    environ: dict[str, str], holders: list[subprocess.Popen[str]], kill: bool
) -> None:
    first = holder("the tuning of a", environ, holders)
    assert line(first) == "got it"
    second = holder("the tuning of b", environ, holders)
    said = line(second)
    assert said.startswith(f"waiting: the processor is measuring for process {first.pid}: the tuning of a;")
    if kill:
        first.send_signal(signal.SIGKILL)
    else:
        first.communicate("")
    assert line(second) == "got it"


def test_a_lease_that_is_free_is_taken_without_a_word(environ: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with leased("a test", environ):
                assert "a test" in (Path(environ[VARIABLE]) / "cpu.lock").read_text()


def test_a_lock_that_was_cleaned_up_is_made_again(
    environ: dict[str, str], holders: list[subprocess.Popen[str]]
) -> None:
    """The second waits for a file that is removed meanwhile; it must not believe that it has the device by that."""
    first = holder("a", environ, holders)
    assert line(first) == "got it"
    second = holder("b", environ, holders)
    assert line(second).startswith("waiting")
    (Path(environ[VARIABLE]) / "cpu.lock").unlink()
    third = holder("c", environ, holders)
    assert line(third) == "got it", "there is no trace of the first"
    first.communicate("")
    assert line(second).startswith("waiting: the processor is measuring for process " + str(third.pid))


def test_where_no_lock_can_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = rf"cannot make .*file/below: .*; name another folder in \${VARIABLE}"
    with pytest.raises(LeaseError, match=said), leased("a test", {VARIABLE: str(tmp_path / "file" / "below")}):
        pass
    (tmp_path / "cpu.lock").symlink_to(tmp_path / "file")
    with pytest.raises(LeaseError, match="cannot open"), leased("a test", {VARIABLE: str(tmp_path)}):
        pass
