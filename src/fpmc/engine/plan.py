"""What to compute and how: a pure function of the groups, the noise level and the machine, printable and testable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from fpmc.errors import InputError
from fpmc.group import Group
from fpmc.precision import Full, Squares
from fpmc.response import Partition, SameAsQ
from fpmc.sources import Gaussian, Translations

Kernel = Literal["affine", "full", "boxes", "matrix", "shifts"]
Respond = Literal["owned", "means", "mixed"]

EXPANSION_ERROR = 1e-4                                  # nats the expanded form of ‖z − x‖² may be off by
FEW = 8                                                 # estimators whose whole means are kept


@dataclass(frozen=True)
class Settings:
    """What a user may ask of the engine."""

    memory: int = 1 << 30                               # bytes for working arrays, beyond images and results
    chunk: int | None = None                            # images at a time; None: what fits in `memory`

    def __post_init__(self) -> None:
        if self.memory < 1 << 20:
            raise InputError(f"memory {self.memory} bytes is too little to work in; give at least 1 MiB (1048576)")
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk {self.chunk}: at least one image at a time")


@dataclass(frozen=True)
class Step:
    """How one group is evaluated."""

    kernel: Kernel
    respond: Respond
    estimators: int                                     # after merging
    merged: int                                         # before
    images: int
    chunk: int                                          # images at a time
    expanded: bool                                      # ‖z‖² − 2z·x + ‖x‖² is good enough here
    work: float                                         # multiply-adds per noisy image
    memory: int                                         # bytes of working arrays
    why: str
    others: tuple[tuple[str, float], ...] = ()          # what else would be exact, and its work

    def __str__(self) -> str:
        count = f"{self.estimators} estimators"
        if self.merged > self.estimators:
            count += f" (merged from {self.merged})"
        text = f"{self.kernel}, {self.respond}: {count}, {self.images} images, {self.chunk} at a time; {self.why}\n"
        text += f"    {self.work / 1e9:.3g} G multiply-adds per noisy image, {self.memory / 2**20:.0f} MiB"
        for name, work in self.others:
            text += f"\n    instead of {name}: {work / 1e9:.3g} G"
        return text


@dataclass(frozen=True)
class Plan:
    """How a collection is evaluated at one noise level."""

    sigma: float
    batch: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"sigma {self.sigma:g}, batch {self.batch}"]
        return "\n".join(lines + [f"  group {i}: {step}" for i, step in enumerate(self.steps)])


def make_plan(
    groups: Sequence[Group],
    sigma: float,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    settings: Settings | None = None,
) -> Plan:
    """The cheapest exact way for each group; groups are expected to be merged."""
    settings = settings or Settings()
    return Plan(sigma, batch, tuple(_step(group, sigma, batch, dtype, settings) for group in groups))


def _step(group: Group, sigma: float, batch: int, dtype: torch.dtype, settings: Settings) -> Step:
    channels, height, width = group.shape
    pixels = height * width
    dimension = channels * pixels
    length = len(group)
    respond: Respond = "owned" if isinstance(group.r, Partition) else "means" if length <= FEW else "mixed"
    passes = 2 if respond == "mixed" else 1

    if isinstance(group.source, Gaussian):
        work = 2.0 * dimension**2 if isinstance(group.q, Full) else float(dimension**2)
        return Step(
            "affine", respond, length, length, 0, 0, False, work, 8 * dimension**2,
            "a Gaussian source makes every estimator affine in z",
        )

    images = len(group.source.base) if isinstance(group.source, Translations) else len(group.source)
    expanded = False
    others: tuple[tuple[str, float], ...] = ()
    difference = float(dimension * images)
    if isinstance(group.source, Translations):
        kernel: Kernel = "shifts"
        k = group.source.size // 2
        inner = max(height - 2 * k, 1) * max(width - 2 * k, 1)
        work = images * float(inner) ** 2 * (channels + 4)
        row = 4 * dimension
        why = "a fixed displacement turns patch distances into box sums"
        others = (("every translated image on its own", images * float(inner) ** 2 * channels * group.source.size**2),)
    elif isinstance(group.q, Full):
        kernel = "full"
        expanded = _expanded_is_safe(dimension, sigma, dtype)
        work = 2 * difference
        row = dimension + 2 if expanded else 2 * dimension
        why = "all pixels count; " + ("one matrix product" if expanded else "direct differences, since σ is small")
    elif isinstance(group.q, Squares):
        kernel = "boxes"
        work = passes * (difference + pixels * images * (4 + (2 if respond == "mixed" else 0)))
        row = 2 * dimension + 3 * pixels
        why = "square patches are box sums of the squared differences, whatever their size"
        others = (("dense rows", passes * float(length) * pixels * images),)
    else:
        kernel = "matrix"
        span = group.q.channels * pixels
        work = passes * float(length) * span * images + difference
        row = 2 * dimension + 2 * length
        shared = group.q.channels == 1
        why = "q shared by the channels: squared differences summed over them first" if shared else "q per channel"
        if shared and channels > 1:
            others = (("one row per channel", passes * float(length) * dimension * images),)
    if respond == "mixed":
        why += "; two passes, since responses mix normalised posteriors" + (
            " (box sums again)" if isinstance(group.r, SameAsQ) and kernel == "boxes" else ""
        )
    bytes_per_image = batch * row * torch.finfo(dtype).bits // 8 + dimension * 8
    chunk = settings.chunk or max(1, min(images, settings.memory // bytes_per_image))
    return Step(
        kernel, respond, length, length, images, chunk, expanded, work, chunk * bytes_per_image, why, others
    )


def _expanded_is_safe(dimension: int, sigma: float, dtype: torch.dtype) -> bool:
    """Rounding of ‖z‖² + ‖x‖² in the logit stays below `EXPANSION_ERROR` nats, for z within a few σ of [−1, 1]."""
    norm = dimension * (2.0 + 2.0 * sigma**2)           # a bound on the mean of ‖z‖² + ‖x‖²
    return torch.finfo(dtype).eps * norm * math.sqrt(math.log2(dimension + 1)) / (2 * sigma**2) < EXPANSION_ERROR
