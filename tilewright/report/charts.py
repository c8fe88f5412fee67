"""The charts of a report, as plotly.js reads them: traces and what is special in a layout.

Colours are names such as "@accent", which the page looks up in its style sheet: it has a light and a dark one. Everything
that is the same for all charts (fonts, grids, margins) is in `page.js`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from html import escape
from math import log10, sqrt
from statistics import median
from typing import Any

from tasks.report import Curve, Judgement, ModelReport, Section, name_of
from tasks.roofline import Placed
from tasks.subject import Device
from tilewright.figures import LEVELS, bounded, figure, percent
from tilewright.view import seconds

Chart = dict[str, Any]

UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
WINDOW = 5  # rounds that a moving median takes together
SMALLEST, LARGEST = 7.0, 26.0  # diameter of a point in pixels
DASHES = {"l1": "solid", "l2": "dash", "l3": "dashdot", "dram": "dot"}
DAY = timedelta(days=1)  # to either side of a run that is alone


def chart(data: list[Chart], x: Chart, y: Chart, **layout: Any) -> Chart:
    return {"data": data, "layout": {"xaxis": x, "yaxis": y, **layout}}


def axis(title: str, **more: Any) -> Chart:
    return {"title": {"text": title}, **more}


def unit_of(largest: float) -> tuple[float, str]:
    """The unit in which a time is at least one: what it is in seconds, and its name."""
    return next(((size, name) for size, name in UNITS if largest >= size), UNITS[-1])


def label(name: str) -> str:
    """Names are other people's, and plotly.js reads tags in a text."""
    return escape(name_of(name), quote=False)


# ---------------------------------------------------------------------------------------------- time


def latency(m: ModelReport) -> Chart | None:
    """A point a run: the model with the best programs, and untuned beside it."""
    after = [(r.started, r.after) for r in m.runs if r.after]
    before = [(r.started, r.before) for r in m.runs if r.before]
    if not after and not before:
        return None
    size, unit = unit_of(max(t for _, t in (*after, *before)))
    data = [
        {
            "type": "scatter", "mode": "lines+markers", "name": name, "x": [at.isoformat() for at, _ in line],
            "y": [t / size for _, t in line], "line": {"color": colour, "width": 2}, "marker": {"color": colour, "size": 7},
            "hovertemplate": f"%{{x|%d %b %Y %H:%M}}<br>%{{y:.3~g}} {unit}<extra>{name}</extra>",
        }
        for name, line, colour in (("untuned", before, "@faint"), ("best programs", after, "@accent")) if line
    ]  # fmt: skip
    alone = {"range": [(m.last.started + side).isoformat() for side in (-DAY, DAY)]} if len(m.runs) == 1 else {}
    return chart(data, axis("", type="date", **alone), axis(f"latency [{unit}]", rangemode="tozero"), showlegend=True)


def tuning(m: ModelReport) -> Chart | None:
    """Weighted sum of the best times after so many programs; a line where each run begins."""
    if not m.curve.points:
        return None
    shapes = [
        {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": "@line", "width": 1}}
        for at in m.marks if at
    ]  # fmt: skip
    return _falling(m.curve, f"{label(m.subject.model)}: latency", "programs measured", shapes=shapes)


def workload_curve(s: Section) -> Chart | None:
    return _falling(s.curve, label(s.placed.name), "programs measured of this workload") if s.curve.points else None


def _falling(line: Curve, name: str, x: str, **layout: Any) -> Chart:
    size, unit = unit_of(line.points[0][1])
    trace = {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": [n for n, _ in line.points],
        "y": [t / size for _, t in line.points], "line": {"color": "@accent", "shape": "hv", "width": 2},
        "marker": {"color": "@accent", "size": 4}, "hovertemplate": f"after %{{x}} programs<br>%{{y:.4~g}} {unit}<extra></extra>",
    }  # fmt: skip
    return chart([trace], axis(x, rangemode="tozero"), axis(f"best time [{unit}]"), **layout)


# ---------------------------------------------------------------------------------------------- roofline


def roofline(m: ModelReport) -> Chart | None:
    """Every workload by its operations per byte of inputs and outputs, under the roofs that were measured. Where the
    tiled programs stand by what they ask each level for can be shown in the legend."""
    found = [w for w in m.workloads if w.gflops]
    if not found or not m.device.peak:
        return None
    levels = [level for level in DASHES if level in m.device.rates]
    xs = [w.intensity for w in found] + [i for w in found for i in w.intensities.values()]
    low, high = min(xs) / 2, max(*xs, 2 * m.device.peak / min(m.device.rates.values(), default=1.0)) * 2
    roofs = [_roof(m.device, level, low, high) for level in levels] or [_flat(m.device, low, high)]
    points = [_points(found, m.timed_seconds, "inputs and outputs", "@accent", lambda w: w.intensity, True)]
    points += [
        _per_level(found, m.timed_seconds, level) for level in levels if any(level in w.intensities for w in found)
    ]
    top = max(m.device.peak, *(w.gflops or 0.0 for w in found)) * 2
    bottom = min(w.gflops or top for w in found) / 2
    return chart(
        [*roofs, *points],
        axis("operations per byte", type="log", range=[log10(low), log10(high)]),
        axis("GFLOP/s", type="log", range=[log10(bottom), log10(top)]), showlegend=True,
    )  # fmt: skip


def _roof(device: Device, level: str, low: float, high: float) -> Chart:
    """Bandwidth up to where it meets the peak, then the peak."""
    rate, peak = device.rates[level], device.peak or 0.0
    name = f"{LEVELS[level]} {figure(rate)} GB/s"
    return _line(name, [low, peak / rate, high], [low * rate, peak, peak], DASHES[level])


def _flat(device: Device, low: float, high: float) -> Chart:
    return _line("peak", [low, high], [device.peak or 0.0] * 2, "solid")


def _line(name: str, x: list[float], y: list[float], dash: str) -> Chart:
    return {
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "hoverinfo": "skip",
        "line": {"color": "@muted", "width": 1.3, "dash": dash},
    }  # fmt: skip


def _per_level(found: Sequence[Placed], total: float, level: str) -> Chart:
    known = [w for w in found if level in w.intensities]
    return _points(known, total, f"from {LEVELS[level]}", "@ink", lambda w: w.intensities[level], "legendonly")


def _points(found: Sequence[Placed], total: float, name: str, colour: str, x: Any, visible: bool | str) -> Chart:
    """Areas as shares of the model's time."""
    sizes = [SMALLEST + (LARGEST - SMALLEST) * sqrt(w.total_seconds / total if total else 0.0) for w in found]
    return {
        "type": "scatter", "mode": "markers", "name": name, "visible": visible, "x": [x(w) for w in found],
        "y": [w.gflops for w in found], "text": [_said(w) for w in found],
        "marker": {"color": colour, "size": sizes, "opacity": 0.6, "line": {"width": 1, "color": "@paper"}},
        "hovertemplate": f"%{{text}}<br>%{{x:.3~g}} operations per byte ({name})<extra></extra>",
    }  # fmt: skip


def _said(w: Placed) -> str:
    speed = f"{figure(w.gflops)} GFLOP/s, {percent(w.roof_share)} % of roof"
    return f"<b>{label(w.name)}</b><br>{seconds(w.seconds)} × {w.weight}<br>{speed}<br>bound by {bounded(w)}"


# ---------------------------------------------------------------------------------------------- the cost model


def ranks(m: ModelReport) -> Chart | None:
    """Rank correlation on held-out programs, a point a round, and their moving median."""
    known = [(j.round, j.rank, j) for j in m.judgements if j.rank is not None]
    if not known:
        return None
    points = {
        "type": "scatter", "mode": "markers", "name": "a round", "x": [n for n, _, _ in known],
        "y": [r for _, r, _ in known], "text": [_judged(j) for _, _, j in known], "marker": {"color": "@faint", "size": 6},
        "hovertemplate": "%{text}<br>rank correlation %{y:.2f}<extra></extra>",
    }  # fmt: skip
    middle = [median(r for _, r, _ in known[max(0, i - WINDOW + 1) : i + 1]) for i in range(len(known))]
    line = {
        "type": "scatter", "mode": "lines", "name": f"median of {WINDOW}", "x": [n for n, _, _ in known], "y": middle,
        "line": {"color": "@accent", "width": 2}, "hoverinfo": "skip",
    }  # fmt: skip
    return chart(
        [points, line], axis("round"), axis("rank correlation, held out", range=[-0.55, 1.05]), showlegend=True
    )


def _judged(j: Judgement) -> str:
    return f"{label(j.name)}<br>round {j.round}, trained on {j.trained_on} of its programs"


def calibration(m: ModelReport) -> Chart | None:
    """Means of a round: predicted against measured throughput, relative to the best of the workload."""
    known = [(j.predicted, j.measured, j) for j in m.judgements if j.predicted is not None and j.measured is not None]
    if not known:
        return None
    diagonal = {
        "type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "hoverinfo": "skip",
        "line": {"color": "@muted", "width": 1, "dash": "dot"}, "name": "as predicted",
    }  # fmt: skip
    points = {
        "type": "scatter", "mode": "markers", "name": "a round", "x": [p for p, _, _ in known],
        "y": [q for _, q, _ in known], "text": [_judged(j) for _, _, j in known],
        "marker": {"color": "@accent", "size": 7, "opacity": 0.6},
        "hovertemplate": "%{text}<br>predicted %{x:.2f}, measured %{y:.2f}<extra></extra>",
    }  # fmt: skip
    low = min(0.0, *(p for p, _, _ in known))
    high = max(1.0, *(p for p, _, _ in known), *(q for _, q, _ in known)) + 0.05
    return chart(
        [diagonal, points], axis("predicted", range=[low, high]), axis("measured", range=[0, high]), showlegend=True
    )
