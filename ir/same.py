"""Trees as keys of what is remembered about them: by identity, for hashing a tree costs more than most of its uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Same(Generic[T]):
    """Equal to what holds the very same object, which it keeps alive, so that no identity is used twice."""

    it: T

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)
