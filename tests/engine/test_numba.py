"""The fused CPU kernels keep the contract, and their parts do what they say."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import NumbaTypeError

from engine.contract import EngineContract
from engine.problems import Problem, close, problems, truth
from fpmc import presets
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Precisions, Squares
from fpmc.core.response import SameAsQ, pixel
from fpmc.core.sources import Source
from fpmc.engine import Call, Settings, settings
from fpmc.engine.kernels import rows
from fpmc.engine.simd.boxes import patches, spread, windows
from fpmc.engine.simd.lanes import lay_out
from fpmc.engine.simd.sparse import DEEPEST, EVERYTHING, build
from fpmc.engine.simd.vector import KERNEL, LANES, LOWEST, entry, exp, load, store
from fpmc.errors import InputError
from fpmc.images import ImageSet


class TestNumba(EngineContract):
    settings: ClassVar = {"backend": "numba"}


class TestNumbaExact(EngineContract):
    settings: ClassVar = {"backend": "numba", "exact": True}


@given(count=st.integers(1, 40), dimension=st.integers(1, 70), seed=st.integers(0, 99))
def test_images_are_laid_out_in_lanes(count: int, dimension: int, seed: int) -> None:
    images = np.random.default_rng(seed).integers(256, size=(count, dimension), dtype=np.uint8)
    blocks = np.full((-(-count // LANES), dimension * LANES), 7, np.uint8)
    lay_out(images, blocks)
    filled = np.concatenate([images, np.zeros((len(blocks) * LANES - count, dimension), np.uint8)])
    expected = filled.reshape(len(blocks), LANES, dimension).transpose(0, 2, 1)
    np.testing.assert_array_equal(blocks.reshape(expected.shape), expected)


@given(height=st.integers(1, 9), width=st.integers(1, 9), data=st.data())
def test_patches_with_a_stride_and_their_transpose(height: int, width: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, min(height, width)))
    q = Squares(size, height, width, inside=True, stride=data.draw(st.integers(1, size)))
    rows, columns = q.grid
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    across, prefix = (np.empty((height + size) * (width + size) * LANES, np.float32) for _ in range(2))
    image, sums = random.random((height * width, LANES), np.float32), np.empty((rows * columns, LANES), np.float32)
    patches(image.ravel(), height, width, 0, size, q.stride, sums.ravel(), rows, columns, across, prefix)
    dense = q.dense().flatten(1).numpy()
    np.testing.assert_allclose(sums, dense @ image, rtol=1e-5)
    if q.stride > 1:
        weight, target = random.random(height * width, np.float32), np.ones((height * width, LANES), np.float32)
        spread(sums.ravel(), rows, columns, size, q.stride, weight, target.ravel(), height, width, across)
        np.testing.assert_allclose(target, 1 + weight[:, None] * (dense.T @ sums), rtol=1e-5)


def test_strided_arrays_are_refused_where_strides_are_not_looked_at() -> None:
    @njit(**{**KERNEL, "cache": False})
    def third(values):
        return entry(values, 2)

    pairs = np.arange(12)
    assert third(pairs) == 2
    with pytest.raises(NumbaTypeError, match="side by side"):
        third(pairs[::2])


def test_exp_is_good_to_two_parts_in_ten_million() -> None:
    @njit(**{**KERNEL, "cache": False})
    def exp_all(values, results):
        for row in range(len(values) // LANES):
            store(results, row, exp(load(values, row)))

    lowest = -LOWEST - 1e-3
    values = np.concatenate([-np.logspace(-8, math.log10(lowest), 50_000), np.linspace(-lowest, 0, 50_000)])
    values = values.astype(np.float32)
    results = np.empty_like(values)
    exp_all(values, results)
    truth = np.exp(values.astype(np.float64))
    assert np.abs(results / truth - 1).max() < 2e-7
    below = np.resize(np.float32([-1e30, LOWEST - 1, -87, -1000]), LANES)
    exp_all(below, below)
    assert (below == 0).all()                           # exactly: e^−87 times a share and an r is a denormal number


@given(
    count=st.integers(1, 20), first=st.integers(-12, 3), width=st.integers(1, 25), outputs=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_windows_are_sums_cut_to_the_line(count: int, first: int, width: int, outputs: int, seed: int) -> None:
    line = np.random.default_rng(seed).random((count, LANES)).astype(np.float32)
    target = np.full(outputs * LANES, np.nan, np.float32)
    prefix = np.empty((outputs + width) * LANES, np.float32)
    windows(line.ravel(), 0, 1, count, first, width, target, 0, 1, outputs, prefix)
    starts = np.arange(outputs) + first
    expected = [line[max(0, i) : max(0, min(count, i + width))].sum(0) for i in starts]
    np.testing.assert_allclose(target.reshape(outputs, LANES), expected, rtol=2e-6, atol=1e-6)


@given(problem=problems("centred"), tolerance=st.sampled_from([1e-1, 1e-2, 1e-4]))
def test_what_is_passed_over_is_within_the_bound(problem: Problem, tolerance: float) -> None:
    """Leaving out a share t of a posterior moves its mean by at most t/(1 − t) times the range of the images, 2."""
    contract = TestNumba()
    loose, exact = contract.denoise(problem, tolerance=tolerance), contract.denoise(problem, exact=True)
    assert (loose - exact).abs().max() <= 2 * tolerance / (1 - tolerance) + 1e-5


def test_weights_of_zero_at_the_start_do_not_count() -> None:
    images = ImageSet(torch.tensor([0] * 40 + [255], dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 3, 3))
    weights = torch.full((41,), -torch.inf)
    weights[-1] = 0
    z = torch.full((1, 1, 3, 3), -1.0)
    for make in (presets.optimal, lambda s: presets.ls(s, schedule=3), lambda s: presets.pspc_square(s, schedule=2)):
        denoiser = make(Source(images).without(range(40))).using(backend="numba")
        close(denoiser(z, 0.1), torch.ones_like(z), 1e-6)


def test_without_numba_torch_does_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    images = ImageSet(torch.arange(90, dtype=torch.uint8).view(10, 1, 3, 3))
    denoiser = presets.ls(images, schedule=3)
    with_numba = denoiser(images.scaled(), 0.3)
    monkeypatch.setattr(settings, "has_numba", lambda: False)
    assert denoiser.at(0.3).plan(Call(0.3)).steps[0].backend == "torch"
    close(denoiser(images.scaled(), 0.3), with_numba, 1e-5)
    with pytest.raises(InputError, match="numba"):
        Settings(backend="numba")


@pytest.mark.parametrize("sigma", [0.3, 5.0])
def test_soft_precisions_with_long_tails_run_as_sparse_rows_within_the_bound(sigma: float) -> None:
    random = torch.Generator().manual_seed(0)
    images = ImageSet((127.5 + 50 * torch.randn(50, 1, 12, 12, generator=random)).clip(0, 255).byte())
    at = torch.arange(12)
    along = torch.exp(-((at[:, None] - at) ** 2) * 4.0)
    q = torch.einsum("iy,jx->ijyx", along, along).reshape(144, 1, 12, 12)
    collection = Collection(q, pixel(12, 12), images)
    z = images.scaled(slice(4)) + sigma * torch.randn(4, 1, 12, 12, generator=random)
    call = Call.of(z, sigma)
    assert 1 + z.abs().max() <= call.reach
    groups = collection.plan(call).groups
    left = groups[0].q.entries
    assert left < 0.3 * q.count_nonzero()
    effect = (q - groups[0].q.dense()).flatten(1).sum(1).max().item() * (1 + z.abs().max().item()) ** 2 / (2 * sigma**2)
    assert effect <= 1e-4
    loose, exact = collection.denoise(z, sigma), collection.denoise(z, sigma, Settings(exact=True))
    close(loose, exact, 1e-4)


def depths(bases: np.ndarray) -> list[int]:
    """How many differences each row is put together from."""
    found: list[int] = []
    for base in bases:
        found.append(found[base] + 1 if base >= 0 else 0)
    return found


@pytest.mark.parametrize("respond", ["owned", "mixed"])
def test_rows_as_differences_equal_rows(respond: str) -> None:
    random = torch.Generator().manual_seed(0)
    images = ImageSet((127.5 + 50 * torch.randn(50, 3, 14, 13, generator=random)).clip(0, 255).byte())
    y, x = torch.meshgrid(torch.arange(14), torch.arange(13), indexing="ij")
    distance = (y.flatten()[:, None, None] - y) ** 2 + (x.flatten()[:, None, None] - x) ** 2
    discs = Precisions((distance <= 20)[:, None])
    collection = Collection(discs, pixel(14, 13) if respond == "owned" else SameAsQ(discs), images)
    z = images.scaled(slice(3)) + 2.0 * torch.randn(3, 3, 14, 13, generator=random)
    step = collection.plan(Call(2.0)).steps[0]
    assert (step.kernel, step.short) == ("rows", True)
    rows = build(discs.values.flatten(1), step.short)
    assert (rows.bases >= 0).mean() > 0.9
    assert len(rows.places) < 0.4 * discs.entries
    assert 5 < max(depths(rows.bases)) <= DEEPEST
    close(collection.denoise(z, 2.0), truth(collection, z, 2.0), 1e-5)
    assert not collection.plan(Call(0.01)).steps[0].short                      # too many nats at stake


@pytest.mark.parametrize("sigma", [3.3, 8.4, 80.0])
def test_large_masks_are_differences_where_the_noise_is_left_out(sigma: float) -> None:
    random = torch.Generator().manual_seed(0)
    images = ImageSet((127.5 + 50 * torch.randn(50, 3, 32, 32, generator=random)).clip(0, 255).byte())
    y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    distance = (y.flatten()[:, None, None] - y) ** 2 + (x.flatten()[:, None, None] - x) ** 2
    discs = Precisions((distance <= 300)[::4, None].expand(-1, 3, -1, -1))
    collection = Collection(discs, SameAsQ(discs), images)
    z = images.scaled(slice(3)) + sigma * torch.randn(3, 3, 32, 32, generator=random)
    step = collection.plan(Call(sigma)).steps[0]
    assert (step.kernel, step.short, step.centred) == ("rows", True, True)
    assert discs.entries > 1200 * len(discs)            # (z − x)² would be too many nats for differences
    close(collection.denoise(z, sigma), truth(collection, z, sigma), 1e-5)


def test_masks_fuller_than_half_are_the_sum_less_what_they_lack() -> None:
    random = torch.Generator().manual_seed(0)
    images = ImageSet((127.5 + 50 * torch.randn(40, 1, 9, 9, generator=random)).clip(0, 255).byte())
    full = Precisions(torch.rand(81, 1, 9, 9, generator=random) < 0.95)
    rows = build(full.values.flatten(1), True)
    assert (rows.bases == EVERYTHING).any()
    assert len(rows.places) < 0.15 * full.entries
    collection = Collection(full, SameAsQ(full), images)
    z = images.scaled(slice(3)) + 5.0 * torch.randn(3, 1, 9, 9, generator=random)
    assert collection.plan(Call(5.0)).steps[0].kernel == "rows"
    close(collection.denoise(z, 5.0), truth(collection, z, 5.0), 1e-5)


def test_rows_are_put_together_once_whatever_images_they_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A click of the explorer asks the images it found once more, and a knock-out all but a few."""
    random = torch.Generator().manual_seed(0)
    images = ImageSet((127.5 + 50 * torch.randn(40, 1, 9, 9, generator=random)).clip(0, 255).byte())
    masks = Precisions(torch.rand(81, 1, 9, 9, generator=random) < 0.1)
    d = FPMC(Collection(masks, SameAsQ(masks), images))
    z = images.scaled(slice(1)) + torch.randn(1, 1, 9, 9, generator=random)
    made = []
    monkeypatch.setattr(rows, "build", lambda *given: made.append(given) or build(*given))
    found = d.attribute(z, 1.0)
    assert d.at(1.0).plan(Call(1.0)).steps[0].kernel == "rows"
    assert len(made) == 2, "of q and of r"
    d.without(found.ids[0])(z, 1.0)
    assert len(made) == 2
