"""The clusters of ELS: every patch is in one, bounds hold, answers are exact, sums are those of all patches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.contract import ROUNDING, VALUES, Cut
from engine.problems import Problem, close, problems
from fpmc import presets
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source, Translations
from fpmc.engine import Call, Settings
from fpmc.engine.kernels import sorting
from fpmc.engine.kernels.clusters import PatchProducts
from fpmc.engine.plan import EXACT
from fpmc.engine.reduce import Mean
from fpmc.engine.simd import clusters
from fpmc.engine.simd.gathering import CLUSTER
from fpmc.engine.simd.vector import LANES
from fpmc.images import ImageSet

pytestmark = pytest.mark.usefixtures("one_thread")
OURS: Any = {"backend": "numba", "kernels": ("clusters",)}
PRODUCTS: Any = {"backend": "numba", "kernels": ("cluster products",)}


def smooth(count: int, channels: int, height: int, width: int, seed: int = 0) -> ImageSet:
    """Images with flat patches, of which many are alike, and others."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, channels, 3, 3, generator=random)
    fine = torch.randn(count, channels, height, width, generator=random) * torch.rand(count, 1, 1, 1, generator=random)
    return ImageSet((127.5 + 90 * F.interpolate(coarse, (height, width)) + 25 * fine).clip(0, 255).byte())


@pytest.fixture
def small_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "LEAF", 200)
    monkeypatch.setattr(sorting, "SAMPLE", 1000)
    monkeypatch.setattr(sorting, "PIECE", 150)


def patches_of(images: ImageSet, size: int) -> np.ndarray:
    """(patches, dimension), u − 127.5, channels last."""
    x = images.pixels.double() - 127.5
    columns = F.unfold(x, size).unflatten(1, (images.shape[0], size**2))
    return columns.permute(0, 3, 2, 1).flatten(2).flatten(0, 1).numpy()


@pytest.mark.usefixtures("small_leaves")
@pytest.mark.parametrize(("shape", "size"), [((3, 12, 17), 3), ((1, 9, 8), 5), ((2, 7, 7), 1), ((3, 6, 6), 5)])
def test_every_patch_is_in_one_cluster_and_in_its_box(shape: tuple[int, int, int], size: int) -> None:
    images = smooth(37, *shape)
    index, axes = sorting.sorted_patches(images, 0, 37, size, 2)
    there = index.places[index.places >= 0]
    assert sorted(there) == sorted(sorting._places(images, 37, size))
    assert len(index.places) % CLUSTER == 0
    by_place = dict(zip(sorting._places(images, 37, size), patches_of(images, size)))
    low, high = (each.reshape(-1, len(axes) + 1) for each in (index.low, index.high))
    for n, members in enumerate(index.places.reshape(-1, CLUSTER)):
        x = np.array([by_place[place] for place in members if place >= 0])
        along = x @ axes.T.astype(np.float64)
        features = np.c_[along, np.sqrt(np.maximum(0, (x**2).sum(1) - (along**2).sum(1)))]
        slack = 1e-5 * 127.5 * math.sqrt(x.shape[1]) + 1e-9 * np.abs(features)
        assert (features >= low[n] - slack).all()
        assert (features <= high[n] + slack).all()


@pytest.mark.usefixtures("small_leaves")
@given(sigma=st.floats(0.002, 3), reach=st.floats(0, 2), seed=st.integers(0, 9))
def test_what_a_noisy_patch_lacks_to_a_box_is_a_lower_bound(sigma: float, reach: float, seed: int) -> None:
    """Whoever is within the limit of a noisy patch is in a cluster that is reached."""
    images = smooth(20, 3, 8, 8, seed)
    index, axes = sorting.sorted_patches(images, 0, 20, 3, 1)
    places = {place: n for n, place in enumerate(sorting._places(images, 20, 3))}
    x, random = patches_of(images, 3), np.random.default_rng(seed)
    noise = 127.5 * sigma * random.standard_normal((LANES, 27))
    z = (x[random.integers(len(x), size=LANES)] + noise).astype(np.float32)
    along = z.astype(np.float64) @ axes.T
    features = np.c_[along, np.sqrt(np.maximum(0, (z.astype(np.float64) ** 2).sum(1) - (along**2).sum(1)))]
    distances = ((z[:, None].astype(np.float64) - x) ** 2).sum(2)
    limit = (distances.min(1) + (127.5 * reach) ** 2).astype(np.float32)
    found = np.empty(LANES, np.int64)
    flat = np.ascontiguousarray(features.T, np.float32).ravel()
    none = np.zeros(LANES, np.float32)
    passed, unpaid = 0, (np.float32(0), limit, none)
    for n, members in enumerate(index.places.reshape(-1, CLUSTER)):
        rows = [places[place] for place in members if place >= 0]
        loose = clusters.ROUNDING * np.float32(27)
        box = index.low, index.high, n * (len(axes) + 1)
        count = clusters.reached(*box, flat, none, limit, np.float32(0), loose, *unpaid, found)
        needed = np.flatnonzero((distances[:, rows] < limit[:, None]).any(1))
        assert set(needed) <= set(found[:count])
        passed += LANES - count
    assert reach > 0.1 or sigma > 0.1 or passed > 0


@pytest.mark.usefixtures("small_leaves")
@given(sigma=st.floats(0.05, 3), seed=st.integers(0, 9))
def test_who_passes_over_a_cluster_within_its_limit_pays_for_all_that_is_in_it(sigma: float, seed: int) -> None:
    images = smooth(20, 3, 8, 8, seed)
    index, axes = sorting.sorted_patches(images, 0, 20, 3, 1)
    places = {place: n for n, place in enumerate(sorting._places(images, 20, 3))}
    x, random = patches_of(images, 3), np.random.default_rng(seed)
    z = x[random.integers(len(x), size=LANES)] + 127.5 * sigma * random.standard_normal((LANES, 27))
    along = z @ axes.T
    features = np.c_[along, np.sqrt(np.maximum(0, (z**2).sum(1) - (along**2).sum(1)))]
    logits = -((z[:, None] - x) ** 2).sum(2) / (2 * (127.5 * sigma) ** 2)
    flat, none = np.ascontiguousarray(features.T, np.float32).ravel(), np.zeros(LANES, np.float32)
    near = (-logits.max(1) * 2 * (127.5 * sigma) ** 2).astype(np.float32)
    steep, endless = np.float32(clusters.LOG2E / (2 * (127.5 * sigma) ** 2)), np.full(LANES, 1e29, np.float32)
    found, loose, paid_for = np.empty(LANES, np.int64), clusters.ROUNDING * np.float32(27), 0
    for n, members in enumerate(index.places.reshape(-1, CLUSTER)):
        account = np.full(LANES, 64.0, np.float32)
        box = index.low, index.high, n * (len(axes) + 1)
        count = clusters.reached(*box, flat, none, endless, np.float32(0), loose, steep, near, account, found)
        rows, others = [places[place] for place in members if place >= 0], np.setdiff1d(range(LANES), found[:count])
        held = np.exp(logits[:, rows] - logits.max(1, keepdims=True)).sum(1)
        assert (64.0 - account[others] >= 0.999 * held[others] - 1e-5).all()
        assert (account[found[:count]] == 64.0).all()
        paid_for += len(others)
    assert sigma > 0.5 or paid_for > 0


def moves(problem: Problem) -> bool:
    """Some patches lie inside the image."""
    (group,) = problem.collection.groups
    assert isinstance(group.source, Translations)
    return group.source.size <= min(group.shape[1:])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kernel", ["clusters", "shifts", "block shifts"])
@given(problem=problems("translations").filter(moves))
def test_every_kernel_equals_the_reference(kernel: str, exact: bool, problem: Problem) -> None:
    chosen = Settings(backend="numba", kernels=(kernel,), exact=exact)
    plan = problem.collection.plan(Call.of(problem.z, problem.sigma), chosen)
    assert [step.kernel for step in plan.steps] == [kernel]
    close(problem.collection.denoise(problem.z, problem.sigma, chosen), problem.truth(), VALUES)


def exact_enough(problem: Problem) -> bool:
    """For sums of products."""
    (group,) = problem.collection.groups
    assert isinstance(group.source, Translations)
    entries = group.source.size**2 * group.shape[0]
    return moves(problem) and PatchProducts.rounding(entries, Call.of(problem.z, problem.sigma)) <= EXACT


@given(problem=problems("translations").filter(exact_enough))
def test_sums_of_products_equal_the_reference(problem: Problem) -> None:
    close(problem.collection.denoise(problem.z, problem.sigma, Settings(**PRODUCTS)), problem.truth(), VALUES)


def log_mass(denoiser: FPMC, z: Tensor, sigma: float, **how: Any) -> Tensor:
    """log Σ exp(logit) of the pixels that move, in one thread."""
    collection, chosen = denoiser.at(sigma), denoiser.using(threads=1, **how).settings
    plan = collection.plan(Call.of(z, sigma), chosen)
    (group,) = plan.groups
    assert isinstance(group.source, Translations)
    inner = slice(group.source.size // 2, z.shape[3] - group.source.size // 2)
    state = plan.steps[0].start(plan.groups, z, Mean(), collection.total).first(0, len(group.source.base))
    return state.log_mass.double().view(len(z), *z.shape[2:])[:, inner, inner]


@pytest.mark.parametrize(("size", "sigma"), [(3, 0.05), (3, 0.14), (5, 0.296), (5, 0.55), (9, 1.09), (7, 2.0)])
def test_rounding_of_products_is_no_larger_than_stated(size: int, sigma: float) -> None:
    images = smooth(32, 3, 16, 16)
    denoiser = presets.els(images, schedule=size)
    z = images.scaled([0]) + sigma * torch.randn(1, *images.shape, generator=torch.Generator().manual_seed(size))
    truth = log_mass(denoiser, z.double(), sigma, backend="torch", kernels=("shifts",))
    off = log_mass(denoiser, z, sigma, exact=True, **PRODUCTS) - truth
    assert off.square().mean().sqrt() <= PatchProducts.rounding(size**2 * 3, Call(sigma))


@pytest.mark.usefixtures("small_leaves")
@pytest.mark.parametrize("tolerance", [0.3, 1e-2, 1e-4])
@pytest.mark.parametrize(("how", "sigma"), [(OURS, 0.05), (OURS, 0.3), (PRODUCTS, 0.3), (PRODUCTS, 1.0)])
def test_what_is_passed_over_is_within_the_tolerance(how: Any, sigma: float, tolerance: float) -> None:
    """Of every noisy patch's posterior, by limits and accounts together."""
    images = smooth(800, 3, 12, 12)
    z = images.scaled([0, 5]) + sigma * torch.randn(2, *images.shape, generator=torch.Generator().manual_seed(1))
    denoiser = presets.els(images, schedule=3)
    exact = log_mass(denoiser, z, sigma, exact=True, **how)
    lost = -torch.expm1(log_mass(denoiser, z, sigma, tolerance=tolerance, **how) - exact)
    assert lost.max() <= tolerance + 2e-5


@given(problem=problems("translations").filter(moves), random=st.randoms(use_true_random=False))
def test_stretches_and_threads_do_not_matter(problem: Problem, random) -> None:
    whole = problem.collection.denoise(problem.z, problem.sigma, Settings(**OURS))
    cut = FPMC(problem.collection, settings=Settings(**OURS, threads=2), team=Cut(random))
    close(cut(problem.z, problem.sigma), whole, ROUNDING)


@pytest.mark.usefixtures("small_leaves")
@pytest.mark.parametrize("sigma", [0.002, 0.05, 0.3, 5.0])
@pytest.mark.parametrize(("shape", "size"), [((3, 11, 20), 3), ((1, 12, 9), 5), ((2, 9, 9), 1), ((4, 7, 7), 7)])
def test_many_clusters_equal_float64(shape: tuple[int, int, int], size: int, sigma: float) -> None:
    """Two sets of images with weights, one image left out; leaves of 200, so that the tree has several levels."""
    first, second = smooth(40, *shape), smooth(23, *shape, seed=1)
    source = (Source(first) | Source(second)).without([3])
    random = torch.Generator().manual_seed(size)
    z = second.scaled([0, 5]) + sigma * torch.randn(2, *shape, generator=random)
    denoiser = presets.els(source, schedule=size)
    close(denoiser.using(**OURS)(z, sigma), denoiser(z.double(), sigma).float(), 1e-5)


def test_equal_images_do_not_add_up_rounding_nor_fill_memory() -> None:
    """One leaf has nearly everything, and pieces bound it."""
    flat = ImageSet(torch.full((300, 1, 16, 16), 200, dtype=torch.uint8))
    z = 0.5 * torch.randn(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    close(presets.els(flat, schedule=3).using(**OURS)(z, 0.5), flat.scaled([0]), 2e-6)


def test_low_noise_is_planned_so_and_says_what_it_keeps() -> None:
    images = smooth(2000, 3, 32, 32)
    names = (0.05, 3, "clusters"), (0.14, 3, "cluster products"), (0.296, 3, "cluster products")
    for sigma, size, kernel in (*names, (0.585, 7, "running shifts")):
        plan = presets.els(images, schedule=size).at(sigma).plan(Call(sigma), Settings(backend="numba"))
        assert plan.steps[0].kernel == kernel
    denoiser = presets.els(images, schedule=3)
    step = denoiser.at(0.14).plan(Call(0.14), Settings(backend="numba")).steps[0]
    assert step.memory > 2000 * (3072 + 900 * 12)
    assert "sorted once, in about" in str(step)
    for sigma, kernel in ((0.14, "shifts"), (0.296, "running shifts")):        # where there is no room for clusters
        tight = denoiser.at(sigma).plan(Call(sigma), Settings(backend="numba", memory=1 << 24))
        assert tight.steps[0].kernel == kernel
