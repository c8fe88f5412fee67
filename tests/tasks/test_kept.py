"""Binaries that are kept: whole or not there, and what they were built with is told apart from what they run in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from codegen.environment import AT_BUILD, AT_RUN, Environment, changes, environment
from codegen.kernel import Argument, Kernel
from codegen.toolchain import Binary, Compiler, find_compiler
from ir.dsl import compute, dag, placeholder
from ir.target import Target
from tasks.kept import keep, kept, text_of
from tasks.standing import rebuilt_for

THEN = Environment("gcc 12", "-O1", "0.1 aa", "Linux 6", "0x1", "libc 2", "p")


@pytest.fixture
def binary(tmp_path: Path) -> Binary:
    x = placeholder((4,), "x")
    prepare = dag([compute((4,), lambda i: x[i] * 2.0, "x.pack")])
    kernel = Kernel("abc", "k_abc", "void k_abc() {}", (Argument("x", (4,), "float32", "input"),), (("x.pack", prepare),),
                    64, inplace=(("y", "x"),))  # fmt: skip
    path = tmp_path / "built.so"
    path.write_bytes(b"machine code")
    return Binary(path, kernel.entry, kernel.key, kernel)


def test_a_binary_comes_back_with_all_that_calls_it(binary: Binary, tmp_path: Path) -> None:
    assert kept(tmp_path / "kept" / "abc") is None
    made = keep(tmp_path / "kept" / "abc", binary, THEN)
    binary.path.unlink()
    found = kept(tmp_path / "kept" / "abc")
    assert found == made and found.binary.kernel == binary.kernel and found.built == THEN
    assert found.binary.path.read_bytes() == b"machine code" and found.text == text_of(binary.kernel)
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["abc"], "nothing aside is left"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kernel": 1}'])
def test_what_cannot_be_read_is_not_there(binary: Binary, tmp_path: Path, damage: str) -> None:
    keep(tmp_path / "abc", binary, THEN)
    (tmp_path / "abc" / "kept.json").write_text(damage)
    assert kept(tmp_path / "abc") is None
    keep(tmp_path / "abc", binary, THEN)
    said = json.loads((tmp_path / "abc" / "kept.json").read_text())
    said["environment"]["weather"] = "fine"  # a later version's
    (tmp_path / "abc" / "kept.json").write_text(json.dumps(said))
    assert kept(tmp_path / "abc") is None
    keep(tmp_path / "abc", binary, THEN)
    (tmp_path / "abc" / "program.so").unlink()
    assert kept(tmp_path / "abc") is None


def test_what_acts_on_a_build_and_what_on_a_run() -> None:
    now = replace(THEN, compiler="gcc 13", kernel="Linux 7", probe="q")
    assert changes(THEN, now, AT_BUILD) == ("compiler",) and changes(THEN, now, AT_RUN) == ("kernel",)
    assert now.built_in(THEN) == replace(THEN, kernel="Linux 7", probe="q") and now.key != THEN.key


def test_our_own_text_is_a_cause_only_if_the_programs_text_changed(binary: Binary, tmp_path: Path) -> None:
    old, now = keep(tmp_path / "abc", binary, THEN), replace(THEN, code="0.2 bb")
    assert rebuilt_for(old, old.text, now) == ()
    assert rebuilt_for(old, "other", now) == ("code",)
    assert rebuilt_for(old, old.text, replace(now, flags="-O2")) == ("flags",)


@pytest.mark.compiler
def test_the_environment_of_this_machine(tmp_path: Path) -> None:
    compiler, probe = find_compiler({}), tmp_path / "probe.so"
    probe.write_bytes(b"1")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nmicrocode\t: 0xa0011d5\nprocessor: 1\nmicrocode\t: 0x1\n")
    found = environment(compiler, Target(), "9.9", probe, cpuinfo)
    assert found.compiler == compiler.version and "-O1" in found.flags and found.code.startswith("9.9 ")
    assert found.microcode == "0xa0011d5" and found.kernel.startswith("Linux ") and found.libraries
    assert found == environment(compiler, Target(), "9.9", probe, cpuinfo)
    cpuinfo.write_text("processor: 0\n")
    probe.write_bytes(b"2")
    other = environment(Compiler(("true",), "gcc", "none", False), Target(), "9.9", probe, cpuinfo)
    assert changes(found, other, ("compiler", "microcode", "probe", "kernel")) == ("compiler", "microcode", "probe")
    assert other.microcode == "unknown"
