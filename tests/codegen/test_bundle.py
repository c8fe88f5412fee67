"""Networks: what is legal, where values lie, the C text, and the directory for others."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.bundle.constants import constants, layout, pack
from codegen.bundle.export import BundleError, export, read_manifest, read_weights
from codegen.bundle.library import BuildError, build
from codegen.bundle.manifest import parse, text
from codegen.bundle.memory import ALIGN, MemoryPlan, check_plan, plan
from codegen.bundle.network import Call, Choice, Indices, Network, NetworkError
from codegen.bundle.source import emit
from codegen.kernel import Argument, Kernel
from codegen.toolchain import Compiler, ToolchainError, find_compiler
from ir.compute import Dag
from ir.dsl import compute, dag, placeholder
from ir.target import Target
from tests.codegen.networks import Toy, add, chain, diamond, diamond_meaning, double, toy, value

TARGET = Target(vector_bytes=16, vector_registers=16)


# ---------------------------------------------------------------------------------------------- what is legal


def broken(**changes: Any) -> dict[str, Any]:
    good = diamond()
    fields = {n: getattr(good, n) for n in ("inputs", "outputs", "calls", "constants", "aliases")}
    return fields | changes


CALLS = diamond().calls
PACKING = Kernel(
    "p", "p", "", (Argument("w.pack", (4,), "float32", "constant"), Argument("y", (4,), "float32", "output"))
)


def preparing() -> Kernel:
    w = placeholder((2, 2), "w", constant=True)
    return replace(PACKING, prepare=(("w.pack", dag([compute((4,), lambda i: w[i // 2, i % 2], "w.pack")])),))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"calls": CALLS[1:]}, "'twice', which nothing has made"),
        ({"calls": CALLS[::-1]}, "call 0 'join' reads 'left', which nothing has made"),
        ({"calls": (*CALLS, CALLS[0])}, "output 'twice': the name is taken"),
        ({"outputs": (value("y", (7,)),)}, "returns 'y' as 7 x float32, but it is 6 x float32"),
        ({"outputs": (value("z"),)}, "returns 'z'"),
        ({"inputs": (value("x", (2, 3), "int32"),)}, "reads 'flat' as 6 x float32, but it is 6 x int32"),
        ({"inputs": (value("x", (2, 3)), value("x", (2, 3)))}, "input 'x': the name is taken"),
        ({"inputs": (value("x", (2, 3)), value("\n", (2,), "complex64"))}, r"'\\n': dtype complex64 has no C type"),
        ({"constants": {"w": np.zeros(6)}}, "as 6 x float32, but it is 6 x float64"),
        ({"constants": {}}, "reads 'w', which nothing has made"),
        ({"aliases": {"flat": "x", "seen": "seen"}}, "'seen' is an alias of itself"),
        ({"aliases": {"flat": "x", "seen": "flat2", "flat2": "seen"}}, "is an alias of itself"),
        ({"aliases": {"flat": "x", "seen": "twice", "more": "nothing"}}, "'more' stands for 'nothing'"),
        ({"aliases": {"flat": "x", "seen": "twice", "right": "x"}}, "output 'right': the name is taken"),
        ({"calls": (replace(CALLS[0], arguments=("x",)), *CALLS[1:])}, "1 values for the 2 pointers"),
        ({"calls": (Call(preparing(), ("", "q")), *CALLS)}, "'w.pack' is prepared from 'w', which is bound to no"),
        ({"calls": (Call(preparing(), ("", "q"), {"w": "w"}), *CALLS)}, "'w' does not fit 'w'"),
        ({"calls": (Call(preparing(), ("w", "q"), {"w": "w"}), *CALLS)}, "exactly when the kernel does not prepare"),
        ({"calls": (Call(replace(PACKING, language="cuda"), ("w", "q")), *CALLS)}, "written in cuda"),
        ({"calls": (Call(replace(PACKING, entry="a b"), ("w", "q")), *CALLS)}, "no C name but 'a b'"),
        (
            {"calls": (Call(replace(PACKING, inplace=(("y", "w.pack"),)), ("w", "q")), *CALLS)},
            "'y' in the place of 'w.p",
        ),
        (
            {"calls": (replace(CALLS[0], kernel=replace(CALLS[0].kernel, inplace=(("a", "out0"),))), *CALLS[1:])},
            "'a' in the",
        ),
        ({"calls": (replace(CALLS[0], indices=(Indices("x", 0, 1),)), *CALLS[1:])}, "indices 'x' are no integers"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NetworkError, match=message) as error:
        Network(**broken(**changes))
    assert "\n" not in str(error.value)


def test_a_constant_pointer_takes_no_run_time_value() -> None:
    with pytest.raises(NetworkError, match="'x' is passed as a constant and is none"):
        Network((value("x"),), (value("y"),), (Call(PACKING, ("x", "y")),))


def test_a_call_is_bound_by_the_names_of_its_tensors() -> None:
    call = Call.of(preparing(), {"w": "w0", "y": "y0"})
    assert call.arguments == ("", "y0") and call.sources == {"w": "w0"}
    with pytest.raises(NetworkError, match="no value for its tensor 'w'"):
        Call.of(preparing(), {"y": "y0"})


# ---------------------------------------------------------------------------------------------- memory


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Calls that read anything made before: inputs, constants, aliases of aliases, several outputs, empty values.

    A kernel may write in the place of any input of an output's size."""
    sizes: dict[str, int] = {}
    aliases: dict[str, str] = {}
    size = st.sampled_from([0, 1, 16, 63, 64, 65, 100, 256])

    def new(name: str) -> str:
        sizes[name] = draw(size)
        return name

    inputs = [new(f"x{i}") for i in range(draw(st.integers(0, 2)))]
    consts = [new(f"w{i}") for i in range(draw(st.integers(0, 2)))]
    calls = []
    for i in range(draw(st.integers(0, 14))):
        reads = draw(st.lists(st.sampled_from([*sizes]), max_size=3)) if sizes else []
        writes = [new(f"v{i}.{j}") for j in range(draw(st.integers(1, 2)))]
        pointers = [Argument(f"{n}{k}", (sizes[n],), "uint8", "input") for k, n in enumerate(reads)]
        pointers += [Argument(n, (sizes[n],), "uint8", "output") for n in writes]
        alike = [(n, f"{r}{k}") for n in writes for k, r in enumerate(reads) if sizes[n] == sizes[r]]
        pairs = tuple(p for p in alike if draw(st.booleans()))
        kernel = Kernel(f"k{i}", "k", "", tuple(pointers), (), draw(st.sampled_from([0, 1, 64, 130])), inplace=pairs)
        calls.append(Call(kernel, (*reads, *writes)))
        if draw(st.booleans()):
            of = draw(st.sampled_from([*sizes]))
            aliases[f"a{i}"], sizes[f"a{i}"] = of, sizes[of]
    returned = draw(st.lists(st.sampled_from([*sizes]), max_size=4)) if sizes else []
    return Network(
        tuple(value(n, (sizes[n],), "uint8") for n in inputs),
        tuple(value(n, (sizes[n],), "uint8") for n in returned),
        tuple(calls),
        {n: np.zeros(sizes[n], "uint8") for n in consts},
        aliases,
    )


def simulate(network: Network, memory: MemoryPlan) -> None:
    """Run with bytes that say whose they are: a call sees what was written, during the call and before it.

    After it, only what it wrote over with the kernel's leave may be gone, and nobody may ask for that again."""
    arena = np.zeros(memory.arena_bytes, np.uint8)
    outputs = [np.zeros(v.shape, np.uint8) for v in network.outputs]
    made = {n: i + 1 for i, n in enumerate(n for c in network.calls for n in c.writes)}
    sizes = {n: a.shape[0] for c in network.calls for a, n in c.pointers()}

    def bytes_of(name: str) -> np.ndarray:
        place = memory.places[name]
        return outputs[place.at] if place.base == "output" else arena[place.at : place.at + sizes[name]]

    def check(name: str) -> None:
        root = network.root(name)
        if root in made:
            assert bytes_of(root).size == sizes[root] and (bytes_of(root) == made[root]).all()

    for call in network.calls:
        for name in call.reads:
            check(name)
        arena[memory.peak_bytes : memory.peak_bytes + call.kernel.workspace_bytes] = 255
        for name in call.writes:
            assert memory.places[name].base != "arena" or memory.places[name].at % ALIGN == 0
            bytes_of(name)[:] = made[name]
        gone = {memory.inplace[n] for n in call.writes if n in memory.inplace}
        for name in (*call.reads, *call.writes):
            if network.root(name) not in gone:
                check(name)
    for copy in memory.copies:
        if copy.value in made:
            check(copy.value)
            outputs[copy.output][:] = made[copy.value]
    for v, out in zip(network.outputs, outputs, strict=True):
        assert (out == made.get(network.root(v.name), 0)).all()


@given(networks())
@settings(max_examples=100, deadline=None)
def test_no_value_is_overwritten_while_it_is_alive(network: Network) -> None:
    memory = plan(network)
    simulate(network, memory)
    assert memory.lower_bound_bytes <= memory.peak_bytes
    for i, a in enumerate(memory.buffers):
        for b in memory.buffers[:i]:
            x, y = memory.places[a.name].at, memory.places[b.name].at
            apart = x + a.bytes <= y or y + b.bytes <= x or 0 in (a.bytes, b.bytes)
            assert not a.meets(b) or apart or (memory.inplace[a.name] == b.name and x == y and b.last == a.first)


def test_the_simulation_sees_an_overlap() -> None:
    network = diamond((16,))
    memory = plan(network)
    places = {n: replace(p, at=0) if p.base == "arena" else p for n, p in memory.places.items()}
    with pytest.raises(AssertionError):
        simulate(network, replace(memory, places=places))


def test_a_plan_in_which_values_overlap_is_refused() -> None:
    """Every overlap, and every place that is none."""
    network = residual()
    good = plan(network)
    assert good.inplace == {"sum": "skip"} and good.peak_bytes == 128
    arena = [n for n, p in good.places.items() if p.base == "arena"]
    assert arena == ["skip", "left", "sum"]
    for name, at, message in (
        ("left", 0, "call 1 .*: 'skip' and 'left' lie in the same memory"),
        ("sum", 64, "call 2 .*: 'left' and 'sum' lie in the same memory"),
        ("skip", 128, "'skip' does not lie in the arena, at 128 of 128"),
        ("left", -64, "'left' does not lie in the arena"),
        ("left", 68, "'left' does not lie in the arena"),
    ):
        moved = good.places | {name: replace(good.places[name], at=at)}
        with pytest.raises(NetworkError, match=message):
            check_plan(network, replace(good, places=moved))
    for places, message in (
        ({n: p for n, p in good.places.items() if n != "sum"}, "'sum' has no memory"),
        (good.places | {"left": good.places["x"]}, "'left' has no memory"),
        (good.places | {"y": good.places["sum"]}, "'y' has no memory"),
        (good.places | {"left": good.places["y"]}, "'left' and 'y' are written to one output"),
    ):
        with pytest.raises(NetworkError, match=message):
            check_plan(network, replace(good, places=places))
    plain = replace(network, calls=tuple(replace(c, kernel=replace(c.kernel, inplace=())) for c in network.calls))
    with pytest.raises(NetworkError, match=r"call 2 .*: 'skip' and 'sum' lie in the same memory"):
        check_plan(plain, good)


# ---------------------------------------------------------------------------------------------- in place


def plus_in_place(*pairs: str, shape: tuple[int, ...] = (16,)) -> Toy:
    """out0 = a + b, in the place of `pairs`."""
    made = add(shape)
    return replace(made, kernel=replace(made.kernel, inplace=tuple(("out0", p) for p in pairs)))


def residual(*, inputs: tuple[str, ...] = ("x",), outputs: tuple[str, ...] = ("y",), more: tuple[Call, ...] = (),
             names: tuple[str, str] = ("skip", "left"), constants: tuple[str, ...] = (),
             aliases: Mapping[str, str] | None = None, pairs: tuple[str, ...] = ("a",)) -> Network:  # fmt: skip
    """x -> skip -> left; sum = skip + left; y = 2 sum; each of 64 bytes."""
    d, p = double((16,)), plus_in_place(*pairs)
    made = {*inputs, *constants}
    calls = [d(a, b) for a, b in (("x", "skip"), ("skip", "left")) if b not in made]
    calls += [p(*names, "sum"), *more, d("sum", "y")]
    return Network(
        tuple(value(n, (16,)) for n in inputs), tuple(value(n, (16,)) for n in outputs), tuple(calls),
        {n: np.ones(16, "float32") for n in constants}, aliases or {},
    )  # fmt: skip


def test_a_residual_is_added_in_place() -> None:
    memory = plan(residual())
    assert memory.places["sum"] == memory.places["skip"]
    assert memory.peak_bytes == memory.lower_bound_bytes == 128
    assert plan(residual(pairs=())).peak_bytes == 192
    manifest = emit(residual(), TARGET).manifest
    assert [(s.name, s.offset, s.first, s.last) for s in manifest.slices] == [
        ("skip", 0, 0, 2), ("left", 64, 1, 2), ("sum", 0, 2, 3),
    ]  # fmt: skip
    assert manifest.arena.bytes == 128 and parse(text(manifest)) == manifest


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pairs": ()}, {}),
        ({"pairs": ("b",)}, {"sum": "left"}),
        ({"pairs": ("a", "b")}, {"sum": "skip"}),
        ({"names": ("seen", "left"), "aliases": {"seen": "skip"}}, {"sum": "skip"}),
        ({"more": (double((16,))("skip", "late"),)}, {}),
        ({"more": (double((16,))("seen", "late"),), "aliases": {"seen": "skip"}}, {}),
        ({"more": (double((16,))("left", "late"),), "pairs": ("a", "b")}, {"sum": "skip"}),
        ({"more": (double((16,))("skip", "late"),), "pairs": ("a", "b")}, {"sum": "left"}),
        ({"inputs": ("x", "skip")}, {}),
        ({"inputs": ("x",), "names": ("x", "left")}, {}),
        ({"constants": ("skip",)}, {}),
        ({"outputs": ("y", "skip")}, {}),
        ({"outputs": ("y", "seen"), "aliases": {"seen": "skip"}}, {}),
        ({"outputs": ("y", "sum")}, {}),
        ({"names": ("left", "left"), "pairs": ("a",)}, {}),
        ({"names": ("left", "left"), "pairs": ("b",)}, {}),
        ({"names": ("left", "left"), "pairs": ("a", "b")}, {"sum": "left"}),
        ({"names": ("seen", "left"), "aliases": {"seen": "left"}}, {}),
        ({"names": ("seen", "left"), "aliases": {"seen": "left"}, "pairs": ("a", "b")}, {"sum": "left"}),
    ],
)
def test_only_a_dead_value_is_written_over(changes: dict[str, Any], found: dict[str, str]) -> None:
    """Not what is read later, under whatever name, nor what is the caller's, nor what the kernel reads elsewhere."""
    network = residual(**changes)
    memory = plan(network)
    simulate(network, memory)
    assert memory.inplace == found


def test_what_is_checked_as_an_index_is_not_written_over() -> None:
    both = toy("a[i] + b[i]", (16,), ["int32"] * 2, "int32")
    kernel = replace(both.kernel, inplace=(("out0", "a"),))
    one = toy("a[i] + 1", (16,), ["int32"], "int32")
    for indices, found in ((), {"sum": "skip"}), ((Indices("skip", 0, 9),), {}):
        call = Call(kernel, ("skip", "x", "sum"), indices=indices)
        numbers = value("x", (16,), "int32"), value("y", (16,), "int32")
        assert plan(Network((numbers[0],), (numbers[1],), (one("x", "skip"), call, one("sum", "y")))).inplace == found


def test_two_outputs_take_two_inputs_and_never_one() -> None:
    both = toy(["a[i] + b[i]", "a[i] - b[i]"], (16,), ["float32"] * 2)
    d, plus = double((16,)), add((16,))

    def inplace(pairs: tuple[tuple[str, str], ...], *names: str) -> Mapping[str, str]:
        calls = (
            d("x", "p"), d("x", "q"), replace(both, kernel=replace(both.kernel, inplace=pairs))(*names), plus("v", "w", "y")
        )  # fmt: skip
        memory = plan(Network((value("x", (16,)),), (value("y", (16,)),), calls))
        assert memory.peak_bytes == memory.lower_bound_bytes == 64 * (len({*names}) - len(memory.inplace))
        return memory.inplace

    assert inplace((("out0", "a"), ("out1", "b")), "p", "q", "v", "w") == {"v": "p", "w": "q"}
    assert inplace((("out0", "b"), ("out1", "a")), "p", "q", "v", "w") == {"v": "q", "w": "p"}
    assert inplace((("out0", "a"), ("out1", "b")), "q", "q", "v", "w") == {}
    assert inplace((("out0", "a"), ("out1", "a")), "p", "q", "v", "w") == {"v": "p"}


def test_a_chain_in_place_needs_one_buffer() -> None:
    step = toy("a[i] + 1", (16,), ["float32"])
    step = replace(step, kernel=replace(step.kernel, inplace=(("out0", "a"),)))
    names = ["x", *(f"v{i}" for i in range(9)), "y"]
    memory = plan(Network((value("x", (16,)),), (value("y", (16,)),), tuple(step(a, b) for a, b in pairwise(names))))
    assert memory.peak_bytes == memory.lower_bound_bytes == 64 and len(memory.inplace) == 8


# ---------------------------------------------------------------------------------------------- memory again


def test_a_chain_needs_two_buffers_whatever_its_length() -> None:
    memory = plan(chain(300, (16,)))
    assert memory.peak_bytes == memory.lower_bound_bytes == 2 * 64


def test_outputs_are_written_in_place_and_the_rest_is_copied() -> None:
    d = double()
    network = Network(
        (value("x"),),
        (value("y"), value("again"), value("x"), value("w"), value("y")),
        (d("x", "y"),),
        {"w": np.ones(4, "float32")},
        {"again": "y"},
    )
    memory = plan(network)
    assert memory.places["y"].base == "output" and memory.peak_bytes == 0
    assert [(c.value, c.output) for c in memory.copies] == [("y", 1), ("x", 2), ("w", 3), ("y", 4)]


def test_residual_networks_meet_the_bound() -> None:
    """A long skip beside a chain of other sizes: greedy by size places the skip first."""
    rng, calls, names = np.random.default_rng(0), [], ["x"]
    shapes = {"x": (64,)}
    for i in range(40):
        shape = (int(rng.integers(1, 40)) * 16,)
        read = [names[-1], names[max(0, len(names) - 4)]]
        pointers = [Argument(f"r{j}", shapes[n], "float32", "input") for j, n in enumerate(read)]
        kernel = Kernel(f"k{i}", "k", "", (*pointers, Argument("o", shape, "float32", "output")))
        calls.append(Call(kernel, (*read, f"v{i}")))
        names.append(f"v{i}")
        shapes[f"v{i}"] = shape
    memory = plan(Network((value("x", (64,)),), (value("v39", shapes["v39"]),), tuple(calls)))
    assert memory.peak_bytes <= 1.15 * memory.lower_bound_bytes


def test_the_workspace_is_shared() -> None:
    network = Network((value("x"),), (value("y"),), (double((4,), 100)("x", "t"), double((4,), 30)("t", "y")))
    memory = plan(network)
    assert memory.workspace_bytes == 128 and memory.arena_bytes == 64 + 128


# ---------------------------------------------------------------------------------------------- constants


def test_constants_are_prepared_and_packed_once() -> None:
    """Two kernels share a constant as it stands, two calls share a prepared one."""
    w = placeholder((2, 2), "w", constant=True)
    kernel = replace(PACKING, prepare=(("w.pack", dag([compute((4,), lambda i: w[i % 2, i // 2] * 2, "w.pack")])),))
    plus = add()
    calls = (
        Call(kernel, ("", "p"), {"w": "m"}),
        Call(kernel, ("", "q"), {"w": "m2"}),
        plus("p", "c", "r"),
        plus("q", "c", "s"),
    )
    arrays = {"m": np.arange(4, dtype="float32").reshape(2, 2), "c": np.ones(4, "float32"), "unused": np.ones(9)}
    network = Network((), (value("r"), value("s")), calls, arrays, {"m2": "m"})
    seen: list[Dag] = []

    def evaluate(d: Dag, given: Any) -> dict[str, Any]:
        seen.append(d)
        return {"w.pack": given["w"].T.reshape(4) * np.float32(2)}

    packed = layout(network, constants(network))
    block = pack(network, evaluate)
    assert [(p.name, p.offset) for p in packed] == [("w.pack of m", 0), ("c", 64)] and len(seen) == 1
    assert block.ctypes.data % 64 == 0 and block.size == 128
    assert block[:16].view("float32").tolist() == [0, 4, 2, 6] and block[64:80].view("float32").tolist() == [1] * 4
    with pytest.raises(ValueError, match="was prepared as float64"):
        pack(network, lambda d, given: {"w.pack": np.zeros(4)})


def test_any_layout_of_a_constant_is_packed_row_major() -> None:
    w = np.arange(12, dtype=">f4").reshape(3, 4).T[::2]
    network = Network((), (value("w", w.shape),), (), {"w": w})
    assert pack(network, lambda d, given: {})[:24].view("float32").tolist() == w.reshape(-1).tolist()


# ---------------------------------------------------------------------------------------------- text


def test_text_and_parse_of_the_manifest_are_inverse() -> None:
    names = 'a"b', "line\nbreak", "ü/漢*/\\", "\ud800"
    network = replace(diamond(x=names[0], y=names[1]), aliases={"flat": names[0], "seen": "twice", names[2]: names[0]})
    network = replace(network, report=(Choice("key", names[3], "near shape", 2),))
    manifest = emit(network, TARGET, versions={"compiler": "gcc 12"}).manifest
    assert parse(text(manifest)) == manifest
    assert [s.name for s in manifest.steps] == ["first", "bias", "again", "join"] and manifest.kernels.__len__() == 2
    with pytest.raises(ValueError, match="format"):
        parse(json.dumps({"format": 99}))


def test_names_never_reach_the_text() -> None:
    evil = '"); system("echo'
    named = emit(diamond(x=evil, y="*/\n#error"), TARGET)
    plain = emit(diamond(), TARGET)
    assert evil not in named.whole and "#error" not in named.whole
    assert named.whole.replace(named.manifest.id, plain.manifest.id) == plain.whole


def test_the_steps_read_like_the_network() -> None:
    driver = emit(diamond(), TARGET).driver
    steps = [line.strip() for line in driver.splitlines() if line.startswith("  case")]
    assert steps == [
        "case 0: { void *const p[] = {(void *)inputs[0], arena + 0}; tilewright_k0(p, workspace); } break;",
        "case 1: { void *const p[] = {arena + 0, (void *)constants[0], arena + 64}; tilewright_k1(p, workspace); } break;",
        "case 2: { void *const p[] = {arena + 0, arena + 128}; tilewright_k0(p, workspace); } break;",
        "case 3: { void *const p[] = {arena + 64, arena + 128, outputs[0]}; tilewright_k1(p, workspace); } break;",
    ]


def test_the_id_depends_on_everything_that_matters() -> None:
    """Text, flags and names; not on where kernels came from."""
    base = emit(diamond(), TARGET).manifest.id
    assert base == emit(replace(diamond(), report=(Choice("k", "n", "tuned"),)), TARGET).manifest.id
    others = [
        emit(diamond(), replace(TARGET, threads=2)).manifest.id,
        emit(diamond(x="other"), TARGET).manifest.id,
        emit(diamond((2, 4)), TARGET).manifest.id,
        emit(diamond(), TARGET, prefix="other").manifest.id,
    ]
    assert len({base, *others}) == 5


def test_kernels_are_spread_over_units() -> None:
    bundle = emit(diamond(), TARGET)
    assert len(bundle.units(16)) == 1 and len(bundle.units(1)) == 3
    with pytest.raises(NetworkError, match="prefix"):
        emit(diamond(), TARGET, prefix="Bad name")


# ---------------------------------------------------------------------------------------------- building


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return find_compiler(os.environ)


def symbols(library: Path) -> set[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


@pytest.mark.compiler
@pytest.mark.parametrize("unit", [1, 16])
def test_only_entry_points_are_visible(compiler: Compiler, tmp_path: Path, unit: int) -> None:
    library = build(emit(diamond(), TARGET, prefix="mine"), compiler, tmp_path, unit=unit, jobs=2)
    assert [*tmp_path.iterdir()] == [library]
    data = {"mine_id", "mine_input_bytes", "mine_output_bytes"}
    assert symbols(library) == {"mine_run", "mine_profile", "mine_init", "mine_bind"} | data


@pytest.mark.compiler
def test_what_does_not_compile_is_one_line(compiler: Compiler, tmp_path: Path) -> None:
    bad = toy("undeclared", (4,), [])
    network = Network((), (value("y"),), (bad("y"),))
    with pytest.raises(BuildError, match="undeclared") as error:
        build(emit(network, TARGET), compiler, tmp_path)
    assert "\n" not in str(error.value) and not [*tmp_path.iterdir()]
    with pytest.raises(ToolchainError, match="OpenMP"):
        build(emit(diamond(), replace(TARGET, threads=2)), replace(compiler, openmp=False), tmp_path)


# ---------------------------------------------------------------------------------------------- for others


def every_kind() -> Network:
    """An index that is checked, booleans, a constant that is returned, a copied input, a prepared constant, no name
    that C could bear."""
    pick = toy("a[b[i]]", (4,), ["float32", "int32"])
    above = toy("a[i] > 1", (4,), ["float32"], "bool")
    packed = replace(preparing(), source="void p(void *const *a, void *w) { __builtin_memcpy(a[1], a[0], 16); }")
    calls = (
        replace(pick("x", "at it", "picked", name='"pick"'), indices=(Indices("at it", 0, 3),)),
        double((4,), 200)("picked", "long\nname"),
        above("picked", "above"),
        Call(packed, ("", "w?"), {"w": "w"}),
    )
    outputs = (value("long\nname", (2, 2)), value("above", (4,), "bool"), value("x"), value("w"), value("w?"))
    return Network((value("x"), value("at it", (4,), "int32")), outputs, calls, {"w": np.arange(4, dtype="float32")})


def build_outside(directory: Path, *more: str) -> None:
    assert shutil.which("make")
    words = ["make", "-C", str(directory), "model", "libmodel.so", *more]
    done = subprocess.run(words, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr


def run_outside(directory: Path, inputs: list[Any], outputs: int) -> tuple[int, list[bytes], str]:
    for i, array in enumerate(inputs):
        array.tofile(directory / f"input{i}")
    paths = [*(f"input{i}" for i in range(len(inputs))), *(f"output{i}" for i in range(outputs))]
    done = subprocess.run(["./model", "weights.bin", *paths], cwd=directory, capture_output=True, text=True)
    found = [(directory / f"output{i}").read_bytes() for i in range(outputs)] if done.returncode == 0 else []
    return done.returncode, found, done.stderr


X, AT = np.array([0.5, 1.5, 2.5, 3.5], "float32"), np.array([3, 0, 0, 2], "int32")


@pytest.mark.compiler
@pytest.mark.parametrize("more", [(), ("CFLAGS=-g -fsanitize=address,undefined -fno-sanitize-recover",)])
def test_an_exported_directory_needs_nothing_of_ours(compiler: Compiler, tmp_path: Path, more: tuple[str, ...]) -> None:
    """Built by its Makefile, run as a program; with threads, then with sanitizers, where the compiler has them."""
    export(every_kind(), tmp_path, replace(TARGET, threads=1 if more or not compiler.openmp else 2))
    assert {f.name for f in tmp_path.iterdir()} == {
        "model.c", "model.h", "weights.bin", "manifest.json", "main.c", "Makefile",
    }  # fmt: skip
    if more and not has_sanitizers(tmp_path):
        pytest.skip("the compiler has no sanitizers")
    build_outside(tmp_path, *more)
    code, found, errors = run_outside(tmp_path, [X, AT], 5)
    assert code == 0, errors
    w = np.arange(4, dtype="float32")
    expected = [X[AT] * 2, X[AT] > 1, X, w, w]
    assert found == [e.tobytes() for e in expected]

    code, _, _ = run_outside(tmp_path, [X, np.array([3, 4, 0, 0], "int32")], 5)
    assert code == 1, "an index out of range is refused"
    assert run_outside(tmp_path, [X[:3], AT], 5)[0] == 1, "a short file is refused"


def has_sanitizers(directory: Path) -> bool:
    probe = directory / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    words = ["cc", "-fsanitize=address,undefined", str(probe), "-o", str(directory / "probe")]
    built = subprocess.run(words, capture_output=True).returncode == 0
    return built and subprocess.run([directory / "probe"], capture_output=True).returncode == 0


@pytest.mark.compiler
def test_sanitizers_see_a_kernel_that_writes_too_far(tmp_path: Path) -> None:
    """The negative control of the test above."""
    if not has_sanitizers(tmp_path):
        pytest.skip("the compiler has no sanitizers")
    far = toy("a[i]; out0[i + 1] = 0", (4,), ["float32"])
    export(Network((value("x"),), (value("y"),), (far("x", "y"),)), tmp_path, TARGET)
    build_outside(tmp_path, "CFLAGS=-g -fsanitize=address")
    code, _, errors = run_outside(tmp_path, [X], 1)
    assert code != 0 and "heap-buffer-overflow" in errors


@pytest.mark.compiler
def test_missing_flags_are_named(tmp_path: Path) -> None:
    export(diamond(), tmp_path, Target(features=("avx512f",)))
    done = subprocess.run(["cc", "-c", "model.c"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and "compile this file with the flags in the Makefile" in done.stderr


@pytest.mark.compiler
def test_two_exported_networks_live_in_one_program(tmp_path: Path) -> None:
    """With two prefixes; strict warnings, since others compile it with theirs."""
    for name, network in (("one", diamond()), ("two", chain(3, (6,)))):
        export(network, tmp_path / name, TARGET, prefix=name)
        words = [
            "-std=gnu11",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Wno-unused-parameter",
            "-Wno-unknown-pragmas",
            "-Werror",
            "-c",
        ]
        command = ["cc", *words, str(tmp_path / name / "model.c"), "-o", str(tmp_path / f"{name}.o"), "-fPIC"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    linked = tmp_path / "both.so"
    subprocess.run(["cc", "-shared", tmp_path / "one.o", tmp_path / "two.o", "-o", linked, "-lm"], check=True)
    library, x = ctypes.CDLL(str(linked)), np.arange(6, dtype="float32")
    for name, expected in (("one", diamond_meaning(x)), ("two", x + 3)):
        manifest = read_manifest(tmp_path / name)
        weights, y = read_weights(tmp_path / name, manifest), np.zeros(6, "float32")
        scratch = np.zeros(manifest.arena.bytes + 64, np.uint8)
        bound = (ctypes.c_void_p * 4)()
        getattr(library, f"{name}_bind")(ctypes.c_void_p(weights.ctypes.data), bound)
        inputs, outputs = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
        start = scratch.ctypes.data + -scratch.ctypes.data % 64
        run = getattr(library, f"{name}_run")
        assert run(inputs, outputs, ctypes.c_void_p(start + 8), bound) == 1, "a misaligned arena is refused"
        assert run(inputs, outputs, ctypes.c_void_p(start), bound) == 0
        assert np.array_equal(y, expected)


def test_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    export(every_kind(), tmp_path, TARGET)
    manifest = read_manifest(tmp_path)
    weights = (tmp_path / "weights.bin").read_bytes()
    assert read_weights(tmp_path, manifest).tobytes() == weights
    for wrong in (weights[:-1], weights + b"\0", bytes(len(weights))):
        (tmp_path / "weights.bin").write_bytes(wrong)
        with pytest.raises(BundleError, match="not the file that belongs"):
            read_weights(tmp_path, manifest)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(BundleError, match="format"):
        read_manifest(tmp_path)
    with pytest.raises(BundleError, match="no bundle"):
        read_manifest(tmp_path / "nowhere")
