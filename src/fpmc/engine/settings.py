"""What a user may ask of the engine, and what one call asks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from fpmc.errors import InputError
from fpmc.gate import whole


@cache
def has_numba() -> bool:
    """Numba is installed, so that the fused CPU kernels can run."""
    return find_spec("numba") is not None


@dataclass(frozen=True)
class Settings:
    """What a user may ask of the engine."""

    backend: Literal["auto", "numba", "torch"] = "auto"
    threads: int | None = None                          # None: as many as torch uses
    memory: int = 1 << 30                               # bytes to work in, with images in lanes
    resident: int = 4 << 30                             # bytes of images and masks that stay on a device, not the CPU
    chunk: int | None = None                            # images at a time in torch; None: what fits in `memory`
    exact: bool = False                                 # keep every image, however small its posterior
    tolerance: float = 1e-7                             # share of each posterior that may be passed over otherwise
    nats: float = 1e-4                                  # what left-out entries of q may move a logit by otherwise
    kernels: tuple[str, ...] | None = None              # only these may make an offer; None: all

    def __post_init__(self) -> None:
        if self.backend not in ("auto", "numba", "torch"):
            raise InputError(f"backend {self.backend!r} is unknown; use 'auto', 'numba' or 'torch'")
        if self.backend == "numba" and not has_numba():
            raise InputError("backend 'numba' needs the numba package; install it, or use 'auto' or 'torch'")
        if self.threads is not None and (whole(self.threads) is None or self.threads < 1):
            raise InputError(f"threads {self.threads}: a whole number from 1 on is needed")
        if whole(self.memory) is None or self.memory < 1 << 20:
            raise InputError(f"memory {self.memory!r} bytes is too little to work in; give at least 1 MiB (1048576)")
        if whole(self.resident) is None or self.resident < 0:
            raise InputError(f"resident {self.resident!r}: a device keeps 0 bytes of images or more; 0 keeps none")
        if self.chunk is not None and (whole(self.chunk) is None or self.chunk < 1):
            raise InputError(f"chunk {self.chunk}: a whole number of images at a time, from 1 on")
        if not 0 < self.nats < 1:
            raise InputError(f"nats {self.nats} is not in (0, 1); exact=True leaves out no entry of q")
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance {self.tolerance} is not in (0, 1); exact=True keeps everything")


@dataclass(frozen=True)
class Call:
    """What is asked: noise level, batch, number format, device, gradients, and how far z reaches."""

    sigma: float
    batch: int = 1
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    gradients: bool = False
    far: int = 0                                        # z goes beyond what is usual by this power of two

    @classmethod
    def of(cls, z: Tensor, sigma: float, gradients: bool = False) -> Call:
        """The call that D(z, σ) is."""
        most = z.detach().abs().max().item() if len(z) else 0.0
        usual = cls(sigma).reach
        far = max(0, math.ceil(math.log2((1.0 + most) / usual))) if math.isfinite(most) else 0
        return cls(sigma, len(z), z.dtype, z.device.type, gradients, far)

    @property
    def reach(self) -> float:
        """z − x is nowhere larger: images are in [−1, 1], noise hardly ever exceeds 6 σ."""
        return (2.0 + 6.0 * self.sigma) * 2.0**self.far
