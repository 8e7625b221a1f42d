from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from fpmc.data import load_images, pack
from fpmc.errors import InputError
from fpmc.images import ImageSet


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("labels", [None, [3, 1, 4, 1, 5]])
def test_what_is_packed_is_read_back(pixels, tmp_path, channels, labels):
    images = ImageSet(pixels[:, :channels], labels)
    path = pack(images, tmp_path / "deep" / "x.zip")
    assert load_images(path).checksum() == images.checksum()


def test_the_layout_is_edm_s(pixels, tmp_path):
    many = ImageSet(np.zeros((1002, 1, 1, 1), np.uint8), np.arange(1002) % 7)
    with zipfile.ZipFile(pack(many, tmp_path / "x.zip")) as archive:
        names = archive.namelist()
        assert names[0] == "00000/img00000000.png"
        assert names[1001] == "00001/img00001001.png"
        assert json.loads(archive.read("dataset.json"))["labels"][1001] == ["00001/img00001001.png", 0]
        assert all(info.compress_type == zipfile.ZIP_STORED for info in archive.infolist())
    with zipfile.ZipFile(pack(ImageSet(pixels), tmp_path / "y.zip")) as archive:
        assert json.loads(archive.read("dataset.json")) == {"labels": None}
        with archive.open("00000/img00000000.png") as file:
            assert Image.open(file).mode == "RGB"


def test_equal_images_give_equal_bytes(pixels, tmp_path):
    first, second = (pack(ImageSet(pixels), tmp_path / name).read_bytes() for name in ("a.zip", "b.zip"))
    assert first == second


def test_from_any_source(make, pixels, tmp_path):
    np.save(tmp_path / "x.npy", pixels)
    make.write_zip(tmp_path / "x.zip", make.edm(pixels, [1, 2, 3, 4, 5]))
    for name, labels in (("x.npy", None), ("x.zip", [1, 2, 3, 4, 5])):
        packed = load_images(pack(tmp_path / name, tmp_path / "out.zip"))
        assert packed.checksum() == ImageSet(pixels, labels).checksum()
    pack(tmp_path / "x.zip", tmp_path / "x.zip", crop=6)  # over itself
    assert load_images(tmp_path / "x.zip").shape == (3, 6, 6)
    test = pack("fashion", tmp_path / "f.zip", split="test")
    assert load_images(test).checksum() == load_images("fashion", "test").checksum()


def test_crop_is_centred(pixels, tmp_path):
    cropped = load_images(pack(ImageSet(pixels), tmp_path / "x.zip", crop=(4, 2)))
    assert np.array_equal(cropped.pixels.numpy(), pixels[:, :, 1:5, 3:5])
    square = load_images(pack(ImageSet(pixels), tmp_path / "x.zip", crop="square"))
    assert np.array_equal(square.pixels.numpy(), pixels[:, :, :, 1:7])


def test_resize(pixels, tmp_path):
    same = load_images(pack(ImageSet(pixels), tmp_path / "x.zip", resize=(6, 8)))
    assert np.array_equal(same.pixels.numpy(), pixels)
    flat = ImageSet(np.full((2, 3, 6, 8), 77, np.uint8))
    resized = load_images(pack(flat, tmp_path / "x.zip", resize=(9, 4)))
    assert resized.shape == (3, 9, 4)
    assert (resized.pixels == 77).all()
    ramp = ImageSet(np.broadcast_to(np.arange(0, 256, 4, dtype=np.uint8), (1, 1, 64, 64)))
    halved = load_images(pack(ramp, tmp_path / "x.zip", crop=32, resize=16)).pixels[0, 0].numpy().astype(float)
    assert np.allclose(halved[8, 2:14], 66 + 8 * np.arange(2, 14), atol=1.5)  # crop first: columns 16 to 47


def test_ragged_pictures_are_made_alike(make, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, (height, width) in enumerate([(10, 20), (30, 20), (16, 16)]):
        (folder / f"{i}.png").write_bytes(make.png(np.full((3, height, width), 10 * i, np.uint8)))
    with pytest.raises(InputError, match=r"image 1 of 'photos' is RGB 30×20, the first is RGB 10×20"):
        pack(folder, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()
    images = load_images(pack(folder, tmp_path / "x.zip", crop="square", resize=8))
    assert images.pixels[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert images.shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resize": 0}, "resize must be .*got 0"),
        ({"resize": (4, 4, 4)}, "resize must be"),
        ({"resize": 2.5}, "resize must be .*got 2.5"),
        ({"resize": 10**6}, "1 to 4096"),
        ({"crop": "circle"}, "crop must be .*circle"),
        ({"crop": (7, 8)}, "cannot crop 7×8 out of an image of 6×8"),
        ({"split": "valid"}, "split must be"),
    ],
)
def test_wrong_options(pixels, tmp_path, options, says):
    np.save(tmp_path / "x.npy", pixels)
    with pytest.raises(InputError, match=says):
        pack(tmp_path / "x.npy", tmp_path / "out.zip", **options)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


def test_wrong_sets(tmp_path):
    with pytest.raises(InputError, match=r"something.zip"):
        pack("fashion", tmp_path / "x.tar")
    with pytest.raises(InputError, match="1 or 3 channels; these have 2"):
        pack(ImageSet(np.zeros((1, 2, 4, 4), np.uint8)), tmp_path / "x.zip")
    assert list(tmp_path.iterdir()) == []
