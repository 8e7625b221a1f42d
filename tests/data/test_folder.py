from __future__ import annotations

import json
import os

import numpy as np
import pytest

from fpmc.data import load_images, store
from fpmc.errors import InputError


def fill(folder, make, images):
    for name, image in images.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(make.png(image))
    return folder


def test_recursive_and_sorted(make, pixels, tmp_path):
    fill(tmp_path / "set", make, dict(zip(["b.png", "a/z.png", "a/y/k.PNG", ".hidden/x.png", ".x.png"], pixels)))
    (tmp_path / "set" / "notes.txt").write_text("hello")
    images = load_images(tmp_path / "set")
    assert np.array_equal(images.pixels.numpy(), pixels[[2, 1, 0]])
    assert images.labels is None
    assert images.name == "set"
    assert np.array_equal(load_images(str(tmp_path / "set")).pixels, images.pixels)


def test_dataset_json(make, pixels, tmp_path):
    fill(tmp_path, make, {"a.png": pixels[0], "s/b.png": pixels[1]})
    (tmp_path / "dataset.json").write_text(json.dumps({"labels": [["s/b.png", 7], ["a.png", 2]]}))
    assert load_images(tmp_path).labels.tolist() == [2, 7]


def test_train_and_test_folders_share_no_id(make, pixels, tmp_path):
    fill(tmp_path, make, {f"train/{i}.png": pixels[i] for i in range(3)})
    fill(tmp_path, make, {f"test/{i}.png": pixels[i] for i in range(3, 5)})
    train, test = load_images(tmp_path), load_images(tmp_path, "test")
    assert np.array_equal(train.pixels.numpy(), pixels[:3])
    assert np.array_equal(test.pixels.numpy(), pixels[3:])
    assert (train.ids.tolist(), test.ids.tolist()) == ([0, 1, 2], [3, 4])
    assert train.name == test.name == tmp_path.name


def test_ragged(make, pixels, tmp_path):
    fill(tmp_path, make, {"a.png": pixels[0], "b.png": pixels[1, :1]})
    with pytest.raises(InputError, match=r"'a\.png' is 3×6×8, 'b\.png' is 1×6×8"):
        load_images(tmp_path)


def test_empty(tmp_path):
    (tmp_path / "readme.md").write_text("")
    with pytest.raises(InputError, match=r"no images .*1 other files"):
        load_images(tmp_path)


def test_large_sets_are_decoded_once_and_mapped(make, pixels, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(store, "LARGE", pixels.nbytes - 1)
    fill(tmp_path, make, {f"{i}.png": image for i, image in enumerate(pixels)})
    first = load_images(tmp_path)
    assert np.array_equal(first.pixels.numpy(), pixels)
    (file,) = (cache / "decoded").iterdir()  # and no temporary file is left
    written = file.stat().st_mtime_ns
    assert np.array_equal(load_images(tmp_path).pixels.numpy(), pixels)
    assert file.stat().st_mtime_ns == written
    changed = pixels.copy()
    changed[4] ^= 255
    fill(tmp_path, make, {"4.png": changed[4]})
    os.utime(tmp_path / "4.png", ns=(1, 1))
    assert np.array_equal(load_images(tmp_path).pixels.numpy(), changed)


def test_a_failure_leaves_nothing_half_written(make, pixels, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(store, "LARGE", 0)
    fill(tmp_path, make, {"a.png": pixels[0], "b.png": pixels[1], "c.png": pixels[2, :, :4]})
    with pytest.raises(InputError, match="differ in shape"):
        load_images(tmp_path)
    assert list((cache / "decoded").iterdir()) == []


def test_no_room_for_the_cache(make, pixels, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "LARGE", 0)
    usage = store.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: usage._replace(free=10))
    fill(tmp_path, make, {"a.png": pixels[0]})
    with pytest.raises(InputError, match="set FPMC_HOME to a folder with more room"):
        load_images(tmp_path)
