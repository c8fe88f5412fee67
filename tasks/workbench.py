"""The hardware at hand: compiler, machine, target, and where files go."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from codegen.machine import Machine, harness, probe, target
from codegen.oracle import Oracle
from codegen.runner import Runner, Settings
from codegen.toolchain import Compiler, Parts, find_compiler
from ir.target import Target

MACHINE_FILE = "machine.json"


@dataclass(frozen=True)
class Workbench:
    """What building and measuring need. `directory` holds artefacts that may be deleted at any time."""

    compiler: Compiler
    machine: Machine
    target: Target
    directory: Path
    oracle: Oracle
    runner: Runner
    parts: Parts

    @property
    def peak_gflops(self) -> float:
        """float32 multiply-add peak of the target's threads together."""
        return self.machine.peak_gflops * self.target.threads

    def roofline_seconds(self, flops: float, bytes_: float) -> float:
        m = self.machine
        sizes = {"l1": m.l1_bytes, "l2": m.l2_bytes, "l3": m.l3_bytes}
        return roofline_seconds(flops, bytes_, m.peak_gflops, sizes, m.bandwidth, self.target.threads)


def roofline_seconds(
    flops: float,
    bytes_: float,
    peak_gflops: float,
    sizes: Mapping[str, int],
    bandwidth: Mapping[str, float],
    threads: int,
) -> float:
    """No program is faster: arithmetic at the peak, or inputs and outputs once through the nearest cache that holds
    them (Williams et al., CACM 2009). peak_gflops, sizes [bytes] and bandwidth [GB/s] by level are of one core."""
    rate = (bandwidth.get(nearest(bytes_, sizes, threads)) or 10.0) * threads
    return max(flops / (peak_gflops * threads * 1e9), bytes_ / (rate * 1e9))


def nearest(bytes_: float, sizes: Mapping[str, int], threads: int) -> str:
    """The first level that holds so many bytes; "dram" when no cache does. sizes: bytes by level, of one core."""
    return next((name for name in ("l1", "l2", "l3") if bytes_ <= sizes.get(name, 0) * threads), "dram")


def machine_at(compiler: Compiler, directory: Path) -> Machine:
    """Probed once, then read from `directory`/machine.json, where a person may correct it."""
    path = directory / MACHINE_FILE
    if path.is_file():
        return Machine.from_json(path.read_text())
    found = probe(compiler, directory / "probe")
    aside = path.with_name(f".{MACHINE_FILE}.{os.getpid()}")
    aside.write_text(found.to_json())
    aside.replace(path)
    return found


def workbench(directory: Path, threads: int, environ: Mapping[str, str], settings: Settings | None = None) -> Workbench:
    """Raises ToolchainError without a working compiler. Close `runner` when done: it owns processes."""
    directory.mkdir(parents=True, exist_ok=True)
    compiler = find_compiler(environ)
    machine = machine_at(compiler, directory)
    made = target(machine, threads)
    workers = 1 if threads > 1 else max(1, min(2, machine.cores))
    runner = Runner(made, harness(compiler, made, directory / "harness"), settings or Settings(workers=workers))
    oracle, parts = Oracle(compiler, made, directory / "oracle"), Parts(directory / "built")
    return Workbench(compiler, machine, made, directory, oracle, runner, parts)
