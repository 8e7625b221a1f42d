"""The architecture is EDM's: names, shapes, counts and answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fpmc.errors import InputError
from fpmc.networks.precond import EDMPrecond
from networks.edm_rules import ARCHITECTURES, TINY, golden_call, golden_network, kept

TWO_CLASSES = EDMPrecond(8, 1, 2, model_channels=8, channel_mult=(1,), num_blocks=1).eval()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_names_shapes_and_counts_are_edms(name: str) -> None:
    golden = ARCHITECTURES[name]
    with torch.device("meta"):
        net = EDMPrecond(**golden["config"])
    assert {key: list(value.shape) for key, value in net.state_dict().items()} == golden["state"]
    assert sum(parameter.numel() for parameter in net.parameters()) == golden["parameters"]


@pytest.mark.parametrize("name", [*TINY, "cifar10-32x32-uncond-vp"])
def test_answers_are_edms(name: str) -> None:
    z, sigma, labels, answer = golden_call(name)
    with torch.no_grad():
        x0 = golden_network(name)(z, sigma, labels)
    torch.testing.assert_close(kept(name, x0), answer, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["tiny-vp", "tiny-ve"])
def test_channels_last_and_any_batch_give_the_same(name: str) -> None:
    z, sigma, _, answer = golden_call(name)
    net = golden_network(name).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    with torch.no_grad():
        alone = torch.cat([net(z[i : i + 1], float(sigma[i])) for i in range(len(z))])
    torch.testing.assert_close(alone, answer, rtol=1e-4, atol=1e-5)


def test_dtype_follows_z_and_weights_decide_the_precision() -> None:
    z, sigma, _, answer = golden_call("tiny-vp")
    net = golden_network("tiny-vp")
    with torch.no_grad():
        assert net(z.double(), sigma).dtype == torch.float64
        exact = net.double()(z.double(), sigma.double())
    torch.testing.assert_close(exact.float(), answer, rtol=1e-4, atol=1e-5)


def test_28_pixels_have_three_levels() -> None:
    net = EDMPrecond(28, 1, model_channels=8, channel_mult=(1, 1, 1), num_blocks=1, attn_resolutions=(7,))
    assert net.shape == (1, 28, 28)
    assert net(torch.zeros(2, 1, 28, 28), 1.0).shape == (2, 1, 28, 28)
    assert "7x7_in0" in net.model.dec


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"embedding_type": "other"}, "embedding_type='other'"),
        ({"encoder_type": "skip"}, "encoder_type='skip'"),
        ({"decoder_type": "skip"}, "decoder_type='skip'"),
        ({"resample_filter": (1, 2, 1)}, "resample_filter"),
        ({"channel_mult": (1, 1, 1, 1)}, "28×28"),
        ({"channel_mult": ()}, "channel_mult"),
        ({"model_channels": 9}, "9 channels"),
        ({"model_type": "DhariwalUNet"}, "DhariwalUNet"),
        ({"depth": 3}, "depth"),
    ],
)
def test_settings_that_are_not_built_are_named(settings: dict[str, object], named: str) -> None:
    with pytest.raises(InputError, match=named):
        EDMPrecond(28, 1, **{"model_channels": 8, "channel_mult": (1,), "num_blocks": 1, **settings})


def test_images_and_levels_that_do_not_fit_are_refused() -> None:
    net = EDMPrecond(8, 1, model_channels=8, channel_mult=(1,), num_blocks=1)
    with pytest.raises(InputError, match=r"\(1, 8, 8\); got \(3, 8, 8\)"):
        net(torch.zeros(2, 3, 8, 8), 1.0)
    with pytest.raises(InputError, match="sigma must be a noise level, 1e-06 to 1e\\+06; got 0"):
        net(torch.zeros(2, 1, 8, 8), 0)


@pytest.mark.parametrize("sigma", [-1.0, 0.0, math.nan, 1e-30, math.inf])
@pytest.mark.parametrize("make", [float, torch.tensor, lambda s: torch.tensor([1.0, s])], ids=["float", "0-d", "(B,)"])
def test_what_is_no_noise_level_is_named(sigma: float, make: Callable[[float], float | torch.Tensor]) -> None:
    with pytest.raises(InputError, match=re.escape(f"got {sigma:g}")):
        TWO_CLASSES(torch.zeros(2, 1, 8, 8), make(sigma))


@pytest.mark.parametrize(
    ("z", "sigma", "named"),
    [
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 1.0, "z must be a float tensor .* got Tensor of uint8"),
        ([[0.0]], 1.0, "z must be a float tensor .* got list"),
        (torch.zeros(1, 8, 8), 1.0, r"got shape \(1, 8, 8\); for one image"),
        (torch.zeros(0, 1, 8, 8), 1.0, r"got shape \(0, 1, 8, 8\)"),
        (torch.full((2, 1, 8, 8), math.nan), 1.0, "z holds NaN"),
        (torch.zeros(2, 1, 8, 8), torch.ones(3), r"shape \(3,\) for 2 images"),
        (torch.zeros(2, 1, 8, 8), torch.ones(2, 1), r"shape \(2, 1\)"),
        (torch.zeros(2, 1, 8, 8), "1.0", r"sigma must be a number .* got .1\.0."),
        (torch.zeros(2, 1, 8, 8), None, "sigma must be a number .* got None"),
    ],
)
def test_what_is_no_batch_is_named(z: Any, sigma: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        TWO_CLASSES(z, sigma)


def test_classes_are_numbers_or_one_hot_rows() -> None:
    name = "tiny-vp-grey-cond"
    net = golden_network(name)
    z, sigma, labels, answer = golden_call(name)
    with torch.no_grad():
        torch.testing.assert_close(net(z, sigma, torch.tensor([0, 3, 7, 9])), answer, rtol=1e-4, atol=1e-5)
        assert torch.equal(net(z, sigma, 3), net(z, sigma, torch.eye(10)[3]))
        assert torch.equal(net(z, sigma, 3)[1], net(z, sigma, labels)[1])
        assert torch.equal(net(z, sigma), net(z, sigma, torch.zeros(4, 10)))  # EDM's: no class is all zeros


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        (2, r"classes are 0 … 1; got \[2\]"),
        (torch.tensor([0, -1]), r"classes are 0 … 1; got \[0, -1\]"),
        (torch.tensor([0, 1, 1]), r"2 images .* got shape \(3,\)"),
        (torch.zeros(2, 3), r"got shape \(2, 3\)"),
        (0.5, r"got shape \(\)"),
    ],
)
def test_classes_that_are_not_there_are_named(labels: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        TWO_CLASSES(torch.zeros(2, 1, 8, 8), 1.0, labels)


def test_an_unconditional_network_takes_no_classes() -> None:
    with pytest.raises(InputError, match="knows no classes"):
        golden_network("tiny-vp")(*golden_call("tiny-vp")[:2], 3)
