"""Square patches as attention: a patch of z asks, the patches of the images are keys, what they show is the values.

With one more coordinate for −‖x‖²/2 and one for the weight of an image, z·x is all that is left of a logit, and
`scaled_dot_product_attention` goes through all images without ever writing out B × n × L logits. Estimators are its
heads, some at a time; every call has all images. Attention gives no sum, only means. A stretch of the source has to
have one, to be merged: then a last key, which shows nothing, gets a logit near the sum's (of a pass that writes logits
out), and its share of the posterior tells the sum in terms of the very logits that attention has used.

Keys are differences to 127.5 as the bytes have them, without rounding. In float32 the expanded form is off by what the
products of a sum add up to; `nats` says how much that is. Whole images have one head, which would leave nearly all of
a GPU idle: `streaming.Double` is for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Squares
from fpmc.core.response import Partition, SameAsQ
from fpmc.core.sources import Discrete
from fpmc.engine.kernels.offer import Members, Offer, Run, weighted
from fpmc.engine.kernels.resident import chunks
from fpmc.engine.reduce import Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State

UNIT = 127.5                                            # of bytes, in images from −1 to 1
TILE = 64                                               # queries that a GPU works on together, be there as many or not
BUSY = 108                                              # tiles that an A100 works on at once, one per multiprocessor
ALIGNED = 4                                             # numbers of a key or value come in such packs


@dataclass(frozen=True, kw_only=True)
class Attention(Offer):
    """Squares, each answering for its own pixel (LS) or for all of itself (PSPC-Square)."""

    kernel = "attention"
    backend = "torch"
    supplies = frozenset({"answers"})
    heads: int                                          # estimators at a time
    resident: int                                       # bytes of images that stay on a device

    @property
    def amount(self) -> str:
        return f"{self.heads} estimators at a time"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        q, source = group.q, group.source
        if not isinstance(source, Discrete) or not isinstance(q, Squares) or q.around or call.gradients:
            return
        if call.dtype != torch.float32 or not (_own_pixel(group) or _own_patch(group)):
            return
        images, dimension, batch = len(source), group.shape[0] * q.size**2, max(1, call.batch)
        key, value, fused = aligned(dimension + 3), aligned(dimension + 3), call.device != "cpu"
        per_head = 6 * key + 8 * (1 if fused else batch)
        if _own_pixel(group):                           # else keys are values, too
            value = aligned(group.shape[0] + 1)
            per_head += 5 * value
        heads = min(len(group), (settings.memory - images * math.prod(group.shape)) // (images * per_head))
        if heads < 1:
            return
        tiles = math.ceil(batch / TILE)
        idle = max(1.0, TILE * tiles / batch) * max(1.0, BUSY / (heads * tiles)) if fused else 1.0
        yield cls(
            respond="owned" if _own_pixel(group) else "means", sigma=call.sigma, estimators=len(group), images=images,
            counts={
                "product": float(images) * len(group) * (key + value) * idle,
                "element": float(images) * len(group) * (4.0 * key + value) / batch,
            },
            memory=images * (math.prod(group.shape) + heads * per_head), error=nats(dimension, call),
            why="square patches are queries, keys and values of attention; no logits are written out",
            heads=heads, resident=settings.resident, threads=torch.get_num_threads(),
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return _Attention(self, groups[0], z, reduction)


def nats(dimension: int, call: Call) -> float:
    """How far off a logit may be: the sum grows to (½‖x‖² + |z·x|)/σ², and each of its additions is rounded.

    z is an image and noise; |x| is 1 at most, where images have half of it or less. Roundings have either sign, so
    they add up like √d, at sizes that grow from 0 to the last: √(d/3); and one more for −‖x‖²/2. Differences to the
    mean image would halve this for images on black ground, do nothing for photographs, and a plan sees neither.
    """
    noise = 3.0 * math.sqrt(dimension) * call.sigma if call.far == 0 else dimension * call.reach
    size = (1.5 * dimension + noise) / call.sigma**2
    return torch.finfo(call.dtype).eps / 2 * (1 + math.sqrt(dimension / 3)) * size


def aligned(numbers: int) -> int:
    """No fewer numbers, in whole packs."""
    return -(-numbers // ALIGNED) * ALIGNED


def _own_pixel(group: Group) -> bool:
    return isinstance(group.r, Partition) and group.r.channels == 1 and group.r.is_pixelwise


def _own_patch(group: Group) -> bool:
    r = group.r
    return isinstance(r, SameAsQ) and r.count is None and r.precision.arguments() == group.q.arguments()


class _Attention(Run):
    def __init__(self, offer: Attention, group: Group, z: Tensor, reduction: Reduction) -> None:
        assert isinstance(group.source, Discrete)
        assert isinstance(group.q, Squares)
        self.offer, self.group, self.z, self.reduction, self.source = offer, group, z, reduction, group.source
        self.count, self.pixelwise = len(group.source), _own_pixel(group)
        self.channels, estimators = z.shape[1], torch.arange(len(group), device=z.device)
        self.dimension = self.channels * group.q.size**2
        self.places, self.within = (each.to(z.device) for each in _places(group.q))
        if self.pixelwise:
            self.owner = estimators.repeat(self.channels)
        else:
            self.owner = estimators.repeat_interleave(self.dimension)

    def first(self, begin: int, end: int) -> State:
        found = list(chunks(self.source, max(1, end - begin), begin, end, self.z, self.offer.resident))
        if not found:
            return State.empty(self.z, len(self.group), self.owner)
        pixels = torch.cat([chunk.pixels for chunk in found]).flatten(2)       # uint8 (n, C, P)
        log_weights = None
        if found[0].log_weights is not None:
            log_weights = torch.cat([chunk.log_weights for chunk in found if chunk.log_weights is not None])
            alive = log_weights > -torch.inf
            pixels, log_weights = pixels[alive], log_weights[alive]
        alone = (begin, end) == (0, self.count)
        parts = [self._attend(part, pixels, log_weights, alone) for part in self._heads()]
        top, mass, means = (torch.cat(each) for each in zip(*parts))           # (L, B), (L, B), (L, B, slots)
        slots = means.permute(1, 2, 0) if self.pixelwise else means.permute(1, 0, 2)
        return State(top.T.contiguous(), mass.T.contiguous(), slots.flatten(1), self.owner)

    def _heads(self) -> Iterator[slice]:
        for first in range(0, len(self.group), self.offer.heads):
            yield slice(first, first + self.offer.heads)

    def _attend(
        self, heads: slice, pixels: Tensor, log_weights: Tensor | None, alone: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Σ p (in units of exp(top)) and Σ p x of some estimators; with no other images to be merged with, Σ p is 1."""
        d, size = self.dimension, self.offer.sigma**2
        keys = self._keys(heads, pixels, log_weights)   # (h, n + 1, …), the last one showing nothing
        values, width = (self._pixels(heads, pixels), self.channels) if self.pixelwise else (keys, d)
        asked = keys.new_zeros(len(keys), len(self.z), keys.shape[2])
        asked[..., :d] = self._patches(self.z.flatten(2), heads) / (UNIT * size)
        asked[..., d], asked[..., d + 1] = 1 / (UNIT**2 * size), 1.0
        if alone:
            means = _attention(asked, keys[:, :-1], values[:, :-1])
            ones = means.new_ones(means.shape[:2])
            return torch.zeros_like(ones), ones, means[..., :width] / UNIT
        each = [torch.logsumexp(one @ keys[:, :-1].mT, 2) for one in asked.split(1, 1)]
        top = torch.cat(each, 1)                        # (h, B), but for rounding
        asked[..., d + 2] = top
        means = _attention(asked, keys, values)
        nothing = means[..., width if self.pixelwise else d + 2]               # the share of the last key, about a half
        return top, (1 - nothing) / nothing, means[..., :width] / (UNIT * nothing[..., None])

    def _keys(self, heads: slice, pixels: Tensor, log_weights: Tensor | None) -> Tensor:
        """x, −‖x‖²/2 and log ν of every patch, (h, n + 1, …), in units of bytes."""
        d = self.dimension
        patches = self._patches(pixels, heads)
        keys = self.z.new_zeros(len(patches), len(pixels) + 1, aligned(d + 3))
        shown = keys[:, :-1, :d]
        shown.copy_(patches).sub_(UNIT)
        if not bool(self.within[heads].all()):
            shown.mul_(self.within[heads].repeat(1, self.channels)[:, None])
        keys[:, :-1, d] = torch.linalg.vector_norm(shown, dim=2).square_().mul_(-0.5)
        if log_weights is not None:
            keys[:, :-1, d + 1] = log_weights
        keys[:, -1, d + 2] = 1.0
        return keys

    def _patches(self, images: Tensor, heads: slice) -> Tensor:
        """Of images (n, C, P), (h, n, C·s²)."""
        return images[:, :, self.places[heads]].permute(2, 0, 1, 3).flatten(2)

    def _pixels(self, heads: slice, pixels: Tensor) -> Tensor:
        """What the pixel of each estimator shows, and 1 for the key that shows nothing: (h, n + 1, …)."""
        own = pixels[:, :, heads].permute(2, 0, 1)      # (h, n, C)
        values = self.z.new_zeros(len(own), len(pixels) + 1, aligned(self.channels + 1))
        values[:, :-1, : self.channels].copy_(own).sub_(UNIT)
        values[:, -1, self.channels] = 1.0
        return values

    def close(self, state: State | None, sums: Tensor | None) -> Sequence[Tensor]:
        assert state is not None
        answer = state.finish()
        if not self.pixelwise:                          # Σ_ℓ of patches, each where it belongs
            channel = torch.arange(self.channels, device=answer.device)[:, None] * self.z[0, 0].numel()
            slots = (self.places[:, None] + channel).flatten()
            answer = torch.zeros_like(self.z).flatten(1).index_add_(1, slots, answer)
        return weighted([self.group], [answer.view_as(self.z)], self.reduction)


def _attention(asked: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Of each head (h, …); a batch of one, as the fused kernels want it."""
    return F.scaled_dot_product_attention(asked[None], keys[None], values[None], scale=1.0)[0]


def _places(q: Squares) -> tuple[Tensor, Tensor]:
    """The pixels of each patch (L, s²), and which of them are within the image; those that are not count as pixel 0."""
    rows, columns = (q.starts(length)[:, None] + torch.arange(q.size) for length in (q.height, q.width))
    there = [(each >= 0) & (each < length) for each, length in ((rows, q.height), (columns, q.width))]
    places = rows[:, None, :, None] * q.width + columns[None, :, None]         # (Ly, Lx, s, s)
    within = there[0][:, None, :, None] & there[1][None, :, None]
    return torch.where(within, places, 0).flatten(2).flatten(0, 1), within.flatten(2).flatten(0, 1)
