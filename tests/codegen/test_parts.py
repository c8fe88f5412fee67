"""A kernel of several nests: functions named after their text, which programs of one sketch share."""

from __future__ import annotations

import os
import re
from collections import Counter

import numpy as np
import pytest

import codegen.c
import ir.inplace
import ir.lower
import ir.lower.scene
from codegen.c import PRELUDE, emit, kernel
from codegen.kernel import Kernel
from codegen.toolchain import Binary, build, find_compiler
from ir.lower import lower
from ir.schedule import Program, Sketch
from ir.target import Target
from search.evolve import sample_valid
from tasks.model import load
from tasks.space import space_of
from tests.zoo_dags import ZOO

TARGET = Target(vector_bytes=32, vector_registers=16, features=("avx2", "fma"))
NAME = re.compile(r"static __attribute__\(\(noinline\)\) void (\w+)\(")


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
def test_a_file_holds_each_part_once_and_a_fault_in_one_costs_those_that_call_it(programs, tmp_path):
    compiler = find_compiler(os.environ)
    kernels = made(programs[:12])
    counts = Counter(p for k in kernels for p in k.parts)
    shared, calls = counts.most_common(1)[0]
    assert 1 < calls < len(kernels)
    assert all(isinstance(b, Binary) for b in build(kernels, compiler, TARGET, tmp_path, prelude=PRELUDE))
    broken = shared.replace("{", "{ this is no C;", 1)
    wrong = [
        Kernel(k.key, k.entry, k.source, k.arguments, k.prepare, k.workspace_bytes,
               parts=tuple(broken if p == shared else p for p in k.parts))
        for k in kernels
    ]  # fmt: skip
    answers = build(wrong, compiler, TARGET, tmp_path, prelude=PRELUDE)
    assert [isinstance(a, Binary) for a in answers] == [shared not in k.parts for k in kernels]


@pytest.mark.parametrize(("name", "parts"), [("total", 0), ("softmax", 4)])
def test_a_lone_nest_is_the_entry_and_neighbours_that_keep_registers_beside_them_are_one_part(name, parts):
    text = emit(lower(Program(Sketch(ZOO[name]), ())).nest)
    assert ("for (" in text.entry) == (not parts) and len(text.parts) == parts
