"""Results know the code that made them: an edited rule changes the keys of what depends on it, and no others."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from fpmc import presets, sampling
from fpmc.methods import multiscale, table1
from fpmc.sampling import heun
from fpmc.study import code
from fpmc.study.lab import Lab
from fpmc.study.paper import EXPERIMENTS, load
from fpmc.study.reproduce import tasks_of
from fpmc.study.scale import SCALES


@pytest.fixture(autouse=True)
def _forget():
    yield
    code.fingerprint.cache_clear()
    code._part.cache_clear()


def keys(lab: Lab) -> dict[str, str]:
    code.fingerprint.cache_clear()
    code._part.cache_clear()
    return {task.name: task.key for task in tasks_of(load(EXPERIMENTS, lab))}


def edit(monkeypatch: pytest.MonkeyPatch, folder: Path, function, old: str, new: str) -> None:
    """Put an edited copy of a function in its place, as if the file had been edited."""
    module = inspect.getmodule(function)
    assert module is not None
    source = inspect.getsource(module)
    assert source.count(old) == 1
    path = folder / f"{len(list(folder.iterdir()))}.py"
    path.write_text(source.replace(old, new))
    scope = {"__name__": module.__name__, "__file__": str(path), "__package__": module.__package__}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    made = scope[function.__name__]
    edited = type(made)(made.__code__, vars(module), made.__name__, made.__defaults__, made.__closure__)
    monkeypatch.setattr(module, function.__name__, edited)


def test_an_edited_rule_changes_exactly_what_depends_on_it(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    before = keys(lab)
    assert keys(lab) == before
    edit(monkeypatch, tmp_path, multiscale._squares, "4 <= size <= side / 3", "4 <= size <= side / 4")
    after = keys(lab)
    changed = {name for name in before if after[name] != before[name]}
    kinds = ("multi-scale/", "groups/", "samples/multiscale", "errors/multiscale", "plans/multiscale")
    assert changed == {name for name in before if name.startswith(kinds)}
    assert {name.split("/")[0] for name in changed} == {"multi-scale", "groups", "samples", "plans"}
    assert {"samples/ls/seeds 10000-10001", "samples/wiener/seeds 10000-10001", "maps/σ 1.088"} <= set(before) - changed


def test_edited_masks_change_flexible_collections_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    before = keys(lab)
    edit(monkeypatch, tmp_path, table1.flex_masks, "- values <= tau", "- values < tau")
    changed = {name.split("/")[1] for name, key in keys(lab).items() if before[name] != key if name.count("/") == 2}
    assert changed == {name.split("/")[1] for name in before if "pspc_flex" in name or "/multiscale" in name}


def test_comments_docstrings_and_messages_decide_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    before = code.fingerprint(presets.multiscale)
    edit(monkeypatch, tmp_path, multiscale._whole, "; 1 is the optimal denoiser", "")
    edit(monkeypatch, tmp_path, multiscale._half, "that does best at a noise level, roughly", "# that does well")
    code.fingerprint.cache_clear()
    assert code.fingerprint(presets.multiscale) == before
    monkeypatch.setattr(multiscale, "HALF", 11.0)       # a constant does
    code.fingerprint.cache_clear()
    code._part.cache_clear()
    assert code.fingerprint(presets.multiscale) != before


def test_tables_of_functions_and_records_are_followed(monkeypatch: pytest.MonkeyPatch):
    def sizes() -> object:
        return SCALES

    before = code.fingerprint(sampling.integrate), code.fingerprint(sizes)
    monkeypatch.setitem(sampling.SOLVERS, "heun", sampling.euler)
    monkeypatch.setitem(SCALES, "laptop", replace(SCALES["laptop"], seeds=65))
    code.fingerprint.cache_clear()
    code._part.cache_clear()
    after = code.fingerprint(sampling.integrate), code.fingerprint(sizes)
    assert all(one != other for one, other in zip(before, after))


def test_what_is_dispatched_is_not_followed():
    def picks(name: str):
        return getattr(presets, name) or heun

    assert code.fingerprint(picks, presets.ls) != code.fingerprint(picks, presets.els)
    assert code.fingerprint(code.dispatches(picks)) != code.fingerprint(presets.ls)
