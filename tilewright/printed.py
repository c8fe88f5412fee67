"""What the commands print for people."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from csv import writer
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tilewright import STORE
from tilewright.page import absences, counted
from tilewright.view import duration, seconds

Row = Mapping[str, Any]

TOP = 12  # workloads in a summary
WIDTH = 200  # columns where nobody looks at a screen
RULE = 100
KEY = 10  # characters of a key that tell programs apart


def console(plain: bool = False) -> Console:
    """Of stdout. Into a file or a pipe, wide enough for every column."""
    width = None if sys.stdout.isatty() else WIDTH
    return Console(no_color=plain or None, highlight=False, width=width, markup=False)


def grid(*names: str) -> Table:
    """Columns of figures; the first is a name."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(names):
        drawn.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    return drawn


# ---------------------------------------------------------------------------------------------- tune


def tuned(report: Row, plain: bool) -> None:
    before, after = report["latency_before_seconds"], report["latency_after_seconds"]
    confirmed = "best ones confirmed" if report["verified"] else "not every workload has a confirmed program"
    out = console(plain)
    took = duration(report["seconds"])
    out.print(f"{report['model']} on {report['target']}: {report['trials']} programs in {took}, {confirmed}")
    if before and after:
        out.print(f"latency {seconds(before)} untuned, {seconds(after)} tuned: {before / after:.2f} times as fast")
    out.print(_workloads(report["workloads"]))
    if report["errors"]:
        out.print("failed: " + ", ".join(f"{n} {kind}" for kind, n in report["errors"].items()))
    out.print(f"store: {report['store']}")
    out.print(f"report: {report['report']}")
    out.print(f"as a page: {page_command(report['model'], Path(report['store']))}", soft_wrap=True)


def page_command(model: str, store: Path) -> str:
    """What writes the HTML page of a model, as it can be typed here."""
    named = shutil.which("tilewright") or not sys.argv[0].endswith("tilewright")
    near = store.relative_to(Path.cwd()) if Path.cwd() in store.parents else store
    place = [] if store == Path(STORE).absolute() else ["--store", str(near)]
    return shlex.join(["tilewright" if named else sys.argv[0], "report", model, *place])


def _workloads(found: Sequence[Row]) -> Table:
    drawn = grid("workload", "times", "untuned", "best", "GFLOP/s", "% of peak", "% of roof", "programs", "program")
    for w in sorted(found, key=lambda w: -(w["best_seconds"] or 0) * w["weight"])[:TOP]:
        best = seconds(w["best_seconds"]) if w["best_seconds"] else w["broken"] or "-"
        figures = [f"{w[k]:.0f}" if w[k] else "-" for k in ("gflops", "percent_of_peak", "percent_of_roof")]
        counts = [*figures, str(w["trials"]), (w["program"] or "-")[:KEY]]
        drawn.add_row(w["name"], str(w["weight"]), seconds(w["default_seconds"]), best, *counts)
    if len(found) > TOP:
        drawn.add_row(f"... and {len(found) - TOP} more")
    return drawn


# ---------------------------------------------------------------------------------------------- run and bench


def ran(report: Row) -> None:
    origins = ", ".join(f"{n} {origin}" for origin, n in report["origins"].items()) or "none"
    times = f"{seconds(report['seconds'])} a call (median {seconds(report['median_seconds'])})"
    print(f"{report['model']}: {times}, threads: {report['threads']}, workloads: {origins}")
    if report["verified"] is not None:
        verdict = "right" if report["verified"] else "WRONG"
        error = f"largest error {report['max_error']:.1e} of the output's magnitude, allowed {report['tolerance']:.0e}"
        print(f"{verdict}: {error}, reference {report['reference']}")
    if "default" in report["origins"]:
        print(f"some workloads run a guess; tilewright tune {report['model']} finds better programs")


def benched(report: Row) -> None:
    peers = [p for p in report["peers"] if any(p in c["peers"] for c in report["cases"])]
    drawn = grid("case", "tilewright", "median", "GFLOP/s", "% of peak", *peers, "ratio", "verified")
    for c in report["cases"]:
        times = [seconds(c["peers"].get(p)) + (" (wrong)" if p in c["unverified_peers"] else "") for p in peers]
        ratio = f"{c['ratio_to_best_peer']:.2f}" if c["ratio_to_best_peer"] else "-"
        speed = (f"{c['gflops']:.1f}", f"{c['percent_of_peak']:.0f}")
        verified = "yes" if c["verified"] else f"NO ({c['max_error']:.1e})"
        drawn.add_row(c["case"], seconds(c["seconds"]), seconds(c["median_seconds"]), *speed, *times, ratio, verified)
    out = console()
    if report["cases"]:
        out.print(drawn)
    _means(report, out)
    kinds = {c["case"]: c["kind"] for c in report["cases"]}
    for (who, why), cases in absences(report["cases"]).items():
        out.print(f"no {who}: {why}: {counted(cases, kinds)}")
    for case, why in report["broken"].items():
        out.print(f"{case} was not measured: {why}")


def _means(report: Row, out: Console) -> None:
    mean = report["geomean_ratio_to_best_peer"]
    if mean:
        out.print(f"geometric mean of the ratios: {mean:.2f} (above 1: faster than the best peer)")
        each = {who: m["geomean_ratio"] for who, m in report["geomean_ratio_to_peer"].items()}
        out.print("against each: " + ", ".join(f"{who} {ratio:.2f}" for who, ratio in each.items() if ratio))
    if report["cases"]:
        peak = f"peak {report['peak_gflops']:.0f} GFLOP/s, measured beside the cases"
        out.print(f"{peak}; {report['clock']} time, threads: {report['threads']}")


# ---------------------------------------------------------------------------------------------- show and sql


def shown(found: Row, chosen: Row) -> None:
    """A workload or program; `chosen` is the program whose forms are shown."""
    print(f"{found['kind']} {found['key']}: {found['name']}, {found['flops']:.3g} operations")
    for p in found["programs"]:
        print(f"  {p['program']}  {seconds(p['seconds'])}{' confirmed' if p['confirmed'] else ''}")
    if chosen["seconds"]:
        speed = found["flops"] / chosen["seconds"] / 1e9
        print(f"program {chosen['key']}: {seconds(chosen['seconds'])}, {speed:.1f} GFLOP/s on {chosen['target']}")
    if chosen["error_kind"]:
        print(f"program {chosen['key']} failed: {chosen['error_kind']}: {chosen['error_message']}")
    for title, text in found["forms"].items():
        print(f"\n--- {title} {'-' * (RULE - len(title))}\n{text}")


def tables() -> None:
    """What there is to ask."""
    from data.schema import TABLES

    for t in TABLES.values():
        print(f"{t.name}: {t.doc}")
        for c in t.columns:
            print(f"    {c.name:<24} {c.type!s:<20} {c.doc}")


def as_csv(names: Sequence[str], found: Sequence[Row]) -> None:
    out = writer(sys.stdout)
    out.writerow(names)
    out.writerows([row[n] for n in names] for row in found)


def rows(names: Sequence[str], found: Sequence[Row]) -> None:
    drawn = grid(*names)
    for row in found:
        drawn.add_row(*(_cell(row[n]) for n in names))
    console().print(drawn)
    print(f"{len(found)} row{'' if len(found) == 1 else 's'}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
