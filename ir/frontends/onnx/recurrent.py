"""RNN, GRU and LSTM, unrolled: the input products of all steps at once, then one cell a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ir.frontends.onnx.builder import Builder, Call
from ir.frontends.onnx.shapes import Handler, reshaped, sliced
from ir.graph import ModelError

Cell = Callable[[Builder, "Weights", str, list[str]], list[str]]

HANDLERS: Mapping[str, Handler] = {}
