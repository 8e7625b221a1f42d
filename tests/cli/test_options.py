"""Seeds as EDM writes them, noise levels, progress."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmc.cli import options
from fpmc.cli.options import SamplerOptions, check_sigmas, parse_seeds
from fpmc.errors import InputError
from fpmc.process import VP


def test_seeds():
    assert parse_seeds("0-3,70") == (0, 1, 2, 3, 70)
    assert parse_seeds("5") == (5,)
    assert parse_seeds(" 2-2, 1 ") == (2, 1)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, unique=True))
def test_any_list_of_seeds_can_be_written(seeds):
    assert parse_seeds(",".join(map(str, seeds))) == tuple(seeds)


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "3-1", "0-3,2", "1.5", "0-99999999999", "1--2", f"{2**63}"])
def test_what_is_no_seed_is_refused(text):
    with pytest.raises(InputError):
        parse_seeds(text)


def test_sigmas_come_noisiest_first():
    assert check_sigmas([0.1, 80, 0.1]) == (80, 0.1)


@pytest.mark.parametrize("sigmas", [[], [0], [-1, 2], [float("nan")], [float("inf")]])
def test_what_is_no_noise_level_is_refused(sigmas):
    with pytest.raises(InputError):
        check_sigmas(sigmas)


def test_processes_by_name():
    assert SamplerOptions().settings()["process"] is None
    assert SamplerOptions(process="vp-cosine").settings()["process"] == VP("cosine")


def test_the_bar_counts_only_this_sitting(monkeypatch):
    """Resumed at 90 of 100, ten more steps are all there is: the speed must not be that of a hundred."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(options.sys, "stderr", terminal)
    with options.progress_bar("LS") as tell:
        for done in range(91, 101):
            tell(done, 100)
    last = terminal.getvalue().split("\r")[-1]
    assert "LS: 100%" in last
    assert "100/100" in last
