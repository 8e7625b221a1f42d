"""V: what is averaged. Weighted images, or their translations; `gaussian` has the Gaussian."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fpmc.core.precision import Precision, Squares
from fpmc.core.record import Structure
from fpmc.core.response import Partition, Response
from fpmc.errors import InputError, show
from fpmc.gate import check_numbers
from fpmc.images import ImageSet, check_images

Read = Callable[[ImageSet, int, int], Tensor]           # uint8 (n, C, H, W)


class Chunk(NamedTuple):
    """A stretch of a source."""

    pixels: Tensor                                      # uint8 (n, C, H, W)
    log_weights: Tensor | None                          # float64 (n,); None: all equal
    first: int                                          # where in the source it begins


class Measure(Structure, ABC):
    """ν: what an estimator averages (Section 3)."""

    shape: tuple[int, int, int]                         # (C, H, W)
    per_estimator: bool = False                         # each estimator has a source of its own

    def check(self, q: Precision, r: Response) -> None:
        """Refuse estimators that this measure does not go with."""

    @abstractmethod
    def changed(self, change: Callable[[Source], Source]) -> Measure:
        """The same measure of changed images, e.g. without some of them."""


class Discrete(Measure):
    """A measure on images: sets of them, one after the other, and the logarithm of the weight of each."""

    parts: tuple[ImageSet, ...]
    log_weights: Tensor | None                          # float64 (N,); None: all equal

    @property
    def shape(self) -> tuple[int, int, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.parts[0].shape

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @cached_property
    def ids(self) -> Tensor:
        """The source id of every image (N,)."""
        return torch.cat([part.ids for part in self.parts])

    def chunks(self, size: int, first: int = 0, last: int | None = None, read: Read | None = None) -> Iterator[Chunk]:
        """The images from `first` to `last` in stretches of at most `size`; those without weight are passed over.

        read: how a set gives its images from one number to another, where not by itself.
        """
        last = len(self) if last is None else last
        start = 0
        for part in self.parts:
            for begin in range(max(0, first - start), min(len(part), last - start), size):
                end = min(begin + size, len(part), last - start)
                here = slice(start + begin, start + end)
                weights = None if self.log_weights is None else self.log_weights[here]
                if weights is None or bool((weights > -torch.inf).any()):
                    pixels = part.read(slice(begin, end)) if read is None else read(part, begin, end)
                    yield Chunk(pixels, weights, start + begin)
            start += len(part)

    def read(self, index: Tensor) -> Tensor:
        """The images of `index`, uint8 (n, C, H, W)."""
        ends = torch.tensor([len(part) for part in self.parts]).cumsum(0)
        of = torch.bucketize(index, ends, right=True)
        pixels = torch.empty(len(index), *self.shape, dtype=torch.uint8)
        for number, part in enumerate(self.parts):
            here = of == number
            if bool(here.any()):
                pixels[here] = part.read(index[here] - (ends[number] - len(part)))
        return pixels


class Source(Discrete, kind="images"):
    """ν: a discrete measure on images (Section 3), uniform over all of them unless weights are given.

    `a | b` is the union of two sources: uniform over the union while both are uniform, else with masses proportional
    to how many images they hold that have weight. Unions share memory with their parts, and so does a leave-out.
    """

    def __init__(self, images: ImageSet | Sequence[ImageSet], log_weights: Tensor | None = None) -> None:
        self.parts = (images,) if isinstance(images, ImageSet) else tuple(images)
        if wrong := [type(part).__name__ for part in self.parts if not isinstance(part, ImageSet)]:
            raise InputError(f"a source is made of ImageSets, got {wrong[0]}; make one with ImageSet(pixels)")
        shapes = {part.shape for part in self.parts}
        if len(shapes) != 1:
            raise InputError(f"a source needs images of one shape, got {sorted(shapes) or 'none'}")
        self.log_weights = None if log_weights is None else _normalise(log_weights, len(self))

    def arguments(self) -> dict[str, Any]:
        return {"images": self.parts, "log_weights": self.log_weights}

    def changed(self, change: Callable[[Source], Source]) -> Source:
        return change(self)

    def __repr__(self) -> str:
        """Size, originals, weights and parts, with the mass of each part where weights decide it."""
        masses = [""] * len(self.parts)
        if self.log_weights is not None:
            split = self.log_weights.exp().split([len(part) for part in self.parts])
            masses = [f" with {100 * float(mass.sum()):.3g} % of the mass" for mass in split]
        parts = " | ".join(f"{len(part)} {part.name}{mass}" for part, mass in zip(self.parts, masses))
        weights = "uniform" if self.log_weights is None else "weighted"
        return f"Source({len(self)} images of {len(self.ids.unique())} originals, {weights}: {parts})"

    def __or__(self, other: Source | ImageSet) -> Source:
        other = as_source(other)
        parts = (*self.parts, *other.parts)
        if self.log_weights is None and other.log_weights is None:
            return Source(parts)
        weights = [source._or_uniform() for source in (self, other)]
        return Source(parts, torch.cat([each + each.isfinite().sum().double().log() for each in weights]))

    def without(self, ids: Tensor | Sequence[int]) -> Source:
        """ν(x) = 0 for every image with one of these source ids, its augmented copies too (Section 4.1)."""
        out = torch.isin(self.ids, check_numbers(ids, "ids"))
        if bool(out.all()):
            raise InputError(f"leaving out {int(out.sum())} images leaves nothing of {self!r}; leave out fewer ids")
        return self if not bool(out.any()) else Source(self.parts, self._or_uniform().masked_fill(out, -torch.inf))

    def subset(self, index: Tensor) -> Source:
        """The images of `index` (integers), with their weights: a Monte-Carlo source (App. C.3)."""
        if (given := getattr(index, "ndim", 1)) != 1:
            raise InputError(f"an index is a list of whole numbers, got one of {given} dimensions; flatten it")
        index = check_numbers(index, "the entries of an index")
        if bool(((index < 0) | (index >= len(self))).any()):
            raise InputError(f"index {int(index.min())} to {int(index.max())} goes beyond the {len(self)} images")
        parts, start = [], 0
        for part in self.parts:
            here = index[(index >= start) & (index < start + len(part))]
            if len(here):
                parts.append(part.subset(here - start))
            start += len(part)
        if self.log_weights is None:
            return Source(parts)
        ends = torch.tensor([len(part) for part in self.parts]).cumsum(0)
        by_part = torch.bucketize(index, ends, right=True).argsort(stable=True)
        return Source(parts, self.log_weights[index[by_part]])

    def _or_uniform(self) -> Tensor:
        if self.log_weights is not None:
            return self.log_weights
        return torch.full((len(self),), 1.0 / len(self), dtype=torch.float64).log()


def as_source(images: Source | ImageSet | Tensor) -> Source:
    """A source from whatever holds images."""
    if isinstance(images, Source):
        return images
    if isinstance(images, (ImageSet, Tensor)):
        return Source(images if isinstance(images, ImageSet) else ImageSet(images))
    return Source(check_images(images))


def scale(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes to [−1, 1]: u − 127.5 is exact, so the quotient is the nearest float."""
    return (pixels.to(dtype) - 127.5) / 127.5


def _normalise(log_weights: Any, count: int) -> Tensor:
    if isinstance(log_weights, str) or not hasattr(log_weights, "__len__"):
        raise InputError(f"log_weights are ({count},), one number for each image; got {show(log_weights)}")
    log_weights = torch.as_tensor(log_weights).double().cpu()
    if log_weights.shape != (count,):
        raise InputError(f"log_weights must be ({count},), one for each image, got {tuple(log_weights.shape)}")
    if bool(torch.isnan(log_weights).any()) or bool((log_weights == torch.inf).any()):
        raise InputError("log_weights must not be NaN or +inf; −inf means weight 0")
    total = torch.logsumexp(log_weights, 0)
    if not bool(torch.isfinite(total)):
        raise InputError("all weights of the source are 0; give at least one image a weight")
    return log_weights - total


@dataclass(frozen=True, eq=False)
class Translations(Measure, kind="translations"):
    """(p_T(x,y,s)(D) | x, y): for each pixel, the images moved so that another patch comes under it (App. A.2.2).

    With k = ⌊s/2⌋, a row y with k ≤ y ≤ H−k−1 may take its patch from every such row, any other row only from
    itself; columns likewise. So patches in the centre go everywhere, on an edge along it, in a corner nowhere.
    """

    base: Source
    size: int
    per_estimator = True

    def check(self, q: Precision, r: Response) -> None:
        centred = isinstance(q, Squares) and not q.inside and q.size == self.size and q.around == 0
        if not (centred and isinstance(r, Partition) and r.is_pixelwise):
            raise InputError("translations go with centred squares of their size, each answering for its own pixel")

    @property
    def shape(self) -> tuple[int, int, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.shape

    def changed(self, change: Callable[[Source], Source]) -> Translations:
        return replace(self, base=change(self.base))

    def _offsets(self, at: int, length: int) -> range:
        k = self.size // 2
        return range(k - at, length - k - at) if k <= at <= length - k - 1 else range(1)

    def at(self, estimator: int) -> Source:
        """The source of one estimator, written out; positive offsets fetch from below and from the right."""
        _, height, width = self.shape
        y, x = divmod(estimator, width)
        moved, weights = [], []
        for dy in self._offsets(y, height):
            for dx in self._offsets(x, width):
                for part in self.base.parts:
                    rolled = F.pad(part.pixels, (width, width, height, height))
                    window = rolled[..., height + dy : 2 * height + dy, width + dx : 2 * width + dx]
                    moved.append(ImageSet(window.contiguous(), ids=part.ids))
                weights.append(self.base._or_uniform())
        return Source(moved, torch.cat(weights))
