"""What every engine must do, whatever computes it: a backend inherits `EngineContract` and names its `settings`.

The problems are small and their truth is `fpmc.reference`; so few pixels and images reach every branch of an engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from fpmc import reference
from fpmc.collection import FPMC, Collection
from fpmc.engine import Settings
from fpmc.group import Group
from fpmc.images import ImageSet
from fpmc.precision import Full, Precision, Squares
from fpmc.precision import Vectors as Precisions
from fpmc.response import Partition, Response, SameAsQ, pixel
from fpmc.response import Vectors as Responses
from fpmc.sources import Gaussian, Source, Translations
from fpmc.wiener import fit_gaussian

SIGMAS = (0.002, 0.06, 0.3, 1.1, 5.3, 80.0)
QUERIES = ("full", "centred", "inside", "masks", "masks per channel", "soft", "soft per channel")
SOURCES = ("images", "weighted", "union", "left out", "gaussian")
VALUES = 1e-4                                           # float32 against the float64 truth
ROUNDING = 2e-5                                         # float32 against itself, summed in another order


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
    r = torch.cat([group.r.dense(torch.float64).expand(-1, *collection.shape) for group in collection.groups])
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

    def __init__(self, draw: Callable) -> None:
        self.draw = draw
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
            return Full(self.height, self.width)
        if kind == "centred":
            return Squares(self.odd(), self.height, self.width)
        if kind == "inside":
            size = self.draw(st.integers(1, min(self.height, self.width)))
            return Squares(size, self.height, self.width, inside=True)
        length = self.draw(st.integers(1, 12))          # both sides of the few whose whole means are kept
        shape = length, self.channels if "per channel" in kind else 1, self.height, self.width
        return Precisions(self.coin(*shape) if "masks" in kind else self.normal(*shape).exp() * self.coin(*shape))

    def odd(self) -> int:
        return 2 * self.draw(st.integers(0, max(self.height, self.width))) + 1

    def response(self, q: Precision) -> Response:
        channels = self.draw(st.sampled_from([1, self.channels]))
        kind = self.draw(st.sampled_from(["same", "partition", "soft", "overlapping masks"]))
        if kind == "same":
            return SameAsQ(q)
        if kind == "partition":
            owner = torch.randint(len(q), (channels, self.height, self.width), generator=self.random)
            return Partition(owner, len(q))
        shape = len(q), channels, self.height, self.width
        return Responses(self.coin(*shape) if kind == "overlapping masks" else self.normal(*shape).exp())

    def group(self, query: str, source: str) -> Group:
        q = self.query(query)
        return Group(q, self.response(q), self.source(source))

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

    def problem(self, *groups: Group, sigmas: tuple[float, ...] = SIGMAS) -> Problem:
        total = torch.stack([group.total().expand(self.shape) for group in groups]).sum(0)
        if bool((total == 0).any()):                    # every dimension needs a response
            whole = Full(self.height, self.width)
            groups = (*groups, Group(whole, SameAsQ(whole), Source(self.images())))
        sigma = self.draw(st.sampled_from(sigmas))
        count = self.draw(st.integers(1, 4))
        z = self.near(groups[0], count) + sigma * self.normal(count, *self.shape)
        if sigma > 1 and self.draw(st.booleans()):      # far away, where float32 still tells images apart
            z = 3 * torch.rand(count, *self.shape, generator=self.random) - 1.5
        return Problem(Collection.of(*groups), z, sigma)

    def near(self, group: Group, count: int) -> Tensor:
        source = group.source.base if isinstance(group.source, Translations) else group.source
        if isinstance(source, Gaussian):
            return self.normal(count, *self.shape) / 2
        x = torch.cat([part.scaled() for part in source.parts])
        if source.log_weights is not None:
            x = x[source.log_weights > -torch.inf]
        return x[torch.randint(len(x), (count,), generator=self.random)]


@st.composite
def problems(
    draw: Callable, query: str | None = None, source: str = "images", sigmas: tuple[float, ...] = SIGMAS
) -> Problem:
    """One group of the given structures, or any two or three groups."""
    maker = Maker(draw)
    if query == "translations":
        return maker.problem(maker.translations(), sigmas=sigmas)
    if query is not None:
        return maker.problem(maker.group(query, source), sigmas=sigmas)
    return maker.problem(*(maker.any_group() for _ in range(draw(st.integers(2, 3)))), sigmas=sigmas)


@st.composite
def queries_and_responses(draw: Callable) -> tuple[Maker, Tensor, Tensor, Source]:
    """Plain tensors (L, C or 1, H, W) for q and r, some of them alike, and a source."""
    maker = Maker(draw)
    q = maker.query(draw(st.sampled_from([kind for kind in QUERIES if kind != "full"])))
    r = Responses(maker.normal(len(q), 1, maker.height, maker.width).exp())
    if draw(st.booleans()):
        r = Partition(torch.randint(len(q), (1, maker.height, maker.width), generator=maker.random), len(q))
    return maker, q.dense(), r.dense(), Source(maker.images())


@pytest.mark.usefixtures("one_thread")
class EngineContract:
    """Values against the truth, and what a result must not depend on."""

    settings: ClassVar[dict[str, object]] = {}

    def denoise(self, problem: Problem, **settings: object) -> Tensor:
        chosen = Settings(**{**self.settings, **settings})  # pyright: ignore[reportArgumentType]
        return FPMC(problem.collection, settings=chosen)(problem.z, problem.sigma)

    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("query", QUERIES)
    @examples(max_examples=12)
    @given(data=st.data())
    def test_equals_the_reference(self, query: str, source: str, data: st.DataObject) -> None:
        problem = data.draw(problems(query, source))
        result = self.denoise(problem)
        assert result.dtype == torch.float32
        assert result.shape == problem.z.shape
        close(result, problem.truth(), VALUES)

    @given(problem=problems("translations"))
    def test_translations_equal_the_reference(self, problem: Problem) -> None:
        close(self.denoise(problem), problem.truth(), VALUES)

    @given(problem=problems())
    def test_mixed_groups_equal_the_reference(self, problem: Problem) -> None:
        close(self.denoise(problem), problem.truth(), VALUES)

    @given(problem=problems(), chunk=st.integers(1, 13))
    def test_chunk_size_does_not_matter(self, problem: Problem, chunk: int) -> None:
        close(self.denoise(problem, chunk=chunk), self.denoise(problem), ROUNDING)

    @given(problem=problems())
    def test_batch_size_does_not_matter(self, problem: Problem) -> None:
        single = [self.denoise(Problem(problem.collection, z[None], problem.sigma)) for z in problem.z]
        close(torch.cat(single), self.denoise(problem), ROUNDING)

    @given(problem=problems())
    def test_each_image_has_its_own_noise_level(self, problem: Problem) -> None:
        z = problem.z[:1].expand(3, -1, -1, -1)
        levels = problem.sigma * torch.tensor([2.0, 1.0, 2.0])
        denoiser = FPMC(problem.collection, settings=Settings(**self.settings))  # pyright: ignore[reportArgumentType]
        single = [denoiser(z[:1], float(level)) for level in levels]
        close(denoiser(z, levels), torch.cat(single), ROUNDING)

    @given(problem=problems())
    def test_thread_count_does_not_matter(self, problem: Problem) -> None:
        alone = self.denoise(problem, threads=1)
        torch.set_num_threads(2)
        try:
            close(self.denoise(problem, threads=2), alone, ROUNDING)
            close(self.denoise(problem), alone, ROUNDING)
        finally:
            torch.set_num_threads(1)

    @given(problem=problems(), data=st.data())
    def test_order_of_the_images_does_not_matter(self, problem: Problem, data: st.DataObject) -> None:
        moved = _with_sources(problem, lambda source: _shuffled(source, data.draw(st.randoms(use_true_random=False))))
        close(self.denoise(moved), self.denoise(problem), ROUNDING)

    @given(problem=problems(), data=st.data())
    def test_a_source_is_the_union_of_its_halves(self, problem: Problem, data: st.DataObject) -> None:
        split = _with_sources(problem, lambda source: _split(source, data.draw(st.integers(1, len(source)))))
        close(self.denoise(split), self.denoise(problem), ROUNDING)

    @given(problem=problems())
    def test_an_image_given_twice_has_twice_the_weight(self, problem: Problem) -> None:
        def twice(source: Source) -> Source:
            weights = _log_weights(source)
            return Source((*source.parts, source.parts[0]), torch.cat([weights, weights[: len(source.parts[0])]]))

        def weighted(source: Source) -> Source:
            first = torch.arange(len(source)) < len(source.parts[0])
            return Source(source.parts, _log_weights(source) + first * math.log(2))

        first, second = (self.denoise(_with_sources(problem, change)) for change in (twice, weighted))
        close(first, second, ROUNDING)

    @given(drawn=queries_and_responses(), sigma=st.sampled_from(SIGMAS), binary=st.booleans())
    def test_identical_estimators_count_as_often_as_given(self, drawn, sigma: float, binary: bool) -> None:
        maker, q, r, source = drawn
        r = r > r.median() if binary else r
        r[0] = 1                                        # so that something responds everywhere
        again = torch.tensor([*range(len(q)), 0, 0])
        collection = Collection(q[again], r[again], source)
        z = source.parts[0].scaled([0, 1]) + sigma * maker.normal(2, *maker.shape)
        problem = Problem(collection, z, sigma)
        assert sum(len(group) for group in collection.merged) <= len(q)
        close(self.denoise(problem), problem.truth(), VALUES)

    @pytest.mark.parametrize("query", QUERIES)
    @examples(max_examples=10)
    @given(data=st.data())
    def test_one_image_gives_itself_however_often_it_is_given(self, query: str, data: st.DataObject) -> None:
        problem = data.draw(problems(query))
        image = ImageSet((127.5 + 60 * problem.z[:1]).clip(0, 255).byte())
        copies = _with_sources(problem, lambda source: Source([image] * len(source)))
        result = self.denoise(Problem(copies.collection, 3 * problem.z, problem.sigma))
        close(result, image.scaled().expand_as(result), 1e-5)

    @given(problem=problems())
    def test_whatever_z_the_result_is_within_the_images(self, problem: Problem) -> None:
        shape = problem.collection.shape
        whole, black = Full(*shape[1:]), ImageSet(torch.zeros(1, *shape, dtype=torch.uint8))
        groups = [group for group in problem.collection.groups if not isinstance(group.source, Gaussian)]
        groups.append(Group(whole, SameAsQ(whole), Source(black)))  # so that something responds everywhere
        for far in (1e3, -1e3, 1e6):
            result = self.denoise(Problem(Collection.of(*groups), problem.z + far, problem.sigma))
            assert result.abs().max() <= 1 + 1e-5

    @given(problem=problems())
    def test_z_may_have_any_layout_and_is_left_alone(self, problem: Problem) -> None:
        expected, before = self.denoise(problem), problem.z.clone()
        strided = problem.z.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
        again = self.denoise(Problem(problem.collection, strided, problem.sigma))
        close(again, expected, ROUNDING)
        assert torch.equal(problem.z, before)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @examples(max_examples=10)
    @given(problem=problems())
    def test_half_precision_comes_back_as_it_went(self, dtype: torch.dtype, problem: Problem) -> None:
        half = Problem(problem.collection, problem.z.clamp(-500, 500).to(dtype), problem.sigma)
        exact = self.denoise(Problem(problem.collection, half.z.float(), problem.sigma))
        assert torch.equal(self.denoise(half), exact.to(dtype))

    @examples(max_examples=10)
    @given(problem=problems())
    def test_no_noisy_images_give_no_images(self, problem: Problem) -> None:
        assert self.denoise(Problem(problem.collection, problem.z[:0], problem.sigma)).shape == problem.z[:0].shape


@pytest.mark.usefixtures("one_thread")
class DifferentiableContract:
    """For engines that autograd can pass through: double precision, and the gradients of z, q and r."""

    settings: ClassVar[dict[str, object]] = {}

    def result(self, collection: Collection, z: Tensor, sigma: float, chunk: int) -> Tensor:
        return FPMC(collection, settings=Settings(**{**self.settings, "chunk": chunk}))(z, sigma)  # pyright: ignore

    @given(problem=problems())
    def test_float64_is_float64(self, problem: Problem) -> None:
        result = self.result(problem.collection, problem.z.double(), problem.sigma, 5)
        assert result.dtype == torch.float64
        close(result, problem.truth(), 1e-9)

    @given(problem=problems(), chunk=st.integers(1, 13))
    def test_gradient_of_z(self, problem: Problem, chunk: int) -> None:
        z = problem.z.double().requires_grad_()
        weights = torch.linspace(-1, 1, z.numel(), dtype=torch.float64).view(z.shape)
        (ours,) = torch.autograd.grad((weights * self.result(problem.collection, z, problem.sigma, chunk)).sum(), z)
        (truths,) = torch.autograd.grad((weights * truth(problem.collection, z, problem.sigma)).sum(), z)
        close(ours, truths, 1e-8 * (1 + truths.abs().max().item()))

    @given(drawn=queries_and_responses(), sigma=st.sampled_from(SIGMAS), chunk=st.integers(1, 13), same=st.booleans())
    def test_gradients_of_q_and_r(self, drawn, sigma: float, chunk: int, same: bool) -> None:
        maker, q, r, source = drawn
        q = (q.double() + 0.1).requires_grad_()
        r = q if same else (r.double() + 0.1).requires_grad_()
        leaves = (q,) if same else (q, r)
        z = (source.parts[0].scaled([0, 1]) + sigma * maker.normal(2, *maker.shape)).double()
        weights = torch.linspace(-1, 1, z.numel(), dtype=torch.float64).view(z.shape)
        gradients = []
        for denoise in (lambda c: self.result(c, z, sigma, chunk), lambda c: truth(c, z, sigma)):
            loss = (weights * denoise(Collection(q, r, source))).sum()
            gradients.append(torch.autograd.grad(loss, leaves))
        for ours, truths in zip(*gradients, strict=True):
            close(ours, truths, 1e-8 * (1 + truths.abs().max().item()))

    @examples(max_examples=15)
    @given(drawn=queries_and_responses(), sigma=st.sampled_from(SIGMAS))
    def test_gradients_of_q_and_r_with_a_gaussian(self, drawn, sigma: float) -> None:
        maker, q, r, source = drawn
        q, r = (q.double() + 0.1).requires_grad_(), (r.double() + 0.1).requires_grad_()
        z = maker.normal(2, *maker.shape).double()
        gradients = []
        for denoise in (lambda c: self.result(c, z, sigma, 3), lambda c: truth(c, z, sigma)):
            loss = denoise(Collection(q, r, fit_gaussian(source))).square().sum()
            gradients.append(torch.autograd.grad(loss, (q, r)))
        for ours, truths in zip(*gradients, strict=True):
            close(ours, truths, 1e-7 * (1 + truths.abs().max().item()))


def _with_sources(problem: Problem, change: Callable[[Source], Source]) -> Problem:
    groups = []
    for group in problem.collection.groups:
        source = group.source
        if isinstance(source, Source):
            source = change(source)
        elif isinstance(source, Translations):
            source = Translations(change(source.base), source.size)
        groups.append(Group(group.q, group.r, source))
    return Problem(Collection.of(*groups), problem.z, problem.sigma)


def _log_weights(source: Source) -> Tensor:
    uniform = torch.zeros(len(source), dtype=torch.float64)
    return uniform if source.log_weights is None else source.log_weights


def _shuffled(source: Source, random) -> Source:
    order = list(range(len(source)))
    random.shuffle(order)
    pixels = torch.cat([part.pixels for part in source.parts])[order]
    return Source(ImageSet(pixels), None if source.log_weights is None else source.log_weights[order])


def _split(source: Source, at: int) -> Source:
    pixels = torch.cat([part.pixels for part in source.parts])
    parts = [ImageSet(half) for half in (pixels[:at], pixels[at:]) if len(half)]
    return Source(parts, source.log_weights)
