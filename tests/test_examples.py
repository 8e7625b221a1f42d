"""The examples run and say what they promise; the manual's Python runs and prints what stands below it.

In the manual, a fence ```python is run, page by page in one namespace, and a ```text fence right after it is what it
prints. What needs files that are not here is written as a {code-block}, which is only shown.
"""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from fpmc import FPMC, load_images
from fpmc.augmentation.kinds import KINDS, OURS

ROOT = Path(__file__).parents[1]
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "```python" in page.read_text(encoding="utf-8")]
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]?\d+")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))
    yield
    for name in set(KINDS) - set(OURS):                # what examples register
        del KINDS[name]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., str]:
    """Run an example as a user does, and return what it printed."""

    def call(name: str, *options: object) -> str:
        monkeypatch.setattr("sys.argv", [name, *map(str, options)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return call


def column(table: str, row: str, number: int) -> float:
    """A number of the line that begins with `row`."""
    (line,) = [line for line in table.splitlines() if line.startswith(row)]
    return float(re.findall(r"\d+\.\d+", line)[number])


def test_there_are_six_short_ones_and_each_is_run_here():
    files = sorted((ROOT / "examples").glob("*.py"))
    assert len(files) == 6
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 60, file.name
        assert f'run("{file.name}"' in Path(__file__).read_text(encoding="utf-8")


def test_memorisation_the_optimal_denoiser_copies_and_others_do_not(run):
    out = run("memorisation.py", "--images", 300, "--seeds", 2)
    assert column(out, "Optimal", 0) == 0
    assert re.findall(r"(\d) of 2", out) == ["2", "0", "0"]
    assert column(out, "PSPC-Square", 0) > 0.05
    assert Image.open("runs/examples/memorisation.png").width > 200


def test_every_method_denoises(run):
    out = run("every_method.py", "--images", 200)
    for name in ("Optimal", "Wiener", "LS", "ELS", "PSPC-Square", "PSPC-Flex", "Lukoianov"):
        assert column(out, name + " ", -1) < 0.296**2, name         # better than leaving the image as it is
    assert Image.open("runs/examples/every_method.png").height > 9 * 84


def test_own_collection_two_scales_beat_either_and_agree_with_the_oracle(run):
    out = run("own_collection.py", "--images", 1000, "--count", 32)
    error = {name: column(out, name + "  ", -1) for name in ("11×11", "19×19", "both")}
    assert error["both"] < min(error["11×11"], error["19×19"])
    assert float(out.split()[-1]) < 1e-5


def test_patch_size_grows_with_the_noise(run):
    out = run("patch_size.py", "--images", 300, "--count", 8)
    best = [line.split()[3:].index(cell) for line in out.splitlines() for cell in line.split() if cell.endswith("*")]
    assert len(best) == 7
    assert best == sorted(best, reverse=True)
    assert best[0] > 4 > best[-1]
    assert "the same to 0e+00" in out


def test_augmented_source_is_a_union_that_is_saved_as_a_recipe(run):
    out = run("augmented_source.py", "--images", 200, "--count", 4)
    assert out.count("400 images of 200 originals") == 3
    assert len(re.findall(r"^and (?:xflip|translate|yflip|gain) +0\.\d+", out, re.MULTILINE)) == 4
    assert sum(file.stat().st_size for file in Path("runs/examples/flipped").iterdir()) < 20_000     # no images in it


def test_finetune_level_comes_nearer_to_the_network(run):
    out = run("finetune_level.py", "--images", 300, "--steps", 8)
    assert column(out, "PSPC-Square + soft", 0) < column(out, "PSPC-Square  ", 0)
    saved = FPMC.from_pretrained("runs/examples/soft", images=load_images("fashion").subset(slice(300)))
    assert saved.name == "PSPC-Square + soft Q/R"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_the_manual_prints_what_it_says(page, capsys):
    text, namespace = page.read_text(encoding="utf-8"), {"__name__": "__main__"}
    for match in re.finditer(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL):
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], str(page), "exec"), namespace)
        assert_alike(capsys.readouterr().out, match[2] or "", f"{page.name}, line {line}")


def assert_alike(printed: str, written: str, where: str) -> None:
    """The same words, and numbers with a point alike to 3 % or one unit of the last digit written."""
    words = [NUMBER.sub("#", text).split() for text in (printed, written)]
    assert words[0] == words[1], f"{where} prints\n{printed}"
    for now, then in zip(NUMBER.findall(printed), NUMBER.findall(written)):
        unit = 0.0 if "e" in then else 10.0 ** -len(then.partition(".")[2])
        assert math.isclose(float(now), float(then), rel_tol=0.03, abs_tol=1.01 * unit), f"{where} prints\n{printed}"
