"""The report of a bench as a page of Markdown. Every figure and every reason in it comes from the report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tilewright.peers.registry import OURS, PEERS
from tilewright.view import seconds

Report = Mapping[str, Any]
NONE = "-"
LONGEST = 200  # characters of a cell
FEW = 6  # cases that are listed by name

METHOD = """\
Every contender runs in a process of its own, all on the same cores, with the same inputs, in turns; between its turns
it is stopped. Buffers are bound before, so that a call is the work and little else; freed memory stays with its process
(glibc's thresholds are at their limits). A sample is as many calls as fill a millisecond, one at least. Times are the
smallest sample; medians stand beside ours. The peak is a loop of multiply-adds that takes turns with the others. A time
counts only if the outputs are right: within the tolerance of the reference, and where anyone differs from ONNX Runtime
by more, NumPy in double precision decides. A ratio is the time of the fastest right peer over ours: above 1, ours is
faster. Operations are counted as the definition of an operator has them, so an algorithm that needs fewer can pass the
peak."""


def page(report: Report, picture: str | None) -> str:
    """picture: where the chart lies, as seen from the page."""
    parts = [
        "# Benchmarks",
        f"Written by `{code(report['command'])}`; every figure is what that command measured.",
        f"![speed relative to the fastest contender]({picture})" if picture else "",
        "## Summary", _summary(report), _kinds(report),
        "## Cases", _cases(report),
        "## Left out", _left_out(report),
        "## How it was measured", METHOD, _settings(report), _peers(report),
    ]  # fmt: skip
    return "\n\n".join(part for part in parts if part) + "\n"


# ---------------------------------------------------------------------------------------------- tables


def _summary(report: Report) -> str:
    compared = [c for c in report["cases"] if c["ratio_to_best_peer"]]
    rows = [("the best peer of each case", len(compared), figure(report["geomean_ratio_to_best_peer"]))]
    rows += [(who, m["cases"], figure(m["geomean_ratio"])) for who, m in report["geomean_ratio_to_peer"].items()]
    least = min(compared, key=lambda c: float(c["ratio_to_best_peer"]), default=None)
    smallest = (
        f"\n\nThe smallest ratio is {figure(least['ratio_to_best_peer'])}, of {cell(least['case'])}." if least else ""
    )
    return table(("against", "cases", "ratio, geometric mean"), rows) + smallest


def _kinds(report: Report) -> str:
    rows = [
        (
            kind, k["cases"], figure(k["geomean_ratio_to_best_peer"]), figure(k["smallest_ratio_to_best_peer"]),
            figure(k["geomean_percent_of_peak"], 0),
        )
        for kind, k in report["kinds"].items()
    ]  # fmt: skip
    return table(("kind", "cases", "ratio to the best peer, geometric mean", "smallest", "% of peak"), rows)


def _cases(report: Report) -> str:
    peers = [p for p in report["peers"] if any(p in c["peers"] for c in report["cases"])]
    head = ("case", OURS, "median", "GFLOP/s", "% of peak", "% of roof", *peers, "ratio")
    rows = [(*_ours(c), *(_time(c, p) for p in peers), figure(c["ratio_to_best_peer"])) for c in report["cases"]]
    note = (
        "Times of one call; the fastest right peer in bold. The roof is the peak, or the bandwidth of the nearest cache that "
        "holds the tensors."
    )
    return f"{note}\n\n{table(head, rows)}"


def _ours(c: Report) -> tuple[str, ...]:
    time = seconds(c["seconds"]) if c["verified"] else f"{seconds(c['seconds'])} (wrong)"
    figures = (figure(c["gflops"], 1), figure(c["percent_of_peak"], 0), figure(c["percent_of_roof"], 0))
    return (c["case"], time, seconds(c["median_seconds"]), *figures)


def _time(c: Report, peer: str) -> str:
    if peer not in c["peers"]:
        return NONE
    time = seconds(c["peers"][peer])
    if peer in c["unverified_peers"]:
        return f"{time} (wrong)"
    best = min(t for p, t in c["peers"].items() if p not in c["unverified_peers"])
    return f"**{time}**" if c["peers"][peer] == best else time


def _left_out(report: Report) -> str:
    kinds = {c["case"]: c["kind"] for c in report["cases"]}
    lines = [
        f"- {who}: {cell(why)}: {cell(counted(cases, kinds))}"
        for (who, why), cases in absences(report["cases"]).items()
    ]
    for c in report["cases"]:
        wrong = dict(c["unverified_peers"]) | ({} if c["verified"] else {OURS: c["max_error"]})
        lines += [
            f"- {who}: wrong by {error:.1e} of the output's magnitude: {cell(c['case'])}"
            for who, error in wrong.items()
        ]
    lines += [f"- {cell(case)} was not measured: {cell(why)}" for case, why in report["broken"].items()]
    return "\n".join(lines) or "Nothing."


def counted(cases: Sequence[str], kinds: Mapping[str, str]) -> str:
    """The cases by name where they are few, else how many there are of which kinds."""
    if len(cases) <= FEW:
        return ", ".join(cases)
    return f"{len(cases)} cases of {', '.join(dict.fromkeys(kinds[c] for c in cases))}"


def absences(cases: Iterable[Report]) -> dict[tuple[str, str], list[str]]:
    """(peer, reason) -> the cases that it did not run."""
    found: dict[tuple[str, str], list[str]] = {}
    for c in cases:
        for who, why in c["absent"].items():
            found.setdefault((who, why), []).append(c["case"])
    return found


def _settings(report: Report) -> str:
    m = report["machine"]
    caches = ", ".join(f"L{n} {m[f'l{n}_bytes'] >> 10} KiB" for n in (1, 2, 3))
    tuned = (
        "none: first guesses" if report["untuned"] else str(report["trials"] or "none in this run; what the store knew")
    )
    rows = [
        ("date", report["date"]),
        ("machine", f"{m['model']}, {m['cores']} cores, vectors of {m['vector_bits']} bits, {caches}"),
        ("peak", f"{figure(report['peak_gflops'], 0)} GFLOP/s of float32, the largest of this run"),
        ("threads", f"{report['threads']}, {report['clock']} time"),
        ("rounds", report["rounds"]),
        ("programs tried a case", tuned),
        ("seed", report["seed"]),
        ("precision", f"{report['precision']}, for everyone"),
        ("versions", ", ".join(f"{name} {v}" for name, v in report["versions"].items())),
    ]
    return table(("setting", "value"), rows)


def _peers(report: Report) -> str:
    return table(("peer", "how it was used"), [(who, PEERS[who].about) for who in report["peers"]])


# ---------------------------------------------------------------------------------------------- text


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Figures to the right, the first column to the left; nothing where there are no rows."""
    if not rows:
        return ""
    columns = list(zip(*rows, strict=True))
    rule = ["---", *("---:" if all(map(_is_figure, column)) else "---" for column in columns[1:])]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in (head, rule, *rows))


def _is_figure(value: object) -> bool:
    return str(value).strip("*")[:1].isdigit() or value == NONE


def cell(value: object) -> str:
    """Names and messages are other people's: nothing in them may end a cell or begin a tag."""
    text = " ".join(str(value).split())[:LONGEST]
    for mark, instead in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "'"), ("[", "\\[")):
        text = text.replace(mark, instead)
    return text


def code(text: str) -> str:
    """Inside backticks, where nothing is escaped."""
    return " ".join(text.split()).replace("`", "'")


def figure(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"
