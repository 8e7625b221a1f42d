"""ELS by running sums: equal to float64 where noise is strong, and offered only where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.contract import ROUNDING, VALUES, Cut
from engine.problems import Problem, close
from fpmc import presets
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source, Translations
from fpmc.engine import Call, Settings
from fpmc.engine.kernels.running_shifts import rounding
from fpmc.engine.reduce import Shares
from fpmc.images import ImageSet

pytestmark = pytest.mark.usefixtures("one_thread")
OURS: Any = {"backend": "numba", "kernels": ("running shifts",)}


@pytest.mark.parametrize("sigma", [0.3, 1.1, 5.3, 80.0])
@pytest.mark.parametrize(("shape", "size"), [((1, 7, 8), 5), ((3, 9, 6), 5), ((2, 9, 9), 7), ((1, 7, 7), 7)])
@given(random=st.randoms(use_true_random=False))
@settings(max_examples=4)
def test_equals_the_reference_in_any_stretches(shape: tuple, size: int, sigma: float, random) -> None:
    generator = torch.Generator().manual_seed(random.randrange(100))
    images = ImageSet(torch.randint(256, (random.randint(1, 24), *shape), generator=generator).byte())
    source = Source(images) | Source(images.subset([0]))
    z = images.scaled([0]) + sigma * torch.randn(random.randint(1, 3), *shape, generator=generator)
    problem = Problem(presets.els(source, schedule=size).at(sigma), z, sigma)
    plan = problem.collection.plan(Call.of(problem.z, problem.sigma), Settings(**OURS))
    assert [step.kernel for step in plan.steps] == ["running shifts"]
    whole = problem.collection.denoise(problem.z, problem.sigma, Settings(**OURS))
    close(whole, problem.truth(), VALUES)
    cut = FPMC(problem.collection, settings=Settings(**OURS, threads=2), team=Cut(random))
    close(cut(problem.z, problem.sigma), whole, ROUNDING)


def some(width: int, count: int = 21, height: int = 11) -> ImageSet:
    random = torch.Generator().manual_seed(width)
    common, own = (torch.randn(count, *shape, generator=random) for shape in ((1, 1, 1), (3, height, width)))
    return ImageSet((127.5 + 40 * common + 30 * own).clip(0, 255).byte())


@pytest.mark.parametrize(("width", "size"), [(32, 5), (31, 5), (16, 5), (17, 7), (40, 9), (20, 11), (5, 5), (64, 5)])
def test_widths_around_the_vectors(width: int, size: int) -> None:
    """Against torch in float64; 21 images, so that blocks are not full, and one of them left out."""
    images, random = some(width), torch.Generator().manual_seed(size)
    denoiser = presets.els(Source(images).without([3]), schedule=size)
    for sigma in (0.3, 1.0, 5.0):
        z = images.scaled([0, 5]) + sigma * torch.randn(2, *images.shape, generator=random)
        close(denoiser.using(**OURS)(z, sigma), denoiser(z.double(), sigma).float(), 1e-5)
        ours, others = (each.attribute(z, sigma, top=20).weights for each in (denoiser.using(**OURS), denoiser))
        close(ours, others, 2e-5)


@pytest.mark.parametrize(("size", "sigma"), [(5, 0.1), (5, 0.5), (7, 0.6), (9, 1.1), (15, 1.9), (25, 5.3), (5, 80.0)])
def test_rounding_is_no_larger_than_stated(size: int, sigma: float) -> None:
    """Of log Σ exp(logit), which averages the logits' errors, against float64: plain sums' rounding included."""
    images = some(32, 8, 32)
    denoiser = presets.els(images, schedule=size)
    z = images.scaled([0]) + sigma * torch.randn(1, *images.shape, generator=torch.Generator().manual_seed(size))
    found = [denoiser.using(**how) for how in (OURS, {"backend": "torch", "kernels": ("shifts",)})]
    ours, truth = (each.at(sigma) for each in found)
    states = []
    for collection, asked, how in ((ours, z, found[0].settings), (truth, z.double(), found[1].settings)):
        plan = collection.plan(Call.of(asked, sigma), how)
        run = plan.steps[0].start(plan.groups, asked, Shares(torch.ones(1, 32, 32, dtype=torch.bool)), collection.total)
        states.append(run.first(0, len(images)).log_mass.double().view(32, 32))
    inner = slice(size // 2, 32 - size // 2)
    off = (states[0] - states[1])[inner, inner]
    assert off.square().mean().sqrt() <= rounding(Translations(Source(images), size), Call(sigma))


def test_weak_noise_is_left_to_others() -> None:
    denoiser = presets.els(some(32, 500, 32), schedule=9)
    for sigma, kernel in ((0.01, "clusters"), (0.1, "clusters"), (1.09, "running shifts")):
        plan = denoiser.at(sigma).plan(Call(sigma), Settings(backend="numba"))
        assert plan.steps[0].kernel == kernel
    tight = denoiser.at(0.1).plan(Call(0.1), Settings(backend="numba", memory=1 << 20))
    assert tight.steps[0].kernel != "running shifts"
