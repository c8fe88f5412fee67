"""Options and fixtures that all tests share: random programs, golden texts, a home and a server for Prefect."""

from __future__ import annotations

import difflib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

START_SECONDS = 120  # of Prefect's server; 7 s on an idle machine
HOME = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--programs", type=int, default=0, help="random programs of each sketch in the property tests")
    parser.addoption("--seed", type=int, default=None, help="repeat the random programs of an earlier run")
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing them")


def pytest_configure(config: pytest.Config) -> None:
    """Before anyone imports Prefect, which reads its settings and makes its home then."""
    config.stash[HOME] = tempfile.mkdtemp(prefix="prefect-home")
    os.environ["PREFECT_HOME"] = config.stash[HOME]
    os.environ["TILEWRIGHT_LEASES"] = str(Path(config.stash[HOME]) / "leases")  # tests run side by side all the same
    os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
    os.environ["DO_NOT_TRACK"] = "1"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.pop("PREFECT_API_URL", None)  # tests never write to a user's server


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[HOME], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a server run in one process, so that one server serves them (pytest-xdist, --dist=loadgroup)."""
    for item in items:
        if item.get_closest_marker("prefect") and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group("prefect"))


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """Prefect's temporary server and database."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=START_SECONDS):
        yield


@pytest.fixture(scope="session")
def fresh_seed(request: pytest.FixtureRequest) -> int:
    """New in every run, so that the tests see new programs; shown when a test fails."""
    given = request.config.getoption("--seed")
    return int(secrets.randbits(31)) if given is None else int(given)


@pytest.fixture(scope="session")
def programs_each(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--programs")) or 3


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden("gemm.c", text): equal to `golden/gemm.c` beside the test. `--update-golden` writes it."""
    folder = request.path.parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if request.config.getoption("--update-golden"):
            folder.mkdir(exist_ok=True)
            path.write_text(text)
            return
        wanted = path.read_text() if path.is_file() else ""
        changes = difflib.unified_diff(wanted.splitlines(), text.splitlines(), str(Path(name)), "now", lineterm="")
        assert text == wanted, "\n".join([*changes, "if this is meant: pytest --update-golden"])

    return check
