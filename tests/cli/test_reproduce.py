"""fpmc reproduce on the command line: listing, refusing, predicting; killed; and the paper's scale with stand-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fpmc.data.packing import pack
from fpmc.networks import save_maps
from fpmc.networks.maps import SensitivityMaps
from fpmc.study.cluster import installed
from fpmc.study.paper import EXPERIMENTS
from fpmc.study.scale import SCALES
from networks.edm_pickle import edm_pickle
from study.tiny import SETTINGS, TINY, small_files, small_network, smooth_images

LAPTOP = SCALES["laptop"]
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from study.tiny import TINY
from fpmc.study.scale import SCALES
SCALES["laptop"] = TINY
from fpmc.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(autouse=True)
def _quickest(one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(SCALES, "laptop", TINY)
    monkeypatch.chdir(tmp_path)


def tables(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for kind in ("md", "csv", "tex") for file in sorted(folder.glob(f"*.{kind}"))}


def test_list_names_every_experiment_without_torch():
    code = "import sys; from fpmc.cli import main; main(['reproduce', '--list']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(EXPERIMENTS)


def test_bad_input_is_one_line(refused, tmp_path: Path):
    files = small_files(tmp_path)
    assert "did you mean 'table1'" in refused("reproduce", "table")
    assert "at least one experiment" in refused("reproduce")
    assert "no network 'fashion-none'" in refused("reproduce", "all", "--network", "fashion-none")
    assert "no row 'best'" in refused("reproduce", "table-results", *files, "--methods", "best")
    assert "8, 8" in refused("reproduce", "table-results", *files, "--dataset", "ffhq")
    other = tmp_path / "other.zip"
    pack(smooth_images(4, 6), other)
    assert "shape (1, 8, 8)" in refused("reproduce", "table1", *files[2:], "--data", other)
    assert "max_size" in refused("reproduce", "table1", *files, "--max_size", 0)
    assert "expensive_points 1: at least 2" in refused("reproduce", "fig-multiscale", *files, "--expensive_points", 1)
    assert "fit 15: at least 16" in refused("reproduce", "fig-multiscale", *files, "--fit", 15)
    assert not Path("runs").exists()                    # refused before anything is written


def test_expensive_methods_have_fewer_noisy_images_unless_told(fpmc, tmp_path: Path):
    words = ["reproduce", "fig-multiscale", *small_files(tmp_path), "--methods", "els", "--points", 4, "--dry_run"]
    assert "networks' answers to 3" in fpmc(*words).out
    assert "networks' answers to" not in fpmc(*words, "--expensive_points", 4).out


def test_a_dry_run_predicts_and_leaves_nothing(fpmc, tmp_path: Path):
    out = tmp_path / "run"
    code, text, _ = fpmc("reproduce", "all", *small_files(tmp_path), "--outdir", out, "--dry-run")
    assert code == 0
    lines = {line.split("  ")[0]: line.split() for line in text.splitlines()}
    assert lines["samples/ls"][1:3] == ["2", "0"]       # two batches of seeds, none done
    assert lines["all"][-1] == "MiB"
    assert not out.exists()


def test_killed_twice_the_tables_are_the_same(fpmc, tmp_path: Path):
    words = ["table-results", *small_files(tmp_path), "--methods", "ls", "pspc_flex", "soft"]
    assert fpmc("reproduce", *words, "--outdir", tmp_path / "whole").code == 0
    out = tmp_path / "killed"
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parents[1]), "reproduce", *words, "--outdir", str(out)]
    for wanted in (3, 9):
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        while len(list((out / "cache").glob("*.safetensors"))) < wanted and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL        # it was at work, not done
    assert fpmc("reproduce", *words, "--outdir", out).code == 0
    assert tables(out) == tables(tmp_path / "whole")
    assert "computed again" not in (out / "log.txt").read_text()


@pytest.mark.skipif(not installed(), reason="several processes need the extra: pip install 'fpmc[cluster]'")
def test_several_jobs_find_the_same(fpmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SCALES, "laptop", LAPTOP)       # as the other processes have it
    words = ["table-results", *small_files(tmp_path), "--methods", "ls", "pspc_square", "--seeds", 4]
    found = []
    for jobs in (1, 2):
        out = tmp_path / f"jobs-{jobs}"
        code, _, err = fpmc("reproduce", *words, "--outdir", out, "--jobs", jobs)
        assert code == 0, err
        found.append(tables(out))
        assert "samples/ls" in (out / "log.txt").read_text()
        assert "--jobs" not in (out / "index.html").read_text()
    assert found[0] == found[1]
    assert "at least 1" in fpmc("reproduce", *words, "--jobs", 0).err


@pytest.mark.slow
def test_the_papers_scale_with_stand_ins(fpmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """EDM checkpoints and an EDM zip at 64×64, 40 steps, FFHQ's tables, no test split: the real formats, few of all."""
    paper = SCALES["paper"]
    tuning = replace(paper.tuning, steps=1, batch=2, monte_carlo=4, validation=2)
    monkeypatch.setitem(SCALES, "paper", replace(
        paper, seeds=2, expensive_seeds=2, batch=2, points=2, tuning=tuning, joint=(1.07,), held_out=4, shown=2,
        calibrated=("pspc_square",), calibration=1, every=8,
    ))
    pack(smooth_images(8, 64), tmp_path / "ffhq-64x64.zip")
    for name, seed in (("ddpmpp", 0), ("ncsnpp", 1)):
        settings = {"img_resolution": 64, **SETTINGS}
        (tmp_path / f"{name}.pkl").write_bytes(edm_pickle(small_network(64, seed), settings))
    at = torch.arange(64.0)
    near = torch.exp(-(at[:, None] - at).abs() / 3).round(decimals=2)
    maps = torch.einsum("ac,bd->abcd", near, near)
    save_maps(SensitivityMaps({1.0: maps}, {1.0: 1}, {1.0: 0.0}), tmp_path / "maps.safetensors")
    out = tmp_path / "run"
    code, text, err = fpmc(
        "reproduce", "table-results", "fig-samples", "schedules", "--scale", "paper",
        "--data", tmp_path / "ffhq-64x64.zip", "--network", tmp_path / "ddpmpp.pkl",
        "--reference", tmp_path / "ncsnpp.pkl", "--maps", tmp_path / "maps.safetensors", "--outdir", out,
        "--methods", "ddpmpp", "optimal", "ls", "pspc_square", "pspc_flex", "soft",
    )
    assert code == 0, err
    assert "Table 2" in text
    found = json.loads((out / "metrics.json").read_text())
    rows = {row["method"]: row for row in found["table-results"]}
    assert set(rows) == {"ddpmpp", "optimal", "ls", "pspc_square", "pspc_flex", "soft"}
    assert all(row["images"] == 2 for row in rows.values())
    assert rows["soft"]["mse"] != rows["pspc_flex"]["mse"]
    assert len(found["schedules"]) == 40
    square = {row["sigma"]: row["paper"] for row in found["schedules"]}
    assert square[min(square, key=lambda sigma: abs(sigma - 11.7))] == 43      # FFHQ's table
    table = (out / "table-results.md").read_text()
    assert "paper, FFHQ-64×64" in table
    assert "4.63 ± 0.05" in table                       # the paper's soft Q/R
    assert "ELS" not in table
