"""fpmc denoise, end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fpmc import presets
from fpmc.data import load_images
from fpmc.sampling import initial_noise

QUICK = ("--denoiser", "optimal", "ls:schedule=3", "--sigmas", 0.2, 2)


def test_picture_outputs_and_errors(fpmc, data, tmp_path):
    run = tmp_path / "run"
    args = ("--data", data, "--input", data, "--count", 3, "--seed", 5, "--outdir", run, *QUICK)
    code, out, err = fpmc("denoise", *args)
    assert code == 0, err
    clean = load_images(data).scaled()[:3]
    z = clean + 2 * initial_noise([5, 6, 7], (1, 6, 6)).float()
    with np.load(run / "outputs.npz") as arrays:
        assert arrays["sigmas"].tolist() == [2, 0.2]
        np.testing.assert_allclose(arrays["noisy"][0], z, rtol=1e-6)
        expected = presets.ls(load_images(data), schedule=3)(z, 2.0)
        np.testing.assert_allclose(arrays["LS schedule=3"][0], expected, atol=1e-5)
    found = json.loads((run / "metrics.json").read_text())
    assert found["LS schedule=3"]["2"]["mse"] == pytest.approx((expected - clean).square().mean().item(), rel=1e-4)
    assert found["Optimal"]["0.2"]["mse"] < 1e-3, "the input is in the training set, and the noise is low"
    assert "Optimal" in out
    assert "±" in out
    assert Image.open(run / "denoised.png").height > 100


def test_images_that_are_noisy_already(fpmc, data, tmp_path):
    noisy = np.random.default_rng(1).normal(size=(2, 1, 6, 6)).astype(np.float32)
    np.save(tmp_path / "z.npy", noisy)
    args = ("--input", tmp_path / "z.npy", "--noisy", "--sigmas", 1.5, "--denoiser", "optimal")
    code, out, err = fpmc("denoise", "--data", data, "--outdir", tmp_path / "run", *args)
    assert code == 0, err
    assert "MSE" not in out
    with np.load(tmp_path / "run" / "outputs.npz") as arrays:
        expected = presets.optimal(load_images(data))(torch.from_numpy(noisy), 1.5)
        np.testing.assert_allclose(arrays["Optimal"][0], expected, atol=1e-5)
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_one_picture_file(fpmc, data, tmp_path):
    Image.fromarray(np.full((6, 6), 200, np.uint8)).save(tmp_path / "photo.png")
    args = ("--input", tmp_path / "photo.png", "--outdir", tmp_path / "run", *QUICK)
    assert fpmc("denoise", "--data", data, *args).code == 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--sigmas", 0), "sigma 0"),
        (("--sigmas", -1, 2), "sigma -1"),
        (("--noisy",), "--noisy needs --input"),
        (("--count", 0), "count"),
        (("--denoiser", "ls", "ls"), "once"),
        (("--denoiser", "lss"), "did you mean"),
        ((), "no test split"),
    ],
    ids=str,
)
def test_bad_input_is_one_clear_error_and_writes_nothing(refused, data, tmp_path, wrong, named):
    assert named in refused("denoise", "--data", data, "--outdir", tmp_path / "run", *wrong)
    assert not (tmp_path / "run").exists()
