"""Geometry: what the transformations do to pixels, against rolls, quarter turns and functions known everywhere."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpmc.augmentation.kinds import rotate, scale, translate
from fpmc.augmentation.warp import REACH
from fpmc.data import load_images


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("right", "down"), [(0, 0), (3, -2), (-5, 4), (11, 13)])
def test_translation_by_whole_pixels_is_a_roll_inside_and_a_reflection_at_the_border(right, down):
    x = noise(3, 2, 16, 12)
    moved = translate(x, numbers(right, right, right) * 8 / 12, numbers(down, down, down) * 8 / 16)
    around = F.pad(x.float(), (11, 11, 15, 15), mode="reflect").byte()
    assert torch.equal(moved, around[..., 15 - down : 31 - down, 11 - right : 23 - right])
    inside = (..., slice(max(down, 0), 16 + min(down, 0)), slice(max(right, 0), 12 + min(right, 0)))
    assert torch.equal(moved[inside], x.roll((down, right), (2, 3))[inside])


@pytest.mark.parametrize("side", [7, 8])
def test_four_quarter_turns_give_the_image_back(side):
    x = noise(2, 3, side, side)
    turned = x
    for quarter in range(1, 5):
        turned = rotate(turned, numbers(math.pi / 2, math.pi / 2))
        assert torch.equal(turned, x.rot90(quarter, (2, 3)))        # anticlockwise
    assert torch.equal(turned, x)


def test_scaling_moves_what_is_off_the_centre():
    x = torch.zeros(2, 1, 31, 31, dtype=torch.uint8)
    x[..., 15, 19] = 200                                # 4 to the right of the centre
    middle = scale(x, numbers(2.0, 0.5))[:, 0, 8:24, 8:24]          # further out there are reflections
    assert [divmod(int(one.long().argmax()), 16) for one in middle] == [(15 - 8, 23 - 8), (15 - 8, 17 - 8)]


class Waves:
    """A band-limited picture, known between its pixels: waves of up to `highest` cycles a pixel, in all directions."""

    def __init__(self, highest: float, side: int = 48) -> None:
        random = torch.Generator().manual_seed(1)
        angle, phase = (2 * math.pi * torch.rand(6, generator=random, dtype=torch.float64) for _ in range(2))
        length = highest * torch.linspace(0.2, 1, 6, dtype=torch.float64)
        self.waves, self.phase, self.side = torch.stack([angle.cos(), angle.sin()], 1) * length[:, None], phase, side

    def at(self, x: Tensor, y: Tensor) -> Tensor:
        along = x[..., None] * self.waves[:, 0] + y[..., None] * self.waves[:, 1]
        return 127.5 + 20 * (2 * math.pi * along + self.phase).cos().sum(-1)

    def grid(self) -> tuple[Tensor, Tensor]:
        """x and y of the pixels, from the centre."""
        ticks = torch.arange(self.side, dtype=torch.float64) - (self.side - 1) / 2
        return ticks[None, :].expand(self.side, -1), ticks[:, None].expand(-1, self.side)

    def pixels(self) -> Tensor:
        return self.at(*self.grid()).round().byte()[None, None]

    def error(self, made: Tensor, x: Tensor, y: Tensor) -> float:
        """The largest difference to the truth at (x, y), where the kernel does not see the border."""
        inside = (torch.maximum(x.abs(), y.abs()) < self.side / 2 - REACH - 1) & (self.at(x, y) < 255)
        assert inside.sum() > 200
        return float((made[0, 0].double() - self.at(x, y))[inside].abs().max())

    def bilinear(self, x: Tensor, y: Tensor) -> Tensor:
        places = torch.stack([x, y], -1)[None] * 2 / (self.side - 1)
        return F.grid_sample(self.pixels().double(), places, align_corners=True)


TOLERANCE = 1.5                                         # grey levels: pixels are rounded before and after


@pytest.mark.parametrize("degrees", [1, 5, 30, 77])
def test_a_rotation_agrees_with_the_exact_resampling_of_a_band_limited_image(degrees):
    waves = Waves(0.3)
    (x, y), angle = waves.grid(), math.radians(degrees)
    there = x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)
    assert waves.error(rotate(waves.pixels(), numbers(angle)), *there) < TOLERANCE
    assert waves.error(waves.bilinear(*there), *there) > 10 * TOLERANCE


@pytest.mark.parametrize(("right", "down"), [(0.5, 0.0), (0.25, -1.7)])
def test_a_translation_agrees_with_the_exact_resampling_of_a_band_limited_image(right, down):
    waves = Waves(0.3)
    x, y = waves.grid()
    made = translate(waves.pixels(), numbers(right * 8 / 48), numbers(down * 8 / 48))
    assert waves.error(made, x - right, y - down) < TOLERANCE


@pytest.mark.parametrize(("factor", "highest"), [(1.4, 0.3), (0.8, 0.2), (0.6, 0.14)])
def test_a_scaling_agrees_with_the_exact_resampling_of_a_band_limited_image(factor, highest):
    waves = Waves(highest)
    x, y = (ticks / factor for ticks in waves.grid())
    assert waves.error(scale(waves.pixels(), numbers(factor)), x, y) < TOLERANCE


def test_twice_as_large_and_half_as_large_again_is_close():
    """In the middle, which is not cut away: rms of a grey level where the image is smooth, 10 % of the contrast on
    Fashion-MNIST, whose edges are as sharp as pixels can be."""
    x = load_images("fashion").pixels[:64]
    error, contrast = _there_and_back(x, slice(9, 19))
    assert error < 0.1 * contrast
    error, contrast = _there_and_back(Waves(0.3).pixels(), slice(15, 33))
    assert error < 1.0 < 0.05 * contrast


def _there_and_back(x: Tensor, middle: slice) -> tuple[Tensor, Tensor]:
    twice = torch.full((len(x),), 2.0, dtype=torch.float64)
    back = scale(scale(x, twice), 1 / twice)[..., middle, middle].double()
    there = x[..., middle, middle].double()
    return (back - there).square().mean().sqrt(), there.std()


def test_shrinking_does_not_alias():
    stripes = torch.tensor([0, 255], dtype=torch.uint8).repeat(24).expand(1, 1, 48, 48)
    middle = scale(stripes, numbers(0.6))[..., 14:34, 14:34].double()
    assert float((middle - 127.5).abs().max()) < 5


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 3), (28, 28)])
@pytest.mark.parametrize("level", [0, 100, 255])
def test_a_flat_image_stays_flat_whatever_its_size(shape, level):
    x = torch.full((3, 1, *shape), level, dtype=torch.uint8)
    for made in (
        translate(x, numbers(0.3, -2.0, 5.0), numbers(1.1, 0.0, -7.3)),
        rotate(x, numbers(0.1, 2.0, -3.1)),
        scale(x, numbers(0.1, 0.7, 3.0)),
    ):
        assert torch.equal(made, x)


def test_the_number_of_threads_and_the_layout_do_not_matter():
    x, angle = noise(600, 1, 8, 8), torch.linspace(-3, 3, 600, dtype=torch.float64)
    before = torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            made.append(rotate(x, angle))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*made)
    assert torch.equal(rotate(x.mT.contiguous().mT, angle), made[0])
