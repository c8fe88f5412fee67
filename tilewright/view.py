"""The live view of a tuning: who watches the loop. Drawn on events alone, so that nothing runs beside a measurement."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flows.tuning import Watch, silent
from tasks.lane import Lane
from tasks.session import Session

BARS = "▁▂▃▄▅▆▇█"
SPARKS = 40
LINE_SECONDS = 5.0  # between lines where nothing can be redrawn
FIXED_LINES = 8  # of the view, besides a line a workload


@contextmanager
def watching(plain: bool, quiet: bool) -> Iterator[Watch]:
    """The view for this terminal: live on one, lines elsewhere, nothing when `quiet` and nobody looks."""
    console = Console(stderr=True, no_color=plain or None, highlight=False)
    if not console.is_terminal and quiet:
        yield silent
    elif plain or not console.is_terminal:
        yield Lines(console)
    else:
        with Picture(console) as picture:
            yield picture


def said(text: str) -> None:
    """For someone who waits: a line about what takes a while before the first figures."""
    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        console.print(text, style="dim", markup=False)


class Lines:
    """One line a round, but not more often than every few seconds."""

    def __init__(self, console: Console, every_seconds: float = LINE_SECONDS) -> None:
        self.console, self.every_seconds = console, every_seconds
        self.last = float("-inf")

    def __call__(self, event: str, session: Session, about: Any) -> None:
        if event == "start":
            self.say(f"{len(session.lanes)} workloads, {session.trials_left} trials to go, {goal(session)}")
        elif event == "round" and time.monotonic() - self.last >= self.every_seconds:
            self.last = time.monotonic()
            self.say(f"{progress(session)} · {of_lane(about.lane)}")
        elif event == "confirmed":
            self.say(f"confirmed · {of_lane(about[0])}")

    def say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True, markup=False)


class Picture:
    """A table of the workloads that cost the most, over a line of totals and the latency as it falls."""

    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.latencies: list[float] = []
        self.latest: Lane | None = None

    def __enter__(self) -> Picture:
        self.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def __call__(self, event: str, session: Session, about: Any) -> None:
        if event in ("round", "confirmed"):
            self.latest = about.lane if event == "round" else about[0]
        now = session.latency(lambda lane: lane.best_seconds or lane.default_seconds)
        self.latencies += [now] if now is not None else []
        self.live.update(self.drawn(session, "confirming" if event == "confirmed" else "searching"), refresh=True)

    def drawn(self, session: Session, doing: str) -> Group:
        head = Text.assemble(
            (session.run.model, "bold"), f" · {session.bench.target.key} · {doing} · {progress(session)}"
        )
        room = max(self.live.console.size.height - FIXED_LINES, 3)
        return Group(head, table(session, self.latest, room), self.falling(), failures(session))

    def falling(self) -> Text:
        if not self.latencies:
            return Text("estimated latency: not every workload has a program yet")
        first, now = self.latencies[0], self.latencies[-1]
        return Text.assemble(
            "estimated latency ", (seconds(now), "bold green"), f", untuned {seconds(first)}  ", spark(self.latencies)
        )


def table(session: Session, latest: Lane | None, room: int) -> Table:
    """Dearest workloads first; those that do not fit are counted in the last row."""
    drawn = Table(box=None, pad_edge=False, header_style="dim")
    drawn.add_column("workload", no_wrap=True, overflow="ellipsis", max_width=44)
    for name in ("times", "best", "GFLOP/s", "% of roof", "programs", "failed"):
        drawn.add_column(name, justify="right", no_wrap=True)
    lanes = sorted(session.lanes.values(), key=lambda lane: -(lane.best_seconds or 0.0) * lane.workload.weight)
    for lane in lanes[:room]:
        drawn.add_row(*cells(lane), style="bold" if lane is latest else "")
    if len(lanes) > room:
        drawn.add_row(f"... and {len(lanes) - room} more", style="dim")
    return drawn


def cells(lane: Lane) -> list[str]:
    w, best = lane.workload, lane.best_seconds
    known = lane.progress()
    failed = sum(lane.errors.values())
    speed = f"{w.dag.flops / best / 1e9:.1f}" if best else ""
    roof = f"{100 * lane.roofline_seconds / best:.0f}" if best else ""
    time_ = seconds(best) + ("" if lane.confirmed_seconds is None else " ✓") if best else lane.broken or "-"
    return [w.name, str(w.weight), time_, speed, roof, str(known.trials), str(failed) if failed else ""]


def of_lane(lane: Lane) -> str:
    name, _, time_, speed, roof, programs, failed = cells(lane)
    parts = [time_, speed and f"{speed} GFLOP/s", roof and f"{roof} % of roof", f"{programs} programs"]
    return f"{name}: " + ", ".join([*filter(None, parts), *([f"{failed} failed"] if failed else [])])


def progress(session: Session) -> str:
    left = time_left(session)
    done = f"{session.spent} of {session.request.trials} programs · {duration(session.elapsed)}"
    return done + (f" · about {duration(left)} left" if left is not None else "")


def goal(session: Session) -> str:
    budget = session.request.budget_seconds
    peak = f"peak {session.bench.peak_gflops:.0f} GFLOP/s"
    return f"{peak}, {duration(budget)} of time" if budget is not None else peak


def time_left(session: Session) -> float | None:
    """Seconds until trials or time are used up, whichever is first; None before there is a pace."""
    budget, spent = session.request.budget_seconds, session.spent
    guesses = [budget - session.elapsed] if budget is not None else []
    guesses += [session.elapsed / spent * session.trials_left] if spent else []
    return max(min(guesses), 0.0) if guesses else None


def failures(session: Session) -> Text:
    kinds: dict[str, int] = {}
    for lane in session.lanes.values():
        for kind, count in lane.errors.items():
            kinds[kind] = kinds.get(kind, 0) + count
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return Text(f"failed programs: {listed}" if listed else "no failed programs", style="dim")


def spark(values: list[float]) -> str:
    """Falling values as bars; the last one is the lowest."""
    shown = values if len(values) <= SPARKS else [values[i * (len(values) - 1) // (SPARKS - 1)] for i in range(SPARKS)]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(BARS[round((v - low) / span * (len(BARS) - 1))] for v in shown)


def seconds(value: float | None) -> str:
    """0.0000123 -> 12.3 us"""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def duration(value: float) -> str:
    """3723 -> 1h02m"""
    whole = round(value)
    if whole < 60:
        return f"{whole}s"
    return f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"
