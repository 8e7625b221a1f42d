"""Soft rows by mirrored sums, and soft rows that leave images early: sums, bounds, answers, and what is planned."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numba import njit
from torch import Tensor

from engine.contract import ROUNDING, VALUES, Cut
from engine.problems import Problem, close, problems, truth
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Precisions
from fpmc.core.response import Responses, SameAsQ, pixel
from fpmc.engine import Call, Settings
from fpmc.engine.kernels import folding, mirrored
from fpmc.engine.kernels.rows import nats
from fpmc.engine.reduce import Mean
from fpmc.engine.simd import mirrors, sparse
from fpmc.engine.simd.fours import FAR, four_sums
from fpmc.engine.simd.sums import room_for, sums_of
from fpmc.engine.simd.vector import LANES, splat
from fpmc.images import ImageSet

pytestmark = pytest.mark.usefixtures("one_thread")
OURS: Any = {"backend": "numba", "kernels": ("mirrors",)}
STRONG = (0.3, 1.1, 5.3, 80.0)                          # σ at which differences of mirrored pixels are exact enough


def discs(height: int, width: int, radius: float = 3.0, softness: float = 1.0) -> Tensor:
    """Sigmoid discs around every pixel, (H·W, 1, H, W): no entry is 0."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    away = torch.hypot((y.flatten()[:, None, None] - y).float(), (x.flatten()[:, None, None] - x).float())
    return torch.sigmoid((radius - away) / softness)[:, None]


def smooth(count: int, channels: int, height: int, width: int) -> ImageSet:
    random = torch.Generator().manual_seed(0)
    coarse = torch.randn(count, channels, 4, 4, generator=random)
    fine = torch.randn(count, channels, height, width, generator=random)
    values = 127.5 + 70 * torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear") + 15 * fine
    return ImageSet(values.clip(0, 255).byte())


@njit
def all_sums(s, matrix):
    room = room_for(matrix)
    sums_of(s, matrix, room, splat(np.float32(0)), np.float32(0), s[:0])
    return room[0]


@njit
def bounded_sums(s, rows, target, scale, floor):
    four_sums(s, rows, target, splat(np.float32(0)), scale, floor)


@given(height=st.integers(1, 9), width=st.integers(1, 9), seed=st.integers(0, 99), diagonal=st.booleans())
def test_mirrored_sums_are_sums(height: int, width: int, seed: int, diagonal: bool) -> None:
    height, pixels = width if diagonal else height, width * (width if diagonal else height)
    random = torch.Generator().manual_seed(seed)
    anything = torch.rand(pixels, pixels, generator=random) * (torch.rand(pixels, pixels, generator=random) < 0.7)
    matrix = mirrors.mirrored(anything, height, width, diagonal)
    again = mirrors.mirrored(matrix, height, width, diagonal)
    assert torch.equal(again, matrix)
    s = torch.rand(pixels, LANES, generator=random)
    built = mirrors.build(matrix, height, width, diagonal)
    found = all_sums(s.numpy().ravel(), built).reshape(pixels, LANES)
    np.testing.assert_allclose(found, matrix @ s.double(), atol=1e-6 * pixels)
    assert len(built.rows.places) == mirrors.places(matrix, height, width, diagonal)
    assert len(built.rows.places) <= (pixels + 2 * (height + width)) * (pixels + 2 * (height + width) + 12) / 16 + 4


@pytest.mark.parametrize("exact", [False, True])
@given(problem=problems("mirrored", sigmas=STRONG))
def test_answers_equal_the_reference(exact: bool, problem: Problem) -> None:
    chosen = Settings(**OURS, exact=exact)
    groups = problem.collection.groups
    call = Call.of(problem.z, problem.sigma)
    assume(len(groups) == 1 and any(mirrored.Mirrored.offers(groups, call, chosen, Mean())))
    close(problem.collection.denoise(problem.z, problem.sigma, chosen), problem.truth(), VALUES)


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 9, 14), (1, 7, 7)])
@pytest.mark.parametrize("respond", ["owned", "same", "soft", "lopsided"])
@pytest.mark.parametrize("sigma", STRONG)
def test_discs_equal_the_reference(shape: tuple[int, int, int], respond: str, sigma: float) -> None:
    images, q = smooth(60, *shape), Precisions(discs(*shape[1:]))
    random = torch.Generator().manual_seed(1)
    lopsided = torch.rand(len(q), 1, *shape[1:], generator=random) + 0.1
    soft = {"soft": Responses(q.values.sqrt()), "lopsided": Responses(lopsided)}
    collection = Collection(q, {"owned": pixel(*shape[1:]), "same": SameAsQ(q), **soft}[respond], images)
    z = images.scaled(slice(3)) + sigma * torch.randn(3, *shape, generator=random)
    assert [step.kernel for step in collection.plan(Call.of(z, sigma), Settings(**OURS)).steps] == ["mirrors"]
    found = FPMC(collection, settings=Settings(**OURS))
    close(found(z, sigma), truth(collection, z, sigma), 2e-5)
    cut = FPMC(collection, settings=Settings(**OURS, threads=2), team=Cut(Random(0)))
    close(cut(z, sigma), found(z, sigma), ROUNDING)
    attributed = found.attribute(z, sigma, top=100)
    close(attributed.answers.sum(1), found(z, sigma), ROUNDING)


@pytest.mark.parametrize("sigma", [80.0, 1.09, 0.296, 0.06])
@pytest.mark.parametrize("radius", [2.0, 5.0])
def test_logits_that_count_are_off_by_no_more_than_an_offer_says(radius: float, sigma: float) -> None:
    """In the root mean square, as long as z − x is as large as is typical."""
    shape = 1, 16, 16
    images, q = smooth(256, *shape), Precisions(discs(16, 16, radius, 0.5))
    z = images.scaled(slice(1)) + sigma * torch.randn(1, *shape, generator=torch.Generator().manual_seed(2))
    x = images.scaled().flatten(1).double()
    s = (x * (x - 2 * z.flatten(1).double()) if sigma > 2 else (z.flatten(1).double() - x) ** 2).float()
    expected = s.double() @ q.values.flatten(1).double().T / (2 * sigma**2)
    built = folding.build(q, True)
    blocks = s.view(-1, LANES, 256).transpose(1, 2).contiguous().numpy()
    found = torch.cat([torch.from_numpy(all_sums(each.ravel(), built)).view(256, LANES).T for each in blocks])
    error = found.double() / (2 * sigma**2) - expected
    counts = expected < expected.amin(0) + math.log(256 / 1e-7)
    bound = mirrored.LOST * torch.finfo(torch.float32).eps * nats(q.values.flatten(1).sum(1).max().item(), sigma)
    assert error[counts].square().mean().sqrt() <= bound


def test_what_is_nearly_mirrored_is_off_by_what_the_offer_says() -> None:
    """An offer is made as long as the asymmetry moves no logit by more than `nats`, and its bound holds."""
    shape, sigma = (1, 10, 10), 1.0
    images, exact = smooth(40, *shape), discs(10, 10)
    random = torch.Generator().manual_seed(3)
    z = images.scaled(slice(2)) + torch.randn(2, *shape, generator=random)
    for size, offered in ((1e-8, True), (1e-3, False)):
        q = Precisions(exact + size * torch.rand(exact.shape, generator=random))
        groups, call = Collection(q, pixel(10, 10), images).groups, Call.of(z, sigma)
        assert not list(mirrored.Mirrored.offers(groups, call, Settings(exact=True), Mean()))
        offers = list(mirrored.Mirrored.offers(groups, call, Settings(), Mean()))
        assert bool(offers) == offered
        for offer in offers:
            assert isinstance(offer, mirrored.Mirrored)
            mean = mirrors.mirrored(q.values.flatten(1), 10, 10, offer.diagonal)
            s = (z[:, None] - images.scaled()).double().square().flatten(2)
            moved = (s @ (mean - q.values.flatten(1).double()).T).abs().max() / (2 * sigma**2)
            assert 0 < moved <= offer.error


@given(seed=st.integers(0, 99), rows=st.integers(1, 21), near=st.floats(0.0, 0.2))
def test_images_are_left_only_where_no_lane_counts(seed: int, rows: int, near: float) -> None:
    """A sum is what it is, or `FAR`; the latter only where all lanes of all four rows are below their floor."""
    random = torch.Generator().manual_seed(seed)
    matrix = torch.rand(rows, 300, generator=random) ** 8
    s = torch.rand(300, LANES, generator=random)
    sums = matrix.double() @ s.double()
    floor = -(near * sums.amin(1) * 10).float().numpy()
    place = np.indices(matrix.shape).reshape(2, -1)
    fours = sparse.Fours.of(*place, matrix.numpy().ravel(), *matrix.shape).by_weight().rows(rows)
    target = np.empty((-(-rows // 4) * 4, LANES), np.float32)
    bounded_sums(s.numpy().ravel(), fours, target.ravel(), np.float32(1), floor)
    for four in range(0, rows, 4):
        here = slice(four, min(four + 4, rows))
        counts = bool((-sums[here] >= torch.from_numpy(floor[here])[:, None]).any())
        left = target[here] == FAR
        assert left.all() or not left.any()
        assert not (left.any() and counts)
        if not left.any():
            np.testing.assert_allclose(target[here], sums[here], rtol=1e-5)
        if near == 0.0 and four + 4 <= rows:
            assert left.all()


def test_places_come_by_weight_in_stretches_that_double() -> None:
    random = np.random.default_rng(0)
    matrix = random.random((4, 400)).astype(np.float32)
    fours = sparse.Fours.of(*np.indices(matrix.shape).reshape(2, -1), matrix.ravel(), *matrix.shape).by_weight()
    weight, first = fours.values.sum(1), sparse.FIRST
    ends = [0, first, 2 * first, 4 * first, 8 * first, 400]
    for begin, middle, end in zip(ends, ends[1:], ends[2:]):
        assert weight[begin:middle].min() >= weight[middle:end].max()
        assert (np.diff(fours.places[begin:middle]) > 0).all()
    assert sorted(fours.places) == list(range(400))


@pytest.mark.parametrize("respond", ["owned", "same"])
@pytest.mark.parametrize("sigma", [0.002, 0.02, 0.3, 1.1])
def test_rows_that_leave_images_equal_the_reference(sigma: float, respond: str) -> None:
    images, q = smooth(300, 1, 12, 12), Precisions(discs(12, 12))
    collection = Collection(q, pixel(12, 12) if respond == "owned" else SameAsQ(q), images)
    z = images.scaled(slice(2)) + sigma * torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    settings = Settings(backend="numba", kernels=("rows",))
    (step,) = collection.plan(Call.of(z, sigma), settings).steps
    assert ("left after some of them" in step.why) == (sigma < 1)
    close(collection.denoise(z, sigma, settings), truth(collection, z, sigma), VALUES)


def test_what_is_mirrored_stays_so_without_its_small_entries() -> None:
    for budget in (1e-3, 1e-2, 0.3):
        left = Precisions(discs(9, 9)).pruned(budget).dense().flatten(1)
        assert (left == 0).any()
        assert torch.equal(mirrors.mirrored(left, 9, 9, True).float(), left)


def test_the_plan_takes_mirrors_where_they_are_exact_enough() -> None:
    images, q = smooth(2000, 1, 28, 28), Precisions(discs(28, 28, 4.0))
    collection = Collection(q, pixel(28, 28), images)
    for sigma, kernel in ((80.0, "mirrors"), (1.09, "mirrors"), (0.296, "mirrors"), (0.023, "rows"), (0.002, "rows")):
        (step,) = collection.plan(Call(sigma), Settings(backend="numba")).steps
        assert step.kernel == kernel
        if kernel == "mirrors":
            assert step.error <= 1.5e-4
            assert "along the diagonal" in step.why
    wide = Collection(Precisions(discs(20, 28)), pixel(20, 28), smooth(100, 1, 20, 28))
    (step,) = wide.plan(Call(1.09), Settings(backend="numba")).steps
    assert (step.kernel, step.diagonal) == ("mirrors", False)
    moved = Precisions(discs(28, 28, 4.0).roll(1, 3))                          # beside the pixels that it answers for
    (step,) = Collection(moved, pixel(28, 28), images).plan(Call(1.09), Settings(backend="numba")).steps
    assert step.kernel == "rows"


def test_mirrors_that_are_not_looked_at_would_be_off_too_far():
    """More mirrors are off by half as much at least, also where axes leave rows as they are and the diagonal not."""
    random, found = torch.Generator().manual_seed(0), []
    for size in (3, 4):
        any_rows = torch.rand(size**2, size**2, generator=random)
        for matrix in (any_rows, any_rows**8, mirrors.mirrored(any_rows, size, size, False).float()):
            q = Precisions(matrix.view(-1, 1, size, size))
            off = [folding.split(q, way).off for way in (False, True)]
            assert off[1] >= off[0] / 2
            for most in (0.0, off[0] / 3, *off):
                kept = [way for way, _ in folding.ways(q, most)]
                assert kept == [way for way in (False, True) if off[way] <= most]
                found.append(len(kept))
    assert set(found) == {0, 1, 2}
