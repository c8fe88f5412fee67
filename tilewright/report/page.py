"""A report as HTML. Everything is in the page; its own two scripts alone may run, and nothing may be fetched."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tasks.report import ModelReport, Report, Section, name_of
from tilewright import view
from tilewright.figures import LEVELS, NONE, bounded, figure, percent, roofs
from tilewright.report import charts
from tilewright.report.charts import Chart

HERE = Path(__file__).parent
SHARES = 20  # bars of "where the time goes"; the rest is one line


def page(report: Report, plotly: str) -> str:
    """plotly: the text of plotly.js."""
    script = (HERE / "page.js").read_text()
    return _environment().get_template("page.html").render(
        report=report, title=_title(report), style=Markup((HERE / "page.css").read_text()), policy=policy(plotly, script),
        plotly=Markup(plotly), script=Markup(script),
    )  # fmt: skip


def policy(*scripts: str) -> str:
    """A content security policy under which just these scripts run, whatever a name in the store says."""
    hashes = " ".join(f"'sha256-{b64encode(sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def _title(report: Report) -> str:
    names = dict.fromkeys(m.subject.model for m in report.models)
    return f"{name_of(', '.join(names))} – Tilewright" if names else "Tilewright"


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {
        "seconds": seconds, "duration": duration, "day": day, "figure": figure, "percent": percent, "tenths": tenths,
        "ratio": ratio, "bounded": bounded, "roofs": roofs, "name": name_of, "embedded": embedded,
    }  # fmt: skip
    made.globals |= {
        "model_charts": model_charts, "workload_curve": charts.workload_curve, "level_names": LEVELS,
        "mean_error": mean_error, "summary": summary, "shares": SHARES,
    }  # fmt: skip
    return made


def model_charts(m: ModelReport) -> Mapping[str, Chart | None]:
    """By name; None: there is nothing to draw yet."""
    drawn = (charts.latency, charts.tuning, charts.roofline, charts.ranks, charts.calibration)
    return {draw.__name__: draw(m) for draw in drawn}


def embedded(chart: Chart) -> Markup:
    """A chart as JSON inside a script element: no sign in it can end that."""
    text = json.dumps(chart, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def summary(s: Section) -> str:
    """Of a workload that is folded up."""
    p = s.placed
    if p.seconds is None:
        return "no verified program yet"
    return f"{seconds(p.seconds)} · {figure(p.gflops)} GFLOP/s · {percent(p.roof_share)} % of roof"


def mean_error(m: ModelReport) -> float | None:
    """Mean distance between predicted and measured throughput, of the rounds that had predictions."""
    known = [j.error for j in m.judgements if j.error is not None]
    return sum(known) / len(known) if known else None


# ---------------------------------------------------------------------------------------------- text


def seconds(value: float | None) -> str:
    """As on the terminal, with the sign for micro."""
    return view.seconds(value).replace(" us", " µs")


def tenths(share: float) -> str:
    """0.0123 -> 1.2, of a hundred"""
    return f"{100 * share:.1f}"


def duration(value: float | None) -> str:
    return view.duration(value) if value is not None else NONE


def ratio(value: float | None) -> str:
    return f"{value:.2f}×" if value is not None else NONE


def day(at: datetime) -> str:
    return at.strftime("%d %b %Y, %H:%M UTC")


def plotly_script() -> str:
    """Of the installed plotly, without the line ends that an HTML parser would change. Raises ImportError."""
    from plotly.offline import get_plotlyjs

    text: Any = get_plotlyjs()
    return str(text).replace("\r\n", "\n").replace("\r", "\n")
