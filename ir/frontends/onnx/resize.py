"""Resize, Upsample, GridSample: coordinates as exact rationals where they are, tables where they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, lcm

import numpy as np

from ir.frontends.onnx.builder import Builder, Call
from ir.frontends.onnx.shapes import Handler
from ir.operators.operator import normal_axis


@dataclass(frozen=True, slots=True)
class Line:
    """Output i of one dimension stands at slope * i + start of the input."""

    extent: int
    size: int
    slope: Fraction
    start: Fraction
    scale: Fraction

    @property
    def plain(self) -> bool:
        return self.extent == self.size and self.slope == 1 and self.start == 0

    @property
    def positions(self) -> np.ndarray:
        return np.array([float(self.slope * i + self.start) for i in range(self.size)])


def _fraction(scale: float) -> Fraction:
    """The simple fraction that a float32 stands for: 0.6 is 3/5, else 5 / 0.6 would land just before a cell."""
    exact = Fraction(float(scale))
    simple = exact.limit_denominator(1000)
    return simple if abs(simple - exact) <= exact * Fraction(1, 1 << 23) else exact


def _half_pixel(n: int, m: int, s: Fraction, roi: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    return 1 / s, (1 / s - 1) / 2


def _pytorch_half_pixel(n: int, m: int, s: Fraction, roi: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    return _half_pixel(n, m, s, roi) if m > 1 else (Fraction(1), Fraction(0))


def _half_pixel_symmetric(n: int, m: int, s: Fraction, roi: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    """Half pixel, moved so that what rounding cut off is shared by both ends."""
    shift = Fraction(n, 2) * (1 - Fraction(m) / (n * s))
    return 1 / s, shift + (1 / s - 1) / 2


def _align_corners(n: int, m: int, s: Fraction, roi: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    """The unrounded output length n * s counts, as in the standard's own tests."""
    length = n * s
    return (Fraction(n - 1) / (length - 1) if length != 1 and m > 1 else Fraction(1)), Fraction(0)


def _crop_and_resize(n: int, m: int, s: Fraction, roi: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
    begin, end = roi
    if m == 1:
        return Fraction(1), (begin + end) / 2 * (n - 1)
    return (end - begin) * (n - 1) / (m - 1), begin * (n - 1)


COORDINATES = {
    "half_pixel":           _half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "pytorch_half_pixel":   _pytorch_half_pixel,
    "align_corners":        _align_corners,
    "asymmetric":           lambda n, m, s, roi: (1 / s, Fraction(0)),
    "tf_half_pixel_for_nn": lambda n, m, s, roi: (1 / s, 1 / (2 * s)),
    "tf_crop_and_resize":   _crop_and_resize,
}  # fmt: skip


def _lines(b: Builder, n: Call) -> list[Line]:
    """One line a dimension, from sizes or scales, which may be given for some axes alone."""
    x = n.input(0)
    shape, rank = b.shape(x), b.rank(x)
    axes = [normal_axis(a, rank) for a in n.ints("axes", tuple(range(rank)))]
    at = 2 if n.kind == "Resize" and n.version >= 11 else 1
    mode = n.choice("coordinate_transformation_mode", COORDINATES, "half_pixel" if at == 2 else "asymmetric")
    roi = _regions(b, n, axes, at, mode)
    sizes = list(shape)
    scales = [Fraction(1)] * rank
    if n.has(3):
        for a, size, scale in zip(axes, *_from_sizes(b, n, [shape[a] for a in axes]), strict=True):
            sizes[a], scales[a] = size, scale
    else:
        given = b.value(n.input(at), "the scales").ravel() if n.has(at) else np.asarray(n.attributes.get("scales", ()))
        for a, value in zip(axes, given, strict=True):
            scales[a] = _fraction(value)
            begin, end = roi.get(a, (Fraction(0), Fraction(1)))
            sizes[a] = floor(shape[a] * (end - begin) * scales[a])
    if any(s <= 0 for s in scales):
        raise ValueError(f"scales {[float(s) for s in scales]} must be positive")
    out = []
    for d in range(rank):
        slope, start = COORDINATES[mode](shape[d], sizes[d], scales[d], roi.get(d, (Fraction(0), Fraction(1))))
        unchanged = shape[d] == sizes[d] and d not in roi and scales[d] == 1
        line = Line(shape[d], sizes[d], slope, start, scales[d])
        out.append(Line(shape[d], sizes[d], Fraction(1), Fraction(0), Fraction(1)) if unchanged else line)
    return out


def _regions(b: Builder, n: Call, axes: list[int], at: int, mode: str) -> dict[int, tuple[Fraction, Fraction]]:
    """Normalised begin and end of the region of interest, where the mode asks for one."""
    if mode != "tf_crop_and_resize" or at == 1:
        return {}
    roi = [Fraction(float(v)) for v in b.value(n.input(1), "the region of interest").ravel()]
    return {a: (roi[p], roi[p + len(axes)]) for p, a in enumerate(axes)}


def _from_sizes(b: Builder, n: Call, extents: list[int]) -> tuple[list[int], list[Fraction]]:
    wanted = list(b.integers(n.input(3), "the sizes"))
    scales = [Fraction(w, e) for w, e in zip(wanted, extents, strict=True)]
    policy = n.choice("keep_aspect_ratio_policy", ("stretch", "not_larger", "not_smaller"), "stretch")
    if policy == "stretch":
        return wanted, scales
    scale = min(scales) if policy == "not_larger" else max(scales)
    return [floor(scale * e + Fraction(1, 2)) for e in extents], [scale] * len(scales)


def _resize(b: Builder, n: Call) -> Sequence[str]:
    x, mode = n.input(0), n.choice("mode", ("nearest", "linear", "bilinear", "cubic"), "nearest")
    lines = _lines(b, n)
    if 0 in b.shape(x):
        return [b.filled([line.size for line in lines], np.zeros((), b.dtype(x)))]
    extrapolates = n.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    tabled = mode == "cubic" or n.integer("antialias", 0) or (mode != "nearest" and n.integer("exclude_outside", 0))
    if all(line.plain for line in lines):
        return [x]
    if tabled:
        out = _by_tables(b, n, x, lines, "linear" if mode in ("linear", "bilinear") else mode)
    else:
        default = "floor" if n.kind == "Upsample" or n.version < 11 else "round_prefer_floor"
        out = _by_lines(b, x, lines, "nearest" if mode == "nearest" else "linear", n.text("nearest_mode", default))
    return [_extrapolated(b, out, lines, n.real("extrapolation_value", 0.0)) if extrapolates else out]


def _by_lines(b: Builder, x: str, lines: list[Line], mode: str, rounding: str) -> str:
    commons = [lcm(line.slope.denominator, line.start.denominator) for line in lines]
    return b.emit(
        "resize",
        x,
        mode=mode,
        rounding=rounding,
        sizes=tuple(line.size for line in lines),
        numerator=tuple(max(int(line.slope * c), 1) for line, c in zip(lines, commons, strict=True)),
        offset=tuple(int(line.start * c) for line, c in zip(lines, commons, strict=True)),
        denominator=tuple(commons),
    )


def _by_tables(b: Builder, n: Call, x: str, lines: list[Line], mode: str) -> str:
    """One constant matrix a dimension: out = matrix @ x along it."""
    out = x
    letters = "abcdefgh"[: len(lines)]
    for d, line in enumerate(lines):
        if line.plain:
            continue
        matrix = b.constant(_matrix(line, n, mode).astype(b.dtype(x)))
        made = letters[:d] + "z" + letters[d + 1 :]
        out = b.emit("einsum", out, matrix, equation=f"{letters},z{letters[d]}->{made}")
    return out


def _matrix(line: Line, n: Call, mode: str) -> np.ndarray:
    """Interpolation weights (size, extent): rows sum to 1. Keys 1981 for cubic; a filter stretched by 1 / scale for
    antialiasing; taps outside go to the border cell, or to nobody with `exclude_outside`."""
    a = n.real("cubic_coeff_a", -0.75)
    stretch = max(float(1 / line.scale), 1.0) if n.integer("antialias", 0) else 1.0
    reach = (2.0 if mode == "cubic" else 1.0) * stretch
    out = np.zeros((line.size, line.extent))
    for i, at in enumerate(line.positions):
        taps = np.arange(int(np.ceil(at - reach)), int(np.floor(at + reach)) + 1)
        weights = _kernel((taps - at) / stretch, mode, a)
        if n.integer("exclude_outside", 0):
            weights = np.where((taps >= 0) & (taps < line.extent), weights, 0.0)
        np.add.at(out[i], np.clip(taps, 0, line.extent - 1), weights / weights.sum())
    return out


def _kernel(t: np.ndarray, mode: str, a: float) -> np.ndarray:
    t = np.abs(t)
    if mode == "linear":
        return np.asarray(np.clip(1 - t, 0, None))
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    far = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _extrapolated(b: Builder, out: str, lines: list[Line], value: float) -> str:
    """Positions outside the input get a fixed value."""
    inside = np.ones([1] * len(lines), bool)
    for d, line in enumerate(lines):
        ok = (line.positions >= 0) & (line.positions <= line.extent - 1)
        inside = inside & ok.reshape([-1 if e == d else 1 for e in range(len(lines))])
    if inside.all():
        return out
    return b.emit("where", b.constant(inside), out, b.scalar(value, b.dtype(out)))


def _grid_sample(b: Builder, n: Call) -> Sequence[str]:
    """Modes were called bilinear and bicubic before opset 20."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(given := n.text("mode", "linear"), given)
    corners = bool(n.integer("align_corners", 0))
    padding = n.text("padding_mode", "zeros")
    return [b.emit("grid_sample", *n.inputs, mode=mode, padding=padding, align_corners=corners)]


HANDLERS: Mapping[str, Handler] = {"Resize": _resize, "Upsample": _resize, "GridSample": _grid_sample}
