"""The paper's protocol (App. B): how parameters are drawn, and which copies a set of some amount holds."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from fpmc.augmentation import augment, register
from fpmc.augmentation.kinds import KINDS
from fpmc.errors import InputError
from fpmc.images import ImageSet

COUNT = 4000


@pytest.fixture(scope="module")
def images() -> ImageSet:
    pixels = torch.arange(COUNT * 4).remainder(251).byte().view(COUNT, 1, 2, 2)
    return ImageSet(pixels)


def copies(images: ImageSet) -> list[tuple]:
    """Original and parameters of each copy."""
    return [(int(one), *row.tolist()) for one, row in zip(images.ids, images.parameters)]  # pyright: ignore


def drawn(images: ImageSet, kind: str, **settings) -> np.ndarray:              # (n, P)
    return augment(images, kind, **settings).parameters.numpy()  # pyright: ignore[reportAttributeAccessIssue]


def kolmogorov(values: np.ndarray, distribution) -> float:
    """√n times the largest distance to a distribution function; above 1.63 once in a hundred times by chance."""
    steps = np.arange(len(values) + 1) / len(values)
    truth = np.array([distribution(value) for value in np.sort(values)])
    return math.sqrt(len(values)) * max(np.abs(truth - steps[1:]).max(), np.abs(truth - steps[:-1]).max())


def normal(deviation: float):
    return lambda x: 0.5 * (1 + math.erf(x / deviation / math.sqrt(2)))


def test_translations_are_independent_standard_normals(images):
    right, down = drawn(images, "translate", amount=5).T
    assert kolmogorov(right, normal(1)) < 1.63
    assert kolmogorov(down, normal(1)) < 1.63
    assert abs(np.corrcoef(right, down)[0, 1]) < 3 / math.sqrt(len(right))


def test_angles_are_uniform(images):
    (angle,) = drawn(images, "rotate", amount=5).T
    assert kolmogorov(angle, lambda x: (x + math.pi) / (2 * math.pi)) < 1.63


def test_scales_are_log_normal_in_both_readings(images):
    assert kolmogorov(np.log2(drawn(images, "scale", amount=5)[:, 0]), normal(0.2)) < 1.63
    assert kolmogorov(np.log(drawn(images, "scale-ln", amount=5)[:, 0]), normal(math.sqrt(0.2))) < 1.63


def test_draws_of_one_image_neighbouring_images_and_seeds_are_independent(images):
    (angle,) = drawn(images, "rotate", amount=2).T
    (other,) = drawn(images, "rotate", amount=2, seed=1).T
    first, second = angle[:COUNT], angle[COUNT:]
    for a, b in [(first, second), (first[1:], first[:-1]), (angle, other)]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 3 / math.sqrt(len(a))


def test_the_same_seed_draws_the_same_for_ever(images):
    """A recipe is worth something only if these numbers never change."""
    two = images.subset(slice(2))
    assert drawn(two, "rotate").ravel() == pytest.approx([1.3450636254365316, -1.0203710627793452], abs=1e-12)
    last = drawn(two, "translate", amount=2, seed=3)[-1]
    assert last == pytest.approx([0.004054397074401339, 0.06578083395644534], abs=1e-12)


def test_a_copy_depends_on_its_original_alone(images):
    some = images.subset(torch.tensor([5, 17, 3]))
    whole = copies(augment(images, "translate"))
    assert copies(augment(some, "translate")) == [whole[5], whole[17], whole[3]]


def test_a_larger_set_holds_the_smaller(images):
    amounts = (0.2, 0.5, 1.0, 1.25, 2, 7, 20)
    sets = [copies(augment(images, "rotate", amount)) for amount in amounts]
    assert [len(one) for one in sets] == [amount * COUNT for amount in amounts]
    for smaller, larger in pairwise(sets):
        assert set(smaller) < set(larger)


@pytest.mark.parametrize("amount", [1, 3, 20])
def test_whole_amounts_have_equally_many_of_each_image_and_no_two_alike(images, amount):
    made = copies(augment(images, "scale", amount))
    assert torch.bincount(torch.tensor([one[0] for one in made])).tolist() == [amount] * COUNT
    assert len(set(made)) == len(made)


def test_smaller_amounts_have_one_of_each_of_a_random_subset(images):
    fifth = augment(images, "xflip", 0.2)
    assert len(fifth) == len(fifth.ids.unique()) == 800
    assert abs(float(fifth.ids.double().mean()) - COUNT / 2) < 3 * COUNT / math.sqrt(12 * 800)
    assert set(fifth.ids.tolist()) != set(augment(images, "xflip", 0.2, seed=1).ids.tolist())


def test_draws_that_repeat_are_discarded(images):
    @register("quarter turns", lambda u: (4 * u).floor())
    def turn(pixels, quarters):
        return torch.stack([one.rot90(int(k), (1, 2)) for one, k in zip(pixels, quarters)])

    try:
        some = images.subset(slice(50))                 # each of which has all four turns among its 20 draws
        made = copies(augment(some, "quarter turns", 4))
        assert len(set(made)) == len(made) == 200
        with pytest.raises(InputError, match=r"'quarter turns' makes only 4 different images.*at most 4.0, got 5"):
            augment(some, "quarter turns", 5)
    finally:
        del KINDS["quarter turns"]


@pytest.mark.parametrize("kind", ["xflip", "yflip"])
def test_there_is_one_reflection_of_an_image(images, kind):
    with pytest.raises(InputError, match=rf"'{kind}' makes only 1 different image of each.*at most 1.0, got 1.5"):
        augment(images, kind, 1.5)


@pytest.mark.parametrize("amount", [0, -1, 20.5, math.nan, math.inf, "1", None, 1e-9])
def test_bad_amounts(images, amount):
    with pytest.raises(InputError, match="amount"):
        augment(images, "rotate", amount)


@pytest.mark.parametrize("seed", [-1, 0.5, 2**63, "0"])
def test_bad_seeds(images, seed):
    with pytest.raises(InputError, match="seed"):
        augment(images, "rotate", seed=seed)
