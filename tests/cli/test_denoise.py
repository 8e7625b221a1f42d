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
    args = (tmp_path / "z.npy", "--sigmas", 1.5, "--denoiser", "optimal")
    code, out, err = fpmc("denoise", *args, "--data", data, "--outdir", tmp_path / "run")
    assert code == 0, err
    assert "MSE" not in out
    with np.load(tmp_path / "run" / "outputs.npz") as arrays:
        expected = presets.optimal(load_images(data))(torch.from_numpy(noisy), 1.5)
        np.testing.assert_allclose(arrays["Optimal"], expected, atol=1e-5)
    assert Image.open(tmp_path / "run" / "Optimal-1.png").size == (6, 6)
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_noisy_images_of_unknown_noise(fpmc, tmp_path):
    random = torch.Generator().manual_seed(0)
    rough = torch.randn(100, 1, 3, 3, generator=random)
    smooth = torch.nn.functional.interpolate(rough, size=(8, 8), mode="bicubic") / 2
    np.save(tmp_path / "data.npy", (127.5 + 127.5 * smooth[:98]).clamp(0, 255).byte().numpy())
    clean, levels = smooth[98:], torch.tensor([0.3, 1.0])
    noisy = clean + levels[:, None, None, None] * torch.randn(2, 1, 8, 8, generator=random)
    np.save(tmp_path / "z.npy", noisy.numpy())
    code, out, err = fpmc("denoise", tmp_path / "z.npy", "--data", tmp_path / "data.npy", "--outdir", tmp_path / "run")
    assert code == 0, err
    assert "estimated noise levels" in out
    for line in (line for line in out.splitlines() if line.startswith("σ")):
        weights = line.partition("weights: ")[2].split(", ")                    # each with its name, the largest first
        assert all(each.startswith(("square ", "optimal ", "T = ", "Wiener ", "masks ")) for each in weights)
    with np.load(tmp_path / "run" / "outputs.npz") as arrays:
        np.testing.assert_allclose(arrays["sigmas"], levels, rtol=0.35)
        errors = ((arrays["multi-scale"] - clean.numpy()) ** 2).mean((1, 2, 3))
    assert (errors < 0.6 * ((noisy - clean) ** 2).mean((1, 2, 3)).numpy()).all()


def test_one_picture_file(fpmc, data, tmp_path):
    Image.fromarray(np.full((6, 6), 200, np.uint8)).save(tmp_path / "photo.png")
    args = ("--input", tmp_path / "photo.png", "--outdir", tmp_path / "run", *QUICK)
    assert fpmc("denoise", "--data", data, *args).code == 0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--sigmas", 0), "sigma 0"),
        (("--sigmas", -1, 2), "sigma -1"),
        (("nowhere.png",), "nowhere.png"),
        (("nowhere.png", "--input", "x.png"), "not both"),
        (("nowhere.png", "--sigmas", 1, 2), "one noise level"),
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
