"""OpenVINO on the CPU, held to single precision: by default it computes in bfloat16 where the processor has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import openvino as ov

from tilewright.peers.contender import Array, Case, Given, Ready, Unsupported
from tilewright.peers.graphs import onnx_of


def load(case: Case, given: Given) -> Ready:
    core, source = ov.Core(), onnx_of(case)
    settings = {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": case.threads, "NUM_STREAMS": 1,
    }  # fmt: skip
    try:
        model = core.read_model(Path(source)) if isinstance(source, str) else core.read_model(source, b"")
        model.reshape({name: ov.PartialShape(list(array.shape)) for name, array in given.items()})
        compiled = core.compile_model(model, "CPU", settings)
    except RuntimeError as error:
        raise Unsupported(f"it refuses the model: {_reason(error)}") from error
    request = compiled.create_infer_request()
    shared = {name: ov.Tensor(array, shared_memory=True) for name, array in given.items()}
    for name, tensor in shared.items():
        request.set_tensor(name, tensor)

    def outputs() -> Sequence[Array]:
        request.infer()
        return [request.get_output_tensor(i).data.copy() for i in range(len(compiled.outputs))]

    return Ready(request.infer, outputs)


def _reason(error: RuntimeError) -> str:
    """Its messages are chains of files and lines with the cause at the end."""
    return str(error).strip().splitlines()[-1].strip()
