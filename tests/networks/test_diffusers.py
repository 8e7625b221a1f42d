"""A diffusers network gives the same x0 through fpmc as through its own scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

from fpmc.errors import InputError
from fpmc.networks import load_network
from fpmc.process import VP, Flow


def unet() -> UNet2DModel:
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(8, 8),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
    ).eval()


@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("schedule", ["linear", "squaredcos_cap_v2"])
@torch.no_grad()
def test_x0_is_the_schedulers(prediction: Any, schedule: str, tmp_path: Path) -> None:
    net = unet()
    scheduler: Any = DDIMScheduler(beta_schedule=schedule, prediction_type=prediction, clip_sample=False)
    DDIMPipeline(net, scheduler).save_pretrained(tmp_path, safe_serialization=True)
    denoiser: Any = load_network(tmp_path)
    assert denoiser.shape == (3, 8, 8)
    scheduler.set_timesteps(1000)
    times = torch.tensor([0, 5, 100, 500, 900])
    state = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    bar = scheduler.alphas_cumprod[times].double()
    sigma = ((1 - bar) / bar).sqrt()
    ours = denoiser(state.double() / bar.sqrt()[:, None, None, None], sigma)
    for i, time in enumerate(times):
        out = net(state[i : i + 1], time).sample
        theirs = scheduler.step(out, int(time), state[i : i + 1]).pred_original_sample
        torch.testing.assert_close(ours[i : i + 1].float(), theirs, rtol=2e-3, atol=2e-3 * float(sigma[i].clamp(min=1)))
    one = denoiser(state.double()[:1] / bar[0].sqrt(), float(sigma[0]))
    torch.testing.assert_close(one, ours[:1], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_levels_outside_the_training_are_asked_at_the_nearest_time(tmp_path: Path) -> None:
    net = unet()
    net.save_pretrained(tmp_path)
    denoiser = load_network(tmp_path)
    z = torch.ones(1, 3, 8, 8)
    alpha = 1 / (1 + 0.001**2) ** 0.5
    expected = z - 0.001 * net(alpha * z, 0).sample
    torch.testing.assert_close(denoiser(z, 0.001), expected)


def test_a_bare_folder_is_ddpms_unless_told_otherwise(tmp_path: Path) -> None:
    unet().save_pretrained(tmp_path)
    plain, told = load_network(tmp_path), load_network(tmp_path, prediction="v_prediction", process=VP("cosine"))
    assert (plain.prediction, plain.process) == ("epsilon", VP())  # pyright: ignore[reportFunctionMemberAccess]
    assert (told.prediction, told.process) == ("v_prediction", VP("cosine"))  # pyright: ignore[reportFunctionMemberAccess]


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    with pytest.raises(InputError, match=r"config\.json"):
        load_network(folder)
    (folder / "config.json").write_text(json.dumps({"_class_name": "Transformer2DModel"}))
    with pytest.raises(InputError, match="Transformer2DModel"):
        load_network(folder)
    unet().save_pretrained(folder, safe_serialization=False)  # a pickle, which is not opened
    with pytest.raises(InputError, match="safetensors"):
        load_network(folder)
    unet().save_pretrained(folder)
    (folder / "scheduler_config.json").write_text(json.dumps({"beta_schedule": "scaled_linear"}))
    with pytest.raises(InputError, match="scaled_linear"):
        load_network(folder)
    with pytest.raises(InputError, match="'noise' is not known"):
        load_network(folder, prediction="noise", process=VP())
    with pytest.raises(InputError, match="VP process, not Flow"):
        load_network(folder, process=Flow())
