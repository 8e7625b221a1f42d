"""Collections of groups, and the denoiser they make at each noise level."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.problems import close, truth
from fpmc import FPMC, Collection, Group, ImageSet, InputError, presets, reference
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.precision import Full, Precisions, Squares
from fpmc.core.response import Partition, Responses, SameAsQ, one_hot, pixel
from fpmc.core.sources import Source, Translations
from fpmc.engine import Call, Settings

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = (2, 3, 4)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def images(count: int = 9, seed: int = 0, shape: tuple[int, int, int] = SHAPE) -> ImageSet:
    return ImageSet((256 * rand(count, *shape, seed=seed)).byte())


def noisy(count: int = 2) -> Tensor:
    return 2 * rand(count, *SHAPE, seed=5) - 1


def full(source: ImageSet) -> Group:
    return Group(Full(3, 4), SameAsQ(Full(3, 4)), Source(source))


# Collections


@pytest.mark.parametrize("channels", [1, 2])
def test_three_tensors_make_a_denoiser(channels: int) -> None:
    q, r = 3 * rand(5, channels, 3, 4, seed=1), rand(5, 2, 3, 4, seed=2)
    denoiser = FPMC(Collection(q, r, images()))
    assert len(denoiser.at(1.0)) == 5
    close(denoiser(noisy(), 0.7), reference.denoise(noisy(), 0.7, q, r, images().scaled(dtype=torch.float64)), 1e-5)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.float64])
def test_q_and_r_may_be_of_any_type(dtype: torch.dtype) -> None:
    q, r = (rand(5, 1, 3, 4, seed=1) < 0.6).to(dtype), (rand(5, 1, 3, 4, seed=2) < 0.9).to(dtype)
    expected = reference.denoise(noisy(), 0.7, q, r, images().scaled(dtype=torch.float64))
    close(FPMC(Collection(q, r, images()))(noisy(), 0.7), expected, 1e-5)


def test_r_may_be_q_itself() -> None:
    q = rand(5, 1, 3, 4, seed=1)
    collection = Collection(q, q, images())
    assert isinstance(collection.groups[0].r, SameAsQ)
    close(FPMC(collection)(noisy(), 0.7), FPMC(Collection(q, q.clone(), images()))(noisy(), 0.7), 1e-6)


def test_structures_and_tensors_may_be_mixed() -> None:
    squares = Squares(3, 3, 4)
    structured = FPMC(Collection(squares, pixel(3, 4), images()))
    plain = FPMC(Collection(squares.dense(), pixel(3, 4).dense(), images()))
    assert isinstance(plain.at(1.0).groups[0].r, Partition)
    close(structured(noisy(), 0.7), plain(noisy(), 0.7), 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_estimator_may_have_its_own_source(dtype: torch.dtype) -> None:
    q, r = 3 * rand(4, 1, 3, 4, seed=1).to(dtype), rand(4, 1, 3, 4, seed=2).to(dtype)
    first, second = images(9), Source(images(5, seed=3), torch.linspace(0, 1, 5))
    collection = Collection(q, r, [first, second, first, fit_gaussian(Source(first))])
    assert [len(group) for group in collection.groups] == [2, 1, 1]
    z = noisy().to(dtype)
    gaussian = fit_gaussian(Source(first))
    means = [
        reference.posterior_means(z, 0.7, q[:1], first.scaled(dtype=torch.float64)),
        reference.posterior_means(
            z, 0.7, q[1:2], images(5, seed=3).scaled(dtype=torch.float64), torch.linspace(0, 1, 5)
        ),
        reference.posterior_means(z, 0.7, q[2:3], first.scaled(dtype=torch.float64)),
        reference.gaussian_means(z, 0.7, q[3:], gaussian.mean, gaussian.covariance()),
    ]
    expected = reference.combine(torch.cat(means, dim=1), r)
    close(FPMC(collection)(z, 0.7), expected, 1e-5 if dtype == torch.float32 else 1e-7)


def test_sources_per_pixel_make_els() -> None:
    translations = Translations(Source(images()), 3)
    written = Collection(Squares(3, 3, 4), pixel(3, 4), [translations.at(i) for i in range(12)])
    close(FPMC(written)(noisy(), 0.7), presets.els(images(), schedule=3)(noisy(), 0.7), 1e-5)


def test_groups_of_different_structure_add_up() -> None:
    squares = Squares(2, 3, 4, inside=True)
    collection = Collection.of(full(images()), Group(squares, SameAsQ(squares), Source(images())))
    assert len(collection) == 1 + 2 * 3
    assert torch.equal(collection.total[0, 0], torch.tensor([2.0, 3, 3, 2]).double())
    close(FPMC(collection)(noisy(), 0.7), truth(collection, noisy(), 0.7), 1e-5)


def test_a_wiener_filter_may_fill_what_patches_leave() -> None:
    """A Gaussian is a source among others: half the pixels from it, half from the images."""
    half = torch.arange(12).view(1, 3, 4) < 6
    everything = Precisions(torch.ones(1, 1, 3, 4))
    gaussian = fit_gaussian(Source(images()))
    collection = Collection.of(
        Group(everything, Responses(half[None].float()), Source(images())),
        Group(everything, Responses((~half)[None].float()), gaussian),
    )
    expected = torch.where(half, presets.optimal(images())(noisy(), 0.7), presets.wiener(images())(noisy(), 0.7))
    close(FPMC(collection)(noisy(), 0.7), expected, 1e-6)


def test_identical_estimators_are_merged() -> None:
    masks = rand(3, 1, 3, 4, seed=1) < 0.5
    collection = Collection(masks[[0, 1, 0, 2, 0]], rand(5, 1, 3, 4, seed=2), images())
    assert [len(group) for group in collection.plan(Call(1.0)).groups] == [3]
    assert len(collection) == 5
    assert "merged from 5" in FPMC(collection).explain(0.7)


def test_masks_that_see_everything_are_the_optimal_denoiser() -> None:
    collection = Collection(torch.ones(24, *SHAPE), one_hot(*SHAPE), images())
    assert [len(group) for group in collection.plan(Call(1.0)).groups] == [1]
    close(FPMC(collection)(noisy(), 0.7), presets.optimal(images())(noisy(), 0.7), 1e-6)


@pytest.mark.parametrize(
    ("q", "r", "message"),
    [
        (torch.ones(2, 1, 3, 4), torch.ones(3, 1, 3, 4), "q has 2 estimators, r has 3"),
        (torch.ones(2, 1, 4, 3), torch.ones(2, 1, 4, 3), "q is made for images of 1×4×3, the source holds 2×3×4"),
        (torch.ones(2, 3, 3, 4), torch.ones(2, 1, 3, 4), "q needs 1 or 2 channels"),
        (torch.ones(2, 1, 3, 4), torch.ones(2, 1, 4, 4), r"r is made for images of \(1, 4, 4\)"),
        (-torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4), "q must be finite and non-negative"),
        (torch.ones(2, 1, 3, 4), -torch.ones(2, 1, 3, 4), "r must be finite and non-negative"),
        (torch.ones(2, 1, 3, 4), torch.zeros(2, 1, 3, 4), r"no estimator responds at .* \(0, 0, 0\)"),
        (torch.ones(1, 3, 4), torch.ones(2, 1, 3, 4), "q must be a tensor"),
        (torch.ones(2, 1, 3, 4), [1.0, 2.0], "r must be a tensor"),
    ],
)
def test_impossible_collections(q: Tensor, r: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Collection(q, r, images())


def test_impossible_sources() -> None:
    q = torch.ones(2, 1, 3, 4)
    with pytest.raises(InputError, match="3 sources for 2 estimators"):
        Collection(q, q, [images()] * 3)
    with pytest.raises(InputError, match="got ndarray"):
        Collection(q, q, images().pixels.numpy())  # pyright: ignore[reportArgumentType]


def test_groups_share_one_shape() -> None:
    with pytest.raises(InputError, match=r"\(2, 3, 4\).*\(1, 3, 4\)"):
        Collection.of(full(images()), full(images(shape=(1, 3, 4))))
    with pytest.raises(InputError, match="none"):
        Collection.of()


def test_translations_go_with_their_squares() -> None:
    translations = Translations(Source(images()), 3)
    for q, r in [
        (Squares(5, 3, 4), pixel(3, 4)),
        (Squares(3, 3, 4, inside=True), SameAsQ(Squares(3, 3, 4, inside=True))),
        (Squares(3, 3, 4), SameAsQ(Squares(3, 3, 4))),
        (Squares(3, 3, 4), Partition(torch.zeros(1, 3, 4, dtype=torch.long), 12)),
    ]:
        with pytest.raises(InputError, match="translations"):
            Group(q, r, translations)


# The denoiser


def test_the_nearest_level_in_log_scale_is_taken() -> None:
    low, high = Collection.of(full(images())), Collection.of(full(images(seed=1)))
    denoiser = FPMC({0.1: low, 10.0: high})
    for sigma, expected in [(0.002, low), (0.1, low), (0.99, low), (1.01, high), (80, high)]:
        assert denoiser.at(sigma) is expected


def test_a_function_makes_collections_for_any_level() -> None:
    asked = []

    def make(sigma: float) -> Collection:
        asked.append(sigma)
        return Collection.of(full(images()))

    denoiser = FPMC(make)
    denoiser(noisy(), 0.25)
    assert 0.25 in asked


def test_each_image_may_have_its_own_level() -> None:
    denoiser = presets.ls(images(), schedule={0.1: 1, 10.0: 3})
    z = noisy(4)
    levels = torch.tensor([0.3, 5.0, 0.3, 7.0])
    expected = torch.cat([denoiser(one[None], float(level)) for one, level in zip(z, levels)])
    close(denoiser(z, levels), expected, 1e-6)
    close(denoiser(z, levels.double()), expected, 1e-6)
    close(denoiser(z, torch.full((4,), 0.25)), denoiser(z, 0.25), 0.0)
    close(denoiser(z, torch.tensor(0.25)), denoiser(z, 0.25), 0.0)


def test_the_shape_is_known() -> None:
    assert FPMC(Collection.of(full(images()))).shape == SHAPE
    assert FPMC(lambda sigma: Collection.of(full(images()))).shape == SHAPE


def test_settings_may_be_changed_without_changing_the_denoiser() -> None:
    denoiser = presets.optimal(images())
    other = denoiser.using(chunk=2, backend="torch")
    assert denoiser.settings == Settings()
    assert other.settings == Settings(chunk=2, backend="torch")
    assert (other.name, other.collections) == (denoiser.name, denoiser.collections)
    close(other(noisy(), 0.7), denoiser(noisy(), 0.7), 1e-6)


def test_explain_names_kernel_reason_work_and_memory() -> None:
    text = presets.ls(images(), schedule=3).explain(0.7, batch=16)
    for word in ("sigma 0.7", "batch 16", "boxes", "12 estimators", "9 images", "box sums", "multiply-adds", "MiB"):
        assert word in text


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_noise_levels(sigma: float) -> None:
    denoiser = presets.optimal(images())
    with pytest.raises(InputError, match="sigma"):
        denoiser(noisy(), sigma)
    with pytest.raises(InputError, match="sigma"):
        denoiser(noisy(), torch.tensor([1.0, sigma]))
    with pytest.raises(InputError, match="sigma"):
        denoiser.explain(sigma)
    with pytest.raises(InputError, match="sigma"):
        FPMC({sigma: Collection.of(full(images()))})


@pytest.mark.parametrize("sigma", [torch.ones(3), torch.ones(0), [1.0, 1.0, 1.0]])
def test_a_level_for_each_image_or_one_for_all(sigma: Tensor) -> None:
    with pytest.raises(InputError, match=r"sigma (must be a number or one for each image|is empty)"):
        presets.optimal(images())(noisy(), sigma)


@pytest.mark.parametrize(
    ("z", "message"),
    [
        (torch.zeros(2, 3, 4), r"\(B, C, H, W\); got shape \(2, 3, 4\); for one image give z\[None\]"),
        (torch.zeros(1, 2, 4, 3), r"images of shape \(2, 3, 4\); got \(2, 4, 3\)"),
        (torch.zeros(1, 1, 3, 4), r"images of shape \(2, 3, 4\); got \(1, 3, 4\)"),
        (torch.zeros(1, 3, 4, 2), "channels are last"),
        (torch.zeros(1, 2, 3, 4, dtype=torch.long), "got Tensor of int64"),
        (torch.zeros(1, 2, 3, 4, dtype=torch.uint8), "got Tensor of uint8"),
        (torch.zeros(1, 2, 3, 4).numpy(), "got ndarray"),
        (torch.full((1, 2, 3, 4), torch.nan), "NaN"),
        (torch.full((1, 2, 3, 4), torch.inf), "infinite"),
    ],
)
def test_impossible_z(z: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        presets.optimal(images())(z, 1.0)


def test_no_collections() -> None:
    with pytest.raises(InputError, match="at least one noise level"):
        FPMC({})
