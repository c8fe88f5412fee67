"""The report of a bench as a picture: for each kind of case how fast everyone is, relative to the fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.bench import geomean
from tilewright.errors import UsageError
from tilewright.peers.registry import OURS, PEERS

Report = Mapping[str, Any]
Speeds = dict[str, dict[str, float]]  # kind -> contender -> 0 to 1

FORMATS = (".svg", ".png", ".pdf")
COLOURS = dict(zip(
    (OURS, *PEERS), ("#d1495b", "#30638e", "#00798c", "#edae49", "#8d96a3", "#66a182", "#5b4b8a"), strict=True
))  # fmt: skip
WIDTH, HEIGHT = 0.16, 3.2  # inches: of a bar, of a panel


def drawable(path: Path) -> None:
    """Raises UsageError before anything is measured."""
    if path.suffix not in FORMATS:
        raise UsageError(f"--chart {path}: the name must end in {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise UsageError("--chart needs matplotlib; pip install 'tilewright[report]'")


def panels(cases: Sequence[Report]) -> dict[str, Speeds]:
    """Batch -> kind -> contender -> geometric mean of the smallest time of a case over the contender's."""
    grouped: dict[str, dict[str, list[dict[str, float]]]] = {}
    for c in cases:
        times = right_times(c)
        relative = {who: min(times.values()) / t for who, t in times.items()}
        grouped.setdefault(batch_of(c["case"]), {}).setdefault(c["kind"], []).append(relative)
    return {batch: {kind: _mean(found) for kind, found in kinds.items()} for batch, kinds in grouped.items()}


def right_times(c: Report) -> dict[str, float]:
    ours = {OURS: c["seconds"]} if c["verified"] else {}
    return ours | {who: t for who, t in c["peers"].items() if who not in c["unverified_peers"]}


def batch_of(name: str) -> str:
    """ "GMM.3.b16" -> "batch 16"; nothing for names without one."""
    last = name.rpartition(".b")[2]
    return f"batch {last}" if last.isdecimal() and last != name else ""


def _mean(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of those who have figures for all of it: a mean over the easier cases alone would not compare."""
    everywhere = [who for who in COLOURS if all(who in f for f in found)]
    return {who: geomean([f[who] for f in found]) or 0.0 for who in everywhere}


def draw(report: Report, path: Path) -> None:
    """Writes the file."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams.update({"svg.hashsalt": "tilewright", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    found = panels(report["cases"])
    who = [name for name in COLOURS if any(name in s for kinds in found.values() for s in kinds.values())]
    widest = max((len(kinds) for kinds in found.values()), default=1)
    size = (max(6.0, 1.5 + widest * WIDTH * (len(who) + 1.5)), max(1, len(found)) * HEIGHT + 0.6)
    figure, axes = pyplot.subplots(max(1, len(found)), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, (batch, kinds) in zip(axes[:, 0], found.items(), strict=False):
        _panel(axis, batch, kinds, who)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(who), frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, dpi=150)
    pyplot.close(figure)


def _panel(axis: Any, batch: str, kinds: Speeds, who: Sequence[str]) -> None:
    """A group of bars a kind; who has no figure has no bar."""
    step = 1 / (len(who) + 1.5)
    for i, name in enumerate(who):
        places = [k + (i - (len(who) - 1) / 2) * step for k in range(len(kinds))]
        heights = [speeds.get(name, 0.0) for speeds in kinds.values()]
        axis.bar(places, heights, step, label=name, color=COLOURS[name])
    axis.set_xticks(range(len(kinds)), [kind.replace("$", r"\$") for kind in kinds])
    axis.set_ylim(0, 1.05)
    axis.set_ylabel("speed relative to the fastest")
    axis.set_title(batch, loc="left", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", linewidth=0.4, alpha=0.5)
    axis.set_axisbelow(True)
