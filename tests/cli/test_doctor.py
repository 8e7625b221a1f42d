"""fpmc doctor: healthy here, and telling what is wrong where something is."""

from __future__ import annotations

import importlib.metadata
import sys

import pytest
import torch

from fpmc.cli import doctor
from fpmc.errors import InputError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))


def levels(check) -> list[str]:
    return [finding.level for finding in check()]


def test_a_healthy_installation(fpmc):
    code, out, _ = fpmc("doctor")
    assert code == 0, out
    assert "0 broken" in out
    assert "torch" in out
    assert "'fashion': 12000 images" in out
    assert "fpmc data get cifar10" in out


@pytest.mark.parametrize(("missing", "level", "code"), [("numba", "warning", 0), ("safetensors", "broken", 1)])
def test_a_missing_package(fpmc, monkeypatch, missing, level, code):
    real = importlib.metadata.version

    def version(name):
        if name == missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    (finding,) = [f for f in doctor.check_requirements() if f.level != "fine"]
    assert finding.level == level
    assert finding.what.startswith(f"{missing} is missing")
    assert f'pip install "{missing}>=' in finding.mend
    assert fpmc("doctor").code == code


def test_an_old_package(monkeypatch):
    real = importlib.metadata.version
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "1.9" if name == "torch" else real(name))
    (finding,) = [f for f in doctor.check_requirements() if f.level != "fine"]
    assert (finding.level, finding.what) == ("broken", "torch 1.9 is too old (>=2.4)")


def test_a_package_that_does_not_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    (finding,) = [f for f in doctor.check_requirements() if f.level != "fine"]
    assert finding.level == "warning"
    assert "numba does not import" in finding.what


def test_torchvision_that_does_not_load(monkeypatch, tmp_path):
    assert levels(doctor.check_torchvision) == []
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    (finding,) = doctor.check_torchvision()
    assert finding.level == "broken"
    assert "torchvision::nms" in finding.what
    assert "pip uninstall torchvision" in finding.mend


def test_few_threads(monkeypatch):
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert levels(doctor.check_threads)[0] == "fine"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert "export OMP_NUM_THREADS=8" in next(doctor.check_threads()).mend
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert "unset OMP_NUM_THREADS" in next(doctor.check_threads()).mend


def test_an_unwritable_cache(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "file" / "cache"))
    (finding,) = doctor.check_cache()
    assert finding.level == "warning"
    assert "FPMC_HOME" in finding.mend


def test_denormals_that_cannot_be_flushed(monkeypatch):
    assert levels(doctor.check_denormals) == ["fine"]
    monkeypatch.setattr(torch, "set_flush_denormal", lambda on: False)
    assert levels(doctor.check_denormals) == ["warning"]


def test_missing_embedded_images(fpmc, monkeypatch):
    def missing(name):
        raise InputError(f"no {name}")

    monkeypatch.setattr("fpmc.data.load_images", missing)
    assert levels(doctor.check_data) == ["broken", "note"]
    assert fpmc("doctor").code == 1


def test_a_check_that_fails_is_a_finding(monkeypatch, fpmc):
    def broken():
        raise RuntimeError("torch is in ruins")

    monkeypatch.setattr(torch, "get_num_threads", broken)
    code, out, _ = fpmc("doctor")
    assert code == 1
    assert "could not look at threads (torch is in ruins)" in out
