"""The data as a Gaussian, and the masks made of its Wiener filter."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import bruteforce
from engine.problems import SIGMAS, close
from fpmc import InputError, reference
from fpmc.core import gaussian, shelf
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.sources import Source
from fpmc.images import ImageSet
from fpmc.methods import rows, wiener
from fpmc.methods.wiener import estimate_sigma, lukoianov_masks, varies, wiener_matrix

pytestmark = pytest.mark.usefixtures("one_thread")


def correlated(count: int, shape: tuple[int, int, int], seed: int = 0, dead: int | None = None) -> ImageSet:
    """Images with a common brightness; `dead` is the grey level of a border that never varies."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 128, (count, 1, 1, 1)) + random.integers(0, 128, (count, *shape))
    if dead is not None:
        values[:, :, 0] = dead
        values[:, :, :, -1] = dead
    return ImageSet(values.astype(np.uint8))


@given(count=st.integers(1, 30), channels=st.sampled_from([1, 3]), seed=st.integers(0, 99), weighted=st.booleans())
def test_mean_and_covariance_are_those_of_the_data(count: int, channels: int, seed: int, weighted: bool) -> None:
    images = correlated(count, (channels, 3, 4), seed)
    weights = np.random.default_rng(seed).random(count) + 0.1 if weighted else np.ones(count)
    source = Source(images, torch.from_numpy(np.log(weights))) if weighted else Source(images)
    gaussian = fit_gaussian(source)
    flat = images.scaled(dtype=torch.float64).flatten(1).numpy()
    close(gaussian.mean.flatten(), torch.from_numpy(np.average(flat, axis=0, weights=weights)), 1e-13)
    expected = np.cov(flat.T, aweights=weights, ddof=0) if count > 1 else np.zeros((12 * channels, 12 * channels))
    close(gaussian.covariance(), torch.from_numpy(expected), 1e-13)
    assert (gaussian.eigenvalues >= 0).all()


def test_any_way_of_chunking_gives_the_same_gaussian(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(correlated(20, (1, 3, 4))) | correlated(9, (1, 3, 4), seed=1)
    whole = fit_gaussian(source)
    monkeypatch.setattr(gaussian, "CHUNK", 3)
    again = fit_gaussian(Source(source.parts))
    assert again is not whole
    close(again.covariance(), whole.covariance(), 1e-13)


def test_images_left_out_do_not_count() -> None:
    images = correlated(20, (1, 3, 4))
    left = fit_gaussian(Source(images).without(range(12, 20)))
    close(left.covariance(), fit_gaussian(Source(images.subset(slice(0, 12)))).covariance(), 1e-13)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_filter_is_the_regression_on_noisy_data(sigma: float) -> None:
    """W = Σ(Σ + σ²)⁻¹, symmetric, with gains between 0 and 1; and `reference` agrees."""
    images = correlated(200, (1, 3, 4))
    gaussian = fit_gaussian(Source(images))
    filter_ = wiener_matrix(gaussian, sigma)
    noisy = gaussian.covariance() + sigma**2 * torch.eye(12, dtype=torch.float64)
    close(filter_ @ noisy, gaussian.covariance(), 1e-12)
    close(filter_, filter_.T, 1e-14)
    gains = torch.linalg.eigvalsh(filter_)
    assert gains.min() > -1e-12
    assert gains.max() < 1
    z = images.scaled([0, 1], dtype=torch.float64) + sigma
    means = reference.gaussian_means(z, sigma, torch.ones(1, 1, 3, 4), gaussian.mean, gaussian.covariance())
    close(gaussian.mean + ((z - gaussian.mean).flatten(1) @ filter_.T).view_as(z), means[:, 0], 1e-10)


@pytest.mark.parametrize("rule", ["paper", "official"])
@pytest.mark.parametrize("dead", [None, 0, 13, 200])
@pytest.mark.parametrize("count", [12, 70])             # fewer images than dimensions, and more
def test_masks_equal_those_of_the_original(count: int, dead: int | None, rule) -> None:
    images = correlated(count, (3, 4, 3), dead=dead)
    gaussian = fit_gaussian(Source(images))
    for sigma, tau in zip(SIGMAS, [0.05, 0.02, 0.05, 0.2, 0.05, 0.5]):
        masks = lukoianov_masks(gaussian, sigma, tau, rule)
        expected = bruteforce.lukoianov_mask(sigma, images.scaled(dtype=torch.float64).numpy(), tau, rule)
        assert masks.dtype == torch.bool
        assert torch.equal(masks.flatten(1), torch.from_numpy(expected)), sigma


def test_the_two_rules_differ() -> None:
    gaussian = fit_gaussian(Source(correlated(24, (3, 4, 5))))
    first, second = (lukoianov_masks(gaussian, 0.3, 0.05, rule) for rule in ("paper", "official"))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("rule", ["paper", "official"])
def test_every_dimension_is_in_its_own_mask(rule, sigma: float) -> None:
    for tau in (0.0, 0.5, 0.999):
        masks = lukoianov_masks(fit_gaussian(Source(correlated(24, (1, 4, 5), dead=7))), sigma, tau, rule)
        assert masks.flatten(1).diagonal().all()


@pytest.mark.parametrize("level", [0, 13, 200])
def test_dead_pixels_are_found(level: int) -> None:
    alive = varies(fit_gaussian(Source(correlated(24, (3, 4, 5), dead=level))))
    assert alive.shape == (3, 4, 5)
    assert alive[:, 1:, :-1].all()
    assert not alive[:, 0].any()
    assert not alive[:, :, -1].any()


def test_one_grey_level_in_one_image_is_alive() -> None:
    pixels = torch.randint(256, (2000, 1, 3, 3), generator=torch.Generator().manual_seed(1)).byte()
    pixels[:, :, 0, 0] = 7
    pixels[5, :, 0, 0] = 8
    assert varies(fit_gaussian(Source(ImageSet(pixels)))).all()


def test_one_image_has_no_variance() -> None:
    gaussian = fit_gaussian(Source(correlated(1, (1, 3, 4))))
    assert not varies(gaussian).any()
    for rule in ("paper", "official"):
        assert torch.equal(lukoianov_masks(gaussian, 0.3, 0.05, rule).flatten(1), torch.eye(12, dtype=torch.bool))


@pytest.mark.parametrize(
    ("tau", "rule", "message"),
    [(1.0, "paper", "tau 1.0"), (-0.1, "paper", "tau -0.1"), (float("nan"), "paper", "nan"), (0.05, "rows", "'rows'")],
)
def test_impossible_masks(tau: float, rule, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lukoianov_masks(fit_gaussian(Source(correlated(3, (1, 3, 4)))), 0.3, tau, rule)


@pytest.fixture
def shelved(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    """Everything is kept, in a folder of its own."""
    monkeypatch.setenv("FPMC_HOME", str(tmp_path))
    monkeypatch.setattr(gaussian, "KEEP", 1)
    monkeypatch.setattr(gaussian, "_known", {})         # what is at hand already


def smooth(count: int, shape: tuple[int, int, int], seed: int = 0) -> ImageSet:
    """Images whose neighbouring pixels are alike."""
    random = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, shape[0], shape[1] + 4, shape[2] + 4, generator=random)
    return ImageSet((127.5 + 200 * torch.nn.functional.avg_pool2d(noise, 5, 1)).clip(0, 255).byte())


@pytest.mark.parametrize("rule", ["paper", "official"])
@pytest.mark.parametrize(("count", "tau"), [(100, 0.05), (100, 0.0), (900, 0.05), (900, 0.3)])
def test_masks_in_float32_equal_those_in_float64(count: int, tau: float, rule, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fit_gaussian(Source(smooth(count, (3, 16, 16))))
    for sigma in SIGMAS:
        exact = lukoianov_masks(fitted, sigma, tau, rule)
        with monkeypatch.context() as patch:
            patch.setattr(rows, "SMALL", 0)
            patch.setattr(rows, "BLOCK", 100)
            assert torch.equal(lukoianov_masks(fitted, sigma, tau, rule), exact), sigma


def test_float32_is_not_trusted_where_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, add = fit_gaussian(Source(smooth(100, (1, 12, 12)))), rows._add
    exact = lukoianov_masks(fitted, 0.3, 0.05)

    def wrong(matrix: torch.Tensor, *how) -> None:
        add(matrix, *how)
        matrix *= 1.001

    monkeypatch.setattr(rows, "SMALL", 0)
    with rows.filter_rows(fitted, wiener.gains(fitted, 0.3), 0.05) as found:
        assert found.rough is not None
    monkeypatch.setattr(rows, "_add", wrong)
    for _ in range(2):                                  # from what is known, and from nothing
        with rows.filter_rows(fitted, wiener.gains(fitted, 0.31), 0.05) as found:
            assert found.rough is None
        assert torch.equal(lukoianov_masks(fitted, 0.3, 0.05), exact)


@pytest.mark.parametrize("levels", [(80, 60, 45, 30, 20, 10, 3, 1, 0.3), (0.002, 0.01, 0.3, 0.29, 40, 0.1)])
def test_what_is_left_out_from_level_to_level_is_bounded(levels, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, kept = fit_gaussian(Source(smooth(300, (3, 16, 16)))), []
    add = rows._add
    exact = [lukoianov_masks(fitted, sigma, 0.05) for sigma in levels]
    monkeypatch.setattr(rows, "SMALL", 0)
    monkeypatch.setattr(rows, "STRIP", 100)
    monkeypatch.setattr(rows, "_add", lambda *how: (kept.append(len(how[-1])), add(*how)))
    for sigma, masks in zip(levels, exact):
        gains = wiener.gains(fitted, sigma)
        with rows.filter_rows(fitted, gains, 0.05) as found:
            assert found.rough is not None
            difference = (found.rough.double() - wiener.wiener_matrix(fitted, sigma)).abs()
            left_out = torch.as_tensor(found.left_out)
            rounding = rows.UNCERTAIN / 4 * found.diagonal
            assert bool((left_out >= 0).all())
            assert bool((difference <= ((rounding + left_out)[:, None] * (rounding + left_out)).sqrt()).all()), sigma
            assert bool((difference <= found.off(slice(None))).all())
            close(found.diagonal, wiener.wiener_matrix(fitted, sigma).diagonal(), 1e-12)
        assert torch.equal(lukoianov_masks(fitted, sigma, 0.05), masks), sigma
    assert min(kept) < len(fitted.eigenvalues) / 8                   # and much is


def test_entries_are_those_of_the_matrix() -> None:
    fitted = fit_gaussian(Source(smooth(60, (1, 8, 8))))
    matrix = wiener.wiener_matrix(fitted, 0.5)
    row, column = (torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) < 0.1).nonzero().unbind(1)
    gains = wiener.gains(fitted, 0.5)
    close(rows.Rows(fitted.eigenvectors, gains, matrix.diagonal()).entries(row, column), matrix[row, column], 1e-12)


def test_few_images_span_few_directions() -> None:
    images = correlated(20, (3, 4, 5))
    fitted = fit_gaussian(Source(images))
    assert fitted.eigenvectors.shape == (60, 19)
    close(fitted.eigenvectors.T @ fitted.eigenvectors, torch.eye(19, dtype=torch.float64), 1e-10)
    z = images.scaled(dtype=torch.float64) + 0.3 * torch.randn(20, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    assert ((estimate_sigma(fitted, z) / 0.3 - 1).abs() < 0.3).all()


@pytest.mark.usefixtures("shelved")
def test_equal_images_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images = correlated(20, (3, 4, 5))
    first = fit_gaussian(Source(images))
    masks = lukoianov_masks(first, 0.3, 0.05)
    assert fit_gaussian(Source(ImageSet(images.pixels.clone()))).eigenvectors is first.eigenvectors
    monkeypatch.setattr(gaussian, "_known", {})
    monkeypatch.setattr(gaussian, "_fit", None)         # nothing is worked out again
    monkeypatch.setattr(wiener, "_masks", None)
    again = fit_gaussian(Source(ImageSet(images.pixels.clone())))
    assert torch.equal(again.eigenvectors, first.eigenvectors)
    assert torch.equal(lukoianov_masks(again, 0.3, 0.05), masks)
    for other in (Source(images).without([3]), Source(correlated(20, (3, 4, 5), seed=1))):
        with pytest.raises(TypeError):
            fit_gaussian(other)


@pytest.mark.usefixtures("shelved")
@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "text"])
def test_damaged_files_are_made_again(damage: str) -> None:
    images = correlated(20, (3, 4, 5))
    first = fit_gaussian(Source(images))
    gaussian._known.clear()
    (path,) = shelf.folder().glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-9] ^= 64
    path.write_bytes({"flipped": bytes(content), "short": content[:-100], "empty": b"", "text": b"x" * 99}[damage])
    assert torch.equal(fit_gaussian(Source(images)).eigenvectors, first.eigenvectors)
    assert path.stat().st_size == len(content)


@pytest.mark.usefixtures("shelved")
def test_the_shelf_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "LIMIT", 3000)
    for number in range(6):
        shelf.keep(f"k{number}", {"a": torch.full((100,), float(number))}, "numbers")
        assert sum(path.stat().st_size for path in shelf.folder().iterdir()) <= 3600
    assert shelf.take("k0") is None
    found = shelf.take("k5")
    assert found is not None
    assert found["a"][0] == 5
    shelf.keep("large", {"a": torch.zeros(10_000)}, "zeros")
    assert shelf.take("large") is None
