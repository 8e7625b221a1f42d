"""The loss of fine-tuning and its gradients in closed form, one noisy image at a time (Eq. "obj").

With p_ℓ the posteriors, μ̂_ℓ = Σ_x p_ℓ x and R = Σ_ℓ r_ℓ, the denoiser is D = Σ_ℓ r_ℓ μ̂_ℓ / R. For a gradient g on D,
put v = g / R. Then, summed over the noisy images,

    ∂r_ℓ = v (μ̂_ℓ − D),        ∂q_ℓ = −1/(2σ²) Σ_x p_ℓ (a_ℓ − ā_ℓ) (z − x)²,

where a_ℓ = Σ r_ℓ v (x − D) is one number for each image x and ā_ℓ = Σ_x p_ℓ a_ℓ. That is four matrix products of
L × images × dimensions: logits, means, a, ∂q. ā is summed from the very a it is taken from, so that a posterior on one
image alone has the slope 0 to the last digit: Adam would make a full step of anything else. What is learned are log q
and log r, so where q and r are 0 there is no gradient; if that is nearly everywhere, the products become sums over the
rest (`simd.gradients`).

A source may be cut into stretches: a posterior's log-sums, Σ r μ̂, ā and the gradients are sums over its images, merged
by the team one after the other. What a stretch adds to ∂r is v (Σ p x − Σ p · D), the sums over its own images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fpmc.core.sources import Source, scale
from fpmc.engine import cost, settings
from fpmc.engine.kernels.resident import chunks
from fpmc.engine.run import Alone, ours
from fpmc.engine.state import State, fade, weights_of

CHUNK = 2048                                            # images at a time: what they need stays near the cache


class Gradients(NamedTuple):
    """Mean squared error to the target, and its derivatives by log q and log r."""

    loss: float
    log_q: Tensor | None                                # like q
    log_r: Tensor | None                                # like r


class Fixed(NamedTuple):
    """What estimators that are not learned add to the denoiser: Σ r ⊙ μ̂ and Σ r."""

    numerator: Tensor                                   # (B, C, H, W)
    total: Tensor                                       # (C or 1, H, W)


@dataclass(frozen=True)
class Route:
    """The dense or the sparse way, and what each costs per noisy image."""

    dense: float                                        # seconds of one thread
    sparse: float
    sparse_memory: int                                  # bytes
    takes_sparse: bool


def route(
    q: Tensor, r: Tensor, images: int, channels: int, *, memory: int = 1 << 30, threads: int = 1, numba: bool = True
) -> Route:
    """Which way is cheaper for q, r (L, C or 1, H, W), if the sparse one is open: float32 on the CPU, within memory."""
    repeats = channels // r.shape[1]                    # means are per channel even where r is not
    dense = 2.0 * q.numel() + (1 + repeats) * r.numel()
    entries = 2.0 * q.count_nonzero().item() + (1 + repeats) * r.count_nonzero().item()
    needed = 4 * images * (channels * q[0, 0].numel() + 2 * threads * len(q))
    able = numba and q.dtype == r.dtype == torch.float32 and q.device.type == "cpu" and needed <= memory
    dense, sparse = cost.seconds({"product": images * dense}), cost.seconds({"tile.entry": images * entries})
    return Route(dense, sparse, needed, able and sparse < dense)


@torch.no_grad()
def loss_and_gradients(
    z: Tensor,
    target: Tensor,
    sigma: float,
    q: Tensor,
    r: Tensor,
    source: Source,
    *,
    fixed: Fixed | None = None,
    learn: tuple[str, ...] = ("q", "r"),
    memory: int = 1 << 30,
    team: Alone | None = None,
) -> Gradients:
    """‖D_FPMC(z, σ) − target‖² averaged over all entries, and its gradients for what is learned (Eq. "obj").

    z, target (B, C, H, W); q, r (L, C or 1, H, W). team: who shares the source; the first member's target counts.
    """
    if fixed is None:
        fixed = Fixed(torch.zeros_like(z), torch.zeros_like(r[0]))
    team = team or Alone()
    way = route(q, r, len(source), z.shape[1], memory=memory, threads=team.threads(), numba=settings.has_numba())
    team.asked(f"gradients {way.takes_sparse} {sigma!r} {len(source)} {learn} {memory}", z, q, r)
    (target,), *_ = team.gathered([target])
    if way.takes_sparse:
        from fpmc.engine.simd import gradients as sparse  # numba takes a second to import

        return sparse.loss_and_gradients(z, target, sigma, q, r, source, fixed, learn, team)
    return dense_gradients(z, target, sigma, q, r, source, fixed, learn, memory, team)


def dense_gradients(
    z: Tensor, target: Tensor, sigma: float, q: Tensor, r: Tensor, source: Source,
    fixed: Fixed, learn: tuple[str, ...], memory: int, team: Alone | None = None,
) -> Gradients:
    """By matrix products, for any number format and device."""
    team = team or Alone()
    images = _Images(source, z, sigma, q, r.shape[1] == 1, memory, team)
    r_rows = r.flatten(2)                               # (L, C or 1, P)
    total = r_rows.sum(0) + fixed.total.to(r).flatten(1)                       # R (C or 1, P)
    grad_q, grad_r = torch.zeros_like(images.q), torch.zeros_like(r_rows)
    loss = 0.0
    for one, aim, numerator in zip(z.flatten(2), target.flatten(2), fixed.numerator.to(z).flatten(2)):
        means, shares = (torch.cat(each) for each in zip(*(images.means(one, rows) for rows in images.parts)))
        (answer,) = team.sums([(r_rows * means).sum(0)])                       # Σ r μ̂ (C, P)
        denoised = (answer + numerator) / total         # D (C, P)
        error = denoised - aim
        loss += error.square().sum().item()
        v = 2.0 / z.numel() * error / total
        slope = means.addcmul_(shares[:, None, None], denoised, value=-1).mul_(v)
        slope = slope.sum(1, keepdim=True) if r.shape[1] == 1 else slope
        grad_r += slope
        if "q" in learn:
            for rows in images.parts:
                images.pull(one, rows, r_rows[rows].flatten(1), v, denoised, grad_q[rows])
    grad_q, grad_r = team.sums([grad_q, grad_r])
    return Gradients(
        loss / z.numel(),
        grad_q.mul_(images.q).view_as(q) if "q" in learn else None,            # images.q has the −1/(2σ²)
        grad_r.view_as(r).mul_(r) if "r" in learn else None,
    )


class _Images:
    """Our stretches of a source in chunks, and posteriors over them for some rows of q at a time, as memory allows."""

    def __init__(
        self, source: Source, z: Tensor, sigma: float, q: Tensor, shares_r: bool, memory: int, team: Alone
    ) -> None:
        self.source, self.like, self.team = source, z, team
        self.stretches = ours(source, len(source), team)
        self.q = q.flatten(1) * (-0.5 / sigma**2)       # (L, channels·P)
        self.shares_q, self.shares_r = q.shape[1] == 1, shares_r
        unit = z.element_size()
        rows = max(1, min(len(q), memory // (4 * unit * len(source))))         # posteriors and a: half of it
        self.parts = [slice(first, first + rows) for first in range(0, len(q), rows)]      # the same for all members
        per_image = unit * (3 * z[0].numel() + rows)
        self.size = max(1, min(CHUNK, memory // (4 * per_image)))
        fits = unit * sum(end - begin for begin, end in self.stretches) * z[0].numel() <= memory // 4
        self._kept = list(self._read()) if fits else None
        self._states: dict[int, State] = {}             # over all images, by the first of some rows
        self._posteriors: Tensor | None = None

    def _read(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for stretch in self.stretches:
            kept = settings.Settings.resident
            for pixels, log_weights, _ in chunks(self.source, self.size, *stretch, self.like, kept):
                yield scale(pixels, self.like.dtype).flatten(2), log_weights

    def chunks(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """x (n, C, P) and log ν (n,)."""
        yield from self._read() if self._kept is None else self._kept

    def squares(self, z: Tensor, x: Tensor) -> Tensor:
        """(z − x)² (n, channels·P), summed over the channels where q is shared by them."""
        square = (x - z).square_()
        return square.sum(1) if self.shares_q else square.flatten(1)

    def logits(self, z: Tensor, rows: slice) -> Tensor:
        """(rows, n), of our images."""
        logits = [z.new_empty(len(self.q[rows]), 0)]
        for x, log_weights in self.chunks():
            logit = self.q[rows] @ self.squares(z, x).T
            logits.append(logit if log_weights is None else logit.add_(log_weights))
        return _side_by_side(logits)

    def means(self, z: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """Σ p x (rows, C, P) and Σ p (rows,) over our images."""
        logits = self.logits(z, rows)
        lowest = torch.finfo(z.dtype).min               # where we have no images, or none with weight
        top = logits.amax(1).clamp_(min=lowest) if logits.shape[1] else z.new_full((len(logits),), lowest)
        p = weights_of(logits.sub_(top[:, None]))
        own = State(top, p.sum(1))
        (state,) = self.team.states([own])
        faded = fade(top, state.top)
        p.mul_((faded / state.mass)[:, None])
        means, first = z.new_zeros(len(p), z.numel()), 0
        for x, _ in self.chunks():
            means.addmm_(p[:, first : first + len(x)], x.flatten(1))
            first += len(x)
        self._states[rows.start] = state
        self._posteriors = p if len(self.parts) == 1 else None
        return means.view(-1, *z.shape), own.mass * faded / state.mass

    def posteriors(self, z: Tensor, rows: slice) -> Tensor:
        """p (rows, n), computed again if there was no room for it."""
        if self._posteriors is not None:
            return self._posteriors
        state = self._states[rows.start]
        return weights_of(self.logits(z, rows).sub_(state.top[:, None])).div_(state.mass[:, None])

    def pull(self, z: Tensor, rows: slice, r: Tensor, v: Tensor, denoised: Tensor, out: Tensor) -> None:
        """Add Σ_x p (a − ā)(z − x)² to `out`."""
        p, answers = self.posteriors(z, rows), [z.new_empty(len(r), 0)]
        for x, _ in self.chunks():
            product = (x - denoised).mul_(v)
            answers.append(r @ (product.sum(1) if self.shares_r else product.flatten(1)).T)
        pull = _side_by_side(answers)                   # a (rows, n)
        (centre,) = self.team.sums([torch.linalg.vecdot(p, pull)])
        pull.sub_(centre[:, None]).mul_(p)
        first = 0
        for x, _ in self.chunks():
            out.addmm_(pull[:, first : first + len(x)], self.squares(z, x))
            first += len(x)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """All but the first one, which is empty and says what they are like."""
    return parts[1] if len(parts) == 2 else torch.cat(parts, 1)
