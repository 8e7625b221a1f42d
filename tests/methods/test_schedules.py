"""The tables of the appendix, whole, and the schedules made from them (App. C.1)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fpmc.errors import InputError
from fpmc.methods.schedules import METHODS, SHIPPED, default, read_table, resolve

# The columns of the paper's three tables, noisiest first; 3*6 is six times 3.
PAPER = {
    "cifar10": {
        "pspc_square": "32*7 23 15 11 7 5 3*6",
        "ls": "31*6 29 25 15 11 7 5 3*6",
        "els": "31*7 27 19 15 9 7 5 3*5",
        "pspc_flex": "1*7 0.7*2 0.5 0.4*4 0.3*4",
        "lukoianov": "0.05*18",
    },
    "ffhq": {
        "pspc_square": "64*12 43*3 35*2 27 23 19 15*2 11 9*2 7 5*2 3*12",
        "ls": "63*11 55 51 45 39 35 31 29 25 21 17 15 11 7*4 5 3*12",
        "pspc_flex": "1*11 0.8 0.7 0.6*4 0.55 0.5 0.45 0.4*3 0.35 0.3*16",
        "lukoianov": "0.02*40",
    },
    "afhq": {
        "pspc_square": "64*11 51 43*2 35 27 23 19 15*3 9*3 7 5*2 3*13",
        "ls": "63*5 55 63*5 55 51 45 37 31 23 21 17 15 13 11 9 7 5 3*15",
        "pspc_flex": "1*9 0.85 0.7 0.65 0.6*3 0.55 0.5 0.45 0.4 0.35 0.3*20",
        "lukoianov": "0.02*40",
    },
}
STEPS = {"cifar10": 18, "ffhq": 40, "afhq": 40}


def unfold(column: str) -> list[float]:
    runs = (run.partition("*") for run in column.split())
    return [float(value) for value, _, times in runs for _ in range(int(times or 1))]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_tables_are_those_of_the_paper(name: str) -> None:
    table = read_table(name)
    assert table.resolution == (32 if name == "cifar10" else 64)
    assert table.methods == [method for method in METHODS if method in PAPER[name]]
    for method, column in PAPER[name].items():
        assert list(table.column(method).values()) == unfold(column)
        assert list(table.column(method)) == table.t


@pytest.mark.parametrize("name", SHIPPED)
def test_noise_levels_are_the_edm_grid_as_printed(name: str) -> None:
    steps, low, high = STEPS[name], 0.002 ** (1 / 7), 80 ** (1 / 7)
    grid = [(high + i / (steps - 1) * (low - high)) ** 7 for i in range(steps)]
    printed = [round(float(f"{t:.3g}"), 3) for t in grid]   # three digits, at most three after the point
    assert read_table(name).t == printed


def test_no_els_beyond_cifar() -> None:
    for name in ("ffhq", "afhq"):
        with pytest.raises(InputError, match="no column for els; it has pspc_square, ls, pspc_flex, lukoianov"):
            resolve(name, "els", (3, 64, 64))


# From whatever a user gives


def test_one_number_serves_every_level() -> None:
    assert list(resolve(7, "ls", (1, 28, 28)).values()) == [7.0]
    assert list(resolve(0.4, "pspc_flex", (1, 28, 28)).values()) == [0.4]


def test_a_dict_is_taken_as_it_is() -> None:
    assert resolve({0.1: 3, 80: 7}, "ls", (1, 28, 28)) == {0.1: 3.0, 80.0: 7.0}


def test_a_table_by_name_fits_its_resolution() -> None:
    assert resolve("cifar10", "ls", (3, 32, 32)) == read_table("cifar10").column("ls")
    for shape in [(3, 28, 28), (3, 32, 28), (3, 64, 64)]:
        with pytest.raises(InputError, match="'cifar10' is for 32×32 images, not"):
            resolve("cifar10", "ls", shape)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"resolution": 28, "t": [80.0, 0.1], "ls": [27, 3]}))
    for given in (path, str(path)):
        assert resolve(given, "ls", (1, 28, 28)) == {80.0: 27.0, 0.1: 3.0}
    with pytest.raises(InputError, match="no column for els; it has ls"):
        resolve(path, "els", (1, 28, 28))


# By default


@pytest.mark.parametrize("method", METHODS)
def test_the_default_at_the_papers_resolutions_is_the_papers(method: str) -> None:
    assert resolve(None, method, (3, 32, 32)) == read_table("cifar10").column(method)
    if method != "els":
        assert resolve(None, method, (3, 64, 64)) == read_table("ffhq").column(method)


@pytest.mark.parametrize("method", ["pspc_flex", "lukoianov"])
def test_thresholds_do_not_depend_on_resolution(method: str) -> None:
    assert default(method, 28) == read_table("cifar10").column(method)
    assert default(method, 100) == read_table("ffhq").column(method)


def test_sizes_scale_with_resolution() -> None:
    assert list(default("ls", 28).values()) == unfold("27*6 25 21 13 9 7 5 3*6")
    assert list(default("pspc_square", 28).values()) == unfold("28*7 21 13 9 7 5 3*6")
    assert list(default("pspc_square", 128).values())[:15] == unfold("128*12 85*3")
    assert list(default("els", 64).values())[-8:] == unfold("17 13 9 5*5")


@pytest.mark.parametrize("resolution", [1, 2, 3, 5, 8, 16, 28, 31, 33, 47, 48, 63, 65, 96, 128])
def test_scaled_sizes_are_possible(resolution: int) -> None:
    for method in ("ls", "els"):
        sizes = list(default(method, resolution).values())
        assert all(size % 2 == 1 and 1 <= size <= 2 * resolution - 1 for size in sizes)
        assert sizes == sorted(sizes, reverse=True)
    squares = list(default("pspc_square", resolution).values())
    assert all(1 <= size <= resolution for size in squares)
    assert squares == sorted(squares, reverse=True)
    assert squares[0] == resolution


def test_the_smaller_side_decides() -> None:
    assert resolve(None, "ls", (1, 28, 40)) == default("ls", 28)
    assert resolve(None, "pspc_square", (1, 40, 28)) == default("pspc_square", 28)


# What is refused


FILES = {
    "not json at all": "is not a schedule file",
    '{"resolution": 28, "t": [80.0, 0.1], "ls": [27, 3]': "is not a schedule file",
    "[1, 2, 3]": "is not a schedule file",
    '{"t": [80.0], "ls": [27]}': "resolution",
    '{"resolution": 28, "t": [80.0], "ls": [27], "stride": [1]}': "stride",
    '{"resolution": 28, "t": [80.0, 0.1], "ls": [27]}': "ls has 1 values for 2 noise levels",
    '{"resolution": 28, "t": [80.0], "ls": ["large"]}': "ls",
    '{"resolution": 28, "t": [80.0], "ls": [3.5]}': "ls",
    '{"resolution": 28, "t": [], "ls": []}': "empty",
    '{"resolution": 28, "t": [-1.0], "ls": [3]}': "sigma > 0",
    '{"resolution": 28, "t": [NaN], "ls": [3]}': "sigma > 0",
}


@pytest.mark.parametrize("text", FILES)
def test_broken_files(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(InputError, match=FILES[text]):
        resolve(path, "ls", (1, 28, 28))


def test_a_file_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(InputError, match="is not a schedule file"):
        read_table(path)


def test_no_such_file(tmp_path: Path) -> None:
    for name in ("cifar", tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=r"no schedule .* use one of cifar10, ffhq, afhq"):
            read_table(name)


@pytest.mark.parametrize(
    "schedule",
    [{}, {0.0: 3}, {-1.0: 3}, {float("inf"): 3}, {1.0: float("nan")}, {1.0: -3}, {"a": 3}, {1.0: None}, -1],
)
def test_impossible_schedules(schedule: object) -> None:
    with pytest.raises(InputError, match="schedule"):
        resolve(schedule, "ls", (1, 28, 28))  # pyright: ignore[reportArgumentType]
