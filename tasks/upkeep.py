"""What a store needs now and then: its parts merged, binaries of yesterday's champions removed, the model trained again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.files import publish
from data.query import connect
from data.remote import compact
from data.schema import TABLES
from data.store import Store
from tasks.lessons import PriorError, ship
from tasks.standing import PROBE

Document = dict[str, Any]  # JSON-able


def compacted(root: Path) -> list[Document]:
    """Every table of the store: small parts merged, damaged files moved away. A row a table. A copy is synced with its
    place, and both are merged."""
    store = Store.open(root)
    done = compact(store, place) if (place := store.copy_of) else [store.compact(table) for table in TABLES]
    _forget(store)
    return [
        {"table": c.table, "replaced": c.replaced, "merged": len(c.merged), "rows": c.rows, "quarantined": len(c.quarantined)}
        for c in done
    ]  # fmt: skip


def _forget(store: Store) -> None:
    """Kept binaries of programs that no longer stand. The folders are device/target/program."""
    with connect(store) as source:
        for folder in (store.root.parent / "kept").glob("*/*"):
            rows = source.run("standing", target=folder.name, device=folder.parent.name).to_pylist()
            stand = {PROBE, *(row["program"] for row in rows)}
            for path in folder.iterdir():
                if path.name not in stand:
                    shutil.rmtree(path)


def retrained(root: Path, environ: Mapping[str, str]) -> Document:
    """The model that a new workload may begin with, from all that this store knows of this machine: `prior/model.json`
    beside the store, and `prior/quality.json` with its quality on workloads that were kept from it. Nothing uses it until
    somebody ships it. `error`: why there is none."""
    folder = root.parent / "prior"
    folder.mkdir(exist_ok=True)
    try:
        found = {**ship([root], environ, folder / "model.json"), "error": None}
    except PriorError as error:
        found = {"file": None, "rows": 0, "workloads": 0, "unseen": None, "error": str(error)}
    publish(folder / "quality.json", json.dumps(found, indent=2).encode())
    return found
