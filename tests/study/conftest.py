"""Small problems on one thread; synthetic images in a cache folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fpmc.study.lab import Lab
from study.tiny import small_lab


@pytest.fixture(autouse=True)
def _quickest(one_thread: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))


@pytest.fixture
def lab() -> Lab:
    return small_lab()
