"""Logs of other tuners in, T4 out. The lines here are written for these tests, in the formats' own shapes."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime

import pytest

from data.query import connect, run
from data.store import Store
from tasks.interchange.formats import RecordError, record
from tasks.interchange.imports import LogError, imported
from tasks.interchange.mapping import Unmapped, mapped
from tasks.interchange.t4 import t4
from tasks.model import load

TARGET, DEVICE = "cpu-x86_64-v64-t1", "a-machine"


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.open(tmp_path / "store")


def ansor(name="matmul_auto_scheduler_test", *arguments, costs=(0.25, 0.2), error=0, version="v0.6"):
    key = json.dumps([name, *(arguments or (512, 512, 512))])
    steps = [["SP", 2, 0, 512, [1, 64, 8], 1], ["AN", 2, 9, 2]]
    return json.dumps({
        "i": [[key, "llvm -mcpu=broadwell", [8, 64, 64, 0, 0, 0, 0, 0], "", 1, []], [[], steps]],
        "r": [list(costs), error, 1.5, 1700000000], "v": version,
    })  # fmt: skip


def tensor(*shape, dtype="float32"):
    return ["TENSOR", list(shape), dtype]


def autotvm(task, arguments, costs=(1e-4,), error=0, version=0.2):
    return json.dumps({
        "input": ["llvm -mcpu=skylake-avx512", task, arguments, {}],
        "config": {"index": 7, "code_hash": None, "entity": [["tile_oc", "sp", [2, 32]], ["unroll_kw", "ot", True]]},
        "result": [list(costs), error, 1.75, 1700000000.5], "version": version, "tvm_version": "0.8.0",
    })  # fmt: skip


def conv(n, h, w, ci, co, k, s, p, layout="NCHW", dtype="float32"):
    shapes = [tensor(n, ci, h, w, dtype=dtype), tensor(co, ci, k, k)]
    return [*shapes, [s, s], [p, p, p, p], [1, 1], layout, layout, "float32"]


def heaviest(name):
    return max(load(name).workloads, key=lambda w: w.dag.flops)


# --- formats


def test_an_ansor_record():
    one = record(ansor())
    assert (one.tool, one.version, one.task, one.arguments) == (
        "ansor",
        "v0.6",
        "matmul_auto_scheduler_test",
        [512] * 3,
    )
    assert one.seconds == (0.25, 0.2) and one.best_seconds == 0.2 and one.error_kind is None
    assert one.recorded == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert one.configuration["steps"][0][:2] == ["SP", 2] and one.target.startswith("llvm")


def test_an_autotvm_record():
    one = record(autotvm("conv2d_NCHWc.x86", conv(1, 56, 56, 64, 64, 3, 1, 1)))
    assert (one.tool, one.version, one.task) == ("autotvm", "0.2", "conv2d_NCHWc.x86")
    assert one.configuration == {"tile_oc": [2, 32], "unroll_kw": True} and one.best_seconds == 1e-4


def test_a_metaschedule_record():
    line = json.dumps([3, [[[], []], [0.5, 0.4], {"kind": "llvm"}, [["TENSOR", "float32", [8, 8]]]]])
    one = record(line)
    assert (one.tool, one.task, one.seconds, one.target) == (
        "metaschedule",
        "workload 3",
        (0.5, 0.4),
        '{"kind": "llvm"}',
    )
    failed = record(json.dumps([3, [[[], []], None, {"kind": "llvm"}, []]]))
    assert failed.error_kind == "compile" and failed.best_seconds is None


@pytest.mark.parametrize(
    ("number", "kind"), [(1, "compile"), (4, "crash"), (5, "wrong"), (7, "timeout"), (99, "crash")]
)
def test_errors_keep_their_kind_and_have_no_time(number, kind):
    one = record(ansor(costs=(1e10,), error=number))
    assert (one.error_kind, one.seconds, one.best_seconds) == (kind, (), None)


@pytest.mark.parametrize(("line", "why"), [
    (ansor()[:-40], "not JSON, or cut off"),
    ("[" * 100_000, "not JSON, or cut off"),
    ('{"cache": {"16,1": {"time": 3.0}}}', "no format that is known"),
    ("17", "no format that is known"),
    (ansor(version="v9"), "Ansor records of version v9"),
    (autotvm("dense_pack.x86", [], version=0.1), "AutoTVM records of version 0.1"),
    (ansor(costs=(1e10, 0.0)), "no usable time"),
    (ansor(costs=(float("inf"),)), "no usable time"),
    ('{"i": [], "r": [], "v": "v0.6"}', "not as Ansor writes it"),
    ('{"input": 3, "config": [], "result": {}, "version": 0.2}', "not as AutoTVM writes it"),
    ("[1, [2, 3]]", "not as MetaSchedule writes it"),
])  # fmt: skip
def test_what_is_no_record_says_why(line, why):
    with pytest.raises(RecordError) as error:
        record(line)
    assert str(error.value) == why


# --- mapping: the key is that of the same operator when we load it


def test_the_same_operator_has_the_same_key():
    assert mapped(record(ansor("matmul_auto_scheduler_test", 512, 512, 512))).flops == 2.0 * 512**3
    ours = heaviest("C2D.2.b1")  # 14 x 14 x 256 -> 256, 3 x 3
    found = mapped(record(autotvm("conv2d_NCHWc.x86", conv(1, 14, 14, 256, 256, 3, 1, 1))))
    assert (found.key, found.flops) == (ours.key, ours.dag.flops)
    depthwise = heaviest("DEP.0.b1")  # 112 x 112 x 32, 3 x 3
    arguments = [tensor(1, 32, 112, 112), tensor(32, 1, 3, 3), [1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"]
    assert mapped(record(autotvm("depthwise_conv2d_NCHWc.x86", arguments))).key == depthwise.key


def test_products_and_layers():
    dense = mapped(record(autotvm("dense_nopack.x86", [tensor(8, 64), tensor(32, 64), None, "float32"])))
    assert dense.flops == 2.0 * 8 * 32 * 64
    batch = mapped(record(autotvm("batch_matmul.x86", [tensor(4, 16, 8), tensor(4, 12, 8), [4, 16, 12], "float32"])))
    assert batch.flops == 2.0 * 4 * 16 * 12 * 8
    layer = mapped(record(ansor("conv2d_layer", 1, 7, 7, 32, 16, 3, 3, [1, 1], [1, 1])))
    assert layer.flops >= 2.0 * 49 * 32 * 16 * 9
    grouped = [*conv(1, 8, 8, 4, 16, 3, 1, 1)[:5], 4, "float32"]
    grouped[0] = tensor(1, 16, 8, 8)
    assert mapped(record(autotvm("group_conv2d_nchw.cuda", grouped))).flops == 2.0 * 64 * 16 * 4 * 9


@pytest.mark.parametrize(("line", "why"), [
    (ansor("0" * 32, 1, 2), "named by a hash alone"),
    (ansor("my_operator", 8), "no definition of my_operator"),
    (autotvm("conv2d_NCHWc.x86", conv(1, 8, 8, 8, 8, 3, 1, 1, layout="NCHW8c")), "a blocked layout"),
    (autotvm("conv2d_nchw.cuda", conv(1, 8, 8, 8, 8, 3, 1, 1, layout="NHWC")), "layouts other than NCHW"),
    (autotvm("conv2d_nchw.cuda", conv(1, 8, 8, 8, 8, 3, 1, 1, dtype="int8")), "tensors of int8"),
    (autotvm("conv2d_nchw.cuda", conv(1, 8, 10**9, 8, 8, 3, 1, 1)), "tensors that are too large, or of no fixed size"),
    (autotvm("conv2d_nchw.cuda", conv(1, -8, 8, 8, 8, 3, 1, 1)), "tensors that are too large, or of no fixed size"),
    (autotvm("conv2d_nchw.cuda", [[]]), "arguments that are not those of conv2d_nchw.cuda"),
    (autotvm("dense_pack.x86", [tensor(8, 64), tensor(32, 63), None]), "a dense layer with a bias of its own"),
    (ansor("conv2d_layer", 1, 7), "arguments that are not those of conv2d_layer"),
])  # fmt: skip
def test_what_is_not_mapped_says_why(line, why):
    with pytest.raises(Unmapped) as error:
        mapped(record(line))
    assert str(error.value) == why


# --- files


def write(path, *lines):
    path.write_text("\n".join(("# a comment", *lines)))
    return path


def test_a_log_is_imported_once(store, tmp_path):
    good = autotvm("conv2d_NCHWc.x86", conv(1, 14, 14, 256, 256, 3, 1, 1))
    log = write(
        tmp_path / "x86.log", good, good, ansor("0" * 32, 1), ansor(error=7), "", ansor()[:30]
    )  # a double, a hash, a failure, a torn end
    found = imported(store, log)
    assert (found.lines, found.kept, found.known, found.failed, found.mapped) == (5, 3, 1, 1, 2)
    assert found.unmapped == {"named by a hash alone": 1} and found.refused == {"not JSON, or cut off": 1}
    again = imported(store, log)
    assert (again.kept, again.known) == (0, 4)
    rows = run(store, "others", target=None).to_pylist()
    told = {(r["tool"], r["records"], r["failed"], r["unmapped"]) for r in rows}
    assert told == {("autotvm", 1, 0, None), ("ansor", 1, 1, None), ("ansor", 1, 0, "named by a hash alone")}
    best = next(r for r in rows if r["tool"] == "autotvm")
    assert best["workload"] == heaviest("C2D.2.b1").key and best["our_seconds"] is None
    assert best["their_gflops"] == pytest.approx(heaviest("C2D.2.b1").dag.flops / 1e-4 / 1e9)


def test_packed_and_broken_files(store, tmp_path):
    packed = tmp_path / "x86.log.gz"
    packed.write_bytes(gzip.compress(f"{ansor()}\n".encode()))
    assert imported(store, packed).kept == 1
    torn = tmp_path / "torn.log.gz"
    torn.write_bytes(packed.read_bytes()[:-12])
    binary = tmp_path / "binary.log"
    binary.write_bytes(bytes(range(128, 256)))
    for path in (torn, binary, tmp_path / "nothing.log"):
        with pytest.raises(LogError, match=f"cannot read .*{path.name}"):
            imported(store, path)
    long = write(tmp_path / "long.log", "[" + "1," * (1 << 20))
    assert imported(store, long).kept == 0


# --- T4


def test_every_measurement_goes_out(store):
    store.append("sketches", [
        {"key": "s", "workload": "w", "text": "t", "rules": [],
         "holes": json.dumps([["y.i.1", [1, 2, 4]], ["y.unroll", [0, 16]]])}
    ])  # fmt: skip
    made = {"workload": "w", "run": "r", "round": 0, "seed": 1, "target": TARGET}
    store.append("programs", [
        {"key": "a", "sketch": "s", "choices": [2, 1], **made}, {"key": "b", "sketch": "gone", "choices": [5], **made},
    ])  # fmt: skip
    at = {
        "workload": "w", "run": "r", "round": 0, "target": TARGET, "threads": 1, "compiler": "gcc 14", "flags": "-O2",
        "seconds_cold": [], "build_seconds": 0.5, "measure_seconds": 0.25, "confirmed": False, "device": DEVICE,
    }  # fmt: skip
    store.append("measurements", [
        {"program": "a", "seconds_warm": [0.002, 0.003], "best_seconds": 0.002, "verified": True, **at},
        {"program": "b", "seconds_warm": [], "verified": False, "error_kind": "wrong", **at},
    ])  # fmt: skip
    with connect(store) as source:
        document = t4(source, "w", TARGET, DEVICE, "0.1")
    good, bad = document["results"]
    assert document["schema_version"] == "1.0.0"
    assert good["configuration"] == {"sketch": "s", "y.i.1": 4, "y.unroll": 16}
    assert good["times"] == {"compilation_time": 500.0, "runtimes": [2.0, 3.0], "validation": 250.0}
    assert (good["invalidity"], good["correctness"]) == ("correct", 1.0)
    assert good["measurements"] == [{"name": "time", "value": 2.0, "unit": "ms"}] and good["objectives"] == ["time"]
    assert bad["configuration"] == {"sketch": "gone", "0": 5}
    assert (bad["invalidity"], bad["correctness"], bad["measurements"]) == ("correctness", 0.0, [])
    assert json.loads(json.dumps(document)) == document
