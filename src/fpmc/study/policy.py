"""What is settled for a data set: its noise levels, held-out images, weight decay, thresholds, networks and maps.

Python, the command line and the paper's exhibits ask here; nobody else states such a fact.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from fpmc.data import load_images
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.methods.schedules import SHIPPED as PAPERS
from fpmc.methods.schedules import read_table
from fpmc.methods.table1 import nearest
from fpmc.networks import load_maps
from fpmc.networks.maps import SensitivityMaps
from fpmc.networks.shipped import MAPS, SHIPPED, data_of
from fpmc.process import edm_grid

LARGE = 48                                              # pixels a side from which images are treated as 64×64 are
DECAY_FROM = {"cifar10": 1.92, "ffhq": 4.37, "afhq": 8.03}     # App. C.3
TAU = {"cifar10": 0.05, "ffhq": 0.02, "afhq": 0.02}     # of Lukoianov (App. C.1)
TENTH = 10                                              # without a test split, one image in so many is held out
SAME = 0.01                                             # noise levels as near as that, relatively, are one


def steps_for(shape: tuple[int, int, int]) -> int:
    """Noise levels of sampling: 18 at 32×32, 40 at 64×64 (App. C.4)."""
    return 18 if min(shape[1:]) < LARGE else 40


@dataclass(frozen=True, eq=False)
class Policy:
    """What is settled for these images."""

    images: ImageSet                                    # the training images
    data: str | None = None                             # the name or path they were loaded from
    given: str | None = None                            # whose schedules and published values, if somebody says

    def __post_init__(self) -> None:
        side = self.images.shape[1]
        if self.given is not None and (theirs := read_table(self.given).resolution) != side:
            shape = self.images.shape
            raise InputError(f"dataset {self.given!r} has images of {theirs}×{theirs}, these are {shape}; leave it out")

    # Whose images these are

    @cached_property
    def shipped(self) -> str | None:
        """The set with networks in the package that these images are of: by its name *and* by a few of its pixels."""
        return data_of(self.images)

    @cached_property
    def dataset(self) -> str | None:
        """The data set of the paper that these are; a file is known by its name and resolution, nothing else is."""
        stem = Path(self.data or self.images.name).stem.lower()
        named = next((name for name in PAPERS if name in stem), None)
        if self.given or named is None or self.shipped == named:
            return self.given or named
        ours = stem == named and f"{named}-ddpmpp" in SHIPPED                  # the name is taken, the pixels differ
        return None if ours or read_table(named).resolution != self.images.shape[1] else named

    @property
    def large(self) -> bool:
        return min(self.images.shape[1:]) >= LARGE

    @property
    def like(self) -> str:
        """The data set of the paper whose values stand in where these images are none of it."""
        return self.dataset or ("ffhq" if self.large else "cifar10")

    # Numbers of the paper

    @property
    def steps(self) -> int:
        return steps_for(self.images.shape)

    @cached_property
    def grid(self) -> list[float]:
        """The noise levels of sampling, from 80 to 0.002."""
        return edm_grid(self.steps).tolist()

    def level(self, sigma: float) -> float:
        """The noise level of the grid nearest to σ."""
        return nearest(dict.fromkeys(self.grid), sigma)

    def known(self, sigma: float) -> float:
        """σ, or the level of the grid that is meant by it: 1.09 is 1.0885…"""
        level = self.level(sigma)
        return level if abs(level / sigma - 1) < SAME else float(sigma)

    def numbered(self, numbers: Iterable[int]) -> list[float]:
        """Levels of the grid by number, 0 being the noisiest."""
        numbers = sorted(set(numbers))
        if not numbers or not 0 <= numbers[0] <= numbers[-1] < self.steps:
            raise InputError(f"levels {numbers}: the grid of these images has 0 to {self.steps - 1}, from σ = 80 down")
        return [self.grid[number] for number in numbers]

    @property
    def decay_from(self) -> float:
        """The noise level from which fine-tuning has weight decay."""
        return DECAY_FROM[self.like]

    @property
    def tau(self) -> float:
        """Lukoianov's threshold."""
        return TAU[self.like]

    # Networks and maps in the package

    @property
    def networks(self) -> tuple[str, ...]:
        """Those that come for these images: DDPM++, which is fitted to, then NCSN++, which judges."""
        return tuple(name for name in SHIPPED if name.rpartition("-")[0] == self.shipped)

    def network(self, named: str | None = None, kind: str = "ddpmpp", option: str = "network") -> str:
        """The network that is meant, which must be there: `named`, or the one that comes for these images."""
        name = named or f"{self.shipped}-{kind}"
        if name not in SHIPPED and not Path(name).exists():
            which = f"no network {named!r}" if named else f"no {kind} network comes for {self.images!r}"
            raise InputError(f"{which}; give --{option} a file or a shipped name ({', '.join(SHIPPED)})")
        return name

    def maps(self, network: str | None = None) -> SensitivityMaps | None:
        """The sensitivity maps of a shipped network, by default of the one that comes for these images."""
        file = MAPS / f"{network or f'{self.shipped}-ddpmpp'}.safetensors"
        return load_maps(file) if file.is_file() else None

    # Held-out images

    @cached_property
    def test(self) -> ImageSet | None:
        """The test split, if the data has one; images that were not loaded by name have none."""
        try:
            return None if self.data is None else load_images(self.data, split="test")
        except InputError:                              # an EDM zip has none
            return None

    @property
    def _tenth(self) -> torch.Tensor:
        return torch.arange(len(self.images)) % TENTH == TENTH - 1

    @cached_property
    def training(self) -> ImageSet:
        """The images that may be learned from: all of them, or those that are not held out."""
        return self.images if self.test is not None else self.images.subset(~self._tenth)

    @cached_property
    def held_out(self) -> ImageSet:
        """The test split, or one in ten of the images."""
        if self.test is None and len(self.images) < TENTH:
            raise InputError(
                f"there is no test split, and {len(self.images)} images are too few to take held-out images from; "
                f"give at least {TENTH}, or data with a test split"
            )
        return self.images.subset(self._tenth) if self.test is None else self.test

    tuning = property(lambda self: halves(self.held_out)[0])        # that something may be chosen on
    judging = property(lambda self: halves(self.held_out)[1])       # on which errors are reported


def halves(held_out: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Held-out images to choose on, and held-out images to judge by."""
    half = len(held_out) // 2
    return held_out.subset(slice(max(1, half))), held_out.subset(slice(half, None))
