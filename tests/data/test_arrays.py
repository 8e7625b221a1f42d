from __future__ import annotations

import numpy as np
import pytest

from fpmc.data import load_images, store
from fpmc.errors import InputError


def nhwc(pixels):
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", ["npy", "npz", "compressed"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "nhw", "fortran"])
def test_layouts(pixels, tmp_path, monkeypatch, cache, large, kind, layout):
    if large:
        monkeypatch.setattr(store, "LARGE", 0)
    given = {"nchw": pixels, "nhwc": nhwc(pixels), "nhw": pixels[:, 0], "fortran": np.asfortranarray(pixels)}[layout]
    expected = pixels[:, :1] if layout == "nhw" else pixels
    path = tmp_path / f"x.{kind[:3]}"
    {"npy": np.save, "npz": np.savez, "compressed": np.savez_compressed}[kind](path.open("wb"), given)
    if layout == "fortran" and kind != "npy":
        with pytest.raises(InputError, match="Fortran"):
            load_images(path)
        return
    images = load_images(path)
    assert np.array_equal(images.pixels.numpy(), expected)
    as_it_lies = kind == "npy" and layout in ("nchw", "nhw")
    assert (cache / "decoded").exists() == (large and not as_it_lies)


@pytest.mark.parametrize(("images", "labels"), [("images", "labels"), ("x", "y"), ("arr_0", "labels")])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, ">i4"])
def test_npz_keys(pixels, tmp_path, images, labels, dtype):
    np.savez(tmp_path / "x.npz", **{images: pixels, labels: np.array([4, 3, 2, 1, 0], dtype)})
    loaded = load_images(tmp_path / "x.npz")
    assert np.array_equal(loaded.pixels.numpy(), pixels)
    assert loaded.labels.tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.full((2, 1, 4, 4), np.nan, np.float32), "uint8 .*float32"),
        (np.zeros((2, 1, 4, 4), np.int16), "int16"),
        (np.zeros((2, 9, 9, 9), np.uint8), r"\(2, 9, 9, 9\)"),
        (np.zeros((28, 28, 3), np.uint8), r"\(28, 28, 3\)"),
        (np.zeros((28, 28), np.uint8), r"\(28, 28\)"),
        (np.zeros((0, 3, 8, 8), np.uint8), r"\(0, 3, 8, 8\)"),
        (np.uint8(3), r"\(\)"),
    ],
)
@pytest.mark.parametrize("save", [np.save, np.savez])
def test_wrong_arrays(tmp_path, array, says, save):
    path = tmp_path / ("x.npy" if save is np.save else "x.npz")
    save(path, array)
    with pytest.raises(InputError, match=rf"x\.np[yz].*{says}"):
        load_images(path)


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_objects_are_never_unpickled(tmp_path, save):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("fired").touch, ())

    path = tmp_path / ("x.npy" if save is np.save else "x.npz")
    array = np.empty(1, object)
    array[0] = Bomb()
    save(path, array)
    with pytest.raises(InputError):
        load_images(path)
    assert not (tmp_path / "fired").exists()


def test_npz_without_images(pixels, tmp_path):
    np.savez(tmp_path / "x.npz", pictures=pixels, y=np.zeros(5, int))
    with pytest.raises(InputError, match=r"images, x, arr_0; it has pictures, y"):
        load_images(tmp_path / "x.npz")


@pytest.mark.parametrize("labels", [np.zeros(4, int), np.zeros(5), np.zeros((5, 2), int), np.array(["a"] * 5)])
def test_npz_labels_that_do_not_match(pixels, tmp_path, labels):
    np.savez(tmp_path / "x.npz", images=pixels, labels=labels)
    with pytest.raises(InputError, match="labels"):
        load_images(tmp_path / "x.npz")


@pytest.mark.parametrize("keep", [8, 60, -1])
def test_truncated(pixels, tmp_path, keep):
    np.save(tmp_path / "x.npy", pixels)
    np.savez(tmp_path / "x.npz", pixels)
    for path in (tmp_path / "x.npy", tmp_path / "x.npz"):
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(InputError, match=path.name):
            load_images(path)


def test_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGE", 2**14)
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((100, 1, 64, 64), np.uint8))
    with pytest.raises(InputError, match="decompression bomb"):
        load_images(tmp_path / "x.npz")


def test_header_that_promises_more_than_there_is(make, pixels, tmp_path):
    np.save(tmp_path / "x.npy", pixels)
    lying = (tmp_path / "x.npy").read_bytes().replace(b"(5, 3, 6, 8)", b"(9, 3, 6, 8)")
    with pytest.raises(InputError, match="ends early: 720 of 1,296"):
        load_images(make.write_zip(tmp_path / "x.npz", {"images.npy": lying}))


def test_header_that_is_no_python_text(make, pixels, tmp_path):
    np.save(tmp_path / "x.npy", pixels)
    raw = (tmp_path / "x.npy").read_bytes()
    broken = raw[:69] + bytes(3) + raw[72:]
    (tmp_path / "x.npy").write_bytes(broken)
    make.write_zip(tmp_path / "x.npz", {"images.npy": broken})
    for path in (tmp_path / "x.npy", tmp_path / "x.npz"):
        with pytest.raises(InputError, match="not a plain array"):
            load_images(path)
