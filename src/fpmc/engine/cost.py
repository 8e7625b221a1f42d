"""One cost model: nanoseconds per operation of each kind, for each type of device.

Plans compare offers by it, gradients choose their way by it, and long runs are predicted by it. For the CPU they were
measured by `benchmarks/costs.py`, one thread of one machine; `machine_factor` tells how this machine compares, for
predictions. For CUDA they are predicted from what the maker says that an A100 reaches. Decisions never depend on the
machine: for one type of device a plan is the same everywhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

PRODUCT = 1024                                          # size of the matrix product machines are compared by


@dataclass(frozen=True)
class Costs:
    """What operations take on one type of device."""

    measured: bool                                      # else predicted from published figures
    machine: str                                        # which it was measured on, or is predicted for
    note: str                                           # how
    nanoseconds: Mapping[str, float]                    # by kind; "product" is a multiply-add of a large matrix product


@cache
def every() -> dict[str, Costs]:
    """{type of device: its costs}."""
    found = json.loads(Path(__file__).with_name("costs.json").read_text(encoding="utf-8"))
    return {device: Costs(**each) for device, each in found.items()}


def of(device: str) -> Costs:
    """The costs of a type of device; whatever is not the CPU and has none of its own is taken for a GPU."""
    return every().get(device, every()["cuda"])


def nanoseconds(device: str = "cpu") -> Mapping[str, float]:
    """{kind of operation: ns}."""
    return of(device).nanoseconds


def seconds(counts: Mapping[str, float], device: str = "cpu") -> float:
    """So many operations, on one thread where it has threads."""
    known = nanoseconds(device)
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
