"""The contenders: what they are given, what they answer, and the processes that they live in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from ir.evaluate import run_graph
from ir.graph import Graph
from ir.zoo.builder import Builder
from tasks.model import load
from tilewright.errors import UsageError
from tilewright.peers.answers import deviation, inputs, tolerance
from tilewright.peers.contender import Array, Case, Unsupported
from tilewright.peers.graphs import onnx_of, spelt_out
from tilewright.peers.numpy import load as numpy_peer
from tilewright.peers.process import Pace, PeerError, Process, turn
from tilewright.peers.registry import DEFINED, EXACT, HOUSE, PEERS, REFERENCE, missing, peers_of, versions
from tilewright.peers.turns import Crew, agreed, interleaved

HOME = Path(__file__).parents[2]

# ---------------------------------------------------------------------------------------------- graphs


def image(b: Builder, channels: int = 4) -> str:
    return b.input("x", (2, channels, 6, 7))


def matrix(b: Builder) -> str:
    return b.input("x", (3, 4, 5))


def positive(b: Builder) -> str:
    return b.node("exp", matrix(b))


def pair(operator: str) -> Callable[[Builder], str]:
    return lambda b: b.node(operator, matrix(b), b.input("y", (4, 1)))


def of_one(operator: str, **attributes: object) -> Callable[[Builder], str]:
    return lambda b: b.node(operator, matrix(b), **attributes)  # type: ignore[arg-type]


def convolution(**attributes: object) -> Callable[[Builder], str]:
    return lambda b: b.convolution(
        image(b), b.uniform((6, 4 // attributes.get("groups", 1), 3, 3), -1, 1), **attributes
    )  # type: ignore


def upsampled(b: Builder, **attributes: object) -> str:
    return b.transposed(image(b), b.uniform((4, 3, 4, 4), -1, 1), b.weight((3,), 4), **attributes)  # type: ignore[arg-type]


def normed(b: Builder) -> str:
    y = b.batch_norm(b.conv(image(b), 4, (3, 3), (1, 1)))
    return b.node("relu", b.node("add", b.node("clip", y, low=0.0, high=6.0), "x"))


def read_twice(b: Builder) -> str:
    """In place, the first would change what the second reads."""
    y = b.node("mul", matrix(b), "x")
    return b.node("sub", b.node("add", y, y), b.node("relu", y))


def layers(b: Builder) -> str:
    return b.layer_norm(b.node("gelu", b.linear(matrix(b), 8)))


def table(b: Builder) -> str:
    return b.node("gather", b.weight((50, 3), 3), b.input("i", (2, 5), "int64"), axis=0)


def columns(b: Builder) -> str:
    return b.node("gather", matrix(b), b.constant(np.array([[4, 0], [2, 2]])), axis=2)


ONE_D = {"strides": (2,), "pads": (1, 1)}
THREE_D = {"strides": (1, 2, 2), "pads": (1, 1, 1) * 2}
GRAPHS: dict[str, tuple[Callable[[Builder], str], str]] = {  # name: (what it is made of, an operator in it)
    "conv":            (convolution(strides=(2, 1), pads=(1, 1, 1, 1)), "conv"),
    "conv dilated":    (convolution(dilations=(2, 2), groups=2), "conv"),
    "conv uneven":     (convolution(pads=(0, 1, 2, 1)), "conv"),
    "conv 1d":         (lambda b: b.convolution(b.input("x", (2, 4, 9)), b.uniform((5, 4, 3), -1, 1), **ONE_D), "conv"),
    "conv 3d":         (lambda b: b.conv(b.input("x", (1, 2, 4, 5, 5)), 3, (3, 3, 3), (1, 2, 2), bias=True), "conv"),
    "upsample":        (lambda b: upsampled(b, strides=(2, 2), pads=(1, 1, 1, 1)), "conv_transpose"),
    "upsample uneven": (lambda b: upsampled(b, strides=(2, 2), pads=(1, 1, 0, 1)), "conv_transpose"),
    "batch norm":      (normed, "batch_norm"),
    "clip":            (normed, "clip"),
    "relu":            (normed, "relu"),
    "read twice":      (read_twice, "sub"),
    "linear":          (layers, "layer_norm"),
    "gelu":            (of_one("gelu", approximate="tanh"), "gelu"),
    "gemm":            (lambda b: b.linear(b.input("x", (3, 5)), 4), "gemm"),
    "gemm scaled":     (lambda b: b.node("gemm", b.input("x", (5, 3)), b.weight((5, 4), 5), b.weight((4,), 5),
                                         trans_a=True, alpha=0.5, beta=2.0), "gemm"),
    "gather":          (table, "gather"),
    "gather columns":  (columns, "gather"),
    "max pool":        (lambda b: b.node("max_pool", image(b), kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1)), "max_pool"),
    "max pool uneven": (lambda b: b.node("max_pool", image(b), kernel=(2, 2), strides=(2, 2), pads=(0, 0, 1, 1)), "max_pool"),
    "average pool":    (lambda b: b.node("average_pool", image(b), kernel=(3, 3), pads=(1, 1, 1, 1)), "average_pool"),
    "softmax":         (of_one("softmax", axes=(-1,)), "softmax"),
    "reduce mean":     (of_one("reduce_mean", axes=(1, 2), keepdims=True), "reduce_mean"),
    "reduce l2":       (of_one("reduce_l2", axes=(0, 2), keepdims=False), "reduce_l2"),
    "reduce sum":      (of_one("reduce_sum", keepdims=False), "reduce_sum"),
    "reduce max":      (of_one("reduce_max", axes=(1,)), "reduce_max"),
    "reduce min":      (of_one("reduce_min", axes=(1,)), "reduce_min"),
    "matmul":          (lambda b: b.node("matmul", matrix(b), b.input("y", (5, 6))), "matmul"),
    "transpose":       (of_one("transpose", perm=(2, 0, 1)), "transpose"),
    "reshape":         (of_one("reshape", shape=(6, 10)), "reshape"),
    "expand":          (lambda b: b.node("expand", b.input("x", (4, 1)), shape=(2, 4, 3)), "expand"),
    "concat":          (lambda b: b.node("concat", matrix(b), b.input("y", (3, 2, 5)), axis=1), "concat"),
    "slice":           (of_one("slice", starts=(1, 0, 0), sizes=(2, 2, 5), steps=(1, 2, 1)), "slice"),
    "pad":             (of_one("pad", pads=(0, 1, 2, 0, 3, 0), value=0.5), "pad"),
    "leaky relu":      (of_one("leaky_relu", alpha=0.2), "leaky_relu"),
    **{n: (of_one(n), n) for n in ("abs", "erf", "exp", "hard_swish", "neg", "sigmoid", "tanh")},
    **{n: (lambda b, n=n: b.node(n, positive(b)), n) for n in ("log", "sqrt")},
    **{n: (pair(n), n) for n in ("add", "max", "min", "mul", "sub")},
    "div":             (lambda b: b.node("div", matrix(b), b.node("exp", "x")), "div"),
    "pow":             (lambda b: b.node("pow", positive(b), b.input("y", (4, 1))), "pow"),
}  # fmt: skip


def graph_named(name: str) -> Graph:
    b = Builder("g", seed=3)
    return b.graph(GRAPHS[name][0](b))


def drawn(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    floats = {n: rng.uniform(-1, 1, v.shape).astype("float32") for n in graph.inputs if (v := graph.values[n])}
    return {n: rng.integers(0, 50, a.shape) if graph.values[n].dtype == "int64" else a for n, a in floats.items()}


@pytest.mark.parametrize("name", GRAPHS)
def test_torch_computes_what_the_definitions_say(name: str) -> None:
    torch = pytest.importorskip("torch")
    from tilewright.peers.torch import traced

    graph = graph_named(name)
    given = drawn(graph)
    with torch.no_grad():
        found = traced(graph)(*(torch.from_numpy(a.copy()) for a in given.values()))
    assert deviation([f.numpy() for f in found], run_graph(graph, given)) < 1e-5


def test_every_row_of_torch_is_tested() -> None:
    pytest.importorskip("torch")
    from tilewright.peers.torch import TABLE

    assert {operator for _, operator in GRAPHS.values()} | {"linear"} == set(TABLE)


def test_a_linear_layer_is_one_node_where_nobody_else_reads_the_product() -> None:
    pytest.importorskip("torch")
    from tilewright.peers.torch import with_linear_layers

    assert [n.operator for n in with_linear_layers(graph_named("linear")).nodes] == ["linear", "gelu", "layer_norm"]
    b = Builder("g")
    product = b.node("matmul", matrix(b), b.weight((5, 6), 5))
    shared = b.graph(b.node("mul", b.node("add", product, b.weight((6,), 5)), product))
    assert with_linear_layers(shared).nodes == shared.nodes


@pytest.mark.parametrize(
    ("operator", "attributes", "said"),
    [
        ("cumsum", {"axis": 1}, "cumsum"),
        ("softmax", {"axes": (0, 1)}, "axes"),
        ("pad", {"pads": (0, 0, 1) * 2, "mode": "edge"}, "mode"),
    ],
)
def test_torch_says_what_it_cannot_do(operator: str, attributes: dict[str, object], said: str) -> None:
    pytest.importorskip("torch")
    from tilewright.peers.torch import traced

    b = Builder("g")
    with pytest.raises(Unsupported, match=said):
        traced(b.graph(b.node(operator, matrix(b), **attributes)))  # type: ignore[arg-type]


def test_capsules_are_spelt_out_for_libraries() -> None:
    b = Builder("g", seed=1)
    x = b.input("x", (2, 5, 6, 4, 3, 2))
    weight = b.constant(b.uniform((3, 3, 3, 2, 2, 5), -1, 1))
    graph = b.graph(b.node("capsule_conv", x, weight, strides=(2, 1), pads=(1, 1, 1, 1)))
    given = {"x": np.random.default_rng(0).random((2, 5, 6, 4, 3, 2), dtype=np.float32)}
    plain = spelt_out(graph)
    assert [n.operator for n in plain.nodes] == ["transpose", "reshape", "conv", "reshape", "transpose"]
    assert deviation(run_graph(plain, given), run_graph(graph, given)) < 1e-6
    assert spelt_out(graph_named("softmax")).nodes == graph_named("softmax").nodes


def case_of(model: str, place: Path, threads: int = 1) -> Case:
    return Case(model, 1, None, None, threads, str(place / "store"))


@pytest.mark.parametrize("model", ["GMM.0.b1", "TBS.0.b1", "NRM.0.b1"])
def test_numpy_computes_what_the_definitions_say(model: str, tmp_path: Path) -> None:
    case = case_of(model, tmp_path)
    given = inputs(case.loaded())
    ready = numpy_peer(case, given)
    ready.run()
    assert deviation(ready.outputs(), run_graph(case.graph(), given)) < 1e-5


def test_numpy_names_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="NumPy has no conv"):
        numpy_peer(case_of("C1D.0.b1", tmp_path), {})


# ---------------------------------------------------------------------------------------------- who there is


def test_peers_are_named_or_all_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peers_of("numpy, onnxruntime,numpy") == ["numpy", "onnxruntime"]
    assert peers_of("installed") == [p for p in PEERS if missing(p) is None]
    assert "numpy" in peers_of("installed") and set(versions(["numpy"])) == {"python", "numpy"}
    with pytest.raises(UsageError, match=r"no peer is called 'tvm'; there are onnxruntime, .* or installed"):
        peers_of("tvm")
    monkeypatch.setattr("tilewright.peers.registry.find_spec", lambda name: None)
    assert missing("openvino") == "it is not installed; pip install openvino"
    monkeypatch.setattr("tilewright.peers.registry.find_spec", lambda name: name)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in str(missing("torch-compile")) and missing("torch") is None


# ---------------------------------------------------------------------------------------------- processes


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    with Crew(1, tmp_path) as made:
        yield made


def ready(crew: Crew, who: str, model: str = "GMM.0.b1") -> Process:
    case = case_of(model, crew.folder)
    crew.give(inputs(case.loaded()))
    return crew.load(who, case)


@pytest.fixture(scope="module")
def everyone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """One process a peer for many cases: PyTorch takes seconds to load."""
    with Crew(1, tmp_path_factory.mktemp("crew")) as made:
        yield made


@pytest.mark.parametrize("model", ["CAP.3.b1", "GMM.0.b1", "CBR.2.b1"])
@pytest.mark.parametrize("who", [p for p in PEERS if not PEERS[p].compiles])
def test_every_peer_answers_right_or_says_why_not(who: str, model: str, everyone: Crew) -> None:
    answers(who, model, everyone)


@pytest.mark.slow
def test_inductor_answers_right(everyone: Crew) -> None:
    answers("torch-compile", "CBR.2.b1", everyone)


def answers(who: str, model: str, crew: Crew) -> None:
    if reason := missing(who):
        pytest.skip(f"{who}: {reason}")
    if (who, model) in UNABLE:
        with pytest.raises(PeerError, match=UNABLE[who, model]):
            ready(crew, who, model)
        return
    process = ready(crew, who, model)
    samples = process.samples(0.002)
    assert samples and min(samples) > 0
    loaded = load(model)
    right = run_graph(loaded.graph, inputs(loaded))
    assert deviation(process.outputs(crew.folder), right) <= tolerance(loaded.graph)


UNABLE = {
    ("numpy", "CAP.3.b1"): "NumPy has no capsule_conv",
    ("numpy", "CBR.2.b1"): "NumPy has no batch_norm",
    ("torch-cl", "GMM.0.b1"): "no filters",
}


def test_a_process_is_stopped_between_questions_and_goes_on_to_the_next_case(crew: Crew) -> None:
    first = ready(crew, "numpy")
    assert state_of(first.process.pid) == "T"
    assert first.samples(0.0)
    assert ready(crew, "numpy", "TBG.0.b1") is first
    assert first.outputs(crew.folder)[0].shape == (1, 12, 128, 128)
    assert state_of(first.process.pid) == "T"


def state_of(pid: int) -> str:
    """One letter: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_who_does_not_answer_is_killed_and_replaced(crew: Crew) -> None:
    first = ready(crew, "numpy")
    with pytest.raises(PeerError, match=r"killed after 0 s without an answer"):
        first.ask({"turn": 1000}, 0.3)
    assert not first.alive
    second = ready(crew, "numpy")
    assert second is not first and second.samples(0.0)


def test_the_last_words_of_a_crash_are_told(crew: Crew) -> None:
    process = ready(crew, "numpy")
    with pytest.raises(PeerError, match=r"its process ended with 1: ValueError: asked out of turn: \{'nonsense'"):
        process.ask({"nonsense": 1})
    assert not process.alive
    killed = ready(crew, "numpy")
    os.kill(killed.process.pid, signal.SIGKILL)
    with pytest.raises(PeerError, match="ended with -9"):
        killed.samples()


def test_contenders_die_with_the_bench(tmp_path: Path) -> None:
    """Stopped, they would never see that nobody is left to ask."""
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom tilewright.peers.process import Process\n"
        f"p = Process('numpy', 1, Path({str(tmp_path / 'log')!r}), Path({str(tmp_path)!r}))\n"
        "try: p.ask({'origins': 1}, 0.2)\nexcept Exception: pass\n"
        f"q = Process('numpy', 1, Path({str(tmp_path / 'log')!r}), Path({str(tmp_path)!r}))\n"
        "print(q.process.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(HOME)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path)
    pid = int(done.stdout)
    deadline = time.monotonic() + 30
    while gone := Path(f"/proc/{pid}").exists() and state_of(pid) not in "ZX":
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.05)
    assert not gone


def test_names_of_inputs_may_be_anything(crew: Crew, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    names = ("file", "../x", "a b")
    infos = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in (*names, "y")]
    node = onnx.helper.make_node("Sum", names, ["y"], name="n")
    made = onnx.helper.make_graph([node], "g", infos[:3], infos[3:])
    path = tmp_path / "odd.onnx"
    onnx.save(onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    case = case_of(str(path), tmp_path)
    given = {n: np.full(3, i, np.float32) for i, n in enumerate(names, 1)}
    crew.give(given)
    for who in (p for p in (DEFINED, *peers_of("installed")) if p not in ("torch-compile", "torch-cl")):
        assert np.array_equal(crew.outputs(who, case)[0], [6, 6, 6]), who


# ---------------------------------------------------------------------------------------------- turns


def test_samples_are_seconds_a_call_and_the_first_one_is_dropped() -> None:
    calls, ticks = count(), count()
    samples = turn(lambda: next(calls), Pace(calls=4, long=False), lambda: float(next(ticks)), seconds=0.0)
    assert samples == [1 / 4] and next(calls) == 8
    long = turn(lambda: next(calls), Pace(calls=1, long=True), lambda: float(next(ticks)), seconds=0.0)
    assert long == [1.0] and next(calls) == 10


@dataclass
class Scripted:
    """Answers what it was told to, and writes down when."""

    who: str
    log: list[str]
    fails_at: int = -1
    asked: int = 0

    def samples(self, seconds: float) -> list[float]:
        self.log.append(self.who)
        self.asked += 1
        if self.asked - 1 == self.fails_at:
            raise PeerError("gone")
        return [float(self.asked)]


def test_everyone_has_a_turn_each_round_and_who_begins_changes() -> None:
    log: list[str] = []
    samples, failed = interleaved([Scripted(w, log) for w in "abc"], rounds=3)  # type: ignore[misc]
    assert "".join(log) == "abcbcacab" and not failed
    assert samples == {w: [1.0, 2.0, 3.0] for w in "abc"}


def test_who_fails_in_between_has_no_samples_and_no_more_turns() -> None:
    log: list[str] = []
    crowd = [Scripted("a", log), Scripted("b", log, fails_at=1)]
    samples, failed = interleaved(crowd, rounds=3)  # type: ignore[arg-type]
    assert samples == {"a": [1.0, 2.0, 3.0]} and failed == {"b": "gone"} and log.count("b") == 2


# ---------------------------------------------------------------------------------------------- right answers


def test_double_precision_decides_where_anyone_differs(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of("GMM.0.b1", crew.folder)
    graph, given = case.graph(), inputs(case.loaded())
    crew.give(given)
    right = run_graph(graph, given)
    wrong = [right[0] * 1.01]
    source, found = agreed(crew, case, {REFERENCE: wrong, "a": right}, 1e-4)
    assert source == EXACT and found[0].dtype == np.float64 and deviation(found, right) < 1e-6
    source, found = agreed(crew, case, {REFERENCE: right, "a": right}, 1e-4)
    assert source == REFERENCE and found is right
    monkeypatch.setattr("tilewright.peers.turns.missing", lambda who: None if who in HOUSE else "it is not here")
    source, found = agreed(crew, case, {"a": wrong}, 1e-4)
    assert source == DEFINED and deviation(found, right) < 1e-5, "sums in another order, for it has threads of its own"


def test_inputs_are_seeded_and_in_bounds() -> None:
    model = load("GMM.0.b1")
    assert all(np.array_equal(a, b) for a, b in zip(inputs(model, 1).values(), inputs(model, 1).values(), strict=True))
    assert not np.array_equal(inputs(model, 1)["a"], inputs(model, 2)["a"])
    assert all(np.abs(a).max() <= 1 for a in inputs(model).values())


def test_a_graph_without_onnx_names_what_is_missing(tmp_path: Path) -> None:
    assert isinstance(onnx_of(case_of("CAP.0.b1", tmp_path)), bytes)
    assert json.dumps(onnx_of(case_of(__file__, tmp_path))) == json.dumps(__file__)
