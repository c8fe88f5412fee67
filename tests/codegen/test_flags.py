"""Correct C that a compiler got wrong: the flags must keep it right."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from codegen.toolchain import find_compiler, flags
from ir.target import Target

# gcc 12.2 -O2 reads local[4] for local[i * 4 + j * 2] in the first branch too: in the second the index is 4 (at least
# 4 by the condition, at most 4 by the size of the array), and -ftree-vrp takes that for a property of the value.
LEAKING_RANGE = """
void run(float *restrict out, const float *restrict in) {
  float local[5];
  local[0] = in[0]; local[1] = in[1]; local[2] = in[2]; local[3] = in[3]; local[4] = in[4];
  for (long i = 0; i < 2; i++) {
    for (long j = 0; j < (i ? 1 : 2); j++) {
      if (i * 4 + j * 2 + 2 <= 5) {
        float *p = out + (i * 4 + j * 2);
        p[0] = local[i * 4 + j * 2];
        p[1] = local[i * 4 + j * 2 + 1];
      } else {
        float *p = out + (i * 4 + j * 2);
        p[0] = local[i * 4 + j * 2];
      }
    }
  }
}
"""


@pytest.mark.compiler
def test_the_range_of_an_index_stays_in_its_branch(tmp_path: Path) -> None:
    source, binary = tmp_path / "range.c", tmp_path / "range.so"
    source.write_text(LEAKING_RANGE)
    subprocess.run([*find_compiler(os.environ).command, *flags(Target()), "-o", binary, source], check=True)
    given, got = (ctypes.c_float * 5)(1, 2, 3, 4, 5), (ctypes.c_float * 5)()
    ctypes.CDLL(str(binary)).run(got, given)
    assert list(got) == [1, 2, 3, 4, 5]
