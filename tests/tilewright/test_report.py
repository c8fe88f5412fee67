"""`tilewright report`: the command, the text of the page, and the page in a real browser."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from data.store import Store
from tests.browser import Browser, browsing, chromium
from tests.tasks.test_replay import workload
from tests.tasks.tuned import HOSTILE, MODEL, NAMES, hostile, searched, started, tuned
from tilewright.cli import app
from tilewright.commands.report import place_of
from tilewright.errors import BAD_INPUT, UsageError
from tilewright.printed import page_command

pytest.importorskip("plotly", reason="the extra `report` is not installed: pip install plotly jinja2")

PHONE, DESK = (390, 844), (1280, 900)
LARGEST = 12e6  # bytes of a page of a few models; plotly.js alone takes five


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)])


def complaint(done: Result) -> str:
    assert done.exit_code == BAD_INPUT and done.stdout == "", done.output
    (line,) = done.stderr.splitlines()
    return line


def written(store: Store, *words: object) -> Path:
    """The page of a store, beside it."""
    path = store.root.parent / "page.html"
    done = invoke(*words, "--store", store.root, "-o", path)
    assert done.exit_code == 0, done.stderr
    assert path.stat().st_size < LARGEST
    return path


def own_text(path: Path) -> str:
    """Without plotly.js."""
    return re.sub(r"<script>(?s:.){1000000,}?</script>", "", path.read_text(), count=1)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of a tuned model, of hostile names, of a search that was never confirmed, and of an empty store."""
    folder = tmp_path_factory.mktemp("pages")
    unconfirmed = started(folder / "unconfirmed/store")
    searched(unconfirmed, 0)
    return {
        "tuned": written(tuned(folder / "tuned/store"), MODEL),
        "hostile": written(hostile(folder / "hostile/store")),
        "unconfirmed": written(unconfirmed),
        "begun": written(started(folder / "begun/store")),
        "empty": written(Store.open(folder / "empty/store")),
    }


# ---------------------------------------------------------------------------------------------- the command


def test_the_page_lies_beside_the_store_or_where_one_likes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert place_of(root, None, None) == tmp_path / "reports/report.html"
    assert place_of(root, "a/net.onnx", None) == tmp_path / "reports/net.html"
    assert place_of(root, "net batch=2", None) == tmp_path / "reports/net-batch=2.html"
    assert place_of(root, "../..", None) == tmp_path / "reports/report.html"
    assert place_of(root, None, tmp_path / "mine.html") == tmp_path / "mine.html"
    with pytest.raises(UsageError, match="that lies in the store"):
        place_of(root, None, root / "runs/x.html")
    with pytest.raises(UsageError, match="that is a folder"):
        place_of(root, None, tmp_path)


def test_json_says_where_it_lies(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    found = json.loads(invoke("--store", store.root, "--json").stdout)
    assert found["file"] == str(tmp_path / "reports/report.html") and found["models"] == [] and found["bytes"] > 1e6


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tuned(tmp_path / "store").root
    assert "no model called 'nope' was tuned; there are pair" in complaint(invoke("nope", "--store", store))
    assert "that lies in the store" in complaint(invoke("--store", store, "-o", store / "x.html"))
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert complaint(invoke("--store", store)).endswith("the report needs plotly; pip install 'tilewright[report]'")
    assert not (tmp_path / "reports").exists()


def test_a_tuning_says_what_makes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.argv", [".venv/bin/tilewright"])
    assert page_command("net batch=2", tmp_path / "st") == ".venv/bin/tilewright report 'net batch=2' --store st"
    assert page_command("net", tmp_path / ".tilewright/store") == ".venv/bin/tilewright report net"
    monkeypatch.setattr("sys.argv", ["/somewhere/cli.py"])
    assert page_command("net", tmp_path / "st") == "tilewright report net --store st"
    assert page_command("net", tmp_path.parent / "st") == f"tilewright report net --store {tmp_path.parent / 'st'}"


# ---------------------------------------------------------------------------------------------- the text


def test_names_never_end_what_they_stand_in(pages: dict[str, Path]) -> None:
    text = own_text(pages["hostile"])
    assert "<script>document" not in text and text.count("</title>") == 1 and "&lt;script&gt;document.title" in text
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src &#39;none&#39;" in policy and policy.count("sha256-") == 2


def test_charts_are_json_that_no_name_can_leave(pages: dict[str, Path]) -> None:
    for page in pages.values():
        for text in re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(), re.DOTALL):
            assert set(json.loads(text)) == {"data", "layout"} and "<" not in text and "&" not in text


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("empty", "Nothing was tuned in this store yet."),
        ("begun", "2 of 2 workloads have no verified program yet, so the model has no latency."),
        ("begun", "is running: not yet ended, stopped or killed."),
        ("unconfirmed", "Not confirmed: 2 of 2 workloads"),
        ("hostile", "the store does not describe the device."),
        ("tuned", "The model took 600 µs then, 300 µs now."),
    ],
)
def test_what_is_missing_is_said(page: str, said: str, pages: dict[str, Path]) -> None:
    assert said in " ".join(pages[page].read_text().split())


# ---------------------------------------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with browsing(tmp_path_factory.mktemp("browser") / "profile") as started_browser:
        yield started_browser


def seen(test: Callable[..., None]) -> Callable[..., None]:
    """One browser serves all of these."""
    return pytest.mark.slow(pytest.mark.xdist_group("browser")(test))


MARKS = """[...document.querySelectorAll('section > .cards .chart')].map(
    (c) => [c.parentElement.querySelector('h3').textContent,
            c.querySelectorAll('.scatterlayer path.js-line, .scatterlayer path.point').length])"""
WIDTH = "[document.documentElement.scrollWidth, ...[...document.querySelectorAll('.card, .chart svg')].map(c => c.scrollWidth)]"


@seen
def test_the_page_draws_its_charts(pages: dict[str, Path], browser: Browser) -> None:
    page = browser.open(pages["tuned"], *DESK)
    assert (page.errors, page.fetched) == ([], [])
    marks = dict(page.value(MARKS))
    assert marks == {
        "Latency over time": 2 + 4, "Tuning": marks["Tuning"], "Roofline": 4 + 2, "Cost model: ranking": 1 + 2,
        "Cost model: calibration": 1 + 2,
    }  # fmt: skip
    assert marks["Tuning"] >= 3
    assert page.value("document.querySelectorAll('.bars .bar').length") == len(NAMES)
    assert page.value("document.title") == "pair – Tilewright"


@seen
def test_a_section_opens_with_its_chart_and_source(pages: dict[str, Path], browser: Browser) -> None:
    page = browser.open(pages["tuned"], *DESK)
    drawn = "document.querySelectorAll('.workload .main-svg').length"
    assert page.value(drawn) == 0  # folded up, and not drawn
    page.value("document.querySelector('.bars a').click()")
    page.waits_for(f"{drawn} > 0")
    assert page.errors == []
    text = page.value("document.querySelector('.workload[open]').textContent")
    assert "C source" in text and "void k_" in text and "structure SSRSRS" in text
    assert any(workload(name)[0].name in text for name in NAMES)


@seen
@pytest.mark.parametrize("name", ["tuned", "hostile", "unconfirmed", "begun", "empty"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_telephone_shows_it_without_scrolling_aside(
    name: str, dark: bool, pages: dict[str, Path], browser: Browser
) -> None:
    page = browser.open(pages[name], *PHONE, dark=dark)
    assert (page.errors, page.fetched) == ([], [])
    assert page.value("document.documentElement.dataset.drawn") == "yes"
    page.value("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    page.waits_for("[...document.querySelectorAll('.chart')].every((c) => c.querySelector('.main-svg'))")
    assert max(page.value(WIDTH)) <= PHONE[0]
    assert page.value("document.title").endswith("Tilewright")  # nothing that a name says was run
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) < 128) == dark


@seen
def test_colours_follow_the_scheme(pages: dict[str, Path], browser: Browser) -> None:
    line = "getComputedStyle(document.querySelector('.scatterlayer path.js-line')).stroke"
    light, dark = (browser.open(pages["tuned"], *DESK, dark=d).value(line) for d in (False, True))
    assert light.startswith("rgb") and dark.startswith("rgb") and light != dark


@seen
def test_what_a_name_says_is_shown_and_not_run(pages: dict[str, Path], browser: Browser) -> None:
    page = browser.open(pages["hostile"], *DESK)
    assert HOSTILE in page.value("document.querySelector('h2').textContent")
    assert page.value("document.querySelectorAll('h2 script, b script, td script').length") == 0
