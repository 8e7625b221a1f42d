"""Carry out a plan: numerators of all groups, divided by the total response (Eq. "fpmc_denoiser")."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fpmc.engine import affine, torch_kernels
from fpmc.engine.plan import Plan, Step
from fpmc.group import Group


def denoise(groups: Sequence[Group], plan: Plan, z: Tensor, total: Tensor) -> Tensor:
    """D_FPMC(z, σ): groups as the plan saw them, z (B, C, H, W), total Σ_ℓ r_ℓ over all groups."""
    numerator = torch.zeros((), dtype=z.dtype, device=z.device)
    for group, step in zip(groups, plan.steps, strict=True):
        numerator = numerator + _kernel(step)(group, step, z, plan.sigma)
    return numerator / total.to(z)


def _kernel(step: Step) -> Callable[[Group, Step, Tensor, float], Tensor]:
    if step.backend == "numba":
        from fpmc.engine import cpu  # numba takes a second to import

        return cpu.numerator
    return affine.numerator if step.kernel == "affine" else torch_kernels.numerator
