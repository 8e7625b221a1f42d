"""fpmc explain, end to end."""

from __future__ import annotations

import pytest
import torch

from fpmc import networks, presets
from fpmc.data import load_images


def test_it_prints_what_the_denoiser_explains(fpmc, data):
    args = ("--denoiser", "ls:schedule=3", "optimal", "--sigmas", 0.1, 10, "--batch", 3)
    code, out, _ = fpmc("explain", "--data", data, *args)
    assert code == 0
    images = load_images(data)
    for denoiser in (presets.ls(images, schedule=3), presets.optimal(images)):
        for sigma in (10, 0.1):
            assert denoiser.explain(sigma, batch=3) in out
    assert "LS schedule=3, 20 images of data" in out


def test_a_gpu_need_not_be_there_to_be_planned_for(fpmc, data):
    code, out, _ = fpmc("explain", "--data", data, "--denoiser", "optimal", "--sigmas", 1, "--device", "cuda")
    assert code == 0
    assert presets.optimal(load_images(data)).explain(1, device="cuda") in out
    assert "on an A100, predicted and not measured" in out


@pytest.mark.parametrize(("wrong", "named"), [(("--sigmas", 0), "sigma 0"), (("--denoiser", "x"), "no denoiser 'x'")])
def test_bad_input(refused, data, wrong, named):
    assert named in refused("explain", "--data", data, *wrong)


def test_a_network_has_no_plan(refused, monkeypatch):
    monkeypatch.setattr(networks, "load_network", lambda name: torch.nn.Identity())
    assert "network" in refused("explain", "--denoiser", "some.pkl")
