"""Who there is, who is installed here, and in which versions."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

from tilewright.errors import UsageError
from tilewright.peers.contender import Case, Given, Loader, Ready
from tilewright.peers.house import defined, exact, ours, peak

OURS, PEAK, DEFINED, EXACT = "tilewright", "peak", "NumPy", "NumPy in double precision"
REFERENCE = "onnxruntime"  # the peer that knows most operators, and is quick
INSTALLED = "installed"  # stands for every peer that is


@dataclass(frozen=True, slots=True)
class Peer:
    """A library, or one of the ways to use it. package: what pip installs, and Python imports. about: for the page."""

    load: Loader
    package: str
    about: str
    compiles: bool = False  # needs a C++ compiler


# fmt: off
def _onnxruntime(case: Case, given: Given) -> Ready:
    from tilewright.peers.onnxruntime import load
    return load(case, given)


def _openvino(case: Case, given: Given) -> Ready:
    from tilewright.peers.openvino import load
    return load(case, given)


def _torch(case: Case, given: Given) -> Ready:
    from tilewright.peers.torch import eager
    return eager(case, given)


def _torch_cl(case: Case, given: Given) -> Ready:
    from tilewright.peers.torch import channels_last
    return channels_last(case, given)


def _torch_compile(case: Case, given: Given) -> Ready:
    from tilewright.peers.torch import compiled
    return compiled(case, given)


def _numpy(case: Case, given: Given) -> Ready:
    from tilewright.peers.numpy import load
    return load(case, given)


PEERS: Mapping[str, Peer] = {
    "onnxruntime":   Peer(_onnxruntime,   "onnxruntime", "ONNX Runtime, CPU provider, inputs and outputs bound"),
    "openvino":      Peer(_openvino,      "openvino",    "OpenVINO, latency hint, precision hint f32, inputs shared"),
    "torch":         Peer(_torch,         "torch",       "PyTorch, eager, inference mode, channels first"),
    "torch-cl":      Peer(_torch_cl,      "torch",       "PyTorch, eager, inference mode, channels last"),
    "torch-compile": Peer(_torch_compile, "torch",       "PyTorch, compiled by inductor, weights frozen", compiles=True),
    "numpy":         Peer(_numpy,         "numpy",       "NumPy and its BLAS, results in arrays made before"),
}
HOUSE: Mapping[str, Loader] = {OURS: ours, PEAK: peak, DEFINED: defined, EXACT: exact}
# fmt: on


def loader(who: str) -> Loader:
    return HOUSE[who] if who in HOUSE else PEERS[who].load


def missing(who: str) -> str | None:
    """What this contender lacks here, and how to get it; None: nothing."""
    if who in HOUSE:
        return None
    if find_spec(PEERS[who].package) is None:
        return f"it is not installed; pip install {PEERS[who].package}"
    compiler = os.environ.get("CXX", "g++")
    if PEERS[who].compiles and shutil.which(compiler) is None:
        return f"there is no {compiler}, which inductor needs; apt-get install g++"
    return None


def peers_of(against: str) -> list[str]:
    """ "onnxruntime,numpy" -> the peers, "installed" -> those that are. Raises UsageError."""
    asked = [name.strip() for name in against.split(",") if name.strip()]
    for name in asked:
        if name not in PEERS and name != INSTALLED:
            raise UsageError(f"no peer is called {name!r}; there are {', '.join(PEERS)}, or {INSTALLED}")
    here = [name for name in PEERS if missing(name) is None]
    return list(dict.fromkeys(name for a in asked for name in (here if a == INSTALLED else [a])))


def versions(peers: Sequence[str]) -> dict[str, str]:
    """Of Python and of the packages behind these peers, as far as they are installed."""
    packages = dict.fromkeys(["numpy", *(PEERS[who].package for who in peers)])
    return {"python": platform.python_version()} | {p: version(p) for p in packages if find_spec(p) is not None}
