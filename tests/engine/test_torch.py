"""The torch engine keeps the contract."""

from __future__ import annotations

from typing import ClassVar

from engine.contract import DifferentiableContract, EngineContract


class TestTorch(EngineContract, DifferentiableContract):
    settings: ClassVar = {"backend": "torch"}
