"""Carry out a plan: every step's passes over its source, merged at the seam, then the reduction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fpmc.engine.kernels.offer import Offer, Run
from fpmc.engine.plan import Plan
from fpmc.engine.reduce import Mean, Reduction
from fpmc.engine.reduce.reduction import Found, Part
from fpmc.engine.state import State

if TYPE_CHECKING:
    from fpmc.core.sources import Measure


class Alone:
    """One process has the whole source. Whoever splits it says which stretches are its own, and gathers.

    Members of a team make the same calls in the same order. What they merge is merged in their order by each of them,
    so that all have the same answer, and how many they are changes nothing beyond rounding.
    """

    def stretches(self, count: int) -> list[tuple[int, int]]:
        """Of `count` images those that are ours, as ranges."""
        return [(0, count)]

    def threads(self) -> int:
        """As many threads as every member has at least."""
        return torch.get_num_threads()

    def asked(self, what: str, *tensors: Tensor) -> None:
        """What every member must be asked alike; said before anything is gathered."""

    def gathered(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """These tensors of every member, in the members' order."""
        return [tensors]

    def states(self, states: Sequence[State]) -> list[State]:
        """Ours merged with those of all others: the seam between the two passes."""
        every = [iter(each) for each in self.gathered([getattr(s, name) for s in states for name in s.sums])]
        return [
            reduce(State.merge, [replace(state, **{name: next(each) for name in state.sums}) for each in every])
            for state in states
        ]

    def sums(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """Ours added to those of all others."""
        every = self.gathered(sums)
        if len(every) == 1:
            return list(every[0])
        return [reduce(torch.add, (part.double() for part in parts)).to(parts[0].dtype) for parts in zip(*every)]


def ours(source: Measure, count: int, team: Alone) -> list[tuple[int, int]]:
    """Our stretch of each set of images of a source: an image is with the same member in all sources."""
    found, start = [], 0
    for length in [len(part) for part in getattr(getattr(source, "base", source), "parts", ())] or [count]:
        for begin, end in team.stretches(length):
            if found and found[-1][1] == start + begin:
                found[-1] = found[-1][0], start + end
            else:
                found.append((start + begin, start + end))
        start += length
    return found


def evaluate(plan: Plan, z: Tensor, reduction: Reduction, total: Tensor, team: Alone | None = None) -> Any:
    """The reduction of the posterior of z (B, C, H, W); total is Σ_ℓ r_ℓ over all groups (C, H, W)."""
    return reduction.finish(find(plan, z, reduction, total, team), total.to(z))


@contextmanager
def whole_products(device: torch.device) -> Iterator[None]:
    """Products of float32 in float32: told to be quick, a GPU leaves ten bits of them, and logits need all."""
    matmul: Any = torch.backends.cuda.matmul
    try:
        before: Any
        before, put, exact = torch.get_float32_matmul_precision(), torch.set_float32_matmul_precision, "highest"
    except RuntimeError:                                # it was set by its newer name, and has to be again
        before, put, exact = matmul.fp32_precision, partial(setattr, matmul, "fp32_precision"), "ieee"
    if device.type == "cpu" or before == exact:
        yield
        return
    put(exact)
    try:
        yield
    finally:
        put(before)


class Job(NamedTuple):
    """A step at work on some noisy images."""

    step: Offer
    z: Tensor                                           # (B, C, H, W)
    run: Run
    ours: list[tuple[int, int]]                         # stretches of its source
    known: State | None                                 # log-sums over all images, if somebody has them already


def find(
    plan: Plan, z: Tensor, reduction: Reduction, total: Tensor, team: Alone | None = None,
    states: dict[tuple[int, ...], State] | None = None,
) -> list[Found]:
    """What each step finds; with `states`, log-sums that are known already, only the second pass is made.

    Steps that take all noisy images at once go together, so that their states are gathered at once, too.
    """
    team = team or Alone()
    team.asked(" ".join([f"{plan.sigma!r} {reduction.wants}", *map(_identity, plan.steps)]), z)
    passed: list[list[tuple[Any, State | None]]] = [[] for _ in plan.steps]

    def job(step: Offer, part: Tensor) -> Job:
        members = tuple(plan.groups[index] for index in step.groups)
        run = step.start(members, part, reduction, total)
        return Job(step, part, run, ours(members[0].source, run.count, team), (states or {}).get(step.groups))

    rounds = [[(place, z) for place, step in enumerate(plan.steps) if step.batch is None]]
    for place, step in enumerate(plan.steps):
        rounds += [[(place, part)] for part in (z.split(step.batch) if step.batch else ())]
    for each in rounds:
        with whole_products(z.device):
            found = passes([job(plan.steps[place], part) for place, part in each], reduction, team)
        for (place, _), one in zip(each, found):
            passed[place].append(one)
    return [_found(plan, step, each) for step, each in zip(plan.steps, passed)]


def _found(plan: Plan, step: Offer, passed: list[tuple[Any, State | None]]) -> Found:
    members, one = tuple(plan.groups[index] for index in step.groups), len(passed) == 1
    sums = passed[0][0] if one else [torch.cat(each) for each in zip(*(sums for sums, _ in passed))]
    return Found(members, step.groups, sums, passed[0][1] if one else None)


def _identity(step: Offer) -> str:
    """A step but for what machines may differ in."""
    return f"{step.backend} {step.kernel} {step.respond} {step.estimators} {step.images} {step.batch} {step.groups}"


def passes(jobs: Sequence[Job], reduction: Reduction, team: Alone) -> list[tuple[Any, State | None]]:
    """One pass over the sources, or two with the merged states between them."""
    states = {place: job.known for place, job in enumerate(jobs) if job.run.count}
    fresh = [place for place, state in states.items() if state is None]
    own = [reduce(State.merge, (jobs[place].run.first(*each) for each in jobs[place].ours)) for place in fresh]
    states |= zip(fresh, team.states(own))
    twice = [place for place in states if jobs[place].run.passes == 2]
    sums = [_second(jobs[place], states[place], reduction) for place in twice]
    summed = dict(zip(twice, sums if reduction.by_image else team.sums(sums)))
    return [(job.run.close(states.get(k), summed.get(k)), states.get(k)) for k, job in enumerate(jobs)]


def _second(job: Job, state: State | None, reduction: Reduction) -> Tensor:
    """What our images add."""
    assert state is not None
    sums = reduce(torch.add, (job.run.second(*each, state) for each in job.ours))
    if sums.ndim or reduction.wants == "answers":
        return sums
    shape = len(job.z), 0, *job.z.shape[1:]             # no images add nothing, in the form that others have
    x, w, p = job.z[:0], job.z.new_zeros(shape), job.z.new_zeros(len(job.z), 0, job.step.estimators)
    return reduction.sums(Part(0, x, w, w, p))


def denoise(plan: Plan, z: Tensor, total: Tensor, team: Alone | None = None) -> Tensor:
    """D_FPMC(z, σ) (Eq. "fpmc_denoiser")."""
    return evaluate(plan, z, Mean(), total, team)
