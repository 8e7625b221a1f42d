"""Table 1 against the original methods' formulas (bruteforce.py), closed forms, and what the presets refuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import bruteforce
from engine.problems import SIGMAS, close, truth
from fpmc import InputError, augment, presets
from fpmc.core.fpmc import FPMC
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.sources import Source
from fpmc.engine import Call
from fpmc.images import ImageSet
from fpmc.methods import table1
from fpmc.methods.table1 import flex_masks, wiener_maps
from fpmc.networks import SensitivityMaps, load_maps, save_maps

SHAPES = [(1, 6, 6), (3, 6, 6), (1, 5, 7), (3, 7, 5)]
SMALL = [(1, 4, 4), (3, 4, 4), (1, 3, 5), (3, 5, 6)]    # for ELS, which meets every patch of every image
FAR = 0.3                                               # below it, float32 cannot rank images that are all far away

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def data(shape: tuple[int, int, int], dead: bool = False, count: int = 20) -> ImageSet:
    """Images whose pixels and channels are correlated; `dead` gives them borders that never vary."""
    channels, height, width = shape
    random = np.random.default_rng(sum(shape))
    grain = random.normal(size=(count, channels + 1, height + 2, width + 2))
    smooth = np.sum([grain[:, :, i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=0)
    values = 127.5 + 8 * (smooth[:, 1:] + smooth[:, :1])           # the first grain is common to the channels
    pixels = values.round().clip(0, 255).astype(np.uint8)
    if dead:
        pixels[:, :, 0] = 0
        pixels[:, 0, :, -1] = 201
    return ImageSet(pixels)


@cache
def maps(shape: tuple[int, int, int]) -> Tensor:
    """Sensitivities that fall off with distance, no two alike."""
    _, height, width = shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    distance = (y[..., None, None] - y) ** 2 + (x[..., None, None] - x) ** 2
    noise = torch.rand(distance.shape, generator=torch.Generator().manual_seed(3))
    return torch.exp(-0.4 * distance) * (0.5 + noise)


def noisy(images: ImageSet, sigma: float) -> Tensor:
    """Two training images and two others with noise, and one z near no image, (5, C, H, W) in float32."""
    random = torch.Generator().manual_seed(7)
    others = images.scaled([2, 3]).flip(3) * 0.8
    near = torch.cat([images.scaled([0, 1]), others])
    near = near + sigma * torch.randn(near.shape, generator=random)
    return torch.cat([near, 3 * torch.rand(1, *images.shape, generator=random) - 1.5])


METHODS: dict[str, tuple[Callable[[ImageSet], FPMC], Callable[..., np.ndarray]]] = {
    "optimal": (presets.optimal, bruteforce.optimal),
    "wiener": (presets.wiener, bruteforce.wiener),
    "ls 1": (lambda d: presets.ls(d, schedule=1), lambda z, s, x: bruteforce.ls(z, s, x, 1)),
    "ls 3": (lambda d: presets.ls(d, schedule=3), lambda z, s, x: bruteforce.ls(z, s, x, 3)),
    "ls 7": (lambda d: presets.ls(d, schedule=7), lambda z, s, x: bruteforce.ls(z, s, x, 7)),
    "els 1": (lambda d: presets.els(d, schedule=1), lambda z, s, x: bruteforce.els(z, s, x, 1)),
    "els 3": (lambda d: presets.els(d, schedule=3), lambda z, s, x: bruteforce.els(z, s, x, 3)),
    "pspc_square 3": (lambda d: presets.pspc_square(d, schedule=3), lambda z, s, x: bruteforce.pspc_square(z, s, x, 3)),
    "pspc_square 4": (lambda d: presets.pspc_square(d, schedule=4), lambda z, s, x: bruteforce.pspc_square(z, s, x, 4)),
    "pspc_flex": (
        lambda d: presets.pspc_flex(d, maps=maps(d.shape), schedule=0.6),
        lambda z, s, x: bruteforce.pspc_flex(z, s, x, maps(x.shape[1:]).double().numpy(), 0.6),
    ),
    "pspc_flex wiener": (
        lambda d: presets.pspc_flex(d, maps="wiener", schedule=0.5),
        lambda z, s, x: bruteforce.pspc_flex(z, s, x, bruteforce.wiener_maps(s, x), 0.5),
    ),
    "lukoianov paper": (
        lambda d: presets.lukoianov(d, tau=0.05),
        lambda z, s, x: bruteforce.lukoianov(z, s, x, 0.05),
    ),
    "lukoianov official": (
        lambda d: presets.lukoianov(d, tau=0.05, rule="official"),
        lambda z, s, x: bruteforce.lukoianov(z, s, x, 0.05, "official"),
    ),
}
DEAD = ["wiener", "lukoianov paper", "lukoianov official"]
CASES = [(name, shape, False) for name in METHODS for shape in (SMALL if "els" in name else SHAPES)]
CASES += [(name, shape, True) for name in DEAD for shape in SHAPES]


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize(("name", "shape", "dead"), CASES)
def test_equals_the_original_method(name: str, shape: tuple[int, int, int], dead: bool, sigma: float) -> None:
    make, original = METHODS[name]
    images = data(shape, dead, 8 if "els" in name else 20)
    denoiser, z = make(images), noisy(images, sigma)
    expected = torch.from_numpy(original(z.double().numpy(), sigma, images.scaled(dtype=torch.float64).numpy()))
    close(truth(denoiser.at(sigma), z, sigma), expected, 1e-10)
    ranked = slice(None) if sigma >= FAR else slice(4)
    close(denoiser(z, sigma)[ranked], expected[ranked], 1e-4)


# Closed forms


PRESETS: dict[str, Callable[[ImageSet], FPMC]] = {
    "optimal": presets.optimal,
    "wiener": presets.wiener,
    "ls": presets.ls,
    "els": lambda d: presets.els(d, schedule=7),        # patches as large as the image: no translations
    "pspc_square": presets.pspc_square,
    "pspc_flex": lambda d: presets.pspc_flex(d, maps="wiener"),
    "lukoianov": presets.lukoianov,
    "lukoianov official": lambda d: presets.lukoianov(d, rule="official"),
}


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("name", PRESETS)
def test_one_image_gives_itself(name: str, sigma: float) -> None:
    image = data((3, 5, 7)).subset([4])
    z = sigma * torch.randn(3, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    close(PRESETS[name](image)(z, sigma), image.scaled().expand(3, -1, -1, -1), 1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_without_noise_a_training_image_stays(name: str) -> None:
    images = data((3, 6, 6))
    close(PRESETS[name](images)(images.scaled([3, 8]), 1e-3), images.scaled([3, 8]), 1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_all_noise_gives_the_mean(name: str) -> None:
    images = data((1, 5, 7))
    z = torch.randn(2, 1, 5, 7, generator=torch.Generator().manual_seed(1))
    mean = images.scaled(dtype=torch.float64).mean(0).expand(2, -1, -1, -1)
    close(PRESETS[name](images)(z, 1e4), mean, 1e-5)


def test_two_images_give_a_logistic() -> None:
    images = data((3, 5, 7)).subset([0, 1])
    first, second = images.scaled(dtype=torch.float64)
    z = 0.4 * first + 0.6 * second + torch.randn(1, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    sigma = 2.0
    share = torch.sigmoid((((z - second) ** 2).sum() - ((z - first) ** 2).sum()) / (2 * sigma**2))
    assert 0.01 < share < 0.99
    close(presets.optimal(images)(z.float(), sigma)[0], share * first + (1 - share) * second, 1e-6)


def test_no_noise_gives_the_nearest_image() -> None:
    images = data((3, 5, 7))
    z = 2 * torch.rand(4, 3, 5, 7, generator=torch.Generator().manual_seed(1)) - 1
    nearest = torch.cdist(z.flatten(1), images.scaled().flatten(1)).argmin(1)
    close(presets.optimal(images)(z, 0.01), images.scaled(nearest), 1e-6)


def test_weights_are_prior_probabilities() -> None:
    images = data((1, 6, 6))
    weights = torch.linspace(0, 3, len(images), dtype=torch.float64)
    z = torch.randn(2, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    mean = torch.einsum("n,nchw->chw", weights.softmax(0), images.scaled(dtype=torch.float64))
    close(presets.optimal(Source(images, weights))(z, 1e4), mean.expand(2, -1, -1, -1), 1e-5)


def test_the_optimal_denoiser_of_gaussian_data_is_the_wiener_filter() -> None:
    random = torch.Generator().manual_seed(1)
    mixing = torch.tensor([[0.25, 0.0], [0.15, 0.2]])
    samples = 0.1 + torch.randn(100_000, 2, generator=random) @ mixing.T
    images = ImageSet((127.5 * (samples + 1)).round().clip(0, 255).byte().view(-1, 1, 1, 2))
    z = 0.4 * torch.randn(8, 1, 1, 2, generator=random)
    sigma = 0.2
    expected = presets.wiener(images)(z, sigma)
    assert (expected - z).abs().max() > 0.2             # the filter does something
    close(presets.optimal(images)(z, sigma), expected, 0.02)


@pytest.mark.parametrize("name", ["ls", "els", "lukoianov"])
@pytest.mark.parametrize("shape", SHAPES)
def test_responses_partition_unity(name: str, shape: tuple[int, int, int]) -> None:
    collection = PRESETS[name](data(shape)).at(0.3)
    assert torch.equal(collection.total, torch.ones(shape, dtype=torch.float64))
    dense = sum(group.r.dense().sum(0).expand(shape) for group in collection.groups)
    assert torch.equal(torch.as_tensor(dense), torch.ones(shape))


def test_pspc_square_of_the_whole_image_is_optimal() -> None:
    images = data((3, 6, 6))
    z = noisy(images, 1.1)
    denoiser = presets.pspc_square(images, schedule=6)
    assert len(denoiser.at(1.1)) == 1
    close(denoiser(z, 1.1), presets.optimal(images)(z, 1.1), 1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_ls_with_patches_beyond_the_image_is_optimal(shape: tuple[int, int, int]) -> None:
    images = data(shape)
    z = noisy(images, 1.1)
    denoiser = presets.ls(images, schedule=2 * max(shape[1:]) - 1)
    assert sum(len(group) for group in denoiser.at(1.1).plan(Call(1.1)).groups) == 1
    close(denoiser(z, 1.1), presets.optimal(images)(z, 1.1), 1e-5)


@pytest.mark.parametrize("size", [7, 9, 13])
@pytest.mark.parametrize("shape", SHAPES)
def test_els_with_patches_as_large_as_the_image_is_ls(shape: tuple[int, int, int], size: int) -> None:
    images = data(shape)
    z = noisy(images, 1.1)
    close(presets.els(images, schedule=size)(z, 1.1), presets.ls(images, schedule=size)(z, 1.1), 1e-5)


def test_pspc_flex_that_takes_every_pixel_is_optimal() -> None:
    images = data((3, 6, 6))
    z = noisy(images, 1.1)
    denoiser = presets.pspc_flex(images, maps=maps((3, 6, 6)), schedule=1.0)
    assert len(denoiser.at(1.1)) == 1
    close(denoiser(z, 1.1), presets.optimal(images)(z, 1.1), 1e-5)


# Masks, schedules, levels


def test_flex_masks_keep_the_crossing_pixel() -> None:
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    sensitivity = shares[torch.tensor([3, 0, 2, 1])].view(1, 1, 2, 2).expand(2, 2, 2, 2)
    for tau, kept in [(0.0, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4), (3.0, 4)]:
        taken = flex_masks(7 * sensitivity, tau).view(4, 4)     # 7: maps need not be normalised
        expected = shares[torch.tensor([3, 0, 2, 1])] >= shares[kept - 1]
        for pixel in range(4):
            alone = torch.zeros(4, dtype=torch.bool)
            alone[pixel] = not expected[pixel]          # a pixel in no mask answers for itself
            assert torch.equal(taken[pixel], expected | alone), tau


def test_a_pixel_no_map_takes_answers_for_itself() -> None:
    images = data((1, 5, 7))
    one_eyed = torch.zeros(5, 7, 5, 7)
    one_eyed[:, :, 2, 3] = 1.0                          # every output pixel looks at the same input pixel
    z = noisy(images, 1.1)
    result = presets.pspc_flex(images, maps=one_eyed, schedule=0.5)(z, 1.1)
    x, pixels = images.scaled(dtype=torch.float64).numpy(), np.s_[..., [2, 4], [3, 6]]     # the eye and the corner
    corner = [bruteforce.posterior_mean(one[pixels], x[pixels], x[:, 0, 4, 6], 1.1) for one in z.double().numpy()]
    close(result[:, 0, 4, 6], torch.from_numpy(np.array(corner)), 1e-5)


def test_wiener_maps_of_dead_pixels_look_at_themselves() -> None:
    images = data((3, 6, 6), dead=True)
    gaussian, x = fit_gaussian(Source(images)), images.scaled(dtype=torch.float64).numpy()
    for sigma in SIGMAS:
        sensitivity = wiener_maps(gaussian, sigma)
        close(sensitivity[1:], torch.from_numpy(bruteforce.wiener_maps(sigma, x))[1:], 1e-9)
        assert torch.equal(sensitivity[0].flatten(1), torch.eye(36, dtype=torch.float64)[:6])


def test_shipped_maps_are_the_default_for_their_images(tmp_path, monkeypatch) -> None:
    images, z = data((1, 6, 6)), torch.randn(2, 1, 6, 6)
    assert presets.pspc_flex(images, schedule=0.6).name == "PSPC-Flex (Wiener maps)"
    false = ImageSet(torch.randint(256, (30, 1, 28, 28), dtype=torch.uint8), name="fashion")
    assert presets.pspc_flex(false).name == "PSPC-Flex (Wiener maps)"         # the name alone does not do
    monkeypatch.setattr(table1, "data_of", lambda _: "images")
    monkeypatch.setattr(table1, "MAPS", tmp_path)
    monkeypatch.setattr("fpmc.networks.mapfile.MAPS", tmp_path)
    save_maps(SensitivityMaps({1.1: maps((1, 6, 6))}, {1.1: 1}, {1.1: 0.0}), tmp_path / "images-ddpmpp.safetensors")
    shipped = presets.pspc_flex(images, schedule=0.6)
    assert shipped.name == "PSPC-Flex"
    given = load_maps(tmp_path / "images-ddpmpp.safetensors")
    assert torch.equal(shipped(z, 1.1), presets.pspc_flex(images, maps=given, schedule=0.6)(z, 1.1))


def test_maps_are_taken_at_the_nearest_level() -> None:
    images = data((1, 6, 6))
    both = {0.1: maps((1, 6, 6)), 10.0: maps((1, 6, 6)).flip(2)}
    z = noisy(images, 0.9)
    for sigma, chosen in [(0.9, 0.1), (1.1, 10.0)]:     # 1 is halfway in log scale
        alone = presets.pspc_flex(images, maps=both[chosen], schedule=0.6)
        assert torch.equal(presets.pspc_flex(images, maps=both, schedule=0.6)(z, sigma), alone(z, sigma))


def test_schedules_are_taken_at_the_nearest_level() -> None:
    images = data((1, 6, 6))
    z = noisy(images, 0.9)
    denoiser = presets.ls(images, schedule={0.1: 3, 10.0: 5})
    for sigma, size in [(0.002, 3), (0.9, 3), (1.1, 5), (80.0, 5)]:
        assert torch.equal(denoiser(z, sigma), presets.ls(images, schedule=size)(z, sigma))


@pytest.mark.parametrize("method", ["pspc_square", "ls", "els", "pspc_flex", "lukoianov"])
def test_the_default_schedule_serves_any_resolution(method: str) -> None:
    for shape in [(1, 2, 2), (1, 3, 8), (1, 10, 10)]:
        images = ImageSet(torch.randint(256, (3, *shape), generator=torch.Generator().manual_seed(1)).byte())
        make = getattr(presets, method)
        denoiser = make(images, maps="wiener") if method == "pspc_flex" else make(images)
        for sigma in (0.002, 1.0, 80.0):
            assert denoiser(torch.zeros(1, *shape), sigma).shape == (1, *shape)


@pytest.mark.parametrize("name", PRESETS)
def test_a_source_serves_as_well_as_images(name: str) -> None:
    images = data((1, 6, 6))
    z = noisy(images, 1.1)
    halves = Source(images.subset(slice(0, 10))) | images.subset(slice(10, None))
    close(PRESETS[name](halves)(z, 1.1), PRESETS[name](images)(z, 1.1), 1e-5)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_names_and_explain_themselves(name: str) -> None:
    denoiser = PRESETS[name](data((3, 6, 6)))
    assert denoiser.shape == (3, 6, 6)
    assert denoiser.name.lower().startswith(name.split()[0].replace("_", "-"))
    assert "estimators" in denoiser.explain(0.3)


# What is refused


REFUSED: dict[str, Callable[[ImageSet], object]] = {
    "is odd": lambda d: presets.ls(d, schedule=4),
    "use 3 or 5": lambda d: presets.els(d, schedule={0.1: 4}),
    "at least one pixel": lambda d: presets.ls(d, schedule=0),
    "does not fit": lambda d: presets.pspc_square(d, schedule=7),
    "whole number": lambda d: presets.ls(d, schedule=3.5),
    "32×32": lambda d: presets.ls(d, schedule="cifar10"),
    "64×64": lambda d: presets.pspc_flex(d, maps="wiener", schedule="afhq"),
    "no schedule": lambda d: presets.ls(d, schedule="cifar100"),
    "empty": lambda d: presets.ls(d, schedule={}),
    "sigma > 0": lambda d: presets.ls(d, schedule={0.0: 3}),
    "value ≥ 0": lambda d: presets.pspc_flex(d, maps="wiener", schedule=-0.1),
    "nan": lambda d: presets.pspc_square(d, schedule=float("nan")),
    "number": lambda d: presets.ls(d, schedule={"low": 3}),  # pyright: ignore[reportArgumentType]
    "tau 1.0": lambda d: presets.lukoianov(d, tau=1.0),
    "tau 1.5": lambda d: presets.lukoianov(d, tau={0.1: 0.05, 1.0: 1.5}),
    "'row'": lambda d: presets.lukoianov(d, rule="row"),  # pyright: ignore[reportArgumentType]
    "'network'": lambda d: presets.pspc_flex(d, maps="network"),  # pyright: ignore[reportArgumentType]
    r"\(6, 6, 6, 6\)": lambda d: presets.pspc_flex(d, maps=torch.ones(36, 36), schedule=0.5),
    r"got \(6, 6, 5, 6\)": lambda d: presets.pspc_flex(d, maps={1.0: torch.ones(6, 6, 5, 6)}, schedule=0.5),
    "got .5, 7, 5, 7": lambda d: presets.pspc_flex(d, maps=torch.ones(5, 7, 5, 7), schedule=0.5),
    "non-negative": lambda d: presets.pspc_flex(d, maps=-torch.ones(6, 6, 6, 6), schedule=0.5),
    "finite": lambda d: presets.pspc_flex(d, maps=torch.full((6, 6, 6, 6), torch.nan), schedule=0.5),
    "all 0": lambda d: presets.pspc_flex(d, maps=torch.zeros(6, 6, 6, 6), schedule=0.5),
    "no maps": lambda d: presets.pspc_flex(d, maps={}, schedule=0.5),
    "sigma 0": lambda d: presets.pspc_flex(d, maps={0.0: torch.ones(6, 6, 6, 6)}, schedule=0.5),
    "ImageSet": lambda d: presets.optimal(d.pixels.numpy()),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_choices_are_refused_when_the_denoiser_is_made(message: str) -> None:
    with pytest.raises(InputError, match=message):
        REFUSED[message](data((3, 6, 6)))


@pytest.mark.parametrize("sigma", [0.1, 1.1, 9.0])
@pytest.mark.parametrize(
    "name", ["optimal", "wiener", "ls", "els", "pspc_square", "pspc_flex", "lukoianov", "multiscale"]
)
def test_without_some_images_it_is_the_denoiser_that_never_had_them(name: str, sigma: float) -> None:
    """The counterfactual, for all structures and for unions with augmented copies."""
    images = data((1, 6, 6), count=40)
    z, gone = noisy(images, sigma)[:3], [0, 7, 8, 31]
    left = images.subset([number for number in range(40) if number not in gone])
    make = getattr(presets, name)
    flipped = (Source(images) | augment(images, "xflip"), Source(left) | augment(left, "xflip"))
    for all_of_them, fewer in ((images, left), flipped):
        counterfactual = make(all_of_them).without(gone)
        close(counterfactual(z, sigma), make(fewer)(z, sigma), 1e-6)
        found = counterfactual.attribute(z, sigma, top=8)
        assert float(found.weights[torch.isin(found.ids, torch.tensor(gone))].sum()) == 0
        assert not torch.equal(make(all_of_them)(z, sigma), counterfactual(z, sigma))
