"""What was worked out already, by question, within a bound of bytes: the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import Tensor

from fpmc.explore.path import Path

T = TypeVar("T")
MOST = 512 << 20                                        # bytes of all answers and states that are kept
ENTRY = 64                                              # bytes of a number, or of what a text or an array has around it


class Kept:
    """Answers of any kind by their questions; one that alone exceeds the bound is given, but not kept."""

    def __init__(self, most: int = MOST) -> None:
        self.most, self.bytes = most, 0
        self.entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What was made before, or made now."""
        if (found := self.known(key)) is not None:
            return found
        made = make()                                   # may itself ask for other entries
        self.entries[key] = made, size(made)
        self.bytes += self.entries[key][1]
        while self.bytes > self.most:
            self.drop(next(iter(self.entries)))
        return made

    def known(self, key: Hashable) -> Any:
        """What was made before, or None."""
        if key not in self.entries:
            return None
        self.entries.move_to_end(key)
        return self.entries[key][0]

    def drop(self, key: Hashable) -> None:
        """Forget it, if it is there."""
        _, count = self.entries.pop(key, (None, 0))
        self.bytes -= count

    def drop_if(self, unwanted: Callable[[Any], bool]) -> None:
        """Forget all that is unwanted."""
        for key in [key for key, (value, _) in self.entries.items() if unwanted(value)]:
            self.drop(key)


def size(value: Any) -> int:
    """Bytes of the arrays and texts in an answer; of a path those it will have in the end."""
    if isinstance(value, Path):
        return value.bytes
    if isinstance(value, Tensor):
        return value.numel() * value.element_size() + ENTRY
    if isinstance(value, dict):
        return sum(size(each) for each in value.values()) + ENTRY * (len(value) + 1)
    if isinstance(value, list | tuple):
        return sum(size(each) for each in value) + ENTRY
    return ENTRY + (len(value) if isinstance(value, str) else 0)
