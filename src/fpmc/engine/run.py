"""Carry out a plan: every step's passes over its source, merged at the seam, then the reduction."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from fpmc.engine.kernels.offer import Offer, Run
from fpmc.engine.plan import Plan
from fpmc.engine.reduce import Mean, Reduction
from fpmc.engine.reduce.reduction import Found
from fpmc.engine.state import State


class Alone:
    """One process has the whole source. Whoever splits it says which stretches are its own and how to merge."""

    def stretches(self, count: int) -> list[tuple[int, int]]:
        """Of `count` images those that are ours, as ranges."""
        return [(0, count)]

    def states(self, state: State) -> State:
        """Ours merged with those of all others: the seam between the two passes."""
        return state

    def sums(self, sums: Tensor) -> Tensor:
        """Ours added to those of all others."""
        return sums


def evaluate(plan: Plan, z: Tensor, reduction: Reduction, total: Tensor, team: Alone | None = None) -> Any:
    """The reduction of the posterior of z (B, C, H, W); total is Σ_ℓ r_ℓ over all groups (C, H, W)."""
    return reduction.finish(find(plan, z, reduction, total, team), total.to(z))


def find(
    plan: Plan, z: Tensor, reduction: Reduction, total: Tensor, team: Alone | None = None,
    states: dict[tuple[int, ...], State] | None = None,
) -> list[Found]:
    """What each step finds; with `states`, log-sums that are known already, only the second pass is made."""
    found = []
    for step in plan.steps:
        members = tuple(plan.groups[index] for index in step.groups)
        parts = z.split(step.batch) if step.batch else [z]
        known = (states or {}).get(step.groups)
        runs = (step.start(members, part, reduction, total) for part in parts)
        passed = [passes(step, run, team or Alone(), known) for run in runs]
        sums = [torch.cat(each) for each in zip(*(found for found, _ in passed))] if len(parts) > 1 else passed[0][0]
        found.append(Found(members, step.groups, sums, passed[0][1] if len(parts) == 1 else None))
    return found


def passes(step: Offer, run: Run, team: Alone, known: State | None) -> tuple[Any, State | None]:
    """One pass over the source, or two with the merged state between them."""
    if run.count == 0:
        return run.close(None, None), None
    mine = team.stretches(run.count)
    state = known or team.states(reduce(State.merge, (run.first(*each) for each in mine)))
    if run.passes == 1:
        return run.close(state, None), state
    sums = team.sums(reduce(torch.add, (run.second(*each, state) for each in mine)))
    return run.close(state, sums), state


def denoise(plan: Plan, z: Tensor, total: Tensor, team: Alone | None = None) -> Tensor:
    """D_FPMC(z, σ) (Eq. "fpmc_denoiser")."""
    return evaluate(plan, z, Mean(), total, team)
