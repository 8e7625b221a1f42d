from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fpmc.data import fashion, load_images
from fpmc.errors import InputError


@pytest.mark.parametrize(("split", "count", "first"), [("train", 1200, 0), ("test", 200, 60_000)])
def test_fashion_is_balanced_and_part_of_the_whole(split, count, first):
    images = load_images("fashion", split)
    assert images.shape == (1, 28, 28)
    assert images.name == "fashion"
    assert images.labels.bincount().tolist() == [count] * 10
    assert (images.ids.diff() > 0).all()
    assert images.ids[0] == first


def test_fashion_splits_share_no_id_and_no_image():
    train, test = load_images("fashion"), load_images("fashion", "test")
    assert not set(train.ids.tolist()) & set(test.ids.tolist())
    rows = {image.numpy().tobytes() for image in train.pixels}
    assert not rows & {image.numpy().tobytes() for image in test.pixels}


def test_fashion_bytes():
    """The embedded bytes are those the script chose from the official files."""
    assert load_images("fashion").checksum() == "251dc71d5f3fcc417e36b28e4e253fcf5c4ba2ead2fd8c740f5f4827925e6862"
    test = load_images("fashion", "test")
    assert test.checksum() == "e356fcfc59e1bb28d5709b2e8d2844e1adfd8a32a07e4cee3372435d4eae39df"


def test_the_package_stays_small():
    assert sum(path.stat().st_size for path in fashion.EMBEDDED.iterdir()) < 8e6
    assert "2017 Zalando SE" in (fashion.EMBEDDED / "LICENSE-fashion-mnist").read_text()


@pytest.mark.skipif(not fashion.DEBIAN.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
@pytest.mark.parametrize(("split", "count", "first"), [("train", 60_000, 0), ("test", 10_000, 60_000)])
def test_fashion_is_lossless(split, count, first):
    whole, part = load_images("fashion-full", split), load_images("fashion", split)
    assert len(whole) == count
    assert whole.ids[0] == first
    assert whole.name == "fashion-full"
    again = whole.subset(part.ids - first)
    assert again.checksum() == part.checksum()
    assert again.ids.tolist() == part.ids.tolist()


def test_fashion_full_from_the_cache_folder_or_not_at_all(make, pixels, cache, monkeypatch, tmp_path):
    monkeypatch.setattr(fashion, "DEBIAN", tmp_path / "absent")
    with pytest.raises(InputError, match=r"fashion-mnist.*dataset-fashion-mnist"):
        load_images("fashion-full")
    (cache / "fashion-mnist").mkdir()
    make.write_idx(cache / "fashion-mnist" / "train-images-idx3-ubyte", pixels[:, 0])
    make.write_idx(cache / "fashion-mnist" / "train-labels-idx1-ubyte", np.arange(5, dtype=np.uint8))
    assert load_images("fashion-full").labels.tolist() == [0, 1, 2, 3, 4]


def test_unknown_name():
    with pytest.raises(InputError, match=r"no images 'fashoin'.*cifar10, fashion, fashion-full"):
        load_images("fashoin")


def test_unknown_split(pixels, tmp_path):
    with pytest.raises(InputError, match="'train' or 'test'; got 'valid'"):
        load_images("fashion", "valid")
    np.save(tmp_path / "x.npy", pixels)
    with pytest.raises(InputError, match=r"x\.npy.*has no test split"):
        load_images(tmp_path / "x.npy", "test")


@pytest.mark.parametrize("data", [b"", b"hello", b"\x1f\x8b", b"\x1f\x8b\x08" + bytes(20), b"\x89PNG\r\n\x1a\n", b"PK"])
def test_unknown_content(tmp_path, data):
    (tmp_path / "x.dat").write_bytes(data)
    with pytest.raises(InputError, match=r"x\.dat"):
        load_images(tmp_path / "x.dat")


def write_all(make, pixels, folder):
    """One file of every format."""
    records = np.zeros((4, 3073), np.uint8)
    np.save(folder / "a.npy", pixels)
    np.savez(folder / "b.npz", images=pixels, labels=np.arange(5))
    np.savez_compressed(folder / "c.npz", x=pixels.transpose(0, 2, 3, 1).copy(), y=np.arange(5))
    make.write_zip(folder / "d.zip", make.edm(pixels, [0, 1, 2, 3, 4]))
    make.write_idx(folder / "e.idx", pixels[:, 0])
    make.write_idx(folder / "f.gz", pixels[:, 0])
    (folder / "g.bin").write_bytes(records.tobytes())
    (folder / "h").write_bytes(make.python2_batch(records))
    (folder / "i").write_bytes(make.python3_batch(records))
    return sorted(folder.iterdir())


def test_known_by_content_not_by_name(make, pixels, tmp_path):
    (tmp_path / "in").mkdir()
    for number, path in enumerate(write_all(make, pixels, tmp_path / "in")):
        if path.suffix != ".bin":  # records without a magic number: only the name tells
            shutil.copy(path, tmp_path / f"{number}.jpg")
            assert load_images(tmp_path / f"{number}.jpg").checksum() == load_images(path).checksum()


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_load_or_fail_clearly(make, pixels, tmp_path, data):
    """Bytes cut off, overwritten or added anywhere: an image set or one InputError, nothing else."""
    (tmp_path / "in").mkdir(exist_ok=True)
    paths = sorted((tmp_path / "in").iterdir()) or write_all(make, pixels, tmp_path / "in")
    path = data.draw(st.sampled_from(paths))
    raw = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, min(len(raw) - 1, 400)) | st.integers(-400, -1) | st.integers(0, len(raw) - 1))
    start %= len(raw)
    junk = data.draw(st.binary(min_size=0, max_size=6))
    how = data.draw(st.sampled_from(["cut", "overwrite", "insert", "delete"]))
    if how == "cut":
        del raw[start:]
    elif how == "overwrite":
        raw[start : start + len(junk)] = junk
    elif how == "insert":
        raw[start:start] = junk
    else:
        del raw[start : start + len(junk)]
    broken = tmp_path / f"x{path.suffix}"
    broken.write_bytes(raw)
    told = None
    try:
        load_images(broken)
    except InputError as error:
        told = str(error)
    assert told is None or broken.name in told
