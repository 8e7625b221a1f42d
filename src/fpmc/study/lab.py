"""What an experiment works with: images, networks, noise levels, sizes."""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fpmc.augmentation.synthetic import synthesize
from fpmc.data import load_images
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.methods.schedules import read_table
from fpmc.methods.table1 import nearest
from fpmc.networks import load_maps, load_network
from fpmc.networks.maps import SensitivityMaps
from fpmc.networks.shipped import MAPS, SHIPPED, weights_of
from fpmc.process import Denoiser, edm_grid
from fpmc.study.scale import Scale

T = TypeVar("T")
REMEMBERED = 32                                         # denoisers and augmented sets kept in memory
DECAY_FROM = {"ffhq": 4.37, "afhq": 8.03}               # App. C.3; 1.92 elsewhere
HELD_OUT_SEED = 1                                       # of synthetic images; those that augment have 0


class Lab:
    """The data, the two networks and the scale of a run, with checksums of all that decides results."""

    def __init__(
        self,
        images: ImageSet,
        network: Denoiser,                              # DDPM++: fitted to, and the maker of synthetic images
        reference: Denoiser,                            # NCSN++: samples are judged by its samples
        scale: Scale,
        *,
        stamps: dict[str, str],                         # checksums of the networks and the maps
        held_out: ImageSet | None = None,               # None: samples of the network stand in
        maps: SensitivityMaps | None = None,            # None: computed
        dataset: str | None = None,                     # whose schedules and published values: cifar10, ffhq or afhq
        only: Sequence[str] = (),                       # rows of the results; none: all
        device: str = "cpu",
    ) -> None:
        for name, denoiser in (("network", network), ("reference", reference)):
            shape = tuple(getattr(denoiser, "shape", images.shape))
            if shape != images.shape:
                raise InputError(f"the {name} makes images of shape {shape}, the data has {images.shape}")
        if dataset is not None and read_table(dataset).resolution != images.shape[1]:
            side = read_table(dataset).resolution
            raise InputError(f"dataset {dataset!r} has images of {side}×{side}, these are {images.shape}; leave it out")
        self.images, self.scale, self.dataset, self.device = images, scale, dataset, device
        self.network, self.reference = (_There.of(each, device) for each in (network, reference))
        self.maps, self.given_held_out, self.only = maps, held_out, tuple(only)
        self.stamps = {"data": images.checksum(), **stamps}
        if held_out is not None:
            self.stamps["held_out"] = held_out.checksum()
        self._memory: OrderedDict[Hashable, Any] = OrderedDict()

    @classmethod
    def open(
        cls,
        data: str,
        scale: Scale,
        *,
        network: str | None = None,                     # None: the one shipped for the data
        reference: str | None = None,
        held_out: str | None = None,
        maps: str | None = None,
        dataset: str | None = None,
        only: Sequence[str] = (),
        max_size: int | None = None,
        device: str = "cpu",
    ) -> Lab:
        """Everything from names and paths; what cannot be used is refused here."""
        names = {"network": network or f"{data}-ddpmpp", "reference": reference or f"{data}-ncsnpp"}
        for option, name in names.items():
            if name not in SHIPPED and not Path(name).exists():
                shipped = ", ".join(SHIPPED) or "none"
                raise InputError(f"no network {name!r}; give --{option} a file or a shipped name ({shipped})")
        images = load_images(data)
        images = images if max_size is None else images.subset(slice(max_size))
        paths = {option: weights_of(name) if name in SHIPPED else Path(name) for option, name in names.items()}
        stamps = {option: _checksum(path) for option, path in paths.items()}
        shipped_maps = MAPS / f"{names['network']}.safetensors"
        maps = maps or (str(shipped_maps) if shipped_maps.is_file() else None)
        if maps is not None:
            stamps["maps"] = _checksum(Path(maps))
        return cls(
            images, load_network(names["network"], device=device), load_network(names["reference"], device=device),
            scale, stamps=stamps, held_out=_held_out(data, held_out), maps=None if maps is None else load_maps(maps),
            dataset=dataset or _guess(data, images), only=only, device=device,
        )

    @property
    def side(self) -> int:
        return self.images.shape[1]

    @property
    def dimension(self) -> int:
        return math.prod(self.images.shape)

    @property
    def steps(self) -> int:
        """Of sampling: 18 at 32×32, 40 at 64×64 (App. C.4)."""
        return 18 if self.side < 48 else 40

    @cached_property
    def grid(self) -> list[float]:
        """The noise levels of sampling, from 80 to 0.002."""
        return edm_grid(self.steps).tolist()

    def level(self, sigma: float) -> float:
        """The noise level of the grid nearest to σ."""
        return nearest(dict.fromkeys(self.grid), sigma)

    @property
    def published(self) -> str:
        """Whose published values stand beside ours: those of CIFAR-10 if the data is none of the paper's."""
        return self.dataset or "cifar10"

    @property
    def decay_from(self) -> float:
        return DECAY_FROM.get(self.dataset or "", 1.92)

    @property
    def added(self) -> float:
        """How many synthetic images the results add, relative to the training images."""
        wanted = len(self.images) if self.scale.synthetic is None else self.scale.synthetic
        return min(1.0, wanted / len(self.images))

    def stamped(self, *names: str) -> dict[str, str]:
        """The checksums of these, as far as they are files."""
        return {name: self.stamps[name] for name in names if name in self.stamps}

    @cached_property
    def held_out(self) -> ImageSet:
        """Images that are in no source: the test split, or samples of the network (App. C.3)."""
        if self.given_held_out is not None:
            return self.given_held_out
        return self.synthetic(self.scale.held_out / len(self.images), HELD_OUT_SEED)

    @property
    def tuning(self) -> ImageSet:
        """The half of the held-out images that something may be chosen on."""
        return self.held_out.subset(slice(max(1, len(self.held_out) // 2)))

    @property
    def judging(self) -> ImageSet:
        """The other half, on which errors are reported."""
        return self.held_out.subset(slice(len(self.held_out) // 2, None))

    def synthetic(self, amount: float, seed: int = 0) -> ImageSet:
        """Samples of the network, kept in the cache folder."""
        return synthesize(self.images, amount, seed, network=self.network, steps=self.steps, device=self.device)

    def recall(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes, or made lately."""
        if key not in self._memory:
            self._memory[key] = make()
            while len(self._memory) > REMEMBERED:
                self._memory.popitem(last=False)
        self._memory.move_to_end(key)
        return self._memory[key]


class _There:
    """A network on another device, spoken to from wherever z is."""

    def __init__(self, network: Denoiser, device: str) -> None:
        self.network, self.device = network, device
        self.shape = getattr(network, "shape", None)

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        return self.network(z.to(self.device), sigma).to(z.device)

    @classmethod
    def of(cls, network: Denoiser, device: str) -> Denoiser:
        return network if device == "cpu" else cls(network, device)


def _held_out(data: str, path: str | None) -> ImageSet | None:
    if path is not None:
        return load_images(path)
    try:
        return load_images(data, split="test")
    except InputError:                                  # an EDM zip has none
        return None


def _guess(data: str, images: ImageSet) -> str | None:
    stem = Path(data).stem.lower()
    for name in ("cifar10", "ffhq", "afhq"):
        if name in stem and read_table(name).resolution == images.shape[1]:
            return name
    return None


def _checksum(path: Path) -> str:
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
