"""The loss of fine-tuning and its gradients in closed form, streamed over the images (Eq. "obj").

With p the posteriors, T = Σ_ℓ r_ℓ p_ℓ and R = Σ_ℓ r_ℓ, the denoiser is D = Σ_x T x / R. For a gradient g on D, put
v = g / R, A = Σ_c v x (one value per image and pixel) and a_ℓ = Σ r_ℓ A. Then

    ∂r_ℓ = Σ_b (Σ_x p_ℓ A − v D),        ∂q_ℓ = −1/(2σ²) Σ_b Σ_x p_ℓ (a_ℓ − ā_ℓ) (z − x)²,        ā_ℓ = Σ_x p_ℓ a_ℓ.

Five matrix products of batch·images × L × pixels; the posteriors are kept between them where they fit in the memory
given, and computed again where they do not. Nothing of size batch × L × images × pixels ever exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fpmc.sources import Source, scale


class Gradients(NamedTuple):
    """Mean squared error to the target, and its derivatives."""

    loss: float
    q: Tensor | None                                    # like q
    r: Tensor | None                                    # like r


class _Chunk(NamedTuple):
    x: Tensor                                           # (n, C, P)
    log_weights: Tensor | None                          # (n,)


class Streamed:
    """One batch of noisy images against one source: posteriors by chunk, kept or recomputed."""

    def __init__(self, z: Tensor, sigma: float, q: Tensor, r: Tensor, source: Source, memory: int) -> None:
        self.z = z.flatten(2)                           # (B, C, P)
        self.sigma, self.source = sigma, source
        self.q, self.r = q.flatten(1), r.flatten(1)     # (L, channels·P)
        self.shared = q.shape[1] == 1, r.shape[1] == 1
        unit = z.element_size() * len(z)
        kept = unit * len(source) * len(q)
        self.keeps = kept <= memory // 2
        per_image = unit * (2 * z[0].numel() + 2 * self.r.shape[1] + 3 * len(q))
        self.size = max(1, min(len(source), (memory - kept * self.keeps) // per_image))
        self.kept: list[Tensor] = []
        self.top = z.new_full((len(z), len(q)), -torch.inf)
        self.mass = z.new_zeros(len(z), len(q))
        for chunk in self.chunks():
            logit = self._logits(chunk)
            new = torch.maximum(self.top, logit.amax(1))
            self.mass = self.mass * torch.exp(self.top - new) + torch.exp(logit - new[:, None]).sum(1)
            self.top = new
            if self.keeps:
                self.kept.append(logit)
        for logit in self.kept:                         # logits become posteriors in place
            self._normalise(logit)

    def chunks(self) -> Iterator[_Chunk]:
        for pixels, log_weights in self.source.chunks(self.size):
            x = scale(pixels.to(self.z.device), self.z.dtype).flatten(2)
            yield _Chunk(x, None if log_weights is None else log_weights.to(self.z))

    def posteriors(self) -> Iterator[tuple[_Chunk, Tensor]]:
        """Each chunk with p, (B, n, L)."""
        for index, chunk in enumerate(self.chunks()):
            yield chunk, self.kept[index] if self.keeps else self._normalise(self._logits(chunk))

    def squares(self, chunk: _Chunk) -> Tensor:
        """(z − x)² (B, n, channels·P), summed over the channels where q is shared by them."""
        square = (self.z[:, None] - chunk.x).square_()
        return square.sum(2) if self.shared[0] else square.flatten(2)

    def products(self, v: Tensor, chunk: _Chunk) -> Tensor:
        """v x (B, n, channels·P), summed over the channels where r is shared by them."""
        product = v[:, None] * chunk.x
        return product.sum(2) if self.shared[1] else product.flatten(2)

    def _logits(self, chunk: _Chunk) -> Tensor:
        logit = (self.squares(chunk) @ self.q.T).mul_(-0.5 / self.sigma**2)
        return logit if chunk.log_weights is None else logit.add_(chunk.log_weights[:, None])

    def _normalise(self, logit: Tensor) -> Tensor:
        return logit.sub_(self.top[:, None]).exp_().div_(self.mass[:, None])


@torch.no_grad()
def loss_and_gradients(
    z: Tensor,
    target: Tensor,
    sigma: float,
    q: Tensor,
    r: Tensor,
    source: Source,
    *,
    learn: tuple[str, ...] = ("q", "r"),
    memory: int = 1 << 30,
) -> Gradients:
    """‖D_FPMC(z, σ) − target‖² averaged over all entries, and ∂/∂q, ∂/∂r for what is learned (Eq. "obj").

    z, target (B, C, H, W); q, r (L, C or 1, H, W).
    """
    stream = Streamed(z, sigma, q, r, source, memory)
    total = stream.r.sum(0).unflatten(0, (-1, stream.z.shape[2]))              # R (C or 1, P)
    denoised = torch.zeros_like(stream.z)
    for chunk, p in stream.posteriors():
        mixed = (p @ stream.r).unflatten(2, total.shape)                       # T (B, n, C or 1, P)
        denoised += (mixed * chunk.x).sum(1)
    denoised /= total
    error = denoised - target.flatten(2)
    loss = error.square().mean().item()
    v = 2.0 / error.numel() * error / total             # (B, C, P)

    grad_r = torch.zeros_like(stream.r) if "r" in learn else None
    centre = torch.zeros_like(stream.mass)              # ā (B, L)
    for chunk, p in stream.posteriors():
        product = stream.products(v, chunk)
        if grad_r is not None:
            grad_r.addmm_(p.flatten(0, 1).T, product.flatten(0, 1))
        if "q" in learn:
            centre += ((product @ stream.r.T).mul_(p)).sum(1)
    if grad_r is not None:
        vd = v * denoised
        grad_r -= (vd.sum(1) if stream.shared[1] else vd.flatten(1)).sum(0)

    grad_q = torch.zeros_like(stream.q) if "q" in learn else None
    if grad_q is not None:
        for chunk, p in stream.posteriors():
            pull = (stream.products(v, chunk) @ stream.r.T).sub_(centre[:, None]).mul_(p)
            grad_q.addmm_(pull.flatten(0, 1).T, stream.squares(chunk).flatten(0, 1), alpha=-0.5 / sigma**2)
    return Gradients(
        loss,
        None if grad_q is None else grad_q.view_as(q),
        None if grad_r is None else grad_r.view_as(r),
    )
