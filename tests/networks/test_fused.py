"""The fused pieces of a training step give what torch's own layers and the optimal denoiser give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fpmc.images import ImageSet
from fpmc.networks.fused import norm_silu
from fpmc.networks.layers import Conv2d, GroupNorm
from fpmc.networks.precond import EDMPrecond
from fpmc.networks.targets import PosteriorMean
from fpmc.networks.training import Recipe, Training, batches, train
from fpmc.networks.unet import ARCHITECTURES
from fpmc.presets import optimal

NETWORK: dict[str, Any] = {"model_channels": 8, "channel_mult": (1, 2), "num_blocks": 1, "attn_resolutions": (4,)}


def problem(channels: int, dtype: torch.dtype, seed: int = 0) -> tuple[list[Tensor], GroupNorm, Tensor]:
    """x, shift, gain and bias with gradients, their layer, and a cotangent."""
    generator = torch.Generator().manual_seed(seed)
    norm = GroupNorm(channels)
    for parameter in norm.parameters():
        parameter.data.normal_(generator=generator)
    x = (2 * torch.randn(3, channels, 5, 6, generator=generator) + 1).to(dtype)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    shift = torch.randn(3, channels, generator=generator).requires_grad_()
    return [x, shift, norm.weight, norm.bias], norm, torch.randn(x.shape, generator=generator).to(dtype)


def exact(x: Tensor, shift: Tensor, gain: Tensor, bias: Tensor, norm: GroupNorm) -> Tensor:
    h = x.double() + shift.double()[:, :, None, None]
    return F.silu(F.group_norm(h, norm.num_groups, gain.double(), bias.double(), norm.eps))


@pytest.mark.parametrize("channels", [4, 12, 16, 160])
@pytest.mark.parametrize("threads", [1, 2])
def test_norm_and_silu_have_torchs_values_and_gradients(channels: int, threads: int) -> None:
    inputs, norm, cotangent = problem(channels, torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        y = norm_silu(inputs[0], inputs[1], norm)
        found = torch.autograd.grad(y, inputs, cotangent)
    finally:
        torch.set_num_threads(before)
    expected = exact(*inputs, norm)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(found, torch.autograd.grad(expected, inputs, cotangent.double())):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_bfloat16_is_rounded_once() -> None:
    inputs, norm, cotangent = problem(16, torch.bfloat16)
    y = norm_silu(inputs[0], None, norm)
    zero = torch.zeros_like(inputs[1]).requires_grad_()
    expected = exact(inputs[0], zero, inputs[2], inputs[3], norm)
    assert y.dtype == torch.bfloat16
    # The nearest bfloat16 is at most half a spacing, 2⁻⁸ of the value, away.
    assert bool(((y.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-5).all())
    (found,) = torch.autograd.grad(y, inputs[:1], cotangent)
    (gradient,) = torch.autograd.grad(expected, inputs[:1], cotangent.double())
    assert bool(((found.double() - gradient.double()).abs() <= 2**-7 * gradient.double().abs() + 1e-4).all())


def test_any_layout_gives_the_same() -> None:
    inputs, norm, _ = problem(8, torch.float32)
    plain = inputs[0].detach().contiguous().requires_grad_()
    torch.testing.assert_close(norm_silu(plain, None, norm), norm_silu(inputs[0], None, norm))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_training_mode_answers_as_evaluation_does(arch: str) -> None:
    torch.manual_seed(0)
    net = EDMPrecond(8, 1, **{**ARCHITECTURES[arch], **NETWORK, "dropout": 0.0})
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape))
    z, sigma = torch.randn(4, 1, 8, 8), torch.tensor([0.05, 0.3, 1.0, 20.0])
    torch.testing.assert_close(net.train()(z, sigma), net.eval()(z, sigma), rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        low = net.train()(z, sigma)
    assert low.dtype == torch.float32
    torch.testing.assert_close(low, net.eval()(z, sigma), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("resample", ["down", "up"])
@pytest.mark.parametrize("convolve_first", [False, True])
def test_the_wide_filter_is_a_convolution_of_each_channel(resample: str, convolve_first: bool) -> None:
    torch.manual_seed(0)
    layer = Conv2d(3, 5, 3, resample=resample, taps=(1, 3, 3, 1), convolve_first=convolve_first)
    x, f = torch.randn(2, 3, 8, 6), torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8

    def resampled(x: Tensor, margin: int) -> Tensor:
        kernel = f.outer(f).expand(x.shape[1], 1, 4, 4)
        if resample == "down":
            return F.conv2d(x, kernel, None, 2, margin, 1, x.shape[1])
        return F.conv_transpose2d(x, 4 * kernel, None, 2, margin, 0, x.shape[1])

    if convolve_first:
        expected = resampled(F.conv2d(x, layer.weight, layer.bias, padding=2), 0)
    else:
        expected = F.conv2d(resampled(x, 1), layer.weight, layer.bias, padding=1)
    torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


def boxes(count: int) -> ImageSet:
    generator = np.random.default_rng(0)
    return ImageSet(generator.integers(0, 256, (count, 2, 4, 4), dtype=np.uint8))


@pytest.mark.parametrize("chunk", [3, 1024])
def test_the_posterior_mean_is_the_optimal_denoisers(chunk: int) -> None:
    images = boxes(20)
    sigma = torch.tensor([0.05, 0.5, 1.0, 3.0, 80.0])
    z = images.scaled(slice(0, 5)) + sigma.reshape(-1, 1, 1, 1) * torch.randn(5, 2, 4, 4)
    best, fast = optimal(images), PosteriorMean(images, chunk=chunk)
    torch.testing.assert_close(fast(z, sigma), best(z, sigma), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast(z, 2.0), best(z, 2.0), rtol=1e-4, atol=1e-4)


def test_targets_asked_for_ahead_are_the_same_from_any_step_on() -> None:
    images = boxes(20)
    recipe = Recipe(batch=3, p_mean=0.5, target="posterior")
    best = PosteriorMean(images)
    from_0, from_3, one_by_one = (
        batches(images, recipe, start, 0, best, ahead) for start, ahead in ((0, 4), (3, 4), (0, 1))
    )
    expected = [next(from_0) for _ in range(6)]
    for step in range(3, 6):
        assert all(torch.equal(a, b) for a, b in zip(next(from_3)[:3], expected[step][:3]))
    for step in range(6):
        for a, b in zip(next(one_by_one)[:3], expected[step][:3]):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_bfloat16_learns_what_float32_learns() -> None:
    grey = np.linspace(0, 255, 8).astype(np.uint8).reshape(-1, 1, 1, 1)
    images = ImageSet(np.broadcast_to(grey, (8, 2, 4, 4)).copy())

    def losses(precision: str) -> list[float]:
        torch.manual_seed(0)
        net = EDMPrecond(4, 2, **{**ARCHITECTURES["ddpmpp"], **NETWORK, "channel_mult": (1,), "dropout": 0.0})
        recipe = Recipe(images=16 * 40, batch=16, rate=1e-2, warmup=100, precision=precision)  # pyright: ignore
        return [progress.loss for progress in train(Training(net, recipe), images)]

    full, low = losses("float32"), losses("bfloat16")
    assert full != low
    np.testing.assert_allclose(low[:20], full[:20], rtol=0.01)         # later, rounding has grown with every step
    np.testing.assert_allclose(np.mean(low[-10:]), np.mean(full[-10:]), rtol=0.1)
    assert np.mean(low[-10:]) < 0.8 * np.mean(low[:5])
