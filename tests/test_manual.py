"""The manual is true: its Python prints what stands below it, its commands parse, its numbers are in result files.

In the manual, a fence ```python is run, page by page in one namespace, and a ```text fence right after it is what it
prints. What needs files that are not here is written as a {code-block}, which is only shown. All examples of the
gallery run when the manual is built; the quick ones run here as well.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import fpmc
from fpmc.augmentation.kinds import KINDS, OURS

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))                  # what the build reads parsers, comments and results with

import quotes  # noqa: E402
from extensions import options, parameters  # noqa: E402

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
RUN = [name for name, text in TEXTS.items() if re.search(r"^```python$", text, re.MULTILINE)]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK = ("seven_choices", "what_q_sees", "who_made_this_pixel", "your_own_data")
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?|-?\d+e[-+]?\d+")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FPMC_HOME", str(tmp_path / "home"))
    yield
    for name in set(KINDS) - set(OURS):                # what pages register
        del KINDS[name]


@pytest.mark.parametrize("name", RUN)
def test_a_page_prints_what_it_says(name, capsys):
    text, namespace = TEXTS[name], {"__name__": "__main__"}
    for match in re.finditer(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL):
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], name, "exec"), namespace)
        printed = capsys.readouterr().out
        if match[2] is not None or name != "README.md":     # README does not show what is printed
            assert_alike(printed, match[2] or "", f"{name}, line {line}")


def assert_alike(printed: str, written: str, where: str) -> None:
    """The same words, and numbers with a point alike to 3 % or one unit of the last digit written."""
    words = [NUMBER.sub("#", text).split() for text in (printed, written)]
    assert words[0] == words[1], f"{where} prints\n{printed}"
    for now, then in zip(NUMBER.findall(printed), NUMBER.findall(written)):
        unit = 0.0 if "e" in then else 10.0 ** -len(then.partition(".")[2])
        assert math.isclose(float(now), float(then), rel_tol=0.03, abs_tol=1.01 * unit), f"{where} prints\n{printed}"


def commands(text: str) -> list[str]:
    """The lines of shell that begin with `fpmc`, and code spans that do; not those with an ellipsis."""
    text = text.replace("\\\n", " ")
    shell = "".join(re.findall(r"^```bash\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    found = re.findall(r"^(fpmc .*)", shell, re.MULTILINE) + re.findall(r"^    (fpmc .*)", text, re.MULTILINE)
    found += re.findall(r"`(fpmc [^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    return [line.partition(" #")[0].strip() for line in found if "…" not in line and "COMMAND" not in line]


@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if commands(text)])
def test_commands_parse(name, capsys):
    for line in commands(TEXTS[name]):
        _, command, *rest = shlex.split(" ".join(line.split()))
        found = {parser.prog: parser for parser in options.parsers(command)}
        if len(found) > 1 and rest:
            command, *rest = f"{command} {rest[0]}", *rest[1:]
        if not rest:
            continue                                    # a code span may name a command without what it needs
        try:
            found[f"fpmc {command}"].parse_args(rest)
        except SystemExit:
            pytest.fail(f"{name}: {line}\n{capsys.readouterr().err[-600:]}")


def test_every_command_has_a_reference_with_meanings():
    from fpmc.cli import COMMANDS

    for command in COMMANDS:
        for parser in options.parsers(command):
            for typed, meaning, _ in options.options(parser):
                assert meaning, f"{parser.prog} {typed}"


@pytest.mark.parametrize("name", TEXTS)
def test_quoted_numbers_are_those_of_the_result_files(name):
    assert quotes.renewed(TEXTS[name]) == TEXTS[name], "python docs/quotes.py renews it"


def test_a_wrong_quotation_is_noticed():
    wrong = "takes 0.99<!-- = costs.csv | LS, k = 7 | s/image --> s"
    headers, rows = quotes.read("costs.csv")
    right = float(rows["LS, k = 7"][headers.index("s/image")])
    assert quotes.renewed(wrong) == wrong.replace("0.99", f"{right:.2f}")
    wrong = "<!-- table demo.csv | columns: denoiser, copies | rows: LS -->\n\n| 16 of 16 |\n\n<!-- end -->"
    assert "| LS | 0 of 16 |" in quotes.renewed(wrong)


def test_every_decimal_of_the_readme_is_a_quotation():
    prose = quotes.NUMBER.sub("", quotes.TABLE.sub("", TEXTS["README.md"]))
    prose = re.sub(r"```.*?```|`[^`]*`|https?://\S+|Python \d\.\d+|\[[^]]*\]\([^)]*\)", "", prose, flags=re.DOTALL)
    assert re.findall(r"\d+\.\d+", prose) == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_between_files_work(name):
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", TEXTS[name])
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_gallery_has_twelve_examples_that_claim_something():
    source = (ROOT / "docs" / "extensions" / "pictures.py").read_text(encoding="utf-8")
    ordered = re.search(r"ORDER = \((.*?)\)", source, re.DOTALL)
    assert ordered is not None
    assert sorted(re.findall(r'"(\w+)"', ordered[1])) == [file.stem for file in EXAMPLES]
    assert len(EXAMPLES) == 12
    for file in EXAMPLES:
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 100, file.name
        assert (ast.get_docstring(ast.parse(text)) or "").splitlines()[1].startswith("==="), file.name
        assert "\nassert " in text or "    assert " in text, file.name


@pytest.mark.parametrize("name", QUICK)
def test_quick_examples_run(name, capsys):
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")


def test_every_parameter_that_people_give_is_documented():
    stub = (ROOT / "src" / "fpmc" / "__init__.pyi").read_text(encoding="utf-8")
    functions = [getattr(fpmc, name) for name in re.findall(r"as (\w+)$", stub, re.MULTILINE)]
    functions += [getattr(fpmc.presets, name) for name in fpmc.presets.__all__]
    missing = []
    for function in filter(inspect.isfunction, functions):
        found = parameters.documented(function, (inspect.getdoc(function) or "").split("\n"))
        missing += [f"{function.__qualname__}: {name}" for name in parameters.parameters(function) if name not in found]
    assert missing == []


def test_version_and_changelog_are_in_step():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+)( \(unreleased\))?$", changes, re.MULTILINE)
    assert heading is not None
    assert fpmc.__version__.partition(".dev")[0] == heading[1]
    assert (".dev" in fpmc.__version__) == bool(heading[2])
    assert (ROOT / "src" / "fpmc" / "py.typed").is_file()
