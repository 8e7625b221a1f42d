"""Sensitivity maps (App. A.1.2): the brute-force Jacobian, streamed, resumed, kept compactly."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fpmc.cli import main
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.sources import as_source
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.methods.table1 import wiener, wiener_maps
from fpmc.networks import SensitivityMaps, load_maps, save_maps, save_network, sensitivity_maps
from fpmc.networks.maps import _draw, _probe, _pullback
from fpmc.networks.precond import EDMPrecond


def colours(size: int = 8) -> ImageSet:
    generator = np.random.default_rng(1)
    return ImageSet(generator.integers(0, 256, (5, 3, size, size), dtype=np.uint8))


def network(size: int = 8) -> EDMPrecond:
    torch.manual_seed(3)
    net = EDMPrecond(size, 3, model_channels=8, channel_mult=(1,), num_blocks=1, attn_resolutions=(size,), dropout=0.0)
    for parameter in net.parameters():  # the initial weights make a network that is all but its skip
        parameter.data += 0.05 * torch.randn_like(parameter)
    return net.eval().requires_grad_(False)


def brute_force(denoiser: Any, z: Tensor, sigma: float) -> Tensor:
    """Σ_c |∂D_{y,x,c} / ∂z_c| from the whole Jacobian."""
    jacobian: Any = torch.autograd.functional.jacobian(lambda z: denoiser(z, sigma), z)
    jacobian = jacobian[0, :, :, :, 0]  # (C, H, W, C, H, W)
    return sum(jacobian[c, :, :, c].abs() for c in range(z.shape[1]))  # pyright: ignore[reportReturnType]


class Opaque(torch.autograd.Function):
    """z³, by code that torch.func cannot look into."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return torch.from_numpy(z.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Tensor:
        return 3 * ctx.saved_tensors[0] ** 2 * outputs[0]


@pytest.mark.parametrize("chunk", [64, 7])
def test_maps_are_the_mean_of_brute_force_jacobians(chunk: int) -> None:
    net, images = network(6), colours(6)
    maps = sensitivity_maps(net, images, [0.5, 4.0], draws=2, seed=5, chunk=chunk)
    assert list(maps) == [0.5, 4.0]
    for sigma in maps:
        each = [brute_force(net, _draw(images, sigma, 5, k), sigma) for k in range(2)]
        torch.testing.assert_close(maps[sigma], sum(each) / 2, rtol=1e-4, atol=1e-6)
        error = ((each[0] - each[1]).abs() / 2).sum() / maps[sigma].sum()
        assert maps.errors[sigma] == pytest.approx(error.item(), rel=1e-2)
        assert maps.draws[sigma] == 2


def local(z: Tensor, sigma: Any) -> Tensor:
    """An answer that depends on the pixel, its right neighbour and, a little, on the mean of all."""
    return z.tanh() * torch.roll(z, -1, -1).cos() + 0.1 * z.mean((2, 3), keepdim=True) ** 2


@pytest.mark.parametrize("spacing", [3, 4, 8])
def test_a_probe_gives_each_output_what_is_nearest_to_it(spacing: int) -> None:
    z = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    pull = _pullback(local, z, 1.0)
    found = _probe(pull, z, spacing, chunk=5)
    y, x, v, u = torch.meshgrid(*4 * [torch.arange(8)], indexing="ij")
    near = [(a + spacing // 2 >= b) & (a + spacing // 2 < b + spacing) for a, b in ((v, y), (u, x))]
    for at in ((0, 0), (3, 5), (7, 2)):
        expected = torch.zeros(8, 8)
        for channel in range(3):
            outputs = torch.zeros(1, 3, 8, 8)
            outputs[0, channel, at[0] % spacing :: spacing, at[1] % spacing :: spacing] = 1
            expected += pull(outputs)[0, channel].abs()
        torch.testing.assert_close(found[at], expected * (near[0] & near[1])[at])


def test_probes_lower_the_error_and_have_no_bias() -> None:
    images = colours(8)
    many = sensitivity_maps(local, images, [1.0], draws=400)[1.0]
    few, probed = (sensitivity_maps(local, images, [1.0], draws=8, probes=probes, spacing=4) for probes in (0, 150))
    assert (few.draws[1.0], probed.draws[1.0]) == (8, 158)
    assert probed.errors[1.0] < 0.5 * few.errors[1.0]
    off = [float((maps[1.0] - many).abs().sum() / many.sum()) for maps in (few, probed)]
    assert off[1] < 0.5 * off[0]
    assert off[1] < 2 * probed.errors[1.0]              # it is as far off as it says
    means = [torch.stack([sensitivity_maps(local, images, [1.0], draws=2, probes=2, spacing=4, seed=seed)[1.0]
                          for seed in range(start, start + 50)]).mean(0) for start in (0, 50)]
    gap, noise = (means[0] + means[1]) / 2 - many, (means[0] - means[1]) / 2
    assert gap.abs().mean() < 2 * noise.abs().mean() + 1e-3


def test_analytic_denoisers_have_maps_too() -> None:
    images = ImageSet(np.random.default_rng(0).integers(0, 256, (40, 1, 6, 6), dtype=np.uint8))
    expected = wiener_maps(fit_gaussian(as_source(images)), 0.7)
    torch.testing.assert_close(sensitivity_maps(wiener(images), images, [0.7], draws=1)[0.7], expected.float())


def test_draws_are_forward_draws_of_the_images() -> None:
    images = colours()
    clean = torch.stack([_draw(images, 1e-6, 0, k)[0] for k in range(40)])
    nearest = (clean[:, None] - images.scaled()).square().mean((2, 3, 4)).min(1)
    assert nearest.values.max() < 1e-10
    assert set(nearest.indices.tolist()) == set(range(5))
    noise = torch.stack([_draw(images, 100.0, 0, k)[0] for k in range(40)]) / 100
    assert noise.std().item() == pytest.approx(1, abs=0.05)


def test_code_that_torch_func_cannot_look_into() -> None:
    images = colours(4)
    maps = sensitivity_maps(lambda z, sigma: Opaque.apply(z), images, [1.0], draws=1, chunk=5)
    z = _draw(images, 1.0, 0, 0)
    expected = (3 * z**2).sum((0, 1)).flatten().diag().view(4, 4, 4, 4)
    torch.testing.assert_close(maps[1.0], expected)


def test_a_denoiser_without_gradients_is_told() -> None:
    with pytest.raises(InputError, match="no gradients"):
        sensitivity_maps(lambda z, sigma: torch.from_numpy(z.detach().numpy()), colours(4), [1.0], draws=1)


def test_checkpoints_are_gone_on_with(tmp_path: Path) -> None:
    net, images = network(), colours()
    whole = sensitivity_maps(net, images, [1.0, 2.0], draws=3)
    told: list[tuple[int, int]] = []

    def stop(done: int, total: int) -> None:
        told.append((done, total))
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sensitivity_maps(net, images, [1.0, 2.0], draws=3, checkpoint=tmp_path, progress=stop)
    calls = 0

    def counted(z: Tensor, sigma: Any) -> Tensor:
        nonlocal calls
        calls += 1
        return net(z, sigma)

    again = sensitivity_maps(counted, images, [1.0, 2.0], draws=3, checkpoint=tmp_path)
    assert told == [(1, 6), (2, 6), (3, 6), (4, 6)]
    assert calls == 1 + 2  # to know the denoiser again, and the two draws that were missing
    assert all(torch.equal(whole[sigma], again[sigma]) for sigma in whole)
    assert whole.errors == again.errors
    with pytest.raises(InputError, match="another denoiser"):
        sensitivity_maps(lambda z, sigma: z, images, [1.0], draws=3, checkpoint=tmp_path)
    with pytest.raises(InputError, match="another seed"):
        sensitivity_maps(net, images, [1.0], draws=3, seed=1, checkpoint=tmp_path)
    probed = sensitivity_maps(net, images, [1.0], draws=2, probes=3, spacing=4)
    sensitivity_maps(net, images, [1.0], draws=2, probes=1, spacing=4, checkpoint=tmp_path)
    resumed = sensitivity_maps(net, images, [1.0], draws=2, probes=3, spacing=4, checkpoint=tmp_path)
    assert torch.equal(probed[1.0], resumed[1.0])
    (tmp_path / "sigma-1.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="delete it"):
        sensitivity_maps(net, images, [1.0], draws=3, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sigmas": [0.0]}, "sigma 0.0"),
        ({"sigmas": [math.inf]}, "sigma inf"),
        ({"sigmas": []}, "0 sigmas"),
        ({"draws": 0}, "1 sigmas, 0 and 64"),
        ({"probes": -1}, "-1 and 7"),
        ({"probes": 1, "spacing": 0}, "1 and 0"),
    ],
)
def test_impossible_requests_are_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        sensitivity_maps(lambda z, sigma: z, colours(), **{"sigmas": [1.0], **options})
    with pytest.raises(InputError, match=r"\(3, 8, 8\)"):
        sensitivity_maps(lambda z, sigma: z[:, :1], colours(), [1.0])


def test_files_keep_the_maps_compactly(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    squared = (y[..., None, None] - y) ** 2 + (x[..., None, None] - x) ** 2
    values = torch.exp(-squared.sqrt() / 2) * torch.empty(16, 16, 16, 16).uniform_(0.5, 1.5, generator=generator)
    maps = SensitivityMaps({0.5: values, 2.0: 3 * values.sqrt()}, {0.5: 4, 2.0: 8}, {0.5: 0.1, 2.0: 0.05})
    path = tmp_path / "maps.safetensors"
    save_maps(maps, path)
    again = load_maps(path)
    assert again.draws == maps.draws
    assert again.errors == maps.errors
    for sigma in maps:
        largest = maps[sigma].amax((2, 3), keepdim=True)
        # Half a step of 63 in the square root.
        assert ((again[sigma] / largest).sqrt() - (maps[sigma] / largest).sqrt()).abs().max() < 0.51 / 63
    assert path.stat().st_size < 0.2 * 2 * 4 * 16**4


def test_files_that_are_no_maps_are_named(tmp_path: Path) -> None:
    path = tmp_path / "maps.safetensors"
    with pytest.raises(InputError, match=r"no maps .*absent"):
        load_maps(tmp_path / "absent")
    path.write_bytes(b"no")
    with pytest.raises(InputError, match="no file of sensitivity maps"):
        load_maps(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="no file of sensitivity maps"):
        load_maps(path)
    bomb = torch.frombuffer(bytearray(lzma.compress(bytes(50_000_000))), dtype=torch.uint8)
    save_file({"codes.0": bomb, "largest.0": torch.ones(4, 4)}, path, {"fpmc-maps": json.dumps([[1.0, 1, 0.1]])})
    with pytest.raises(InputError, match="no file of sensitivity maps"):
        load_maps(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8))
    save_network(network(), tmp_path / "net.safetensors")
    command = ["maps", "--network", str(tmp_path / "net.safetensors"), "--data", str(tmp_path / "images.npy")]
    command += ["--outdir", str(tmp_path / "run"), "--sigmas", "0.1", "2", "--draws"]
    assert main([*command, "1"]) == 0
    assert main([*command, "2"]) == 0
    assert "relative standard error" in capsys.readouterr().out
    maps = load_maps(tmp_path / "run" / "maps.safetensors")
    assert maps.draws == {2.0: 2, 0.1: 2}
    assert maps[0.1].shape == (8, 8, 8, 8)
    assert (tmp_path / "run" / "maps.png").is_file()
    assert main([*command[:-1], "--sigmas", "-1"]) == 2
