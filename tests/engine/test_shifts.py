"""The fused ELS kernel: its parts, what it passes over, and whom it names."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from engine.problems import Problem, close, problems
from fpmc import presets
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source
from fpmc.engine import Call, Settings
from fpmc.engine.reduce import Shares
from fpmc.engine.simd.columns import any_less, power
from fpmc.engine.simd.vector import KERNEL, LANES, load, splat, store
from fpmc.images import ImageSet

pytestmark = pytest.mark.usefixtures("one_thread")
SHIFTS: Any = {"backend": "numba", "kernels": ("shifts",)}


def test_powers_of_two_are_good_to_float32() -> None:
    @njit(**{**KERNEL, "cache": False})
    def power_all(values, results):
        for row in range(len(values) // LANES):
            store(results, row, power(load(values, row)))

    values = np.concatenate([-np.logspace(-8, math.log10(126), 50_000), np.linspace(-126, 0, 50_000)])
    values = values.astype(np.float32)
    results = np.empty_like(values)
    power_all(values, results)
    assert np.abs(results / 2.0 ** values.astype(np.float64) - 1).max() < 2.5e-7
    below = np.full(LANES, -1e30, np.float32)
    power_all(below, below)
    assert 0 < below[0] < 1.2e-38


@pytest.mark.parametrize("lane", range(LANES))
def test_any_lane_is_seen(lane: int) -> None:
    @njit(**{**KERNEL, "cache": False})
    def below(values, limit):
        return any_less(load(values, 0), splat(limit))

    values = np.ones(LANES, np.float32)
    assert not below(values, np.float32(1))
    values[lane] = 0.5
    assert below(values, np.float32(1))


@given(problem=problems("translations"), tolerance=st.sampled_from([1e-1, 1e-2, 1e-4]))
def test_what_is_passed_over_is_within_the_bound(problem: Problem, tolerance: float) -> None:
    """Leaving out a share t of a posterior moves its mean by at most t/(1 − t) times the range of the images, 2."""
    found = [
        problem.collection.denoise(problem.z, problem.sigma, Settings(**SHIFTS, **each))
        for each in ({"tolerance": tolerance}, {"exact": True})
    ]
    assert (found[0] - found[1]).abs().max() <= 2 * tolerance / (1 - tolerance) + 1e-5


@pytest.mark.parametrize(("width", "size"), [(33, 3), (31, 5), (17, 3), (16, 1), (40, 9), (20, 19), (20, 21), (5, 7)])
def test_widths_around_the_vectors(width: int, size: int) -> None:
    """Against torch in float64; 21 images, so that blocks are not full, and widths that end inside a vector."""
    random = torch.Generator().manual_seed(width)
    common, own = (torch.randn(21, *shape, generator=random) for shape in ((1, 1, 1), (3, 7, width)))
    images = ImageSet((127.5 + 40 * common + 30 * own).clip(0, 255).byte())
    denoiser = presets.els(Source(images).without([3]), schedule=size)
    for sigma in (0.02, 0.3, 5.0):
        z = images.scaled([0, 5]) + sigma * torch.randn(2, 3, 7, width, generator=random)
        exact = denoiser(z.double(), sigma).float()
        close(denoiser.using(**SHIFTS)(z, sigma), exact, 1e-5)


def test_many_equal_images_do_not_add_up_rounding() -> None:
    """At high noise all patches weigh the same; sums of so many must still be exact."""
    random = torch.Generator().manual_seed(0)
    few = (127.5 + 60 * torch.randn(8, 1, 12, 12, generator=random)).clip(0, 255).byte()
    images = ImageSet(few.repeat(200, 1, 1, 1))
    z = 80 * torch.randn(1, 1, 12, 12, generator=random)
    small, large = (presets.els(each, schedule=3).using(**SHIFTS) for each in (ImageSet(few), images))
    close(large(z, 80.0), small(z, 80.0), 2e-6)


@given(problem=problems("translations"))
def test_attribution_is_fused_and_equals_torch(problem: Problem) -> None:
    mask = torch.ones(1, *problem.z.shape[2:], dtype=torch.bool)
    plan = problem.collection.plan(Call.of(problem.z, problem.sigma), Settings(backend="numba"), Shares(mask))
    assert [(step.kernel in ("shifts", "running shifts"), step.backend) for step in plan.steps] == [(True, "numba")]
    ours, theirs = (
        FPMC(problem.collection, settings=Settings(backend=backend)).attribute(problem.z, problem.sigma, top=10_000)
        for backend in ("numba", "torch")
    )
    close(ours.weights, theirs.weights, 2e-5)
    for a, b in ((ours.weights_by_value, theirs.weights_by_value), (ours.answers, theirs.answers)):
        order = [each.index.argsort(1) for each in (ours, theirs)]
        a, b = (t.take_along_dim(o[..., None, None, None], 1) for t, o in zip((a, b), order))
        close(a, b, 1e-4)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_block_shifts_count_the_margins_of_their_windows(size: int) -> None:
    """Squared differences of all that patches cover, then sums along rows and down columns, at each displacement."""
    images = ImageSet(torch.zeros(5, 2, 9, 8, dtype=torch.uint8))
    settings = Settings(backend="numba", kernels=("block shifts",))
    (step,) = presets.els(images, schedule=size).at(1.0).plan(Call(1.0), settings).steps
    k, counted = size // 2, 0
    for dy, dx in itertools.product(range(2 * k - 8, 9 - 2 * k), range(2 * k - 7, 8 - 2 * k)):
        rows = [y for y in range(9) if dy == 0 or (k <= y < 9 - k and k <= y + dy < 9 - k)]
        columns = [x for x in range(8) if dx == 0 or (k <= x < 8 - k and k <= x + dx < 8 - k)]
        high, wide = (len({e for at in line for e in range(at - k, at + k + 1) if 0 <= e < length})
                      for line, length in ((rows, 9), (columns, 8)))
        counted += 2 * high * wide + 3 * (high * len(columns) + len(rows) * len(columns))
    assert step.work == 5 * counted


@pytest.mark.parametrize(("size", "sigma"), [(27, 12.9), (23, 5.3)])
def test_pixels_that_stay_are_counted(size: int, sigma: float) -> None:
    """With patches nearly as large as the image hardly any pixel moves, and the others still cost."""
    images = ImageSet(torch.zeros(2000, 1, 28, 28, dtype=torch.uint8))
    (step,) = presets.els(images, schedule=size).at(sigma).plan(Call(sigma)).steps
    assert (step.kernel, step.backend) == ("running shifts", "numba")
    others = dict(step.others)
    assert min(others["shifts, torch"], others["shifts, numba"]) > 2 * step.seconds


@pytest.mark.parametrize("size", [3, 7])
def test_running_shifts_count_squares_and_patches(size: int) -> None:
    images = ImageSet(torch.zeros(5, 2, 9, 8, dtype=torch.uint8))
    settings = Settings(backend="numba", kernels=("running shifts",))
    (step,) = presets.els(images, schedule=size).at(5.0).plan(Call(5.0), settings).steps
    k, patches = size // 2, 0
    for y, x in itertools.product(range(9), range(8)):
        patches += (9 - 2 * k if k <= y < 9 - k else 1) * (8 - 2 * k if k <= x < 8 - k else 1)
    covered = [sum(length - abs(d) for d in range(2 * k + 1 - length, length - 2 * k)) for length in (9, 8)]
    assert step.counts == {"running.square": 5 * 2 * covered[0] * covered[1], "running.patch": 5 * patches}
