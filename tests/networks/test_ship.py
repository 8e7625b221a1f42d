"""What a run leaves is shipped if it is better, with a card that counts all sittings."""

from __future__ import annotations

import importlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fpmc.cli import main
from fpmc.networks import SHIPPED, load_network
from fpmc.networks.shipped import WEIGHTS, card_of, quality_line, quality_of
from fpmc.networks.training import VALIDATION_SIGMAS, Recipe

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("ship_network")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Train on boxes of 8×8 for a moment, into a folder named like a network."""
    generator = np.random.default_rng(0)
    pixels = np.full((24, 1, 8, 8), 30, np.uint8)
    for image in pixels[:, 0]:
        y, x = generator.integers(0, 5, 2)
        image[y : y + 4, x : x + 3] = generator.integers(150, 256)
    np.save(tmp_path / "train.npy", pixels[:16])
    np.save(tmp_path / "test.npy", pixels[16:])
    data = ["--data", str(tmp_path / "train.npy"), "--held_out", str(tmp_path / "test.npy"), "--validation", "8"]
    small = ["--channels", "8", "--mults", "1", "--blocks", "1", "--batch", "4", "--rate", "0.004", "--warmup", "8"]
    return ["train", *data, *small]


def test_a_run_is_shipped_when_it_is_better_and_the_count_goes_on(
    ship: Any, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, run = tmp_path / "weights", tmp_path / "boxes-ddpmpp"
    weights.mkdir()
    options = ["--weights", str(weights), "--seeds", "4", "--held-out", "8"]
    assert main([*command, "--outdir", str(run), "--images", "80"]) == 0
    ship.main([str(run), *options, "--dry-run"])
    assert not any(weights.iterdir())
    ship.main([str(run), *options])
    assert "boxes-ddpmpp: 80 images seen, nothing ships yet: shipped" in capsys.readouterr().out
    ship.main([str(run), *options])
    assert "+0.00 % error (σ 0.05 … 5): kept what ships" in capsys.readouterr().out
    first = json.loads((weights / "boxes-ddpmpp.json").read_text())
    assert (first["images_seen"], [point["images_seen"] for point in first["curve"]["points"]]) == (80, [80])

    # Another machine: nothing is left but what was shipped.
    again = tmp_path / "later" / "boxes-ddpmpp"
    start = tmp_path / "start.safetensors"
    shutil.copy(weights / "boxes-ddpmpp.safetensors", start)
    (tmp_path / "metrics.json").write_text('{"seen": 80}')
    assert main([*command, "--outdir", str(again), "--init", str(start), "--images", "240"]) == 0
    assert json.loads((again / "metrics.json").read_text())["seen"] == 320
    ship.main([str(again), *options])
    assert ": 320 images seen, -" in capsys.readouterr().out
    card = json.loads((weights / "boxes-ddpmpp.json").read_text())
    assert [(each["from"], each["to"]) for each in card["sittings"]] == [(0, 80), (80, 320)]
    assert [point["images_seen"] for point in card["curve"]["points"]] == [80, 320]
    assert card["wiener"] == first["wiener"]
    assert card["validation"]["0.5"] < first["validation"]["0.5"]
    text = (weights / "boxes-ddpmpp.md").read_text()
    assert "320 images seen (20.0 epochs)" in text
    assert "![learning curve](boxes-ddpmpp-curve.png)" in text
    assert (weights / "boxes-ddpmpp-curve.png").is_file()
    net: Any = load_network(weights / "boxes-ddpmpp.safetensors")
    ema = torch.load(again / "checkpoint.pt", weights_only=True)["ema"]
    assert all(torch.allclose(value, ema[name], rtol=1e-3, atol=1e-6) for name, value in net.state_dict().items())


def test_the_judgement_is_the_mean_log_ratio_where_networks_differ(ship: Any) -> None:
    shipped = dict.fromkeys(VALIDATION_SIGMAS, 1.0)
    better = {sigma: 0.9 if 0.05 <= sigma <= 5 else 2.0 for sigma in VALIDATION_SIGMAS}
    assert ship.judge(better, shipped) == pytest.approx(math.log(0.9))
    assert ship.judge({**shipped, 0.1: 0.8, 0.5: 1.25}, shipped) == pytest.approx(0)


def test_a_constant_rate_can_be_ended_by_a_fall() -> None:
    recipe = Recipe(images=1000, batch=10, rate=2.0, warmup=100, fall=200)
    rates = [recipe.rate_at(step) for step in range(recipe.steps)]
    assert rates[10:81] == [2.0] * 71
    assert rates[80:] == sorted(rates[80:], reverse=True)
    assert rates[90] == pytest.approx(1.0)
    assert recipe.rate_at(100) == pytest.approx(0)


@pytest.mark.parametrize("name", SHIPPED)
def test_card_data_are_complete_and_the_card_tells_them(name: str) -> None:
    card = card_of(name)
    assert card["name"] == name
    assert card["images_seen"] == card["sittings"][-1]["to"] == card["curve"]["points"][-1]["images_seen"]
    assert card["hours"] == pytest.approx(sum(each["hours"] for each in card["sittings"]))
    assert set(card["validation"]) == set(card["wiener"]) == set(card["optimal"]) == set(map(str, VALIDATION_SIGMAS))
    text = (WEIGHTS / f"{name}.md").read_text(encoding="utf-8")
    assert f"{card['images_seen']:,} images seen" in text
    quality = quality_of(name)
    assert quality["images_seen"] == card["images_seen"]
    assert quality["below_wiener_percent"][0.5] == pytest.approx(
        100 * (1 - card["validation"]["0.5"] / card["wiener"]["0.5"]), abs=0.06
    )
    assert quality_line(name).startswith(f"{name}: {card['images_seen']:,} images seen, error below")
