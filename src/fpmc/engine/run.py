"""Carry out a plan: numerators of all groups, divided by the total response (Eq. "fpmc_denoiser")."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fpmc.engine import affine, torch_kernels
from fpmc.engine.plan import Plan
from fpmc.group import Group


def denoise(groups: Sequence[Group], plan: Plan, z: Tensor, total: Tensor) -> Tensor:
    """D_FPMC(z, σ): groups as the plan saw them, z (B, C, H, W), total Σ_ℓ r_ℓ over all groups."""
    numerator = torch.zeros((), dtype=z.dtype, device=z.device)
    for group, step in zip(groups, plan.steps, strict=True):
        kernel = affine.numerator if step.kernel == "affine" else torch_kernels.numerator
        numerator = numerator + kernel(group, step, z, plan.sigma)
    return numerator / total.to(z)
