"""A sample on its way: the state z and the answer D(z, σ) at every noise level, worked out one call at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fpmc.process import Denoiser
from fpmc.sampling import heun, initial_noise, levels_of

STEPS = 18                                              # EDM's grid (App. C.4)
GRID = levels_of(STEPS)


class Path:
    """Heun's method as `fpmc.sample` runs it, but with D(z, σ) of every level kept, and stoppable after any call."""

    def __init__(self, denoiser: Denoiser, z: Tensor, levels: Sequence[float], device: str = "cpu") -> None:
        self.denoiser, self.device = denoiser, device
        self.levels = tuple(levels)                     # decreasing, the last is 0
        self.states = [z.detach().to("cpu", torch.float64)]     # z at level k, (1, C, H, W)
        self.answers: list[Tensor] = []                 # D(z, σ) at level k, float32, as it is answered

    @property
    def bytes(self) -> int:
        """What its states and answers take once all are there."""
        return self.length * self.states[0].numel() * (8 + 4)

    @property
    def length(self) -> int:
        """How many noise levels have an answer in the end."""
        return len(self.levels) - 1

    def advance(self) -> bool:
        """Make one more level's answer ready; False if all are. At most two calls of the denoiser."""
        done = len(self.answers)
        if done == self.length:
            return False
        if done == len(self.states):                    # the answer of the last level is there, its step is not
            self.states.append(heun(self._slope, self.states[-1], self.levels[done - 1], self.levels[done]))
        self.answers.append(self._call(self.states[-1], self.levels[done]))
        return True

    def upto(self, level: int) -> tuple[Tensor, Tensor]:
        """z and D(z, σ) at a level, float32 (1, C, H, W)."""
        while len(self.answers) <= level:
            self.advance()
        return self.states[level].float(), self.answers[level]

    def _call(self, z: Tensor, sigma: float) -> Tensor:
        with torch.no_grad():
            return self.denoiser(z.to(self.device, torch.float32), sigma).to("cpu", torch.float32)

    def _slope(self, z: Tensor, sigma: float) -> Tensor:
        known = z is self.states[-1] and len(self.answers) == len(self.states)
        return (z - (self.answers[-1] if known else self._call(z, sigma))) / sigma


def from_seed(seed: int, shape: tuple[int, int, int]) -> tuple[Tensor, tuple[float, ...]]:
    """Pure noise and the noise levels from there, as `fpmc.sample` begins."""
    return GRID[0] * initial_noise([seed], shape), GRID


def below(sigma: float) -> tuple[float, ...]:
    """The noise levels from σ down: σ itself, and those of the grid that lie well below it."""
    return (sigma, *(level for level in GRID if level < 0.98 * sigma))
