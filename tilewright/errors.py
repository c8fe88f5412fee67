"""Mistakes of the user and troubles of the machine, told in one line. Anything else is a fault of ours: a traceback."""

from __future__ import annotations

import errno
import re

BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
ERRNO = {
    errno.ENOSPC: "the disk is full; free some space, or name another place with --store",
    errno.EDQUOT: "the disk quota is used up; free some space, or name another place with --store",
    errno.EACCES: "permission denied; name another place with --store",
    errno.EPERM: "not permitted; name another place with --store",
    errno.EROFS: "the file system is read-only; name another place with --store",
    errno.ENOMEM: "out of memory; use fewer threads, or a smaller model",
    errno.EMFILE: "too many open files; raise `ulimit -n`",
    errno.ENOTDIR: "a file is where a folder should be; name another place with --store",
}  # fmt: skip


SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")  # NumPy's words for a full disk; it gives no number


class UsageError(ValueError):
    """What was typed makes no sense: one line with the cause and the way out."""


class TuningError(RuntimeError):
    """A tuning in a process of its own failed: one line with its last words."""


def told(error: BaseException) -> str | None:
    """The one line for an expected error; None: a bug."""
    if isinstance(error, _expected()):
        return _line(str(error))
    if isinstance(error, MemoryError):
        return ERRNO[errno.ENOMEM]
    if isinstance(error, OSError) and SHORT_WRITE.search(str(error)):
        return ERRNO[errno.ENOSPC]
    if isinstance(error, OSError) and error.errno in ERRNO:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{ERRNO[error.errno]}"
    return None


def _expected() -> tuple[type[BaseException], ...]:
    """Imported when something went wrong: `--help` must not wait for DuckDB."""
    from codegen.bundle.library import BuildError
    from codegen.module import LoadError
    from codegen.oracle import OracleError
    from codegen.runner import RunnerError
    from codegen.toolchain import ToolchainError
    from data.query import QueryError
    from data.store import StoreError
    from flows.local import ServerError
    from flows.plain import RequestError
    from ir.graph import ModelError
    from tasks.command import CommandError
    from tasks.lease import LeaseError
    from tasks.registry import RegistryError
    from tilewright.peers.process import PeerError

    return (
        UsageError, RequestError,               # what was typed
        ModelError, OracleError,                # the model
        ToolchainError, BuildError, LoadError,  # the compiler
        RunnerError, PeerError, ServerError,    # processes that we start
        TuningError, CommandError, LeaseError,  # ... and the device that they measure on
        RegistryError,
        StoreError, QueryError,                 # the store
    )  # fmt: skip


def _line(text: str) -> str:
    return " ".join(text.split())
