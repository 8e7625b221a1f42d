"""Response weights in closed form, against brute force, known mixtures and controls where there is nothing to gain."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.problems import close
from fpmc import FPMC, Collection, ImageSet, InputError, Source, augment, presets, reference
from fpmc.augmentation import MOVES, TURNS
from fpmc.core.precision import Squares
from fpmc.engine import Call, Settings
from fpmc.learn.fit import Fit, answers_of, fit_level, fit_targets, labels, least_squares, weigh
from fpmc.study.levels import fit_response

pytestmark = pytest.mark.usefixtures("one_thread")


def blobs(count: int = 60, side: int = 8, channels: int = 1, seed: int = 0, first_id: int = 0) -> ImageSet:
    """Smooth images, so that patches of every size tell something."""
    random = torch.Generator().manual_seed(seed)
    rough = torch.randn(count, channels, 3, 3, generator=random)
    smooth = torch.nn.functional.interpolate(rough, size=(side, side), mode="bicubic")
    ids = torch.arange(first_id, first_id + count)
    return ImageSet((127.5 + 55 * smooth).clamp(0, 255).byte(), ids=ids, name="blobs")


def three(images: ImageSet) -> FPMC:
    return presets.multiscale(images, sizes=(3,), stride=1, temperatures=())


# The solver


def brute_force(a: np.ndarray, b: np.ndarray, free: bool) -> np.ndarray:
    """The best of all supports."""
    best, found = 0.0 if free else np.inf, np.zeros(len(b))
    for size in range(1, len(b) + 1):
        for chosen in map(list, combinations(range(len(b)), size)):
            part = np.linalg.solve(a[np.ix_(chosen, chosen)], np.stack([b[chosen], np.ones(size)], 1))
            w = part[:, 0] if free else part[:, 0] + part[:, 1] * (1 - part[:, 0].sum()) / part[:, 1].sum()
            value = w @ a[np.ix_(chosen, chosen)] @ w - 2 * b[chosen] @ w
            if (w >= 0).all() and value < best:
                best, found = value, np.zeros(len(b))
                found[chosen] = w
    return found


@given(size=st.integers(1, 6), seed=st.integers(0, 10_000), free=st.booleans())
def test_least_squares_is_the_best_of_all_supports(size: int, seed: int, free: bool) -> None:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(30, size)) + 2 * random.normal(size=(30, 1))    # alike, as denoisers are
    target = rows @ random.normal(size=size) + random.normal(size=30)
    a, b = rows.T @ rows, rows.T @ target
    expected = brute_force(a, b, free)
    np.testing.assert_allclose(least_squares(a, b, free=free), expected, atol=1e-6)


# What is fitted


@pytest.mark.parametrize("per", ["group", "channel", "pixel"])
def test_a_known_mixture_is_found(per: str) -> None:
    images, other = blobs(channels=3), blobs(40, channels=3, seed=1, first_id=1000)
    base, truth = three(images), torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)

    def mixed(z: Tensor, sigma: float | Tensor) -> Tensor:
        return FPMC(weigh(base.at(float(sigma)), truth))(z, sigma)

    found = fit_level(base.at(0.5), 0.5, mixed, other, count=40, per=per)  # pyright: ignore[reportArgumentType]
    expected = truth if per == "group" else truth.view(3, 1, 1, 1).expand_as(found.weights)
    close(found.weights, expected, 2e-3)
    assert found.error < 1e-7
    assert found.free_sum == pytest.approx(1, abs=1e-3)
    assert bool((found.weights_se < 1e-3).all())


def test_weights_by_pixel_follow_the_pixels_where_it_pays_and_the_common_ones_where_not() -> None:
    images, other = blobs(), blobs(64, seed=1, first_id=1000)
    base = presets.mixture(presets.pspc_square(images, schedule=3), presets.optimal(images))
    left = torch.zeros(1, 8, 8, dtype=torch.float64)
    left[..., :4] = 1

    def halves(z: Tensor, sigma: float | Tensor) -> Tensor:
        first, second = answers_of(base.at(0.7), z, 0.7, torch.tensor([-1]))
        return (left * first + (1 - left) * second).float()

    found = fit_level(base.at(0.7), 0.7, halves, other, count=64, per="pixel")
    assert found.weights[0, 0, :, :4].mean() > 0.9
    assert found.weights[0, 0, :, 4:].mean() < 0.1
    assert found.error < 0.2 * fit_level(base.at(0.7), 0.7, halves, other, count=64).error
    plain = fit_level(base.at(0.7), 0.7, "clean", other, count=16, per="pixel")
    assert plain.weights.var((1, 2, 3)).max() < 0.05    # 16 images are not enough to tell pixels apart


def test_images_are_left_out_of_their_own_sources() -> None:
    images = blobs()
    base, sigma = three(images), 0.05
    z = images.scaled([4, 5]) + sigma * torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    optimal = answers_of(base.at(sigma), z, sigma, images.ids[[4, 5]])[1]
    close(optimal, presets.optimal(Source(images).without([4, 5]))(z, sigma), 1e-6)
    assert (optimal - images.scaled([4, 5])).abs().max() > 0.1
    # Seen by itself, an image would be denoised perfectly by the optimal denoiser, which would then get all the say.
    assert fit_level(base.at(sigma), sigma, "clean", images, count=32).weights[1] < 0.5
    copies = ImageSet(images.pixels, ids=images.ids + 1000)
    assert fit_level(base.at(sigma), sigma, "clean", copies, count=32).weights[1] > 0.9


def test_copies_are_left_out_with_their_originals() -> None:
    images = blobs()
    source = Source(images) | augment(images, "xflip")
    base, z = presets.optimal(source), torch.randn(1, 1, 8, 8)
    (answer,) = answers_of(base.at(1.0), z, 1.0, torch.tensor([7]))
    close(answer, presets.optimal(source.without([7]))(z, 1.0), 1e-6)


def test_the_fit_is_a_collection_that_answers_with_the_weights() -> None:
    images, other = blobs(), blobs(40, seed=1, first_id=1000)
    base, seen = three(images), []
    fitted = fit_response(base, "clean", other, sigmas=[0.3, 1.0], count=32, progress=seen.append)
    z = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    for found in seen:
        assert isinstance(found, Fit)
        assert found.weights.sum() == pytest.approx(1)
        answers = answers_of(base.at(found.sigma), z, found.sigma, torch.tensor([-1]))
        expected = sum(weight * answer for weight, answer in zip(found.weights.tolist(), answers))
        close(fitted(z, found.sigma), torch.as_tensor(expected), 1e-5)
    between = (0.3 * 1.0) ** 0.5
    middle = (seen[0].weights + seen[1].weights) / 2    # half way in log σ
    close(fitted(z, between), FPMC(weigh(base.at(between), middle))(z, between), 1e-5)
    assert len(fitted.at(between).groups) <= 3          # what both levels have is there once
    close(fitted(z, 0.01), FPMC(fitted.at(0.3))(z, 0.01), 0.0)


def test_a_fit_is_saved_with_its_interpolation(tmp_path: Path) -> None:
    images = blobs()
    fitted = fit_response(presets.multiscale(images), "clean", images, sigmas=[0.3, 1.0], count=32)
    fitted.save_pretrained(tmp_path)
    loaded = FPMC.from_pretrained(tmp_path, images=images)
    z = torch.randn(3, 1, 8, 8)
    for sigma in (0.2, 0.3, 0.5, 2.0):
        close(loaded(z, sigma), fitted(z, sigma), 1e-5)
    assert len(loaded.at(0.5).groups) == len(fitted.at(0.5).groups)


def test_groups_without_say_are_left_out() -> None:
    base = three(blobs()).at(1.0)
    kept = weigh(base, torch.tensor([0.0, 1.0, 0.0]))
    assert len(kept.groups) == 1
    close(FPMC(kept)(torch.ones(1, 1, 8, 8), 1.0), presets.optimal(blobs())(torch.ones(1, 1, 8, 8), 1.0), 1e-6)


# Controls


def test_pure_noise_has_nothing_to_gain() -> None:
    random = torch.Generator().manual_seed(0)
    noise = ImageSet(torch.randint(256, (400, 1, 8, 8), generator=random).byte())
    for sigma in (0.5, 2.0):
        found = fit_level(presets.multiscale(noise).at(sigma), sigma, "clean", noise, count=256)
        assert found.gain < 3 * found.gain_se + 0.01 * found.error


def stripes(count: int, seed: int) -> ImageSet:
    """Images of another kind than blobs."""
    random = torch.Generator().manual_seed(seed)
    phase = 6.3 * torch.rand(count, 1, 1, 1, generator=random)
    values = 127.5 + 110 * (2.4 * torch.arange(8.0) + phase).sin().expand(-1, 1, 8, 8)
    return ImageSet(values.clamp(0, 255).byte(), ids=torch.arange(10**6, 10**6 + count), name="stripes")


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
def test_on_images_of_another_kind_no_more_gain_is_claimed_than_there_is(sigma: float) -> None:
    collection = presets.multiscale(blobs(200)).at(sigma)
    found = fit_level(collection, sigma, "clean", stripes(64, seed=1), count=64)
    x = stripes(256, seed=2).scaled()
    z = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    best = collection.answers(z, sigma)[int(found.singles.argmin())]
    ours = FPMC(weigh(collection, found.weights))(z, sigma)
    gain = ((best - x).square() - (ours - x).square()).mean((1, 2, 3))
    spread = (found.gain_se**2 + gain.var().item() / len(gain)) ** 0.5
    assert found.gain < gain.mean().item() + 3 * spread


def test_one_group_has_nothing_to_gain() -> None:
    found = fit_level(presets.optimal(blobs()).at(1.0), 1.0, "clean", blobs(), count=32)
    assert found.weights.tolist() == [1.0]
    assert found.gain == pytest.approx(0, abs=1e-12)


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "noisy"}, "target 'noisy'"),
        ({"per": "row"}, "per 'row'"),
        ({"count": 3}, "at least 16"),
        ({"images": blobs(side=9)}, r"\(1, 9, 9\)"),
    ],
)
def test_impossible_fits(changes: dict, message: str) -> None:
    options = {"target": "clean", "images": blobs(), "count": 32, **changes}
    target, images = options.pop("target"), options.pop("images")
    with pytest.raises(InputError, match=message):
        fit_response(three(blobs()), target, images, sigmas=[1.0], **options)


# The preset


def test_every_member_of_the_mixture_has_the_same_say_at_every_pixel() -> None:
    collection = presets.multiscale(blobs(), shape=("square", "ls"), sizes={"square": [3, 5], "ls": [3]},
                                    temperatures=()).at(0.7)
    assert len(collection.groups) == 5                  # and the optimal denoiser and the Wiener filter
    for group in collection.groups:
        close(group.total().expand(1, 8, 8), torch.ones(1, 8, 8), 1e-12)
    z = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    alone = [
        presets.pspc_square(blobs(), schedule=3), presets.pspc_square(blobs(), schedule=5),
        presets.ls(blobs(), schedule=3), presets.optimal(blobs()), presets.wiener(blobs()),
    ]
    close(FPMC(collection)(z, 0.7), torch.stack([each(z, 0.7) for each in alone]).mean(0), 1e-5)


def test_squares_in_colour_are_evaluated_together() -> None:
    collection = presets.multiscale(blobs(channels=3), sizes=(3, 4, 5), temperatures=(2.0,)).at(0.7)
    plan = collection.plan(Call(0.7), Settings(backend="numba"))
    assert [step.groups for step in plan.steps] == [(0, 1, 2), (3,), (4,), (5,)]


@pytest.mark.parametrize("sigma", [0.05, 0.7, 20.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_temperature_weighs_images_as_if_the_noise_were_stronger(sigma: float, dtype: torch.dtype) -> None:
    images = blobs()
    z = sigma * torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)
    answers = presets.multiscale(images, sizes=(3,), temperatures=(1.5, 0.5)).at(sigma).answers(z, sigma)
    for answer, temperature in zip(answers[1:4], (1.0, 1.5, 0.5), strict=True):
        close(answer, presets.optimal(images).at(1.0).denoise(z, temperature * sigma), 1e-5)


def test_squares_come_again_with_a_weaker_say_around_them(tmp_path: Path) -> None:
    images = blobs(side=12)
    denoiser = presets.multiscale(images, sizes=(3, 4, 6), temperatures=(), around=(0.1, 0.4))
    found = [(group.q.size, group.q.around) for group in denoiser.at(0.7).groups if isinstance(group.q, Squares)]
    assert found == [(3, 0.0), (4, 0.0), (4, 0.1), (4, 0.4), (6, 0.0)]
    z = torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    q = Squares(4, 12, 12, inside=True, around=0.1).dense(torch.float64)
    expected = reference.denoise(z, 0.7, q, (q == 1).double(), images.scaled(dtype=torch.float64))
    close(denoiser.at(0.7).answers(z, 0.7)[2], expected, 1e-5)
    fitted = fit_response(denoiser, "clean", images, sigmas=[0.7], count=16)
    fitted.save_pretrained(tmp_path)
    close(FPMC.from_pretrained(tmp_path, images=images)(z, 0.7), fitted(z, 0.7), 1e-6)


def test_squares_take_part_at_the_noise_levels_where_they_have_a_say() -> None:
    denoiser = presets.multiscale(blobs(count=30, side=28), temperatures=(), gaussian=False)
    assert labels(denoiser.at(80.0)) == ["square 18", "optimal"]
    assert labels(denoiser.at(0.002)) == ["square 3", "optimal"]
    assert labels(denoiser.at(1.09)) == [
        "square 3", "square 5", "square 5 in 0.03", "square 5 in 0.08", "square 5 in 0.2", "square 7",
        "square 7 in 0.03", "square 7 in 0.08", "square 7 in 0.2", "square 11", "square 18", "optimal",
    ]
    everywhere = presets.multiscale(blobs(count=30, side=28), sizes=(3, 7), around=(0.1,), temperatures=())
    fine = presets.multiscale(blobs(count=30, side=28), temperatures=())
    assert labels(fine.at(0.1))[-3:] == ["Wiener", "masks 1", "masks 2"]
    assert "masks 1" not in labels(fine.at(0.3))
    for sigma in (80.0, 0.002):
        assert labels(everywhere.at(sigma)) == ["square 3", "square 7", "square 7 in 0.1", "optimal", "Wiener"]


def test_small_squares_come_again_with_moved_images(tmp_path: Path) -> None:
    images = blobs(side=12)
    denoiser = presets.multiscale(images, sizes=(3, 4, 6), temperatures=(), around=(0.1,), moved=True)
    names = ["square 3", "square 3 moved", "square 4", "square 4 in 0.1", "square 4 moved", "square 4 in 0.1 moved"]
    assert labels(denoiser.at(0.7)) == [*names, "square 6", "optimal", "Wiener"]
    assert labels(denoiser.at(20.0)) == ["square 3", "square 4", "square 4 in 0.1", "square 6", "optimal", "Wiener"]
    z = torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    x = images.scaled(dtype=torch.float64)
    wide = torch.nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")
    places = [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)]
    moved = torch.cat([wide[:, :, y : y + 12, at : at + 12] for y, at in places])
    q = Squares(4, 12, 12, inside=True, around=0.1).dense(torch.float64)
    expected = reference.denoise(z, 0.7, q, (q == 1).double(), moved)
    close(denoiser.at(0.7).answers(z, 0.7)[5], expected, 1e-5)
    denoiser.save_pretrained(tmp_path, sigmas=[0.7])
    loaded = FPMC.from_pretrained(tmp_path, images=images)
    assert labels(loaded.at(0.7)) == labels(denoiser.at(0.7))
    close(loaded(z, 0.7), denoiser(z, 0.7), 1e-6)


def test_copies_answer_for_themselves_where_whole_images_are_short() -> None:
    images = blobs(side=12)
    collection = presets.multiscale(images, sizes=(3, 6), temperatures=(2.0,), around=(), moved=True).at(5.0)
    whole = ["optimal", "T = 2"]
    assert labels(collection) == [
        "square 3", "square 3 moved alone", "square 3 turned", "square 6", *whole,
        *(f"{name} {copies}" for copies in ("moved alone", "turned") for name in whole), "Wiener",
    ]
    z = 5 * torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    for name, kinds in (("moved alone", MOVES), ("turned", TURNS)):
        x = torch.cat([augment(images, kind).scaled(dtype=torch.float64) for kind in kinds])
        q = torch.ones(1, 1, 12, 12, dtype=torch.float64)
        answer = collection.answers(z, 5.0)[labels(collection).index(f"optimal {name}")]
        close(answer, reference.denoise(z, 5.0, q, q, x), 1e-5)


def test_moved_copies_are_left_out_with_their_originals() -> None:
    images = blobs(count=12)
    z, out = images.scaled([0, 5]), images.ids[[0, 5]]
    rest = images.subset([k for k in range(12) if k not in (0, 5)])
    some, others = (
        presets.multiscale(each, sizes=(3,), temperatures=(), gaussian=False, moved=True).at(0.5)
        for each in (images, rest)
    )
    for mine, theirs in zip(answers_of(some, z, 0.5, out), others.answers(z, 0.5), strict=True):
        close(mine, theirs, 1e-5)


def test_several_targets_are_fitted_as_each_alone() -> None:
    images, network = blobs(), presets.wiener(blobs(seed=1))
    collection = presets.multiscale(images, sizes=(3,), stride=1, temperatures=()).at(0.7)
    both = fit_targets(collection, 0.7, [network, "clean"], images, count=32, per="channel")
    for found, target in zip(both, (network, "clean"), strict=True):
        alone = fit_level(collection, 0.7, target, images, count=32, per="channel")
        close(found.weights, alone.weights, 0)
        assert (found.error, found.gain, found.ridge) == (alone.error, alone.gain, alone.ridge)


@pytest.mark.parametrize("shape", ["square", "ls", "flex", "lukoianov"])
def test_every_shape_has_sizes_of_its_own(shape: str) -> None:
    denoiser = presets.multiscale(blobs(), shape=shape)  # pyright: ignore[reportArgumentType]
    assert len(denoiser.at(0.7).groups) >= 4
    assert denoiser(torch.randn(1, 1, 8, 8), 0.7).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "round"}, "'round'"),
        ({"shape": ()}, "none"),
        ({"shape": ("ls", "square"), "sizes": [3]}, "mapping"),
        ({"sizes": []}, "no sizes"),
        ({"sizes": [99]}, "99"),
        ({"temperatures": [0.0]}, "temperature 0"),
    ],
)
def test_impossible_mixtures(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        presets.multiscale(blobs(), **options)


def test_collections_may_be_blended_without_anything_in_common() -> None:
    low, high = (presets.optimal(blobs(seed=seed)).at(1.0) for seed in (0, 1))
    assert isinstance(low, Collection)
    blended = FPMC({0.1: low, 10.0: high}, blend=True)
    z = torch.randn(2, 1, 8, 8)
    close(blended(z, 1.0), (FPMC(low)(z, 1.0) + FPMC(high)(z, 1.0)) / 2, 1e-5)
    assert blended.at(0.1) is low
    assert blended.at(50.0) is high
