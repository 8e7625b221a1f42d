"""The architecture is EDM's: names, shapes, counts and answers."""

from __future__ import annotations

import pytest
import torch

from fpmc.errors import InputError
from fpmc.networks.precond import EDMPrecond
from networks.edm_rules import ARCHITECTURES, TINY, golden_call, golden_network, kept


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
    with pytest.raises(InputError, match=r"\(1, 8, 8\), got a batch of \(2, 3, 8, 8\)"):
        net(torch.zeros(2, 3, 8, 8), 1.0)
    with pytest.raises(InputError, match="sigma must be positive, got 0"):
        net(torch.zeros(2, 1, 8, 8), 0)
