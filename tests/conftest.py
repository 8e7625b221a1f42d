"""What all tests share: deterministic examples, two threads, and the helpers beside them on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))          # so that tests can import bruteforce and engine.contract
pytest.register_assert_rewrite("engine.contract")

# The same examples on every machine and in every run: a failure can be repeated by running the test again.
settings.register_profile(
    "fpmc",
    deadline=None,
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],  # contracts are inherited
)
settings.load_profile("fpmc")
torch.set_num_threads(2)
