"""fpmc demo, end to end on tiny data."""

from __future__ import annotations

import json

import numpy as np
import torch
from PIL import Image

from fpmc import networks
from fpmc.data import load_images
from fpmc.images import ImageSet
from fpmc.metrics import load_samples
from fpmc.networks import shipped
from fpmc.study import policy

QUICK = ("--seeds", "0-2", "--steps", 6)


def test_every_method_from_the_same_noise(fpmc, data, tmp_path):
    run = tmp_path / "demo"
    code, out, err = fpmc("demo", "--data", data, "--outdir", run, *QUICK)
    assert code == 0, err
    found = json.loads((run / "metrics.json").read_text())
    assert len(found) == 7
    assert max(found["Optimal"]["nearest_training_image"]) < 1e-3
    assert min(found["Wiener"]["nearest_training_image"]) > 0.05
    table = {line.split()[0]: line for line in out.split("─\n")[1].splitlines() if line}
    assert "3 of 3" in table["Optimal"]
    assert "0 of 3" in table["Wiener"]
    assert "r²" not in out
    assert load_samples(run / "pspc_square")[1] == (0, 1, 2)
    assert Image.open(run / "grid.png").width > 200
    assert (run / "table.md").read_text().count("\n") == 9


class Network:
    """Stands in for a loaded network: always the same ramp, a little brighter if its name says so."""

    shape = (1, 6, 6)

    def __init__(self, name):
        self.name = name

    def __call__(self, z, sigma):
        return torch.linspace(-1, 1, 6).expand_as(z) + (0.1 if "bright" in self.name else 0)


def test_networks_are_rows_and_the_last_one_judges(fpmc, data, tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "load_network", Network)
    args = ("--denoiser", "optimal", "--networks", "bright", "plain", "--data", data, "--outdir", tmp_path / "demo")
    code, out, err = fpmc("demo", *args, *QUICK)
    assert code == 0, err
    assert "r²" in out
    found = json.loads((tmp_path / "demo" / "metrics.json").read_text())
    np.testing.assert_allclose(found["bright"]["mse"], 0.01, rtol=1e-3)
    assert found["Optimal"]["r2"] < 0.5
    assert "r2" not in found["plain"]


def test_networks_shipped_for_the_data_are_rows_by_default(fpmc, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(networks, "load_network", Network)
    for room in (policy, shipped):
        monkeypatch.setattr(room, "SHIPPED", ("cifar10-ddpmpp", "data-ddpmpp"))
    monkeypatch.setattr("fpmc.data.load_images", lambda name, split="train": load_images(data))
    args = ("demo", "--data", data.name, "--denoiser", "optimal", *QUICK)
    assert fpmc(*args, "--outdir", "demo").code == 0
    assert set(json.loads((tmp_path / "demo" / "metrics.json").read_text())) == {"Optimal", "data-ddpmpp"}
    given = load_images(data)
    other = ImageSet(255 - given.pixels, name="data")   # the same name, other pixels
    assert shipped.data_of(given) == "data"
    assert shipped.data_of(other) is None
    monkeypatch.setattr(policy, "data_of", lambda _: None)
    assert fpmc(*args, "--outdir", "other").code == 0
    assert set(json.loads((tmp_path / "other" / "metrics.json").read_text())) == {"Optimal"}


def test_els_has_fewer_images_and_says_so(fpmc, refused, data, tmp_path):
    args = ("demo", "--data", data, "--denoiser", "ls", "els", *QUICK)
    assert fpmc(*args, "--outdir", tmp_path / "few", "--els_size", 5).code == 0
    assert fpmc(*args, "--outdir", tmp_path / "all").code == 0
    few, every = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("few", "all"))
    assert set(few) == {"LS", "ELS (5 images)"}
    assert set(every) == {"LS", "ELS"}
    assert not np.allclose(load_samples(tmp_path / "few" / "els")[0], load_samples(tmp_path / "all" / "els")[0])
    assert "els_size" in refused(*args, "--outdir", tmp_path / "none", "--els_size", 0)


def test_what_is_there_is_not_computed_again(fpmc, data, tmp_path):
    args = ("demo", "--data", data, "--outdir", tmp_path / "demo", *QUICK)
    assert fpmc(*args, "--denoiser", "optimal").code == 0
    assert fpmc(*args, "--denoiser", "optimal", "wiener").code == 0
    folders = [json.loads(line)["folder"] for line in (tmp_path / "demo" / "metrics.jsonl").read_text().splitlines()]
    assert folders == ["optimal", "wiener"]
