"""fpmc data augment, and --augment of the commands that take a source."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fpmc import augmentation, presets
from fpmc.augmentation import augment
from fpmc.cli import options
from fpmc.core.sources import Source
from fpmc.data import load_images
from fpmc.metrics import load_samples
from fpmc.networks import EDMPrecond, save_network
from fpmc.sampling import sample

QUICK = ("--steps", 3, "--denoiser", "ls:schedule=3", "--seeds=0-2")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(("kind", "amount"), [("xflip", 1.0), ("rotate", 2.5), ("scale-ln", 0.5)])
def test_augmented_images_as_an_edm_zip(fpmc, data, tmp_path, kind, amount):
    dest = tmp_path / "made.zip"
    code, out, err = fpmc("data", "augment", data, dest, "--kind", kind, "--amount", amount, "--seed", 3)
    assert code == 0, err
    assert f"{dest}: {int(20 * amount)} images" in out
    assert torch.equal(load_images(dest).pixels, augment(load_images(data), kind, amount, seed=3).pixels)


def test_synthetic_images_as_an_edm_zip(fpmc, tmp_path):
    np.save(tmp_path / "data.npy", np.zeros((4, 1, 8, 8), np.uint8))
    small = {"model_channels": 8, "channel_mult": [1], "num_blocks": 1, "attn_resolutions": []}
    save_network(EDMPrecond(8, 1, **small), tmp_path / "net.safetensors")
    args = ("--kind", "synthetic", "--network", tmp_path / "net.safetensors", "--steps", 2)
    code, _, err = fpmc("data", "augment", tmp_path / "data.npy", tmp_path / "made.zip", *args)
    assert code == 0, err
    assert load_images(tmp_path / "made.zip").shape == (1, 8, 8)


def test_samples_of_a_union(fpmc, data, tmp_path):
    args = ("sample", "--data", data, "--outdir", tmp_path / "run", *QUICK)
    code, out, err = fpmc(*args, "--augment", "xflip", "--augment", "rotate:amount=2,seed=1")
    assert code == 0, err
    assert "Source(80 images of 20 originals, uniform: 20 data | 20 data+xflip | 40 data+rotate)" in out
    assert "20 images of data + xflip + rotate:amount=2,seed=1" in out
    images = load_images(data)
    source = Source(images) | augment(images, "xflip") | augment(images, "rotate", 2, seed=1)
    direct = sample(presets.ls(source, schedule=3), seeds=range(3), steps=3)
    np.testing.assert_allclose(load_samples(tmp_path / "run")[0], direct.images, atol=1e-5)
    settings = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]
    assert settings["augment"] == ["xflip", "rotate:amount=2,seed=1"]
    assert fpmc(*args)[0] == 2                          # another source is another run


def test_denoising_with_a_union(fpmc, data, tmp_path):
    args = ("denoise", "--data", data, "--input", data, "--outdir", tmp_path / "run", "--sigmas", 0.5, "--count", 2)
    code, out, err = fpmc(*args, "--denoiser", "optimal", "--augment", "yflip:amount=0.5")
    assert code == 0, err
    assert "30 images of 20 originals" in out


def test_what_is_drawn_is_made_once_for_all_calls(data, monkeypatch):
    stored = []
    monkeypatch.setattr(augmentation.Augmented, "stored", lambda self: stored.append(self.kind.name))
    options.SourceOptions(augment=("xflip", "rotate", "scale")).source(load_images(data))
    assert stored == ["rotate", "scale"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("flip", "no augmentation 'flip'"),
        ("xflip:amount=2", "at most 1.0, got 2"),
        ("rotate:2", "write settings like rotate:amount=2,seed=1; got '2'"),
        ("rotate:angle=2", "takes no angle"),
        ("rotate:amount=much", "amount must be above 0"),
        ("synthetic", "need the network"),
        ("synthetic:network=nowhere", "no network 'nowhere'"),
    ],
)
def test_bad_augmentations(refused, data, tmp_path, given, says):
    assert says in refused("sample", "--data", data, "--outdir", tmp_path / "run", *QUICK, "--augment", given)
    assert not (tmp_path / "run").exists()


def test_nothing_to_augment(refused, data, tmp_path):
    small = {"model_channels": 8, "channel_mult": [1], "num_blocks": 1, "attn_resolutions": []}
    save_network(EDMPrecond(8, 1, **small), tmp_path / "net.safetensors")
    args = ("--denoiser", tmp_path / "net.safetensors", "--augment", "xflip")
    assert "no denoiser here uses them" in refused("sample", "--outdir", tmp_path / "run", *args)


def test_a_network_is_for_synthetic_images(refused, data, tmp_path):
    args = ("--kind", "xflip", "--network", "some")
    assert "'xflip' takes no network" in refused("data", "augment", data, tmp_path / "made.zip", *args)
