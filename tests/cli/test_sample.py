"""fpmc sample, end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fpmc import networks, presets
from fpmc.data import load_images
from fpmc.metrics import load_samples
from fpmc.sampling import sample
from fpmc.study import samples

QUICK = ("--steps", 4, "--denoiser", "ls:schedule=3")


def test_a_run_directory_with_everything_in_it(fpmc, data, tmp_path):
    code, out, err = fpmc("sample", "--data", data, "--outdir", tmp_path / "run", "--seeds=3-6,9", *QUICK)
    assert code == 0, err
    assert "5 samples of LS schedule=3, 20 images of data: 7 evaluations each" in out
    names = {"config.json", "environment.json", "metrics.json", "metrics.jsonl", "log.txt", "grid.png"}
    shown = {path.name for path in (tmp_path / "run").iterdir() if not path.name.startswith(".")}
    assert shown == names | {"samples.npy", "seeds.npy"}
    images, seeds = load_samples(tmp_path / "run")
    assert seeds == (3, 4, 5, 6, 9)
    direct = sample(presets.ls(load_images(data), schedule=3), seeds=seeds, steps=4)
    np.testing.assert_allclose(images, direct.images, atol=1e-5)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["images"], metrics["nfe"]) == (5, 7)
    assert len(metrics["nearest_training_image"]) == 5
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["settings"]["denoiser"] == "ls:schedule=3"
    assert config["settings"]["seeds"] == "3-6,9"
    assert Image.open(tmp_path / "run" / "grid.png").width > 100


def test_interrupted_resumed_extended(fpmc, data, tmp_path, monkeypatch):
    args = ("sample", "--data", data, "--outdir", tmp_path / "run", *QUICK, "--batch", 2)
    integrate, steps = samples.integrate, []

    def interrupted(*given, **settings):
        for step in integrate(*given, **settings):
            steps.append(step)
            if len(steps) == 11:                        # in the third batch
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(samples, "integrate", interrupted)
    code, _, err = fpmc(*args, "--seeds=0-5")
    assert code == 130
    assert "goes on" in err
    assert load_samples(tmp_path / "run")[1] == (0, 1, 2, 3)
    assert fpmc(*args, "--seeds=0-5").code == 0
    assert len(steps) == 11 + 2                         # what was done is not done again
    assert fpmc(*args, "--seeds=0-7", "--batch", 3).code == 0
    images, seeds = load_samples(tmp_path / "run")
    assert seeds == tuple(range(8))
    direct = sample(presets.ls(load_images(data), schedule=3), seeds=range(8), steps=4)
    np.testing.assert_allclose(images, direct.images, atol=1e-5)


def test_unfitted_weights_are_warned_of_and_copies_are_counted(fpmc, data, tmp_path):
    args = ("--data", data, "--outdir", tmp_path / "run", "--seeds=0-1", "--steps", 6)
    code, out, err = fpmc("sample", *args, "--denoiser", "multiscale")
    assert code == 0, err
    assert "copy training images" in out
    assert "fpmc fit" in out
    code, out, _ = fpmc("sample", *args[:3], tmp_path / "optimal", *args[4:], "--denoiser", "optimal")
    assert "warning" not in out
    assert "of a training image: 2 of 2" in out
    assert json.loads((tmp_path / "optimal" / "metrics.json").read_text())["copies"] == "2 of 2"


def test_a_saved_denoiser_of_a_subset_names_the_option(fpmc, refused, data, tmp_path):
    presets.ls(load_images(data).subset(slice(9)), schedule=3).save_pretrained(tmp_path / "model")
    args = ("sample", "--data", data, "--denoiser", tmp_path / "model", "--steps", 2, "--outdir", tmp_path / "run")
    assert "--data data --max_size 9" in refused(*args)
    assert fpmc(*args, "--max_size", 9).code == 0


def test_other_settings_or_data_are_refused_and_leave_the_run_alone(fpmc, refused, data, tmp_path):
    args = ("sample", "--data", data, "--outdir", tmp_path / "run", "--seeds=0-1", *QUICK)
    assert fpmc(*args).code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert "rho was 7" in refused(*args, "--rho", 5)
    np.save(data, 255 - np.load(data))  # the same name, other images
    assert "data_checksum" in refused(*args)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--sigma_min", 0), "sigma_min=0"),
        (("--sigma_min", -1), "sigma_min=-1"),
        (("--sigma-max", 0.001), "sigma_max=0.001"),
        (("--rho", 0), "rho"),
        (("--steps", 0), "steps"),
        (("--batch", 0), "batch"),
        (("--seeds", "5-3"), "5-3"),
        (("--seeds", "1,1"), "twice"),
        (("--denoiser", "lss"), "did you mean 'ls'?"),
        (("--denoiser", "ls:size=3"), "schedule"),
        (("--denoiser", "ls:schedule=cifar10"), "32×32"),
        (("--denoiser", "ls:schedule=-1"), "-1"),
        (("--data", "nowhere.zip"), "nowhere.zip"),
        (("--max_size", 0), "max_size"),
    ],
    ids=str,
)
def test_bad_input_is_one_clear_error_and_writes_nothing(refused, data, tmp_path, wrong, named):
    line = refused("sample", "--data", data, "--outdir", tmp_path / "run", *wrong)
    assert named in line
    assert not (tmp_path / "run").exists()


def test_an_unwritable_outdir(refused, data, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "cannot write" in refused("sample", "--data", data, "--outdir", tmp_path / "file" / "run", *QUICK)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_is_no_run(refused, data, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert "--outdir" in refused("sample", "--data", data, "--outdir", tmp_path / "run", *QUICK)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_a_network_needs_no_data(fpmc, tmp_path, monkeypatch):
    class Network:
        shape = (1, 5, 5)

        def __call__(self, z, sigma):
            return torch.zeros_like(z)

    monkeypatch.setattr(networks, "load_network", lambda name: Network(), raising=False)
    args = ("--data", "nowhere", "--outdir", tmp_path / "run", "--steps", 3)
    assert fpmc("sample", "--denoiser", "fashion-ddpmpp", *args).code == 0
    assert load_samples(tmp_path / "run")[0].abs().max() < 1e-6
