"""fpmc evaluate, end to end."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fpmc.cli.evaluate import evaluate
from fpmc.metrics import compare


@pytest.fixture
def runs(tmp_path):
    """A reference and two sets of samples near it; `near` knows more seeds, in another order."""
    noise = np.random.default_rng(0)
    truth = noise.normal(size=(6, 1, 4, 4)).astype(np.float32)
    made = {"truth": (truth, range(6)), "far": (truth + 1, range(6))}
    extra = noise.normal(size=(1, 1, 4, 4)).astype(np.float32)
    made["near"] = (np.concatenate([extra, truth[::-1] + 0.1 * noise.normal(size=truth.shape)]), [9, *range(5, -1, -1)])
    for name, (images, seeds) in made.items():
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "samples.npy", images.astype(np.float32))
        np.save(tmp_path / name / "seeds.npy", np.array(seeds))
    return tmp_path


def test_table_and_json(fpmc, runs, monkeypatch):
    monkeypatch.chdir(runs)
    code, out, _ = fpmc("evaluate", "near", "far", "truth", "--outdir", "report")
    assert code == 0
    near, far = (next(line for line in out.splitlines() if line.startswith(name)) for name in ("near", "far"))
    assert "best" in near
    assert "100.00 ± 0.00" in far, "MSE of a shift by 1 is 1, the same for every image"
    assert "6 images, against truth" in out
    found = json.loads((runs / "report" / "metrics.json").read_text())
    assert found["results"]["far"]["mse"] == pytest.approx(1)
    assert found["results"]["far"]["pearson"] == pytest.approx(1)
    assert found["results"]["near"]["mse"] == pytest.approx(0.01, rel=0.5)
    (pair,) = found["paired"]
    assert (pair["a"], pair["b"]) == ("near", "far")
    assert pair["mse"] == pytest.approx(found["results"]["near"]["mse"] - 1)
    assert (runs / "report" / "table.md").read_text().startswith("| samples |")
    assert json.loads(fpmc("evaluate", "near", "--reference", "truth", "--json").out)["images"] == 6


def test_samples_are_paired_by_seed(runs):
    by_seed = evaluate({"near": runs / "near"}, runs / "truth")["near"]
    images, truth = (np.load(runs / name / "samples.npy") for name in ("near", "truth"))
    np.testing.assert_allclose(by_seed.mse_per_image, compare(images[:0:-1].copy(), truth).mse_per_image)


def test_without_seeds_by_order(runs):
    truth = np.load(runs / "truth" / "samples.npy")
    assert evaluate({"a": truth}, runs / "truth")["a"].mse == 0


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["truth"], "nothing to judge"),
        (["near", "near", "truth"], "twice"),
        (["absent", "truth"], "absent"),
        (["other", "truth"], "no seed is in all"),
        (["small", "truth"], "differ in shape"),
    ],
)
def test_what_cannot_be_judged(refused, runs, monkeypatch, args, named):
    monkeypatch.chdir(runs)
    for name, images, seeds in (("other", np.zeros((1, 1, 4, 4)), [77]), ("small", np.zeros((6, 1, 3, 3)), range(6))):
        (runs / name).mkdir()
        np.save(runs / name / "samples.npy", images)
        np.save(runs / name / "seeds.npy", np.array(seeds))
    assert named in refused("evaluate", *args, "--outdir", "report")
    assert not (runs / "report").exists()
