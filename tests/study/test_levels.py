"""Learning level by level: what was not learned stays as it was, and a killed run resumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fpmc
from fpmc import presets
from fpmc.core.fpmc import FPMC
from fpmc.errors import InputError
from fpmc.files import write_checked
from fpmc.images import ImageSet
from fpmc.study import levels
from fpmc.study.policy import Policy
from study.tiny import small_network, smooth_images

QUICK = {"steps": 2, "batch": 8, "validation": 8, "validate_every": 1}


@pytest.mark.parametrize("preset", ["pspc_square", "lukoianov", "optimal"])
def test_levels_that_are_not_learned_stay_bit_for_bit(tmp_path: Path, preset: str):
    images = smooth_images(60, 8)
    baseline = getattr(presets, preset)(images).using(memory=1 << 28)
    soft = fpmc.finetune(baseline, small_network(8, 0), images, sigmas=[1.09], **QUICK)
    soft.save_pretrained(tmp_path / "soft")
    loaded, policy = FPMC.from_pretrained(tmp_path / "soft", images=images), Policy(images)
    assert soft.settings == baseline.settings
    z = images.scaled(slice(3)) + torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for sigma in policy.grid:
        same = sigma != policy.level(1.09)
        assert torch.equal(soft(z, sigma), baseline(z, sigma)) == same
        assert torch.equal(loaded(z, sigma), soft(z, sigma))
    assert len(loaded.collections) == policy.steps  # pyright: ignore


def test_at_64_pixels_there_are_40_levels_and_a_later_decay():
    images = ImageSet(torch.randint(0, 256, (20, 1, 64, 64), dtype=torch.uint8))
    job = levels.Finetuning.of(presets.optimal(images), lambda z, sigma: z, Policy(images))
    assert job.tuning.decay_from == 4.37
    assert list(job.model({}).collections) == Policy(images).grid  # pyright: ignore
    assert len(Policy(images).grid) == 40


def test_a_level_between_those_of_the_grid_is_one_more():
    images = smooth_images(20, 8)
    job = levels.Finetuning.of(presets.optimal(images), lambda z, sigma: z, Policy(images))
    soft = job.model({0.5: presets.wiener(images).at(0.5)})
    assert sorted(soft.collections) == sorted([0.5, *Policy(images).grid])  # pyright: ignore
    with pytest.raises(KeyError):
        soft.collections[0.51]  # pyright: ignore


def test_a_fit_resumes_and_refuses_what_is_damaged(tmp_path: Path):
    images = smooth_images(40, 8)
    base, options = presets.multiscale(images, sizes=[3]), {"count": 16, "folder": tmp_path}
    first = next(levels.fit_levels(base, "clean", images, [1.0, 0.3], **options))
    made = levels.level_file(tmp_path, 1.0, "pt").stat().st_mtime_ns
    again = list(levels.fit_levels(base, "clean", images, [1.0, 0.3], **options))
    assert torch.equal(again[0].weights, first.weights)
    assert levels.level_file(tmp_path, 1.0, "pt").stat().st_mtime_ns == made
    write_checked(levels.level_file(tmp_path, 0.3, "pt"), levels.level_file(tmp_path, 1.0, "pt").read_bytes())
    with pytest.raises(InputError, match=r"level-0\.3\.pt: it is another noise level's; delete it"):
        list(levels.fit_levels(base, "clean", images, [0.3], **options))
