"""`tilewright report`: what the store knows of a model as one HTML page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright import STORE
from tilewright.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tasks.report import Report

    Page = Callable[[Report, str], str]

# fmt: off
MODEL = "A model that was tuned, or its ONNX file.  [default: those that were tuned last]"
FILE  = "Where the page goes.  [default: MODEL.html in the folder of reports beside the store]"

Model = Annotated[str | None, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)]
Out   = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help=FILE, show_default=False)]
Place = Annotated[str, typer.Option("--store", metavar="DIR", help="Where what is learnt is kept.")]
Json  = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on

NEEDED = ("plotly", "jinja2", "markupsafe")
EVERYTHING = "report"  # name of a page without a MODEL


def report(model: Model = None, output: Out = None, store: Place = STORE, json_: Json = False) -> None:
    """Write one HTML page of what the store knows: it needs nothing else, on a desk or a telephone, light or dark."""
    from tilewright.cli import print_json, pure

    with pure(json_):
        path, models = written(model, output, store)
    if json_:
        print_json({"file": str(path), "bytes": path.stat().st_size, "models": models})
    else:
        print(f"{path}: {', '.join(models) or 'nothing was tuned yet'}, {path.stat().st_size / 1e6:.1f} MB")


def written(model: str | None, output: Path | None, store: str) -> tuple[Path, list[str]]:
    """The page's place, and the models on it. Raises UsageError, StoreError."""
    from data.files import make_folder, publish
    from data.query import connect
    from data.store import Store
    from tasks.report import report as figures
    from tasks.subject import SubjectError
    from tilewright.cli import a_store

    root = a_store(store)
    path = place_of(root, model, output)
    page, plotly = _rendering()
    try:
        with connect(Store(root)) as source:
            found = figures(source, model)
    except SubjectError as error:
        raise UsageError(str(error)) from error
    make_folder(path.parent)
    publish(path, page(found, plotly).encode())
    return path, list(dict.fromkeys(m.subject.model for m in found.models))


def place_of(root: Path, model: str | None, output: Path | None) -> Path:
    """Raises UsageError: not into the store, where nothing but its own files may lie."""
    if output is None:
        name = re.sub(r"[^\w.=-]+", "-", Path(model).name.removesuffix(".onnx") if model else EVERYTHING).strip("-.")
        return root.parent / "reports" / f"{name[:100] or EVERYTHING}.html"
    path = output.absolute()
    if path == root or root in path.parents:
        raise UsageError(f"--output {output}: that lies in the store; name another place")
    if path.is_dir():
        raise UsageError(f"--output {output}: that is a folder; name a file in it")
    return path


def _rendering() -> tuple[Page, str]:
    """What makes the page, and the text of plotly.js. Raises UsageError: they are not installed."""
    try:
        from tilewright.report.page import page, plotly_script

        return page, plotly_script()
    except ImportError as error:
        missing = (error.name or "plotly").partition(".")[0]
        if missing not in NEEDED:
            raise
        raise UsageError(f"the report needs {missing}; pip install 'tilewright[report]'") from error
