from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from fpmc.cli import main
from fpmc.core import gaussian, shelf
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.sources import Source
from fpmc.data import load_images
from fpmc.images import ImageSet
from fpmc.methods.wiener import lukoianov_masks


def test_info_tells_number_shape_labels_and_checksum(capsys):
    assert main(["data", "info", "fashion", "--split", "test"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"images +2000\n", told)
    assert "1×28×28" in told
    assert "60000 to" in told
    assert "9: 200" in told
    assert load_images("fashion", "test").checksum() in told


def test_pack_then_info(tmp_path, capsys):
    np.save(tmp_path / "x.npy", np.zeros((3, 3, 10, 12), np.uint8))
    source, dest = str(tmp_path / "x.npy"), str(tmp_path / "x.zip")
    assert main(["data", "pack", source, dest, "--crop", "square", "--resize", "4", "6"]) == 0
    assert dest in capsys.readouterr().out
    assert load_images(dest).shape == (3, 4, 6)
    assert main(["data", "info", dest]) == 0
    assert re.search(r"labels +none", capsys.readouterr().out)


@pytest.mark.parametrize(
    "args",
    [
        ["info", "absent.zip"],
        ["info", "cifar10"],
        ["pack", "absent", "out.zip"],
        ["pack", "fashion", "out.tar"],
        ["pack", "fashion", "out.zip", "--crop", "100"],
        ["pack", "fashion", "out.zip", "--resize", "0"],
        ["pack", "fashion", "out.zip", "--resize", "wide"],
        ["get", "cifar10", "--from", "absent.tar.gz"],
        ["get", "imagenet"],
        ["fetch"],
    ],
)
def test_bad_input_is_one_error_and_exit_code_2(tmp_path, monkeypatch, capfd, args):
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert main(["data", *args]) == 2
    told = capfd.readouterr()
    assert told.err.strip()
    assert "Traceback" not in told.err + told.out
    assert list(tmp_path.iterdir()) == []


def test_help_does_not_import_torch():
    code = "import sys; from fpmc.cli import main; main(['data', 'pack', '--help']); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_cache_lists_what_is_kept_and_empties_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FPMC_HOME", str(tmp_path))
    assert main(["data", "cache"]) == 0
    assert "0 results" in capsys.readouterr().out
    monkeypatch.setattr(gaussian, "KEEP", 1)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 5), np.uint8)
    lukoianov_masks(fit_gaussian(Source(ImageSet(pixels))), 0.25, 0.05)
    (shelf.folder() / "damaged.safetensors").write_bytes(b"x" * 99)
    assert main(["data", "cache"]) == 0
    told = capsys.readouterr().out
    assert "mean and covariance of 20 images of 3×4×5" in told
    assert "masks of 3×4×5 at sigma 0.25, tau 0.05, paper" in told
    assert "damaged" in told
    assert f"3 results in {shelf.folder()}" in told
    assert len(shelf.kept()) == 3
    assert main(["data", "cache", "--empty"]) == 0
    assert "removed" in capsys.readouterr().out
    assert list(shelf.folder().iterdir()) == []
    assert tmp_path.is_dir()
