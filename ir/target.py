"""What we compile for. A record counts for one target only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A machine as the search sees it.

    kind: "cpu" (others follow). features: what the compiler is told, such as "avx512f". The number of threads is
    part of the target: records for one and two threads never mix. Cache sizes in bytes, per core where private.
    """

    kind: str = "cpu"
    arch: str = "x86_64"
    features: tuple[str, ...] = ()
    threads: int = 1
    vector_bytes: int = 64
    vector_registers: int = 32
    l1_bytes: int = 32768
    l2_bytes: int = 1048576
    l3_bytes: int = 16777216

    @property
    def key(self) -> str:
        """Stable text for records: what a measurement depends on, but for the machine itself."""
        return f"{self.kind}-{self.arch}-v{self.vector_bytes}-t{self.threads}"

    def lanes(self, dtype: str) -> int:
        from numpy import dtype as numpy_dtype

        return self.vector_bytes // numpy_dtype(dtype).itemsize
