"""The other device, for every test here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from devices.elsewhere import register
from fpmc.engine.kernels import streaming


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[str]:
    """Backward runs in the thread of the test, and checkpoints are left out: torch has no device of Python's there."""
    monkeypatch.setattr(streaming, "checkpoint", lambda function, *args, use_reentrant: function(*args))
    with torch.autograd.set_multithreading_enabled(False):
        yield register()
