"""Recipes: augmented sets as plain data, rebuilt from the same images."""

from __future__ import annotations

import json

import pytest
import torch

from fpmc import presets
from fpmc.augmentation import augment, from_recipe
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source
from fpmc.data import load_images
from fpmc.errors import InputError
from fpmc.images import ImageSet


@pytest.fixture
def images() -> ImageSet:
    return load_images("fashion").subset(slice(40))


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))


def through_json(recipe: dict) -> dict:
    return json.loads(json.dumps(recipe))


def test_a_recipe_holds_kind_amount_seed_and_the_checksum_of_the_images(images):
    assert augment(images, "rotate", 2, seed=3).recipe() == {
        "kind": "rotate",
        "amount": 2.0,
        "seed": 3,
        "of": {"name": "fashion", "count": 40, "checksum": images.checksum()},
    }


@pytest.mark.parametrize("kind", ["xflip", "translate", "scale-ln"])
def test_rebuilt_from_its_recipe(images, kind):
    made = augment(augment(images, kind, 0.5, seed=5), "rotate", 2)
    again = from_recipe(through_json(made.recipe()), images)
    assert again.checksum() == made.checksum()
    assert torch.equal(again.ids, made.ids)


def test_images_are_found_by_name():
    whole = load_images("fashion")
    again = from_recipe(through_json(augment(whole, "xflip", 0.2).recipe()))
    assert torch.equal(again.read(slice(5)), augment(whole, "xflip", 0.2).read(slice(5)))


def test_synthetic_images_are_found_without_their_network(images):
    made = augment(images, "synthetic", 0.5, network=lambda z, sigma: z / (1 + sigma**2), steps=3)
    recipe = through_json(made.recipe())
    assert torch.equal(from_recipe(recipe, images).pixels, made.pixels)
    with pytest.raises(InputError, match="40 synthetic images are wanted and 20 are in"):
        from_recipe({**recipe, "amount": 1.0}, images)


def test_a_saved_denoiser_rebuilds_its_union(images, tmp_path):
    weights = torch.linspace(0, 1, 100).double()
    source = Source([images, augment(images, "rotate", 1.5)], weights)
    denoiser = presets.pspc_square(source, schedule=5)
    denoiser.save_pretrained(tmp_path / "saved")
    again = FPMC.from_pretrained(tmp_path / "saved", images=images)
    z = images.scaled(slice(3)) + 0.5 * torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(again(z, 0.5), denoiser(z, 0.5), atol=1e-6)
    assert repr(again.at(0.5).groups[0].source) == repr(source)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "blur"}, "augmentation 'blur' is not known here; register it"),
        ({"amount": 50}, "amount"),
        ({"seed": "one"}, "seed"),
        ({"angle": 3}, "does not know: angle"),
        ({"of": {"name": "fashion"}}, "damaged"),
        ({"of": {"name": "fashion", "count": 40, "checksum": "0"}}, "speaks of 40 images called 'fashion'"),
    ],
)
def test_damaged_and_foreign_recipes(images, change, says):
    with pytest.raises(InputError, match=says):
        from_recipe({**augment(images, "rotate").recipe(), **change}, images)


def test_a_recipe_without_its_parts(images):
    recipe = augment(images, "rotate").recipe()
    for key in ("amount", "seed", "of"):
        with pytest.raises(InputError, match="damaged"):
            from_recipe({k: v for k, v in recipe.items() if k != key}, images)
