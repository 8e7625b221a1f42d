"""Dense rows whose logits all fit in memory: two matrix products, and no logit is computed twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Full, Squares
from fpmc.core.sources import Discrete, scale
from fpmc.engine.kernels.offer import Members, Offer, Run, respond_of, weighted
from fpmc.engine.kernels.resident import chunks, placed
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State, weights_of

NEAR = 1024                                             # images at a time, so few that a chunk stays in the cache


@dataclass(frozen=True, kw_only=True)
class Kept(Offer):
    """−1/2σ² goes into q and 1/Σ exp into r, so that the logits are passed over as seldom as possible."""

    kernel = "matrix"
    backend = "torch"
    supplies = frozenset({"answers"})
    chunk: int                                          # images at a time
    resident: int                                       # bytes of them that stay on a device

    @property
    def amount(self) -> str:
        return f"{self.chunk} at a time"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        q, source = group.q, group.source
        if not isinstance(source, Discrete) or not q.diagonal or isinstance(q, (Full, Squares)) or call.gradients:
            return
        if respond_of(group, reduction) != "mixed":
            return
        images, length, unit = len(source), len(group), torch.finfo(call.dtype).bits // 8
        at_once = min(max(1, call.batch), settings.memory * 4 // 5 // (images * length * unit))
        if at_once < 1:
            return
        dimension, span = math.prod(group.shape), q.channels * q.height * q.width
        answered = q.height * q.width if group.r.channels == 1 else dimension
        kept, per_image = at_once * images * length * unit, 4 * dimension * unit
        near = NEAR if call.device == "cpu" else images
        chunk = settings.chunk or max(1, min(near, images, (settings.memory - kept) // per_image))
        why = f"{q.entries / length:.1f} of {span} entries per row"
        why += ", shared by the channels" if q.channels == 1 and group.shape[0] > 1 else ""
        yield cls(
            respond="mixed", sigma=call.sigma, estimators=length, images=images,
            counts={
                "product": float(images) * length * (span + answered),
                "element": float(images) * (2.0 * dimension + 1.5 * length),
            },
            memory=kept + chunk * per_image, why=f"{why}; all logits kept, so one pass", chunk=chunk, batch=at_once,
            resident=settings.resident, threads=torch.get_num_threads(),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Kept(self, groups[0], z, reduction)


class _Kept(Run):
    """All logits of a few noisy images."""

    passes = 2

    def __init__(self, offer: Kept, group: Group, z: Tensor, reduction: Reduction) -> None:
        assert isinstance(group.source, Discrete)
        self.offer, self.group, self.z, self.reduction, self.source = offer, group, z, reduction, group.source
        self.count = len(group.source)
        there = placed(group, z.device, offer.resident)
        self.q = there.q.dense(z.dtype).to(z.device).flatten(1).T * (-0.5 / offer.sigma**2)
        self.r = there.r.dense(z.dtype).to(z.device)
        self.kept: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}           # top and exp(logit − top) by stretch

    def first(self, begin: int, end: int) -> State:
        logits = self._logits(self.z, begin, end)
        lowest = logits.new_full((len(logits), 1, len(self.group)), torch.finfo(logits.dtype).min)
        top = torch.cat([lowest, logits.amax(1, keepdim=True)] if end > begin else [lowest], 1).amax(1)
        weights = weights_of(logits.sub_(top[:, None]))
        self.kept[begin, end] = top, weights
        return State(top, weights.sum(1))

    def second(self, begin: int, end: int, state: State) -> Tensor:
        top, weights = self.kept[begin, end]
        return self._mixed(self.z, weights, state.mass * torch.exp(state.top - top), begin, end)

    def _logits(self, z: Tensor, begin: int, end: int) -> Tensor:
        """(B, n, L); images without weight have −inf."""
        logits = z.new_empty(len(z), end - begin, len(self.group))
        if self.source.log_weights is not None:         # chunks without weight are passed over
            logits.fill_(-torch.inf)
        square, work = (z.new_empty(self.offer.chunk, *self.group.shape[1:]) for _ in range(2))
        for x, log_weights, first in self._chunks(begin, end):
            here = slice(first - begin, first - begin + len(x))
            for one, rows in zip(z, logits[:, here]):
                shared = self.group.q.channels == 1
                distance = _summed(one, x, square[: len(x)], work[: len(x)]) if shared else (x - one).square_()
                torch.mm(distance.flatten(1), self.q, out=rows)
                if log_weights is not None:
                    rows += log_weights[:, None]
        return logits

    def _mixed(self, z: Tensor, weights: Tensor, mass: Tensor, begin: int, end: int) -> Tensor:
        result, work = torch.zeros_like(z), z.new_empty(self.offer.chunk, *self.group.shape[1:])
        shares = self.r.flatten(1) / mass[..., None]    # (B, L, C or 1·P)
        for x, _, first in self._chunks(begin, end):
            here = slice(first - begin, first - begin + len(x))
            for target, posterior, share in zip(result, weights[:, here], shares):
                mixed = (posterior @ share).unflatten(1, self.r.shape[1:])     # (n, C or 1, H, W)
                for c, total in enumerate(target):
                    total += torch.mul(mixed[:, c % self.r.shape[1]], x[:, c], out=work[: len(x)]).sum(0)
        return result

    def close(self, state: State | None, sums: Tensor | None) -> Sequence[Tensor]:
        assert sums is not None
        return weighted([self.group], [sums], self.reduction)

    def _chunks(self, begin: int, end: int) -> Iterator[tuple[Tensor, Tensor | None, int]]:
        offer = self.offer
        for pixels, log_weights, first in chunks(self.source, offer.chunk, begin, end, self.z, offer.resident):
            yield scale(pixels, self.z.dtype), log_weights, first


def _summed(z: Tensor, x: Tensor, total: Tensor, work: Tensor) -> Tensor:
    """(z − x)² of one noisy image summed over the channels, in `total` (n, H, W)."""
    for c in range(len(z)):
        torch.sub(x[:, c], z[c], out=work)
        torch.mul(work, work, out=total) if c == 0 else total.addcmul_(work, work)
    return total
