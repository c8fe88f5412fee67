"""Networks as functions of arrays: values, inputs, threads, profiles, and other users of OpenMP."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.bundle.export import BundleError, export
from codegen.bundle.library import build
from codegen.bundle.network import Call, Choice, Indices, Network, NetworkError
from codegen.bundle.partition import network as network_of
from codegen.bundle.source import emit
from codegen.c import kernel as emit_kernel
from codegen.kernel import Argument, Kernel
from codegen.module import LoadError, Module, compile_network, load
from codegen.toolchain import Compiler, find_compiler
from ir.compute import Dag
from ir.dsl import compute, dag, maximum, placeholder, reduce_axis
from ir.dsl import sum as sum_of
from ir.evaluate import evaluate
from ir.fuse import Partition, execute, workloads
from ir.graph import Graph, ModelError, Node
from ir.lower import lower
from ir.schedule import Hole, Pack, Program, Sketch, Tile
from ir.target import Target
from tests.codegen.networks import Array, add, chain, diamond, diamond_meaning, double, toy, value

pytestmark = pytest.mark.compiler
TARGET = Target(vector_bytes=16, vector_registers=16)
Make = Callable[..., Module]


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return find_compiler(os.environ)


@pytest.fixture(scope="session")
def made(compiler: Compiler) -> Make:
    def make(network: Network, threads: int = 1, **more: Any) -> Module:
        return compile_network(network, compiler, replace(TARGET, threads=threads), **more)

    return make


@pytest.fixture(scope="session")
def simple(made: Make) -> Module:
    return made(diamond())


X = np.arange(6, dtype="float32").reshape(2, 3)


# ---------------------------------------------------------------------------------------------- values


def test_a_diamond(simple: Module) -> None:
    y = simple(X)
    assert isinstance(y, np.ndarray) and y.shape == (2, 3) and np.array_equal(y, diamond_meaning(X))


def test_a_long_chain_of_one_kernel(made: Make) -> None:
    """300 calls, one function: no recursion, and the arena of a chain of two."""
    module = made(chain(300))
    x = np.arange(8, dtype="float32")
    assert np.array_equal(module(x), x + 300)
    assert module.arena_bytes == 128 and len(module.manifest.kernels) == 1


def test_many_kernels_are_built_in_several_units(made: Make) -> None:
    """A random network over integers, whose result must be exact; 40 kernels, values of several sizes of element."""
    rng, calls, values = np.random.default_rng(1), [], {"x": np.arange(50, dtype="int64") - 25}
    for i in range(40):
        a, b = (str(n) for n in rng.choice([*values], 2))
        factor = int(rng.integers(-3, 4))
        dtype = str(rng.choice(["int64", "int32", "int16", "uint8"]))
        kinds = [values[n].dtype.name for n in (a, b)]
        t = toy(f"(uint64_t)a[i] * {factor}u + b[i]", (50,), kinds, dtype)
        calls.append(t(a, b, f"v{i}"))
        wide = values[a].astype("int64").view("uint64") * np.uint64(factor % 2**32) + values[b].astype("int64").view(
            "uint64"
        )
        values[f"v{i}"] = wide.astype(dtype)
    outputs = ["v39", "v20", "v39", "v3"]
    network = Network(
        (value("x", (50,), "int64"),), tuple(value(n, (50,), values[n].dtype.name) for n in outputs), tuple(calls)
    )
    for got, name in zip(made(network)(values["x"]), outputs, strict=True):
        assert np.array_equal(got, values[name]), name


def test_several_outputs_aliases_and_copies(made: Make) -> None:
    """One kernel with two outputs; an input, a constant and one value twice are returned: nothing shares memory."""
    both = toy(["a[i] + 1", "a[i] - 1"], (6,), ["float32"])
    w = np.arange(3, dtype="int16")
    outputs = (
        value("more", (6,)), value("less", (3, 2)), value("x", (2, 3)), value("x as row", (6,)), value("w", (3,), "int16"),
        value("more", (6,)), value("y", (6,)),
    )  # fmt: skip
    calls = (both("x", "more", "l"), double((6,))("l2", "y"))
    network = Network((value("x", (2, 3)),), outputs, calls, {"w": w}, {"x as row": "x", "less": "l", "l2": "less"})
    module = made(network)
    found = module(X)
    flat = X.reshape(-1)
    expected = (flat + 1, (flat - 1).reshape(3, 2), X, flat, w, flat + 1, (flat - 1) * 2)
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == wanted.shape and got.dtype == wanted.dtype and np.array_equal(got, wanted)
    arrays = [*found, X, w]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])
    again = module(X + 1)
    assert np.array_equal(found[0], flat + 1) and np.array_equal(again[0], flat + 2), "results are not overwritten"


def test_a_network_without_inputs(made: Make) -> None:
    w = np.arange(4, dtype="float32")
    module = made(Network((), (value("y"),), (double()("w", "y"),), {"w": w}))
    assert np.array_equal(module(), w * 2)


def test_a_network_without_calls(made: Make) -> None:
    module = made(Network((value("x"),), (value("x"),), ()))
    x = np.arange(4, dtype="float32")
    y = module(x)
    assert np.array_equal(y, x) and not np.shares_memory(x, y)
    assert made(Network((), (), ()))() == ()


def test_empty_tensors_and_scalars(made: Make) -> None:
    shapes = (0,), (2, 0), ()
    calls = (double((0,))("a", "a2"), double((2, 0))("b", "b2"), double(())("c", "c2"))
    module = made(
        Network(
            tuple(value(n, s) for n, s in zip("abc", shapes, strict=True)),
            tuple(value(n, s) for n, s in zip(("a2", "b2", "c2"), shapes, strict=True)),
            calls,
        )
    )
    a, b, c = module(*(np.full(s, 3, "float32") for s in shapes))
    assert (a.shape, b.shape, c.shape) == shapes and c == 6


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float64"])
def test_dtypes(made: Make, dtype: str) -> None:
    flip = toy("!a[i]" if dtype == "bool" else "a[i] + 1", (5,), [dtype], dtype)
    module = made(
        Network(
            (value("x", (5,), dtype),),
            (value("y", (5,), dtype),),
            (flip("x", "y"),),
        )
    )
    x = np.array([0, 1, 1, 0, 1], dtype)
    y = module(x)
    assert y.dtype == x.dtype and np.array_equal(y, ~x if dtype == "bool" else x + np.ones((), dtype))


def test_odd_names(made: Make) -> None:
    x, y = 'in"put\n:0', "ü/漢*/ \\ %s ??="
    module = made(diamond(x=x, y=y))
    assert np.array_equal(module(**{x: X}), diamond_meaning(X))
    with pytest.raises(ValueError, match="there is no input 'x'") as error:
        module(x=X)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------- kernels of the emitter


def scheduled(sketch: Sketch, key: str) -> Kernel:
    """The first program of a sketch; one without steps is plain loops."""
    found = lower(Program(sketch, (0,) * len(sketch.holes)))
    constant = {i.name for i in sketch.dag.inputs if i.constant} | {name for name, _ in found.prepare}
    return emit_kernel(found.nest, key, "kernel", frozenset(constant), found.prepare)


def dense(n: int, k: int, m: int) -> tuple[Dag, Kernel]:
    """relu(x w + b) with w packed into panels: lowered, emitted, with a constant to prepare."""
    x, w, b = placeholder((n, k), "x"), placeholder((k, m), "w", constant=True), placeholder((m,), "b", constant=True)
    r = reduce_axis(k, "r")
    product = compute((n, m), lambda i, j: sum_of(x[i, r] * w[r, j], r), "product", axes=["i", "j"])
    d = dag([compute((n, m), lambda i, j: maximum(product[i, j] + b[j], 0), "y", axes=["i", "j"])])
    sizes = (("i", 1, 1), ("i", 2, 1), ("i", 3, 2), ("j", 1, 1), ("j", 2, 1), ("j", 3, 8), ("r", 1, 3))
    holes = [Hole(f"product.{a}.{level}", (size,), "tile", "product", a) for a, level, size in sizes]
    sketch = Sketch(d).then(Pack("product", "w", "j")).then(Tile("product", "SSRSRS", "j"), *holes)
    return d, scheduled(sketch, "dense")


def test_emitted_kernels_with_prepared_constants(made: Make) -> None:
    """Two layers of one kernel: each packs its own weights; the second call shares the function."""
    rng = np.random.default_rng(0)
    d, kernel = dense(5, 12, 12)
    assert kernel.prepare, "the sketch packs its weights"
    w = {n: rng.standard_normal(s).astype("float32") for n, s in (("w1", (12, 12)), ("w2", (12, 12)), ("b", (12,)))}
    calls = (
        Call.of(kernel, {"x": "x", "w": "w1", "b": "b", "y": "h"}, "dense", "one"),
        Call.of(kernel, {"x": "h", "w": "w2", "b": "b", "y": "z"}, "dense", "two"),
    )
    module = made(Network((value("x", (5, 12)),), (value("z", (5, 12)),), calls, w))
    assert len(module.manifest.kernels) == 1 and len(module.manifest.constants) == 3
    x = rng.standard_normal((5, 12)).astype("float32")
    h = evaluate(d, {"x": x, "w": w["w1"], "b": w["b"]})["y"]
    expected = evaluate(d, {"x": h, "w": w["w2"], "b": w["b"]})["y"]
    np.testing.assert_allclose(module(x), expected, rtol=1e-5, atol=1e-5)


def test_an_index_out_of_range_is_refused(made: Make) -> None:
    x, at = placeholder((6,), "x"), placeholder((3,), "at", "int32")
    d = dag([compute((3,), lambda i: x[at[i]], "y")])
    call = Call.of(
        scheduled(Sketch(d), "gather"), {"x": "x", "at": "at", "y": "y"}, "g", "gather", (Indices("at", 0, 5),)
    )
    module = made(Network((value("x", (6,)), value("at", (3,), "int32")), (value("y", (3,)),), (call,)))
    flat = X.reshape(-1)
    assert module(flat, np.array([5, 0, 2], "int32")).tolist() == [5, 0, 2]
    for wrong in (6, -1):
        for run in (module, lambda *a: module.profile(a), lambda *a: module.benchmark(a, 0.0)):
            with pytest.raises(IndexError, match=r"'gather': an index is out of range; expected 'at' in 0\.\.5"):
                run(flat, np.array([5, wrong, 2], "int32"))
    assert module(flat, np.array([1, 1, 1], "int32")).tolist() == [1, 1, 1], "the module is none the worse for it"


def graph(**constants: Array) -> Graph:
    """Two layers that share a kernel, a view, a gather; an input and a constant are returned."""
    values = [value(n, (4, 6)) for n in ("x", "h1", "r1", "h2", "r2")]
    values += [value("w1", (6, 6)), value("w2", (6, 6)), value("flat", (24,)), value("y", (3,))]
    values += [value("at", (3,), "int64"), value("one", (1,), "int64"), value("last", (1,))]
    nodes = (
        Node("first", "matmul", ("x", "w1"), ("h1",)),
        Node("relu", "relu", ("h1",), ("r1",)),
        Node("second", "matmul", ("r1", "w2"), ("h2",)),
        Node("relu again", "relu", ("h2",), ("r2",)),
        Node("view", "reshape", ("r2",), ("flat",), {"shape": (24,)}),
        Node("pick", "gather", ("flat", "at"), ("y",), {"axis": 0}),
        Node("known", "gather", ("flat", "one"), ("last",), {"axis": 0}),
    )
    outputs = ("y", "flat", "last", "x", "w2")
    return Graph("g", ("x", "at"), outputs, nodes, {v.name: v for v in values}, constants)


def plain_kernels(partition: Partition) -> dict[str, Kernel]:
    return {w.key: scheduled(Sketch(w.dag), w.key) for w in partition.workloads}


def test_a_graph_cut_into_workloads(made: Make) -> None:
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((6, 6)).astype("float32") for n in ("w1", "w2")}
    partition = workloads(graph(**weights, one=np.array([-1])))
    module = made(network_of(partition, plain_kernels(partition)))
    assert len(module.manifest.kernels) < len(partition.calls), "equal layers share a function"
    given = {"x": rng.standard_normal((4, 6)).astype("float32"), "at": np.array([0, -24, 23])}
    for got, wanted in zip(module(**given), execute(partition, given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(IndexError, match=r"'pick': .* expected 'at' in -24\.\.23"):
        module(given["x"], np.array([0, 24, 0]))
    with pytest.raises(ModelError, match=r"known: index 24 is outside -24\.\.23"):
        workloads(graph(**weights, one=np.array([24])))
    with pytest.raises(NetworkError, match="has no kernel"):
        network_of(partition, {})


# ---------------------------------------------------------------------------------------------- inputs


def test_what_is_wrong_with_an_input_is_said(made: Make) -> None:
    module = made(Network((value("a"), value("b")), (value("y"),), (add()("a", "b", "y"),)))
    ok, f64 = np.zeros(4, "float32"), np.zeros(4)
    for arrays, named, message in (
        ((ok, f64), {}, r"input 'b': expected float32\[4\], got float64\[4\]"),
        ((ok, np.zeros((2, 2), "float32")), {}, r"input 'b': expected float32\[4\], got float32\[2, 2\]"),
        ((ok, np.zeros(4, ">f4")), {}, r"input 'b': expected float32\[4\], got >f4\[4\]"),
        ((ok,), {}, r"input 'b' is missing: expected float32\[4\]"),
        ((ok, ok, ok), {}, "3 inputs given, expected 2: 'a', 'b'"),
        ((ok,), {"a": ok}, "input 'a' is given twice"),
        ((ok,), {"c": ok}, "there is no input 'c'; the inputs are 'a', 'b'"),
    ):
        with pytest.raises(ValueError, match=message):
            module(*arrays, **named)
    assert np.array_equal(module(ok, b=ok + 1), ok + 1) and np.array_equal(module(b=ok + 1, a=ok), ok + 1)


def test_inputs_of_any_layout(simple: Module) -> None:
    """Transposed, strided, reversed, broadcast, read-only, unaligned: copied where they must be, never written."""
    expected = diamond_meaning(X)
    raw = np.zeros(X.nbytes + 1, np.uint8)
    unaligned = raw[1:].view("float32").reshape(2, 3)
    unaligned[...] = X
    frozen = X.copy()
    frozen.flags.writeable = False
    wide = np.repeat(np.repeat(X, 2, 0), 3, 1)
    for x in (np.asfortranarray(X), wide[::2, ::3], X[::-1].copy()[::-1], unaligned, frozen, [*X]):
        assert np.array_equal(simple(x), expected)
    row = np.broadcast_to(np.float32(2), (2, 3))
    assert np.array_equal(simple(row), diamond_meaning(np.full((2, 3), 2, "float32")))


# ---------------------------------------------------------------------------------------------- threads


def busy(shape: tuple[int, ...], threads: int, made: Make) -> Module:
    """Intermediates large enough that calls overlap, a workspace that is written."""
    plus, times = add(shape), double(shape, workspace_bytes=4096)
    calls = (times("x", "a"), plus("a", "x", "b"), times("b", "c"), plus("c", "a", "y"))
    return made(Network((value("x", shape),), (value("y", shape),), calls), threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_from_several_threads(made: Make, threads: int) -> None:
    module = busy((20000,), threads, made)

    def run(seed: int) -> bool:
        x = np.random.default_rng(seed).integers(-1000, 1000, 20000).astype("float32")
        return bool(np.array_equal(module(x), x * 8))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(60)))
    assert 1 <= len(module._arenas) <= 6, "arenas are reused"


OTHERS = """
import os, sys, ctypes
import numpy as np
from dataclasses import replace
from codegen.module import compile_network
from codegen.toolchain import find_compiler
from tests.codegen.networks import chain
from tests.codegen.test_module import TARGET, team
def other():
    import xgboost
    x = np.random.default_rng(0).random((500, 4)).astype("float32")
    xgboost.train({"nthread": 2}, xgboost.DMatrix(x, x[:, 0], nthread=2), 3)
if sys.argv[1] == "before":
    other()
compiler = find_compiler(os.environ)
module, x = compile_network(chain(3, (5000,)), compiler, replace(TARGET, threads=2)), np.arange(5000, dtype="float32")
count = compile_network(team(), compiler, replace(TARGET, threads=2))
gomp = ctypes.CDLL("libgomp.so.1") if compiler.kind == "gcc" else None
before = gomp and gomp.omp_get_max_threads()
assert count()[0] == 2, count()
for _ in range(3):
    assert np.array_equal(module(x), x + 3)
    other()
assert count()[0] == 2
assert gomp is None or gomp.omp_get_max_threads() == before == 3
print("done")
"""


def team() -> Network:
    """How many threads a parallel region has."""
    source = (
        "extern int omp_get_num_threads(void);\n"
        "void kernel(void *const *arguments, void *workspace) {\n  int32_t *out = arguments[0];\n"
        "#pragma omp parallel\n#pragma omp single\n  out[0] = omp_get_num_threads();\n}\n"
    )
    kernel = Kernel("team", "kernel", source, (Argument("n", (1,), "int32", "output"),))
    return Network((), (value("n", (1,), "int32"),), (Call(kernel, ("n",)),))


@pytest.mark.parametrize("order", ["before", "after"])
def test_beside_other_users_of_openmp(order: str) -> None:
    """XGBoost brings its own OpenMP; the team has our size, and the calling thread keeps what the environment says."""
    if not importlib.util.find_spec("xgboost"):
        pytest.skip("xgboost is not installed")
    home = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": home, "OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, "-c", OTHERS, order], cwd=home, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and done.stdout.strip() == "done", done.stderr


def test_the_team_has_its_size_in_every_thread(made: Make) -> None:
    """Threads that are made after loading do not inherit what was set at loading."""
    module = made(team(), 2)
    with ThreadPoolExecutor(3) as pool:
        assert [int(n[0]) for n in pool.map(lambda _: module(), range(6))] == [2] * 6


# ---------------------------------------------------------------------------------------------- what it tells


def test_profile_and_benchmark(simple: Module) -> None:
    times = simple.profile([X], repeat=5)
    assert [t.name for t in times] == ["first", "bias", "again", "join"]
    assert times[0].workload == times[2].workload != times[1].workload
    assert all(0 <= t.seconds < 0.1 for t in times)
    samples = simple.benchmark({"x": X}, seconds=0.02)
    assert len(samples) >= 3 and all(0 < s < 0.1 for s in samples)
    with pytest.raises(ValueError, match="repeat"):
        simple.profile([X], repeat=0)
    with pytest.raises(ValueError, match="'x' is missing"):
        simple.benchmark({})


def test_times_of_a_profile_add_up(made: Make) -> None:
    """A slow step among fast ones is found; copies are steps too."""
    slow = toy("({ volatile float s = a[i]; for (int k = 0; k < 20000; k++) s += 1; s; })", (64,), ["float32"])
    calls = (double((64,))("x", "a", name="fast"), slow("a", "y", name="slow"))
    module = made(Network((value("x", (64,)),), (value("y", (64,)), value("y", (64,))), calls))
    fast, long, copy = module.profile([np.zeros(64, "float32")], 9)
    assert long.seconds > 20 * fast.seconds and copy.name == "copy to y" and copy.workload == ""
    whole = min(module.benchmark([np.zeros(64, "float32")], 0.05))
    assert long.seconds > 0.5 * whole


def test_report(made: Make) -> None:
    report = Choice("key", "conv", "tuned", 2, "12.5 us"), Choice("other", "add", "default")
    assert made(replace(diamond(), report=report)).report == report


# ---------------------------------------------------------------------------------------------- loading


def test_an_exported_directory_can_be_loaded(compiler: Compiler, tmp_path: Path, simple: Module) -> None:
    network = replace(diamond(), report=(Choice("key", "conv", "tuned"),))
    manifest = export(network, tmp_path, TARGET)
    module = load(tmp_path, compiler)
    assert module.manifest == manifest and module.report == network.report
    assert np.array_equal(module(X), simple(X))
    other = (tmp_path / "model.c").read_text().replace(manifest.id, "0" * 32)
    (tmp_path / "model.c").write_text(other)
    with pytest.raises(LoadError, match="another program"):
        load(tmp_path, compiler)
    (tmp_path / "model.c").unlink()
    with pytest.raises(BundleError, match=r"no model\.c"):
        load(tmp_path, compiler)


def test_a_library_is_asked_who_it_is(compiler: Compiler, tmp_path: Path) -> None:
    one, two = emit(diamond(), TARGET), emit(chain(2), TARGET)
    library = build(two, compiler, tmp_path)
    weights = np.zeros(0, np.uint8)
    Module(library, two.manifest, weights)
    with pytest.raises(LoadError, match="the weights must be 64 bytes"):
        Module(library, one.manifest, weights)
    with pytest.raises(LoadError, match="another program"):
        Module(library, replace(two.manifest, id="x"), weights)
    with pytest.raises(LoadError, match="cannot load"):
        Module(tmp_path / "nothing.so", two.manifest, weights)
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(LoadError, match="cannot load"):
        Module(tmp_path / "text.so", two.manifest, weights)


def test_nothing_is_left_behind(made: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    module = made(diamond())
    assert not [*tmp_path.iterdir()]
    y, gone = module(X), weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None and np.array_equal(y, diamond_meaning(X)), "results outlive their module"


def test_two_modules_in_one_process(made: Make, simple: Module) -> None:
    """The same symbols in two libraries."""
    other = made(chain(5, (6,)))
    flat: Array = X.reshape(-1)
    assert np.array_equal(other(flat), flat + 5) and np.array_equal(simple(X), diamond_meaning(X))
