"""The bench: cases x contenders, timed in turns in one run, and only verified figures compared."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import exp, log, prod
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from codegen.machine import Machine
from codegen.toolchain import find_compiler
from flows.plain import release, request, shape
from ir.graph import Graph, ModelError
from ir.zoo import BATCHES, names, paper_shape
from ir.zoo.operators import PAPER
from tasks.model import Model
from tasks.workbench import roofline_seconds
from tilewright.errors import UsageError, told
from tilewright.journal import Journal
from tilewright.peers.answers import deviation, inputs, tolerance
from tilewright.peers.contender import Array, Case
from tilewright.peers.process import PeerError, Process
from tilewright.peers.registry import OURS, PEAK, versions
from tilewright.peers.turns import Crew, agreed, interleaved

Report = dict[str, Any]
Say = Callable[[str], None]

KINDS = ("GMM", "C1D", "C2D", "C3D", "GRP", "DIL", "DEP", "T2D", "CAP", "NRM", "CBR", "TBG")
NETWORKS = ("resnet50", "mobilenet_v2", "bert_base", "vit_b16", "dcgan", "resnet18_3d")
SUITES: Mapping[str, tuple[str, ...]] = {
    "ops": tuple(
        f"{kind}.{i}.b{b}" for kind in KINDS for i in range(len(PAPER[kind].shapes)) for b in BATCHES
        if (kind, b) != ("C3D", 16)  # as large as a network, each of them
    ),
    "networks": (*(f"{n}.b1" for n in NETWORKS), "resnet50.b16", "mobilenet_v2.b16"),
}  # fmt: skip


# ---------------------------------------------------------------------------------------------- what is asked for


def expanded(patterns: Sequence[str]) -> list[str]:
    """ "ops" -> its cases, "GMM.*" -> every known name that fits; anything else stands as it is. Raises UsageError."""
    out: list[str] = []
    for p in patterns:
        found = SUITES.get(p, [p])
        if set(p) & set("*?["):
            found = [n for n in names() if fnmatchcase(n, p)]
        if not found:
            raise UsageError(f"no model fits {p!r}; names are such as {', '.join(names()[:3])}, GMM.3.b1")
        out += found
    return list(dict.fromkeys(out))


def asked(model: str, threads: int, store: str, batch: int, seq: int | None, dims: Mapping[str, int] | None) -> Case:
    """Checked before anything is started; a model that is not of a suite is loaded to see that it can be.

    Raises RequestError, ModelError.
    """
    request(model, 1, None, threads, store, 0, True)
    case = Case(model, batch, seq, shape(batch, seq, dims).dims, threads, str(Path(store).absolute()))
    if not any(model in suite for suite in SUITES.values()):
        case.loaded()
    return case


# ---------------------------------------------------------------------------------------------- one case


@contextmanager
def crew_of(threads: int) -> Iterator[Crew]:
    with tempfile.TemporaryDirectory(prefix="bench") as folder, Crew(threads, Path(folder)) as crew:
        yield crew


@dataclass(frozen=True)
class Bench:
    """How cases are measured. seed: of the inputs."""

    crew: Crew
    machine: Machine
    peers: Sequence[str]
    rounds: int
    seed: int = 0

    def measured(self, case: Case) -> Report:
        """One case. ratio_to_best_peer: the fastest verified peer's time over ours, above 1 when we are faster.

        Raises PeerError when we fail ourselves; a peer that does is absent.
        """
        model = case.loaded()
        self.crew.give(inputs(model, self.seed))
        ready, absent, outputs = _ready(self.crew, case, [OURS, PEAK, *self.peers])
        samples, failed = _timed(ready, self.rounds)
        peak = float(outputs.pop(PEAK)[0][0]) / min(samples.pop(PEAK)) / 1e9
        return {
            "case": case.model, "kind": kind_of(case.model), "peak_gflops": peak, "absent": absent | failed,
            "origins": _counted(next(p for p in ready if p.who == OURS).origins()),
            **self._speed(case, model, min(samples[OURS]), peak), "median_seconds": median(samples[OURS]),
            **_verdict(self.crew, case, model.graph, samples, outputs),
        }  # fmt: skip

    def _speed(self, case: Case, model: Model, seconds: float, peak: float) -> Report:
        """roofline: no program is faster, by this run's peak and the bandwidths that the machine was probed for."""
        flops, m = flops_of(case, model), self.machine
        sizes = {"l1": m.l1_bytes, "l2": m.l2_bytes, "l3": m.l3_bytes}
        roof = roofline_seconds(flops, bytes_of(model.graph), peak / case.threads, sizes, m.bandwidth, case.threads)
        return {
            "seconds": seconds, "flops": flops, "gflops": flops / seconds / 1e9, "roofline_seconds": roof,
            "percent_of_peak": flops / seconds / 1e7 / peak, "percent_of_roof": 100 * roof / seconds,
        }  # fmt: skip


def _ready(
    crew: Crew, case: Case, who: Sequence[str]
) -> tuple[list[Process], dict[str, str], dict[str, Sequence[Array]]]:
    """Processes that can run the case, why others cannot, and the outputs of the able. Raises PeerError."""
    ready: list[Process] = []
    absent: dict[str, str] = {}
    outputs: dict[str, Sequence[Array]] = {}
    for name in who:
        try:
            process = crew.load(name, case)
            outputs[name] = process.outputs(crew.folder)
            ready.append(process)
        except PeerError as error:
            absent[name] = str(error)
    _not_ourselves(absent)
    return ready, absent, outputs


def _timed(ready: Sequence[Process], rounds: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Samples, and how others failed. Raises PeerError."""
    samples, failed = interleaved(ready, rounds)
    _not_ourselves(failed)
    return samples, failed


def _not_ourselves(failed: Mapping[str, str]) -> None:
    """A peer may fail. We may not: there is nothing to compare it with."""
    for who in (OURS, PEAK):
        if who in failed:
            raise PeerError(f"{who}: {failed[who]}")


def _verdict(
    crew: Crew, case: Case, graph: Graph, samples: Mapping[str, Sequence[float]], outputs: Mapping[str, Sequence[Array]]
) -> Report:
    """Whose outputs are right, and how we compare with those."""
    allowed = tolerance(graph)
    source, right = agreed(crew, case, {who: outputs[who] for who in samples}, allowed)
    errors = {who: deviation(outputs[who], right) for who in samples}
    times = {who: min(s) for who, s in samples.items() if who != OURS}
    rivals = [t for who, t in times.items() if errors[who] <= allowed]
    verified = errors[OURS] <= allowed
    return {
        "verified": verified, "max_error": errors[OURS], "tolerance": allowed, "reference": source, "peers": times,
        "peer_medians": {who: median(samples[who]) for who in times},
        "unverified_peers": {who: errors[who] for who in times if errors[who] > allowed},
        "ratio_to_best_peer": min(rivals) / min(samples[OURS]) if rivals and verified else None,
    }  # fmt: skip


def kind_of(name: str) -> str:
    """What a name says but for shape and batch: "GMM.3.b16" is a GMM, "resnet50.b1" a resnet50."""
    return name.split(".")[0] if any(name in suite for suite in SUITES.values()) or name in names() else name


def flops_of(case: Case, model: Model) -> float:
    """The paper's useful operations for its operators; for networks those of the workloads."""
    try:
        kind, numbers = paper_shape(case.model, case.batch)
    except ModelError:  # a network or a file
        return sum(w.weight * w.dag.flops for w in model.workloads)
    return PAPER[kind].flops(numbers)


def bytes_of(graph: Graph) -> int:
    """Of inputs, outputs and constants, each once."""
    touched = {*graph.inputs, *graph.outputs, *graph.constants}
    return sum(prod(v.shape) * _item_bytes(v.dtype) for v in map(graph.values.__getitem__, touched))


def _item_bytes(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _counted(origins: Sequence[str]) -> dict[str, int]:
    """Origin of programs -> number of workloads."""
    return {o: origins.count(o) for o in sorted(set(origins))}


def once(case: Case, check: bool, rounds: int) -> Report:
    """Our module alone: its time, where its programs came from, and how far it is off.

    Raises PeerError, and ToolchainError before anything is started.
    """
    find_compiler(os.environ)
    model = case.loaded()
    with crew_of(case.threads) as crew:
        crew.give(inputs(model))
        (process,), _, outputs = _ready(crew, case, [OURS])
        samples, _ = _timed([process], rounds)
        report: Report = {
            "model": case.model, "threads": case.threads, "seconds": min(samples[OURS]),
            "median_seconds": median(samples[OURS]), "origins": _counted(process.origins()),
            "max_error": None, "tolerance": None, "reference": None, "verified": None,
        }  # fmt: skip
        verdict = _verdict(crew, case, model.graph, samples, outputs) if check else {}
    return {**report, **{k: verdict[k] for k in report if k in verdict}}


# ---------------------------------------------------------------------------------------------- all cases


def settings(machine: Machine, threads: int, peers: Sequence[str], **more: Any) -> Report:
    """What figures depend on besides the programs: figures under other settings are not to be compared."""
    m = machine
    known = {"tilewright": release(), "compiler": find_compiler(os.environ).version, **versions(peers)}
    return {
        **more, "threads": threads, "clock": "processor" if threads == 1 else "wall", "precision": "float32",
        "peers": list(peers), "versions": known, "machine": {
            "model": m.model, "arch": m.arch, "cores": m.cores, "vector_bits": 8 * m.vector_bytes,
            "l1_bytes": m.l1_bytes, "l2_bytes": m.l2_bytes, "l3_bytes": m.l3_bytes,
        },
    }  # fmt: skip


def compared(
    cases: Sequence[Case], bench: Bench, journal: Journal, prepare: Callable[[Case], None], say: Say
) -> Report:
    """Every case that the journal does not have yet, each prepared (tuned) first; one that fails ends nothing."""
    broken: dict[str, str] = {}
    for number, case in enumerate(cases, 1):
        if case.model in journal.done:
            continue
        say(f"[{number}/{len(cases)}] {case.model}")
        try:
            prepare(case)
            journal.add(bench.measured(case))
        except Exception as error:
            line = told(error)
            if line is None:
                raise
            broken[case.model] = line
            say(f"{case.model}: {line}")
    return summed(journal.about, [journal.done[c.model] for c in cases if c.model in journal.done], broken)


def summed(about: Report, cases: Sequence[Report], broken: Mapping[str, str]) -> Report:
    """The document: settings, every case, why others have no figures, and geometric means."""
    return {
        **about, "peak_gflops": max((c["peak_gflops"] for c in cases), default=None), "cases": list(cases),
        "broken": dict(broken), **_means(cases),
        "geomean_ratio_to_peer": {who: _ratio_to(who, cases) for who in about["peers"]},
        "kinds": {kind: _of_kind(kind, cases) for kind in dict.fromkeys(c["kind"] for c in cases)},
    }  # fmt: skip


def _of_kind(kind: str, cases: Sequence[Report]) -> Report:
    mine = [c for c in cases if c["kind"] == kind]
    return {"cases": len(mine), **_means(mine)}


def _means(cases: Sequence[Report]) -> Report:
    ratios = [c["ratio_to_best_peer"] for c in cases if c["ratio_to_best_peer"]]
    return {
        "geomean_ratio_to_best_peer": geomean(ratios), "smallest_ratio_to_best_peer": min(ratios, default=None),
        "geomean_percent_of_peak": geomean([c["percent_of_peak"] for c in cases if c["verified"]]),
    }  # fmt: skip


def _ratio_to(who: str, cases: Sequence[Report]) -> Report:
    """Over the cases where both are verified."""
    both = [c for c in cases if c["verified"] and who in c["peers"] and who not in c["unverified_peers"]]
    return {"cases": len(both), "geomean_ratio": geomean([c["peers"][who] / c["seconds"] for c in both])}


def geomean(figures: Sequence[float]) -> float | None:
    return exp(sum(map(log, figures)) / len(figures)) if figures else None
