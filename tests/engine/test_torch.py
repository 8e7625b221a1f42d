"""The torch engine keeps the contract."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from engine.contract import DifferentiableContract, EngineContract
from fpmc import Collection, ImageSet, presets
from fpmc.core.fpmc import FPMC
from fpmc.engine.kernels import streaming


class TestTorch(EngineContract, DifferentiableContract):
    settings: ClassVar = {"backend": "torch"}


def test_only_gradients_that_are_wanted_are_prepared_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def checkpoint(function, *args, **_):
        calls.append(function)
        return function(*args)

    monkeypatch.setattr(streaming, "checkpoint", checkpoint)
    images, z = ImageSet(torch.arange(36).byte().view(4, 1, 3, 3)), torch.zeros(1, 1, 3, 3)
    denoiser = presets.ls(images, schedule=3).using(backend="torch")
    assert not denoiser(z, 1.0).requires_grad
    assert not calls
    assert denoiser(z.clone().requires_grad_(), 1.0).requires_grad
    assert len(calls) == 1
    learned = torch.ones(9, 1, 3, 3, requires_grad=True)
    assert FPMC(Collection(learned, learned, images))(z, 1.0).requires_grad
    with torch.no_grad():
        assert not FPMC(Collection(learned, learned, images))(z, 1.0).requires_grad
