"""Samples of a network as additional images (App. B), kept in the cache folder."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from fpmc.augmentation.protocol import size_of
from fpmc.errors import InputError
from fpmc.files import atomic, home, lock, writing
from fpmc.images import ImageSet
from fpmc.networks import load_network
from fpmc.process import Denoiser
from fpmc.sampling import initial_noise, sample

# Torch's CPU generator looks at 32 bits of a seed. The upper half of them is ours, evaluation counts from 0.
FIRST_SEED = 2**31
ROOM = 2**21                                            # sampling seeds for each `seed`
Draw = Callable[[range], np.ndarray]                    # the samples of these sampling seeds, uint8 (n, C, H, W)


class Synthetic(ImageSet):
    """Network samples; the id of each is its sampling seed, which no original has."""

    base: ImageSet
    kept: Kept
    amount: float

    def __init__(self, base: ImageSet, kept: Kept, amount: float) -> None:
        size = size_of(len(base), amount, kept.seed)
        super().__init__(kept.pixels(size), ids=torch.tensor(kept.seeds(0, size)), name=f"{base.name}+synthetic")
        self.__dict__.update(base=base, kept=kept, amount=float(amount))

    def recipe(self) -> dict[str, Any]:
        """What these samples are, as plain data: with it they are found in the cache folder again."""
        made = {"seed": self.kept.seed, "steps": self.kept.steps, "network": self.kept.network}
        return {"kind": "synthetic", "amount": self.amount, **made, "of": self.base.recipe()}


def synthesize(
    images: ImageSet,
    amount: float = 1.0,
    seed: int = 0,
    *,
    network: Denoiser | str | os.PathLike[str],         # or what `fpmc.load_network` takes
    steps: int = 18,
    batch: int = 64,
    device: str | torch.device = "cpu",
    made: Draw | None = None,                           # where its samples come from, if they have been drawn before
) -> Synthetic:
    """`amount` times as many samples of a network as there are images (App. B), by Heun's method (App. C.4).

    They begin as the noise of seeds that evaluation never uses, are kept in the cache folder batch by batch, and an
    interrupted or larger set goes on from there.
    """
    size = size_of(len(images), amount, seed)
    denoiser = load_network(network, device=device)
    shape = getattr(denoiser, "shape", images.shape)
    if tuple(shape) != images.shape:
        raise InputError(f"the network makes images of shape {tuple(shape)}, these are {images.shape}")
    kept = Kept(_fingerprint(denoiser, images.shape, device), images.shape, seed, steps)
    draw = made if made is not None else partial(
        draw_pixels, denoiser, steps=steps, batch=batch, shape=images.shape, device=device
    )
    kept.extend(draw, size, batch)
    return Synthetic(images, kept, amount)


def draw_pixels(denoiser: Denoiser, seeds: Sequence[int], **settings: Any) -> np.ndarray:
    """Samples as bytes, (n, C, H, W)."""
    out = sample(denoiser, seeds=seeds, **settings)
    return ((out.images + 1) * 127.5).round().clamp(0, 255).byte().numpy()


def sampling_seeds(seed: int, start: int, stop: int) -> range:
    """The sampling seeds of synthetic images number `start` to below `stop`."""
    first = FIRST_SEED + seed * ROOM
    return range(first + start, first + stop)


class Kept:
    """Samples in the cache folder: pixels.u8, and count.txt with how many of them are whole and their SHA-256."""

    def __init__(self, network: str, shape: tuple[int, int, int], seed: int, steps: int) -> None:
        if seed >= (2**32 - FIRST_SEED) // ROOM:
            raise InputError(f"seed {seed} of synthetic images is too large; choose one from 0 to 1023")
        if not (isinstance(steps, Integral) and steps >= 1):
            raise InputError(f"steps must be a whole number from 1 on, got {steps!r}")
        self.network, self.shape, self.seed, self.steps = network, shape, int(seed), int(steps)
        key = hashlib.sha256(json.dumps([network, shape, self.seed, self.steps]).encode()).hexdigest()[:32]
        self.folder = home() / "synthetic" / key

    def __len__(self) -> int:
        return self._whole()[0]

    def _whole(self) -> tuple[int, Any]:
        """How many are whole, and their checksum so far; damaged ones do not count, so they are made again."""
        digest = hashlib.sha256()
        try:
            count, expected = (self.folder / "count.txt").read_text(encoding="ascii").split()
            wanted = int(count) * math.prod(self.shape)
            with (self.folder / "pixels.u8").open("rb") as file:
                while wanted > 0 and (block := file.read(min(wanted, 2**20))):
                    digest.update(block)
                    wanted -= len(block)
        except (OSError, ValueError):
            return 0, hashlib.sha256()
        return (int(count), digest) if wanted == 0 and digest.hexdigest() == expected else (0, hashlib.sha256())

    def seeds(self, start: int, stop: int) -> range:
        return sampling_seeds(self.seed, start, stop)

    def extend(self, draw: Draw, size: int, batch: int) -> None:
        """Draw until there are `size`, after any other process that draws here."""
        if size > ROOM:
            raise InputError(f"{size} synthetic images are more than the {ROOM} seeds they may use; lower the amount")
        if not (isinstance(batch, Integral) and batch >= 1):
            raise InputError(f"batch must be at least 1, got {batch!r}")
        if len(self) >= size:
            return
        held = lock(self.folder, wait=True)
        try:
            self._extend(draw, size, batch)
        finally:
            held.release()

    def _extend(self, draw: Draw, size: int, batch: int) -> None:
        place = self.folder / "pixels.u8"
        with writing(place):
            self.folder.mkdir(parents=True, exist_ok=True)
            place.touch()
        done, digest = self._whole()
        with writing(place), place.open("r+b") as file, tqdm(total=size, desc="synthetic", disable=None) as bar:
            bar.update(done)
            for start in range(done, size, batch):
                stop = min(start + batch, size)
                pixels = draw(self.seeds(start, stop))
                file.seek(start * math.prod(self.shape))
                file.write(pixels.data)
                file.flush()
                os.fsync(file.fileno())
                digest.update(pixels.tobytes())
                with atomic(self.folder / "count.txt") as part:
                    part.write_text(f"{stop} {digest.hexdigest()}")
                bar.update(stop - start)

    def pixels(self, size: int) -> np.ndarray:
        """The first `size` of them, uint8 (size, C, H, W), left on disk."""
        if len(self) < size:
            raise InputError(
                f"{size} synthetic images are wanted and {len(self)} are in {str(self.folder)!r}; make them with "
                f"fpmc.augment(images, 'synthetic', amount, seed={self.seed}, steps={self.steps}, network=...)"
            )
        return np.memmap(self.folder / "pixels.u8", np.uint8, "r", shape=(size, *self.shape))


def _fingerprint(denoiser: Denoiser, shape: tuple[int, int, int], device: str | torch.device) -> str:
    """What tells one network from another: its weights, or its answer to a question."""
    digest = hashlib.sha256()
    with torch.no_grad():
        answer = denoiser(initial_noise([0], shape).to(device, torch.float32), 1.0).cpu()
    if isinstance(denoiser, nn.Module):
        for name, tensor in denoiser.state_dict().items():
            digest.update(name.encode())
            digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        # Weights do not say what is done with them; an answer does, but its last digits depend on the machine.
        digest.update(f"{answer.double().norm():.2e}".encode())
    else:
        digest.update(answer.contiguous().numpy().data)
    return digest.hexdigest()
