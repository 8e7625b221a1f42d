"""Calibration finds the value that made the target (App. C.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fpmc import presets
from fpmc.cli.calibrate import figure
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.learn.calibrate import Score, calibration, trajectory_points
from fpmc.study.levels import calibrate


@pytest.fixture(scope="module")
def images() -> ImageSet:
    random = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.avg_pool2d(torch.randn(60, 1, 11, 11, generator=random), 4, 1)
    return ImageSet((127.5 + 150 * smooth).clip(0, 255).byte())


@pytest.mark.parametrize("criterion", ["mse", "trajectory"])
def test_the_schedule_of_the_target_is_found(images: ImageSet, criterion: str, tmp_path: Path) -> None:
    truth = {2.0: 5, 0.3: 3}
    source, held_out = images.subset(slice(40)), images.subset(slice(40, None))
    target = presets.ls(source, schedule=truth)
    scores = list(
        calibrate(
            lambda size: presets.ls(source, schedule=size), [3, 5, 7], target, held_out,
            sigmas=list(truth), count=6, criterion=criterion,  # pyright: ignore[reportArgumentType]
        )
    )
    found = calibration("ls", 8, criterion, scores)  # pyright: ignore[reportArgumentType]
    assert found.schedule == truth
    assert all(score.mse == 0 for score in scores if truth[score.sigma] == score.value)
    found.save(tmp_path / "s.json")
    again = presets.ls(source, schedule=tmp_path / "s.json")
    z = held_out.scaled(slice(2)) + 0.3
    assert torch.equal(again(z, 0.3), target(z, 0.3))


def test_a_schedule_file_keeps_the_columns_of_other_methods(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    for method, values in (("ls", (3.0, 5.0)), ("pspc_flex", (0.4, 0.7)), ("ls", (7.0, 9.0))):
        scores = [Score(sigma, value, 0.1, 0.0, 1.0) for sigma, value in zip((0.5, 2.0), values)]
        calibration(method, 8, "mse", scores).save(path)
    images = ImageSet(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    assert presets.ls(images, schedule=path).at(2.0).groups[0].q.size == 9  # pyright: ignore
    assert '"pspc_flex"' in path.read_text()


def test_points_of_a_trajectory_start_as_noise_and_end_denoised(images: ImageSet) -> None:
    denoiser = presets.optimal(images)
    points = trajectory_points(denoiser, images.shape, [80.0, 0.002], 2)
    assert points[80.0].std() > 40
    nearest = (points[0.002][:, None] - images.scaled()).square().flatten(2).mean(2).min(1).values
    assert nearest.max() < 1e-3


@pytest.mark.parametrize(("method", "named"), [("ls", "patch size s, pixels"), ("pspc_flex", "threshold τ")])
def test_the_axis_says_what_was_tried(method: str, named: str) -> None:
    scores = [Score(1.0, value, 0.1, 0.0, 1.0) for value in (3.0, 5.0)]
    assert figure(calibration(method, 8, "mse", scores)).axes[0].get_xlabel() == named


def test_errors_name_what_is_wrong(images: ImageSet) -> None:
    with pytest.raises(InputError, match="no values"):
        list(calibrate(lambda s: presets.ls(images, schedule=s), [], lambda z, s: z, images))
    with pytest.raises(InputError, match="criterion 'x'"):
        list(calibrate(lambda s: presets.ls(images, schedule=s), [3], lambda z, s: z, images, criterion="x"))  # pyright: ignore
    with pytest.raises(InputError, match="wiener"):
        calibration("wiener", 8, "mse", [])
