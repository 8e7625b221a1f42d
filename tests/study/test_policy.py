"""What is settled for a data set, asked in one place: noise levels, held-out images, decay, networks and maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fpmc.data import load_images
from fpmc.data.packing import pack
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.methods.schedules import read_table
from fpmc.study.policy import Policy
from study.tiny import smooth_images


def named(name: str, side: int) -> Policy:
    return Policy(ImageSet(np.zeros((20, 3, side, side), np.uint8)), name)


@pytest.mark.parametrize(
    ("name", "side", "dataset", "steps", "decay", "tau"),
    [
        ("cifar10-32x32.zip", 32, "cifar10", 18, 1.92, 0.05),
        ("mine.zip", 32, None, 18, 1.92, 0.05),
        ("ffhq-64x64.zip", 64, "ffhq", 40, 4.37, 0.02),
        ("afhqv2-64x64.zip", 64, "afhq", 40, 8.03, 0.02),
        ("mine.zip", 64, None, 40, 4.37, 0.02),
        ("ffhq-32x32.zip", 32, None, 18, 1.92, 0.05),
    ],
)
def test_the_papers_numbers(name, side, dataset, steps, decay, tau):
    policy = named(name, side)
    assert (policy.dataset, policy.steps, policy.decay_from, policy.tau) == (dataset, steps, decay, tau)
    assert len(policy.grid) == steps
    if dataset is not None:                             # the grid is that of the paper's tables
        np.testing.assert_allclose(policy.grid, read_table(dataset).t, rtol=0.05, atol=0.001)


def test_a_level_is_known_by_three_digits():
    policy = named("mine", 32)
    assert policy.known(1.09) == policy.grid[10] == policy.level(1.2)
    assert policy.known(1.2) == 1.2
    assert policy.numbered([2, 0]) == [80.0, policy.grid[2]]


def test_networks_and_maps_belong_to_images_by_content():
    images = load_images("fashion")
    for part in (images, images.subset(slice(100)), images.subset([7, 5000, 3])):
        policy = Policy(part)
        assert policy.shipped == "fashion"
        assert policy.networks == ("fashion-ddpmpp", "fashion-ncsnpp")
        assert policy.network() == "fashion-ddpmpp"
        assert policy.maps() is not None
    impostor = ImageSet(255 - images.pixels[:100], ids=images.ids[:100], name="fashion")
    unknown = ImageSet(images.pixels[:100], name="mine")
    for other in (impostor, unknown, ImageSet(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), name="fashion")):
        policy = Policy(other)
        assert (policy.shipped, policy.networks, policy.maps(), policy.test) == (None, (), None, None)
        with pytest.raises(InputError, match="give --network a file"):
            policy.network()


def test_held_out_images_are_the_test_split():
    policy = Policy(load_images("fashion").subset(slice(50)), "fashion")
    assert torch.equal(policy.held_out.ids, load_images("fashion", "test").ids)
    assert len(policy.training) == 50
    assert len(policy.tuning) + len(policy.judging) == len(policy.held_out)
    assert not set(policy.tuning.ids.tolist()) & set(policy.judging.ids.tolist())


def test_without_one_it_is_one_image_in_ten(tmp_path: Path):
    pack(smooth_images(40, 8), tmp_path / "mine.zip")
    policy = Policy(load_images(tmp_path / "mine.zip"), str(tmp_path / "mine.zip"))
    assert policy.held_out.ids.tolist() == [9, 19, 29, 39]
    assert len(policy.training) == 36
    with pytest.raises(InputError, match=r"9 images.*held-out"):
        _ = Policy(smooth_images(9, 8)).held_out


def test_a_data_set_of_another_size_is_refused():
    with pytest.raises(InputError, match="64×64"):
        Policy(smooth_images(4, 8), given="ffhq")
