"""Small networks are quickest on one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quickest(one_thread: None) -> None:
    """Every test here."""
