"""Readers give what the libraries that wrote the files would give, and keep to their bounds."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from faults.formats import FORMATS, SETTINGS, edm_zip, network
from fpmc.data import load_images
from fpmc.errors import InputError
from fpmc.networks import load_network
from fpmc.networks.precond import EDMPrecond
from fpmc.networks.training import Recipe, Training
from fpmc.readers.arrays import read_npy
from fpmc.readers.tensors import read_safetensors
from fpmc.readers.text import parse_json, read_json, read_lines
from fpmc.readers.torches import read_torch, write_torch

TYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)


def content() -> dict[str, object]:
    base = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {str(dtype): torch.tensor([0, 1, 2]).to(dtype) for dtype in TYPES}
    views = {"view": base[1].T, "same": base[1].T, "scalar": torch.tensor(2.5), "none": torch.zeros(0, 3)}
    plain = {"a": [1, 2.5, None, True, "ä"], "b": (1, (2, 3)), 3: {"x": {}}, 2.5: b"bytes", "big": 2**70, "neg": -1}
    last = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return {**tensors, **views, **plain, "parameter": torch.nn.Parameter(base), "last": last}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("zipped", [True, False])
def test_files_of_torch_are_what_torch_reads(zipped, tmp_path):
    path = tmp_path / "x.pt"
    torch.save(content(), path, _use_new_zipfile_serialization=zipped)
    assert same(read_torch(path), torch.load(path, weights_only=True))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_other_protocols_of_torch(protocol, tmp_path):
    given = content()
    torch.save(given, tmp_path / "x.pt", pickle_protocol=protocol)
    assert same(read_torch(tmp_path / "x.pt"), given)


def test_a_training_checkpoint_is_what_torch_reads(tmp_path):
    training = Training(EDMPrecond(**SETTINGS), Recipe())
    sum(parameter.sum() for parameter in training.net.parameters()).backward()
    training.optimizer.step()
    training.loss = 0.5                                 # NaN before the first step, which equals nothing
    training.save(tmp_path / "checkpoint.pt")
    assert same(read_torch(tmp_path / "checkpoint.pt"), dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)))


def test_a_flipped_bit_in_a_torch_file_is_noticed(tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "x.pt")
    whole = (tmp_path / "x.pt").read_bytes()
    at = whole.index(bytes(4000)) + 2000
    (tmp_path / "x.pt").write_bytes(whole[:at] + b"\1" + whole[at + 1 :])
    with pytest.raises(InputError, match=r"x\.pt.*CRC"):
        read_torch(tmp_path / "x.pt")


def test_safetensors_are_what_safetensors_reads(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = {str(dtype): torch.tensor([[0, 1, 2]]).to(dtype) for dtype in TYPES}
    tensors |= {"scalar": torch.tensor(1.5), "none": torch.zeros(0, 3), "ä": torch.rand(3, 4)}
    save_file(tensors, path, {"key": "value", "config": json.dumps({"a": [1]})})
    found = read_safetensors(path)
    assert found.metadata == {"key": "value", "config": '{"a": [1]}'}
    assert found.config("config") == {"a": [1]}
    assert found.config("absent") is None
    expected = load_file(path)
    assert found.tensors.keys() == expected.keys()
    assert all(same(found.tensors[name], expected[name]) for name in expected)
    with pytest.raises(InputError, match="'scalar' is a single number"):
        read_safetensors(path, least_dimensions=1)


@pytest.mark.parametrize("dtype", ["?", "u1", "<i2", ">i4", "<i8", "<f2", "<f4", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3, 4)])
@pytest.mark.parametrize("mapped", [True, False])
def test_arrays_are_what_numpy_reads(dtype, order, shape, mapped, tmp_path):
    array = np.asarray(np.arange(np.prod(shape)).reshape(shape), dtype=dtype, order=order)  # pyright: ignore
    np.save(tmp_path / "x.npy", array)
    found = read_npy(tmp_path / "x.npy", mapped=mapped)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


def test_json_has_bounds(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"a": [[[1]]], "b": "[[[[" + '\\"{'}))
    assert read_json(path, max_depth=4) == {"a": [[[1]]], "b": '[[[[\\"{'}
    with pytest.raises(InputError, match="nested more than 3"):
        read_json(path, max_depth=3)
    with pytest.raises(InputError, match=r"x\.json.* has .* bytes; at most 10"):
        read_json(path, max_bytes=10)
    with pytest.raises(InputError, match=r"must hold a list \[…\]; it holds dict"):
        read_json(path, kind=list)
    with pytest.raises(InputError, match="key 'a' twice"):
        parse_json('{"b": {"a": 1, "c": 2, "a": 3}}')
    with pytest.raises(InputError, match=r"x\.json.*No such file"):
        read_json(tmp_path / "absent" / "x.json")


def test_a_damaged_line_is_numbered(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(InputError, match=r"metrics.jsonl': line 2 is damaged: .*delete that line"):
        read_lines(tmp_path / "metrics.jsonl")


def test_reading_edm_pickles_prints_nothing(tmp_path):
    (tmp_path / "net.pkl").write_bytes(FORMATS["EDM pickle"].make())
    code = f"from fpmc.networks import load_network; load_network({str(tmp_path / 'net.pkl')!r})"
    done = subprocess.run([sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, check=True)
    assert "TypedStorage" not in done.stdout + done.stderr
    assert "fpmc" not in done.stderr


def test_networks_are_the_same_from_every_format(tmp_path):
    for kind in ("EDM pickle", "torch", "torch, legacy", "safetensors network"):
        path = tmp_path / FORMATS[kind].file
        path.write_bytes(FORMATS[kind].make())
        found, given = load_network(path).state_dict(), network().state_dict()  # pyright: ignore
        assert found.keys() == given.keys()
        assert all(torch.equal(found[name], given[name]) for name in given)


def test_a_damaged_name_does_not_drop_the_labels(tmp_path):
    whole = edm_zip()
    assert load_images(write(tmp_path / "x.zip", whole)).labels is not None
    at = whole.rindex(b"dataset.json")  # in the directory at the end
    for position in range(at, at + 12):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        with pytest.raises(InputError, match=r"x\.zip"):
            load_images(write(tmp_path / "x.zip", bytes(damaged)))


def test_an_animation_is_not_taken_for_its_first_frame(tmp_path):
    from PIL import Image

    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for name in ("a.png", "a.webp"):
        folder = tmp_path / name[2:]
        folder.mkdir()
        frames[0].save(folder / name, save_all=True, append_images=frames[1:], lossless=True)
        with pytest.raises(InputError, match=rf"'{name}' is an animation"):
            load_images(folder)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"block_out_channels": [2**20, 2**20]}, "parameters and its safetensors have"),
        ({"block_out_channels": [32] * 10_000}, "block_out_channels"),
        ({"layers_per_block": 10**9}, "layers_per_block 1000000000"),
        ({"block_out_channels": "many"}, "block_out_channels many"),
        ({"down_block_types": ["Nothing"] * 2}, "UNet2DModel"),
        ({"sample_size": "x"}, "sample_size|UNet2DModel"),
        ({"in_channels": -3}, "UNet2DModel|in_channels"),
    ],
)
def test_diffusers_settings_beyond_their_weights(settings, says, tmp_path):
    unet = pytest.importorskip("diffusers").UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(32, 32), layers_per_block=1,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2,
    )
    unet.save_pretrained(tmp_path / "unet")
    assert load_network(tmp_path / "unet").shape == (1, 8, 8)  # pyright: ignore
    path = tmp_path / "unet" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    with pytest.raises(InputError, match=rf"unet'.*({says})"):
        load_network(tmp_path / "unet")


def test_compressed_torch_files_are_bombs(tmp_path):
    torch.save({"a": torch.zeros(10**6)}, tmp_path / "x.pt")
    with zipfile.ZipFile(tmp_path / "x.pt") as old:
        members = {name: old.read(name) for name in old.namelist()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(InputError, match=r"x\.pt.*compressed"):
        read_torch(write(tmp_path / "x.pt", file.getvalue()))


def write(path, content):
    path.write_bytes(content)
    return path


def test_the_same_value_gives_the_same_bytes_whoever_made_its_names(tmp_path):
    momenta = {"step": torch.ones(2), "betas": [0.9, 0.999]}
    write_torch(tmp_path / "a.pt", {"step": 1, "state": {0: momenta}})
    other = {"".join(["st", "ep"]): torch.ones(2), "betas": [0.9, 0.999]}      # equal, but not the same string
    write_torch(tmp_path / "b.pt", {"step": 1, "state": {0: other}})
    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "b.pt").read_bytes()
