"""Augmented images that exist when they are read."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from fpmc.augmentation.kinds import PAPER, Kind
from fpmc.augmentation.protocol import choose, size_of
from fpmc.data.store import gather
from fpmc.errors import InputError
from fpmc.images import ImageSet, Index

CHUNK = 4096                                            # images made at a time where all of them are
VERSION = 1                                             # of the transformations: changes with the bytes they make


class Augmented(ImageSet):
    """D′ (App. B): transformed copies of images, made when they are read; any slice is made on its own.

    A copy has the id of its original, so a leave-out takes both. `read` and all that streams (denoisers, checksums,
    `fpmc.data.pack`) hold a stretch at a time; `pixels` holds all of them.
    """

    base: ImageSet
    kind: Kind
    amount: float
    seed: int
    rows: Tensor            # int64 (n,), where in the base each copy comes from
    parameters: Tensor      # float64 (n, P)

    def __init__(self, base: ImageSet, kind: Kind, amount: float = 1.0, seed: int = 0) -> None:
        rows, parameters = choose(kind, base.ids, size_of(len(base), amount, seed), seed)
        self.__dict__.update(
            base=base,
            kind=kind,
            amount=float(amount),
            seed=int(seed),
            rows=rows,
            parameters=parameters,
            labels=None if base.labels is None else base.labels[rows],
            ids=base.ids[rows],
            name=f"{base.name}+{kind.name}",
        )

    @cached_property
    def pixels(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All of them, uint8 (n, C, H, W), in memory."""
        return torch.cat([self.read(slice(start, start + CHUNK)) for start in range(0, len(self), CHUNK)])

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.base.shape

    def read(self, index: Index) -> Tensor:
        if "pixels" in self.__dict__:
            return super().read(index)
        chosen = self._index(index)
        rows = self.rows[chosen]
        first = int(rows[0]) if len(rows) else 0
        following = slice(first, first + len(rows))
        straight = torch.equal(rows, torch.arange(following.start, following.stop))     # then the base need not copy
        return self.kind(self.base.read(following if straight else rows), self.parameters[chosen])

    def stored(self) -> Augmented:
        """Make all images now, to be read instead of made from here on; returns the set itself.

        More than 64 MiB go to a file of the cache folder, and are found there the next time.
        """
        if self.kind.name not in PAPER:
            raise InputError(
                f"what {self.kind.name!r} does may change under its name, so it is not cached; "
                "write the images with fpmc.data.pack and load those"
            )
        if "pixels" not in self.__dict__:
            starts = tqdm(range(0, len(self), CHUNK), desc=self.name, unit="chunk", delay=1, disable=None)
            chunks = (self.read(slice(start, start + CHUNK)).numpy() for start in starts)
            key = f"augmented {VERSION} {json.dumps(self.recipe(), sort_keys=True)}"
            self.__dict__["pixels"] = ImageSet(gather((len(self), *self.shape), chunks, key)).pixels
        return self

    def recipe(self) -> dict[str, Any]:
        """What makes the same set from the same images, as plain data."""
        return {"kind": self.kind.name, "amount": self.amount, "seed": self.seed, "of": self.base.recipe()}
