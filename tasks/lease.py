"""One measuring process at a time on a device, whichever stores and servers they belong to.

An advisory lock (flock) on a file in a folder of the user's own, the same for every process of the user: the kernel takes
the lock back when its holder dies, however that happens, and wakes who waits; nobody polls.
"""

from __future__ import annotations

import fcntl
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "TILEWRIGHT_LEASES"  # names another folder: where a machine's processors are shared out between containers
LONGEST = 200  # bytes of what a holder says of itself

Say = Callable[[str], None]


class LeaseError(RuntimeError):
    """The lock cannot be had at all: one line with the way out."""


def warn(text: str) -> None:
    """For someone who waits, where nothing else speaks to him."""
    warnings.warn(text, stacklevel=2)


@contextmanager
def leased(what: str, environ: Mapping[str, str], say: Say = warn, device: str = "cpu") -> Iterator[None]:
    """The device for this process alone, inside the block. what: for others who wait, such as "tune resnet50".

    `say` is told once if somebody else has it. Not to be nested: a process would wait for itself. Raises LeaseError.
    """
    path = _folder(environ) / f"{device}.lock"
    handle = _taken(path, say)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()}: {what}".encode()[:LONGEST], 0)
        yield
    finally:
        os.close(handle)


def _taken(path: Path, say: Say) -> int:
    """The locked file. Whoever cleans up temporary files may remove it while we wait: then there is another one."""
    while True:
        handle = _opened(path)
        try:
            _wait(handle, path, say)
            if _lies_at(path, handle):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lies_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _wait(handle: int, path: Path, say: Say) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, LONGEST, 0).decode(errors="replace").strip() or "another process"
        say(f"the processor is measuring for {' '.join(holder.split())}; waiting until that has ended ({path})")
        fcntl.flock(handle, fcntl.LOCK_EX)


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LeaseError(f"cannot open {path}: {error.strerror}; name another folder in ${VARIABLE}") from error


def _folder(environ: Mapping[str, str]) -> Path:
    """Ours alone. Not below the home folder, which several machines may share, nor where a session's settings point."""
    folder = Path(environ.get(VARIABLE) or f"/tmp/tilewright-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, parents=bool(environ.get(VARIABLE)), exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise LeaseError(f"cannot make {folder}: {error.strerror}; name another folder in ${VARIABLE}") from error
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise LeaseError(f"{folder} belongs to somebody else; name another folder in ${VARIABLE}")
    return folder
