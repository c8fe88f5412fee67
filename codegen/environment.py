"""What a program's time depends on besides the machine: what compiles it, and what it runs on and beside."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

from codegen.toolchain import Compiler, execute, flags
from ir.target import Target

AT_BUILD = ("compiler", "flags", "code")  # act when a program is compiled, and stay in its binary
AT_RUN = ("kernel", "microcode", "libraries")  # act when it runs, on every binary alike
WRITERS = ("ir", "codegen")  # rooms whose text decides what a program's C text is
UNKNOWN = "unknown"
ASK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Environment:
    """Texts; "unknown" where the system does not say. code: of Tilewright, its version and a digest of what writes C.

    probe: a digest of the peak kernel's binary. Rates that two of them attained are not compared; it is no cause of anything.
    """

    compiler: str
    flags: str
    code: str
    kernel: str
    microcode: str
    libraries: str
    probe: str

    @property
    def key(self) -> str:
        return blake2b(repr(asdict(self)).encode(), digest_size=8).hexdigest()

    def built_in(self, other: Environment) -> Environment:
        """A binary that was made in `other` and runs here."""
        return replace(self, **{name: getattr(other, name) for name in AT_BUILD})


def environment(
    compiler: Compiler, target: Target, version: str, probe: Path, cpuinfo: Path = Path("/proc/cpuinfo")
) -> Environment:
    """Here and now. version: of Tilewright. probe: the harness that measures."""
    return Environment(
        compiler=compiler.version,
        flags=" ".join(flags(target)),
        code=f"{version} {_digest(*_sources())}",
        kernel=f"{platform.system()} {platform.release()} {platform.version()}",
        microcode=_microcode(cpuinfo),
        libraries="; ".join([_libc(), *_openmp(compiler)]),
        probe=_digest(probe) if probe.is_file() else UNKNOWN,
    )


def changes(before: Environment, now: Environment, among: tuple[str, ...]) -> tuple[str, ...]:
    """The names of what differs."""
    return tuple(name for name in among if getattr(before, name) != getattr(now, name))


def _sources() -> list[Path]:
    home = Path(__file__).parents[1]
    found = (path for room in WRITERS for path in (home / room).rglob("*"))
    return sorted(path for path in found if path.suffix in (".py", ".h"))


def _digest(*files: Path) -> str:
    found = blake2b(digest_size=4)
    for path in files:
        found.update(path.read_bytes())
    return found.hexdigest()


def _microcode(cpuinfo: Path) -> str:
    """Of the first core; a virtual machine may be told another one, or none."""
    found = re.search(r"^microcode\s*:\s*(\S+)", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else None
    return found[1] if found else UNKNOWN


def _libc() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or UNKNOWN
    except (OSError, ValueError):  # another libc than GNU's has no such name
        return UNKNOWN


def _openmp(compiler: Compiler) -> list[str]:
    """The runtime of the compiler's threads, by content: an update leaves its name as it is."""
    words = [*compiler.command, "-print-file-name=libgomp.so.1"]
    path = Path(execute(words, "", ASK_SECONDS).output.strip() or UNKNOWN)
    return [f"{path.name} {_digest(path)}"] if path.is_absolute() and path.is_file() else []
