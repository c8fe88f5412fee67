"""Guarded elements in straight code: read once, and not guarded where the guard always holds."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest

from codegen.c import kernel
from ir.lower import lower
from ir.schedule import Winograd
from ir.target import Target
from search.evolve import sample_valid
from tasks.model import load
from tasks.space import space_of

TARGET = Target(vector_bytes=32, vector_registers=16)
GUARDED = re.compile(r"if \((?P<test>[^{]*)\) \{\n\s*v\df t\d+ = (?P<load>[^;]*);")


@pytest.fixture(scope="module", params=[2, 4])
def sources(request) -> list[str]:
    """C of some programs that filter a padded 14 x 14 image in tiles of a size that divides it, or does not."""
    workload = max(load("C2D.2.b1").workloads, key=lambda w: w.dag.flops)
    space, found = space_of(workload, TARGET), []
    for sketch in space.sketches:
        if any(isinstance(s, Winograd) and s.m == request.param for s in sketch.steps):
            population = sample_valid(space, sketch, 6, np.random.default_rng(0)).population
            lowered = [lower(population.program(i)) for i in range(len(population))]
            found += [kernel(low.nest, "k", "k_k", frozenset(), low.prepare).text for low in lowered]
    assert len(found) >= 6
    return found


def test_a_guarded_element_is_read_once_for_all_rows_of_a_transform(sources):
    guards = 0
    for source in sources:
        for block in re.split(r"\n *for \(|\} else \{\n *v\df \w+_acc", source):
            pairs = [(m["test"], m["load"]) for m in GUARDED.finditer(block)]
            guards += len(pairs)
            assert all(one != other for one, other in pairwise(pairs)), block
    assert guards, "the image is padded"


def test_no_guard_that_always_holds_is_written(sources):
    for source in sources:
        for low, high in re.findall(r"if \(\(\(\(conv_data\d_i\d_tile_0s \* 4\) \+ (\d)\) < (\d+)\)\)", source):
            assert int(low) + 4 * 3 >= int(high), "four tiles of 14: only the last one reaches beyond"


def test_the_tables_of_a_transform_are_numbers_in_the_text_and_their_zeros_are_not(sources):
    for source in sources:
        assert "0.0f * t" not in source and "(0.0f)" not in source
        assert not re.search(r"== \d+\) \?", source), (
            "which row of a table it is must be known when the text is written"
        )
        assert re.search(r"\+ \(?1\.0f \* t\d+\)", source), "ones are there"


def test_a_guard_that_all_points_of_a_tile_share_stands_around_them(sources):
    """A padded row is copied or cleared as a whole."""
    found = 0
    for source in sources:
        for body in re.findall(r"void pad_\w+\(.*?\n}\n", source, re.DOTALL):
            stores = body.count("*(u8f *)(")
            guards = len(re.findall(r"if \([^{]*pad_i[01]", body))
            found += stores > 2 * guards > 0
            assert guards <= 1 + body.count("} else {\n") and not re.search(r"v8f t\d+;\n *if", body), body
    assert found
