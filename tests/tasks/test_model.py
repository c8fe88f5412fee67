"""A name or a file becomes workloads."""

from __future__ import annotations

import pytest

from tasks.model import load


@pytest.mark.parametrize(
    ("name", "turned"),
    [
        ("DEP.0.b1", False),  # every channel by itself, in long rows
        ("DEP.3.b1", True),  # rows of 7
        ("C2D.1.b1", False),  # a product of pixels
        ("C2D.2.b1", True),  # a window over 256 channels
        ("C2D.0.b1", False),  # three channels, and the result leaves
        ("CBR.1.b1", True),
    ],
)
def test_transposes_where_they_pay(name: str, turned: bool) -> None:
    assert any("transpose" in w.name for w in load(name, 1, None, None).workloads) is turned
