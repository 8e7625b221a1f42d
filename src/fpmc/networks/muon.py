"""Muon (Jordan et al. 2024): every weight matrix moves along the orthogonal matrix nearest to its momentum.

Adam follows each weight alone, so that a few strong directions of a matrix rule its step; an orthogonal step has all of
them alike. Filters count as matrices, one row each; what is no matrix (biases, norms) is left to Adam. Steps are scaled
to the size of Adam's, so the same rate serves for both (Liu et al. 2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

LEAST = 8                                               # rows and columns of what is worth calling a matrix
ROUNDS = 5                                              # of Newton and Schulz's iteration
TERMS = (3.4445, -4.7750, 2.0315)                       # its odd polynomial, steep at 0
LIKE_ADAM = 0.2                                         # root mean square of a step of Adam, in rates


class Muon(torch.optim.Optimizer):
    """Orthogonal steps for matrices, Adam's for all else."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, *,
        momentum: float = 0.95, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    ) -> None:
        parameters = list(parameters)
        shared = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps}
        groups = [
            {"params": [each for each in parameters if is_matrix(each) == matrices], "matrices": matrices}
            for matrices in (True, False)
        ]
        super().__init__([group for group in groups if group["params"]], shared)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step for every parameter that has a gradient; a closure, which no training here has, is not called."""
        for group in self.param_groups:
            move = self._orthogonal if group["matrices"] else self._adam
            for parameter in group["params"]:
                if parameter.grad is not None:
                    move(parameter, parameter.grad, self.state[parameter], group)

    def _orthogonal(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        momentum = state.setdefault("momentum", torch.zeros_like(parameter))
        momentum.lerp_(gradient, 1 - group["momentum"])
        matrix = gradient.lerp(momentum, group["momentum"]).flatten(1)         # Nesterov's look ahead
        size = LIKE_ADAM * math.sqrt(max(matrix.shape))
        parameter.add_(orthogonal(matrix).reshape(parameter.shape), alpha=-group["lr"] * size)

    def _adam(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        first, second = (state.setdefault(name, torch.zeros_like(parameter)) for name in ("first", "second"))
        step = state.setdefault("step", torch.zeros((), dtype=torch.int64)).add_(1).item()
        for mean, value, beta in zip((first, second), (gradient, gradient.square()), group["betas"]):
            mean.lerp_(value, 1 - beta)
        fresh, fresh_square = (1 - beta**step for beta in group["betas"])
        parameter.addcdiv_(first, (second / fresh_square).sqrt_().add_(group["eps"]), value=-group["lr"] / fresh)


def is_matrix(parameter: Tensor) -> bool:
    """Whether its rows and columns are many enough to speak of directions."""
    return parameter.ndim >= 2 and min(len(parameter), parameter[0].numel()) >= LEAST


def orthogonal(matrix: Tensor) -> Tensor:
    """About U Vᵀ of its singular value decomposition: what is left of the singular values lies between 0.6 and 1.3."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / (wide.norm() + 1e-7)                  # the spectral norm is below the Frobenius norm
    for _ in range(ROUNDS):
        square = wide @ wide.T
        wide = TERMS[0] * wide + (TERMS[1] * square + TERMS[2] * square @ square) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
