"""r², MSE, Pearson's r with standard errors; paired differences; nearest training images; what can be loaded."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.metrics import Comparison, compare, load_samples, median_error, nearest, paired, standard_error
from fpmc.sampling import sample


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


def pairs(n: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(0)
    reference = torch.randn(n, 3, 4, 5, generator=noise)
    return reference + 0.3 * torch.randn(n, 3, 4, 5, generator=noise), reference


def test_definitions_image_by_image():
    x, y = (value.double().numpy() for value in pairs())
    got = compare(torch.from_numpy(x), torch.from_numpy(y))
    mse = [np.mean((a - b) ** 2) for a, b in zip(x, y)]
    r2 = [1 - m / np.var(b) for m, b in zip(mse, y)]  # the variance of that reference image, all channels together
    pearson = [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(x, y)]
    np.testing.assert_allclose(got.mse_per_image, mse)
    np.testing.assert_allclose(got.r2_per_image, r2)
    np.testing.assert_allclose(got.pearson_per_image, pearson)
    for name, values in (("mse", mse), ("r2", r2), ("pearson", pearson)):
        assert getattr(got, name) == pytest.approx(np.mean(values))
        assert getattr(got, f"{name}_se") == pytest.approx(np.std(values, ddof=1) / math.sqrt(6))
    assert got.r2_median == pytest.approx(np.median(r2))
    assert len(got) == got.summary()["images"] == 6


def test_r2_is_not_pooled_over_images():
    """A flat image weighs as much as a contrasty one: the paper's numbers exclude a pooled variance."""
    unit = torch.tensor([[[1.0, -1], [-1, 1]]])
    reference = torch.stack([0.1 * unit, unit])  # variances 0.01 and 1
    got = compare(reference + 0.1, reference)
    assert got.r2_per_image.tolist() == pytest.approx([0, 0.99])
    assert got.r2 == pytest.approx(0.495)


def test_perfect_mean_and_inverted():
    _, y = pairs()
    same = compare(y, y)
    assert (same.r2, same.mse, same.mse_se) == (1, 0, 0)
    assert same.pearson == pytest.approx(1)
    mean = compare(y.mean((1, 2, 3), keepdim=True).expand_as(y), y)
    assert mean.r2 == pytest.approx(0, abs=1e-6)
    assert mean.pearson == pytest.approx(0, abs=1e-6)
    brighter = compare(y + 1, y)
    assert brighter.pearson == pytest.approx(1)
    assert brighter.r2 < 0.5
    assert compare(-y, y).pearson == pytest.approx(-1)


def test_uint8_is_brought_to_minus_one_one():
    u = torch.randint(0, 256, (2, 1, 4, 4), dtype=torch.uint8)
    assert compare(u, (u.float() - 127.5) / 127.5).mse == pytest.approx(0, abs=1e-12)
    assert compare(u.numpy(), u).mse == 0


def test_one_image_has_no_standard_error():
    x, y = pairs(1)
    got = compare(x, y)
    assert math.isnan(got.r2_se)
    assert got.summary()["r2_se"] is None


def test_paired_differences_see_what_two_errors_bars_cannot():
    x, y = pairs(50)
    good, worse = compare(x, y), compare(y + 1.01 * (x - y), y)
    difference = paired(worse, good)
    assert difference.mse == pytest.approx(worse.mse - good.mse)
    assert difference.mse / difference.mse_se > 10
    assert (worse.mse - good.mse) / math.hypot(worse.mse_se, good.mse_se) < 2
    with pytest.raises(InputError):
        paired(good, compare(x[:3], y[:3]))
    assert paired(good.first(3), compare(x[:3], y[:3])).mse == 0


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_nearest_is_brute_force(chunk):
    pixels = torch.randint(0, 256, (10, 3, 4, 5), dtype=torch.uint8)
    source = ImageSet(pixels)
    images = torch.cat([source.scaled([7]), torch.randn(4, 3, 4, 5)])
    got = nearest(images, source, chunk=chunk)
    every = (images[:, None] - source.scaled()[None]).square().mean((2, 3, 4)).sqrt()
    assert got.index.tolist() == every.argmin(1).tolist()
    np.testing.assert_allclose(got.distance, every.min(1).values, atol=1e-6)
    assert got.index[0] == 7
    assert got.distance[0] < 1e-7


def test_a_run_directory_gives_float_samples_and_seeds(tmp_path):
    x, _ = pairs(5)
    np.save(tmp_path / "samples.npy", 3 * x.numpy())
    images, seeds = load_samples(tmp_path)
    assert torch.equal(images, 3 * x)
    assert seeds is None
    np.save(tmp_path / "seeds.npy", [4, 9, 2])  # two more samples of a batch that was not finished
    images, seeds = load_samples(str(tmp_path))
    assert seeds == (4, 9, 2)
    assert torch.equal(images, 3 * x[:3])


def test_arrays_and_files(tmp_path):
    x, _ = pairs(2)
    assert torch.equal(load_samples(x)[0], x)
    assert torch.equal(load_samples(x.numpy())[0], x)
    np.save(tmp_path / "a.npy", x.numpy())
    assert torch.equal(load_samples(tmp_path / "a.npy")[0], x)


def test_a_folder_of_numbered_pngs_has_seeds(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (3, 6, 6, 3), dtype=np.uint8)
    for seed, image in zip((2, 10, 7), pixels):
        Image.fromarray(image).save(tmp_path / f"{seed:06d}.png")
    images, seeds = load_samples(tmp_path)
    assert seeds == (2, 7, 10)
    expected = torch.from_numpy(pixels[[0, 2, 1]]).permute(0, 3, 1, 2)
    np.testing.assert_allclose(images, (expected.float() - 127.5) / 127.5, atol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: compare(x, x[:2]),
        lambda x: compare(x, x.transpose(2, 3)),
        lambda x: compare(x[0], x[0]),
        lambda x: compare(x.long(), x),
        lambda x: compare(x * float("nan"), x),
        lambda x: compare(x, x * 0),
        lambda x: nearest(x, ImageSet(torch.zeros(2, 1, 2, 2, dtype=torch.uint8))),
        lambda x: load_samples("nowhere/at/all"),
    ],
)
def test_what_cannot_be_compared_is_refused(wrong):
    with pytest.raises(InputError):
        wrong(pairs()[0])


def test_a_pickled_array_is_not_opened(tmp_path):
    np.save(tmp_path / "samples.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(InputError):
        load_samples(tmp_path)


def test_medians_trimmed_means_and_pooled_r2_by_their_definitions():
    x, y = (value.double().numpy() for value in pairs(40))
    got = compare(x, y)
    mse, variance = ((x - y) ** 2).mean((1, 2, 3)), y.var((1, 2, 3))
    r2 = 1 - mse / variance
    np.testing.assert_allclose(got.variance_per_image, variance)
    assert got.r2_pooled == pytest.approx(1 - mse.sum() / variance.sum())
    ordered = np.sort(r2)
    assert got.r2_trimmed == pytest.approx(ordered[4:36].mean())
    winsorised = np.array([*[ordered[4]] * 4, *ordered[4:36], *[ordered[35]] * 4])
    assert got.r2_trimmed_se == pytest.approx(winsorised.std(ddof=1) / (0.8 * math.sqrt(40)))
    assert got.mse_median == pytest.approx(np.median(mse))


def test_standard_errors_are_the_scatter_between_experiments():
    """Of 400 experiments with 60 images each, against the mean of the errors they state."""
    generator = torch.Generator().manual_seed(1)
    variance = torch.rand(400, 60, generator=generator, dtype=torch.float64) + 0.5
    mse = 0.1 + 0.3 * variance * torch.rand(400, 60, generator=generator, dtype=torch.float64) ** 3
    runs = [Comparison(1 - m / v, m, m, v) for m, v in zip(mse, variance)]
    for name in ("r2", "r2_median", "r2_trimmed", "r2_pooled", "mse"):
        values = np.array([getattr(run, name) for run in runs])
        stated = np.mean([getattr(run, f"{name}_se") for run in runs])
        assert stated == pytest.approx(values.std(), rel=0.2), name


def test_one_stray_image_moves_the_mean_alone():
    x, y = pairs(30)
    calm = compare(x, y)
    x[0] += 50
    stray = compare(x, y)
    assert stray.r2 < calm.r2 - 10
    assert stray.r2_median == pytest.approx(calm.r2_median, abs=0.02)
    assert stray.r2_trimmed == pytest.approx(calm.r2_trimmed, abs=0.02)
    assert stray.r2_median_se == pytest.approx(calm.r2_median_se, rel=0.5)


def test_paired_differences_have_every_figure():
    x, y = pairs(50)
    good, worse = compare(x, y), compare(y + 1.5 * (x - y), y)
    difference = paired(worse, good)
    assert difference.r2_pooled == pytest.approx(worse.r2_pooled - good.r2_pooled)
    assert difference.r2 == pytest.approx(worse.r2 - good.r2)
    assert difference.r2_median == pytest.approx((worse.r2_per_image - good.r2_per_image).quantile(0.5).item())
    assert 0 < difference.r2_pooled_se < good.r2_pooled_se + worse.r2_pooled_se
    assert difference.r2_pooled / difference.r2_pooled_se < -10
    assert paired(good, good).summary()["r2_trimmed"] == 0
    assert difference.first(7).r2_pooled < 0
    assert set(good.summary()) == set(difference.summary())


def test_one_image_has_figures_without_errors():
    summary = compare(*pairs(1)).summary()
    assert summary["r2"] == summary["r2_trimmed"] == summary["r2_median"]
    assert summary["r2_pooled"] == pytest.approx(summary["r2"])
    assert [name for name, value in summary.items() if value is None] == [
        "r2_se", "r2_median_se", "r2_trimmed_se", "r2_pooled_se", "mse_se", "pearson_se"
    ]


def test_samples_and_image_sets_are_compared_as_they_are():
    images = ImageSet(torch.randint(0, 256, (3, 1, 4, 4), dtype=torch.uint8))
    drawn = sample(lambda z, s: images.scaled(), shape=(1, 4, 4), seeds=range(3))
    assert compare(drawn, images).mse == pytest.approx(0, abs=1e-10)
    assert compare(images, drawn.images.numpy()).mse == pytest.approx(0, abs=1e-10)
    assert load_samples(drawn)[1] == (0, 1, 2)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (None, "images must be Samples, an ImageSet, a tensor or an array; got NoneType"),
        ("runs/mine", "got str; read files with fpmc.metrics.load_samples"),
        ({"a": 1}, "got dict"),
        ([[1], [1, 2]], "got list"),
    ],
)
def test_what_is_no_images_is_named(wrong, named):
    with pytest.raises(InputError, match=named):
        compare(wrong, pairs()[1])


def test_two_images_have_a_standard_error_and_one_has_none():
    assert standard_error(torch.tensor([1.0, 3.0])) == pytest.approx(1.0)
    assert math.isnan(standard_error(torch.tensor([1.0])))


def test_the_error_of_a_median_is_the_same_at_every_call():
    values = torch.randn(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert median_error(values) == median_error(values)


def test_the_distance_of_a_copy_is_0_to_the_last_digit():
    images = ImageSet(torch.randint(0, 256, (5, 1, 4, 4), dtype=torch.uint8))
    found = nearest(images.scaled(dtype=torch.float64).flip(0), images)
    assert found.distance.tolist() == [0.0] * 5
    assert found.index.tolist() == [4, 3, 2, 1, 0]


def test_errors_say_which_of_the_two():
    x = torch.rand(2, 1, 4, 4)
    with pytest.raises(InputError, match=r"^images must be floats around .* got torch.int64"):
        compare(x.long(), x)
    with pytest.raises(InputError, match=r"^reference must be floats"):
        compare(x, x.long())


def test_one_picture_and_pictures_with_names_have_no_seeds(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 6, 8), dtype=np.uint8)
    for name, image in zip("ab", pixels):
        Image.fromarray(image).save(tmp_path / f"{name}.png")
    images, seeds = load_samples(tmp_path)
    assert seeds is None
    expected = torch.from_numpy(pixels)[:, None].float().sub(127.5).div(127.5)
    torch.testing.assert_close(images, expected)
    images, seeds = load_samples(tmp_path / "b.png")
    assert seeds is None
    torch.testing.assert_close(images, expected[1:])
    with pytest.raises(InputError, match=r"'.*nowhere'"):
        load_samples(tmp_path / "nowhere")
