"""Training a denoising network by EDM's loss (Eq. 5 of the paper; Karras et al. 2022, Table 1), on any device.

Everything random in a step is a function of (seed, step), so a run that was killed goes on bit for bit where its last
checkpoint stood. Printing, saving and sampling belong to the caller of the generator `train`.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor

from fpmc.errors import InputError
from fpmc.files import verify
from fpmc.images import ImageSet
from fpmc.networks.muon import Muon
from fpmc.networks.precond import EDMPrecond
from fpmc.process import Denoiser
from fpmc.readers.torches import read_torch, write_torch

OPTIMIZERS = {"adam": partial(torch.optim.Adam, fused=True), "muon": Muon}
VALIDATION_SIGMAS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


@dataclass(frozen=True)
class Recipe:
    """How to train; lengths are in images seen, so that they mean the same for every batch size."""

    images: int = 1_000_000  # length of the training
    batch: int = 64
    optimizer: Literal["adam", "muon"] = "adam"
    rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"  # after the warm-up; cosine falls to 0 at the end
    fall: int = 0  # a constant rate ends in a cosine to 0 over so many of the last images
    warmup: int = 20_000
    clip: float = 1.0  # largest gradient norm
    ema_halflife: int = 500_000
    ema_rampup: float = 0.05  # the half-life is at most this share of the images seen
    p_mean: float = -1.2  # ln σ ~ N(p_mean, p_std²)
    p_std: float = 1.2
    xflip: bool = False  # mirror half of the images; off, because the analytic denoisers model unflipped data
    target: Literal["clean", "posterior"] = "clean"  # what the network is drawn to, see `train`
    posterior_from: float = 1.0  # noise level below which E[x | z] over a finite set is x itself, or nearly
    precision: Literal["float32", "bfloat16"] = "float32"  # of the convolutions; weights are always float32
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("images", "batch", "rate", "clip", "ema_halflife", "ema_rampup", "p_std", "posterior_from"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("warmup", "fall", "seed"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.schedule not in ("constant", "cosine"):
            raise InputError(f"no schedule {self.schedule!r}; choose 'constant' or 'cosine'")
        if self.optimizer not in OPTIMIZERS:
            raise InputError(f"no optimizer {self.optimizer!r}; choose 'adam' or 'muon'")
        if self.target not in ("clean", "posterior"):
            raise InputError(f"no target {self.target!r}; choose 'clean' or 'posterior'")
        if self.precision not in ("float32", "bfloat16"):
            raise InputError(f"no precision {self.precision!r}; choose 'float32' or 'bfloat16'")

    @property
    def steps(self) -> int:
        return math.ceil(self.images / self.batch)

    def rate_at(self, step: int) -> float:
        seen = step * self.batch
        if seen < self.warmup:
            return self.rate * (seen + self.batch) / (self.warmup + self.batch)
        length = self.fall if self.schedule == "constant" else self.images - self.warmup
        share = (seen - self.images + length) / max(length, 1)
        return self.rate * 0.5 * (1 + math.cos(math.pi * min(max(share, 0.0), 1.0)))

    def ema_decay_at(self, step: int) -> float:
        halflife = min(self.ema_halflife, self.ema_rampup * (step + 1) * self.batch)
        return 0.5 ** (self.batch / halflife)


class Training:
    """A network on its way: the weights, their moving average (the one to use), the optimiser, and the step reached."""

    def __init__(self, net: EDMPrecond, recipe: Recipe) -> None:
        self.net = net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self.ema = copy.deepcopy(self.net).eval().requires_grad_(False)
        self.recipe = recipe
        self.optimizer = OPTIMIZERS[recipe.optimizer](self.net.parameters(), lr=recipe.rate)
        self.step = 0
        self.before = 0  # images that the weights it started from had seen
        self.loss = math.nan  # the mean over some hundred steps, the last ones most
        self.seconds = 0.0  # of processor time in steps, all sittings together; a paused process spends none

    @property
    def seen(self) -> int:
        """Images seen in all, by these weights and those they started from."""
        return self.before + self.step * self.recipe.batch

    def adopt(self, net: Denoiser, seen: int = 0) -> None:
        """Start from the weights of another network of the same architecture, which has seen so many images."""
        try:
            state = net.state_dict()  # pyright: ignore[reportFunctionMemberAccess]
            self.net.load_state_dict(state)
            self.ema.load_state_dict(state)
        except (AttributeError, RuntimeError) as error:
            raise InputError(f"these weights do not fit the network to train: {str(error)[:200]}") from error
        self.before = seen

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint, with its checksum beside it."""
        state = {
            "config": self.net.config,
            "recipe": asdict(self.recipe),
            "net": self.net.state_dict(),
            "ema": self.ema.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "before": self.before,
            "loss": self.loss,
            "seconds": self.seconds,
        }
        write_torch(path, state)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from a checkpoint of the same network."""
        try:
            verify(path)
            state: dict[str, Any] = read_torch(path)
            self.net.load_state_dict(state["net"])
            self.ema.load_state_dict(state["ema"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.seconds = state["step"], state["seconds"]
            self.before = state.get("before", self.before)  # checkpoints did not always tell
            self.loss = state.get("loss", self.loss)
        except (OSError, KeyError, ValueError, RuntimeError, EOFError) as error:
            raise InputError(
                f"{str(path)!r} is no checkpoint of this training ({error}); delete it to start anew"
            ) from error


@dataclass(frozen=True)
class Progress:
    """One step done."""

    step: int
    images: int  # seen so far
    loss: float  # of this batch, before the step
    gradient: float  # its norm before clipping
    rate: float
    seconds: float  # of processor time so far


def train(
    state: Training,
    images: ImageSet,
    *,
    optimal: Denoiser | None = None,
    steps: int | None = None,
    ahead: int = 1,  # steps whose targets are asked for together
) -> Iterator[Progress]:
    """Train `state` in place (Eq. 5), yielding after every step, to the end of its recipe or for `steps` steps.

    Given x, z scatters about the posterior mean E[x | z], which is what the loss draws the network to. With the target
    "posterior" the network is drawn there at once: `optimal`, the optimal denoiser of the same images, gives E[x | z]
    where σ ≥ posterior_from. The expected gradient is the same; the scatter of x, most of its noise at high σ, is gone.

    Two thirds of a step are convolutions at the processor's peak, which bfloat16 doubles where it is built in.
    `torch.compile` made a step no faster on a CPU, for minutes of compilation.
    """
    net, recipe = state.net, state.recipe
    _check_fit(net, recipe, images, optimal)
    device = next(net.parameters()).device
    net.train()
    end = recipe.steps if steps is None else min(recipe.steps, state.step + steps)
    coming = batches(images, recipe, state.step, net.label_dim, optimal, ahead)
    while state.step < end:
        began = time.process_time()
        x, z, sigma, labels = (None if value is None else value.to(device) for value in next(coming))
        rate = recipe.rate_at(state.step)
        for group in state.optimizer.param_groups:
            group["lr"] = rate
        state.optimizer.zero_grad(set_to_none=True)
        low = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(_seed(recipe.seed, "dropout", state.step))
            with low:
                loss = edm_loss(net, x, z, sigma, labels)  # pyright: ignore[reportArgumentType]
            loss.backward()
        gradient = torch.nn.utils.clip_grad_norm_(net.parameters(), recipe.clip)
        if not bool(gradient.isfinite()):
            raise InputError(f"training diverged at step {state.step} (loss {loss.item():g}); lower the rate {rate:g}")
        state.optimizer.step()
        _average(state.ema, net, recipe.ema_decay_at(state.step))
        state.step += 1
        found = loss.item()
        state.loss = found if math.isnan(state.loss) else 0.99 * state.loss + 0.01 * found
        state.seconds += time.process_time() - began
        yield Progress(state.step, state.step * recipe.batch, found, gradient.item(), rate, state.seconds)


def _check_fit(net: EDMPrecond, recipe: Recipe, images: ImageSet, optimal: Denoiser | None) -> None:
    if images.shape != net.shape:
        raise InputError(f"the network takes images of shape {net.shape}, {images.name!r} has {images.shape}")
    if net.label_dim and (images.labels is None or int(images.labels.max()) >= net.label_dim):
        raise InputError(f"a network of {net.label_dim} classes needs labels 0 … {net.label_dim - 1}")
    if recipe.target == "posterior" and (optimal is None or recipe.xflip or net.label_dim):
        raise InputError("the posterior target needs optimal=presets.optimal(images), no mirroring and no classes")


Batch = tuple[Tensor, Tensor, Tensor, "Tensor | None"]  # target and noisy (B, C, H, W), sigma (B,), one-hot labels


def batches(
    images: ImageSet, recipe: Recipe, start: int, classes: int, optimal: Denoiser | None = None, ahead: int = 1
) -> Iterator[Batch]:
    """The batches from step `start` on; targets are asked for `ahead` steps at a time, counted from step 0."""
    for first in count(start - start % ahead, ahead):
        drawn = [draw(images, recipe, step, classes) for step in range(first, first + ahead)]
        x, sigma, noise = (torch.cat(parts) for parts in list(zip(*drawn))[:3])
        z = x + sigma.reshape(-1, 1, 1, 1) * noise
        high = sigma >= recipe.posterior_from
        if recipe.target == "posterior" and optimal is not None and bool(high.any()):
            x[high] = optimal(z[high], sigma[high])
        parts = (value.split(recipe.batch) for value in (x, z, sigma))
        yield from list(zip(*parts, (labels for *_, labels in drawn)))[max(start - first, 0) :]


def edm_loss(
    net: EDMPrecond,
    x: Tensor,  # (B, C, H, W), the target
    z: Tensor,  # (B, C, H, W), noisy
    sigma: Tensor,  # (B,)
    labels: Tensor | None = None,  # one-hot (B, label_dim)
) -> Tensor:
    """Squared error of D(z, σ), weighted by 1/c_out(σ)² so that every noise level counts alike at the start."""
    weight = (sigma**2 + net.sigma_data**2) / (sigma * net.sigma_data) ** 2
    return (weight * (net(z, sigma, labels) - x).square().flatten(1).mean(1)).mean()


def draw(images: ImageSet, recipe: Recipe, step: int, classes: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The batch of a step: images (B, C, H, W), noise levels (B,), unit noise (B, C, H, W), one-hot labels or None."""
    total, first = len(images), step * recipe.batch
    index = torch.stack([
        _order(recipe.seed, position // total, total)[position % total]
        for position in range(first, first + recipe.batch)
    ])
    generator = torch.Generator().manual_seed(_seed(recipe.seed, "noise", step))
    x = images.scaled(index)
    if recipe.xflip:
        mirrored = torch.rand(recipe.batch, generator=generator) < 0.5
        x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    sigma = (recipe.p_mean + recipe.p_std * torch.randn(recipe.batch, generator=generator)).exp()
    noise = torch.randn(x.shape, generator=generator)
    labels = torch.eye(classes)[images.labels[index]] if classes and images.labels is not None else None
    return x.contiguous(memory_format=torch.channels_last), sigma, noise, labels


@torch.no_grad()
def validate(
    denoiser: Denoiser,
    images: ImageSet,
    *,
    sigmas: Sequence[float] = VALIDATION_SIGMAS,
    seed: int = 0,
    batch: int = 256,
    device: str | torch.device = "cpu",
) -> dict[float, float]:
    """Mean squared error against the clean held-out images by noise level, with the same noise at every call."""
    errors, known = dict.fromkeys(sigmas, 0.0), getattr(denoiser, "label_dim", 0)
    for start in range(0, len(images), batch):
        x = images.scaled(slice(start, start + batch))
        generator = torch.Generator().manual_seed(_seed(seed, "validation", start))
        noise = torch.randn(x.shape, generator=generator)
        labels = [images.labels[start : start + batch]] if known and images.labels is not None else []
        for sigma in sigmas:
            z = (x + sigma * noise).to(device)
            x0 = denoiser(z, torch.full((len(z),), sigma, device=device), *labels).cpu()
            errors[sigma] += (x0 - x).square().mean((1, 2, 3)).sum().item() / len(images)
    return errors


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself; elsewhere it is slower than float32."""
    asked = getattr(torch.cpu, "_is_avx512_bf16_supported", None)  # torch has no public name for it
    return asked is not None and asked()


def data_deviation(images: ImageSet) -> float:
    """σ_data: the standard deviation of all values of the images in [−1, 1], exactly, from the count of each byte."""
    counts = sum(torch.bincount(part.flatten().int(), minlength=256) for part in images.pixels.split(4096))
    values = (torch.arange(256, dtype=torch.float64) - 127.5) / 127.5
    share = torch.as_tensor(counts).double() / images.pixels.numel()
    return math.sqrt((share * (values - (share * values).sum()) ** 2).sum().item())


@torch.no_grad()
def _average(ema: torch.nn.Module, net: torch.nn.Module, decay: float) -> None:
    for mean, value in zip(ema.parameters(), net.parameters()):
        mean.lerp_(value, 1 - decay)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(_seed(seed, "order", epoch)))


def _seed(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1
