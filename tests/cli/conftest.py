"""A tiny data set, and the command line called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from fpmc.cli import main


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture
def fpmc(capsys) -> Callable[..., Outcome]:
    """Run a command and return its exit code and what it printed."""

    def call(*args: object) -> Outcome:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def refused(fpmc) -> Callable[..., str]:
    """Run a command that must end in one line on stderr, exit code 2 and no traceback; returns that line."""

    def call(*args: object) -> str:
        code, out, err = fpmc(*args)
        assert code == 2, err
        assert err.startswith("fpmc: error: ")
        assert err.count("\n") == 1
        assert "Traceback" not in out + err
        return err

    return call


@pytest.fixture
def data(tmp_path) -> Path:
    """Twenty grey images of 6×6."""
    path = tmp_path / "data.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (20, 1, 6, 6), dtype=np.uint8))
    return path
