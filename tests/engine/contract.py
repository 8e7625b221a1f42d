"""What every engine must do, whatever computes it: a backend inherits `EngineContract` and names its `settings`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import Tensor

from engine.problems import QUERIES, SIGMAS, SOURCES, Problem, close, problems, queries_and_responses, truth
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.gaussian import Gaussian, fit_gaussian
from fpmc.core.group import Group
from fpmc.core.precision import Full
from fpmc.core.response import Responses, SameAsQ
from fpmc.core.sources import Source, Translations
from fpmc.engine import Alone, Call, Settings, run
from fpmc.images import ImageSet

VALUES = 1e-4                                           # float32 against the float64 truth
ROUNDING = 2e-5                                         # float32 against itself, summed in another order
PARTITION = 2e-6                                        # the same sums, cut and merged
ATTRIBUTION = 1e-5                                      # Σ w x against the denoiser


class Cut(Alone):
    """A source in random stretches, in random order; some of them empty."""

    def __init__(self, random) -> None:
        self.random = random

    def stretches(self, count: int) -> list[tuple[int, int]]:
        ends = sorted([0, count, *(self.random.randint(0, count) for _ in range(self.random.randint(0, 4)))])
        found = list(itertools.pairwise(ends))
        self.random.shuffle(found)
        return found


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

    @given(problem=problems("scales"))
    def test_squares_of_several_sizes_equal_the_reference(self, problem: Problem) -> None:
        close(self.denoise(problem), problem.truth(), VALUES)

    @given(problem=st.one_of(problems("scales"), problems("centred scales"), problems()))
    def test_groups_answer_alone_what_they_would_be_alone(self, problem: Problem) -> None:
        chosen = Settings(**self.settings)  # pyright: ignore[reportArgumentType]
        answering = [bool((group.r.total() > 0).all()) for group in problem.collection.groups]
        found = problem.collection.answers(problem.z, problem.sigma, chosen)
        assert len(found) == len(answering)
        for group, answer, able in zip(problem.collection.groups, found, answering):
            if able:
                alone = Collection.of(Group(group.q, group.r, group.source))
                close(answer, truth(alone, problem.z, problem.sigma), VALUES)

    @given(problem=problems("centred scales"))
    def test_centred_squares_of_several_sizes_equal_the_reference(self, problem: Problem) -> None:
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

    @given(problem=problems(), data=st.data())
    def test_any_partition_merged_in_any_order_gives_the_same(self, problem: Problem, data: st.DataObject) -> None:
        settings = Settings(**self.settings)  # pyright: ignore[reportArgumentType]
        whole = problem.collection.denoise(problem.z, problem.sigma, settings)
        cut = Cut(data.draw(st.randoms(use_true_random=False)))
        close(problem.collection.denoise(problem.z, problem.sigma, settings, cut), whole, PARTITION)
        z = problem.z.double()
        exact = problem.collection.denoise(z, problem.sigma)
        close(problem.collection.denoise(z, problem.sigma, None, cut), exact, 1e-12 * (1 + exact.abs().max().item()))

    @given(problem=problems())
    def test_the_printed_plan_is_the_executed_plan(self, problem: Problem) -> None:
        settings = Settings(**self.settings)  # pyright: ignore[reportArgumentType]
        executed: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            passes = run.passes

            def spied(jobs: list[run.Job], *rest) -> list:
                executed.extend(str(job.step) for job in jobs)
                return passes(jobs, *rest)

            patch.setattr(run, "passes", spied)
            FPMC(problem.collection, settings=settings)(problem.z, problem.sigma)
        call = Call.of(problem.z, problem.sigma)
        planned = problem.collection.plan(call, settings)
        assert set(executed) == {str(step) for step in planned.steps}
        if call.far == 0:
            assert FPMC(problem.collection, settings=settings).explain(problem.sigma, len(problem.z)) == str(planned)

    @given(problem=st.one_of(problems(), problems("scales"), problems("translations"), problems("soft", "weighted")))
    def test_attribution_is_exact(self, problem: Problem) -> None:
        """Σ_n w_n(j) = 1 and Σ_n w_n(j) x_n(j) = D(z)_j, Gaussian part included; shares are the means of w_n."""
        denoiser = FPMC(problem.collection, settings=Settings(**self.settings))  # pyright: ignore[reportArgumentType]
        found = denoiser.attribute(problem.z, problem.sigma, top=10_000)
        gaussian = [g for g in problem.collection.groups if isinstance(g.source, Gaussian)]
        total, weight, answer = problem.collection.total, torch.zeros(()), torch.zeros_like(problem.z)
        if gaussian:
            share = torch.stack([group.total().expand(problem.collection.shape) for group in gaussian]).sum(0)
            weight = (share / total).float()
            means = Collection.of(*(_everywhere(group, problem.collection.shape) for group in gaussian))
            answer = weight * means.denoise(problem.z.double(), problem.sigma).float()
        close(found.weights_by_value.sum(1) + weight, torch.ones_like(problem.z), 1e-5)
        close(found.answers.sum(1) + answer, denoiser(problem.z, problem.sigma), ATTRIBUTION)
        close(found.weights.sum(1) + found.gaussian, torch.ones(len(problem.z)), 1e-5)
        close(found.weights_by_value.mean((2, 3, 4)), found.weights, 1e-5)
        assert bool((found.weights.diff(dim=1) <= 0).all())

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
        assert sum(len(group) for group in collection.plan(Call(sigma)).groups) <= len(q)
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
        groups.append(Group(group.q, group.r, source, group.weight))
    return Problem(Collection.of(*groups), problem.z, problem.sigma)


def _everywhere(group: Group, shape: tuple[int, int, int]) -> Group:
    """The group alone answers the same where it answers at all; elsewhere it must say something, too."""
    r = group.response(torch.float64).expand(-1, *shape)
    return Group(group.q, Responses(torch.where(r.sum(0) > 0, r, 1.0)), group.source)


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
