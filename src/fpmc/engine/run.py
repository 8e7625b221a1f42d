"""Carry out a plan: numerators of all groups, divided by the total response (Eq. "fpmc_denoiser")."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Full
from fpmc.engine import affine, torch_kernels
from fpmc.engine.plan import Plan, Step


def denoise(groups: Sequence[Group], plan: Plan, z: Tensor, total: Tensor) -> Tensor:
    """D_FPMC(z, σ): groups as the plan saw them, z (B, C, H, W), total Σ_ℓ r_ℓ over all groups."""
    numerator = torch.zeros((), dtype=z.dtype, device=z.device)
    for step in plan.steps:
        members = [groups[index] for index in step.groups]
        for group, answer in zip(members, _numerators(members, step, z, plan.sigma, apart=False)):
            weight = None if step.weighs else group.weight
            numerator = numerator + (answer if weight is None else weight.to(z) * answer)
    return numerator / total.to(z)


def answers(groups: Sequence[Group], plan: Plan, z: Tensor) -> list[Tensor]:
    """What each group would answer alone, (B, C, H, W)."""
    found: dict[int, Tensor] = {}
    for step in plan.steps:
        members = [groups[index] for index in step.groups]
        parts = _numerators(members, step, z, plan.sigma, apart=True)
        for index, group, answer in zip(step.groups, members, parts):
            found[index] = answer / group.r.total().to(z)
    return [found[index] for index in range(len(groups))]


def _numerators(members: Sequence[Group], step: Step, z: Tensor, sigma: float, *, apart: bool) -> list[Tensor]:
    if isinstance(members[0].q, Full):                  # kernels take q = 1: only q/σ² matters
        sigma = sigma / math.sqrt(members[0].q.value)
    if step.backend == "numba":
        from fpmc.engine import cpu  # numba takes a second to import

        return cpu.numerators(members, step, z, sigma, apart=apart)
    kernel = affine.numerator if step.kernel == "affine" else torch_kernels.numerator
    return [kernel(members[0], step, z, sigma)]
