"""The probe on this machine and on descriptions of others; the harness."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.machine import FALLBACK_CACHES, Machine, _caches, _features, _model, _of_width, harness, probe, target
from codegen.toolchain import Compiler, ToolchainError, find_compiler
from ir.target import Target

ARM = "processor : 0\nFeatures : fp asimd asimddp asimdhp i8mm\nCPU implementer : 0x41\nCPU part : 0xd40\n"


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return find_compiler(os.environ)


@pytest.fixture(scope="session")
def machine(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return probe(compiler, tmp_path_factory.mktemp("probe"))


@pytest.mark.compiler
def test_the_probe_measures(machine: Machine) -> None:
    assert machine.vector_bytes in (16, 32, 64) and machine.vector_registers in (16, 32)
    assert machine.peak_gflops > 1 and machine.cores == len(os.sched_getaffinity(0))
    assert set(machine.bandwidth) == {"l1", "l2", "l3", "dram"}
    assert machine.bandwidth["l1"] > machine.bandwidth["dram"] > 0.1
    assert machine.l1_bytes < machine.l2_bytes < machine.l3_bytes


@pytest.mark.compiler
def test_the_probe_is_stored_as_text_and_may_be_edited(machine: Machine) -> None:
    assert Machine.from_json(machine.to_json()) == machine
    edited = machine.to_json().replace(f'"vector_bytes": {machine.vector_bytes}', '"vector_bytes": 16')
    assert Machine.from_json(edited).vector_bytes == 16


@pytest.mark.compiler
def test_the_key_names_the_kind_of_machine(machine: Machine) -> None:
    assert platform.node() not in machine.key
    assert machine.key == replace(machine, peak_gflops=1.0, cores=99).key != replace(machine, l2_bytes=1).key


@pytest.mark.compiler
def test_target_follows_the_machine(machine: Machine) -> None:
    t = target(machine, 2)
    assert (t.threads, t.features, t.vector_bytes) == (2, machine.features, machine.vector_bytes)
    assert t.l1_bytes == machine.l1_bytes and t.arch == machine.arch


@pytest.mark.compiler
@pytest.mark.parametrize("threads", [1, 2])
def test_the_harness_times_and_knows_its_peak(compiler: Compiler, tmp_path: Path, threads: int) -> None:
    b = harness(compiler, Target(features=(), vector_bytes=16, threads=threads), tmp_path)
    library = ctypes.CDLL(str(b.path))
    assert ctypes.c_double.in_dll(library, "tilewright_peak_flops").value > 1e6 * threads
    out = (ctypes.c_float * (4 * threads + 1))()
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(out))
    vectors = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.tilewright_time.restype = ctypes.c_double
    library.tilewright_time.argtypes = [pointer, pointer, count, count, pointer, count, ctypes.c_int]
    peak = ctypes.cast(library.tilewright_peak, ctypes.c_void_p)
    seconds = library.tilewright_time(peak, vectors, 1, 0, None, 1, 1)
    assert 0 < seconds < 10
    assert all(out[: 4 * threads]) and not out[4 * threads]


@pytest.mark.compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86")
def test_features_that_the_machine_only_claims_are_left_out(compiler: Compiler, tmp_path: Path) -> None:
    """An instruction that faults costs its vector width, not the probe."""
    lying = tmp_path / "cpuinfo"
    lying.write_text("flags : pni ssse3 avx avx2 fma sse4_1 sse4_2\n")
    found = probe(compiler, tmp_path, lying)
    assert found.vector_bytes == 32 and "avx512f" not in found.features
    lying.write_text("no flags at all\n")
    assert probe(compiler, tmp_path, lying).vector_bytes == 16


def test_a_compiler_that_makes_nothing_that_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="16-byte vectors"):
        probe(Compiler(("false",), "gcc", "false 1.0", False), tmp_path)


def test_descriptions_of_other_machines() -> None:
    assert _features("aarch64", ARM) == ("dotprod", "fp16", "i8mm")
    assert _model(ARM) == "0x41 0xd40" and _model("") == "unknown"
    assert _features("riscv64", "isa : rv64gc") == ()
    every = ("sse3", "avx", "avx2", "fma", "avx512f", "amx-tile")
    assert _of_width("x86_64", every, 64) == every
    assert _of_width("x86_64", every, 32) == ("sse3", "avx", "avx2", "fma")
    assert _of_width("x86_64", every, 16) == ("sse3",)


def test_cache_sizes_fall_back(tmp_path: Path) -> None:
    assert _caches(tmp_path) == FALLBACK_CACHES
    for i, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "64K"), ("3", "Unified", "2M")]
    ):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    (tmp_path / "index9").mkdir()
    assert _caches(tmp_path) == {1: 48 << 10, 2: FALLBACK_CACHES[2], 3: 2 << 20}
