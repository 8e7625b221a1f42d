"""What a denoiser call costs on this machine, beside what the machine can do, and how exact it is."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Precisions
from fpmc.core.response import Responses
from fpmc.core.sources import Source, Translations
from fpmc.engine import Call, Plan, cost
from fpmc.images import ImageSet

GEMM = 2048                                             # size of the square matrix product all times are compared with


@dataclass(frozen=True)
class Machine:
    """What this machine reaches, measured in the same run."""

    gemm_seconds: float                                 # one float32 product of GEMM×GEMM matrices
    gemm_gflops: float
    copy_gb: float                                      # memory copied per second, read and written
    threads: int
    name: str                                           # of the processor or GPU
    torch: str                                          # its version, with the CUDA it was built for


@dataclass(frozen=True)
class Cost:
    """One denoiser at one noise level."""

    method: str
    sigma: float
    kernel: str
    estimators: int
    seconds: float                                      # per noisy image and call
    predicted: float                                    # by the costs that plans are made by
    gemms: float                                        # the same in products of GEMM×GEMM matrices
    error: float                                        # largest deviation from float64, on `checked` images
    checked: int
    peak_memory: float | None                           # MiB beyond what the process held before
    gflops: float                                       # of the operations the plan counts
    dense_ratio: float | None                           # a plain dense evaluation takes so many times as long


def measure_machine(device: str = "cpu") -> Machine:
    """Time a matrix product of known size and a copy; the best of a few, since other work only ever slows them."""
    a, b = torch.rand(GEMM, GEMM, device=device), torch.rand(GEMM, GEMM, device=device)
    product = best_of(lambda: (a @ b)[0, 0].item(), 5)  # a number of it: a GPU is waited for
    source = torch.rand(1 << 26, device=device)
    target = torch.empty_like(source)
    copy = best_of(lambda: target.copy_(source)[0].item(), 3)
    built = f"{torch.__version__}, CUDA {torch.version.cuda or 'absent'}"
    return Machine(
        product, 2e-9 * GEMM**3 / product, 8e-9 * len(source) / copy, torch.get_num_threads(), name_of(device), built
    )


def name_of(device: str) -> str:
    """What the maker calls it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def predicted(plan: Plan, device: str) -> float:
    """Seconds per noisy image: on this machine's CPU, or on the GPU that costs are predicted for."""
    return plan.seconds / plan.batch * (cost.machine_factor() if torch.device(device).type == "cpu" else 1.0)


def benchmark(
    make: Callable[[ImageSet], FPMC],
    images: ImageSet,
    held_out: ImageSet,
    sigmas: list[float],
    *,
    machine: Machine,
    batch: int = 8,
    repeats: int = 2,
    checked: int = 1000,
    compare_dense: bool = True,
    seed: int = 0,
    device: str = "cpu",
) -> Iterator[Cost]:
    """Time one method at each noise level on noisy held-out images; a row as soon as it is measured.

    The error is that of the same method on the first `checked` images, against the float64 engine, which the tests
    bind to `fpmc.reference`. The plain dense evaluation (every q and r a dense row, two matrix products) is timed on
    the same few images and scaled up.
    """
    denoiser, small = make(images), make(images.subset(slice(checked)))
    x = held_out.scaled(slice(batch))
    for sigma in sigmas:
        z = (x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))).to(device)
        plan = denoiser.at(sigma).plan(Call.of(z, sigma), denoiser.settings)
        step = plan.steps[0]
        denoiser(z[:1], sigma)                          # compile, lay out, build rows
        with _PeakMemory(device) as peak:
            seconds = best_of(lambda z=z, sigma=sigma: denoiser(z, sigma).cpu(), repeats) / batch
        error = (small(z, sigma) - small(z.double(), sigma)).abs().max().item()
        dense = _dense_seconds(small.at(sigma), z[:1], sigma) if compare_dense else None
        yield Cost(
            method=denoiser.name,
            sigma=sigma,
            kernel=f"{step.backend} {step.kernel}, {step.respond}",
            estimators=step.estimators,
            seconds=seconds,
            predicted=predicted(plan, device),
            gemms=seconds / machine.gemm_seconds,
            error=error,
            checked=min(checked, len(images)),
            peak_memory=peak.mebibytes,
            gflops=2e-9 * step.work / seconds,
            dense_ratio=None if dense is None else dense * len(images) / min(checked, len(images)) / seconds,
        )


def _dense_seconds(collection: Collection, z: Tensor, sigma: float) -> float | None:
    """Every estimator as a dense row, in torch: what the equations say, with no structure used."""
    groups = []
    for group in collection.groups:
        if not isinstance(group.source, Source) or len(group) < 2 or isinstance(group.source, Translations):
            return None
        q, r = group.q.dense(), group.response()
        groups.append(Collection(Precisions(q), Responses(r), group.source).groups[0])
    plain = FPMC(Collection.of(*groups)).using(backend="torch")
    return best_of(lambda: plain(z, sigma), 1)


def best_of(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of a few calls."""
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


class _PeakMemory:
    """The largest memory of the GPU, or of the process (Linux only), in the block, beyond what it was at the start."""

    mebibytes: float | None = None

    def __init__(self, device: str) -> None:
        self.gpu = torch.device(device) if torch.device(device).type == "cuda" else None

    def __enter__(self) -> _PeakMemory:
        if self.gpu is not None:
            torch.cuda.reset_peak_memory_stats(self.gpu)
            self._start = torch.cuda.memory_allocated(self.gpu) / 2**20
            return self
        try:
            Path("/proc/self/clear_refs").write_text("5")
            self._start = _status("VmRSS")
        except OSError:
            self._start = None
        return self

    def __exit__(self, *_: object) -> None:
        if self.gpu is not None:
            self.mebibytes = torch.cuda.max_memory_allocated(self.gpu) / 2**20 - (self._start or 0.0)
        elif self._start is not None:
            self.mebibytes = max(0.0, _status("VmHWM") - self._start)


def _status(key: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise OSError(key)
