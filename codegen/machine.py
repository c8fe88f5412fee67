"""What this machine is, measured where it can be: instruction set, caches, peak rate, bandwidth of each level.

Also the harness: the shared object with the clock loop and the peak kernel that every measuring process loads.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from codegen.kernel import Argument, Kernel
from codegen.toolchain import Binary, Compiler, ToolchainError, build, execute, feature_flags, flags, spoken
from ir.target import Target

# /proc/cpuinfo flag -> the compiler's name for it. Flags that are not here change nothing that we emit.
X86_FEATURES = {
    "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "popcnt": "popcnt",
    "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "bmi1": "bmi", "bmi2": "bmi2", "abm": "lzcnt",
    "avx_vnni": "avxvnni",
    "avx512f": "avx512f", "avx512cd": "avx512cd", "avx512bw": "avx512bw", "avx512dq": "avx512dq",
    "avx512vl": "avx512vl", "avx512ifma": "avx512ifma", "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni", "avx512_bitalg": "avx512bitalg", "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16",
    "amx_tile": "amx-tile", "amx_int8": "amx-int8", "amx_bf16": "amx-bf16",
}  # fmt: skip
ARM_FEATURES = {"asimddp": "dotprod", "asimdhp": "fp16", "i8mm": "i8mm", "bf16": "bf16"}

WIDTHS = (64, 32, 16)  # vector bytes to try, widest first
FALLBACK_CACHES = {1: 32 << 10, 2: 512 << 10, 3: 8 << 20}  # where sysfs says nothing
LARGEST_STREAM = 512 << 20  # bytes; a third-level cache above half of this hides the memory behind it
RUN_SECONDS = 60.0

HARNESS = r"""
#include <stddef.h>
#include <stdint.h>
#include <time.h>
typedef float peak_vector __attribute__((vector_size(VECTOR_BYTES)));
typedef float peak_unaligned __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
static double seconds_of(int clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}
/* Seconds that `repeats` calls take, on the clock of this thread or of the wall. Calls go round `count` argument
   vectors, from the one numbered `first`. */
double tilewright_time(void (*entry)(void *const *, void *), void *const *const *arguments, int64_t count, int64_t first,
                       void *workspace, int64_t repeats, int wall) {
  const int clock = wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
  const double began = seconds_of(clock);
  for (int64_t i = 0, at = first; i < repeats; i++, at = at + 1 < count ? at + 1 : 0) entry(arguments[at], workspace);
  return seconds_of(clock) - began;
}
/* Every thread reads and writes its own part of the buffer: what was in its private caches is gone. */
void tilewright_flush(char *buffer, int64_t bytes, int threads) {
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int t = 0; t < threads; t++)
    for (int64_t i = bytes / threads * t; i < bytes / threads * (t + 1); i += 64) buffer[i]++;
}
/* Nothing but multiply-adds: CHAINS independent chains of named vectors, STEPS steps. Writes a vector a thread. */
static void peak_chains(float *out) {
  peak_vector a = {}, b = {};
  a += 0.999f; b += 0.001f;
  __asm__ volatile("" : "+m"(a), "+m"(b));
  peak_vector DECLARE;
  for (int64_t i = 0; i < STEPS; i++) { MULTIPLY_ADD }
  *(peak_unaligned *)out = SUM;
}
/* As many floats in flight as one level holds, added up: the rate at which vectors arrive. */
static float stream(const char *buffer, int64_t bytes) {
  const peak_unaligned *p = (const peak_unaligned *)buffer;
  const int64_t n = bytes / sizeof *p / 8 * 8;
  peak_vector s0 = {}, s1 = {}, s2 = {}, s3 = {}, s4 = {}, s5 = {}, s6 = {}, s7 = {};
  for (int64_t i = 0; i < n; i += 8) {
    s0 += p[i]; s1 += p[i + 1]; s2 += p[i + 2]; s3 += p[i + 3];
    s4 += p[i + 4]; s5 += p[i + 5]; s6 += p[i + 6]; s7 += p[i + 7];
  }
  const peak_vector s = s0 + s1 + s2 + s3 + s4 + s5 + s6 + s7;
  return s[0] + s[1];
}
"""

PEAK = r"""
const double tilewright_peak_flops = 2.0 * LANES * CHAINS * STEPS * THREADS;
void tilewright_peak(void *const *arguments, void *workspace) {
#pragma omp parallel for schedule(static, 1) num_threads(THREADS)
  for (int t = 0; t < THREADS; t++) peak_chains((float *)arguments[0] + t * LANES);
}
"""

# Argument vector: bytes to stream at each level. Prints GFLOP/s, then GB/s of each level, the best of several runs.
PROBE = r"""
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
  static float out[64];
  void *arguments[1] = {out};
  void *const *const vectors[1] = {arguments};
  volatile float kept = 0;
  double best = 0;
  for (int r = 0; r < 160; r++) {
    const double rate = tilewright_peak_flops / tilewright_time(tilewright_peak, vectors, 1, 0, 0, 1, 0) / 1e9;
    if (rate > best) best = rate;
  }
  printf("%.3f\n", best);
  for (int level = 1; level < count; level++) {
    const int64_t bytes = atoll(words[level]), repeats = 1 + (32 << 20) / bytes;
    char *buffer = aligned_alloc(64, bytes / 64 * 64);
    if (!buffer) return 3;
    for (int64_t i = 0; i < bytes; i += 64) buffer[i] = 0;
    best = 0;
    for (int r = 0; r < 8; r++) {
      const double began = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      for (int64_t i = 0; i < repeats; i++) { kept += stream(buffer, bytes); __asm__ volatile("" ::: "memory"); }
      const double rate = (double)bytes * repeats / (seconds_of(CLOCK_THREAD_CPUTIME_ID) - began) / 1e9;
      if (rate > best) best = rate;
    }
    free(buffer);
    printf("%.3f\n", best);
  }
  return kept != kept;
}
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes, per core where private; rates of one core alone: GFLOP/s of float32 multiply-adds, GB/s of reads.

    bandwidth: level ("l1", "l2", "l3", "dram") -> GB/s. "dram" is an upper bound where the last cache is very large.
    """

    arch: str
    model: str
    features: tuple[str, ...]
    vector_bytes: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    peak_gflops: float
    bandwidth: dict[str, float] = field(hash=False)

    @property
    def key(self) -> str:
        """The same for the same kind of machine: no host name, no measured number."""
        what = repr((self.arch, self.model, self.features, self.vector_bytes, self.l1_bytes, self.l2_bytes))
        return f"{self.arch}-v{self.vector_bytes}-{sha256(what.encode()).hexdigest()[:12]}"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> Machine:
        """Also for a file that a person edited: what the probe got wrong is overridden there."""
        found = json.loads(text)
        return Machine(**{**found, "features": tuple(found["features"])})


def target(machine: Machine, threads: int) -> Target:
    """What to compile for, with a team of that size."""
    return Target(
        arch=machine.arch,
        features=machine.features,
        threads=threads,
        vector_bytes=machine.vector_bytes,
        vector_registers=machine.vector_registers,
        l1_bytes=machine.l1_bytes,
        l2_bytes=machine.l2_bytes,
        l3_bytes=machine.l3_bytes,
    )


def probe(compiler: Compiler, directory: Path, cpuinfo: Path = Path("/proc/cpuinfo")) -> Machine:
    """Describe this machine. Instruction sets are asked for, then tried: what cannot be compiled and run is left out.

    directory: for temporary files. Raises ToolchainError when not even 16-byte vectors run.
    """
    directory.mkdir(parents=True, exist_ok=True)
    arch, text = platform.machine(), cpuinfo.read_text()
    caches = _caches(Path("/sys/devices/system/cpu/cpu0/cache"))
    machine = Machine(
        arch, _model(text), (), 16, 16, caches[1], caches[2], caches[3], len(os.sched_getaffinity(0)), 0.0, {}
    )
    listed = _features(arch, text)
    best: Machine | None = None
    for width in WIDTHS:
        features = _supported(compiler, arch, _of_width(arch, listed, width)) if _has(arch, listed, width) else None
        if features is None:
            continue
        candidate = replace(machine, features=features, vector_bytes=width, vector_registers=registers(arch, width))
        found = _measure(candidate, compiler, directory)
        if found and (best is None or found.peak_gflops > 1.1 * best.peak_gflops):  # wider wins ties: more registers
            best = found
    if best is None:
        raise ToolchainError(f"{compiler.version}: a program with 16-byte vectors does not run on this {arch} machine")
    return best


# ---------------------------------------------------------------------------------------------- asking


def _features(arch: str, cpuinfo: str) -> tuple[str, ...]:
    """What the kernel lists, in the compiler's names; empty for an unknown architecture."""
    names = {"x86_64": X86_FEATURES, "aarch64": ARM_FEATURES}.get(arch, {})
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    listed = set(found[1].split()) if found else set()
    return tuple(name for flag, name in names.items() if flag in listed)


def _has(arch: str, features: Sequence[str], width: int) -> bool:
    needed = {64: "avx512f", 32: "avx2"}.get(width)
    return needed is None or (arch == "x86_64" and needed in features)


def _of_width(arch: str, features: Sequence[str], width: int) -> tuple[str, ...]:
    """Drop what needs wider vectors."""
    if arch != "x86_64" or width == 64:
        return tuple(features)
    wide = ("avx512", "amx") if width == 32 else ("avx", "amx", "fma", "f16c")
    return tuple(f for f in features if not f.startswith(wide))


def registers(arch: str, width: int) -> int:
    return 32 if width == 64 or arch in ("aarch64", "riscv64") else 16


def _supported(compiler: Compiler, arch: str, features: Sequence[str]) -> tuple[str, ...]:
    """Those that this compiler knows."""

    def compiles(names: Sequence[str]) -> bool:
        words = feature_flags(Target(arch=arch, features=tuple(names)))
        return execute([*compiler.command, *words, "-x", "c", "-c", "-", "-o", os.devnull], "", RUN_SECONDS).code == 0

    return tuple(features) if compiles(features) else tuple(f for f in features if compiles([f]))


def _model(cpuinfo: str) -> str:
    """Name, family, model and stepping of the processor."""
    words = []
    for name in ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part"):
        found = re.search(rf"^{name}\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
        words += [found[1].strip()] if found else []
    return " ".join(words) or "unknown"


def _caches(folder: Path) -> dict[int, int]:
    """Level -> bytes of data cache as sysfs states it (a shared cache counts whole), else a plausible size."""
    found = dict(FALLBACK_CACHES)
    for index in sorted(folder.glob("index*")):
        try:
            level, kind, size = ((index / f).read_text().strip() for f in ("level", "type", "size"))
        except OSError:  # containers hide some of these files; the plausible size stands
            continue
        number = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and number and int(number[1]):
            found[int(level)] = int(number[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[number[2]]
    return found


# ---------------------------------------------------------------------------------------------- measuring


def _measure(machine: Machine, compiler: Compiler, directory: Path) -> Machine | None:
    """The machine with its rates; None when the program does not compile or dies (an instruction that only seems there)."""
    one = target(machine, 1)
    dram = min(LARGEST_STREAM, 4 * machine.l3_bytes)
    beyond_l2 = min(8 * machine.l2_bytes, machine.l3_bytes // 2)
    sizes = {"l1": machine.l1_bytes // 2, "l2": machine.l2_bytes // 2, "l3": beyond_l2, "dram": dram}
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        path = str(Path(folder, "probe"))
        words = [w for w in spoken(flags(one), compiler.kind) if w not in ("-fPIC", "-shared")]
        text = harness_text(one) + PEAK + PROBE
        if execute([*compiler.command, *words, "-x", "c", "-", "-o", path], text, RUN_SECONDS).code != 0:
            return None
        ran = execute([path, *map(str, sizes.values())], "", RUN_SECONDS)
    if ran.code != 0:
        return None
    peak, *rates = map(float, ran.output.split())
    return replace(machine, peak_gflops=peak, bandwidth=dict(zip(sizes, rates, strict=True)))


def harness_text(t: Target, chains: int = 12, steps: int = 16384) -> str:
    """The constants of a target before the harness. 12 chains: latency 4 times 2 ports is 8, and 16 registers hold them."""
    names = [f"c{i}" for i in range(chains)]
    lanes = t.vector_bytes // 4
    constants = {
        "VECTOR_BYTES": t.vector_bytes,
        "LANES": lanes,
        "CHAINS": chains,
        "STEPS": steps,
        "THREADS": t.threads,
        "DECLARE": ", ".join(f"{n} = a * {i}" for i, n in enumerate(names)),
        "MULTIPLY_ADD": " ".join(f"{n} = {n} * a + b;" for n in names),
        "SUM": " + ".join(names),
    }
    return "".join(f"#define {k} {v}\n" for k, v in constants.items()) + HARNESS


def harness(compiler: Compiler, t: Target, directory: Path) -> Binary:
    """The clock loop and the peak kernel for a target, as the shared object that a `Runner` needs. Raises ToolchainError."""
    out = Argument("out", (t.threads * t.vector_bytes // 4,), "float32", "output")
    kernel = Kernel("harness", "tilewright_peak", PEAK, (out,))
    (built,) = build([kernel], compiler, t, directory, prelude=harness_text(t))
    if not isinstance(built, Binary):
        raise ToolchainError(f"{compiler.version}: the harness does not compile: {built.message}")
    return built
