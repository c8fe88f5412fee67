"""ONNX Runtime on its CPU provider, with inputs and outputs bound."""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime as ort

from tilewright.peers.contender import Array, Case, Given, Ready, Unsupported
from tilewright.peers.graphs import onnx_of

QUIET = 4  # of its levels of logging: only what ends the process


def load(case: Case, given: Given) -> Ready:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = case.threads, 1
    options.log_severity_level = QUIET
    try:
        session = ort.InferenceSession(onnx_of(case), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds have no common base
        raise Unsupported(f"it refuses the model: {str(error).splitlines()[0]}") from error
    binding = session.io_binding()
    for name, array in given.items():
        binding.bind_cpu_input(name, array)
    names = [o.name for o in session.get_outputs()]
    for name in names:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    out = binding.get_outputs()
    binding.clear_binding_outputs()
    for name, value in zip(names, out, strict=True):
        binding.bind_ortvalue_output(name, value)

    def run() -> None:
        session.run_with_iobinding(binding)

    def outputs() -> Sequence[Array]:
        run()
        return [value.numpy() for value in out]

    return Ready(run, outputs)
