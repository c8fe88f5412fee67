"""The bench: cases x contenders, timed in turns in one run, and only verified figures compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from ir.graph import ModelError
from ir.zoo import names, paper_shape
from ir.zoo.operators import PAPER
from tasks.model import Model
from tilewright.errors import UsageError
from tilewright.peers import OURS, PEAK, PEERS, Entry, Process, agreed, deviation, interleaved, started, tolerance

Report = dict[str, Any]
Say = Callable[[str], None]


def expanded(patterns: Sequence[str]) -> list[str]:
    """ "GMM.*" -> every known name that fits; anything else stands as it is. Raises UsageError."""
    out: list[str] = []
    for p in patterns:
        found = [n for n in names() if fnmatchcase(n, p)] if set(p) & set("*?[") else [p]
        if not found:
            raise UsageError(f"no model fits {p!r}; names are such as {', '.join(names()[:3])}, GMM.3.b1")
        out += found
    return list(dict.fromkeys(out))


def contenders(against: str) -> list[str]:
    """ "onnxruntime,numpy" -> the peers. Raises UsageError."""
    asked = [name.strip() for name in against.split(",") if name.strip()]
    for name in asked:
        if name not in PEERS:
            raise UsageError(f"no peer is called {name!r}; there are {', '.join(PEERS)}")
    return list(dict.fromkeys(asked))


def compared(entries: Sequence[Entry], peers: Sequence[str], rounds: int, say: Say) -> Report:
    """`entries`: ours, one a case. Times are the smallest samples; medians stand beside them."""
    cases = []
    for number, e in enumerate(entries, 1):
        say(f"[{number}/{len(entries)}] {e.model}")
        cases.append(case(e, peers, rounds))
    ratios = [c["ratio_to_best_peer"] for c in cases if c["ratio_to_best_peer"]]
    peaks = [c["peak_gflops"] for c in cases]
    return {
        "threads": entries[0].threads, "clock": "processor" if entries[0].threads == 1 else "wall", "rounds": rounds,
        "peak_gflops": max(peaks), "cases": cases,
        "geomean_ratio_to_best_peer": exp(sum(map(log, ratios)) / len(ratios)) if ratios else None,
    }  # fmt: skip


def case(e: Entry, peers: Sequence[str], rounds: int) -> Report:
    """One model. ratio_to_best_peer: the fastest verified peer's time over ours, above 1 when we are faster."""
    model = e.loaded()
    with started([e, replace(e, who=PEAK), *(replace(e, who=p) for p in peers)]) as (processes, folder):
        able = [p for p in processes if p.absent is None]
        outputs = {p.who: p.outputs(folder) for p in able}
        samples = interleaved(able, rounds)
        absent = {p.who: p.absent for p in processes if p.absent is not None}
    source, right = agreed(e, outputs[OURS])
    errors = {who: deviation(found, right) for who, found in outputs.items() if who != PEAK}
    valid = {who for who, error in errors.items() if error <= tolerance(model.graph)}
    peak = float(outputs[PEAK][0][0]) / min(samples[PEAK]) / 1e9
    times = {who: min(s) for who, s in samples.items() if who != PEAK}
    rivals = [times[who] for who in peers if who in valid]
    seconds, flops = times[OURS], flops_of(e.model, model)
    return {
        "case": e.model, "seconds": seconds, "median_seconds": median(samples[OURS]), "flops": flops,
        "gflops": flops / seconds / 1e9, "peak_gflops": peak, "percent_of_peak": flops / seconds / 1e7 / peak,
        "verified": OURS in valid, "max_error": errors[OURS], "reference": source,
        "peers": {who: times[who] for who in peers if who in times},
        "peer_medians": {who: median(samples[who]) for who in peers if who in samples},
        "unverified_peers": [who for who in peers if who in times and who not in valid], "absent": absent,
        "ratio_to_best_peer": min(rivals) / seconds if rivals and OURS in valid else None,
    }  # fmt: skip


def flops_of(name: str, model: Model) -> float:
    """The paper's useful operations for its operators; for networks those of the workloads."""
    try:
        kind, shape = paper_shape(name)
    except ModelError:  # a network or a file
        return sum(w.weight * w.dag.flops for w in model.workloads)
    return PAPER[kind].flops(shape)


def once(e: Entry, check: bool, rounds: int) -> Report:
    """Our module alone: its time, where its programs came from, and how far it is off."""
    with started([e]) as ((process,), folder):
        samples = interleaved([process], rounds)[OURS]
        report: Report = {
            "model": e.model, "threads": e.threads, "seconds": min(samples), "median_seconds": median(samples),
            "origins": _counted(process), "max_error": None, "tolerance": None, "reference": None, "verified": None,
        }  # fmt: skip
        return {**report, **_checked(e, process, folder)} if check else report


def _checked(e: Entry, process: Process, folder: Path) -> Report:
    found = process.outputs(folder)
    source, right = agreed(e, found)
    error, allowed = deviation(found, right), tolerance(e.loaded().graph)
    return {"max_error": error, "tolerance": allowed, "reference": source, "verified": error <= allowed}


def _counted(process: Process) -> dict[str, int]:
    """Origin of programs -> number of workloads."""
    origins = process.ask({"origins": True})["origins"]
    return {o: origins.count(o) for o in sorted(set(origins))}
