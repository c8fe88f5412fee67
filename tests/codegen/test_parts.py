"""A kernel of several nests: functions named after their text, which programs of one sketch share."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import codegen.c
import ir.inplace
import ir.lower
import ir.lower.scene
from codegen.c import PRELUDE, emit, kernel
from codegen.kernel import Kernel
from codegen.toolchain import Binary, Parts, build, find_compiler
from ir.lower import lower
from ir.schedule import Program, Sketch
from ir.target import Target
from search.evolve import sample_valid
from tasks.model import load
from tasks.space import space_of
from tests.zoo_dags import ZOO

TARGET = Target(vector_bytes=32, vector_registers=16, features=("avx2", "fma"))
NAME = re.compile(r"^TW_PART void (\w+)\(")


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    """Of every sketch of a convolution some."""
    workload = max(load("C2D.2.b1").workloads, key=lambda w: w.dag.flops)
    space = space_of(workload, TARGET)
    drawn = [sample_valid(space, s, 6, np.random.default_rng(3)).population for s in space.sketches]
    return [p.program(i) for p in drawn for i in range(len(p))]


def made(programs: list[Program]) -> list[Kernel]:
    lowered = map(lower, programs)
    return [kernel(x.nest, f"key {i}", f"k_{i}", frozenset(), x.prepare) for i, x in enumerate(lowered)]


def test_a_name_is_a_text_and_programs_share_many(programs):
    kernels = made(programs)
    every = [p for k in kernels for p in k.parts]
    assert len({NAME.search(p)[1] for p in every}) == len(set(every)) < len(every) * 2 / 3
    for k in kernels:
        assert len(k.parts) != 1, "a lone nest stands in the entry"
        assert all(f"{NAME.search(p)[1]}(" in k.source for p in k.parts)
        assert k.text.endswith(k.source) and all(p in k.text for p in k.parts)


def test_what_is_remembered_is_what_would_be_made(programs):
    """In the other order and with nothing remembered, the same text."""
    first = {id(p): k.text for p, k in zip(programs, made(programs), strict=True)}
    remembered = (
        ir.lower._without_units, ir.lower._applied, ir.lower._hoisted, ir.lower._nest_of, ir.lower.scene.tensors_read,
        codegen.c._part, codegen.c._used, ir.inplace._reads_of, ir.inplace._stores,
    )  # fmt: skip
    for i in (5, 0, 3):
        for f in remembered:
            f.cache_clear()
        [again] = made([programs[i]])
        assert again.text == first[id(programs[i])].replace(f"k_{i}(", "k_0(")


@pytest.mark.compiler
@pytest.mark.parametrize("kept", [False, True])
def test_a_fault_in_a_part_costs_those_that_call_it(programs, tmp_path, kept):
    compiler, kernels = find_compiler(os.environ), made(programs[:12])
    parts = Parts(tmp_path) if kept else None
    counts = Counter(p for k in kernels for p in k.parts)
    shared, calls = counts.most_common(1)[0]
    assert 1 < calls < len(kernels)
    broken = shared.replace("{", "{ this is no C;", 1)
    wrong = [replace(k, parts=tuple(broken if p == shared else p for p in k.parts)) for k in kernels]
    answers = build(wrong, compiler, TARGET, tmp_path, prelude=PRELUDE, parts=parts)
    assert [isinstance(a, Binary) for a in answers] == [shared not in k.parts for k in kernels]
    answers = build(kernels, compiler, TARGET, tmp_path, prelude=PRELUDE, parts=parts)
    assert all(isinstance(a, Binary) for a in answers)


@pytest.mark.compiler
def test_what_was_compiled_is_linked_and_is_the_same_code(programs, tmp_path):
    """The machine code of every function, wherever it was compiled; and an object that is gone is made again."""
    compiler, kernels, parts = find_compiler(os.environ), made(programs[-12:]), Parts(tmp_path)
    one = build(kernels, compiler, TARGET, tmp_path, prelude=PRELUDE, unit=12, jobs=1)
    first = build(kernels[:8], compiler, TARGET, tmp_path, prelude=PRELUDE, unit=4, jobs=2, parts=parts)
    files = set(parts.objects.values())
    again = build(kernels, compiler, TARGET, tmp_path, prelude=PRELUDE, unit=12, jobs=1, parts=parts)
    assert len(set(parts.objects.values())) == len(files) + 1, "what is new is one more file"
    names = sorted({NAME.search(p)[1] for k in kernels for p in k.parts})
    codes = [code(b.path) for b in (one[0], again[0])]
    assert all(codes[0][n] == codes[1][n] for n in names) and len(names) > 20
    assert not any(n in code(first[0].path) for n in names if all(n not in p for k in kernels[:4] for p in k.parts))
    build(kernels[:1], compiler, TARGET, tmp_path, prelude=PRELUDE, parts=parts)
    parts.folder.cleanup()
    lost = build(kernels, compiler, TARGET, tmp_path, prelude=PRELUDE, parts=parts)
    assert all(isinstance(b, Binary) for b in lost)


def code(path: Path) -> dict[str, list[str]]:
    """Function -> its instructions, without addresses."""
    text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True).stdout
    out: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        found = re.match(r"[0-9a-f]+ <(\w+)>:\n", block)
        if found:
            lines = (line.split("\t", 1)[-1] for line in block.splitlines()[1:])
            plain = [re.sub(r"[0-9a-f]+ <.*>|0x[0-9a-f]+\(%rip\)|#.*", "", line).rstrip() for line in lines]
            while "nop" in plain[-1] or plain[-1].startswith("xchg"):  # up to where the next function begins
                plain.pop()
            out[found[1]] = plain
    return out


@pytest.mark.parametrize(("name", "parts"), [("total", 0), ("softmax", 4)])
def test_a_lone_nest_is_the_entry_and_neighbours_that_keep_registers_beside_them_are_one_part(name, parts):
    text = emit(lower(Program(Sketch(ZOO[name]), ())).nest)
    assert ("for (" in text.entry) == (not parts) and len(text.parts) == parts
