"""Seeds as EDM writes them, noise levels, progress."""

from __future__ import annotations

import io
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpmc.cli import options
from fpmc.cli.options import LevelOptions, SamplerOptions, check_sigmas, parse_seeds
from fpmc.errors import InputError
from fpmc.gate import check_device
from fpmc.images import ImageSet
from fpmc.process import VP
from fpmc.report.run import RunDirectory
from fpmc.study.policy import Policy


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
    assert SamplerOptions().settings((1, 28, 28))["process"] is None
    assert SamplerOptions(process="vp-cosine").settings((3, 32, 32))["process"] == VP("cosine")


@pytest.mark.parametrize(("side", "steps"), [(28, 18), (32, 18), (64, 40)])
def test_large_images_take_more_steps(side, steps):
    assert SamplerOptions().settings((3, side, side))["steps"] == steps
    assert SamplerOptions(steps=7).settings((3, side, side))["steps"] == 7


def test_noise_levels_by_value_or_by_number():
    policy = Policy(ImageSet(np.zeros((2, 1, 8, 8), np.uint8)))
    assert LevelOptions().chosen(policy) == tuple(policy.grid)
    assert LevelOptions(sigmas=(0.1, 3)).chosen(policy) == (3, 0.1)
    assert LevelOptions(levels="7-8,0").chosen(policy) == (80, *policy.grid[7:9])
    with pytest.raises(InputError, match="not both"):
        LevelOptions(levels="7", sigmas=(1,)).chosen(policy)
    with pytest.raises(InputError, match="0 to 17"):
        LevelOptions(levels="3-40").chosen(policy)


@pytest.mark.parametrize("name", ["cuda", "cuda:3", "quantum"])
def test_a_device_that_is_not_there_is_refused_with_the_way_out(name, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(InputError, match=f"{name}.*use.*cpu"):
        check_device(name)
    check_device("cpu")


COMPUTING = (
    *("attribute", "bench", "calibrate", "demo", "denoise", "finetune", "fit", "maps", "sample", "reproduce", "train"),
    "explore",
)


@pytest.mark.parametrize("command", COMPUTING)
def test_every_command_that_computes_has_a_device_and_a_folder(refused, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    names = ["table1"] if command == "reproduce" else []
    assert "use cpu" in refused(command, *names, "--device", "cuda")
    assert not list(tmp_path.iterdir())
    module = import_module(f"fpmc.cli.{command}")
    config = getattr(module, "Config", None) or module.Train
    if command != "explore":                            # which writes no run
        assert config.__dataclass_fields__["outdir"].default == Path("runs", command)


def test_without_a_terminal_a_line_a_minute(monkeypatch, capsys):
    now = iter([0.0, 0.0, 30.0, 61.0, 90.0])
    monkeypatch.setattr(options.time, "monotonic", lambda: next(now))
    with options.progress_bar("LS") as tell:
        for done in (10, 20, 30, 40):
            tell(done, 100)
    assert capsys.readouterr().err == "LS: 30% after 1 min, about 4 min left\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_the_log_has_the_same_line_a_minute(terminal, monkeypatch, tmp_path):
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(options.sys, "stderr", stderr)
    monkeypatch.setattr(options, "MINUTE", 0)
    with RunDirectory(tmp_path / "run", {}, command="test") as run, options.progress_bar("LS", run) as tell:
        for done in (10, 20, 30):
            tell(done, 100, "at work")
    lines = [line for line in (tmp_path / "run" / "log.txt").read_text().splitlines() if "at work" in line]
    assert len(lines) == 2
    assert re.search(r"  at work: 20% after .*, about .* left$", lines[0])
    assert terminal or "at work: 30%" in stderr.getvalue()


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
