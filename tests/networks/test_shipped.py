"""The networks that come with the package."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import pytest
import torch
from safetensors import safe_open

from fpmc.data import load_images
from fpmc.images import ImageSet
from fpmc.methods.schedules import resolve
from fpmc.methods.table1 import flex_masks, wiener
from fpmc.networks import SHIPPED, load_maps, load_network
from fpmc.networks.shipped import MAPS, WEIGHTS
from fpmc.networks.training import validate

FASHION = [name for name in SHIPPED if name.startswith("fashion")]
MAPPED = sorted(path.stem for path in MAPS.glob("*.safetensors"))


@lru_cache
def fashion() -> tuple[ImageSet, dict[float, float]]:
    """Held-out images, and the error of the best linear denoiser on them by noise level."""
    held_out = load_images("fashion", split="test").subset(slice(0, 2000, 25))
    return held_out, validate(wiener(load_images("fashion")), held_out)


@pytest.mark.parametrize("name", SHIPPED)
def test_weights_are_small_and_come_with_a_card(name: str) -> None:
    assert (WEIGHTS / f"{name}.safetensors").stat().st_size <= 8_000_000
    card = (WEIGHTS / f"{name}.md").read_text(encoding="utf-8")
    assert "fpmc train" in card
    assert "images seen" in card
    assert (WEIGHTS / f"{name}.png").is_file()
    net: Any = load_network(name)
    assert net.name == name
    with safe_open(WEIGHTS / f"{name}.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["fpmc"])["img_resolution"] == net.shape[1]
        assert file.get_tensor("model.map_layer0.weight").dtype == torch.float16


@pytest.mark.parametrize("name", FASHION)
def test_errors_are_below_wieners_at_every_noise_level(name: str) -> None:
    held_out, linear = fashion()
    errors = validate(load_network(name), held_out)
    # At the ends both are as good as can be: at low noise all but the image, at high noise its mean.
    assert {sigma: error for sigma, error in errors.items() if error > 1.02 * linear[sigma]} == {}
    assert all(errors[sigma] < 0.9 * linear[sigma] for sigma in (0.2, 0.5, 1.0, 2.0, 5.0))


@pytest.mark.parametrize("name", MAPPED)
def test_maps_are_there_where_the_schedule_needs_them(name: str) -> None:
    maps = load_maps(name)
    shape: Any = load_network(name).shape  # pyright: ignore[reportFunctionMemberAccess]
    needed = [sigma for sigma, tau in resolve(None, "pspc_flex", shape).items() if tau < 1]
    assert max(maps) <= max(needed) * 1.01
    assert all(values.shape == shape[1:] * 2 for values in maps.values())
    # Localised at low noise, spread at high noise.
    sizes = [flex_masks(maps[sigma], 0.5).sum().item() for sigma in sorted(maps)]
    assert sizes[0] < 0.5 * sizes[-1]


def test_maps_are_small_together() -> None:
    assert sum(path.stat().st_size for path in MAPS.glob("*.safetensors")) <= 12_000_000
