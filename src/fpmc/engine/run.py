"""Carry out a plan: numerators of all groups, divided by the total response (Eq. "fpmc_denoiser")."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fpmc.engine import affine, torch_kernels
from fpmc.engine.plan import Plan, Step
from fpmc.group import Group


def denoise(groups: Sequence[Group], plan: Plan, z: Tensor, total: Tensor) -> Tensor:
    """D_FPMC(z, σ): groups as the plan saw them, z (B, C, H, W), total Σ_ℓ r_ℓ over all groups."""
    numerator = torch.zeros((), dtype=z.dtype, device=z.device)
    for step in plan.steps:
        members = [groups[index] for index in step.groups]
        answer = _answer(members, step, z, plan.sigma)
        weight = None if step.weighs else members[0].weight
        numerator = numerator + (answer if weight is None else weight.to(z) * answer)
    return numerator / total.to(z)


def _answer(members: Sequence[Group], step: Step, z: Tensor, sigma: float) -> Tensor:
    if step.backend == "numba":
        from fpmc.engine import cpu  # numba takes a second to import

        return cpu.numerator(members, step, z, sigma)
    kernel = affine.numerator if step.kernel == "affine" else torch_kernels.numerator
    return kernel(members[0], step, z, sigma)
