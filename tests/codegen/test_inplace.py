"""Outputs in the memory of an input: the C text, kernels called with one pointer twice, and residual networks."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from codegen.bundle.constants import address, aligned_bytes
from codegen.bundle.export import export
from codegen.bundle.memory import plan
from codegen.bundle.network import Network
from codegen.bundle.partition import network as network_of
from codegen.c import PRELUDE
from codegen.kernel import Kernel
from codegen.machine import probe, target
from codegen.module import compile_network, load
from codegen.toolchain import Binary, Compiler, build, find_compiler
from ir.evaluate import evaluate
from ir.fuse import Partition, execute, workloads
from ir.graph import Graph
from ir.passes import optimise
from ir.target import Target
from ir.zoo.builder import Builder
from ir.zoo.networks import bottleneck, classifier, conv_bn
from tasks.build import kernel_of
from tasks.deploy import pick
from tests.codegen.networks import Array
from tests.inplace_dags import DAGS
from tests.ir.small import assert_close, feeds
from tests.test_programs import populations
from tests.zoo_dags import feeds as dag_feeds

PLAIN = Target(vector_bytes=16, vector_registers=16)


def kernels(name: str, target: Target, seed: int, each: int) -> list[Kernel]:
    """Random programs of every sketch."""
    drawn = populations(DAGS[name][0], target, np.random.default_rng(seed), each)
    programs = [p.program(row) for p in drawn for row in range(len(p))]
    return [kernel_of(program, f"{name} {i}") for i, program in enumerate(programs)]


def restricted(kernel: Kernel) -> list[bool]:
    """Of each argument."""
    found = re.findall(r"\*(restrict )?\w+ = arguments\[\d+\];", kernel.source)
    assert len(found) == len(kernel.arguments)
    return [bool(r) for r in found]


@pytest.mark.parametrize("name", DAGS)
def test_what_may_share_memory_is_not_restrict_and_the_rest_is(name: str, fresh_seed: int) -> None:
    for kernel in kernels(name, PLAIN, fresh_seed, 1):
        shared = {n for pair in kernel.inplace for n in pair}
        assert restricted(kernel) == [a.name not in shared for a in kernel.arguments]
        assert {o for o, _ in kernel.inplace} <= {a.name for a in kernel.arguments if a.role == "output"}
        assert {i for _, i in kernel.inplace} <= {a.name for a in kernel.arguments if a.role == "input"}


# ---------------------------------------------------------------------------------------------- kernels


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return find_compiler(os.environ)


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def here(request: pytest.FixtureRequest, compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Target:
    return target(probe(compiler, tmp_path_factory.mktemp("probe")), request.param)


def run(binary: Binary, given: dict[str, Array], pair: tuple[str, str] | None = None) -> dict[str, Array]:
    """Outputs by name; `pair`: the output that lies in the memory of that input."""
    arrays: dict[str, Array] = {}
    for a in binary.kernel.arguments:
        size = int(np.prod(a.shape, dtype=int)) * np.dtype(a.dtype).itemsize
        arrays[a.name] = aligned_bytes(size).view(a.dtype).reshape(a.shape)
        arrays[a.name][...] = given[a.name] if a.role != "output" else 77
    if pair is not None:
        arrays[pair[0]] = arrays[pair[1]].reshape(arrays[pair[0]].shape)
    pointers = (ctypes.c_void_p * len(arrays))(*(address(arrays[a.name]) for a in binary.kernel.arguments))
    workspace = aligned_bytes(max(binary.kernel.workspace_bytes, 1))
    getattr(ctypes.CDLL(str(binary.path)), binary.entry)(pointers, ctypes.c_void_p(address(workspace)))
    return {a.name: arrays[a.name] for a in binary.kernel.arguments if a.role == "output"}


@pytest.mark.compiler
@pytest.mark.parametrize("name", [n for n, (_, pairs) in DAGS.items() if pairs])
def test_one_memory_gives_what_two_give(
    name: str, here: Target, compiler: Compiler, tmp_path: Path, fresh_seed: int
) -> None:
    """To the last bit: random programs, and twice, since threads come in another order each time."""
    found = kernels(name, here, fresh_seed, 2)
    binaries = [b for b in build(found, compiler, here, tmp_path, prelude=PRELUDE) if isinstance(b, Binary)]
    assert len(binaries) == len(found) and any(b.kernel.inplace for b in binaries)
    given = dag_feeds(DAGS[name][0], fresh_seed % 1000)
    for binary in binaries:
        prepared = dict(given)
        for _, prepare in binary.kernel.prepare:
            prepared |= evaluate(prepare, {i.name: given[i.name] for i in prepare.inputs})
        apart = run(binary, prepared)
        for pair in binary.kernel.inplace * 2:
            for o, values in run(binary, prepared, pair).items():
                np.testing.assert_array_equal(values, apart[o], f"{binary.key} of seed {fresh_seed}, {pair}")


# ---------------------------------------------------------------------------------------------- networks


def blocks() -> Graph:
    """Identity, projection, identity, as in ResNet."""
    b = Builder("blocks", 1)
    x = conv_bn(b, b.input("x", (1, 3, 9, 11)), 8, (3, 3), (1, 1))
    x = bottleneck(b, bottleneck(b, bottleneck(b, x, 2, 1), 4, 2), 4, 1)
    return b.graph(classifier(b, x, 5))


def twice() -> Graph:
    """The residual comes back after the sum: only the second sum may take its place."""
    b = Builder("twice", 1)
    x = conv_bn(b, b.input("x", (1, 3, 9, 11)), 8, (3, 3), (1, 1))
    y = b.node("relu", b.node("add", conv_bn(b, x, 8, (1, 1), (1, 1), act=""), x))
    z = b.node("relu", b.node("add", conv_bn(b, y, 8, (1, 1), (1, 1), act=""), x))
    return b.graph(classifier(b, z, 5))


def callers() -> Graph:
    """The residuals are the caller's: the network's input, and its output."""
    b = Builder("callers", 1)
    x = b.input("x", (1, 8, 9, 11))
    y = b.node("relu", b.node("add", conv_bn(b, x, 8, (1, 1), (1, 1), act=""), x))
    z = b.node("relu", b.node("add", conv_bn(b, y, 8, (1, 1), (1, 1), act=""), y))
    return b.graph(y, classifier(b, z, 5))


def itself() -> Graph:
    """x + x, an image plus its mirror image, an image plus its means."""
    b = Builder("itself", 1)
    x = conv_bn(b, b.input("x", (1, 3, 8, 8)), 8, (3, 3), (1, 1))
    x = b.node("add", x, x)
    x = b.node("add", x, b.node("transpose", x, perm=(0, 1, 3, 2)))
    x = b.node("sub", x, b.node("reduce_mean", x, axes=(2, 3), keepdims=True))
    return b.graph(classifier(b, x, 5))


def networks(graph: Graph, target: Target) -> Iterator[tuple[Partition, Network]]:
    """In place where it is allowed, and nowhere."""
    partition = workloads(optimise(graph))
    made = {w.key: kernel_of(pick(w, target, {}).program, w.key) for w in partition.workloads}
    for kernels in (made, {key: replace(k, inplace=()) for key, k in made.items()}):
        yield partition, network_of(partition, kernels)


@pytest.mark.compiler
@pytest.mark.parametrize(("graph", "sums"), [(blocks, 3), (twice, 1), (callers, 0), (itself, None)])
def test_residual_networks(
    graph: Callable[[], Graph], sums: int | None, here: Target, compiler: Compiler, tmp_path: Path
) -> None:
    """The right values, and the same values in a bundle for others; less memory."""
    model = graph()
    (partition, network), (_, apart) = networks(model, here)
    memory = plan(network)
    added = [c for c in network.calls if "add" in c.name and {*c.writes} & {*memory.inplace}]
    assert sums is None or len(added) == sums
    assert memory.peak_bytes <= plan(apart).peak_bytes and plan(apart).inplace == {}
    given = feeds(model)
    export(network, tmp_path, here)
    values = [as_list(m(**given)) for m in (compile_network(network, compiler, here), load(tmp_path, compiler))]
    for found in values:
        assert_close(found, execute(partition, given))
    assert all(np.array_equal(a, b) for a, b in zip(*values, strict=True))


def as_list(found: Array | tuple[Array, ...]) -> list[Array]:
    return [*found] if isinstance(found, tuple) else [found]
