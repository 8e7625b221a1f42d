"""A cache folder of the tests' own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("FPMC_HOME", str(folder))
    return folder
