"""How the benchmarks here take time."""

from __future__ import annotations

import resource
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


def spent(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds of one call; the latter of all threads."""
    wall, processors = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - processors


def peak() -> float:
    """GiB this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
