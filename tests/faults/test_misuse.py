"""Wrong calls: each ends in one `InputError` that says what was received and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fpmc import gate
from fpmc.data import load_images, pack
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.networks import load_maps, load_network

Z = torch.zeros(2, 3, 8, 8)
BYTES = np.zeros((4, 3, 8, 8), np.uint8)
LONG = "x" * 5000


def image(mode: str = "RGB", size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new(mode, size)


# What is called, the argument, and what the answer must say.
PIXELS: list[tuple[Any, str]] = [
    (np.zeros((4, 8, 8, 3), np.uint8), r"channels are last: give pixels.transpose\(0, 3, 1, 2\)"),
    (np.zeros((4, 28, 28, 1), np.uint8), r"\(4, 28, 28, 1\).*transpose"),
    (torch.zeros(4, 8, 8, 3, dtype=torch.uint8), "channels are last"),
    (np.zeros((3, 8, 8), np.uint8), r"one image give pixels\[None\]"),
    (np.zeros((8, 8, 3), np.uint8), r"pixels.transpose\(2, 0, 1\)\[None\]"),
    (np.zeros((60, 8, 8), np.uint8), r"grey images give pixels\[:, None\]"),
    (np.zeros((8, 8), np.uint8), r"\(8, 8\).*pixels\[None, None\]"),
    (np.zeros((1, 2, 3, 4, 5), np.uint8), r"\(1, 2, 3, 4, 5\)"),
    (np.zeros(5, np.uint8), r"\(5,\)"),
    (np.zeros((0, 3, 8, 8), np.uint8), "empty"),
    (np.random.default_rng(0).random((4, 3, 8, 8)), r"float64 in \[0.*\(x \* 255\).round\(\)"),
    (np.random.default_rng(0).random((4, 3, 8, 8)).astype("f4"), r"float32.*\(x \* 255\)"),
    (np.full((4, 3, 8, 8), 200.0), r"in \[200, 200\].*x.round\(\) as uint8"),
    (np.linspace(-1, 1, 768).reshape(4, 3, 8, 8), r"\(\(x \+ 1\) \* 127.5\)"),
    (torch.linspace(-1, 1, 768).reshape(4, 3, 8, 8).half(), r"float16.*\(\(x \+ 1\) \* 127.5\)"),
    (np.full((4, 3, 8, 8), 1e6), r"1e\+06.*bring them to 0…255"),
    (np.full((4, 3, 8, 8), np.inf), "infinite"),
    (np.full((4, 3, 8, 8), 7), r"int64 in \[7, 7\].*astype\('uint8'\)"),
    (np.full((4, 3, 8, 8), -7, np.int32), r"int32 in \[-7, -7\].*0…255"),
    (np.full((4, 3, 8, 8), 300, np.uint16), r"uint16 in \[300, 300\]"),
    (np.ones((4, 3, 8, 8), bool), r"bool.*\* 255"),
    (np.ones((4, 3, 8, 8), complex), "complex"),
    ([], "float64|empty"),
    ("cifar10", r"load_images\('cifar10'\)"),
    (Path("x.npy"), "Path"),
    (None, "NoneType"),
    (5, r"int64|shape \(\)"),
    ({"images": 1}, "dict"),
    (object(), "object"),
    (b"bytes", "bytes"),
    (np.array(["a"]), "ndarray"),
]


@pytest.mark.parametrize(("pixels", "says"), PIXELS)
def test_pixels(pixels, says):
    refused(lambda: ImageSet(pixels), says)


SET: list[tuple[dict[str, Any], str]] = [
    ({"labels": [0, 1, 2, -1]}, "got -1.*leave the labels out"),
    ({"labels": np.array([2**64 - 1] * 4, np.uint64)}, "18446744073709551615"),
    ({"labels": [2**31] * 4}, "2147483648"),
    ({"labels": [0.5] * 4}, "float64"),
    ({"labels": np.eye(4)}, r"\(4, 4\)"),
    ({"labels": [0, 1]}, "2 labels for 4 images"),
    ({"labels": ["a"] * 4}, "list"),
    ({"labels": "abcd"}, "str"),
    ({"labels": [True] * 4}, "bool"),
    ({"labels": 3}, "whole number per image"),
    ({"ids": np.array([2**64 - 1] * 4, np.uint64)}, "18446744073709551615"),
    ({"ids": [0.5] * 4}, "float64"),
    ({"ids": [1]}, "1 ids for 4 images"),
    ({"name": 5}, "got 5"),
    ({"name": None}, "None"),
]


@pytest.mark.parametrize(("settings", "says"), SET)
def test_labels_ids_and_names(settings, says):
    refused(lambda: ImageSet(BYTES, **settings), says)


LOAD: list[tuple[Any, str]] = [
    (image(), r"load_images\(\[picture\]\)"),
    ([image(), image("RGBA")], r"image 1 has mode 'RGBA'.*convert\('RGB'\)"),
    ([image("P")], "mode 'P'"),
    ([image(), image(size=(9, 9))], r"\(8, 8, 3\).*image 1 is \(9, 9, 3\)"),
    ([image(), "x.png"], r"item 1 .*'x.png'"),
    ([image(), None], "item 1 .*None"),
    ([], "no images"),
    ((), "no images"),
    (None, "got None"),
    (5, "got 5"),
    (object(), "got object"),
    ({"a": 1}, "got dict"),
    (b"fashion", "got b'fashion'"),
    (np.zeros((4, 8, 8, 3)), r"\(x \* 255\)|float64"),
    (np.zeros((8, 8), np.uint8), r"\[None, None\]"),
    (np.zeros((3, 9, 9, 9), np.uint8), r"1 to 4 channels.*\(3, 9, 9, 9\)"),
    (torch.zeros(4, 3, 8, 8), "float32"),
    ("fashoin", "'fashoin'"),
    ("", "''"),
    (LONG, "no images|cannot be read"),
    (".", "no images|of no known kind|folder"),
]


@pytest.mark.parametrize(("source", "says"), LOAD)
def test_load_images(source, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(lambda: load_images(source), says)


OTHERS: list[tuple[Any, str]] = [
    (lambda: load_images("fashion", split="valid"), "'valid'"),
    (lambda: load_images("fashion", split=3), "3"),  # pyright: ignore[reportArgumentType]
    (lambda: load_network({"a": torch.ones(1)}), r"dict of 1 entries: write it with torch.save"),
    (lambda: load_network(None), "None"),  # pyright: ignore[reportArgumentType]
    (lambda: load_network(5), "got 5"),  # pyright: ignore[reportArgumentType]
    (lambda: load_network([torch.ones(1)]), "list"),  # pyright: ignore[reportArgumentType]
    (lambda: load_network("nowhere"), "no network 'nowhere'"),
    (lambda: load_maps("nowhere"), "no maps 'nowhere'"),
    (lambda: load_maps(LONG), "no maps 'xxx"),
    (lambda: load_maps(None), "got None"),  # pyright: ignore[reportArgumentType]
    (lambda: load_network(LONG), "no network 'xxx"),
    (lambda: load_network("a\0b"), "no network"),
    (lambda: load_images("a\0b"), "no images"),
    (lambda: pack(ImageSet(BYTES), "x.tar"), "something.zip"),
    (lambda: pack(None, "x.zip"), "None"),  # pyright: ignore[reportArgumentType]
    (lambda: ImageSet(BYTES).subset([9]), "9 is outside"),
    (lambda: ImageSet(BYTES).subset("all"), "index"),
    (lambda: ImageSet(BYTES).scaled([0.5]), "float"),
]


@pytest.mark.parametrize(("call", "says"), OTHERS)
def test_other_calls(call, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(call, says)


BATCH: list[tuple[Any, str]] = [
    (np.zeros((2, 3, 8, 8), "f4"), r"ndarray of float32, shape \(2, 3, 8, 8\); make it with torch.as_tensor"),
    ([[0.0]], "list.*torch.as_tensor"),
    (None, "None"),
    ("z", "'z'"),
    (1.0, "got 1.0"),
    (ImageSet(BYTES), "ImageSet"),
    (Z.byte(), r"uint8.*\(z.float\(\) − 127.5\) / 127.5"),
    (Z.long(), r"int64.*z.float\(\)"),
    (Z.bool(), "bool"),
    (Z.to(torch.complex64), "complex64"),
    (Z[0], r"\(3, 8, 8\); for one image give z\[None\]"),
    (Z[0, 0], r"\(8, 8\); for one grey image give z\[None, None\]"),
    (Z[None], r"\(1, 2, 3, 8, 8\)"),
    (Z[:0], "at least one image"),
    (torch.zeros(()), r"shape \(\)"),
    (torch.zeros(2, 8, 8, 3), r"channels are last: give z.permute\(0, 3, 1, 2\)"),
    (torch.zeros(2, 3, 9, 9), r"\(3, 8, 8\); got \(3, 9, 9\); resize"),
    (torch.zeros(2, 1, 8, 8), r"got \(1, 8, 8\)"),
    (Z * torch.nan, "NaN"),
    (Z + torch.inf, "infinite"),
]


@pytest.mark.parametrize(("z", "says"), BATCH)
def test_batches(z, says):
    refused(lambda: gate.check_batch(z, (3, 8, 8)), says)


SIGMA: list[tuple[Any, str]] = [
    (0, "got 0"), (0.0, "got 0"), (-1, "got -1"), (-1e-9, "got -1e-09"), (1e-30, "1e-06 to 1e.06; got 1e-30"),
    (1e30, r"got 1e\+30"), (float("nan"), "got nan"), (float("inf"), "got inf"), ("1", "got '1'"), (None, "None"),
    (True, "bool|True"), ([], "empty"), ([0.5, "x"], "list"), (torch.tensor(-1.0), "got -1"), (1j, "complex|1j"),
    (torch.tensor([1.0, torch.nan]), "got nan"), (torch.tensor([1.0, 0.0]), "got 0"), (torch.zeros(0), "empty"),
    (torch.ones(3), r"shape \(3,\) for 2 images"), (torch.ones(2, 1), r"shape \(2, 1\)"), ({}, "dict"),
    (torch.ones(2).bool(), "bool"), (np.array([1.0, -2.0]), "got -2"), (np.float64(0), "got 0"),
    (lambda: 1, "function"), (10**400, "got 1000.*…"),
]


@pytest.mark.parametrize(("sigma", "says"), SIGMA)
def test_noise_levels(sigma, says):
    refused(lambda: gate.check_sigma(sigma, 2), says)


SEEDS: list[tuple[Any, str]] = [
    (4, r"got 4; give seeds=range\(4\) for 4 samples, \[4\] for one"), ("0-3", r"range\(4\); got the text '0-3'"),
    ([0.7], "got 0.7"), ([0, 1.0], "got 1.0"), ([True], "got True"), (["0"], "got '0'"), ([None], "got None"),
    ([-1], "got -1"), ([2**32], "4294967296"), ([], "no seeds"), (range(0), "no seeds"), ([3, 3], "3 is given twice"),
    (None, "got None"), (0.5, "got 0.5"), (b"ab", "text"), (0, r"range\(16\)"), (torch.tensor(4), "seeds=range"),
    (torch.tensor([0.5]), "0.5"), (np.array([0.5]), "0.5"), ([[0, 1]], "list"), ({"a": 1}, "'a'"),
    (np.int64(3), r"range\(3\)"),
]


@pytest.mark.parametrize(("seeds", "says"), SEEDS)
def test_seeds(seeds, says):
    refused(lambda: gate.check_seeds(seeds), says)


STEPS: list[tuple[Any, str]] = [
    (0, "got 0"), (-1, "got -1"), (1.5, "got 1.5"), (18.0, "got 18.0"), ("18", "got '18'"), (None, "None"),
    (True, "True"), (10**9, "1000000000"), ([18], "list"), (torch.tensor(1.5), "1.5"), (np.float32(2), "2.0"),
    (LONG, "…"),
]


@pytest.mark.parametrize(("steps", "says"), STEPS)
def test_steps(steps, says):
    refused(lambda: gate.check_steps(steps), rf"steps must be .*{says}")


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "", "cpu:x", "xpu", 5.5, object(), "tpu", LONG])
def test_devices(device):
    refused(lambda: gate.check_device(device), "device .*use cpu")


def test_what_is_right_passes():
    assert gate.check_batch(Z, (3, 8, 8)) is Z
    assert gate.check_batch(Z.double()).dtype == torch.float64
    assert gate.check_sigma(2) == 2.0
    assert gate.check_sigma(np.float32(0.5), 2) == 0.5
    assert gate.check_sigma(torch.tensor(3.0), 2) == 3.0
    each = torch.tensor([1.0, 2.0])
    assert gate.check_sigma(each, 2) is each
    assert torch.equal(gate.check_sigma([1.0, 2.0], 2), each)
    for seeds in (range(3), np.arange(3), torch.arange(3)):
        assert gate.check_seeds(seeds) == (0, 1, 2)
    assert gate.check_seeds(iter([5, 2])) == (5, 2)
    assert gate.check_steps(np.int64(18)) == 18
    assert gate.check_device("cpu") == torch.device("cpu")


def test_arrays_and_pictures_are_taken(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 3, 6, 8), dtype=np.uint8)
    last = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))
    pictures = [Image.fromarray(each) for each in last]
    for given in (pixels, torch.from_numpy(pixels), last, torch.from_numpy(last), pictures, tuple(last), list(pixels)):
        assert torch.equal(load_images(given).pixels, torch.from_numpy(pixels))
    grey = [Image.fromarray(each) for each in pixels[:, 0]]
    assert torch.equal(load_images(grey).pixels, torch.from_numpy(pixels[:, :1]))
    kept = ImageSet(pixels)
    assert load_images(kept) is kept
    assert load_images(pack(pictures, tmp_path / "x.zip")).checksum() == kept.checksum()


def test_these_are_more_than_a_hundred():
    assert sum(map(len, (PIXELS, SET, LOAD, OTHERS, BATCH, SIGMA, SEEDS, STEPS))) >= 100


def refused(call: Any, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 600
