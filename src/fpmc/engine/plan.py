"""What to compute and how: rewrites, offers, the cheapest. A pure function of groups, call and settings; printable.

Nothing is decided anywhere else. Rewrites make an equal collection that costs less: identical estimators become one,
entries of q that cannot matter go, channels that are asked alike are asked once. Then every kernel makes its offers,
and the cheapest that is exact enough is taken; offers that can share their work are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from weakref import WeakKeyDictionary

import torch

from fpmc.core.group import Group
from fpmc.engine import kernels
from fpmc.engine.kernels.offer import Offer, fits
from fpmc.engine.reduce import Mean, Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.errors import InputError

EXACT = 1.5e-4                                          # nats that logits of an offer may be off by
TOGETHER = 32                                           # groups in one step: kernels mark them in bits
_rewritten: WeakKeyDictionary[Group, dict[float, Group | None]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Plan:
    """How a collection is evaluated at one noise level."""

    sigma: float
    batch: int
    steps: tuple[Offer, ...]
    groups: tuple[Group, ...] = field(compare=False)    # rewritten; steps name them by number

    @property
    def seconds(self) -> float:
        """For the whole batch, on the machine that the costs of the device were measured on or are predicted for."""
        return self.batch * sum(step.seconds for step in self.steps)

    @property
    def memory(self) -> float:
        """Bytes of working arrays."""
        return max(step.memory for step in self.steps)

    def __str__(self) -> str:
        lines = [f"sigma {self.sigma:g}, batch {self.batch}"]
        for step in self.steps:
            several = "s" if len(step.groups) > 1 else ""
            lines.append(f"  group{several} {', '.join(map(str, step.groups))}: {step}")
        return "\n".join(lines)


def make_plan(
    groups: Sequence[Group], call: Call, settings: Settings | None = None, reduction: Reduction | None = None
) -> Plan:
    """The cheapest exact way for each group."""
    settings, reduction = settings or Settings(), reduction or Mean()
    rewritten = tuple(rewrite(group, call, settings) for group in groups)
    joined: dict[object, list[Offer]] = {}
    for place, group in enumerate(rewritten):
        step = replace(cheapest((group,), call, settings, reduction), groups=(place,), merged=len(groups[place]))
        key = step.groups if step.joins is None else (type(step), step.joins)
        joined.setdefault(key, []).append(step)
    steps = []
    for each in joined.values():
        for batch in zip_longest(*[iter(each)] * TOGETHER):
            steps.append(_join([step for step in batch if step], rewritten, call, settings, reduction))
    return Plan(call.sigma, call.batch, tuple(steps), rewritten)


def rewrite(group: Group, call: Call, settings: Settings) -> Group:
    """An equal group that costs less."""
    group = _kept(group, 0.0, lambda: _alike(group.merged()))
    if call.dtype != torch.float32 or call.gradients or settings.exact:
        return group
    budget = 2.0 ** torch.tensor(settings.nats * 2 * call.sigma**2 / call.reach**2).log2().floor().item()
    return _kept(group, budget, lambda: group.pruned(budget))


def _alike(group: Group) -> Group:
    return group.asking(group.q.shared())


def _kept(group: Group, key: float, make: Callable[[], Group]) -> Group:
    known = _rewritten.setdefault(group, {})
    if key not in known:
        if len(known) > 1:                              # one noise level at a time
            known.pop(next(iter(known)))
        made = make()
        known[key] = None if made is group else made    # what refers to its key would be kept for ever
    return known[key] or group


def cheapest(groups: tuple[Group, ...], call: Call, settings: Settings, reduction: Reduction) -> Offer:
    """Of all offers that are exact enough the one that takes the least time; it knows the others."""
    offers = [
        _placed(offer, call)
        for kernel in kernels.every()
        if fits(kernel, call, settings, reduction)
        for offer in kernel.offers(groups, call, settings, reduction)
        if offer.error <= EXACT or settings.kernels is not None
    ]
    if not offers:
        kinds = ", ".join(type(each).__name__ for each in (groups[0].q, groups[0].r, groups[0].source))
        raise InputError(f"no kernel offers {reduction.wants} for {kinds} with these settings; allow more kernels")
    if settings.backend == "numba":                     # where it can
        offers = [offer for offer in offers if offer.backend == "numba"] or offers
    best = min(offers, key=lambda offer: offer.seconds)
    others = {f"{offer.kernel}, {offer.backend}": offer.seconds for offer in offers if offer is not best}
    return replace(best, others=tuple(others.items()))


def _placed(offer: Offer, call: Call) -> Offer:
    """On the device that is asked for, where threads of this machine do nothing."""
    return replace(offer, device=call.device, threads=offer.threads if call.device == "cpu" else 1)


def _join(steps: list[Offer], groups: tuple[Group, ...], call: Call, settings: Settings, reduction: Reduction) -> Offer:
    """Several groups as one step of their kernel."""
    if len(steps) == 1:
        return steps[0]
    places = tuple(place for step in steps for place in step.groups)
    (together,) = type(steps[0]).offers(tuple(groups[place] for place in places), call, settings, reduction)
    return replace(_placed(together, call), groups=places, merged=sum(step.merged for step in steps))
