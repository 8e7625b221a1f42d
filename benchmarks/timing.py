"""How the benchmarks here take time."""

from __future__ import annotations

import time
from collections.abc import Callable


def seconds(call: Callable[[], object], repeats: int = 3) -> float:
    """The best of a few calls after a first one, which compiles and lays out; other work only ever slows them."""
    call()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best
