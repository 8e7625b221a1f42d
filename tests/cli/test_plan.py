"""fpmc plan: ranks on paper."""

from __future__ import annotations

import pytest

from fpmc.cli.plan import meshes
from fpmc.engine import Call, cost
from fpmc.presets import pspc_square
from fpmc.study.methods import Method
from fpmc.study.predict import Link, over_ranks
from study.tiny import smooth_images

IMAGENET = ["--data", "imagenet64.zip", "--images", 1281167, "--shape", 3, 64, 64]


@pytest.fixture(autouse=True)
def _a_machine_like_the_one_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "machine_factor", lambda: 1.0)


def test_data_that_is_not_here_can_be_planned_for(fpmc, refused):
    code, text, err = fpmc("plan", *IMAGENET, "--seeds", 1000, "--ranks", 64, "--threads", 8, "--steps", 6)
    assert code == 0, err
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert list(rows)[3:7] == ["nothing", "seeds", "both", "source"]
    assert rows["source"][1:4] == ["64", "20,019", "1,000"]
    assert rows["seeds"][1:4] == ["64", "1,281,167", "16"]
    assert rows["both"][2:4] == ["160,146", "125"]
    assert float(rows["source"][-1]) > 50
    assert float(rows["source"][4]) < float(rows["nothing"][4]) / 30       # GiB
    assert "give --images and --shape" in refused("plan", *IMAGENET[:4])
    assert "ranks 0" in refused("plan", "--ranks", 0)
    assert "multiscale has no plan on paper" in refused("plan", "--denoiser", "multiscale")


def test_one_rank_is_what_the_plan_says():
    images, sigmas = smooth_images(40, 8), [1.0, 0.1, 0.1]
    found = over_ranks(Method("pspc_square"), images.shape, 40, sigmas, 8, batch=4, threads=2)
    steps = [step for sigma in sigmas for step in pspc_square(images).at(sigma).plan(Call(sigma, 4)).steps]
    assert found.seconds == pytest.approx(8 * sum(cost.seconds(step.counts) for step in steps) / 2)
    assert (found.traffic, found.collectives, found.images, found.seeds) == (0, 0, 40, 8)


def test_traffic_is_what_ranks_bring_together():
    shape, link = (1, 8, 8), Link(bandwidth=1e6, latency=1e-3)
    arguments = {"shape": shape, "images": 40, "sigmas": [0.5], "seeds": 8, "batch": 4, "link": link}
    alone = over_ranks(Method("optimal"), **arguments)
    split = over_ranks(Method("optimal"), **arguments, mesh=(2, 1))
    assert split.traffic == 4 * 16 + 4 * 4 * 64         # top and mass of one estimator, and the answers
    assert split.collectives == 1
    wait = 2 * (2 * (1 / 2) * split.traffic / 1e6 + 1e-3)          # two calls
    assert split.seconds == pytest.approx(alone.seconds / 2 + wait)
    mixed = over_ranks(Method("pspc_square", (("schedule", 3),)), **arguments, mesh=(2, 2))
    assert mixed.collectives == 2
    assert mixed.seeds == 4


def test_every_mesh_has_all_ranks():
    assert meshes(1) == {"nothing": (1, 1)}
    assert meshes(12)["both"] == (4, 3)
    assert all(a * b == 7 for name, (a, b) in meshes(7).items() if name != "nothing")


def test_sampling_can_be_asked_what_it_will_take(fpmc, data, tmp_path):
    code, text, err = fpmc("sample", "--data", data, "--seeds", "0-7", "--dry_run", "--outdir", tmp_path / "run")
    assert code == 0, err
    assert "20 images of 1×6×6, 8 seeds of 35 evaluations" in text
    assert not (tmp_path / "run").exists()
