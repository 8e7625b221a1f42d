"""The model class: collections of filtered posterior means (Section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fpmc import engine
from fpmc.core.group import Group
from fpmc.core.precision import Precision, Precisions
from fpmc.core.response import Response, SameAsQ
from fpmc.core.response import of as response_of
from fpmc.core.sources import Measure, Source, as_source
from fpmc.engine import Alone, Call, Mean, Plan, Reduction, Settings
from fpmc.engine import settings as machine
from fpmc.engine.kernels.offer import Offer
from fpmc.errors import InputError, show
from fpmc.images import ImageSet

AnySource = ImageSet | Measure
PLANS = 8                                               # that a collection keeps


class Collection:
    """(Q, R, V): L estimators μ̂(z, t; q_ℓ, ν_ℓ) and their response weights (Eq. "fpmc_denoiser").

    q, r: tensors (L, C or 1, H, W) or structures; source: one for all estimators, or a sequence with one for each.
    """

    def __init__(self, q: Precision | Tensor, r: Response | Tensor, source: AnySource | Sequence[AnySource]) -> None:
        precision = q if isinstance(q, Precision) else Precisions(q)
        response = SameAsQ(precision) if r is q else r if isinstance(r, Response) else response_of(r, precision)
        if isinstance(source, Sequence) and not isinstance(source, ImageSet):
            self.groups = _by_source(precision, response, source)
        else:
            self.groups = (Group(precision, response, _as_member(source)),)
        self._check()

    @classmethod
    def of(cls, *groups: Group) -> Collection:
        """A collection of groups with different structures or sources."""
        self = cls.__new__(cls)
        self.groups = groups
        self._check()
        return self

    def _check(self) -> None:
        if wrong := [group for group in self.groups if not isinstance(group, Group)]:
            raise InputError(f"a collection is made of groups; got {show(wrong[0])}; make one with Group(q, r, source)")
        if len({group.shape for group in self.groups}) != 1:
            shapes = [group.shape for group in self.groups]
            raise InputError(f"the groups of a collection share one image shape, got {shapes or 'none'}")
        if bool((self.total <= 0).any()):
            where = tuple((self.total <= 0).nonzero()[0].tolist())
            raise InputError(f"no estimator responds at (channel, row, column) {where}: Σ r is 0 there; give r a value")

    def __len__(self) -> int:
        """The number of estimators L."""
        return sum(len(group) for group in self.groups)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        return self.groups[0].shape

    @cached_property
    def total(self) -> Tensor:
        """Σ_ℓ r_ℓ over all groups, float64 (C, H, W)."""
        return torch.stack([group.total().expand(self.shape) for group in self.groups]).sum(0)

    def plan(self, call: Call, settings: Settings | None = None, reduction: Reduction | None = None) -> Plan:
        """How this collection is evaluated; the same call has the same plan."""
        settings, reduction = settings or Settings(), reduction or Mean()
        key = call, settings, reduction.wants, torch.get_num_threads(), machine.has_numba(), len(Offer.known)
        if key not in self._plans:
            if len(self._plans) >= PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = engine.make_plan(self.groups, call, settings, reduction)
        return self._plans[key]

    @cached_property
    def _plans(self) -> dict[Any, Plan]:
        return {}

    def denoise(self, z: Tensor, sigma: float, settings: Settings | None = None, team: Alone | None = None) -> Tensor:
        """D_FPMC(z, σ) (Eq. "fpmc_denoiser") for one noise level, z (B, C, H, W)."""
        return self.reduce(Mean(), z, sigma, settings, team)

    def answers(
        self, z: Tensor, sigma: float, settings: Settings | None = None, team: Alone | None = None
    ) -> list[Tensor]:
        """What each group would answer alone, as if it were the whole collection: K times (B, C, H, W)."""
        with torch.no_grad():
            return self.reduce(Mean(apart=True), z, sigma, settings, team)

    def reduce(
        self, reduction: Reduction, z: Tensor, sigma: float, settings: Settings | None = None, team: Alone | None = None
    ) -> Any:
        """Any reduction of the posterior of z (B, C, H, W)."""
        gradients = torch.is_grad_enabled() and (z.requires_grad or any(group.requires_grad for group in self.groups))
        plan = self.plan(Call.of(z, sigma, gradients), settings, reduction)
        with torch.set_grad_enabled(gradients):         # or a graph would be kept that nobody asked for
            return engine.evaluate(plan, z, reduction, self.total, team)

    def changed(self, change: Callable[[Source], Source]) -> Collection:
        """The same collection of changed images, e.g. without some of them."""
        kept: dict[int, Any] = {}

        def once(source: Source) -> Source:             # groups go on sharing their source
            return kept.setdefault(id(source), change(source))

        return Collection.of(*(group.changed(once) for group in self.groups))


def _as_member(source: AnySource) -> Measure:
    return source if isinstance(source, Measure) else as_source(source)


def _by_source(precision: Precision, response: Response, sources: Sequence[AnySource]) -> tuple[Group, ...]:
    if len(sources) != len(precision):
        raise InputError(f"{len(sources)} sources for {len(precision)} estimators; give one, or one for each")
    q, r = precision.dense(torch.float64), response.dense(torch.float64)
    members: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        members.setdefault(id(source), []).append(index)
    groups = []
    for indices in members.values():
        part = Precisions(q[indices])
        groups.append(Group(part, response_of(r[indices], part), _as_member(sources[indices[0]])))
    return tuple(groups)


def blend(low: Collection, high: Collection, share: float) -> Collection:
    """Both collections with 1 − share and share of the say; what they have in common is there once."""
    members: dict[tuple[int, int, int], Group] = {}
    weights: dict[tuple[int, int, int], Tensor | float] = {}
    for collection, part in ((low, 1 - share), (high, share)):
        for group in collection.groups:
            key = id(group.q), id(group.r), id(group.source)
            weight = part if group.weight is None else part * group.weight.double()
            members[key], weights[key] = replace(group, weight=None), weights.get(key, 0.0) + weight
    return Collection.of(*(group.scaled(weights[key]) for key, group in members.items()))
