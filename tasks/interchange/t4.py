"""Measurements of a workload in T4, the JSON in which auto-tuners exchange results (schema version 1.0.0 of the FAIR
auto-tuning group; Kernel Tuner reads and writes it). Times are milliseconds there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from data.query import Connection

Row = Mapping[str, Any]
SCHEMA = "1.0.0"
INVALIDITY = {
    None: "correct", "compile": "compile", "timeout": "timeout", "crash": "runtime", "memory": "runtime",
    "wrong": "correctness",
}  # fmt: skip
MS = 1e3


def t4(source: Connection, workload: str, target: str, device: str | None, version: str) -> dict[str, Any]:
    """One result a measurement, in the order they were made. The configuration names the sketch and every choice."""
    rows = source.run("samples", workload=workload, target=target, device=device).to_pylist()
    domains = {r["sketch"]: dict(json.loads(r["holes"])) for r in rows if r["holes"] is not None}
    return {
        "schema_version": SCHEMA,
        "metadata": {
            "hardware": {"hardware_description": sorted({r["device"] for r in rows})},
            "environment": {"requirements": [f"tilewright {version}", *sorted({r["compiler"] for r in rows})]},
            "kernel": {"workload": workload, "target": target, "flags": sorted({r["flags"] for r in rows})},
        },
        "results": [_result(r, domains.get(r["sketch"])) for r in rows],
    }


def _result(row: Row, domains: Mapping[str, list[Any]] | None) -> dict[str, Any]:
    best = row["best_seconds"]
    return {
        "timestamp": row["created"].isoformat(),
        "configuration": {"sketch": row["sketch"], **_choices(row, domains)},
        "times": {
            "compilation_time": row["build_seconds"] * MS,
            "runtimes": [s * MS for s in row["seconds_warm"]],
            "validation": row["measure_seconds"] * MS,
        },
        "invalidity": INVALIDITY[row["error_kind"]] if row["verified"] or row["error_kind"] else "correctness",
        "correctness": float(row["verified"]),
        "measurements": [] if best is None else [{"name": "time", "value": best * MS, "unit": "ms"}],
        "objectives": ["time"],
    }


def _choices(row: Row, domains: Mapping[str, list[Any]] | None) -> dict[str, Any]:
    """Hole -> value; where the sketch is not known any more, hole number -> index."""
    if domains is None:
        return {str(i): choice for i, choice in enumerate(row["choices"])}
    return {name: options[choice] for (name, options), choice in zip(domains.items(), row["choices"], strict=True)}
