"""Streaming posteriors in torch: any structure, any device, any dtype, differentiable in z, q and r.

Images come in chunks, each added to the state. Where a gradient is wanted, a chunk is computed again in the backward
pass instead of being kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fpmc.core.group import Group
from fpmc.core.precision import Full, Precision, Squares
from fpmc.core.response import Partition, SameAsQ
from fpmc.core.sources import Discrete, scale
from fpmc.engine.kernels.offer import Members, Offer, Run, respond_of, weight_of, weighted
from fpmc.engine.kernels.resident import chunks, placed
from fpmc.engine.reduce import Part, Reduction
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State, weights_of

Features = WeakKeyDictionary[Discrete, dict[tuple, Tensor]]
_features: WeakKeyDictionary[Precision, Features] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Streaming(Offer):
    """Distances and mixtures as the structures compute them, a chunk of images at a time."""

    backend = "torch"
    supplies = frozenset({"answers", "shares", "weights", "posteriors"})
    chunk: int                                          # images at a time
    memory_limit: int                                   # of what is kept of the images from call to call
    resident: int                                       # bytes of them that stay on a device

    @property
    def amount(self) -> str:
        return f"{self.chunk} at a time"

    @classmethod
    def _offer(
        cls, group: Group, call: Call, settings: Settings, reduction: Reduction, why: str, counts: dict[str, float],
        row: float, **more,
    ) -> Offer:
        """An offer that needs `row` numbers per noisy image and image of the source."""
        respond = respond_of(group, reduction)
        assert isinstance(group.source, Discrete)
        images, dimension, unit = len(group.source), math.prod(group.shape), torch.finfo(call.dtype).bits // 8
        row += {"owned": dimension, "means": 0, "mixed": dimension}[respond]
        per_image = int((call.batch * row + 2 * dimension) * unit)
        chunk = settings.chunk or max(1, min(images, settings.memory // per_image))
        if respond == "mixed":
            why += "; two passes, since responses mix normalised posteriors"
            counts = {kind: 2 * count for kind, count in counts.items()}
        counts = {"product": 0.0, **counts}
        counts["element"] += images * (2.0 * len(group) + (0.0 if respond == "means" else 3.0 * dimension))
        counts["product"] += images * _mixing(group)
        return cls(
            respond=respond, sigma=call.sigma, estimators=len(group), images=images, counts=counts,
            memory=chunk * per_image, why=why, chunk=chunk, memory_limit=settings.memory, resident=settings.resident,
            threads=torch.get_num_threads(), **more,
        )

    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        return StreamingRun(self, groups[0], z, reduction, total)

    def features(self, q: Precision, x: Tensor) -> Tensor | None:
        """What of the distances does not depend on z, (n, …); None: nothing."""
        return q.features(x)

    def distance(self, q: Precision, z: Tensor, x: Tensor, features: Tensor | None) -> Tensor:
        """Σ q (z − x)², (B, n, L)."""
        return q.distance(z, x, features)


def _mixing(group: Group) -> float:
    """Multiply-adds that spread posteriors over pixels, for each image."""
    if isinstance(group.r, Partition):
        return 0.0
    squares = group.r.precision if isinstance(group.r, SameAsQ) else None
    if isinstance(squares, Squares):
        return _bands(squares)
    return float(len(group)) * math.prod(group.shape)


def _bands(q: Squares) -> float:
    """Multiply-adds of box sums along columns, then along rows, or back."""
    return float(q.grid[0] * q.height * q.width + len(q) * q.width)


@dataclass(frozen=True, kw_only=True)
class Direct(Streaming):
    """Squared differences written out: what every structure can do."""

    kernel = "direct"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Discrete):
            return
        q, images = group.q, len(group.source)
        (channels, height, width), length = group.shape, len(group)
        pixels = height * width
        counts = {"element": 3.0 * images * channels * pixels}
        if isinstance(q, Full):
            row, why = 2 * channels * pixels, "all pixels count; direct differences"
        elif isinstance(q, Squares):
            row, why = 2 * channels * pixels + 3 * pixels, "square patches are box sums of the squared differences"
            counts["product"] = images * _bands(q)
        else:
            span = q.channels * pixels
            row = 2 * channels * pixels + 2 * length
            counts["product"] = float(images) * length * span
            why = f"a matrix product; {q.entries / length:.1f} of {span} entries per row" if q.diagonal else "any q"
            why += ", shared by the channels" if q.channels == 1 and channels > 1 else ""
        yield cls._offer(group, call, settings, reduction, why, counts, row)


@dataclass(frozen=True, kw_only=True)
class Expanded(Streaming):
    """‖z − x‖² = ‖z‖² − 2 z·x + ‖x‖², one matrix product, where rounding allows it; ‖z‖² cancels in the posterior."""

    kernel = "expanded"
    supplies = frozenset({"answers", "shares", "weights"})   # without ‖z‖² there is no mass

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Discrete) or not isinstance(group.q, Full):
            return
        dimension = math.prod(group.shape)
        norm = dimension * (2.0 + 2.0 * call.sigma**2)  # a bound on the mean of ‖z‖² + ‖x‖², for z within a few σ
        rounding = 1.5 * torch.finfo(call.dtype).eps * norm * math.sqrt(math.log2(dimension + 1))
        products = float(len(group.source)) * dimension
        yield cls._offer(
            group, call, settings, reduction, "all pixels count; one matrix product",
            {"product": products, "element": 4 * products / max(1, call.batch)}, 4,
            error=rounding * group.q.value / (2 * call.sigma**2),
        )

    def distance(self, q: Precision, z: Tensor, x: Tensor, features: Tensor | None) -> Tensor:
        assert isinstance(q, Full)
        z, x = z.flatten(1), x.flatten(1)
        return q.value * torch.addmm(x.square().sum(1), z, x.T, alpha=-2.0)[..., None]


@dataclass(frozen=True, kw_only=True)
class Double(Streaming):
    """The expanded form in float64, where it loses nothing that float32 has; only ‖z − x‖² goes back to float32."""

    kernel = "double"

    @classmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        (group,) = groups
        if not isinstance(group.source, Discrete) or not isinstance(group.q, Full):
            return
        if call.dtype != torch.float32 or call.device == "mps":                # which has no float64
            return
        dimension = math.prod(group.shape)
        products = float(len(group.source)) * dimension
        summed = dimension * call.reach**2              # no less than ‖z‖² + 2 |z·x| + ‖x‖²; errors add up like √d
        rounding = torch.finfo(torch.float64).eps / 2 * summed * math.sqrt(dimension)
        yield cls._offer(
            group, call, settings, reduction, "all pixels count; one matrix product in float64",
            {"product64": products, "element": 6 * products / max(1, call.batch)}, 4,
            error=rounding * group.q.value / (2 * call.sigma**2),
        )

    def features(self, q: Precision, x: Tensor) -> Tensor | None:
        return x.flatten(1).double().square().sum(1)

    def distance(self, q: Precision, z: Tensor, x: Tensor, features: Tensor | None) -> Tensor:
        assert isinstance(q, Full)
        assert features is not None
        z64, x64 = z.flatten(1).double(), x.flatten(1).double()
        squares = torch.addmm(features, z64, x64.T, alpha=-2.0) + z64.square().sum(1, keepdim=True)
        return (q.value * squares).to(z.dtype)[..., None]


class StreamingRun(Run):
    """One group of images at work."""

    def __init__(self, offer: Streaming, group: Group, z: Tensor, reduction: Reduction, total: Tensor) -> None:
        assert isinstance(group.source, Discrete)
        self.offer, self.group, self.z, self.reduction, self.source = offer, group, z, reduction, group.source
        self.count, self.passes, self.total = len(group.source), 2 if offer.respond == "mixed" else 1, total.to(z)
        self.placed = placed(group, z.device, offer.resident)

    def logits(self, x: Tensor, log_weights: Tensor | None, features: Tensor | None) -> Tensor:
        """(B, n, L)."""
        logit = self.offer.distance(self.placed.q, self.z, x, features) * (-0.5 / self.offer.sigma**2)
        return logit if log_weights is None else logit + log_weights[:, None]

    def first(self, begin: int, end: int) -> State:
        owner, moments = self._slots()
        state = State.empty(self.z, len(self.group), owner)

        def add(x: Tensor, log_weights: Tensor | None, features: Tensor | None, *sums: Tensor) -> tuple:
            top, mass, moment = sums
            before = State(top, mass, moment, owner)
            after = before.add(self.logits(x, log_weights, features), None if moments is None else moments(x))
            return after.top, after.mass, after.moment

        for _, *chunk in self._chunks(begin, end):      # autograd's checkpoints pass tensors, not states
            top, mass, moment = _call(add, *chunk, state.top, state.mass, state.moment)
            state = State(top, mass, moment, owner)
        return state

    def _slots(self) -> tuple[Tensor | None, Callable[[Tensor], Callable[[Tensor], Tensor]] | None]:
        """The estimator of each slot, and what slots gain from the weights of a chunk."""
        if self.offer.respond == "mixed":
            return None, None
        if self.offer.respond == "means":
            owner = torch.arange(len(self.group), device=self.z.device).repeat_interleave(self.z[0].numel())
            return owner, lambda x: lambda weights: (weights.mT @ x.flatten(1)).flatten(1)
        assert isinstance(self.group.r, Partition)
        owner = self.group.r.owner.to(self.z.device).expand(self.group.shape)
        if self.group.r.channels == 1 and self.group.r.is_pixelwise:           # B × n × d numbers fewer
            return owner.flatten(), lambda x: lambda w: torch.einsum("bnp,ncp->bcp", w, x.flatten(2)).flatten(1)
        return owner.flatten(), lambda x: lambda weights: (weights[:, :, owner] * x).sum(1).flatten(1)

    def second(self, begin: int, end: int, state: State) -> Tensor:
        scale_ = weight_of(self.group, self.total)
        wants = self.reduction.wants
        counted = self.reduction.pixels(self.total) if wants == "shares" else None
        result = torch.zeros_like(self.z) if wants == "answers" else self.z.new_zeros(())
        if counted is not None:
            result = self.z.new_zeros(len(self.z), self.count)

        def add(x: Tensor, log_weights: Tensor | None, features: Tensor | None, result: Tensor, first: int) -> Tensor:
            p = weights_of(self.logits(x, log_weights, features) - state.top[:, None]) / state.mass[:, None]
            mixed = self.placed.r.mix(p)
            if wants == "answers":
                return result + (mixed * x).sum(1)
            if counted is not None:
                weight = 1.0 if self.group.weight is None else self.group.weight.to(mixed)
                result[:, first : first + len(x)] = (mixed * (counted * weight)).sum((2, 3, 4))
                return result
            w = mixed * scale_
            return result + self.reduction.sums(Part(first, x, w, w * x, p))

        for first, *chunk in self._chunks(begin, end):
            result = _call(add, *chunk, result, first)
        return result

    def close(self, state: State | None, sums: Tensor | None) -> Sequence[Tensor] | Tensor:
        if self.reduction.wants != "answers":
            return sums if sums is not None else self.z.new_zeros(())
        if self.offer.respond == "mixed":
            answer = sums
        elif self.offer.respond == "owned":
            answer = state.finish().view_as(self.z)  # pyright: ignore[reportOptionalMemberAccess]
        else:
            means = state.finish().view(len(self.z), len(self.group), *self.group.shape)  # pyright: ignore
            answer = (self.placed.r.dense(self.z.dtype).to(self.z.device) * means).sum(1)
        return weighted([self.group], [answer], self.reduction)  # pyright: ignore[reportArgumentType]

    def _chunks(self, begin: int, end: int) -> Iterator[tuple[int, Tensor, Tensor | None, Tensor | None]]:
        offer = self.offer
        for pixels, log_weights, first in chunks(self.source, offer.chunk, begin, end, self.z, offer.resident):
            x = scale(pixels, self.z.dtype)
            yield first, x, log_weights, self._kept_features(x, first)

    def _kept_features(self, x: Tensor, first: int) -> Tensor | None:
        """What of the distances does not depend on z, kept while it fits."""
        kept = _features.setdefault(self.group.q, WeakKeyDictionary()).setdefault(self.source, {})
        key = self.offer.kernel, first, len(x), x.dtype, x.device
        if key not in kept:
            found = self.offer.features(self.group.q, x)
            if found is None or torch.is_grad_enabled():
                return found
            if sum(each.nbytes for each in kept.values()) + found.nbytes > self.offer.memory_limit:
                return found
            kept[key] = found
        return kept[key]


def _call(function: Callable, *args):
    return checkpoint(function, *args, use_reentrant=False) if torch.is_grad_enabled() else function(*args)
