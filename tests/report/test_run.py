"""Run directories: what they hold, going on, refusing, and never half a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fpmc.errors import InputError
from fpmc.report.run import RunDirectory, read_config


@dataclass(frozen=True)
class Config:
    data: str = "fashion"
    seeds: tuple[int, ...] = (0, 1)
    rho: float = 7.0
    outdir: Path = Path("runs")


def test_a_new_run_says_what_made_it(tmp_path):
    run = RunDirectory(tmp_path / "deep" / "run", Config(), command="sample")
    assert not run.resumed
    config = json.loads((run.path / "config.json").read_text())
    assert config["command"] == "sample"
    assert config["settings"] == {"data": "fashion", "seeds": [0, 1], "rho": 7.0, "outdir": "runs"}
    assert {"python", "fpmc", "torch"} <= set(config["versions"])
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["threads"] >= 1
    assert "started" in (run.path / "log.txt").read_text()


def test_the_same_settings_go_on(tmp_path):
    first = RunDirectory(tmp_path / "run", Config(), command="sample")
    first.event(step=1, loss=np.float32(0.5))
    first.metrics({"r2": 0.7, "bad": float("nan"), "array": np.arange(2)})
    again = RunDirectory(tmp_path / "run", Config(), command="sample")
    assert again.resumed
    again.event(step=2)
    assert [event["step"] for event in again.events()] == [1, 2]
    assert again.events()[0]["loss"] == 0.5
    assert json.loads((again.path / "metrics.json").read_text()) == {"r2": 0.7, "bad": None, "array": [0, 1]}


@pytest.mark.parametrize(
    ("config", "command", "named"),
    [(Config(rho=5), "sample", "rho was 7.0, now it is 5"), (Config(), "train", 'command was "sample"')],
)
def test_other_settings_are_refused_by_name(tmp_path, config, command, named):
    RunDirectory(tmp_path / "run", Config(), command="sample")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(InputError, match=named) as refusal:
        RunDirectory(tmp_path / "run", config, command=command)
    assert "--outdir" in str(refusal.value)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


def test_free_settings_may_change(tmp_path):
    RunDirectory(tmp_path / "run", Config(), command="sample")
    run = RunDirectory(tmp_path / "run", Config(seeds=(0, 1, 2)), command="sample", free=["seeds"])
    assert run.resumed
    assert read_config(run.path).settings["seeds"] == [0, 1, 2]


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="outdir"):
        RunDirectory(tmp_path, Config(), command="sample")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unwritable_place_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        RunDirectory(tmp_path / "file" / "run", Config(), command="sample")


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"command": "sample"}',
        '{"command": "sample", "settings": {}, "versions": {}, "surprise": 1}',
        "[1]",
    ],
)
def test_a_broken_config_is_one_clear_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json"):
        RunDirectory(tmp_path, Config(), command="sample")


def test_a_torn_last_line_is_dropped(tmp_path):
    run = RunDirectory(tmp_path / "run", Config(), command="sample")
    run.event(step=1)
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    again = RunDirectory(tmp_path / "run", Config(), command="sample")
    again.event(step=3)
    assert [event["step"] for event in again.events()] == [1, 3]


def test_files_are_whole_or_absent(tmp_path):
    run = RunDirectory(tmp_path / "run", Config(), command="sample")

    def fail_halfway():
        with run.atomic("samples.npy") as part:
            part.write_bytes(b"half")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert not (run.path / "samples.npy").exists()
    picture = run.picture("grid.png", Image.new("RGB", (4, 3)))
    assert Image.open(picture).size == (4, 3)
    assert sorted(p.name for p in run.path.iterdir()) == ["config.json", "environment.json", "grid.png", "log.txt"]


def test_say_prints_and_keeps(tmp_path, capsys):
    RunDirectory(tmp_path / "run", Config(), command="sample").say("two\nlines")
    assert capsys.readouterr().out == "two\nlines\n"
    assert [line.split("  ", 1)[1] for line in (tmp_path / "run" / "log.txt").read_text().splitlines()[-2:]] == [
        "two",
        "lines",
    ]
