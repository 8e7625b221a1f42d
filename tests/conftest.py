"""What all tests share: deterministic examples, two threads, and the helpers beside them on the path."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))          # so that tests can import bruteforce and engine.problems
pytest.register_assert_rewrite("engine.contract", "engine.problems")

# A shell has its background jobs ignore Ctrl-C, and so would every process that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For problems so small that threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
