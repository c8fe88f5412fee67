"""From source text to shared objects: which compiler, which flags, and a pool of compiler processes.

Many kernels share a translation unit, because starting the compiler costs more than a kernel (an empty file 26 ms,
a packed GEMM tile 59 ms alone and 21 ms as one of 16). A unit that fails is built again without the kernels that its
errors name, and those one by one, so a bad program costs only itself.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Literal

from codegen.kernel import Kernel
from ir.target import Target
from ir.timing import Failure

Kind = Literal["gcc", "clang", "zig"]

VARIABLE = "TILEWRIGHT_CC"
HINT = "install one with `apt-get install gcc` or `pip install ziglang`, or name it in $" + VARIABLE
PROBE_SECONDS = 60.0  # the first run of `zig cc` builds parts of libc (5 s measured)
MOST_OBJECTS = 64  # files with the machine code of parts that a session keeps
HIDDEN = '__attribute__((visibility("hidden")))'
# Two units may compile one part at the same time, and an object may hold others than the one that is wanted.
SHARED = '-DTW_PART=__attribute__((weak,noinline,visibility("hidden")))'
ERROR = re.compile(r"^(?P<file>[^:\n]+):\d+:\d+: (?:fatal )?error: (?P<text>.*)$", re.MULTILINE)


class ToolchainError(Exception):
    """There is no C compiler, or the one that was named does not work."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """command: how it is called. version: its first line of `--version`. openmp: a program with threads ran."""

    command: tuple[str, ...]
    kind: Kind
    version: str
    openmp: bool


@dataclass(frozen=True, slots=True)
class Binary:
    """One kernel in a shared object. `build_seconds`: its share of the compiler's wall time."""

    path: Path
    entry: str
    key: str
    kernel: Kernel
    build_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Completed:
    """What a command did. `code` is None when it ran out of time and its process group was killed."""

    code: int | None
    output: str
    errors: str
    seconds: float


# ---------------------------------------------------------------------------------------------- which compiler


def find_compiler(environ: Mapping[str, str]) -> Compiler:
    """$TILEWRIGHT_CC, gcc, clang, `python -m ziglang cc`: the first that compiles and runs a program.

    A compiler that is named in the environment is never replaced by another. Raises ToolchainError.
    """
    named = environ.get(VARIABLE, "").strip()
    tried = []
    path = environ.get("PATH", os.defpath)
    for command in [shlex.split(named)] if named else _candidates():
        found = _examine(command, path)
        if isinstance(found, Compiler):
            return found
        tried.append(found)
    if named:
        raise ToolchainError(f"${VARIABLE} = {named!r} does not work: {tried[0]}; {HINT}")
    raise ToolchainError("; ".join(["no C compiler found", *tried, HINT]))


def _candidates() -> list[list[str]]:
    zig = [[sys.executable, "-m", "ziglang", "cc"]] if importlib.util.find_spec("ziglang") else []
    return [["gcc"], ["clang"], *zig]


def _examine(words: Sequence[str], path: str) -> Compiler | str:
    """The compiler behind a command, or one line that says what is wrong with it."""
    program = shutil.which(words[0], path=path)
    if program is None:
        return f"{words[0]}: not found"
    command = (program, *words[1:])
    try:
        version = execute([*command, "--version"], "", PROBE_SECONDS).output
    except OSError as e:
        return f"{shlex.join(command)}: {e.strerror}"
    wrong = _runs(command, (), "int main(void) { return 0; }")
    if wrong:
        return f"{shlex.join(command)}: {wrong}"
    threads = "#include <omp.h>\nint main(void) { int n = 0;\n#pragma omp parallel reduction(+:n)\nn++; return n < 1; }"
    openmp = not _runs(command, ("-fopenmp",), threads)
    return Compiler(command, _kind(command, version), version.partition("\n")[0].strip(), openmp)


def _kind(command: tuple[str, ...], version: str) -> Kind:
    """By what it says of itself, not by its name: `gcc` may be a link to clang."""
    if "ziglang" in command or Path(command[0]).name == "zig":
        return "zig"
    return "clang" if "clang" in version else "gcc"


def _runs(command: tuple[str, ...], extra: tuple[str, ...], text: str) -> str:
    """Empty when the program compiles, starts and returns 0; else one line."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        built = execute([*command, *extra, "-x", "c", "-", "-o", str(program)], text, PROBE_SECONDS)
        if built.code != 0:
            return first_error(built)
        ran = execute([str(program)], "", PROBE_SECONDS)
        return "" if ran.code == 0 else f"a compiled program ended with {ran.code} {ran.errors.strip()}"


# ---------------------------------------------------------------------------------------------- flags


ALIGNED = ("-falign-functions=64", "-falign-loops=32")
# What straight vector code does not need, two fifths of the compiler's time (random programs of a matrix product and of a
# convolution ran as fast without). Known bits of integers, threading of jumps, and registers allocated loop by loop.
SPARED = ("-fno-tree-bit-ccp", "-fno-thread-jumps", "-fira-region=one")  # words of gcc alone: see `spoken`


def flags(target: Target, final: bool = False) -> tuple[str, ...]:
    """Compile and link flags of a shared object: recorded with every timing, so they name features, never `native`.

    -O1 with the passes that vector-typed code needs (multiply-adds, scheduling): within 2 % of -O2 on 20 random programs
    each of a matrix product and a convolution (other sets of passes on six operators: the same), for about three
    quarters of the compiler's time; it leaves out the compiler's own vectoriser, which
    found nothing, and value range propagation, with which gcc 12 is wrong: the range of an index in one branch leaks
    into the other (the test of flags has the case), and the choice of induction variables, a tenth of the time: the
    emitter steps its pointers itself. Nothing lets the compiler change the order of a sum (-ffast-math
    breaks polynomials). Functions and loops are aligned, so that a program is the same code whatever its neighbours in
    the unit are (a tiny loop took 1 or 2 cycles by where it lay). Feature flags alone
    are as fast as -march=native (gcc 12, packed GEMM 6x64: 168 and 167 GFLOP/s), whatever -mtune says. `final` makes
    the file smaller and reproducible; the machine code stays the code that was measured.
    """
    threads = ("-fopenmp",) if target.threads > 1 else ()
    last = ("-s", "-fno-ident", "-Wl,--build-id=none") if final else ()
    safe = ("-std=gnu11", "-w", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-fno-strict-aliasing")
    code = ("-O1", "-fexpensive-optimizations", "-fschedule-insns2", "-fno-tree-vrp", "-fno-ivopts", *SPARED, *ALIGNED)
    return (*code, *feature_flags(target), *safe, *threads, *last, "-fPIC", "-shared")


def spoken(words: Sequence[str], kind: Kind) -> tuple[str, ...]:
    """The flags that this compiler understands."""
    return tuple(w for w in words if kind == "gcc" or w not in SPARED)


def feature_flags(target: Target) -> tuple[str, ...]:
    """The instruction set in the compiler's words."""
    if target.arch == "x86_64":
        width = f"-mprefer-vector-width={8 * target.vector_bytes}"
        return (*(f"-m{f}" for f in target.features), *([width] if target.features else []))
    if target.arch == "aarch64" and target.features:
        return ("-march=" + "+".join(["armv8-a", *target.features]),)
    return ()


# ---------------------------------------------------------------------------------------------- running a command


def execute(command: Sequence[str], text: str, timeout: float, memory_bytes: int | None = None) -> Completed:
    """Run a command with `text` on its standard input, in a process group of its own.

    After `timeout` seconds the whole group is killed: the compiler proper is a child of its driver. The memory limit
    is set by a shell, since code between fork and exec is not safe in a process with threads. Raises OSError when
    the command cannot be started.
    """
    limited = [*command]
    if memory_bytes is not None:
        limited = ["/bin/sh", "-c", 'ulimit -v "$1"; shift; exec "$@"', "sh", str(memory_bytes // 1024), *command]
    began = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(limited, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        code: int | None
        try:
            output, errors = process.communicate(text.encode(), timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            code = None
    seconds = time.monotonic() - began
    return Completed(code, output.decode(errors="replace"), errors.decode(errors="replace"), seconds)


def first_error(done: Completed) -> str:
    """One line for people."""
    if done.code is None:
        return f"compiler killed after {done.seconds:.1f} s"
    found = ERROR.search(done.errors)
    if found:
        return found["text"]
    lines = [line for line in done.errors.splitlines() if "rror" in line] or done.errors.strip().splitlines()
    return lines[0].strip() if lines else f"compiler ended with {done.code}"


# ---------------------------------------------------------------------------------------------- building


@dataclass
class Parts:
    """Machine code of parts, for one compiler, target and prelude: what an earlier unit has brought is linked.

    objects: part -> the object file that holds it, those last used last. They go with the object.
    """

    around: Path
    objects: dict[str, Path] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    @cached_property
    def folder(self) -> tempfile.TemporaryDirectory[str]:
        self.around.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(prefix="parts-", dir=self.around)

    def new_file(self) -> Path:
        folder = Path(self.folder.name)
        folder.mkdir(parents=True, exist_ok=True)  # artefacts may be deleted at any time
        return folder / f"{uuid.uuid4().hex}.o"

    def held(self, parts: Iterable[str]) -> dict[str, Path]:
        with self.lock:
            found = {p: self.objects.pop(p) for p in dict.fromkeys(parts) if p in self.objects}
            found = {p: f for p, f in found.items() if f.is_file()}
            self.objects |= found
        return found

    def bring(self, parts: Iterable[str], file: Path) -> None:
        """Few files are kept: the programs of a batch descend from those of the last ones."""
        with self.lock:
            self.objects |= dict.fromkeys(parts, file)
            files = list(dict.fromkeys(reversed(self.objects.values())))
            old = set(files[MOST_OBJECTS:])
            self.objects = {p: f for p, f in self.objects.items() if f not in old}
        for f in old:
            f.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Job:
    """What all units of one `build` share."""

    command: tuple[str, ...]
    prelude: str
    directory: Path
    timeout: float
    memory_bytes: int
    parts: Parts | None

    def run(self, words: Sequence[str], text: str, file: Path, objects: Iterable[Path] = ()) -> Completed:
        """Text and objects -> a shared object, or with -c an object."""
        command = [w for w in self.command if w != "-shared" or "-c" not in words]
        linked = ["-x", "none", *sorted(map(str, objects)), "-lm"] if "-c" not in words else []
        whole = [*command, *words, "-x", "c", "-", *linked, "-o", str(file)]
        return execute(whole, text, self.timeout, self.memory_bytes)


def build(
    kernels: Sequence[Kernel],
    compiler: Compiler,
    target: Target,
    directory: Path,
    *,
    prelude: str,
    final: bool = False,
    unit: int = 16,
    jobs: int | None = None,
    timeout: float = 20.0,
    memory_bytes: int = 2 << 30,
    parts: Parts | None = None,
) -> list[Binary | Failure]:
    """Compile kernels, `unit` a translation unit, `jobs` units at once; answers stand in the order of the kernels.

    timeout: seconds a unit, and for each kernel alone after a unit ran out of time. memory_bytes: address space of
    one compiler; also bounds `jobs` by what is free. parts: what earlier calls have compiled. Each file gets a path that
    was never used before.
    """
    if target.threads > 1 and not compiler.openmp:
        raise ToolchainError(f"{shlex.join(compiler.command)} has no OpenMP run time, so it builds for one thread only")
    directory.mkdir(parents=True, exist_ok=True)
    command = (*compiler.command, *spoken(flags(target, final), compiler.kind))
    job = _Job(command, prelude, directory, timeout, memory_bytes, parts)
    workers = jobs or slots(memory_bytes)
    size = max(1, min(unit, -(-len(kernels) // workers)))  # a small batch still feeds every worker
    units = [kernels[i : i + size] for i in range(0, len(kernels), size)]
    with ThreadPoolExecutor(workers) as pool:
        return [answer for answers in pool.map(lambda u: _build_unit(u, job), units) for answer in answers]


def slots(memory_bytes: int) -> int:
    """Compilers at once: one a usable core, as long as each may fill its memory limit."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, available_bytes() // memory_bytes))


def available_bytes() -> int:
    """Memory that could be had without swapping (Linux: MemAvailable)."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 1 << 30


def _build_unit(kernels: Sequence[Kernel], job: _Job) -> list[Binary | Failure]:
    """One file; on errors the suspects alone and the rest again; all alone when nobody can be named."""
    path = job.directory / f"{uuid.uuid4().hex}.so"
    done = _compiled(kernels, job, path)
    if done.code == 0:
        share = done.seconds / len(kernels)
        return [Binary(path, k.entry, k.key, k, share) for k in kernels]
    path.unlink(missing_ok=True)
    if len(kernels) == 1:
        return [Failure("compile", first_error(done))]
    named = _culprits(done, len(kernels))
    rest = [k for i, k in enumerate(kernels) if i not in named]
    others = iter(_build_unit(rest, job) if named and rest else [])
    return [next(others) if named and i not in named else _build_unit([k], job)[0] for i, k in enumerate(kernels)]


def _compiled(kernels: Sequence[Kernel], job: _Job, path: Path) -> Completed:
    """With `Parts`, new ones go into an object file of their own first, and the unit is linked with all that it calls."""
    wanted = dict.fromkeys(p for k in kernels for p in k.parts)
    if job.parts is None or not wanted:
        return job.run((), _text(kernels, job.prelude, wanted), path)
    objects, seconds = job.parts.held(wanted), 0.0
    if new := [p for p in wanted if p not in objects]:
        file = job.parts.new_file()
        done = job.run(("-c", SHARED, "-ffunction-sections"), _text(kernels, job.prelude, new, entries=False), file)
        if done.code != 0:
            return done
        job.parts.bring(new, file)
        objects, seconds = objects | dict.fromkeys(new, file), done.seconds
    done = job.run(("-Wl,--gc-sections",), _text(kernels, job.prelude), path, set(objects.values()))
    return replace(done, seconds=done.seconds + seconds)


def _text(kernels: Sequence[Kernel], prelude: str, parts: Collection[str] = (), entries: bool = True) -> str:
    """Prelude, then for each kernel a file name of its own for errors, the parts that no kernel before it has brought (of
    those that are not among `parts` only what they are called with), its source, and its identity as a symbol."""
    out, brought = ['#line 1 "prelude"', prelude], set[str]()
    for i, k in enumerate(kernels):
        new = [p if p in parts else f"{HIDDEN} {head(p)};" for p in k.parts if p not in brought]
        brought.update(k.parts)
        symbol = f"const char {k.entry}_id[] = {c_string(identity(k))};"
        out += [f'#line 1 "kernel{i}"', *new, *([k.source, symbol] if entries else [])]
    return "\n".join(out) + "\n"


def head(part: str) -> str:
    """`TW_PART void f(float *y) { .. }`      -->      `void f(float *y)`"""
    return part[: part.index(" {")].removeprefix("TW_PART ")


def _culprits(done: Completed, count: int) -> set[int]:
    """Kernels whose text the errors name; some are innocent, for a missing brace is noticed by the next one."""
    found = {int(e["file"][6:]) for e in ERROR.finditer(done.errors) if re.fullmatch(r"kernel\d+", e["file"])}
    return {i for i in found if i < count} if done.code is not None else set()


def identity(kernel: Kernel) -> str:
    """What is embedded in the binary and asserted after loading: a reused path cannot pass for another program."""
    return f"{kernel.key} {sha256(kernel.text.encode()).hexdigest()[:16]}"


def c_string(text: str) -> str:
    """A C literal; every byte that is not plain ASCII as octal."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'


def unbuilt(kernel: Kernel) -> Binary:
    """A binary without a file, for runners that run nothing."""
    return Binary(Path(os.devnull), kernel.entry, kernel.key, kernel)
