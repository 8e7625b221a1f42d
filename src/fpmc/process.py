"""Affine Gaussian processes z = α(t)·x + σ(t)·ε and their time grids (Sec. 2).

The core of the library knows α = 1 only. Every process here reduces to it exactly, D_{α,σ}(z) = D(z/α, σ/α), because
dividing z by α changes neither the posterior nor its mean.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fpmc.errors import InputError
from fpmc.gate import check_steps

Denoiser = Callable[[Tensor, "float | Tensor"], Tensor]  # (z, sigma) -> x0, with alpha = 1


class Process(ABC):
    """A forward process; times are floats or (B,) tensors, coefficients float64 tensors of the same shape."""

    @abstractmethod
    def alpha(self, t: float | Tensor) -> Tensor:
        """What is left of the image at time t."""

    @abstractmethod
    def sigma(self, t: float | Tensor) -> Tensor:
        """The standard deviation of the noise at time t."""

    @abstractmethod
    def time(self, level: float | Tensor) -> Tensor:
        """The time t at which σ(t)/α(t) is `level`: where this process has the core's noise level."""

    @abstractmethod
    def grid(self, steps: int) -> Tensor:  # (steps,), noisiest first, without the final clean time
        """The times a sampler visits by default."""

    def level(self, t: float | Tensor) -> Tensor:
        """σ(t)/α(t), the noise level of the α = 1 process this one reduces to."""
        return self.sigma(t) / self.alpha(t)

    def noise(self, x: Tensor, t: float | Tensor, eps: Tensor) -> Tensor:  # all (B, C, H, W)
        """z = α(t)·x + σ(t)·ε, a draw of p_t(z | x) (Sec. 2)."""
        return _like(self.alpha(t), x) * x + _like(self.sigma(t), x) * eps

    def denoise(self, denoiser: Denoiser, z: Tensor, t: float | Tensor) -> Tensor:
        """The posterior mean of x given z at time t, by the exact reduction D(z/α, σ/α)."""
        level = self.level(t)
        if not bool(level.isfinite().all()):
            raise InputError(f"at t={t} no image is left (alpha=0) and z/alpha is undefined; use an earlier time")
        return denoiser(z / _like(self.alpha(t), z), level.to(z.device, z.dtype) if level.ndim else level.item())

    def epsilon(self, x0: Tensor, z: Tensor, t: float | Tensor) -> Tensor:
        """The noise (z − α·x0)/σ that a denoised image implies."""
        return (z - _like(self.alpha(t), z) * x0) / _like(self.sigma(t), z)

    def score(self, x0: Tensor, z: Tensor, t: float | Tensor) -> Tensor:
        """∇ log p_t(z) = (α·x0 − z)/σ², Tweedie's formula (Eq. 4)."""
        return -self.epsilon(x0, z, t) / _like(self.sigma(t), z)


@dataclass(frozen=True)
class EDM(Process):
    """α = 1, σ = t: the process of the paper and of the core."""

    def alpha(self, t: float | Tensor) -> Tensor:
        return torch.ones_like(_times(t))

    def sigma(self, t: float | Tensor) -> Tensor:
        return _times(t)

    def time(self, level: float | Tensor) -> Tensor:
        return _times(level)

    def grid(self, steps: int) -> Tensor:
        return edm_grid(steps)


@dataclass(frozen=True)
class Flow(Process):
    """α = 1 − t, σ = t: flow matching along straight lines from image (t = 0) to noise (t = 1)."""

    def alpha(self, t: float | Tensor) -> Tensor:
        return 1 - self.sigma(t)

    def sigma(self, t: float | Tensor) -> Tensor:
        return _within(_times(t), 0, 1)

    def time(self, level: float | Tensor) -> Tensor:
        level = _times(level)
        return level / (1 + level)

    def grid(self, steps: int) -> Tensor:
        return flow_grid(steps)

    def velocity(self, x0: Tensor, z: Tensor, t: float | Tensor) -> Tensor:
        """dz/dt = ε − x0, what a flow-matching network predicts."""
        return self.epsilon(x0, z, t) - x0


@dataclass(frozen=True)
class VP(Process):
    """α = √ᾱ, σ = √(1 − ᾱ) over discrete times 0 … times−1, by the DDPM linear or the cosine schedule.

    Times between two integers interpolate log(σ/α) linearly, so that every noise level in range has its time.
    """

    schedule: Literal["linear", "cosine"] = "linear"
    times: int = 1000
    beta_min: float = 1e-4
    beta_max: float = 0.02

    def __post_init__(self) -> None:
        if self.schedule not in ("linear", "cosine"):
            raise InputError(f"no VP schedule {self.schedule!r}; choose 'linear' or 'cosine'")
        if self.times < 2 or not 0 < self.beta_min <= self.beta_max < 1:
            raise InputError(
                f"VP needs times >= 2 and 0 < beta_min <= beta_max < 1, not times={self.times}, "
                f"beta_min={self.beta_min}, beta_max={self.beta_max}"
            )

    @cached_property
    def log_levels(self) -> Tensor:  # (times,) log(σ/α), increasing
        if self.schedule == "linear":
            beta = torch.linspace(self.beta_min, self.beta_max, self.times, dtype=torch.float64)
        else:  # Nichol and Dhariwal: ᾱ(u) = cos²((u + s)/(1 + s)·π/2), β capped at 0.999
            u = torch.arange(self.times + 1, dtype=torch.float64) / self.times
            bar = torch.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2
            beta = (1 - bar[1:] / bar[:-1]).clamp(max=0.999)
        log_bar = torch.log1p(-beta).cumsum(0)
        return 0.5 * (torch.log(-torch.expm1(log_bar)) - log_bar)

    def level(self, t: float | Tensor) -> Tensor:
        t = _within(_times(t), 0, self.times - 1)
        below = t.floor().long().clamp(max=self.times - 2)
        low, high = self.log_levels[below], self.log_levels[below + 1]
        return torch.exp(low + (t - below) * (high - low))

    def alpha(self, t: float | Tensor) -> Tensor:
        return torch.rsqrt(1 + self.level(t) ** 2)

    def sigma(self, t: float | Tensor) -> Tensor:
        return self.level(t) * self.alpha(t)

    def time(self, level: float | Tensor) -> Tensor:
        log_level = _within(_times(level).log(), self.log_levels[0].item(), self.log_levels[-1].item())
        below = torch.searchsorted(self.log_levels, log_level, right=True).sub(1).clamp(0, self.times - 2)
        low, high = self.log_levels[below], self.log_levels[below + 1]
        return below + (log_level - low) / (high - low)

    def grid(self, steps: int) -> Tensor:
        return ddim_grid(steps, times=self.times)

    def velocity(self, x0: Tensor, z: Tensor, t: float | Tensor) -> Tensor:
        """v = α·ε − σ·x0, what a v-prediction network predicts."""
        return _like(self.alpha(t), z) * self.epsilon(x0, z, t) - _like(self.sigma(t), z) * x0


def edm_grid(
    steps: int = 18,
    *,
    sigma_min: float = 0.002,
    sigma_max: float = 80,
    rho: float = 7,
) -> Tensor:  # (steps,) float64, from sigma_max down to sigma_min
    """EDM's noise levels, evenly spaced in σ^(1/ρ) (App. C.4; the t column of the schedule tables)."""
    check_steps(steps)
    if not 0 < sigma_min < sigma_max < math.inf:
        raise InputError(f"need 0 < sigma_min < sigma_max, got sigma_min={sigma_min}, sigma_max={sigma_max}")
    if not 0 < rho < math.inf:
        raise InputError(f"rho must be positive, got {rho}; EDM uses 7")
    ramp = torch.linspace(0, 1, steps, dtype=torch.float64)
    grid = (sigma_max ** (1 / rho) + ramp * (sigma_min ** (1 / rho) - sigma_max ** (1 / rho))) ** rho
    grid[0] = sigma_max  # the power and its inverse cancel only to rounding
    if steps > 1:
        grid[-1] = sigma_min
    return grid


def ddim_grid(
    steps: int = 50,
    *,
    times: int = 1000,
    spacing: Literal["trailing", "leading", "linspace"] = "trailing",
) -> Tensor:  # (steps,) float64 holding integers, decreasing
    """DDIM's subset of the discrete times; trailing starts at the last one, where sampling from pure noise belongs."""
    check_steps(steps)
    if steps > times:
        raise InputError(f"steps={steps} is more than the {times} times of the process")
    count = torch.arange(steps, dtype=torch.float64)
    if spacing == "trailing":
        return torch.round(times - count * (times / steps)) - 1
    if spacing == "leading":
        return (steps - 1 - count) * (times // steps)
    if spacing == "linspace":
        return torch.linspace(0, times - 1, steps, dtype=torch.float64).round().flip(0)
    raise InputError(f"no spacing {spacing!r}; choose 'trailing', 'leading' or 'linspace'")


def flow_grid(
    steps: int = 50,
    *,
    t_max: float = 0.999,
    t_min: float = 0.001,
    shift: float = 1,
) -> Tensor:  # (steps,) float64, decreasing
    """Evenly spaced flow times with the resolution shift s·t/(1 + (s−1)·t); α(1) = 0, so they start just below 1."""
    check_steps(steps)
    if not 0 < t_min < t_max <= 1 or not shift > 0:
        raise InputError(f"need 0 < t_min < t_max <= 1 and shift > 0, got t_min={t_min}, t_max={t_max}, shift={shift}")
    t = torch.linspace(t_max, t_min, steps, dtype=torch.float64)
    return shift * t / (1 + (shift - 1) * t)


def _times(t: float | Tensor) -> Tensor:
    return torch.as_tensor(t, dtype=torch.float64, device="cpu")


def _within(t: Tensor, low: float, high: float) -> Tensor:
    slack = 1e-9 * max(1.0, abs(low), abs(high))  # a level computed elsewhere may miss the end by rounding
    if not bool(((t >= low - slack) & (t <= high + slack)).all()):
        raise InputError(f"{t.tolist()} lies outside this process, which runs from {low:.6g} to {high:.6g}")
    return t.clamp(low, high)


def _like(value: Tensor, z: Tensor) -> Tensor:
    """A scalar or (B,) coefficient, ready to multiply z (B, C, H, W)."""
    return value.to(z.device, z.dtype).reshape(value.shape + (1,) * (z.ndim - 1 if value.ndim else 0))
