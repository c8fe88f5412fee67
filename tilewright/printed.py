"""What the commands print for people, and for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from csv import writer
from typing import Any

from rich.console import Console
from rich.table import Table

from data.schema import TABLES
from tilewright.view import duration, seconds

TOP = 12  # workloads in a summary
WIDTH = 200  # columns where nobody looks at a screen


def document(document: Any) -> None:
    print(json.dumps(document, indent=2, default=str))


def tuned(report: dict[str, Any], plain: bool) -> None:

    before, after = report["latency_before_seconds"], report["latency_after_seconds"]
    out = console(plain)
    out.print(
        f"{report['model']} on {report['target']}: {report['trials']} programs in {duration(report['seconds'])}, "
        f"{'best ones confirmed' if report['verified'] else 'not every workload has a confirmed program'}"
    )
    if before and after:
        out.print(f"latency {seconds(before)} untuned, {seconds(after)} tuned: {before / after:.2f} times as fast")
    out.print(_workloads(report["workloads"]))
    if report["errors"]:
        out.print("failed: " + ", ".join(f"{n} {kind}" for kind, n in report["errors"].items()))
    out.print(f"store: {report['store']}, run {report['run']}")


def _workloads(rows: Sequence[dict[str, Any]]) -> Table:

    drawn = grid("workload", "times", "untuned", "best", "GFLOP/s", "% of peak", "% of roof", "programs", "program")
    ordered = sorted(rows, key=lambda w: -(w["best_seconds"] or 0) * w["weight"])
    for w in ordered[:TOP]:
        best = seconds(w["best_seconds"]) if w["best_seconds"] else w["broken"] or "-"
        figures = [f"{w[k]:.0f}" if w[k] else "-" for k in ("gflops", "percent_of_peak", "percent_of_roof")]
        drawn.add_row(
            w["name"],
            str(w["weight"]),
            seconds(w["default_seconds"]),
            best,
            *figures,
            str(w["trials"]),
            w["program"] or "-",
        )
    if len(rows) > TOP:
        drawn.add_row(f"... and {len(rows) - TOP} more")
    return drawn


def ran(report: dict[str, Any]) -> None:

    origins = ", ".join(f"{n} {origin}" for origin, n in report["origins"].items()) or "none"
    print(f"{report['model']}: {seconds(report['seconds'])} a call (median {seconds(report['median_seconds'])}), "
          f"threads: {report['threads']}, workloads: {origins}")  # fmt: skip
    if report["verified"] is not None:
        verdict = "right" if report["verified"] else "WRONG"
        print(f"{verdict}: largest error {report['max_error']:.1e} of the output's magnitude, "
              f"allowed {report['tolerance']:.0e}, reference {report['reference']}")  # fmt: skip
    if "default" in report["origins"]:
        print(f"some workloads run a guess; tilewright tune {report['model']} finds better programs")


def benched(report: dict[str, Any], peers: Sequence[str]) -> None:

    drawn = grid("case", "tilewright", "median", "GFLOP/s", "% of peak", *peers, "ratio", "verified")
    for c in report["cases"]:
        times = [seconds(c["peers"].get(p)) + (" (wrong)" if p in c["unverified_peers"] else "") for p in peers]
        ratio = f"{c['ratio_to_best_peer']:.2f}" if c["ratio_to_best_peer"] else "-"
        speed = (f"{c['gflops']:.1f}", f"{c['percent_of_peak']:.0f}")
        verified = "yes" if c["verified"] else f"NO ({c['max_error']:.1e})"
        drawn.add_row(c["case"], seconds(c["seconds"]), seconds(c["median_seconds"]), *speed, *times, ratio, verified)
    out = console()
    out.print(drawn)
    if report["geomean_ratio_to_best_peer"]:
        out.print(
            f"geometric mean of the ratios: {report['geomean_ratio_to_best_peer']:.2f} (above 1: faster than the best peer)"
        )
    out.print(
        f"peak {report['peak_gflops']:.0f} GFLOP/s, measured beside the cases; {report['clock']} time, threads: {report['threads']}"
    )
    for c in report["cases"]:
        for who, why in c["absent"].items():
            out.print(f"{c['case']}: no {who}: {why}")


def shown(document: dict[str, Any], chosen: Any) -> None:

    print(f"{document['kind']} {document['key']}: {document['name']}, {document['flops']:.3g} operations")
    for p in document["programs"]:
        print(f"  {p['program']}  {seconds(p['seconds'])}{' confirmed' if p['confirmed'] else ''}")
    if chosen["seconds"]:
        speed = document["flops"] / chosen["seconds"] / 1e9
        print(f"program {chosen['key']}: {seconds(chosen['seconds'])}, {speed:.1f} GFLOP/s on {chosen['target']}")
    if chosen["error_kind"]:
        print(f"program {chosen['key']} failed: {chosen['error_kind']}: {chosen['error_message']}")
    for title, text in document["forms"].items():
        print(f"\n--- {title} {'-' * (100 - len(title))}\n{text}")


def tables(json_: bool) -> None:

    if json_:
        document({t.name: {c.name: c.about for c in t.columns} for t in TABLES.values()})
        return
    for t in TABLES.values():
        print(f"{t.name}: {t.about}")
        for c in t.columns:
            print(f"    {c.name:<24} {c.type!s:<20} {c.about}")


def as_csv(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:

    out = writer(sys.stdout)
    out.writerow(names)
    out.writerows([row[n] for n in names] for row in rows)


def rows(names: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    drawn = grid(*names)
    for row in rows:
        drawn.add_row(
            *("" if row[n] is None else f"{row[n]:.6g}" if isinstance(row[n], float) else str(row[n]) for n in names)
        )
    console().print(drawn)
    print(f"{len(rows)} row{'' if len(rows) == 1 else 's'}")


def console(plain: bool = False) -> Any:
    """Wide enough for every column where nobody looks at a screen."""

    width = None if sys.stdout.isatty() else 200
    return Console(
        no_color=plain or None, highlight=False, width=width, soft_wrap=not sys.stdout.isatty(), markup=False
    )


def grid(*names: str) -> Table:

    drawn = Table(box=None, pad_edge=False, header_style="dim")
    for i, name in enumerate(names):
        drawn.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    return drawn
