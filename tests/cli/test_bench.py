"""fpmc bench: every row once, on images that are not in the source."""

from __future__ import annotations

import json

import pytest

from fpmc.study import bench


@pytest.fixture(autouse=True)
def _known_machine(monkeypatch):
    monkeypatch.setattr(bench, "measure_machine", lambda: bench.Machine(0.1, 100.0, 10.0, 1))


def test_rows_are_printed_once(fpmc, data, tmp_path):
    args = ("--denoiser", "ls:schedule=3", "optimal", "--sigmas", 1, 0.1, "--batch", 2, "--repeats", 1)
    code, out, err = fpmc("bench", "--data", data, *args, "--outdir", tmp_path / "run")
    assert code == 0, err
    assert out.startswith("18 images of data")          # two of twenty are held out
    rows = [line.split()[:2] for line in out.splitlines() if line.startswith(("LS", "Optimal"))]
    assert rows == [["LS", "1"], ["LS", "0.1"], ["Optimal", "1"], ["Optimal", "0.1"]]
    assert len(json.loads((tmp_path / "run" / "metrics.json").read_text())["costs"]) == 4
    assert (tmp_path / "run" / "table.md").read_text().count("| LS |") == 2


def test_a_network_has_no_plan_to_measure(refused, tmp_path):
    assert "is a network" in refused("bench", "--denoiser", "fashion-ddpmpp", "--outdir", tmp_path / "run")
