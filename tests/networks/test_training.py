"""Training learns, goes on bit for bit, and depends on nothing but its seed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fpmc.cli import main
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.networks.precond import EDMPrecond
from fpmc.networks.training import Recipe, Training, data_deviation, draw, edm_loss, train, validate
from fpmc.networks.unet import ARCHITECTURES
from fpmc.presets import optimal


def shapes(count: int, size: int = 8) -> ImageSet:
    """Random bright boxes on dark ground."""
    generator = np.random.default_rng(0)
    pixels = np.full((count, 1, size, size), 30, np.uint8)
    for image in pixels[:, 0]:
        y, x = generator.integers(0, size - 3, 2)
        image[y : y + 4, x : x + 3] = generator.integers(150, 256)
    return ImageSet(pixels, labels=np.arange(count) % 2)


def network(seed: int = 0, **settings: Any) -> EDMPrecond:
    torch.manual_seed(seed)
    architecture = ARCHITECTURES[settings.pop("arch", "ddpmpp")]
    small = {"model_channels": 8, "channel_mult": (1, 2), "num_blocks": 1, "attn_resolutions": (4,), "dropout": 0.0}
    return EDMPrecond(8, 1, sigma_data=0.6, **{**architecture, **small, **settings})


def everything(training: Training) -> dict[str, torch.Tensor]:
    """All tensors that training changes."""
    moments = {
        f"{name}.{key}": value
        for name, parameter in training.net.named_parameters()
        for key, value in training.optimizer.state[parameter].items()
    }
    average = {f"ema.{name}": value for name, value in training.ema.state_dict().items()}
    return {**training.net.state_dict(), **average, **moments}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_overfits_eight_images(optimizer: Any) -> None:
    images = shapes(8)
    recipe = Recipe(images=16 * 160, batch=16, rate=6e-3, warmup=200, p_mean=-0.5, ema_rampup=0.1, optimizer=optimizer)
    training = Training(network(channel_mult=(1,), attn_resolutions=()), recipe)
    before = validate(training.ema, images, sigmas=(0.3, 1.0))
    losses = [progress.loss for progress in train(training, images)]
    after = validate(training.ema, images, sigmas=(0.3, 1.0))
    assert np.mean(losses[-30:]) < 0.35 * np.mean(losses[:10])
    # 8 known images are told apart at σ = 0.3 with hardly an error; that little would not do it for new ones.
    assert after[0.3] < 0.1 * before[0.3]
    assert after[1.0] < 0.3 * before[1.0]


def test_the_loss_is_the_weighted_error() -> None:
    net = network().eval()
    x, sigma, noise, _ = draw(shapes(8), Recipe(batch=4), 0, 0)
    with torch.no_grad():
        z = x + sigma[:, None, None, None] * noise
        error = (net(z, sigma) - x).square().mean((1, 2, 3))
        c_out = sigma * 0.6 / (sigma**2 + 0.36).sqrt()
        torch.testing.assert_close(edm_loss(net, x, z, sigma), (error / c_out**2).mean())
        # With weight 1/c_out² an untrained network, F = 0, has a loss of about 1 at every noise level.
        for level in (0.05, 1.0, 30.0):
            flat = torch.full((512,), level)
            x = 0.6 * torch.randn(512, 1, 8, 8, generator=torch.Generator().manual_seed(1))
            n = torch.randn(512, 1, 8, 8, generator=torch.Generator().manual_seed(2))
            assert edm_loss(net, x, x + level * n, flat).item() == pytest.approx(1, abs=0.05)


def test_the_posterior_target_has_the_same_expected_loss_gradient() -> None:
    images, net = shapes(12), network().eval()
    recipe, best = Recipe(batch=3, p_mean=1.6, p_std=0.2), optimal(images)
    last = net.model.dec["8x8_aux_conv"].bias

    def gradients(step: int) -> list[float]:
        x, sigma, noise, _ = draw(images, recipe, step, 0)
        z = x + sigma[:, None, None, None] * noise
        return [
            torch.autograd.grad(edm_loss(net, target, z, sigma), last)[0].item() for target in (x, best(z, sigma))
        ]

    clean, posterior = np.array([gradients(step) for step in range(300)]).T
    assert abs((clean - posterior).mean()) < 3 * (clean - posterior).std() / len(clean) ** 0.5
    assert posterior.std() < clean.std()  # the same in the mean, with less scatter


def test_the_posterior_target_moves_only_noise_levels_from_1_on() -> None:
    images = shapes(12)
    asked = []

    def best(z: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        asked.extend(sigma.tolist())
        return torch.zeros_like(z)

    recipe = Recipe(batch=6, p_mean=0.0, p_std=1.0, target="posterior")
    for _ in train(Training(network(), recipe), images, optimal=best, steps=4):
        pass
    drawn = torch.cat([draw(images, recipe, step, 0)[1] for step in range(4)]).tolist()
    assert asked == [sigma for sigma in drawn if sigma >= 1]
    assert 0 < len(asked) < len(drawn)
    with pytest.raises(InputError, match="optimal="):
        next(train(Training(network(), recipe), images))


@pytest.mark.parametrize("settings", [{"dropout": 0.2}, {"arch": "ncsnpp", "label_dim": 2, "label_dropout": 0.3}])
def test_a_resumed_training_is_the_same_bit_for_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    images, recipe = shapes(10), Recipe(images=60, batch=4, xflip=True, schedule="cosine", warmup=8)
    whole = Training(network(**settings), recipe)
    for _ in train(whole, images, steps=8):
        pass
    parts = Training(network(**settings), recipe)
    for _ in train(parts, images, steps=3):
        pass
    parts.save(tmp_path / "checkpoint.pt")
    for _ in train(parts, images, steps=2):
        pass  # and then it is killed
    torch.manual_seed(99)
    resumed = Training(network(seed=7, **settings), recipe)
    resumed.restore(tmp_path / "checkpoint.pt")
    last = [*train(resumed, images, steps=5)][-1]
    assert (last.step, last.images) == (8, 32)
    assert_same(everything(whole), everything(resumed))


def test_the_seed_decides_and_the_generators_around_do_not() -> None:
    images, recipe = shapes(10), Recipe(batch=4)

    def after(seed: int, outside: int) -> dict[str, torch.Tensor]:
        training = Training(network(dropout=0.1), replace(recipe, seed=seed))
        torch.manual_seed(outside)
        expected = torch.rand(3, generator=torch.Generator().manual_seed(outside))
        for _ in train(training, images, steps=2):
            pass
        assert torch.equal(torch.rand(3), expected)  # nor does training move them
        return everything(training)

    assert_same(after(1, 5), after(1, 6))
    last = "model.dec.8x8_aux_conv.weight"
    assert not torch.equal(after(1, 5)[last], after(2, 5)[last])


def test_an_epoch_shows_every_image_once() -> None:
    images = shapes(10).pixels.clone()
    images[:, 0, 0, 0] = torch.arange(10, dtype=torch.uint8)
    recipe = Recipe(batch=4)
    corner = torch.cat([draw(ImageSet(images), recipe, step, 0)[0][:, 0, 0, 0] for step in range(5)])
    seen = (corner * 127.5 + 127.5).round().int().tolist()
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_noise_levels_are_log_normal() -> None:
    recipe = Recipe(batch=2000, p_mean=-0.7, p_std=1.4)
    _, sigma, noise, _ = draw(shapes(10), recipe, 3, 0)
    assert sigma.log().mean().item() == pytest.approx(-0.7, abs=0.1)
    assert sigma.log().std().item() == pytest.approx(1.4, abs=0.1)
    assert noise.std().item() == pytest.approx(1, abs=0.02)


def test_rate_warms_up_and_falls() -> None:
    recipe = Recipe(images=1000, batch=10, rate=2.0, warmup=100, schedule="cosine")
    rates = [recipe.rate_at(step) for step in range(recipe.steps)]
    assert rates[0] == pytest.approx(2 * 10 / 110)
    assert rates == sorted(rates[:11]) + sorted(rates[11:], reverse=True)
    assert max(rates) == 2.0
    assert rates[-1] < 0.01
    assert replace(recipe, schedule="constant").rate_at(99) == 2.0


def test_the_moving_average_forgets_by_half_in_its_half_life() -> None:
    recipe = Recipe(batch=10, ema_halflife=200, ema_rampup=0.5)
    assert math.prod(recipe.ema_decay_at(step) for step in range(100, 120)) == pytest.approx(0.5)
    assert recipe.ema_decay_at(0) == pytest.approx(0.25)  # a half-life of 5 images: the first weights are soon gone


def test_sigma_data_is_exact() -> None:
    images = shapes(10)
    exact = images.scaled(dtype=torch.float64).std(correction=0).item()
    assert data_deviation(images) == pytest.approx(exact, rel=1e-12)


def test_validation_knows_the_error_of_a_constant() -> None:
    images = shapes(10)
    errors = validate(lambda z, sigma: torch.zeros_like(z), images, sigmas=(0.1, 1.0), batch=4)
    expected = images.scaled().square().mean().item()
    assert errors == {0.1: pytest.approx(expected), 1.0: pytest.approx(expected)}
    noisy = validate(lambda z, sigma: z, images, sigmas=(2.0,))
    assert noisy[2.0] == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"batch": 0}, "batch must be positive, got 0"),
        ({"rate": -1.0}, "rate"),
        ({"p_std": math.nan}, "p_std"),
        ({"seed": -1}, "seed"),
        ({"schedule": "linear"}, "'linear'"),
    ],
)
def test_impossible_recipes_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        Recipe(**settings)


def test_data_that_do_not_fit_the_network_are_named() -> None:
    with pytest.raises(InputError, match=r"\(1, 8, 8\), 'images' has \(1, 9, 9\)"):
        next(train(Training(network(), Recipe()), shapes(4, size=9)))
    unlabelled = ImageSet(shapes(4).pixels)
    with pytest.raises(InputError, match="2 classes needs labels"):
        next(train(Training(network(label_dim=2), Recipe()), unlabelled))


def test_divergence_is_told() -> None:
    training = Training(network(), Recipe(batch=4))
    training.net.model.map_layer0.weight.data.fill_(torch.nan)
    with pytest.raises(InputError, match="diverged at step 0"):
        next(train(training, shapes(8)))


def test_checkpoints_of_other_networks_are_refused(tmp_path: Path) -> None:
    Training(network(), Recipe()).save(tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="no checkpoint of this training"):
        Training(network(model_channels=16), Recipe()).restore(tmp_path / "checkpoint.pt")
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="no checkpoint of this training"):
        Training(network(), Recipe()).restore(tmp_path / "checkpoint.pt")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    np.save(tmp_path / "train.npy", shapes(12).pixels.numpy())
    np.save(tmp_path / "test.npy", shapes(4).pixels.numpy())
    data = ["--data", str(tmp_path / "train.npy"), "--held_out", str(tmp_path / "test.npy")]
    return ["train", *data, *"--channels 8 --mults 1 --blocks 1 --batch 4 --device cpu".split()]  # noqa: SIM905


def test_the_command_goes_on_and_leaves_a_run_directory(command: list[str], tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main([*command, "--outdir", str(whole), "--images", "24"]) == 0
    assert main([*command, "--outdir", str(parts), "--images", "12"]) == 0
    assert main([*command, "--outdir", str(parts), "--images", "24"]) == 0
    a, b = (torch.load(run / "checkpoint.pt", weights_only=True) for run in (whole, parts))
    assert a["step"] == b["step"] == 6
    assert_same(a["net"], b["net"])
    assert_same(a["ema"], b["ema"])
    names = {"checkpoint.pt", "config.json", "metrics.json", "metrics.jsonl", "samples.png", "network.safetensors"}
    assert names <= {path.name for path in parts.iterdir()}
    metrics = json.loads((parts / "metrics.json").read_text())
    assert metrics["images"] == 24
    assert len((parts / "metrics.jsonl").read_text().splitlines()) == 2
    again = tmp_path / "again"
    start = str(whole / "network.safetensors")
    assert main([*command, "--outdir", str(again), "--init", start, "--images", "4", "--rate", "1e-12"]) == 0
    started = torch.load(again / "checkpoint.pt", weights_only=True)["net"]
    assert all(torch.allclose(value, a["ema"][name], atol=1e-6) for name, value in started.items())


def test_the_fourier_scale_spreads_the_frequencies() -> None:
    from fpmc.cli.train import Train, build

    usual, narrow = (
        build(Train(outdir=Path("x"), arch="ncsnpp", channels=8, mults=(1,), fourier_scale=scale), shapes(4))
        for scale in (16.0, 2.0)
    )
    torch.testing.assert_close(narrow.model.map_noise.freqs, usual.model.map_noise.freqs / 8)  # pyright: ignore


def test_ctrl_c_keeps_the_step_and_says_how_to_go_on(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import signal

    import fpmc.networks.training as training

    original = training.train

    def interrupted(*arguments: Any, **options: Any) -> Any:
        for progress in islice(original(*arguments, **options), 10):
            if progress.step == 2:
                signal.raise_signal(signal.SIGINT)
            yield progress

    monkeypatch.setattr(training, "train", interrupted)
    assert main([*command, "--outdir", str(tmp_path / "run"), "--images", "40"]) == 130
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] == 2
    assert "saved at 8 images; the same command goes on" in capsys.readouterr().out


def test_wrong_commands_end_with_2(command: list[str], tmp_path: Path) -> None:
    assert main([*command, "--outdir", str(tmp_path / "run"), "--batch", "0"]) == 2
    assert main([*command, "--outdir", str(tmp_path / "run"), "--conditional"]) == 2
    assert main([*command, "--outdir", str(tmp_path / "run"), "--init", "nowhere"]) == 2
    assert not (tmp_path / "run").exists()
