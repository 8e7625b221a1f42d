"""fpmc finetune and fpmc calibrate, end to end on tiny data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from fpmc import presets
from fpmc.cli import main
from fpmc.core.fpmc import FPMC
from fpmc.data import load_images
from fpmc.networks import EDMPrecond, save_network
from fpmc.process import edm_grid
from fpmc.study import levels
from fpmc.study.cluster import installed
from fpmc.study.levels import level_file

pytestmark = pytest.mark.usefixtures("one_thread")    # tiny problems, and bits depend on how sums are shared


@pytest.fixture
def data(tmp_path: Path) -> tuple[str, str]:
    """A folder with train and test images, and an untrained network."""
    random = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.avg_pool2d(torch.randn(60, 1, 11, 11, generator=random), 4, 1)
    pixels = (127.5 + 160 * smooth).clip(0, 255).byte().numpy()
    from PIL import Image

    for split, part in (("train", pixels[:45]), ("test", pixels[45:])):
        folder = tmp_path / "data" / split
        folder.mkdir(parents=True)
        for index, image in enumerate(part):
            Image.fromarray(image[0]).save(folder / f"{index:03}.png")
    torch.manual_seed(0)
    net = EDMPrecond(
        img_resolution=8, img_channels=1, model_channels=8, channel_mult=[1], num_blocks=1, attn_resolutions=[]
    )
    save_network(net, tmp_path / "net.safetensors")
    return str(tmp_path / "data"), str(tmp_path / "net.safetensors")


def test_finetune_leaves_a_denoiser_and_goes_on_level_by_level(data, tmp_path: Path, capsys) -> None:
    folder, network = data
    out = tmp_path / "run"
    common = [
        "finetune",
        "--data",
        folder,
        "--network",
        network,
        "--denoiser",
        "pspc_square:schedule=3",
        "--recipe",
        "paper",
        "--floor_q",
        "0",
        "--floor_r",
        "0",
        "--steps",
        "3",
        "--batch",
        "4",
        "--outdir",
        str(out),
    ]
    assert main([*common, "--levels", "9-10"]) == 0
    assert main([*common, "--levels", "11"]) == 0
    assert main([*common, "--steps", "4", "--levels", "11"]) == 2  # another recipe in the same folder
    assert "steps was 3" in capsys.readouterr().err
    table = (out / "table.md").read_text()
    assert table.count("\n") == 5  # headers, rule, three levels
    grid = edm_grid().tolist()
    assert (out / f"level-{grid[10]:.6g}.png").stat().st_size > 1000
    soft = FPMC.from_pretrained(out / "model", images=load_images(folder))
    assert list(soft.collections) == grid  # pyright: ignore
    baseline, z = presets.pspc_square(load_images(folder), schedule=3), torch.randn(2, 1, 8, 8)
    for index, sigma in enumerate(grid):                # levels that were not learned stay as they were
        assert torch.equal(soft(z, sigma), baseline(z, sigma)) == (index not in (9, 10, 11))
    assert soft(torch.zeros(1, 1, 8, 8), 1.0).shape == (1, 1, 8, 8)
    assert json.loads((out / "metrics.json").read_text())
    assert main(["finetune", "--data", folder, "--network", network, "--outdir", str(out), "--levels", "3-40"]) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes where Linux lists them")
@pytest.mark.skipif(not installed(), reason="several processes need the extra: pip install 'fpmc[cluster]'")
@pytest.mark.slow
def test_several_jobs_give_the_same_and_end_with_their_command(data, tmp_path: Path) -> None:
    folder, network = data

    def command(out: str, jobs: int) -> list[str]:
        given = {
            "data": folder, "network": network, "denoiser": "pspc_square:schedule=3", "recipe": "paper", "batch": 4,
            "steps": 300, "levels": "9-11", "jobs": jobs, "threads": 1, "outdir": tmp_path / out,
        }
        return ["finetune", *(str(part) for name, value in given.items() for part in (f"--{name}", value))]

    assert main(command("alone", 1)) == 0
    _end_early(command("shared", 2), tmp_path / "shared", signal.SIGINT, 130)
    _end_early(command("shared", 2), tmp_path / "shared", signal.SIGKILL, -9)
    assert main(command("shared", 2)) == 0
    for index in (9, 10, 11):
        alone, shared = (
            torch.load(level_file(tmp_path / out, edm_grid()[index].item(), "pt"), weights_only=True)
            for out in ("alone", "shared")
        )
        assert torch.equal(alone["best_log_q"], shared["best_log_q"])
        assert torch.equal(alone["log_r"], shared["log_r"])
    assert (tmp_path / "alone" / "model" / "model.safetensors").read_bytes() == (
        tmp_path / "shared" / "model" / "model.safetensors"
    ).read_bytes()


def _end_early(command: list[str], folder: Path, how: signal.Signals, code: int) -> None:
    """Signal a command and all it started once they are at work; nothing is left of them, and no traceback."""
    script, steps = f"import sys, fpmc.cli; sys.exit(fpmc.cli.main({command}))", folder / "metrics.jsonl"
    began = steps.stat().st_size if steps.exists() else 0
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    ) as parent:
        while parent.poll() is None and not (steps.exists() and steps.stat().st_size > began):
            time.sleep(0.02)
        lists = Path(f"/proc/{parent.pid}/task").glob("*/children")
        children = [child for each in lists for child in each.read_text().split()]
        (os.killpg if how == signal.SIGINT else os.kill)(parent.pid, how)
        _, said = parent.communicate()
    assert parent.returncode == code
    assert b"Traceback" not in said
    assert len(children) >= 2
    for _ in range(500):
        if not any(map(_runs, children)):
            return
        time.sleep(0.02)
    pytest.fail("processes outlive the one that started them")


def _runs(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("option", ["jobs", "threads"])
def test_there_is_at_least_one_of_each(refused, tmp_path: Path, option: str) -> None:
    assert f"{option} 0" in refused("finetune", "--outdir", tmp_path / "run", f"--{option}", 0)


def test_calibrate_writes_a_schedule_that_a_preset_takes(data, tmp_path: Path) -> None:
    folder, network = data
    out = tmp_path / "run"
    assert (
        main(
            [
                "calibrate",
                "--data",
                folder,
                "--network",
                network,
                "--method",
                "ls",
                "--values",
                "3",
                "5",
                "--sigmas",
                "1",
                "0.1",
                "--count",
                "4",
                "--outdir",
                str(out),
            ]
        )
        == 0
    )
    schedule = json.loads((out / "schedule.json").read_text())
    assert schedule["t"] == [1.0, 0.1]
    assert set(schedule["ls"]) <= {3, 5}
    assert (out / "scores.png").stat().st_size > 1000
    sampled = tmp_path / "sample"
    assert (
        main(
            [
                "sample",
                "--data",
                folder,
                "--denoiser",
                f"ls:schedule={out / 'schedule.json'}",
                "--seeds",
                "0-1",
                "--steps",
                "3",
                "--outdir",
                str(sampled),
            ]
        )
        == 0
    )
    assert np.load(sampled / "samples.npy").shape == (2, 1, 8, 8)


def test_one_level_by_its_value_leaves_the_others_alone(data, tmp_path: Path) -> None:
    folder, network = data
    out = tmp_path / "run"
    common = ["finetune", "--data", folder, "--network", network, "--denoiser", "pspc_square:schedule=3"]
    quick = ["--recipe", "paper", "--steps", "3", "--batch", "4"]
    assert main([*common, *quick, "--sigmas", "1.09", "--outdir", str(out)]) == 0
    images, z = load_images(folder), torch.randn(2, 1, 8, 8)
    soft, baseline = FPMC.from_pretrained(out / "model", images=images), presets.pspc_square(images, schedule=3)
    same = [torch.equal(soft(z, sigma), baseline(z, sigma)) for sigma in edm_grid().tolist()]
    assert [index for index, equal in enumerate(same) if not equal] == [10]


def test_templates_are_the_default_and_resume_level_by_level(data, tmp_path: Path, capsys) -> None:
    folder, network = data
    common = ["finetune", "--data", folder, "--network", network, "--denoiser", "pspc_square:schedule=3"]
    common += ["--pool", "16"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*common, "--levels", "9-10", "--outdir", str(whole)]) == 0
    assert main([*common, "--levels", "10", "--outdir", str(parts)]) == 0
    kept = next(parts.glob("level-*.pt")).stat().st_mtime_ns
    assert main([*common, "--levels", "9-10", "--outdir", str(parts)]) == 0
    sigma = edm_grid().tolist()[10]
    assert (parts / f"level-{sigma:.6g}.pt").stat().st_mtime_ns == kept        # not learned again
    images, z = load_images(folder), torch.randn(2, 1, 8, 8)
    one, other = (FPMC.from_pretrained(out / "model", images=images) for out in (whole, parts))
    for level in edm_grid().tolist()[8:12]:
        assert torch.equal(one(z, level), other(z, level))
    onward = ["finetune", "--data", folder, "--network", network, "--denoiser", str(whole / "model"), "--steps", "1"]
    assert main([*onward, "--batch", "4", "--levels", "10", "--outdir", str(tmp_path / "polished")]) == 0
    capsys.readouterr()
    assert main([*common, "--recipe", "templates", "--steps", "3", "--outdir", str(tmp_path / "no")]) == 2
    assert "--steps is not a setting of the recipe 'templates'" in capsys.readouterr().err
    assert main([*common, "--steps", "3", "--outdir", str(tmp_path / "no")]) == 2      # which means the paper's
    assert "--pool is not a setting of the recipe 'paper'" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_calibration_resumes_where_it_was_killed(data, tmp_path: Path, monkeypatch) -> None:
    folder, network = data
    out, score, asked = tmp_path / "run", levels.score_level, []
    command = ["calibrate", "--data", folder, "--network", network, "--method", "ls", "--values", "3", "5",
               "--sigmas", "1", "0.3", "0.1", "--count", "4", "--outdir", str(out)]

    def killed(candidates, network, z, sigma):
        asked.append(sigma)
        if asked == [1.0, 0.3]:
            raise KeyboardInterrupt
        return score(candidates, network, z, sigma)

    monkeypatch.setattr(levels, "score_level", killed)
    assert main(command) == 130
    assert main(command) == 0
    assert asked == [1.0, 0.3, 0.3, 0.1]
    found = json.loads((out / "metrics.json").read_text())
    assert main([*command[:-1], str(tmp_path / "whole")]) == 0
    assert json.loads((tmp_path / "whole" / "metrics.json").read_text()) == found


@pytest.mark.skipif(not installed(), reason="several processes need the extra: pip install 'fpmc[cluster]'")
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["fit --sizes 3 5 --count 16", "maps --draws 1"],
    ids=lambda words: words.split()[0],
)
def test_levels_side_by_side_find_the_same(data, tmp_path: Path, words: str) -> None:
    folder, network = data
    aim = "--target" if words.startswith("fit") else "--network"
    for jobs in ("1", "2"):
        options = ["--data", folder, aim, network, "--sigmas", "1", "0.3", "--outdir", str(tmp_path / jobs)]
        assert main([*words.split(), *options, "--jobs", jobs]) == 0
    assert (tmp_path / "1" / "metrics.json").read_text() == (tmp_path / "2" / "metrics.json").read_text()


def test_calibration_needs_held_out_images(data, tmp_path: Path, capsys) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 1, 8, 8), np.uint8))
    assert (
        main(["calibrate", "--data", str(tmp_path / "x.npy"), "--network", data[1], "--outdir", str(tmp_path / "o")])
        == 2
    )
    assert "held-out" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
