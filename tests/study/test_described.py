"""Denoisers as the command line names them."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

import fpmc.networks
from fpmc import presets
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.networks.mapfile import load_maps, save_maps
from fpmc.networks.maps import SensitivityMaps
from fpmc.networks.shipped import weights_of
from fpmc.study.methods import PRESETS, parse_method, parse_methods

IMAGES = ImageSet(np.random.default_rng(0).integers(0, 256, (8, 1, 6, 6), dtype=np.uint8))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_by_name(name):
    denoiser = parse_method(name.replace("_", "-").upper()).build(IMAGES)
    assert denoiser(torch.zeros(2, 1, 6, 6), 1.0).shape == (2, 1, 6, 6)


def test_options_reach_the_preset():
    method = parse_method("lukoianov:tau=0.2,rule=official")
    assert dict(method.options) == {"tau": 0.2, "rule": "official"}
    z = torch.randn(2, 1, 6, 6)
    expected = presets.lukoianov(IMAGES, tau=0.2, rule="official")(z, 0.5)
    assert torch.equal(method.build(IMAGES)(z, 0.5), expected)
    assert not torch.equal(parse_method("lukoianov").build(IMAGES)(z, 0.5), expected)


def test_labels_tell_variants_apart():
    labels = [method.title(method.build(IMAGES)) for method in parse_methods(["ls", "ls:schedule=3", "ls:schedule=5"])]
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
        parse_method(text)
    assert named in str(error.value)


@pytest.mark.parametrize("texts", [[], ["ls", "ls"], ["ls", "LS"]])
def test_none_or_twice_is_refused(texts):
    with pytest.raises(InputError):
        parse_methods(texts)


def test_a_network_is_asked_for_by_name_or_file(monkeypatch, tmp_path):
    monkeypatch.setattr(fpmc.networks, "load_network", lambda name: lambda z, sigma: z * 0)
    weights = tmp_path / "net.safetensors"
    weights.write_bytes(b"1")
    method = parse_method(str(weights))
    assert method.loaded is not None
    assert method.title(method.build(None)) == "net"
    shipped = hashlib.sha256(weights_of("fashion-ddpmpp").read_bytes())
    assert parse_method("fashion-ddpmpp").checksum() == shipped.hexdigest()
    before = method.checksum()
    weights.write_bytes(b"2")
    assert before != method.checksum()


def test_a_saved_fpmc_is_asked_for_by_its_folder(tmp_path):
    denoiser = presets.wiener(IMAGES)  # a Gaussian is saved whole, so no images are looked for
    denoiser.save_pretrained(tmp_path / "mine")
    method = parse_method(str(tmp_path / "mine"))
    z = torch.randn(2, 1, 6, 6)
    np.testing.assert_allclose(method.build(None)(z, 0.7), denoiser(z, 0.7), atol=1e-5)
    assert method.checksum() is not None


def test_maps_and_schedules_are_files(tmp_path):
    maps = SensitivityMaps({1.0: torch.rand(6, 6, 6, 6)}, draws={1.0: 1}, errors={1.0: 0.0})
    save_maps(maps, tmp_path / "maps.safetensors")
    method = parse_method(f"pspc_flex:maps={tmp_path / 'maps.safetensors'},schedule=0.4")
    z = torch.randn(2, 1, 6, 6)
    expected = presets.pspc_flex(IMAGES, maps=load_maps(tmp_path / "maps.safetensors"), schedule=0.4)(z, 1.0)
    assert torch.equal(method.build(IMAGES)(z, 1.0), expected)
    assert method.checksum() is not None
    assert parse_method("ls:schedule=3").checksum() is None


def test_maps_that_ship_are_part_of_flex(tmp_path, monkeypatch):
    monkeypatch.setattr("fpmc.study.methods.MAPS", tmp_path)
    checksums = []
    for content in (b"1", b"2"):
        (tmp_path / "fashion-ddpmpp.safetensors").write_bytes(content)
        checksums.append(parse_method("pspc_flex").checksum())
    assert checksums[0] != checksums[1]
