"""The vector functions of generated code, on every width that this processor has, element for element."""

from __future__ import annotations

import os
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from codegen.toolchain import find_compiler

PRELUDE = Path(str(files("codegen.c"))) / "prelude.h"
WIDTHS = {4: ("-msse2", ""), 8: ("-mavx2", "avx2"), 16: ("-mavx512f -mavx512bw -mavx512vl -mavx512dq", "avx512f")}

# x[i] = i: what a function picks shows where it read. `bad` counts wrong elements, and those that were touched too.
CHECKS = r"""
#include <sys/mman.h>
#include <unistd.h>
#include "%s"
#define L %d
#define JOIN(a, b) a##b
#define F(name, l) JOIN(name, l)
typedef %s vec;
static float x[4096], y[4096];
static int turned(int rows, int lanes, int whole) {
  int bad = 0;
  for (int i = 0; i < 4096; i++) y[i] = -1;
  if (whole) F(tw_turn, L)(x, 37, y, 41);
  else F(tw_turn_part, L)(x, 37, y, 41, rows, lanes);
  for (int u = 0; u <= L; u++)
    for (int l = 0; l <= L; l++) bad += y[u * 41 + l] != (u < rows && l < lanes ? x[l * 37 + u] : -1);
  return bad;
}
static int lanes_differ(vec got, int from, int step, int low, int high) {
  int bad = 0;
  for (int l = 0; l < L; l++) bad += got[l] != (l >= low && l < high ? x[from + l * step] : 0);
  return bad;
}
/* At the end of what may be touched. */
static int partial(float *end, int n) {
  float *p = end - n;
  int bad = 0;
  for (int i = 0; i < n; i++) p[i] = i + 1;
  p[-1] = -1;
  vec v = F(tw_load, L)(p, n);
  for (int l = 0; l < L; l++) bad += v[l] != (l < n ? l + 1 : 0);
  F(tw_store, L)(p, v + 1, n);
  for (int i = 0; i < n; i++) bad += p[i] != i + 2;
  return bad + (p[-1] != -1);
}
#define FIXED(n) { float *p = end - n; p[-1] = -1; for (int i = 0; i < n; i++) p[i] = 7; vec v = F(tw_load, L)(p, n); \
  F(tw_store, L)(p, v + 1, n); bad += v[n - 1] != 7 || (n < L && v[n] != 0) || p[0] != 8 || p[n - 1] != 8 || p[-1] != -1; }
int main(void) {
  for (int i = 0; i < 4096; i++) x[i] = i;
  const size_t page = sysconf(_SC_PAGESIZE);
  char *two = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (two == MAP_FAILED || mprotect(two + page, page, PROT_NONE)) return 2;
  float *end = (float *)(two + page);
  int bad = turned(L, L, 1);
  for (volatile int n = 1; n <= L; n++) bad += partial(end, n);
  FIXED(1) FIXED(2) FIXED(3) FIXED(4)
  for (int r = 1; r <= L; r++)
    for (int n = 1; n <= L; n++) bad += turned(r, n, 0);
  bad += lanes_differ(F(tw_even, L)(x + 5), 5, 2, 0, L);
  for (int n = 1; n <= L; n++) bad += lanes_differ(F(tw_even_part, L)(x + 5, n), 5, 2, 0, n);
  for (int low = 0; low <= L + 3; low++)
    for (int high = -3; high <= L; high++) bad += lanes_differ(F(tw_window, L)(x + 64, low, high), 64, 1, low, high);
  return bad != 0;
}
"""


@pytest.mark.compiler
@pytest.mark.parametrize("lanes", WIDTHS)
def test_turns_evens_windows_and_parts(lanes: int, tmp_path: Path) -> None:
    flags, feature = WIDTHS[lanes]
    if feature and feature not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"this processor has no {feature}")
    source, program = tmp_path / "check.c", tmp_path / "check"
    source.write_text(CHECKS % (PRELUDE, lanes, f"v{lanes}f"))
    compiler = find_compiler(os.environ)
    command = [*compiler.command, "-O1", *flags.split(), str(source), "-lm", "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    assert subprocess.run([str(program)]).returncode == 0
