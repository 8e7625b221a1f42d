"""One cost model: nanoseconds per operation of each kind, measured by `benchmarks/costs.py`.

Plans compare offers by it, gradients choose their way by it, and long runs are predicted by it. What is committed was
measured on one machine, one thread; `machine_factor` tells how this machine compares, for predictions. Decisions never
depend on it: a plan is the same everywhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

PRODUCT = 1024                                          # size of the matrix product machines are compared by


@cache
def nanoseconds() -> dict[str, float]:
    """{kind of operation: ns}; "product" is one multiply-add of a large matrix product."""
    return json.loads(Path(__file__).with_name("costs.json").read_text(encoding="utf-8"))["nanoseconds"]


def seconds(counts: Mapping[str, float]) -> float:
    """So many operations on one thread."""
    known = nanoseconds()
    return 1e-9 * sum(known[kind] * count for kind, count in counts.items())


@cache
def machine_factor() -> float:
    """How much slower this machine multiplies matrices than the one the costs were measured on, one thread each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.rand(PRODUCT, PRODUCT)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            _ = a @ a
            times.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return min(times) / PRODUCT**3 / (1e-9 * nanoseconds()["product"])
