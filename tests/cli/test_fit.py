"""fpmc fit, end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fpmc import FPMC, presets
from fpmc.data import load_images
from fpmc.study.levels import fit_response

QUICK = ("--sigmas", 1, 0.3, "--count", 20, "--sizes", 2, 3)


def test_the_fit_is_that_of_the_function_and_goes_on(fpmc, data, tmp_path):
    run = tmp_path / "run"
    code, out, err = fpmc("fit", "--data", data, "--outdir", run, *QUICK)
    assert code == 0, err
    for word in ("square 2", "square 3", "optimal", "Wiener", "best alone"):
        assert word in out
    images = load_images(data)
    expected = fit_response(presets.multiscale(images, sizes=[2, 3]), "clean", images, sigmas=[1.0, 0.3], count=20)
    loaded, z = FPMC.from_pretrained(run / "model", images=images), torch.randn(2, 1, 6, 6)
    for sigma in (0.3, 0.5, 1.0):
        torch.testing.assert_close(loaded(z, sigma), expected(z, sigma), atol=1e-5, rtol=0)
    before = json.loads((run / "metrics.json").read_text())
    assert sum(before["1"]["weights"].values()) == pytest.approx(1)
    (run / "level-0.3.pt").unlink()                      # killed before the last level was kept
    kept = (run / "level-1.pt").stat().st_mtime_ns
    assert fpmc("fit", "--data", data, "--outdir", run, *QUICK).code == 0
    assert json.loads((run / "metrics.json").read_text()) == before
    assert (run / "level-1.pt").stat().st_mtime_ns == kept


def test_moved_images_have_weights_of_their_own(fpmc, data, tmp_path):
    code, out, err = fpmc("fit", "--data", data, "--outdir", tmp_path / "run", "--moved", *QUICK)
    assert code == 0, err
    weights = json.loads((tmp_path / "run" / "metrics.json").read_text())["1"]["weights"]
    assert {"square 2", "square 2 moved", "optimal", "Wiener"} <= set(weights)
    assert sum(weights.values()) == pytest.approx(1)
    assert out.index("square 2 ") < out.index("square 2 moved")


def test_a_fitted_model_is_a_denoiser_everywhere(fpmc, data, tmp_path):
    assert fpmc("fit", "--data", data, "--outdir", tmp_path / "run", "--per", "pixel", *QUICK).code == 0
    args = ("--denoiser", tmp_path / "run" / "model", "--seeds", "0-1", "--steps", 4, "--outdir", tmp_path / "samples")
    code, _, err = fpmc("sample", "--data", data, *args)
    assert code == 0, err
    assert fpmc("sample", *args).code == 2              # made of other images than "fashion"


def test_other_images_of_the_same_name_are_refused(fpmc, refused, data, tmp_path):
    assert fpmc("fit", "--data", data, "--outdir", tmp_path / "run", *QUICK).code == 0
    np.save(data, 255 - np.load(data))
    assert "data_checksum" in refused("fit", "--data", data, "--outdir", tmp_path / "run", *QUICK)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("--target", "nowhere"), "nowhere"),
        (("--count", 3), "count 3"),
        (("--sizes", 99), "99"),
        (("--shape", "ls", "square", "--sizes", 3), "--sizes go with one --shape"),
        (("--sigmas", 0), "sigma 0"),
    ],
)
def test_bad_input_is_one_clear_error(refused, data, tmp_path, wrong, named):
    assert named in refused("fit", "--data", data, "--outdir", tmp_path / "run", *wrong)
