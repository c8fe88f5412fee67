"""Files that are there whole or not at all, and one line of words for whatever the file system refuses."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from data.schema import StoreError

ASIDE = ".tmp"  # no reader's pattern ends so; DuckDB's `*.parquet` does match names that begin with a dot
STALE_SECONDS = 86_400.0  # a file still aside after a day has no writer any more

FULL = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
NOT_A_FOLDER = (errno.ENOTDIR, errno.EEXIST)


class StoreWarning(UserWarning):
    """The store answered, but not from everything that lies in it."""


def refusal(error: OSError, path: Path) -> StoreError:
    """What the file system said, in one line."""
    if error.errno in FULL:
        return StoreError(f"disk full: cannot write {path}")
    if error.errno in FORBIDDEN:
        return StoreError(f"not writable: {path}")
    if error.errno in NOT_A_FOLDER:
        return StoreError(f"a file stands where a folder should be: {path}")
    return StoreError(f"cannot write {path}: {error.strerror or error}")


def unique_name() -> str:
    """Ordered by time; two writers never choose the same."""
    return f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(8)}"


def publish(path: Path, payload: bytes) -> Path:
    """Write `path` so that a reader, and a kill at any moment, sees all of it or none.

        .NAME-….tmp written, synced   →   renamed to NAME   →   folder synced

    StoreError: nothing was published.
    """
    aside = path.with_name(f".{path.name}-{unique_name()}{ASIDE}")
    try:
        _write_synced(aside, payload)
        os.replace(aside, path)
    except BaseException as error:
        with suppress(OSError):  # what stays is swept when it is a day old
            aside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise refusal(error, path) from error
        raise
    _sync_folder(path.parent)
    return path


def make_folder(path: Path) -> None:
    """StoreError: cannot be made, or is a file."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refusal(error, path) from error


def sweep(folder: Path) -> None:
    """Remove what dead writers left aside, once it is a day old: a younger file may have a living writer."""
    oldest = time.time() - STALE_SECONDS
    for path in folder.glob(f".*{ASIDE}"):
        with suppress(FileNotFoundError):  # another process sweeps too
            if path.stat().st_mtime < oldest:
                path.unlink()


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """One process at a time. The lock dies with its holder, so a killed one leaves none behind."""
    try:
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise refusal(error, folder) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_synced(path: Path, payload: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(payload)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut. A refusal is no error: the rows are there, and a retry would double them."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        warnings.warn(StoreWarning(f"{folder} could not be synced: {error.strerror}"), stacklevel=3)
