"""Figures and shares as text, the same on a terminal and on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.roofline import Placed
    from tasks.subject import Device

NONE = "-"
LEVELS = {"l1": "L1", "l2": "L2", "l3": "L3", "dram": "memory", "arithmetic": "arithmetic"}  # as people call them
NOISE = 1.02  # times nearer than this are the same


def figure(value: float | None) -> str:
    """Three digits: 0.123, 1.23, 123, 1,234."""
    if value is None:
        return NONE
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    """0.5 -> 50"""
    return NONE if share is None else f"{100 * share:.0f}"


def times(ratio: float | None) -> str:
    """Of a time over another one: 1.4 -> "1.40x slower", 0.8 -> "1.25x faster"."""
    if ratio is None:
        return NONE
    if 1 / NOISE < ratio < NOISE:
        return "the same"
    return f"{ratio:.2f}x slower" if ratio > 1 else f"{1 / ratio:.2f}x faster"


def bounded(w: Placed) -> str:
    """What bounds a program, and its share of the time in percent."""
    return f"{LEVELS[w.bound]} {percent(w.bound_share)} %" if w.bound else NONE


def roofs(device: Device) -> str:
    """Peak and rates of all threads together."""
    peak = f"peak {device.peak:.0f} GFLOP/s" if device.peak else "peak not known"
    rates = ", ".join(f"{LEVELS[level]} {rate:.0f}" for level, rate in device.rates.items())
    return f"{peak}; {rates} GB/s" if rates else peak
