"""Gradient sensitivity maps of a denoiser (App. A.1.2): which input pixels an output pixel listens to."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fpmc.errors import InputError
from fpmc.files import verify, write_checked
from fpmc.gate import check_device
from fpmc.images import ImageSet, check_images
from fpmc.process import Denoiser
from fpmc.readers.tensors import read_safetensors, write_safetensors


@dataclass(frozen=True, eq=False)
class SensitivityMaps(Mapping[float, Tensor]):
    """{σ: maps (H, W, H, W)}, maps[y, x] for output pixel (y, x), as `presets.pspc_flex` takes them."""

    maps: dict[float, Tensor]
    draws: dict[float, int]         # forward draws averaged
    errors: dict[float, float]      # standard error of the mean over draws, relative: Σ standard errors / Σ means

    def __getitem__(self, sigma: float) -> Tensor:
        return self.maps[sigma]

    def __iter__(self) -> Iterator[float]:
        return iter(self.maps)

    def __len__(self) -> int:
        return len(self.maps)


def sensitivity_maps(
    denoiser: Denoiser,
    images: ImageSet,
    sigmas: Sequence[float],
    *,
    draws: int = 16,                                        # of an image and its noise, per noise level
    probes: int = 0,                                        # further draws, with many output pixels in one gradient
    spacing: int = 7,                                       # pixels from one of them to the next
    seed: int = 0,
    chunk: int = 64,                                        # gradients computed together; only memory depends on it
    device: str | torch.device = "cpu",
    checkpoint: str | os.PathLike[str] | None = None,       # folder: what is there is not computed again
    progress: Callable[[int, int], object] | None = None,   # called with (draws done, draws in all)
) -> SensitivityMaps:
    """G(x, y, t) = E Σ_c abs ∂D(z)_{x,y,c} / ∂z_c over training images x and noisy z (App. A.1.2).

    Gradients stay within their channel. Works for every differentiable denoiser; more draws go on from a checkpoint.

    A probe is the gradient of a lattice of output pixels, of which each is given what is nearest to it: H W / spacing²
    times cheaper, but blind to what is far away. The mean over draws of what it gets wrong, plus the mean over probes,
    has no bias, and where maps are local its error is nearly that of so many draws.
    """
    check_images(images), check_device(device)
    if not hasattr(sigmas, "__len__"):
        raise InputError(f"sigmas are several noise levels, e.g. [{sigmas}]; got {sigmas!r}")
    for sigma in sigmas:
        if not 0 < sigma < math.inf:
            raise InputError(f"sigma {sigma} is not a noise level; it must be positive and finite")
    if draws < 1 or chunk < 1 or not len(sigmas):
        raise InputError(f"maps need sigmas, draws >= 1 and chunk >= 1; got {len(sigmas)} sigmas, {draws} and {chunk}")
    if probes < 0 or spacing < 1:
        raise InputError(f"probes are 0 or more, spacing is 1 pixel or more; got {probes} and {spacing}")
    identity = {"seed": str(seed), "images": images.checksum(), "denoiser": _answer(denoiser, images, device)}
    sums: dict[float, tuple[_Sums, ...]] = {}
    for sigma in map(float, sigmas):
        kept = [None] * 2 if checkpoint is None else sums_files(checkpoint, sigma, spacing if probes else 0)
        sums[sigma] = tuple(_Sums(images.shape, path, identity) for path in kept[: 2 if probes else 1])
    wanted = (draws, probes)

    def told() -> None:
        if progress is not None:
            done = sum(min(one.count, most) for each in sums.values() for one, most in zip(each, wanted))
            progress(done, (draws + probes) * len(sums))

    for sigma, (rest, *probed) in sums.items():
        while rest.count < draws:
            z = _draw(images, sigma, seed, rest.count).to(device)
            pull = _pullback(denoiser, z, sigma)
            maps = _gradients(pull, z, chunk)
            rest.add((maps - _probe(pull, z, spacing, chunk) if probes else maps).cpu())
            told()
        for one in probed:
            while one.count < probes:
                z = _draw(images, sigma, seed, -1 - one.count).to(device)      # other ones than above
                one.add(_probe(_pullback(denoiser, z, sigma), z, spacing, chunk).cpu())
                told()
    means = {sigma: torch.stack([one.mean for one in each]).sum(0).clamp_(min=0) for sigma, each in sums.items()}
    errors = {sigma: torch.stack([one.variance for one in each]).sum(0).sqrt_() for sigma, each in sums.items()}
    return SensitivityMaps(
        means,
        {sigma: sum(one.count for one in each) for sigma, each in sums.items()},
        {sigma: (errors[sigma].sum() / means[sigma].sum()).item() for sigma in sums},
    )


def _draw(images: ImageSet, sigma: float, seed: int, index: int) -> Tensor:  # (1, C, H, W)
    digest = hashlib.blake2b(repr(("maps", seed, sigma, index)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
    x = images.scaled(torch.randint(len(images), (1,), generator=generator))
    return x + sigma * torch.randn(x.shape, generator=generator)


Pullback = Callable[[Tensor], Tensor]                       # from cotangents (n, C, H, W) of D(z) to those of z


def _gradients(pull: Pullback, z: Tensor, chunk: int) -> Tensor:  # (H, W, H, W)
    """Σ_c |∂D(z)_{y,x,c} / ∂z_c|, all output pixels, by chunks of vector-Jacobian products."""
    _, channels, height, width = z.shape
    maps = z.new_zeros(height * width, height * width)
    for channel in range(channels):
        for rows in torch.arange(height * width, device=z.device).split(chunk):
            outputs = z.new_zeros(len(rows), channels, height * width)
            outputs[torch.arange(len(rows)), channel, rows] = 1
            gradients = pull(outputs.view(len(rows), channels, height, width))
            maps[rows] += gradients[:, channel].flatten(1).abs()
    return maps.view(height, width, height, width)


def _probe(pull: Pullback, z: Tensor, spacing: int, chunk: int) -> Tensor:  # (H, W, H, W)
    """The same from lattices of output pixels, each of which is given the inputs that are nearest to it."""
    _, channels, height, width = z.shape
    down, across = torch.arange(height, device=z.device), torch.arange(width, device=z.device)
    lattice = (down % spacing)[:, None] * spacing + across % spacing           # (H, W): which an output pixel is in
    found = z.new_zeros(spacing**2, height, width)
    for channel in range(channels):
        for numbers in torch.arange(spacing**2, device=z.device).split(chunk):
            outputs = z.new_zeros(len(numbers), channels, height, width)
            outputs[:, channel] = (lattice == numbers[:, None, None]).to(z)
            found[numbers] += pull(outputs)[:, channel].abs()
    rows, columns = (_nearest(each, spacing).to(z) for each in (down, across))
    return found[lattice] * rows[:, None, :, None] * columns[:, None, :]


def _nearest(place: Tensor, spacing: int) -> Tensor:  # (n, n) bool
    """Which inputs belong to which output on a line."""
    ahead = place - place[:, None] + spacing // 2
    return (ahead >= 0) & (ahead < spacing)


def _pullback(denoiser: Denoiser, z: Tensor, sigma: float) -> Pullback:

    def repeat(outputs: Tensor) -> Tensor:
        batch = z.repeat(len(outputs), 1, 1, 1).requires_grad_()
        x0 = denoiser(batch, sigma)
        if not x0.requires_grad:
            raise InputError("this denoiser gives no gradients, so it has no sensitivity maps")
        return torch.autograd.grad(x0, batch, outputs)[0]

    try:
        pull = torch.func.vjp(lambda z: denoiser(z, sigma), z)[1]
        batched = torch.func.vmap(lambda output: pull(output[None])[0][0])
        batched(torch.zeros_like(z))
    except (RuntimeError, InputError):  # code that torch.func cannot look into costs 1.5 times as much
        return repeat
    return batched


def _answer(denoiser: Denoiser, images: ImageSet, device: str | torch.device) -> float:
    """What tells two denoisers apart: the mean size of an answer."""
    with torch.no_grad():
        x0 = denoiser(_draw(images, 1.0, 0, 0).to(device), 1.0)
    if x0.shape[1:] != images.shape:
        raise InputError(f"the denoiser answers {tuple(x0.shape[1:])} to images of shape {images.shape}")
    return x0.double().abs().mean().item()


def sums_files(folder: str | os.PathLike[str], sigma: float, spacing: int = 0) -> list[Path]:
    """Where the draws of one noise level are added up; with probes, of some spacing, what they lack and themselves."""
    parts = [f"-rest-{spacing}", f"-probes-{spacing}"] if spacing else [""]
    return [Path(folder) / f"sigma-{sigma:.6g}{part}.safetensors" for part in parts]


class _Sums:
    """Sum and sum of squares over draws at one noise level, kept in a file if there is a path for it."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        path: Path | None,
        identity: dict[str, str | float],  # what the sums belong to; numbers may differ by rounding
    ) -> None:
        self.count, self.identity = 0, identity
        self.total, self.squares = (torch.zeros(*shape[1:], *shape[1:]) for _ in range(2))
        self.path = path
        if self.path is not None and self.path.exists():
            self._restore(self.path)

    def _restore(self, path: Path) -> None:
        try:
            verify(path)
            tensors, metadata = read_safetensors(path)
            self.count = int(metadata.pop("count"))
            self.total, self.squares = tensors["total"], tensors["squares"]
        except (KeyError, ValueError) as error:
            raise InputError(f"{str(path)!r} is no checkpoint of sensitivity maps ({error}); delete it") from error
        for key, value in self.identity.items():
            found = metadata.get(key, "nan")
            if not (math.isclose(float(found), value, rel_tol=1e-4) if isinstance(value, float) else found == value):
                raise InputError(f"{str(path)!r} belongs to another {key}; choose another folder or delete it")

    def add(self, maps: Tensor) -> None:
        self.count += 1
        self.total += maps
        self.squares += maps**2
        if self.path is not None:
            metadata = {"count": str(self.count), **{key: str(value) for key, value in self.identity.items()}}
            sums = {"total": self.total, "squares": self.squares}
            write_checked(self.path, lambda part: write_safetensors(part, sums, metadata))

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def variance(self) -> Tensor:
        """Of the mean; nan after one draw."""
        spread = (self.squares - self.total**2 / self.count).clamp(min=0)
        return spread / self.count / (self.count - 1) if self.count > 1 else torch.full_like(spread, math.nan)
