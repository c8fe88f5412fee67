"""Compilers found or missed, flags, several kernels a unit, and bad programs that cost only themselves."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.kernel import Kernel
from codegen.toolchain import (
    SPARED,
    Binary,
    Compiler,
    ToolchainError,
    build,
    c_string,
    execute,
    find_compiler,
    first_error,
    flags,
    identity,
    slots,
    spoken,
    unbuilt,
)
from ir.target import Target
from ir.timing import Failure

TARGET = Target(features=("avx2", "fma"), vector_bytes=32, vector_registers=16)


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return find_compiler(os.environ)


def kernel(name: str, body: str = "", value: int = 1) -> Kernel:
    return Kernel(f"key of {name}", name, f"void {name}(void *const *a, void *w) {{ *(int *)w = {value}; {body} }}", ())


def run(b: Binary) -> int:
    out = ctypes.c_int()
    getattr(ctypes.CDLL(str(b.path)), b.entry)(None, ctypes.byref(out))
    return out.value


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# ---------------------------------------------------------------------------------------------- which compiler


@pytest.mark.compiler
def test_the_named_compiler_is_taken_with_its_arguments(compiler: Compiler) -> None:
    named = find_compiler({"TILEWRIGHT_CC": f"{compiler.command[0]} -pipe", "PATH": os.environ["PATH"]})
    assert named.command == (compiler.command[0], "-pipe") and Path(named.command[0]).is_absolute()
    assert named.kind == compiler.kind and named.version and named.openmp == compiler.openmp


@pytest.mark.parametrize("name", ["/nowhere/cc", "false"])
def test_a_named_compiler_that_does_not_work_is_not_replaced(name: str) -> None:
    with pytest.raises(ToolchainError, match=rf"TILEWRIGHT_CC = '{name}' does not work.*apt-get install gcc"):
        find_compiler({"TILEWRIGHT_CC": name, "PATH": os.environ["PATH"]})


def test_without_any_compiler_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"apt-get install gcc.*pip install ziglang.*TILEWRIGHT_CC"):
        find_compiler({"PATH": str(tmp_path)})


@pytest.mark.compiler
def test_gcc_that_is_broken_is_passed_over(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    script(tmp_path / "gcc", "exit 1")
    script(
        tmp_path / "clang",
        f'case "$*" in *--version*) echo clang version 99;; *) exec {compiler.command[0]} "$@";; esac',
    )
    found = find_compiler({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (found.command, found.kind, found.version) == ((str(tmp_path / "clang"),), "clang", "clang version 99")


# ---------------------------------------------------------------------------------------------- flags


def test_flags_name_features_and_never_reorder_sums() -> None:
    words = flags(TARGET)
    assert {"-mavx2", "-mfma", "-mprefer-vector-width=256", "-shared", "-fPIC"} <= set(words)
    assert not [w for w in words if "native" in w or "fast-math" in w or "associative" in w or "Ofast" in w]
    assert "-fopenmp" not in words and "-fopenmp" in flags(replace(TARGET, threads=2))


def test_final_flags_change_no_machine_code() -> None:
    assert set(flags(TARGET, final=True)) - set(flags(TARGET)) == {"-s", "-fno-ident", "-Wl,--build-id=none"}


def test_other_compilers_hear_no_words_of_gcc() -> None:
    assert spoken(flags(TARGET), "gcc") == flags(TARGET)
    assert {w for w in flags(TARGET) if w not in spoken(flags(TARGET), "clang")} == set(SPARED)


def test_flags_of_other_architectures() -> None:
    assert "-march=armv8-a+dotprod" in flags(Target(arch="aarch64", features=("dotprod",), vector_bytes=16))
    assert not [w for w in flags(Target(arch="riscv64", vector_bytes=16)) if w.startswith("-m")]


# ---------------------------------------------------------------------------------------------- building


@pytest.mark.compiler
def test_kernels_share_units_and_keep_their_order(compiler: Compiler, tmp_path: Path) -> None:
    kernels = [kernel(f"k{i}", value=i) for i in range(10)]
    found = build(kernels, compiler, TARGET, tmp_path, prelude="", unit=4, jobs=2)
    assert [run(b) for b in found if isinstance(b, Binary)] == list(range(10))
    assert len({b.path for b in found if isinstance(b, Binary)}) == 3
    for b, k in zip(found, kernels, strict=True):
        assert isinstance(b, Binary) and b.kernel == k and b.key == k.key and 0 < b.build_seconds < 60
        symbol = ctypes.c_char.in_dll(ctypes.CDLL(str(b.path)), f"{b.entry}_id")
        assert ctypes.string_at(ctypes.addressof(symbol)).decode() == identity(k)


@pytest.mark.compiler
def test_a_path_is_never_used_twice(compiler: Compiler, tmp_path: Path) -> None:
    paths = set()
    for value in range(3):
        (b,) = build([kernel("same", value=value)], compiler, TARGET, tmp_path, prelude="")
        assert isinstance(b, Binary) and run(b) == value
        b.path.unlink()
        paths.add(b.path)
    assert len(paths) == 3


@pytest.mark.compiler
def test_bad_kernels_cost_only_themselves(compiler: Compiler, tmp_path: Path) -> None:
    kernels = [kernel(f"k{i}", value=i) for i in range(8)]
    kernels[2] = kernel("k2", "int x = nowhere;")
    kernels[5] = kernel("k5", "syntax error here")
    found = build(kernels, compiler, TARGET, tmp_path, prelude="", unit=8, jobs=1)
    assert [i for i, b in enumerate(found) if isinstance(b, Failure)] == [2, 5]
    assert isinstance(found[2], Failure) and found[2].kind == "compile" and "nowhere" in found[2].message
    assert "\n" not in found[2].message
    assert [run(b) for b in found if isinstance(b, Binary)] == [0, 1, 3, 4, 6, 7]
    assert set(tmp_path.iterdir()) == {b.path for b in found if isinstance(b, Binary)}


@pytest.mark.compiler
@pytest.mark.parametrize("text", ["}", "/* open comment", '#error "no"', "#if 1", '_Static_assert(0, "no");'])
def test_errors_that_spill_over_are_pinned_down(compiler: Compiler, tmp_path: Path, text: str) -> None:
    kernels = [kernel("first", value=1), kernel("broken", value=2), kernel("last", value=3)]
    kernels[1] = replace(kernels[1], source=kernels[1].source + "\n" + text)
    first, broken, last = build(kernels, compiler, TARGET, tmp_path, prelude="", unit=3, jobs=1)
    assert isinstance(broken, Failure) and broken.kind == "compile" and broken.message
    assert isinstance(first, Binary) and run(first) == 1
    assert isinstance(last, Binary) and run(last) == 3


@pytest.mark.compiler
def test_one_name_twice_in_a_unit_is_separated(compiler: Compiler, tmp_path: Path) -> None:
    found = build([kernel("twin", value=1), kernel("twin", value=2)], compiler, TARGET, tmp_path, prelude="", jobs=1)
    assert [run(b) for b in found if isinstance(b, Binary)] == [1, 2]


@pytest.mark.compiler
def test_a_missing_symbol_is_a_failure_to_load_only_for_its_kernel(compiler: Compiler, tmp_path: Path) -> None:
    odd = replace(kernel("odd"), source="int odd_but_absent;")
    found = build([kernel("fine", value=4), odd], compiler, TARGET, tmp_path, prelude="")
    assert isinstance(found[0], Binary) and run(found[0]) == 4


def fake(tmp_path: Path, text: str) -> Compiler:
    return Compiler((str(script(tmp_path / "cc", text)),), "gcc", "fake", False)


def test_a_compiler_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    hanging = fake(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 60 & echo $! >> {tmp_path}/pid; wait")
    began = time.monotonic()
    (found,) = build([kernel("k")], hanging, TARGET, tmp_path / "out", prelude="", timeout=0.3)
    assert isinstance(found, Failure) and found.kind == "compile" and "killed after" in found.message
    assert time.monotonic() - began < 10
    time.sleep(0.1)
    for pid in (tmp_path / "pid").read_text().split():
        state = Path("/proc", pid, "stat")
        assert not state.exists() or state.read_text().split()[2] == "Z"


def test_the_compiler_has_a_memory_limit(tmp_path: Path) -> None:
    fat = fake(tmp_path, f"exec {sys.executable} -c 'b = bytearray(1 << 30)'")
    (found,) = build([kernel("k")], fat, TARGET, tmp_path / "out", prelude="", memory_bytes=512 << 20)
    assert isinstance(found, Failure) and "MemoryError" in found.message


def test_threads_need_a_run_time(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="OpenMP"):
        build([kernel("k")], fake(tmp_path, ""), replace(TARGET, threads=2), tmp_path, prelude="")


def test_execute_passes_text_and_reports() -> None:
    done = execute(["/bin/sh", "-c", "cat; echo oops >&2; exit 3"], "hello", 10)
    assert (done.code, done.output, done.errors.strip()) == (3, "hello", "oops")
    assert first_error(done) == "oops"


# ---------------------------------------------------------------------------------------------- small parts


@pytest.mark.compiler
@pytest.mark.parametrize("text", ['a "quoted" \\ key?', "newline\nand */ tab\t", "größe 尺寸", "1" + "0" * 5000, "??="])
def test_any_key_survives_as_a_string(compiler: Compiler, tmp_path: Path, text: str) -> None:
    (b,) = build([replace(kernel("k"), key=text)], compiler, TARGET, tmp_path, prelude="")
    assert isinstance(b, Binary)
    symbol = ctypes.c_char.in_dll(ctypes.CDLL(str(b.path)), "k_id")
    assert ctypes.string_at(ctypes.addressof(symbol)).decode() == identity(b.kernel)


def test_a_string_is_plain_ascii() -> None:
    assert c_string('a"1\n') == '"a\\0421\\012"'


def test_slots_are_bounded_by_memory() -> None:
    assert slots(1 << 60) == 1
    assert 1 <= slots(1 << 20) <= len(os.sched_getaffinity(0))


def test_unbuilt_has_no_file() -> None:
    assert unbuilt(kernel("k")).key == "key of k"
