"""Augmented images that exist when they are read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from fpmc.augmentation.kinds import OURS, QUICK, Kind
from fpmc.augmentation.protocol import choose, size_of
from fpmc.data.store import gather
from fpmc.errors import InputError
from fpmc.images import ImageSet, Index

CHUNK = 4096                                            # images made at a time where all of them are
VERSION = 1                                             # of the transformations: changes with the bytes they make


class Augmented(ImageSet):
    """D′ (App. B): transformed copies of images, made when they are read; any slice is made on its own.

    A copy has the id of its original, so a leave-out takes both. What streams (denoisers, checksums, packing) holds a
    stretch at a time. Once more has been read than there is, some was made twice: the set is stored then, and read from
    there on. Reflections and moves are as quickly made as read, and take no memory.
    """

    base: ImageSet
    kind: Kind
    amount: float
    seed: int
    rows: Tensor            # int64 (n,), where in the base each copy comes from
    parameters: Tensor      # float64 (n, P)
    made: float             # images made so far

    def __init__(self, base: ImageSet, kind: Kind, amount: float = 1.0, seed: int = 0) -> None:
        rows, parameters = choose(kind, base.ids, size_of(len(base), amount, seed), seed)
        self.__dict__.update(
            base=base,
            kind=kind,
            amount=float(amount),
            seed=int(seed),
            rows=rows,
            parameters=parameters,
            made=0,
            labels=None if base.labels is None else base.labels[rows],
            ids=base.ids[rows],
            name=f"{base.name}+{kind.name}",
        )

    @cached_property
    def pixels(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All of them, uint8 (n, C, H, W), in memory."""
        return torch.cat(list(self._chunks()))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.base.shape

    @property
    def lasting(self) -> bool:
        """The recipe decides every byte; what a registered kind does may change under its name."""
        return self.kind.name in OURS and getattr(self.base, "lasting", True)

    def read(self, index: Index) -> Tensor:
        chosen = self._index(index)
        if "pixels" in self.__dict__:
            return super().read(chosen)
        self.__dict__["made"] += len(self.rows[chosen])
        if self.made > len(self) and self.kind.name not in QUICK and self.lasting:
            try:
                return self.stored().pixels[chosen]
            except InputError:                          # no room for it: go on making
                self.__dict__["made"] = -math.inf
        return self._make(chosen)

    def stored(self) -> Augmented:
        """Make all images now, to be read instead of made from here on; returns the set itself.

        More than 64 MiB go to a file of the cache folder, and are found there the next time.
        """
        if not self.lasting:
            raise InputError(
                f"{self.name!r} is made by a registered kind, which may change under its name, so it is not cached; "
                "write the images with fpmc.data.pack and load those"
            )
        if "pixels" not in self.__dict__:
            key = f"augmented {VERSION} {json.dumps(self.recipe(), sort_keys=True)}"
            chunks = (chunk.numpy() for chunk in self._chunks())
            self.__dict__["pixels"] = ImageSet(gather((len(self), *self.shape), chunks, key)).pixels
        return self

    def _chunks(self) -> Iterator[Tensor]:
        for start in tqdm(range(0, len(self), CHUNK), desc=self.name, unit="chunk", delay=1, disable=None):
            yield self._make(slice(start, start + CHUNK))

    def _make(self, chosen: slice | Tensor) -> Tensor:
        rows = self.rows[chosen]
        first = int(rows[0]) if len(rows) else 0
        following = slice(first, first + len(rows))
        straight = torch.equal(rows, torch.arange(following.start, following.stop))     # then the base need not copy
        return self.kind(self.base.read(following if straight else rows), self.parameters[chosen])

    def recipe(self) -> dict[str, Any]:
        """What makes the same set from the same images, as plain data."""
        return {"kind": self.kind.name, "amount": self.amount, "seed": self.seed, "of": self.base.recipe()}
