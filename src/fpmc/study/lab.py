"""What an experiment works with: images, networks, noise levels, sizes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fpmc.augmentation.synthetic import Draw, synthesize
from fpmc.data import load_images
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.networks import load_maps, load_network
from fpmc.networks.maps import SensitivityMaps
from fpmc.networks.shipped import MAPS, SHIPPED, weights_of
from fpmc.process import Denoiser
from fpmc.study.methods import checksum_of
from fpmc.study.policy import Policy, halves
from fpmc.study.scale import Scale

T = TypeVar("T")
REMEMBERED = 32                                         # denoisers and augmented sets kept in memory
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
        data: str | None = None,                        # the name or path of the images
        dataset: str | None = None,                     # whose schedules and published values: cifar10, ffhq or afhq
        only: Sequence[str] = (),                       # rows of the results; none: all
        device: str = "cpu",
    ) -> None:
        for name, denoiser in (("network", network), ("reference", reference)):
            shape = tuple(getattr(denoiser, "shape", images.shape))
            if shape != images.shape:
                raise InputError(f"the {name} makes images of shape {shape}, the data has {images.shape}")
        self.policy = policy = Policy(images, data, dataset)
        self.steps, self.grid, self.level, self.dataset = policy.steps, policy.grid, policy.level, policy.dataset
        self.images, self.scale, self.device = images, scale, device
        self.network, self.reference = (There.of(each, device) for each in (network, reference))
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
        network: str | None = None,                     # None: the one that comes for the data
        reference: str | None = None,
        held_out: str | None = None,
        maps: str | None = None,
        dataset: str | None = None,
        only: Sequence[str] = (),
        max_size: int | None = None,
        device: str = "cpu",
    ) -> Lab:
        """Everything from names and paths; what cannot be used is refused here."""
        images = load_images(data)
        images = images if max_size is None else images.subset(slice(max_size))
        policy = Policy(images, data, dataset)
        names = {
            "network": policy.network(network), "reference": policy.network(reference, "ncsnpp", "reference")
        }
        stamps = {option: str(checksum_of(weights_of(name) if name in SHIPPED else Path(name)))
                  for option, name in names.items()}
        found = policy.maps(names["network"]) if maps is None else load_maps(maps)
        if found is not None:
            stamps["maps"] = str(checksum_of(Path(maps or MAPS / f"{names['network']}.safetensors")))
        loaded = {option: load_network(name, device=device) for option, name in names.items()}
        return cls(
            images, scale=scale, stamps=stamps, data=data, maps=found, dataset=dataset, only=only, device=device,
            held_out=policy.test if held_out is None else load_images(held_out), **loaded,
        )

    @property
    def side(self) -> int:
        return self.images.shape[1]

    @property
    def dimension(self) -> int:
        return math.prod(self.images.shape)

    @property
    def few_els(self) -> bool:
        """ELS has only some of the images."""
        return self.scale.els_images is not None and self.scale.els_images < len(self.images)

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

    tuning = property(lambda self: halves(self.held_out)[0])        # that something may be chosen on
    judging = property(lambda self: halves(self.held_out)[1])       # on which errors are reported

    def synthetic(self, amount: float, seed: int = 0, made: Draw | None = None) -> ImageSet:
        """Samples of the network, kept in the cache folder; `made`: those that have been drawn."""
        return synthesize(
            self.images, amount, seed, network=self.network, steps=self.steps, device=self.device, made=made
        )

    def recall(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` makes, or made lately."""
        if key not in self._memory:
            self._memory[key] = make()
            while len(self._memory) > REMEMBERED:
                self._memory.popitem(last=False)
        self._memory.move_to_end(key)
        return self._memory[key]


class There:
    """A network on another device, spoken to from wherever z is."""

    def __init__(self, network: Denoiser, device: str) -> None:
        self.network, self.device = network, device
        self.shape = getattr(network, "shape", None)

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        return self.network(z.to(self.device), sigma).to(z.device)

    @classmethod
    def of(cls, network: Denoiser, device: str) -> Denoiser:
        return network if device == "cpu" else cls(network, device)
