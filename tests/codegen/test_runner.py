"""The measuring protocol on hand-written C: every way to fail has its type, and neighbours are measured all the same."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from codegen.child import Batch as ChildBatch
from codegen.child import Buffer, Child, Job, Memory, Operand, Wrong, compare, limits_of
from codegen.kernel import Argument, Kernel
from codegen.machine import harness
from codegen.oracle import Answer, Case, Oracle, inputs, write_case
from codegen.runner import Batch, NullRunner, ReplayRunner, Runner, RunnerError, Settings, limits
from codegen.toolchain import Binary, Compiler, build, find_compiler, unbuilt
from ir.compute import Dag
from ir.dsl import compute, dag, placeholder, reduce_axis, select
from ir.dsl import sum as sum_of
from ir.expr import Expr, lt
from ir.target import Target
from ir.timing import Failure, Timing

TARGET = Target(features=("avx2", "fma"), vector_bytes=32, vector_registers=16)
PRELUDE = "#include <stddef.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
N = 1000
Make = Callable[..., list[Binary]]
LIMITS = limits(Settings(), TARGET)
HASTY = Settings(limit_ceiling=1.0, limit_floor=0.5, memory_bytes=384 << 20)

# y[i] = x[i] * 2 + 1
GOOD = "const float *x = a[0]; float *y = a[1]; for (int i = 0; i < 1000; i++) y[i] = x[i] * 2 + 1;"
FAULTS = {
    "one element wrong":    (GOOD + "y[777] += 1e-3f;", "wrong", r"y\[777\]: got .* 1 of"),
    "one element unwritten": (GOOD.replace("i++) y", "i++) if (i != 5) y"), "wrong", r"y\[5\]: got nan"),
    "writes past the end":  (GOOD + "y[1000] = 0;", "wrong", "y: 4 guard bytes .* 1 bytes after"),
    "writes before":        (GOOD + "y[-1] = 0;", "wrong", "y: 4 guard bytes .* 1 bytes before"),
    "modifies its input":   (GOOD + "((float *)x)[3] = 9;", "wrong", "input x was modified"),
    "overruns workspace":   (GOOD + "((char *)w)[64] = 0;", "wrong", "workspace: 1 guard"),
    "uses what was there":  (GOOD + "y[9] += 1e-30f * ((float *)w)[2] > 1;", "wrong", "differs between two runs"),
    "segfaults":            (GOOD + "*(volatile int *)8 = 1;", "crash", "SIGSEGV"),
    "aborts":               (GOOD + "abort();", "crash", "SIGABRT"),
    "divides by zero":      (GOOD + "volatile int z = 0; y[0] = 7 / z;", "crash", "SIGFPE"),
    "exits":                (GOOD + "_exit(0);", "crash", "status 0"),
    "hangs":                ("for (volatile int i = 0;;) i = 0;", "timeout", r"killed after 1\.0 s"),
    "sleeps":               ("pause();", "timeout", r"killed after 1\.0 s"),
}  # fmt: skip


@pytest.fixture(scope="session")
def compiler() -> Compiler:
    return find_compiler(os.environ)


def kernel(name: str, body: str, workspace_bytes: int = 64) -> Kernel:
    arguments = (Argument("x", (N,), "float32", "input"), Argument("y", (N,), "float32", "output"))
    entry = "k" + "".join(c if c.isalnum() else "_" for c in name)
    source = f"void {entry}(void *const *a, void *w) {{ {body} }}"
    return Kernel(name, entry, source, arguments, workspace_bytes=workspace_bytes)


def example() -> Dag:
    x = placeholder((N,), "x")
    return dag([compute((N,), lambda i: x[i] * 2.0 + 1.0, "y")])


@pytest.fixture(scope="session")
def case(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Oracle(compiler, TARGET, tmp_path_factory.mktemp("cases")).case(example(), 0)


@pytest.fixture(scope="session")
def ours(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Binary:
    return harness(compiler, TARGET, tmp_path_factory.mktemp("harness"))


@pytest.fixture
def runner(ours: Binary) -> Iterator[Runner]:
    with Runner(TARGET, ours, HASTY) as r:
        yield r


@pytest.fixture
def built(compiler: Compiler, tmp_path: Path) -> Make:
    def make(*kernels: Kernel) -> list[Binary]:
        found = build(kernels, compiler, TARGET, tmp_path, prelude=PRELUDE)
        assert all(isinstance(b, Binary) for b in found), found
        return [b for b in found if isinstance(b, Binary)]

    return make


def is_fine(t: Timing) -> bool:
    return t.failure is None and t.verified and len(t.warm) >= 2 and min(t.warm) > 0 and t.measure_seconds > 0


# ---------------------------------------------------------------------------------------------- verified timings


@pytest.mark.compiler
def test_a_right_program_is_timed_warm_and_cold(runner: Runner, built: Make, case: Case) -> None:
    (b,) = built(kernel("good", GOOD))
    batch = runner.measure([b], case)
    (t,) = batch.timings
    assert is_fine(t) and t.key == "good" and t.build_seconds > 0
    assert len(t.cold) == HASTY.cold_samples and min(t.cold) > 0
    assert t.best is not None and 1e-9 < t.best < 1e-4
    assert t.error is not None and t.bound is not None and t.error <= t.bound
    assert batch.peak_gflops is not None and batch.peak_gflops > 1
    assert batch.incumbent_seconds is None and t.relative is None


@pytest.mark.compiler
def test_every_fault_has_its_type_and_costs_only_itself(runner: Runner, built: Make, case: Case) -> None:
    kernels = []
    for name, (body, _, _) in FAULTS.items():
        kernels += [kernel(f"before {name}", GOOD), kernel(name, body)]
    batch = runner.measure(built(*kernels, kernel("last", GOOD)), case)
    for k, t in zip(kernels, batch.timings, strict=False):
        assert t.key == k.key
        if k.key not in FAULTS:
            assert is_fine(t), t
            continue
        _, kind, message = FAULTS[k.key]
        assert t.failure is not None and t.failure.kind == kind, (k.key, t)
        assert re.search(message, t.failure.message), (k.key, t.failure.message)
        assert not t.verified and t.best is None and not t.warm
    assert is_fine(batch.timings[-1])
    assert is_fine(runner.measure(built(kernel("next batch", GOOD)), case).timings[0])


@pytest.mark.compiler
def test_memory_is_limited(built: Make, ours: Binary, case: Case) -> None:
    fat = kernel("allocates for ever", "for (;;) memset(malloc(1 << 24), 1, 1 << 24);")
    programs = built(kernel("first", GOOD), fat, kernel("last", GOOD))
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # a child's peak begins with ours
    allowed = max(HASTY.memory_bytes, 2 * mine)
    with Runner(TARGET, ours, replace(HASTY, limit_ceiling=60.0, memory_bytes=allowed)) as r:
        first, found, last = r.measure(programs, case).timings
    assert is_fine(first) and is_fine(last)
    assert found.failure is not None and found.failure.kind == "memory"
    assert f"of the {allowed >> 20} MiB" in found.failure.message


@pytest.mark.compiler
def test_a_stale_path_is_seen(runner: Runner, built: Make, case: Case) -> None:
    old, good = built(kernel("old", GOOD), kernel("good", GOOD))
    stale = replace(old, kernel=replace(old.kernel, source=old.kernel.source + "/* another program */"))
    missing = replace(old, path=old.path.with_name("missing.so"))
    found = runner.measure([stale, good, missing], case).timings
    assert found[0].failure is not None and found[0].failure.kind == "wrong"
    assert "the binary is another program" in found[0].failure.message
    assert is_fine(found[1])
    assert found[2].failure is not None and "cannot load" in found[2].failure.message


@pytest.mark.compiler
def test_relative_to_the_incumbent_and_slow_ones_aborted(runner: Runner, built: Make, case: Case) -> None:
    work = "for (int r = 0; r < {}; r++) {{ " + GOOD + ' __asm__ volatile("" ::: "memory"); }}'
    times = {"same": 100, "slow": 1000, "best": 200}
    same, slow, best = built(*(kernel(name, work.format(n)) for name, n in times.items()))
    batch = runner.measure([same, slow], case, incumbent=best)
    like, late = batch.timings
    assert is_fine(like) and is_fine(late)
    assert len(late.warm) == 2 and not late.cold
    assert len(like.warm) > 2 and like.cold
    assert batch.incumbent_seconds is not None
    assert like.relative is not None and 0.2 < like.relative < 2.5
    assert late.relative is not None and late.relative > HASTY.abort_ratio


@pytest.mark.compiler
@pytest.mark.parametrize("fault", ["one element wrong", "writes past the end", "segfaults", "hangs"])
def test_a_broken_incumbent_does_not_stop_the_batch(runner: Runner, built: Make, case: Case, fault: str) -> None:
    good, other, bad = built(kernel("good", GOOD), kernel("other", GOOD), kernel("bad", FAULTS[fault][0]))
    batch = runner.measure([good, other], case, incumbent=bad)
    assert all(map(is_fine, batch.timings)) and batch.incumbent_seconds is None


@pytest.mark.compiler
def test_confirm_gives_one_minimum_a_round(runner: Runner, built: Make, case: Case) -> None:
    programs = built(*(kernel(f"good {i}", GOOD) for i in range(3)), kernel("bad", FAULTS["segfaults"][0]))
    *good, bad = runner.confirm(programs, case, rounds=4, seconds=0.002)
    for t in good:
        assert is_fine(t) and len(t.warm) == 4
    assert bad.failure is not None and bad.failure.kind == "crash"


@pytest.mark.compiler
def test_threads_use_the_wall_clock(compiler: Compiler, tmp_path: Path, case: Case) -> None:
    two = replace(TARGET, threads=2)
    body = GOOD.replace("for", "\n#pragma omp parallel for num_threads(2)\nfor")
    found = build([kernel("two threads", body)], compiler, two, tmp_path, prelude=PRELUDE)
    assert isinstance(found[0], Binary)
    with Runner(two, harness(compiler, two, tmp_path), HASTY) as r:
        batch = r.measure([found[0]], case, incumbent=found[0])
        assert len(r.workers) == 1
    assert is_fine(batch.timings[0]) and batch.incumbent_seconds is not None


@pytest.mark.compiler
def test_constants_are_prepared_once_for_each_layout(compiler: Compiler, ours: Binary, tmp_path: Path) -> None:
    """y = x @ b with b transposed and padded to 8 columns, as the program wants it."""
    x, b, k = placeholder((4, 6), "x"), placeholder((6, 5), "b", constant=True), reduce_axis(6)
    d = dag([compute((4, 5), lambda i, j: sum_of(x[i, k] * b[k, j], k), "y")])
    packed = dag([compute((8, 6), lambda j, i: select(lt(j, 5), b[i, j], 0.0), "b_packed")])
    arguments = (Argument("x", (4, 6), "float32", "input"), Argument("b_packed", (8, 6), "float32", "constant"),
                 Argument("y", (4, 5), "float32", "output"))  # fmt: skip
    body = """void {name}(void *const *a, void *w) {{ const float *x = a[0], *b = a[1]; float *y = a[2];
        for (int i = 0; i < 4; i++) for (int j = 0; j < 5; j++) {{ float s = 0; for (int k = 0; k < 6; k++)
        s += x[i * 6 + k] * b[j * 6 + k]; y[i * 5 + j] = s; }} }}"""
    kernels = [Kernel(n, n, body.format(name=n), arguments, (("b_packed", packed),)) for n in ("p", "q")]
    found = [b for b in build(kernels, compiler, TARGET, tmp_path / "b", prelude=PRELUDE) if isinstance(b, Binary)]
    made = Oracle(compiler, TARGET, tmp_path / "c").case(d, 0)
    with Runner(TARGET, ours, HASTY) as r:
        assert all(map(is_fine, r.measure(found, made).timings))
    assert len(list(made.directory.glob("prepared-*"))) == 1


@pytest.mark.compiler
def test_calls_go_round_copies_of_the_constants_and_of_nothing_else(tmp_path: Path) -> None:
    """As many as fill the distance, all with the same values at the same place in a page."""
    x, w, y = Buffer(400, 0), Buffer(8000, 1), Buffer(400, 2)
    w.bytes[:] = np.arange(8000, dtype=np.uint8)
    operands = (
        Operand("x", (100,), "float32", path="x"),
        Operand("w", (2000,), "float32", path="w", constant=True),
        Operand("y", (100,), "float32"),
    )
    job = Job("so", "f", "id", operands, 0)
    child = Child(ChildBatch("harness", 1, LIMITS, (job,), None, 1, far_bytes=100_000), Memory())
    vectors = child.vectors(job, [x, w, y])
    assert len(vectors) == 1 + 100_000 // 8000 and vectors[0] == [x.address, w.address, y.address]
    places = sorted(v[1] for v in vectors)
    assert all(b - a >= 8000 for a, b in pairwise(places))
    for v in vectors:
        assert (v[0], v[2]) == (x.address, y.address) and v[1] % 4096 == w.address % 4096
        assert np.array_equal(np.ctypeslib.as_array((ctypes.c_uint8 * 8000).from_address(v[1])), w.bytes)
    far = replace(child.batch, far_bytes=7999)
    assert Child(far, Memory()).vectors(job, [x, w, y]) == [vectors[0]], "one copy would already be too far"


def test_a_shared_core_makes_us_patient_but_not_for_ever() -> None:
    child = Child(ChildBatch("harness", 1, LIMITS, (), None, 1), Memory())
    budget = LIMITS.budget_seconds
    assert child.wanting(spent=0.5 * budget, samples=3, undisturbed=3)
    assert not child.wanting(spent=0.5 * budget, samples=LIMITS.most_samples, undisturbed=0)
    assert child.wanting(spent=1.5 * budget, samples=3, undisturbed=LIMITS.quiet_samples - 1)
    assert not child.wanting(spent=1.5 * budget, samples=3, undisturbed=LIMITS.quiet_samples)
    assert not child.wanting(spent=LIMITS.patience * budget, samples=3, undisturbed=0)


def test_children_get_nothing_of_our_environment(
    built: Make, ours: Binary, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_OURS", "1")
    (b,) = built(kernel("asks", GOOD + 'if (getenv("SECRET_OF_OURS") || !getenv("OMP_NUM_THREADS")) y[0] = 0;'))
    with Runner(TARGET, ours, HASTY) as r:
        assert is_fine(r.measure([b], case).timings[0])


@pytest.mark.compiler
def test_children_are_recycled_and_leave_with_the_runner(built: Make, ours: Binary, case: Case) -> None:
    programs = built(*(kernel(f"good {i}", GOOD) for i in range(6)))
    with Runner(TARGET, ours, replace(HASTY, workers=1, recycle=6)) as r:
        first = r.workers[0].process.pid
        r.measure(programs, case)
        r.measure(programs, case)
        assert r.workers[0].process.pid != first
        last, folder = r.workers[0].process.pid, r.folder
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


@pytest.mark.compiler
def test_a_child_killed_from_outside_between_batches_is_replaced(runner: Runner, built: Make, case: Case) -> None:
    (b,) = built(kernel("good", GOOD))
    for w in runner.workers:
        os.kill(w.process.pid, signal.SIGKILL)
    time.sleep(0.1)
    assert is_fine(runner.measure([b], case).timings[0])


@pytest.mark.compiler
def test_a_broken_harness_is_an_error_not_a_failure(built: Make, ours: Binary, case: Case, tmp_path: Path) -> None:
    (b,) = built(kernel("good", GOOD))
    with (
        Runner(TARGET, replace(ours, path=tmp_path / "none.so"), HASTY) as r,
        pytest.raises(RunnerError, match="harness"),
    ):
        r.measure([b], case)


@pytest.mark.compiler
def test_children_start_quickly() -> None:
    began = time.monotonic()
    from codegen.child import SCRIPT

    env = {"PYTHONPATH": str(Path(np.__file__).parent.parent), "OPENBLAS_NUM_THREADS": "1"}
    words = [os.sys.executable, "-S", "-s", "-P", SCRIPT, "1", str(1 << 30), "0"]  # type: ignore[attr-defined]
    done = subprocess.run(words, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.stdout == b"!" and done.returncode == 0, done.stderr
    assert time.monotonic() - began < 3  # 0.2 on an idle machine


# ---------------------------------------------------------------------------------------------- throughput


def gemm(name: str, rows: int, vectors: int, n: int = 512) -> Kernel:
    """C = A B by register tiles of `rows` x `vectors`, B packed in panels; the last rows are a second, smaller tile."""
    wide = vectors * 8
    panels = -(-n // wide)

    def tile(height: int) -> str:
        cells = [(i, v) for i in range(height) for v in range(vectors)]
        declare = ", ".join(f"c{i}_{v} = {{}}" for i, v in cells)
        load = " ".join(f"vr b{v} = *(const vf *)(b + k * {wide} + {v * 8});" for v in range(vectors))
        add = " ".join(f"c{i}_{v} += a[{i * n} + k] * b{v};" for i, v in cells)
        store = " ".join(f"if (j + {v * 8} < {n}) *(vf *)(c + {i * n + v * 8}) = c{i}_{v};" for i, v in cells)
        return f"vr {declare}; for (int k = 0; k < {n}; k++) {{ {load} {add} }} {store}"

    def strip(first: int, last: int, height: int) -> str:
        at = f"const float *a = A + i * {n}, *b = B + j * {n}; float *c = C + i * {n} + j;"
        return f"for (int i = {first}; i < {last}; i += {height}) {{ {at} {tile(height)} }}" if height else ""

    whole = n // rows * rows
    body = f"for (int j = 0; j < {n}; j += {wide}) {{ {strip(0, whole, rows)} {strip(whole, n, n - whole)} }}"
    source = f"void {name}(void *const *p, void *w) {{ const float *A = p[0], *B = p[1]; float *C = p[2]; {body} }}"
    b = placeholder((n, n), "b", constant=True)

    def packed(p: Expr, k: Expr, j: Expr) -> Expr:
        return select(lt(p * wide + j, n), b[k, p * wide + j], 0.0)

    arguments = (Argument("a", (n, n), "float32", "input"), Argument("packed", (panels, n, wide), "float32", "constant"),
                 Argument("c", (n, n), "float32", "output"))  # fmt: skip
    prepare = (("packed", dag([compute((panels, n, wide), packed, "packed")])),)
    return Kernel(f"{name} {rows}x{vectors}", name, source, arguments, prepare)


@pytest.mark.slow
@pytest.mark.compiler
def test_throughput(compiler: Compiler, ours: Binary, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """64 packed matrix products of 512^3: built, verified and measured. Prints programs a second, asserts correctness."""
    n = 512
    a, b, k = placeholder((n, n), "a"), placeholder((n, n), "b", constant=True), reduce_axis(n)
    d = dag([compute((n, n), lambda i, j: sum_of(a[i, k] * b[k, j], k), "c")])
    made = Oracle(compiler, TARGET, tmp_path / "cases").case(d, 0)
    tiles = [(m, v) for m in range(2, 8) for v in (1, 2, 3) if m * v + v + 1 <= 16]
    vectors = "typedef float vr __attribute__((vector_size(32)));\n" + (
        "typedef float vf __attribute__((vector_size(32), aligned(4), may_alias));\n"
    )
    incumbent = None
    with Runner(TARGET, ours) as r:
        for turn in range(3):
            kernels = [gemm(f"k{turn}_{i}", *tiles[i % len(tiles)]) for i in range(64)]
            began = time.monotonic()
            found = build(kernels, compiler, TARGET, tmp_path / "out", prelude=vectors)
            programs = [x for x in found if isinstance(x, Binary)]
            middle = time.monotonic()
            batch = r.measure(programs, made, incumbent)
            ended = time.monotonic()
            assert len(programs) == 64 and all(t.verified for t in batch.timings), batch.timings
            best = min(range(64), key=lambda i: batch.timings[i].best or 1)
            incumbent = programs[best]
            with capsys.disabled():
                rate, seconds = 64 / (ended - began), batch.timings[best].best or 1
                print(f"\n{rate:.1f} programs/s (build {middle - began:.2f} s, measure {ended - middle:.2f} s), best "
                      f"{2 * n**3 / seconds / 1e9:.0f} GFLOP/s of {batch.peak_gflops:.0f}")  # fmt: skip


# ---------------------------------------------------------------------------------------------- comparing


def checked(tmp_path: Path, got: np.ndarray, expected: object, bound: object) -> tuple[float, float]:
    e, b = np.atleast_1d(np.asarray(expected)), np.atleast_1d(np.asarray(bound, float))
    made = write_case(tmp_path / "case", {}, {"y": Answer(e, np.broadcast_to(b, e.shape).copy())})
    dtype = "bool" if e.dtype == bool else str(got.dtype)
    return compare(got, Operand("y", got.shape, dtype, "", str(made.expected["y"]), str(made.bounds["y"])))


def test_compare_gives_the_largest_deviation_and_its_bound(tmp_path: Path) -> None:
    got = np.array([1.0, 2.5, np.nan, np.inf], "float32")
    assert checked(tmp_path, got, [1.25, 2.0, np.nan, np.inf], [0.3, 0.6, 0, 0]) == (0.5, 0.6)


@pytest.mark.parametrize(
    ("got", "expected", "bound"),
    [
        (np.nan, 1.0, 1.0), (1.0, np.nan, 1.0), (np.inf, 1.0, 5.0), (-np.inf, np.inf, 0.0), (1.0, np.inf, 0.0),
        (1.0 + 2**-23, 1.0, 0.0), (1.5, 1.0, 0.4999), (np.nan, 1.0, np.inf),
    ],
)  # fmt: skip
def test_compare_refuses(tmp_path: Path, got: float, expected: float, bound: float) -> None:
    with pytest.raises(Wrong, match="1 of 1"):
        checked(tmp_path, np.array([got], "float32"), [expected], [bound])


@pytest.mark.parametrize(
    ("got", "dtype", "expected", "bound"),
    [
        (1.5, "float32", 1.0, 0.5), (0.1, "float32", 0.1, 1e-8), (0.0, "float32", -0.0, 0.0),
        (np.inf, "float16", 70000.0, 70.0), (3, "int32", 3, 0.0), (4, "int32", 3, 1.0), (255, "uint8", 254, 7.0),
        (2**62 + 1, "int64", 2**62 + 1, 0.0), (7e8, "float32", 1.0, np.inf),
    ],
)  # fmt: skip
def test_compare_accepts(tmp_path: Path, got: float, dtype: str, expected: float, bound: float) -> None:
    e = np.array([expected], dtype if "int" in dtype else "float64")
    checked(tmp_path, np.array([got], dtype), e, [bound])


def test_compare_takes_no_other_byte_for_true(tmp_path: Path) -> None:
    checked(tmp_path, np.array([1, 0], "uint8"), np.array([True, False]), [0, 0])
    with pytest.raises(Wrong):
        checked(tmp_path / "x", np.array([255, 0], "uint8"), np.array([True, False]), [0, 0])


def test_limits_are_exactly_the_allowed_values() -> None:
    rng = np.random.default_rng(0)
    expected, bound = rng.normal(size=500), 10.0 ** rng.uniform(-9, 1, 500)
    low, high = limits_of(expected, bound, np.dtype("float32"))
    for limit, step in ((low, -np.inf), (high, np.inf)):
        inside = np.abs(limit.astype(float) - expected) <= bound
        beyond = np.abs(np.nextafter(limit, np.float32(step)).astype(float) - expected) > bound
        assert np.all((inside & beyond) | (limit == expected.astype("float32")))


# ---------------------------------------------------------------------------------------------- without hardware


def test_null_runner_answers_from_a_formula() -> None:
    programs = [unbuilt(kernel(str(i), "")) for i in range(4)]

    def formula(k: Kernel) -> float | Failure:
        return Failure("timeout", "three") if k.key == "3" else 1.0 + int(k.key)

    batch = NullRunner(formula).measure(programs, incumbent=programs[1])
    assert [t.best for t in batch.timings] == [1.0, 2.0, 3.0, None]
    assert [t.relative for t in batch.timings] == [0.5, 1.0, 1.5, None]
    assert batch.timings[3].failure == Failure("timeout", "three")
    assert [len(t.warm) for t in NullRunner(formula).confirm(programs, rounds=3)] == [3, 3, 3, 0]


def test_replay_runner_answers_from_records() -> None:
    programs = [unbuilt(kernel(k, "")) for k in "ab"]
    recorded = {"a": Timing("a", (2.0, 3.0), verified=True), "b": Timing("b", failure=Failure("crash", "SIGSEGV"))}
    batch: Batch = ReplayRunner(recorded).measure(programs, incumbent=programs[0])
    assert batch.timings[0].relative == 1.0 and batch.timings[1].failure is not None
    with pytest.raises(KeyError):
        ReplayRunner(recorded).measure([unbuilt(kernel("never", ""))])


def test_inputs_of_the_example_are_not_special() -> None:
    assert np.abs(inputs(example(), 0)["x"]).min() >= 0.05
