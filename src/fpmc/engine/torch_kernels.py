"""Streaming posteriors in torch: any device, any dtype, differentiable in z, q and r.

Images come in chunks. Each chunk adds Σ exp(logit − top) and Σ exp(logit − top)·x to running sums, `top` being the
largest logit so far; when it grows, the sums are rescaled. It cancels in every ratio, so autograd may take it for a
constant. Where a gradient is wanted, each chunk is computed again in the backward pass instead of being kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fpmc.core.group import Group
from fpmc.core.precision import Squares
from fpmc.core.response import Partition, SameAsQ
from fpmc.core.sources import Source, Translations, scale
from fpmc.engine.plan import Step

Distance = Callable[[Tensor, Tensor], Tensor]           # z (B, C, H, W), x (n, C, H, W) -> (B, n, L)
Mixer = Callable[[Tensor], Tensor]                      # posteriors (B, n, L) -> Σ_ℓ r_ℓ p_ℓ (B, n, C or 1, H, W)


def numerator(group: Group, step: Step, z: Tensor, sigma: float) -> Tensor:
    """Σ_ℓ r_ℓ ⊙ μ̂_ℓ of one group (Eq. "fpmc_denoiser"): (B, C, H, W)."""
    if isinstance(group.source, Translations):
        return _shifts(group.source, step, z, sigma)
    assert isinstance(group.source, Source)
    source, distance = group.source, _distance(group, step, z)

    def logits(x: Tensor, log_weights: Tensor | None) -> Tensor:               # (B, n, L)
        logit = distance(z, x) * (-0.5 / sigma**2)
        return logit if log_weights is None else logit + log_weights[:, None]

    top = z.new_full((len(z), len(group)), -torch.inf)
    mass = z.new_zeros(len(z), len(group))

    if step.respond == "owned":
        assert isinstance(group.r, Partition)
        owner, moment = group.r.owner.to(z.device), torch.zeros_like(z)

        def add_owned(x: Tensor, log_weights: Tensor | None, top: Tensor, mass: Tensor, moment: Tensor):
            weights, decay, top = _reweight(logits(x, log_weights), top)
            gained = (weights[:, :, owner] * x).sum(1)
            return top, mass * decay + weights.sum(1), moment * decay[:, owner] + gained

        for chunk in _chunks(source, step.chunk, z):
            top, mass, moment = _call(add_owned, *chunk, top, mass, moment)
        return moment / mass[:, owner]

    if step.respond == "means":
        moment = z.new_zeros(len(z), len(group), z[0].numel())

        def add_means(x: Tensor, log_weights: Tensor | None, top: Tensor, mass: Tensor, moment: Tensor):
            weights, decay, top = _reweight(logits(x, log_weights), top)
            return top, mass * decay + weights.sum(1), moment * decay[..., None] + weights.mT @ x.flatten(1)

        for chunk in _chunks(source, step.chunk, z):
            top, mass, moment = _call(add_means, *chunk, top, mass, moment)
        means = (moment / mass[..., None]).unflatten(2, group.shape)
        return (group.r.dense(z.dtype).to(z.device) * means).sum(1)

    if step.kept and not torch.is_grad_enabled():
        return torch.cat([_kept(group, step, part, sigma) for part in z.split(step.kept)])

    mix = _mixer(group, z)

    def add_mass(x: Tensor, log_weights: Tensor | None, top: Tensor, mass: Tensor):
        weights, decay, top = _reweight(logits(x, log_weights), top)
        return top, mass * decay + weights.sum(1)

    def add_mixed(x: Tensor, log_weights: Tensor | None, top: Tensor, mass: Tensor, result: Tensor):
        posterior = torch.exp(logits(x, log_weights) - top[:, None]) / mass[:, None]
        return result + (mix(posterior) * x).sum(1)

    for chunk in _chunks(source, step.chunk, z):
        top, mass = _call(add_mass, *chunk, top, mass)
    result = torch.zeros_like(z)
    for chunk in _chunks(source, step.chunk, z):
        result = _call(add_mixed, *chunk, top, mass, result)
    return result


def _kept(group: Group, step: Step, z: Tensor, sigma: float) -> Tensor:
    """Two matrix products: dense rows whose logits all fit in memory are computed once, and become posteriors in place.

    −1/2σ² goes into q and 1/Σ exp into r, so that the logits are passed over as seldom as possible.
    """
    source = group.source
    assert isinstance(source, Source)
    q = group.q.dense(z.dtype).to(z.device).flatten(1).T * (-0.5 / sigma**2)
    r = group.r.dense(z.dtype).to(z.device)
    logits = z.new_empty(len(z), len(source), len(group))
    shared = group.q.channels == 1
    square, work = (z.new_empty(step.chunk, *group.shape[1:]) for _ in range(2))   # asked for once, not in the loops
    chunks, filled = [], 0
    for x, log_weights in _chunks(source, step.chunk, z):
        here = slice(filled, filled + len(x))
        for one, rows in zip(z, logits[:, here]):
            distance = _summed(one, x, square[: len(x)], work[: len(x)]) if shared else (x - one).square_()
            torch.mm(distance.flatten(1), q, out=rows)
            if log_weights is not None:
                rows += log_weights[:, None]
        chunks.append(here)
        filled = here.stop
    logits = logits[:, :filled]                         # stretches without weight were passed over
    logits.sub_(logits.amax(1, keepdim=True)).exp_()
    weights = r.flatten(1) / logits.sum(1)[..., None]   # (B, L, C or 1·P)
    result = torch.zeros_like(z)
    for (x, _), here in zip(_chunks(source, step.chunk, z), chunks):
        for target, posterior, weight in zip(result, logits[:, here], weights):
            mixed = (posterior @ weight).unflatten(1, r.shape[1:])             # (n, C or 1, H, W)
            for c, total in enumerate(target):
                total += torch.mul(mixed[:, c % r.shape[1]], x[:, c], out=work[: len(x)]).sum(0)
    return result


def _summed(z: Tensor, x: Tensor, total: Tensor, work: Tensor) -> Tensor:
    """(z − x)² of one noisy image summed over the channels, in `total` (n, H, W)."""
    for c in range(len(z)):
        torch.sub(x[:, c], z[c], out=work)
        torch.mul(work, work, out=total) if c == 0 else total.addcmul_(work, work)
    return total


def _distance(group: Group, step: Step, z: Tensor) -> Distance:
    """Σ q (z − x)², by the structure of q."""
    if step.kernel == "full":
        return _expanded_distance if step.expanded else lambda z, x: _squares(z, x).sum((2, 3, 4))[..., None]
    if step.kernel == "boxes":
        assert isinstance(group.q, Squares)
        (rows, columns), around = (band.to(z) for band in group.q.bands()), group.q.around

        def boxes(z: Tensor, x: Tensor) -> Tensor:
            s = _squares(z, x).sum(2)
            sums = (rows @ s @ columns.T).flatten(2)
            return sums if around == 0 else (1 - around) * sums + around * s.sum((2, 3))[..., None]

        return boxes
    q = group.q.dense(z.dtype).to(z.device).flatten(1)                         # (L, C·H·W or H·W)
    if group.q.channels == 1:
        return lambda z, x: _squares(z, x).sum(2).flatten(2) @ q.T
    return lambda z, x: _squares(z, x).flatten(2) @ q.T


def _squares(z: Tensor, x: Tensor) -> Tensor:           # (B, n, C, H, W)
    return (z[:, None] - x).square()


def _expanded_distance(z: Tensor, x: Tensor) -> Tensor:
    z, x = z.flatten(1), x.flatten(1)
    cross = torch.addmm(x.square().sum(1), z, x.T, alpha=-2.0)                 # ‖z‖² cancels in the posterior
    return cross[..., None]


def _mixer(group: Group, z: Tensor) -> Mixer:
    """Σ_ℓ r_ℓ p_ℓ, by the structure of r."""
    r = group.r
    if isinstance(r, SameAsQ) and isinstance(r.precision, Squares) and r.count is None and r.precision.around == 0:
        rows, columns = (band.to(z) for band in r.precision.bands())
        grid = r.precision.grid
        return lambda p: (rows.T @ p.unflatten(2, grid) @ columns)[:, :, None]
    dense = r.dense(z.dtype).to(z.device)
    return lambda p: (p @ dense.flatten(1)).unflatten(2, dense.shape[1:])


def _reweight(logit: Tensor, top: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logit − new top), the factor for what was summed before, and the new top."""
    new = torch.maximum(top, logit.detach().amax(1))
    return torch.exp(logit - new[:, None]), torch.exp(top - new), new


def _chunks(source: Source, size: int, z: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
    for pixels, log_weights in source.chunks(size):
        yield scale(pixels.to(z.device), z.dtype), None if log_weights is None else log_weights.to(z)


def _call(function: Callable, *args):
    return checkpoint(function, *args, use_reentrant=False) if torch.is_grad_enabled() else function(*args)


def _shifts(source: Translations, step: Step, z: Tensor, sigma: float) -> Tensor:
    """ELS: one displacement (dy, dx) of the source at a time, over the pixels that may take it (App. A.2.2)."""
    _, height, width = source.shape
    top, mass, moment = z.new_full(z[:, 0].shape, -torch.inf), torch.zeros_like(z[:, 0]), torch.zeros_like(z)
    for x, log_weights in _chunks(source.base, step.chunk, z):
        for dy, rows, window_y in displacements(height, source.size):
            for dx, columns, window_x in displacements(width, source.size):
                here = (..., slice(*rows), slice(*columns))
                there = (..., slice(rows[0] + dy, rows[1] + dy), slice(columns[0] + dx, columns[1] + dx))
                around_z = z[..., slice(*window_y), slice(*window_x)]
                around_x = x[..., window_y[0] + dy : window_y[1] + dy, window_x[0] + dx : window_x[1] + dx]
                bands = [_band(a, b, source.size).to(z) for a, b in ((rows, window_y), (columns, window_x))]
                distance = bands[0] @ _squares(around_z, around_x).sum(2) @ bands[1].T           # (B, n, rows, columns)
                logit = distance * (-0.5 / sigma**2)
                if log_weights is not None:
                    logit = logit + log_weights[:, None, None]
                weights, decay, new = _reweight(logit, top[here])
                added = mass[here] * decay + weights.sum(1)
                gained = moment[here] * decay[:, None] + (weights[:, :, None] * x[there]).sum(1)
                top = _put(top, here, new)
                mass = _put(mass, here, added)
                moment = _put(moment, here, gained)
    return moment / mass[:, None]


def _put(whole: Tensor, here: tuple, part: Tensor) -> Tensor:
    whole = whole.clone() if torch.is_grad_enabled() else whole
    whole[here] = part
    return whole


def displacements(length: int, size: int) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    """The displacements along one axis: offset, the pixels that take it, and the pixels their patches cover."""
    k = size // 2
    for offset in range(min(0, 2 * k + 1 - length), max(0, length - 2 * k - 1) + 1):
        if offset == 0:                                 # every pixel stays; patches are cut at the border
            yield 0, (0, length), (0, length)
        else:
            first, last = k + max(0, -offset), length - k - max(0, offset)
            yield offset, (first, last), (first - k, last + k)


def _band(pixels: tuple[int, int], window: tuple[int, int], size: int) -> Tensor:
    """Which pixels of the window each patch covers, (pixels, window)."""
    centre, at = torch.arange(*pixels)[:, None], torch.arange(*window)
    return (at - centre).abs() <= size // 2
