"""Estimators that have a place in the image, and the classes of entries that they share.

An entry of q_ℓ or r_ℓ belongs to a class by where it is seen from the estimator's place: at one displacement, in a ring
farther out, or where the row of the Wiener filter has about one value. What is learned is a number for each class.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from fpmc.core.collection import Collection
from fpmc.core.gaussian import Gaussian
from fpmc.core.precision import Squares
from fpmc.core.sources import Source
from fpmc.errors import InputError
from fpmc.methods.table1 import wiener_maps
from fpmc.methods.wiener import wiener_matrix

NEAR = 3                                                # displacements up to here have a class each
RINGS = (0, 1, 2, 3, 5, 8, 12, 1 << 15)                 # the last distance of each ring
COARSE = 4                                              # pixels a side that share an estimator of the whole image
BINS = (0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.35, 0.55, 0.8)    # of a Wiener row, relative to its maximum


@dataclass(frozen=True)
class Places:
    """A collection whose estimators have a place: (channel or −1 for all, y, x) each."""

    shape: tuple[int, int, int]
    source: Source
    q: np.ndarray                                       # bool (L, C or 1, H, W)
    r: np.ndarray                                       # float32 (L, C or 1, H, W)
    channel: np.ndarray                                 # (L,)
    y: np.ndarray
    x: np.ndarray

    @classmethod
    def of(cls, collection: Collection) -> Places:
        """The places of a collection's estimators; one that sees the whole image is taken as one for each small block.

        Where noise is so strong that all is seen, neighbours listen alike; one for each pixel took seven times as long
        to learn.
        """
        (group, *others), (channels, height, width) = collection.groups, collection.shape
        if others or not isinstance(group.source, Source):
            kinds = ", ".join(type(each.source).__name__ for each in collection.groups)
            raise InputError(
                f"templates are learned for one group of estimators on images, this collection has {kinds}; "
                "use recipe='paper'"
            )
        q, r = group.q.dense(torch.float32), group.response()
        for name, values in (("q", q), ("r", r)):
            if not bool(((values == 0) | (values == 1)).all()):
                raise InputError(
                    f"templates start from binary {name}, this one goes up to {values.max():g}; use recipe='paper'"
                )
        number = np.arange(len(q))
        channel = np.full(len(q), -1)
        if len(q) == 1 and bool((q == 1).all()):        # the same denoiser, written with an estimator for each block
            down, across = (np.arange(size) // COARSE for size in (height, width))
            rows, columns = int(down[-1]) + 1, int(across[-1]) + 1
            block = torch.from_numpy(down[:, None] * columns + across)
            r = (block == torch.arange(rows * columns)[:, None, None]).float()[:, None]
            q, channel = q.expand(len(r), -1, -1, -1), np.full(len(r), -1)
            y = np.minimum(np.arange(rows) * COARSE + COARSE // 2, height - 1).repeat(columns)
            x = np.tile(np.minimum(np.arange(columns) * COARSE + COARSE // 2, width - 1), rows)
        elif isinstance(group.q, Squares) and len(group.q) == len(q):
            rows, columns = (group.q.starts(size).numpy() + group.q.size // 2 for size in (height, width))
            y, x = np.repeat(rows, len(columns)), np.tile(columns, len(rows))
        elif len(q) in (height * width, channels * height * width):
            pixel = number % (height * width)
            y, x = pixel // width, pixel % width
            if len(q) > height * width:
                channel = number // (height * width)
        else:
            raise InputError(
                f"templates need estimators with a place, one for each pixel or value, or squares; this collection has "
                f"{len(q)} for images of {collection.shape}; use recipe='paper'"
            )
        return cls(collection.shape, group.source, (q > 0).numpy(), r.numpy(), channel, y, x)

    def __len__(self) -> int:
        return len(self.q)

    @cached_property
    def offsets(self) -> tuple[np.ndarray, np.ndarray]:
        """How far below and to the right of each estimator's place each pixel is, (L, H, 1) and (L, 1, W)."""
        _, height, width = self.shape
        below = np.arange(height)[None, :, None] - self.y[:, None, None]
        return below, np.arange(width)[None, None, :] - self.x[:, None, None]

    @cached_property
    def distance(self) -> np.ndarray:
        """The larger of the two, (L, H, W)."""
        below, right = self.offsets
        return np.maximum(np.abs(below), np.abs(right))

    def displacements(self, channels: int, farthest: int = NEAR, mirrored: bool = False) -> Classes:
        """A class for each displacement up to `NEAR`, and for each ring from there on that begins by `farthest`.

        mirrored: displacements up and down, left and right, are the same.

        Where estimators and entries both have a channel, entries of other channels are in no class.
        """
        below, right = (np.abs(offset) for offset in self.offsets) if mirrored else self.offsets
        side = 2 * NEAR + 1
        near = (below + NEAR) * side + right + NEAR
        ring = np.searchsorted(RINGS, self.distance)
        ring = np.where(ring <= np.searchsorted(RINGS, farthest), side**2 + ring, -1)
        label = np.where(self.distance <= NEAR, near, ring)[:, None].repeat(channels, 1)
        if channels > 1 and self.channel[0] >= 0:
            label[np.arange(channels) != self.channel[:, None]] = -1
        return Classes.of(label)

    @cached_property
    def reach(self) -> int:
        """The distance within which 95 % of the entries of q are."""
        inside = np.bincount(self.distance[self.q.any(1)]).cumsum()
        return int(np.searchsorted(inside, 0.95 * inside[-1]))

    def rings(self) -> Classes:
        """Where r is not 0, by distance."""
        label = np.searchsorted(RINGS, self.distance)[:, None].repeat(self.r.shape[1], 1)
        return Classes.of(np.where(self.r > 0, label, -1))

    def binary(self) -> Classes:
        """Where q is 1: one class."""
        return Classes.of(np.where(self.q, 0, -1))

    def graded(self, gaussian: Gaussian, sigma: float) -> Classes:
        """By the value of the Wiener filter's row at the estimator's place, relative to its maximum."""
        channels, height, width = self.shape
        if self.q.shape[1] == channels and self.channel[0] >= 0:
            place = (self.channel * height + self.y) * width + self.x
            rows = wiener_matrix(gaussian, sigma).float()[torch.from_numpy(place)]
        else:
            rows = wiener_maps(gaussian, sigma).float()[torch.from_numpy(self.y), torch.from_numpy(self.x)]
        rows = rows.reshape(len(self), -1)
        relative = rows / rows.amax(1, keepdim=True).clamp(min=1e-30)
        label = np.searchsorted(BINS, relative.numpy()).astype(np.int16) - 1
        label = label.reshape(len(self), -1, height, width)
        return Classes.of(np.broadcast_to(label, self.q.shape))


@dataclass(frozen=True)
class Classes:
    """Classes of entries, of which an entry may be in one of each kind; numbered through."""

    labels: tuple[np.ndarray, ...]                      # int16 (L, n) each, −1: in no class of this kind
    sizes: tuple[int, ...]                              # how many classes each kind has

    @classmethod
    def of(cls, label: np.ndarray) -> Classes:
        """One kind; numbers that do not occur are left out."""
        found, places = np.unique(label, return_inverse=True)
        none = int(found[0] < 0)
        flat = (places.reshape(len(label), -1) - none).astype(np.int16)
        return cls((flat,), (len(found) - none,))

    def __add__(self, other: Classes) -> Classes:
        return Classes((*self.labels, *other.labels), (*self.sizes, *other.sizes))

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def counts(self) -> np.ndarray:
        """How many entries each has, (K,)."""
        pairs = zip(self.labels, self.sizes)
        return np.concatenate([np.bincount(label[label >= 0], minlength=size) for label, size in pairs])

    def start(self) -> np.ndarray:
        """1 for the classes of the first kind, 0 for the others."""
        return np.concatenate([np.ones(self.sizes[0]), np.zeros(len(self) - self.sizes[0])])

    def values(self, theta: np.ndarray) -> np.ndarray:
        """Σ_k θ_k of the classes each entry is in, (L, n); θ (K,)."""
        result, first = np.zeros(self.labels[0].shape), 0
        for label, size in zip(self.labels, self.sizes):
            result += np.append(theta[first : first + size], 0.0)[label]
            first += size
        return result

    def entries(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """For each estimator and each of `count` classes, those beyond the last empty: ends (L·count + 1,), places."""
        numbers, places, first = [], [], 0
        for label, size in zip(self.labels, self.sizes):
            row, place = (label >= 0).nonzero()
            numbers.append(row * count + first + label[row, place])
            places.append(place)
            first += size
        number, place = np.concatenate(numbers), np.concatenate(places)
        order = np.argsort(number, kind="stable")
        ends = np.concatenate([[0], np.bincount(number, minlength=len(self.labels[0]) * count).cumsum()])
        return ends, place[order]
