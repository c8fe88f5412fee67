"""A stored program in every form, from its key to machine code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from typing import Any

from codegen.toolchain import Binary, execute
from data.query import run as question
from data.store import Store
from ir.forms import text
from ir.lower import lower
from ir.schedule import Program
from ir.target import Target
from ir.text import parse_dag
from ir.workload import Workload
from tasks.build import build_batch, kernel_of
from tasks.space import space_of
from tasks.workbench import Workbench

Row = Mapping[str, Any]
Forms = dict[str, str]
SHOWN = 10  # programs of a workload
DISASSEMBLY_SECONDS = 30.0


def found(store: Store, key: str) -> list[Row]:
    """Workloads and programs whose key begins so."""
    return _rows(question(store, "find", key=key))


def threads_of(row: Row) -> int:
    """What the program was tuned for; 1 where it was never measured. The target's text ends in it."""
    said = re.search(r"-t(\d+)$", row["target"] or "")
    return int(said[1]) if said else 1


def fastest(store: Store, row: Row, bench: Workbench) -> list[Row]:
    """The best programs of a workload on this kind of machine."""
    t = bench.target.key
    return _rows(question(store, "top_k", workload=row["key"], target=t, device=bench.machine.key, k=SHOWN))


def _rows(answer: Any) -> list[Row]:
    return list(answer.to_pylist())


def program_of(row: Row, target: Target) -> Program | None:
    """The row's program; None when the sketch rules have changed and no longer make its sketch."""
    workload = Workload(row["workload"], row["name"], parse_dag(row["dag_text"]))
    space = space_of(workload, target)
    if row["sketch"] not in space.keys:
        return None
    return Program(space.sketches[space.keys.index(row["sketch"])], tuple(row["choices"]))


def forms(row: Row, bench: Workbench) -> Forms:
    """Title -> text, in the order in which one form makes the next."""
    out = {"DAG": row["dag_text"]}
    if row["sketch"] is None:  # a workload that has no program yet
        return out
    out["sketch"] = f"rules: {', '.join(row['rules'] or ())}\n{row['sketch_text']}"
    program = program_of(row, bench.target)
    if program is None:
        out["choices"] = f"{list(row['choices'])} of a sketch that the rules no longer make"
        return out if row["source_text"] is None else {**out, "source": row["source_text"]}
    out["choices"] = "\n".join(f"{name} = {value}" for name, value in program.values.items())
    out["nest"] = text(lower(program).nest)
    out["source"] = kernel_of(program, row["key"]).text
    return {**out, "assembly": _assembly(row["key"], program, bench)}


def _assembly(key: str, program: Program, bench: Workbench) -> str:
    if shutil.which("objdump") is None:
        return "objdump is not installed; apt-get install binutils"
    (built,) = build_batch(bench, [(key, program)])
    if not isinstance(built, Binary):
        return f"it does not compile: {built.message}"
    words = ["objdump", "--disassemble", "--no-show-raw-insn", "--no-addresses", "--section=.text", str(built.path)]
    try:
        return execute(words, "", DISASSEMBLY_SECONDS).output.strip()
    finally:
        built.path.unlink(missing_ok=True)
