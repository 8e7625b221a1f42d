from __future__ import annotations

import numpy as np
import pytest

from fpmc.data import load_images, store
from fpmc.errors import InputError


@pytest.mark.parametrize("end", ["", ".gz"])
def test_one_file_and_its_labels(make, pixels, tmp_path, end):
    path = make.write_idx(tmp_path / f"some-images-idx3-ubyte{end}", pixels[:, 0])
    images = load_images(path)
    assert np.array_equal(images.pixels.numpy(), pixels[:, :1])
    assert images.labels is None
    make.write_idx(tmp_path / f"some-labels-idx1-ubyte{end}", np.arange(5, dtype=np.uint8))
    assert load_images(path).labels.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("end", ["-idx{}-ubyte", ".idx{}-ubyte", "-idx{}-ubyte.gz"])
def test_folder_of_four(make, pixels, tmp_path, end):
    for prefix, part in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        make.write_idx(tmp_path / f"{prefix}-images{end.format(3)}", pixels[part, 0])
        make.write_idx(tmp_path / f"{prefix}-labels{end.format(1)}", np.arange(5, dtype=np.uint8)[part])
    train, test = load_images(tmp_path), load_images(tmp_path, "test")
    assert np.array_equal(train.pixels.numpy(), pixels[:3, :1])
    assert np.array_equal(test.pixels.numpy(), pixels[3:, :1])
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 2], [3, 4])
    assert (train.ids.tolist(), test.ids.tolist()) == ([0, 1, 2], [3, 4])  # no id in both


def test_folder_lacks_a_file(make, pixels, tmp_path):
    make.write_idx(tmp_path / "train-images-idx3-ubyte", pixels[:, 0])
    with pytest.raises(InputError, match=r"lacks .*train-labels"):
        load_images(tmp_path)
    with pytest.raises(InputError, match="lacks t10k-images"):
        load_images(tmp_path, "test")


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("change", [-10, 10])
def test_too_short_or_too_long(make, pixels, tmp_path, end, change):
    lying = make.write_idx(tmp_path / "a", pixels[:, 0]).read_bytes()
    lying = lying[:change] if change < 0 else lying + bytes(change)
    path = tmp_path / f"x{end}"
    path.write_bytes(make.gzip(lying) if end else lying)
    with pytest.raises(InputError, match=r"'.*x.*': .*(ends early|more than|should have)"):
        load_images(path)


def test_gzip_cut_short(make, pixels, tmp_path):
    path = make.write_idx(tmp_path / "x.gz", pixels[:, 0])
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"x\.gz.*is it whole"):
        load_images(path)


def test_bomb(make, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGE", 2**14)
    path = make.write_idx(tmp_path / "x.gz", np.zeros((100, 64, 64), np.uint8))
    with pytest.raises(InputError, match="decompression bomb"):
        load_images(path)


def test_impossible_header(make, tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(make.gzip(b"\0\0\x08\x03" + b"\xff" * 12))
    with pytest.raises(InputError, match="decompression bomb"):
        load_images(path)
    path.write_bytes(make.gzip(b"\0\0\x08\x03" + b"\xff" * 5))
    with pytest.raises(InputError, match="ends inside its header"):
        load_images(path)


def test_labels_that_do_not_match(make, pixels, tmp_path):
    path = make.write_idx(tmp_path / "train-images-idx3-ubyte", pixels[:, 0])
    labels = make.write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(4, np.uint8))
    for source in (path, tmp_path):
        with pytest.raises(InputError, match="4 labels for 5 images"):
            load_images(source)
    with pytest.raises(InputError, match="is it a file of labels"):
        load_images(labels)
