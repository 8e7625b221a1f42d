"""Denoisers as the command line names them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fpmc.networks
from fpmc import presets
from fpmc.cli.denoisers import PRESETS, parse_spec, parse_specs
from fpmc.errors import InputError
from fpmc.images import ImageSet

IMAGES = ImageSet(np.random.default_rng(0).integers(0, 256, (8, 1, 6, 6), dtype=np.uint8))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_by_name(name):
    denoiser = parse_spec(name.replace("_", "-").upper()).build(IMAGES)
    assert denoiser(torch.zeros(2, 1, 6, 6), 1.0).shape == (2, 1, 6, 6)


def test_options_reach_the_preset():
    spec = parse_spec("lukoianov:tau=0.2,rule=official")
    assert spec.options == {"tau": 0.2, "rule": "official"}
    z = torch.randn(2, 1, 6, 6)
    expected = presets.lukoianov(IMAGES, tau=0.2, rule="official")(z, 0.5)
    assert torch.equal(spec.build(IMAGES)(z, 0.5), expected)
    assert not torch.equal(parse_spec("lukoianov").build(IMAGES)(z, 0.5), expected)


def test_labels_tell_variants_apart():
    labels = [spec.label(spec.build(IMAGES)) for spec in parse_specs(["ls", "ls:schedule=3", "ls:schedule=5"])]
    assert labels == ["LS", "LS schedule=3", "LS schedule=5"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ls:scale=3", "schedule"),
        ("ls:schedule", "ls:key=value"),
        ("optimal:schedule=3", "no options"),
        ("pspc-sqare", "did you mean 'pspc_square'?"),
        ("nowhere.pkl", "nowhere.pkl"),
    ],
)
def test_unknown_names_and_options_are_refused(text, named):
    with pytest.raises(InputError) as error:
        parse_spec(text)
    assert named in str(error.value)


@pytest.mark.parametrize("texts", [[], ["ls", "ls"], ["ls", "LS"]])
def test_none_or_twice_is_refused(texts):
    with pytest.raises(InputError):
        parse_specs(texts)


def test_a_network_is_asked_for_by_name_or_file(monkeypatch, tmp_path):
    monkeypatch.setattr(fpmc.networks, "load_network", lambda name: lambda z, sigma: z * 0, raising=False)
    weights = tmp_path / "net.safetensors"
    weights.write_bytes(b"1")
    spec = parse_spec(str(weights))
    assert spec.network is not None
    assert spec.label(spec.build(None)) == "net"
    before = spec.checksum()
    weights.write_bytes(b"2")
    assert before != spec.checksum()
    assert parse_spec("fashion-ddpmpp").checksum() is None
