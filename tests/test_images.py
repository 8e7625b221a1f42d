from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest
import torch

from fpmc.errors import InputError
from fpmc.images import ImageSet


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (6, 3, 4, 5), dtype=np.uint8)


def test_defaults(pixels):
    images = ImageSet(pixels)
    assert len(images) == 6
    assert images.shape == (3, 4, 5)
    assert images.labels is None
    assert images.ids.tolist() == list(range(6))
    assert images.name == "images"


def test_arrays_tensors_and_strides_agree(pixels):
    last = np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    backwards = pixels[::-1][::-1]
    for given in (pixels, torch.from_numpy(pixels), last, backwards):
        images = ImageSet(given)
        assert images.pixels.is_contiguous()
        assert np.array_equal(images.pixels.numpy(), pixels)


def test_taken_over_without_a_copy_and_without_a_warning(pixels, tmp_path):
    np.save(tmp_path / "x.npy", pixels)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = ImageSet(mapped)
    assert images.pixels.data_ptr() == mapped.ctypes.data
    assert images.subset(slice(2, 4)).pixels.data_ptr() == images.pixels[2:].data_ptr()


def test_frozen_and_replaceable(pixels):
    images = ImageSet(pixels, labels=[0, 1, 0, 1, 0, 1], name="a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        images.name = "b"  # pyright: ignore[reportAttributeAccessIssue]
    renamed = dataclasses.replace(images, name="b")
    assert (renamed.name, renamed.labels.tolist()) == ("b", [0, 1, 0, 1, 0, 1])
    assert "6 images of 3×4×5, 2 classes" in repr(renamed)


def test_scaled_is_between_minus_one_and_one(pixels):
    pixels[0, 0, 0, :2] = 0, 255
    images = ImageSet(pixels)
    scaled = images.scaled(dtype=torch.float64)
    assert scaled[0, 0, 0, :2].tolist() == [-1, 1]
    expected = (pixels.astype(np.float64) - 127.5) / 127.5
    assert np.array_equal(scaled.numpy(), expected)
    assert np.array_equal(images.scaled([4, 1], torch.float64).numpy(), expected[[4, 1]])
    assert images.scaled().dtype == torch.float32
    assert np.array_equal(images.pixels.numpy(), pixels)  # and the bytes are untouched


@pytest.mark.parametrize(
    "index",
    [
        slice(1, None, 2),
        [1, 3, 5],
        range(1, 6, 2),
        np.array([-5, -3, -1]),
        torch.tensor([1, 3, 5], dtype=torch.int32),
        [False, True] * 3,
        torch.tensor([False, True] * 3),
    ],
)
def test_subset_keeps_labels_and_ids(pixels, index):
    odd = ImageSet(pixels, labels=[9, 8, 7, 6, 5, 4], ids=[10, 11, 12, 13, 14, 15], name="n").subset(index)
    assert np.array_equal(odd.pixels.numpy(), pixels[1::2])
    assert odd.labels.tolist() == [8, 6, 4]
    assert odd.ids.tolist() == [11, 13, 15]
    assert odd.name == "n"


@pytest.mark.parametrize("index", [[6], [-7], [0.5], [True, False], 3, [[0], [1]], [], "all"])
def test_wrong_index(pixels, index):
    with pytest.raises(InputError):
        ImageSet(pixels).subset(index)


def test_checksum_sees_pixels_labels_and_shape(pixels):
    images = ImageSet(pixels)
    assert images.checksum() == ImageSet(torch.from_numpy(pixels.copy()), name="other", ids=range(6)).checksum()
    changed = pixels.copy()
    changed[-1, -1, -1, -1] ^= 1
    others = (ImageSet(changed), ImageSet(pixels.reshape(6, 3, 5, 4)), ImageSet(pixels, labels=[0] * 6))
    assert len({images.checksum(), *(other.checksum() for other in others)}) == 4


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.full((1, 1, 2, 2), np.nan), "NaN"),
        (np.full((1, 1, 2, 2), -0.5, np.float32), r"float32 in \[-0.5, -0.5\]"),
        (np.zeros((1, 1, 2, 2), np.int64), "int64"),
        (np.zeros((3, 4, 4), np.uint8), r"\(3, 4, 4\)"),
        (np.zeros((0, 1, 4, 4), np.uint8), r"\(0, 1, 4, 4\)"),
        (np.zeros((2, 0, 4, 4), np.uint8), r"\(2, 0, 4, 4\)"),
        (np.array([object()]), "ndarray"),
        ([[1], [1, 2]], "list"),
        ("cifar10", "str"),
        (None, "NoneType"),
    ],
)
def test_wrong_pixels(given, says):
    with pytest.raises(InputError, match=says):
        ImageSet(given)


@pytest.mark.parametrize("field", ["labels", "ids"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([0] * 5, "5 .* for 6 images"),
        ([0.5] * 6, "float64"),
        ([[0]] * 6, r"\(6, 1\)"),
        ([True] * 6, "bool"),
        (3, "int64"),
    ],
)
def test_wrong_labels_and_ids(pixels, field, given, says):
    with pytest.raises(InputError, match=f"{field} must be one .*{says}"):
        ImageSet(pixels, **{field: given})
