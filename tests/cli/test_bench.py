"""fpmc bench: every row once, on images that are not in the source."""

from __future__ import annotations

import json

import pytest
import torch

from fpmc.study import bench


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch):
    monkeypatch.setattr(bench, "measure_machine", lambda _: bench.Machine(0.1, 100.0, 10.0, 1, "a chip", "2.0"))


def test_rows_are_printed_once(fpmc, data, tmp_path):
    args = ("--denoiser", "ls:schedule=3", "optimal", "--sigmas", 1, 0.1, "--batch", 2, "--repeats", 1)
    code, out, err = fpmc("bench", "--data", data, *args, "--outdir", tmp_path / "run")
    assert code == 0, err
    assert out.startswith("18 images of data")          # two of twenty are held out
    rows = [line.split()[:2] for line in out.splitlines() if line.startswith(("LS", "Optimal"))]
    assert rows == [["LS", "1"], ["LS", "0.1"], ["Optimal", "1"], ["Optimal", "0.1"]]
    assert len(json.loads((tmp_path / "run" / "metrics.json").read_text())["costs"]) == 4
    table = (tmp_path / "run" / "table.md").read_text()
    assert table.count("| LS |") == 2
    assert "a chip, device cpu, fpmc" in table          # whoever gets it sent knows what it was measured on
    assert "torch 2.0; times are predicted for this machine" in table


def test_predicted_beside_measured(fpmc, data, tmp_path):
    args = ("--denoiser", "ls:schedule=3", "--sigmas", 1, "--batch", 2, "--repeats", 1)
    assert fpmc("bench", "--data", data, *args, "--outdir", tmp_path / "run")[0] == 0
    (cost,) = json.loads((tmp_path / "run" / "metrics.json").read_text())["costs"]
    assert cost["seconds"] > 0
    assert cost["predicted"] > 0
    assert cost["error"] < 1e-4


def test_a_gpu_that_is_not_there(refused, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    message = refused("bench", "--device", "cuda", "--outdir", tmp_path / "run")
    assert "device 'cuda' cannot be used here" in message
    assert not (tmp_path / "run").exists()


def test_a_network_has_no_plan_to_measure(refused, tmp_path):
    assert "is a network" in refused("bench", "--denoiser", "fashion-ddpmpp", "--outdir", tmp_path / "run")
