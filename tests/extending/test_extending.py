"""A new Q, R, V, kernel or reduction is one small file that plans, denoises, is saved and attributed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import torch

from engine.contract import Cut
from engine.problems import close, truth
from extending.new_kernel import Slow
from extending.new_low_rank_q import LowRank
from extending.new_q import Discs
from extending.new_r import Crosses
from extending.new_reduction import Variance
from extending.new_v import Mixture
from fpmc import FPMC, Collection, ImageSet, Source, reference
from fpmc.core.precision import Squares
from fpmc.core.response import Responses, pixel
from fpmc.engine import Call, Settings
from fpmc.engine.kernels.offer import Offer

Offer.known.pop("torch slow")                           # only where it is asked for
CHANNELS, HEIGHT, WIDTH = 2, 5, 6
RANDOM = torch.Generator().manual_seed(0)
IMAGES = ImageSet(torch.randint(256, (30, CHANNELS, HEIGHT, WIDTH), generator=RANDOM).byte())
OTHERS = ImageSet(torch.randint(256, (11, CHANNELS, HEIGHT, WIDTH), generator=RANDOM).byte(), ids=range(100, 111))
OWN = pixel(HEIGHT, WIDTH)
LOW_RANK = LowRank(
    torch.rand(4, CHANNELS, HEIGHT, WIDTH, generator=RANDOM),
    0.3 * torch.randn(4, CHANNELS * HEIGHT * WIDTH, 3, generator=RANDOM),
)
FOUR = Responses(torch.rand(4, 1, HEIGHT, WIDTH, generator=RANDOM) + 0.1)
COLLECTIONS = {
    "discs": Collection(Discs(HEIGHT, WIDTH, 1.5, 0.4), OWN, IMAGES),
    "low rank": Collection(LOW_RANK, FOUR, IMAGES),
    "crosses": Collection(Squares(3, HEIGHT, WIDTH), Crosses(HEIGHT, WIDTH, 0.25), IMAGES),
    "mixture": Collection(Squares(3, HEIGHT, WIDTH), OWN, Mixture((Source(IMAGES), Source(OTHERS)), (0.9, 0.1))),
    "all of them": Collection(
        Discs(HEIGHT, WIDTH, 1.0, 0.2),
        Crosses(HEIGHT, WIDTH, 0.1),
        Mixture((Source(IMAGES), Source(OTHERS)), (0.5, 0.5)),
    ),
}


def noisy(sigma: float) -> torch.Tensor:
    return IMAGES.scaled(slice(3)) + sigma * torch.randn(3, CHANNELS, HEIGHT, WIDTH, generator=RANDOM)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_new_structure_denoises_as_the_oracle_says(name: str, sigma: float) -> None:
    collection, z = COLLECTIONS[name], noisy(sigma)
    expected = truth(collection, z, sigma)
    for settings in (Settings(), Settings(backend="torch"), Settings(exact=True)):
        close(collection.denoise(z, sigma, settings), expected, 1e-4)
        close(collection.denoise(z, sigma, settings), expected, 1e-4)          # with what was kept of the images
    close(collection.denoise(z.double(), sigma), expected, 1e-9)
    assert str(len(collection)) in str(collection.plan(Call(sigma)))


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_new_structure_is_saved_and_loaded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {each.checksum(): each for each in (IMAGES, OTHERS)}
    monkeypatch.setattr("fpmc.augmentation.from_recipe", lambda recipe, _: known[recipe["checksum"]])
    denoiser, z = FPMC({0.5: COLLECTIONS[name]}, name=name), noisy(0.5)
    denoiser.save_pretrained(tmp_path)
    loaded = FPMC.from_pretrained(tmp_path)
    assert torch.equal(loaded(z, 0.5), denoiser(z, 0.5))
    assert type(loaded.at(0.5).groups[0].q) is type(COLLECTIONS[name].groups[0].q)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_new_structure_is_attributed_and_images_are_left_out(name: str) -> None:
    denoiser, z = FPMC(COLLECTIONS[name]), noisy(0.5)
    found = denoiser.attribute(z, 0.5, top=100)
    close(found.answers.sum(1), denoiser(z, 0.5), 1e-5)
    close(found.weights.sum(1), torch.ones(3), 1e-5)
    first = found.ids[0, :2]
    left = denoiser.without(first)
    assert not bool(torch.isin(left.attribute(z, 0.5, top=20).ids[:, :3], first).any())
    close(left(z, 0.5), truth(left.at(0.5), z, 0.5), 1e-4)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Offer.known, "torch slow", Slow)


@pytest.mark.usefixtures("slow")
def test_a_new_kernel_makes_its_offer() -> None:
    assert Offer.known["torch slow"] is Slow
    collection, z = COLLECTIONS["discs"], noisy(0.5)
    plan = collection.plan(Call(0.5))
    assert plan.steps[0].kernel != "slow"
    assert any(name.startswith("slow") for name, _ in plan.steps[0].others)
    only = Settings(kernels=("slow",))
    assert "slow and exact" in str(collection.plan(Call(0.5), only))
    close(collection.denoise(z, 0.5, only), truth(collection, z, 0.5), 1e-6)


@pytest.mark.usefixtures("slow")
def test_a_new_kernel_is_cut_and_merged() -> None:
    collection, z, only = COLLECTIONS["mixture"], noisy(0.5), Settings(kernels=("slow",))
    close(collection.denoise(z, 0.5, only, Cut(Random(1))), collection.denoise(z, 0.5, only), 2e-6)


@pytest.mark.parametrize("settings", [Settings(), Settings(backend="torch")])
@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_new_reduction_is_exact(name: str, settings: Settings) -> None:
    collection, z = COLLECTIONS[name], noisy(0.5)
    (group,) = collection.groups
    x = torch.cat([part.scaled(dtype=torch.float64) for part in group.source.parts])
    q, r = group.q.dense(torch.float64), group.response(torch.float64)
    p = torch.softmax(reference.logits(z, 0.5, q, x, group.source.log_weights), -1)
    mean, square = (reference.combine(torch.einsum("bln,nchw->blchw", p, x**k), r) for k in (1, 2))
    close(collection.reduce(Variance(), z, 0.5, settings), square - mean**2, 1e-5)


def test_every_extension_is_one_small_file() -> None:
    for file in Path(__file__).parent.glob("new_*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 60, file.name
