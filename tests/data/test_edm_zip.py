from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from fpmc.data import load_images
from fpmc.errors import InputError


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("labels", [[3, 1, 4, 1, 5], None, "absent"])
def test_with_and_without_labels(make, pixels, tmp_path, channels, labels):
    path = make.write_zip(tmp_path / "set.zip", make.edm(pixels[:, :channels], labels))
    images = load_images(path)
    assert np.array_equal(images.pixels.numpy(), pixels[:, :channels])
    assert (None if images.labels is None else images.labels.tolist()) == (labels if isinstance(labels, list) else None)
    assert images.ids.tolist() == [0, 1, 2, 3, 4]
    assert images.name == "set"


def test_order_is_the_names_and_strangers_are_passed_over(make, pixels, tmp_path):
    names = ["b/1.png", "a/2.png", "a/10.png", "__MACOSX/a/2.png", "a/._2.png", "README.txt", "c/"]
    files = dict(zip(names, [*map(make.png, pixels), b"hello", b""]))
    files["__MACOSX/a/2.png"] = files["a/._2.png"] = b"not an image"
    images = load_images(make.write_zip(tmp_path / "x.zip", files, zipfile.ZIP_DEFLATED))
    assert np.array_equal(images.pixels.numpy(), pixels[[2, 1, 0]])


def test_jpeg(tmp_path, make):
    data = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 10, 10)).save(data, "JPEG")
    images = load_images(make.write_zip(tmp_path / "x.zip", {"a.jpg": data.getvalue()}))
    assert images.shape == (3, 8, 8)
    assert abs(int(images.pixels[0, 0, 4, 4]) - 200) < 5


@pytest.mark.parametrize("name", ["../evil.png", "a/../../evil.png", "/etc/evil.png", "a\\..\\evil.png", "C:/evil.png"])
def test_path_traversal(make, pixels, tmp_path, name):
    path = make.write_zip(tmp_path / "x.zip", {"fine.png": make.png(pixels[0]), name: make.png(pixels[1])})
    with pytest.raises(InputError, match="unsafe path"):
        load_images(path)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["x.zip"]


def test_bomb_of_declared_bytes(make, tmp_path):
    path = make.write_zip(tmp_path / "x.zip", {"a.png": bytes(129 * 2**20)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match="declares 135,266,304 bytes"):
        load_images(path)


def test_bomb_of_pixels(make, tmp_path):
    huge = make.raw_png(60_000, 60_000, 8, 0, bytes(1000))
    with pytest.raises(InputError, match=r"too many pixels .*3600000000"):
        load_images(make.write_zip(tmp_path / "x.zip", {"a.png": huge}))
    large = make.raw_png(5000, 5000, 8, 0, bytes(5001 * 5000))  # below Pillow's own limit
    with pytest.raises(InputError, match="5000×5000 pixels"):
        load_images(make.write_zip(tmp_path / "x.zip", {"a.png": large}))


def test_more_bytes_than_declared(make, pixels, tmp_path):
    path = make.write_zip(tmp_path / "x.zip", {"a.png": bytes(10_000)}, zipfile.ZIP_DEFLATED)
    raw = path.read_bytes()
    path.write_bytes(raw.replace((10_000).to_bytes(4, "little"), (50).to_bytes(4, "little")))
    with pytest.raises(InputError, match=r"x\.zip"):
        load_images(path)


def test_truncated_or_damaged(make, pixels, tmp_path):
    path = make.write_zip(tmp_path / "x.zip", make.edm(pixels))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(InputError, match=r"x\.zip.*not a zip file.*is it whole"):
        load_images(path)
    path.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(InputError, match=r"x\.zip.*CRC"):
        load_images(path)


def test_encrypted(make, pixels, tmp_path):
    path = make.write_zip(tmp_path / "x.zip", {"a.png": make.png(pixels[0])})
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(InputError, match="encrypted"):
        load_images(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_files_of_one_name(make, pixels, tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.png", make.png(pixels[0]))
        archive.writestr("a.png", make.png(pixels[1]))
    with pytest.raises(InputError, match="two files of one name"):
        load_images(tmp_path / "x.zip")


@pytest.mark.parametrize("files", [{}, {"notes.txt": b"hello"}])
def test_no_images(make, tmp_path, files):
    with pytest.raises(InputError, match="no images"):
        load_images(make.write_zip(tmp_path / "x.zip", {"dataset.json": b"{}", **files}))


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([["img0.png", 0]], "1 images without a label"),
        ([["img0.png", 0], ["img1.png", 1], ["img2.png", 1]], "1 labels without an image.*img2.png"),
        ([["img0.png", 0], ["img1.png", 1.5]], "1.5"),
        ([["img0.png", 0], ["img1.png", [0, 1]]], "whole numbers"),
        ([["img0.png", 0], ["img1.png", -1]], "-1"),
        ([["img0.png", 0], ["img1.png", True]], "True"),
        ([["img0.png", 0], ["img1.png", 2**70]], "1180591620717411303424"),
        ([0, 1], "dataset.json is not"),
        ([[["img0.png"], 0]], "dataset.json is not"),
        ([[7, 0], ["img0.png", 0], ["img1.png", 0], ["img2.png", 0]], "does not match"),
    ],
)
def test_labels_that_do_not_match(make, pixels, tmp_path, labels, says):
    files = {f"img{i}.png": make.png(pixels[i]) for i in range(2)}
    files["dataset.json"] = json.dumps({"labels": labels}).encode()
    with pytest.raises(InputError, match=says):
        load_images(make.write_zip(tmp_path / "x.zip", files))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"{}", b"\xff\xfe\x00", b"[" * 100_000])
def test_broken_dataset_json(make, pixels, tmp_path, text):
    with pytest.raises(InputError, match=r"dataset.json is not"):
        load_images(make.write_zip(tmp_path / "x.zip", {"a.png": make.png(pixels[0]), "dataset.json": text}))


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "1", "I;16"])
def test_wrong_mode(make, tmp_path, mode):
    data = make.encode(Image.new("L", (4, 4)).convert("L").convert(mode) if mode != "I;16" else Image.new(mode, (4, 4)))
    with pytest.raises(InputError, match=r"'a/b\.png' is a .* image \(mode .*8-bit grey and RGB"):
        load_images(make.write_zip(tmp_path / "x.zip", {"a/b.png": data}))


def test_sixteen_bit_colour_and_transparent_colour(make, tmp_path):
    deep = make.raw_png(2, 2, 16, 2, bytes(2 * (1 + 12)))
    with pytest.raises(InputError, match="16-bit"):
        load_images(make.write_zip(tmp_path / "x.zip", {"a.png": deep}))
    keyed = make.encode(Image.new("RGB", (4, 4)), transparency=(0, 0, 0))
    with pytest.raises(InputError, match="transparency"):
        load_images(make.write_zip(tmp_path / "x.zip", {"a.png": keyed}))


def test_ragged(make, pixels, tmp_path):
    files = {"a.png": make.png(pixels[0]), "b.png": make.png(pixels[1]), "c.png": make.png(pixels[2, :, :5])}
    with pytest.raises(InputError, match=r"'a\.png' is 3×6×8, 'c\.png' is 3×5×8.*fpmc data pack"):
        load_images(make.write_zip(tmp_path / "x.zip", files))


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\x89PNG\r\n\x1a\n"])
def test_not_an_image(make, tmp_path, data):
    with pytest.raises(InputError, match=r"'a\.png' cannot be decoded"):
        load_images(make.write_zip(tmp_path / "x.zip", {"a.png": data}))
