"""Which models are tuned every night: rows that say so, and rows that say no longer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from data.query import run as question
from data.store import Store

Row = Mapping[str, Any]


class RegistryError(ValueError):
    """No such registration, or more than one: one line with the way out."""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a night tunes, and how much. label: what its runs are called; the rest as in a request to tune."""

    model: str
    label: str
    threads: int = 1
    batch: int = 1
    seq: int | None = None
    dims: Mapping[str, int] | None = None
    trials: int = 256
    budget_seconds: float | None = None

    @property
    def key(self) -> str:
        return f"{self.label} t{self.threads}"


def register(store: Store, what: Registration) -> None:
    """From now on; a second time changes how much."""
    _write(store, what, active=True)


def unregister(store: Store, name: str, threads: int | None) -> Registration:
    """By its key, label or model. Raises RegistryError: none, or several that differ in their threads or shapes."""
    found = [r for r in registered(store) if name in (r.key, r.label, r.model) and threads in (None, r.threads)]
    if not found:
        known = ", ".join(r.key for r in registered(store)) or "none"
        raise RegistryError(f"no model is registered as {name!r}; there are: {known}")
    if len(found) > 1:
        raise RegistryError(f"{name!r} is registered as {', '.join(r.key for r in found)}; write one of these")
    _write(store, found[0], active=False)
    return found[0]


def registered(store: Store) -> list[Registration]:
    """In the order of their keys."""
    return [_registration(row) for row in question(store, "registered", registration=None).to_pylist()]


def chosen(store: Store, names: list[str] | None) -> list[Registration]:
    """Those of these names, or all. Raises RegistryError for a name that is not registered, and where nothing is."""
    every = registered(store)
    if not every:
        raise RegistryError(f"no model is registered in {store.root}; tilewright register MODEL adds one")
    for name in names or ():
        if not any(name in (r.key, r.label, r.model) for r in every):
            raise RegistryError(f"no model is registered as {name!r}; there are: {', '.join(r.key for r in every)}")
    return [r for r in every if names is None or {r.key, r.label, r.model} & set(names)]


def _write(store: Store, what: Registration, active: bool) -> None:
    store.append("registrations", [{
        "key": what.key, "model": what.model, "label": what.label, "threads": what.threads, "batch": what.batch,
        "seq": what.seq, "dims": json.dumps(dict(what.dims)) if what.dims else None, "trials": what.trials,
        "budget_seconds": what.budget_seconds, "active": active,
    }])  # fmt: skip


def _registration(row: Row) -> Registration:
    dims = json.loads(row["dims"]) if row["dims"] else None
    return Registration(
        row["model"], row["label"], row["threads"], row["batch"], row["seq"], dims, row["trials"], row["budget_seconds"]
    )
