"""`tilewright sync`: the store here and one on S3, or anywhere else, kept the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright import STORE
from tilewright.errors import UsageError

# fmt: off
ADDRESS = "s3://bucket/folder, gs://..., file:///...; a server of your own: s3://bucket/folder?endpoint_override=host:port" \
          "&scheme=http.  [default: that of the last time]"
MERGE   = "Merge small parts, in both places; one process at a time."

Address = Annotated[str | None, typer.Argument(metavar="ADDRESS", help=ADDRESS, show_default=False)]
Merge   = Annotated[bool, typer.Option("--compact", help=MERGE)]
Place   = Annotated[str, typer.Option("--store", metavar="DIR", help="The copy here.")]
Json    = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")]
# fmt: on


def sync(address: Address = None, compact: Merge = False, store: Place = STORE, json_: Json = False) -> None:
    """Make the store here and the one at an address the same: what either has measured, both have then."""
    from data import remote
    from data.store import Store
    from tilewright.cli import print_json, pure

    with pure(json_):
        kept = Store(Path(store).absolute())
        if not kept.is_one:
            kept = Store.open(kept.root)
        place = address or kept.copy_of
        if place is None:
            raise UsageError("the first time, sync needs an ADDRESS such as s3://bucket/folder")
        merged = remote.compact(kept, place) if compact else []
        synced = remote.sync(kept, place)
    if json_:
        print_json({"address": place, "tables": {s.table: {"sent": s.sent, "received": s.received, "dropped": s.dropped}
                                                 for s in synced}, "merged": sum(c.replaced for c in merged)})  # fmt: skip
        return
    sent, received, dropped = (sum(getattr(s, name) for s in synced) for name in ("sent", "received", "dropped"))
    print(f"{place}: {sent} parts sent, {received} received, {dropped} dropped because they were merged")
    for c in merged:
        if c.replaced:
            print(f"  {c.text}")
