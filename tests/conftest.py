"""Options and fixtures that all tests share."""

from __future__ import annotations

import secrets

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--programs", type=int, default=0, help="random programs of each sketch in the property tests")
    parser.addoption("--seed", type=int, default=None, help="repeat the random programs of an earlier run")


@pytest.fixture(scope="session")
def fresh_seed(request: pytest.FixtureRequest) -> int:
    """New in every run, so that the tests see new programs; shown when a test fails."""
    given = request.config.getoption("--seed")
    return int(secrets.randbits(31)) if given is None else int(given)


@pytest.fixture(scope="session")
def programs_each(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--programs")) or 3
