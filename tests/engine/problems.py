"""Small random problems for engines, with their truth by `fpmc.reference`; few pixels reach every branch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from fpmc import reference
from fpmc.core.collection import Collection
from fpmc.core.gaussian import Gaussian, fit_gaussian
from fpmc.core.group import Group
from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import Partition, Response, Responses, SameAsQ, pixel
from fpmc.core.sources import Source, Translations
from fpmc.images import ImageSet

TELLS_APART = 0.1                                       # σ from which float32 tells images apart that are far from z
SIGMAS = (0.002, 0.06, 0.3, 1.1, 5.3, 80.0)
QUERIES = ("full", "centred", "inside", "around", "masks", "masks per channel", "soft", "soft per channel", "mirrored")
SOURCES = ("images", "weighted", "union", "left out", "gaussian")


@dataclass(frozen=True)
class Problem:
    """A collection, noisy images and a noise level."""

    collection: Collection
    z: Tensor                                           # float32 (B, C, H, W)
    sigma: float

    def truth(self) -> Tensor:
        return truth(self.collection, self.z, self.sigma)


def truth(collection: Collection, z: Tensor, sigma: float) -> Tensor:
    """The denoiser through `fpmc.reference` alone, from the dense forms of the groups: float64 (B, C, H, W)."""
    means = torch.cat([_means(group, z, sigma) for group in collection.groups], dim=1)
    r = torch.cat([group.response(torch.float64).expand(-1, *collection.shape) for group in collection.groups])
    return reference.combine(means, r)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Nowhere further apart than `tolerance`, whatever the number formats."""
    torch.testing.assert_close(actual.double(), expected.double(), atol=tolerance, rtol=0.0)


def _means(group: Group, z: Tensor, sigma: float) -> Tensor:                   # (B, L, C, H, W)
    q, source = group.q.dense(torch.float64), group.source
    if isinstance(source, Gaussian):
        return reference.gaussian_means(z, sigma, q, source.mean, source.covariance())
    if isinstance(source, Translations):
        each = [_posterior_means(z, sigma, q[i : i + 1], source.at(i)) for i in range(len(q))]
        return torch.cat(each, dim=1)
    return _posterior_means(z, sigma, q, source)


def _posterior_means(z: Tensor, sigma: float, q: Tensor, source: Source) -> Tensor:
    x = torch.cat([part.scaled(dtype=torch.float64) for part in source.parts])
    return reference.posterior_means(z, sigma, q, x, source.log_weights)


class Maker:
    """Random small things of one image shape; every random number comes from one drawn seed."""

    def __init__(self, draw: Callable, sigmas: tuple[float, ...] = SIGMAS) -> None:
        self.draw = draw
        self.sigma: float = draw(st.sampled_from(sigmas))
        self._images: ImageSet | None = None
        self.random = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
        self.channels = draw(st.sampled_from([1, 3]))
        self.height, self.width = draw(st.integers(2, 6)), draw(st.integers(2, 6))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.height, self.width

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random)

    def coin(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.random) < 0.5

    def images(self) -> ImageSet:
        """Some for each group; the same for all where every group needs an image near z."""
        if self._images is None or self.sigma >= TELLS_APART:
            self._images = self._draw_images()
        return self._images

    def _draw_images(self) -> ImageSet:
        """Smooth images, mosaics of two pictures (many patches are equal), or copies one grey level apart."""
        count = self.draw(st.integers(2, 12))
        kind = self.draw(st.sampled_from(["smooth", "mosaics", "copies"]))
        if kind == "smooth":
            common = self.normal(count, 1, 1, 1)
            values = 127.5 + 50 * common + 40 * self.normal(count, *self.shape)
        elif kind == "mosaics":
            first, second = (127.5 + 60 * self.normal(*self.shape) for _ in range(2))
            values = torch.where(self.coin(count, 1, self.height, self.width), first, second)
        else:
            values = 127.5 + 60 * self.normal(1, *self.shape) + self.coin(count, *self.shape)
        return ImageSet(values.round().clip(0, 255).byte(), name=kind)

    def source(self, kind: str) -> Source | Gaussian:
        images = self.images()
        weights = self.normal(len(images)).double()
        some = self.draw(st.integers(1, len(images) - 1))
        if kind == "gaussian":
            return fit_gaussian(Source(images))
        if kind == "weighted":                          # some of them with weight 0
            return Source(images, torch.where(torch.arange(len(images)) < some, weights, -torch.inf))
        if kind == "union":
            first, second = Source(images.subset(slice(0, some))), images.subset(slice(some, None))
            return first | (Source(second, weights[some:]) if self.draw(st.booleans()) else second)
        return Source(images).without(range(some, len(images))) if kind == "left out" else Source(images)

    def query(self, kind: str) -> Precision:
        if kind == "full":
            return Full(self.height, self.width, self.draw(st.sampled_from([1.0, 0.25, 3.0])))
        if kind == "around":
            squares = self.query(self.draw(st.sampled_from(["centred", "inside"])))
            assert isinstance(squares, Squares)
            return replace(squares, around=self.draw(st.sampled_from([0.02, 0.3, 0.9])))
        if kind == "centred":
            return Squares(self.odd(), self.height, self.width)
        if kind == "inside":
            size = self.draw(st.integers(1, min(self.height, self.width)))
            stride = self.draw(st.integers(1, size))
            return Squares(size, self.height, self.width, inside=True, stride=stride)
        if kind == "mirrored":
            return self.mirrored()
        length = self.draw(st.integers(1, 12))          # both sides of the few whose whole means are kept
        shape = length, self.channels if "per channel" in kind else 1, self.height, self.width
        return Precisions(self.coin(*shape) if "masks" in kind else self.normal(*shape).exp() * self.coin(*shape))

    def mirrored(self) -> Precisions:
        """One soft vector for each pixel, by how far others are along the axes; some alike along the diagonal."""
        by_distance = self.normal(6, 6).exp()
        if self.draw(st.booleans()):
            by_distance = by_distance + by_distance.T
        y, x = ((torch.arange(n)[:, None] - torch.arange(n)).abs() for n in (self.height, self.width))
        rows = by_distance[y[:, None, :, None], x[None, :, None, :]]
        return Precisions(rows.reshape(-1, 1, self.height, self.width))

    def odd(self) -> int:
        return 2 * self.draw(st.integers(0, max(self.height, self.width))) + 1

    def response(self, q: Precision) -> Response:
        channels = self.draw(st.sampled_from([1, self.channels]))
        kind = self.draw(st.sampled_from(["same", "partition", "soft", "overlapping masks"]))
        if kind == "same":
            return SameAsQ(q.patch if isinstance(q, Squares) and self.draw(st.booleans()) else q)
        if kind == "partition":
            owner = torch.randint(len(q), (channels, self.height, self.width), generator=self.random)
            return Partition(owner, len(q))
        shape = len(q), channels, self.height, self.width
        return Responses(self.coin(*shape) if kind == "overlapping masks" else self.normal(*shape).exp())

    def group(self, query: str, source: str) -> Group:
        q = self.query(query)
        return Group(q, self.response(q), self.source(source), self.weight())

    def weight(self) -> Tensor | None:
        sizes = [self.draw(st.sampled_from([1, size])) for size in self.shape]
        return self.normal(*sizes).exp() if self.draw(st.booleans()) else None

    def scales(self, query: str = "inside") -> tuple[Group, ...]:
        """Squares of several sizes with one source, answering for themselves or each for its own pixel."""
        source = self.source(self.draw(st.sampled_from(["images", "weighted", "union"])))
        squares = [self.query(query) for _ in range(self.draw(st.integers(2, 4)))]
        squares = [replace(q, around=self.draw(st.sampled_from([0.0, 0.1, 0.5]))) for q in squares]
        own = pixel(self.height, self.width)
        return tuple(Group(q, SameAsQ(q.patch) if query == "inside" else own, source, self.weight()) for q in squares)

    def translations(self) -> Group:
        size, source = self.odd(), self.source(self.draw(st.sampled_from(["images", "weighted", "union"])))
        assert isinstance(source, Source)
        squares = Squares(size, self.height, self.width)
        return Group(squares, pixel(self.height, self.width), Translations(source, size))

    def any_group(self) -> Group:
        query = self.draw(st.sampled_from([*QUERIES, "translations"]))
        if query == "translations":
            return self.translations()
        return self.group(query, self.draw(st.sampled_from(SOURCES)))

    def problem(self, *groups: Group) -> Problem:
        total = torch.stack([group.total().expand(self.shape) for group in groups]).sum(0)
        if bool((total == 0).any()):                    # every dimension needs a response
            whole = Full(self.height, self.width)
            groups = (*groups, Group(whole, SameAsQ(whole), Source(self.images())))
        sigma, count = self.sigma, self.draw(st.integers(1, 4))
        z = self.near(groups, count) + sigma * self.normal(count, *self.shape)
        if sigma > 1 and self.draw(st.booleans()):      # far away, where float32 still tells images apart
            z = 3 * torch.rand(count, *self.shape, generator=self.random) - 1.5
        return Problem(Collection.of(*groups), z, sigma)

    def near(self, groups: tuple[Group, ...], count: int) -> Tensor:
        """Images of the first source; where all groups have the same, images that have weight in all of them."""
        sources = [getattr(group.source, "base", group.source) for group in groups]
        sources = [source for source in sources if isinstance(source, Source)]
        if not sources:
            return self.normal(count, *self.shape) / 2
        x = torch.cat([part.scaled() for part in sources[0].parts])
        alive = torch.ones(len(x), dtype=torch.bool)
        for source in sources if self.sigma < TELLS_APART else sources[:1]:
            if source.log_weights is not None:
                alive &= source.log_weights > -torch.inf
        x = x[alive]
        return x[torch.randint(len(x), (count,), generator=self.random)]


@st.composite
def problems(
    draw: Callable, query: str | None = None, source: str = "images", sigmas: tuple[float, ...] = SIGMAS
) -> Problem:
    """One group of the given structures, or any two or three groups."""
    maker = Maker(draw, sigmas)
    if query == "translations":
        return maker.problem(maker.translations())
    if query in ("scales", "centred scales"):
        return maker.problem(*maker.scales("inside" if query == "scales" else "centred"))
    if query is not None:
        return maker.problem(maker.group(query, source))
    return maker.problem(*(maker.any_group() for _ in range(draw(st.integers(2, 3)))))


@st.composite
def queries_and_responses(draw: Callable) -> tuple[Maker, Tensor, Tensor, Source]:
    """Plain tensors (L, C or 1, H, W) for q and r, some of them alike, and a source."""
    maker = Maker(draw)
    q = maker.query(draw(st.sampled_from([kind for kind in QUERIES if kind != "full"])))
    r = Responses(maker.normal(len(q), 1, maker.height, maker.width).exp())
    if draw(st.booleans()):
        r = Partition(torch.randint(len(q), (1, maker.height, maker.width), generator=maker.random), len(q))
    return maker, q.dense(), r.dense(), Source(maker.images())
