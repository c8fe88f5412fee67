"""Side by side: our module and others run one model, each in a process of its own, all on the same cores, in turns.

Buffers are bound before, ours and theirs, so that a call is the work and little else. The parent walks rounds x
contenders, so that whatever disturbs the machine disturbs all alike. One thread is timed by the processor time of its
process, which other programs do not inflate; more threads by the wall clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from ir.evaluate import run_graph
from ir.graph import Graph, ModelError, Value
from tasks.model import Model, load

Array = np.ndarray
Answer = dict[str, Any]
Outputs = Callable[[], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A contender that can run. `run` is what is timed; `outputs` runs and answers, and may copy.

    origins: where each workload's program came from, for ours.
    """

    run: Callable[[], object]
    outputs: Outputs
    origins: tuple[str, ...] = ()


ROUNDS = 9
SAMPLE_SECONDS = 0.03  # a sample is as many calls as fill this, one at least
OURS, PEAK = "tilewright", "peak"
# Largest deviation in units of the output's magnitude: a few thousand roundings of the type.
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 1e-4, "float64": 1e-10}
INDICES, SEED = 100, 0  # integer inputs without a bound of their own are below this


class PeerError(RuntimeError):
    """A contender's process failed: one line with its last words."""


class Unsupported(Exception):
    """This contender cannot run this model; the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Who runs what: everything that its process must know."""

    who: str
    model: str
    batch: int
    seq: int | None
    dims: Mapping[str, int] | None
    threads: int
    store: str

    def loaded(self) -> Model:
        return load(self.model, self.batch, self.seq, self.dims)


# ---------------------------------------------------------------------------------------------- inputs and right answers


def inputs(model: Model, seed: int = SEED) -> dict[str, Array]:
    """Seeded inputs: floats uniform in [-1, 1), indices in bounds, other integers small, booleans fair."""
    rng = np.random.default_rng(seed)
    highs = {b.value: min(b.high, INDICES) for c in model.partition.calls for b in c.bounds}
    return {n: _drawn(model.graph.values[n], highs.get(n, INDICES), rng) for n in model.graph.inputs}


def _drawn(v: Value, high: int, rng: np.random.Generator) -> Array:
    if v.dtype == "bool":
        return rng.random(v.shape) < 0.5
    if v.dtype.startswith(("int", "uint")):
        return rng.integers(0, high, v.shape, endpoint=True).astype(v.dtype)
    return (rng.random(v.shape, dtype=np.float32) * 2 - 1).astype(v.dtype)


def reference(entry: Entry) -> tuple[str, list[Array]]:
    """Who said so, and the outputs: by ONNX Runtime where it is installed and can, else by our NumPy definitions."""
    model = entry.loaded()
    if find_spec("onnxruntime"):
        try:
            return "onnxruntime", list(onnxruntime(entry, model).outputs())
        except Unsupported:
            return "NumPy", run_graph(model.graph, inputs(model))  # it has fewer operators than we do
    return "NumPy", run_graph(model.graph, inputs(model))


def agreed(entry: Entry, found: Sequence[Array]) -> tuple[str, list[Array]]:
    """The reference; where `found` differs from ONNX Runtime, double precision decides: on sums of a million terms in
    single precision it is itself off by 1e-3."""
    source, right = reference(entry)
    model = entry.loaded()
    if source == "NumPy" or deviation(found, right) <= tolerance(model.graph):
        return source, right
    return "NumPy in double precision", run_graph(model.graph, inputs(model), dtype="float64")


def deviation(found: Sequence[Array], right: Sequence[Array]) -> float:
    """Largest difference in units of the largest magnitude of its output; infinite where shapes or non-numbers differ."""
    if len(found) != len(right):
        return float("inf")
    return max((_deviation(np.asarray(f), np.asarray(r)) for f, r in zip(found, right, strict=True)), default=0.0)


def _deviation(found: Array, right: Array) -> float:
    if found.shape != right.shape:
        return float("inf")
    f, r = found.astype(np.float64), right.astype(np.float64)
    finite = np.isfinite(r)
    if not np.array_equal(np.isfinite(f), finite) or not np.array_equal(f[~finite], r[~finite], equal_nan=True):
        return float("inf")
    largest = float(np.abs(f[finite] - r[finite]).max(initial=0.0))
    return largest / (float(np.abs(r[finite]).max(initial=0.0)) or 1.0)


def tolerance(graph: Graph) -> float:
    """The loosest among the outputs; integers must be equal."""
    return max((TOLERANCE.get(graph.values[o].dtype, 0.0) for o in graph.outputs), default=0.0)


# ---------------------------------------------------------------------------------------------- contenders


def ours(entry: Entry, model: Model) -> Ready:
    from tilewright import compile

    module = compile(model, entry.store, entry.threads)
    call = module.bound(inputs(model))
    return Ready(call, call, tuple(choice.origin for choice in module.report))


def onnxruntime(entry: Entry, model: Model) -> Ready:
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise Unsupported("it is not installed; pip install onnxruntime") from error
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = entry.threads, 1
    options.log_severity_level = 4
    source, given = _onnx(entry, model), inputs(model)
    try:
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds have no common base
        raise Unsupported(f"it refuses the model: {str(error).splitlines()[0]}") from error
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    out = [ort.OrtValue.ortvalue_from_shape_and_type(v.shape, np.dtype(v.dtype)) for v in _outputs(model)]
    for v, value in zip(_outputs(model), out, strict=True):
        binding.bind_ortvalue_output(v.name, value)

    def run() -> None:
        session.run_with_iobinding(binding)

    def outputs() -> Sequence[Array]:
        run()
        return [value.numpy() for value in out]

    return Ready(run, outputs)


def _outputs(model: Model) -> list[Value]:
    return [model.graph.values[o] for o in model.graph.outputs]


def _onnx(entry: Entry, model: Model) -> str | bytes:
    """The user's own file, else the graph written out."""
    if Path(entry.model).is_file():
        return entry.model
    from ir.frontends.onnx.writer import write

    try:
        return write(model.graph)
    except ModelError as error:
        raise Unsupported(str(error)) from error


def numpy(entry: Entry, model: Model) -> Ready:
    """BLAS through NumPy, for graphs of products, transpositions and the like."""
    graph, given = model.graph, inputs(model)
    unknown = sorted({n.operator for n in graph.nodes} - set(BY_NUMPY))
    if unknown:
        raise Unsupported(f"NumPy has no {unknown[0]}")

    def run() -> Sequence[Array]:
        values = {**graph.constants, **given}
        for n in graph.nodes:
            values[n.outputs[0]] = BY_NUMPY[n.operator](dict(n.attributes), *(values[i] for i in n.inputs))
        return [values[o] for o in graph.outputs]

    return Ready(run, run)


def _softmax(a: dict[str, Any], x: Array) -> Array:
    power: Array = np.exp(x - x.max(a.get("axes", -1), keepdims=True))
    power /= power.sum(a.get("axes", -1), keepdims=True)
    return power


BY_NUMPY: dict[str, Callable[..., Array]] = {
    "add":       lambda a, x, y: np.add(x, y),
    "matmul":    lambda a, x, y: np.matmul(x, y),
    "mul":       lambda a, x, y: np.multiply(x, y),
    "reduce_l2": lambda a, x: np.sqrt(np.square(x).sum(axis=a["axes"], keepdims=a["keepdims"])),
    "relu":      lambda a, x: np.maximum(x, 0),
    "reshape":   lambda a, x: x.reshape(a["shape"]),
    "softmax":   _softmax,
    "tanh":      lambda a, x: np.tanh(x),
    "transpose": lambda a, x: np.transpose(x, a["perm"]),
}  # fmt: skip


def peak(entry: Entry, model: Model) -> Ready:
    """Nothing but multiply-adds; the floating operations of a call are the array that it returns."""
    import ctypes

    from codegen.machine import harness, target
    from codegen.toolchain import find_compiler
    from tasks.workbench import machine_at

    work = Path(entry.store).absolute().parent / "work"
    compiler = find_compiler(os.environ)
    t = target(machine_at(compiler, work), entry.threads)
    library = ctypes.CDLL(str(harness(compiler, t, work / "harness").path))
    out = np.zeros(entry.threads * t.vector_bytes // 4 + 16, np.float32)
    arguments = (ctypes.c_void_p * 1)(out.ctypes.data)
    flops = np.array([ctypes.c_double.in_dll(library, "tilewright_peak_flops").value])

    def run() -> Sequence[Array]:
        library.tilewright_peak(arguments, None)
        return [flops]

    return Ready(run, run)


CONTENDERS: dict[str, Callable[[Entry, Model], Ready]] = {
    OURS: ours, PEAK: peak, "onnxruntime": onnxruntime, "numpy": numpy,
}  # fmt: skip
PEERS = tuple(name for name in CONTENDERS if name not in (OURS, PEAK))


# ---------------------------------------------------------------------------------------------- processes


class Process:
    """A contender in its own process: lines of JSON to it and back. `absent`: why it cannot run this model."""

    def __init__(self, entry: Entry, log: Path) -> None:
        self.who, self.log = entry.who, log
        home = str(Path(__file__).resolve().parents[1])
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=_environment(entry.threads, home), start_new_session=True,
            )  # fmt: skip
        self.absent = self.ask(asdict(entry)).get("absent")

    def ask(self, what: Answer) -> Answer:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerError(f"{self.who} ended with {self.process.wait()}: {_last_line(self.log)}")
        answer: Answer = json.loads(line)
        return answer

    def sample(self, seconds: float) -> float:
        return float(self.ask({"sample": seconds})["seconds"])

    def outputs(self, folder: Path) -> list[Array]:
        path = folder / f"{self.who}.npz"
        self.ask({"outputs": str(path)})
        with np.load(path) as found:
            return [found[name] for name in found.files]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def _environment(threads: int, home: str) -> dict[str, str]:
    """Thread counts are read when a library is loaded; threads that wait may spin, for nobody else measures."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **counts, "OMP_WAIT_POLICY": "active", "PYTHONPATH": path}


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "no message"


@contextmanager
def started(entries: Sequence[Entry]) -> Iterator[tuple[list[Process], Path]]:
    """All contenders, loaded one after the other, and a folder for what they write."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench")))
        processes = []
        for e in entries:
            processes.append(Process(e, folder / f"{e.who}.log"))
            stack.callback(processes[-1].close)
        yield processes, folder


def interleaved(
    processes: Sequence[Process], rounds: int = ROUNDS, seconds: float = SAMPLE_SECONDS
) -> dict[str, list[float]]:
    """Contender -> seconds a call, a sample a round. Who begins changes from round to round."""
    samples: dict[str, list[float]] = {p.who: [] for p in processes}
    for p in processes:
        p.sample(0.0)  # warms up
    for r in range(rounds):
        at = r % len(processes) if processes else 0
        for p in (*processes[at:], *processes[:at]):
            samples[p.who].append(p.sample(seconds))
    return samples


def serve() -> None:
    """A contender's process: an entry, then questions, until the pipe closes."""
    replies, sys.stdout = sys.stdout, sys.stderr  # whatever a library prints must not look like an answer
    entry = Entry(**json.loads(sys.stdin.readline()))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: entry.threads])
    clock = time.process_time if entry.threads == 1 else time.perf_counter
    try:
        ready = CONTENDERS[entry.who](entry, entry.loaded())
    except Unsupported as why:
        _reply(replies, {"absent": str(why)})
        return
    _reply(replies, {})
    for line in sys.stdin:
        _reply(replies, _answer(json.loads(line), ready, clock))


def _reply(replies: TextIO, answer: Answer) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


def _answer(asked: Answer, ready: Ready, clock: Callable[[], float]) -> Answer:
    if "origins" in asked:
        return {"origins": ready.origins}
    if "outputs" in asked:
        np.savez(asked["outputs"], *ready.outputs())
        return {}
    calls, begin = 0, clock()
    deadline = time.perf_counter() + asked["sample"]
    while not calls or time.perf_counter() < deadline:
        ready.run()
        calls += 1
    return {"seconds": (clock() - begin) / calls}


if __name__ == "__main__":
    serve()
