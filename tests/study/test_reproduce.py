"""All experiments at a tiny size: every file, nothing twice, and the same tables after interruptions."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fpmc.augmentation.synthetic import FIRST_SEED
from fpmc.errors import InputError
from fpmc.report.run import RunDirectory
from fpmc.report.table import clock
from fpmc.sampling import EVALUATION_FROM, TUNING_SEEDS
from fpmc.study import graph, samples, tasks
from fpmc.study.graph import Cache
from fpmc.study.lab import Lab
from fpmc.study.paper import EXPERIMENTS, choose, load
from fpmc.study.reproduce import forecast, reproduce, tasks_of
from study.tiny import TINY, small_lab, small_network

FIGURES = {name for name in EXPERIMENTS if name.startswith("fig-")} | {"schedules"}


def tables(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for kind in ("md", "csv", "tex") for file in sorted(folder.glob(f"*.{kind}"))}


def go(lab: Lab, names: list[str] | tuple[str, ...], folder: Path, cache: Path | None = None) -> dict[str, str]:
    run = RunDirectory(folder, {}, command="reproduce")
    reproduce(lab, load(names, lab), run, Cache(cache or folder / "cache"), command="fpmc reproduce")
    return tables(folder)


def test_everything_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lab, out = small_lab(), tmp_path / "run"
    go(lab, choose(["all"]), out)
    for name in EXPERIMENTS:
        assert (out / f"{name}.md").read_text().count("\n") >= 3
        kinds = {file.suffix for file in out.glob(f"{name}.*")}
        assert kinds == {".md", ".csv", ".tex"} | ({".png", ".svg", ".pdf"} if name in FIGURES else set())
    page = (out / "index.html").read_text()
    assert page.count("<section") == len(EXPERIMENTS)
    assert page.count("data:image/png;base64,") == len(FIGURES)
    assert "http" not in page
    assert "<script" not in page
    assert "0.76 ± 0.00" in page                        # the paper's best on CIFAR-10, in grey
    found = json.loads((out / "metrics.json").read_text())
    assert set(found) == set(EXPERIMENTS)
    rows = {row["method"]: row for row in found["table-results"]}
    assert rows["ddpmpp"]["images"] == 4
    assert rows["els"]["images"] == 2                   # an expensive one
    assert all(-5 < row["r2"] <= 1 and row["mse"] > 0 for row in rows.values())
    assert {"multiscale", "soft-synthetic", "lukoianov"} <= set(rows)
    assert {row["tau"] for row in found["table-tau"]} == {0.02, 0.05}
    assert rows["lukoianov"]["r2"] == next(row["r2"] for row in found["table-tau"] if row["tau"] == 0.05)
    gains = {(row["method"], row["minus"]): row for row in found["table-pairs"]}
    assert gains["soft", "pspc_flex"]["r2"] == pytest.approx(rows["soft"]["r2"] - rows["pspc_flex"]["r2"], abs=1e-12)
    assert gains["soft-xflip", "soft"]["images"] == 4
    assert len({frozenset(pair) for pair in gains}) == len(gains) >= len(rows) - 1      # each row against the next
    assert all(row["images"] == 2 for pair, row in gains.items() if "els" in pair)
    both = {(row["method"], row["schedule"]): row for row in found["table-schedules"]}
    for method in {row["method"] for row in found["schedules"]}:
        same = all(row["ours"] == row["paper"] for row in found["schedules"] if row["method"] == method)
        assert both[method, "paper"]["r2"] == rows[method]["r2"]
        assert (both[method, "calibrated"]["r2"] == rows[method]["r2"]) == same

    # Again: every step has its result, so none is computed and nothing is left to predict.
    monkeypatch.setattr(Cache, "put", lambda *_: pytest.fail("computed again"))
    before = tables(out)
    assert go(lab, ["table-results"], out) == before
    again = forecast(lab, load(EXPERIMENTS, lab), Cache(out / "cache"))
    assert all(each.cached == each.units and each.seconds == 0 for each in again)


NAMES = ("table-results",)
ONLY = ("ls", "pspc_flex", "soft-synthetic")


def test_interrupted_twice_the_tables_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = go(small_lab(only=ONLY), NAMES, tmp_path / "whole")
    done, put = Counter(), Cache.put

    def interrupted(self, step, made, seconds):
        done[step.key] += 1
        if len(done) in (5, 20) and done[step.key] == 1:
            raise KeyboardInterrupt                     # the work is done, the result is not kept yet
        return put(self, step, made, seconds)

    monkeypatch.setattr(Cache, "put", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            go(small_lab(only=ONLY), NAMES, tmp_path / "broken")
    assert go(small_lab(only=ONLY), NAMES, tmp_path / "broken") == whole
    assert sorted(done.values())[-3:] == [1, 2, 2]      # one unit was lost each time


def test_an_interrupted_level_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lab = small_lab(only=("soft",))
    whole = go(lab, ["table-results"], tmp_path / "whole")
    train, seen = tasks.train_level, []

    def broken(level, *rest):
        for record in train(level, *rest):
            seen.append(record.step)
            if seen == [1]:
                raise KeyboardInterrupt
            yield record

    monkeypatch.setattr(tasks, "train_level", broken)
    with pytest.raises(KeyboardInterrupt):
        go(lab, ["table-results"], tmp_path / "broken")
    assert go(lab, ["table-results"], tmp_path / "broken") == whole
    assert seen == [1, 2, 1, 2]                         # the second step of the first level, then the other level


def test_interrupted_samples_go_on_from_the_last_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lab = small_lab(only=("ls",))
    whole = go(lab, ["table-results"], tmp_path / "whole")
    integrate, seen = samples.integrate, []

    def broken(denoiser, z, levels, **options):
        for step in integrate(denoiser, z, levels, **options):
            seen.append(step.sigma)
            if len(seen) == 10:
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(samples, "integrate", broken)
    with pytest.raises(KeyboardInterrupt):
        go(lab, ["table-results"], tmp_path / "broken")
    assert go(lab, ["table-results"], tmp_path / "broken") == whole
    assert seen[9] == seen[10]                          # the level that was cut short, and none before it
    assert len(seen) == 1 + 18 * 4                      # two batches each of NCSN++ and LS


def damaged(tmp_path: Path) -> list[Path]:
    """No file of tensors, and a file of others."""
    files = [tmp_path / "damaged" / "state.safetensors", tmp_path / "another" / "state.safetensors"]
    for file in files:
        file.parent.mkdir()
    files[0].write_bytes(b"no state")
    save_file({"y": torch.zeros(1)}, files[1])
    return files


def test_samples_refuse_a_damaged_state(tmp_path: Path):
    method = tasks.Method("ls")
    for file in damaged(tmp_path):
        with pytest.raises(InputError, match=r"state.safetensors.*delete"):
            tasks.draw(small_lab(), {}, file.parent, method=method.settings(), seeds=[0], steps=18)


def test_interrupted_errors_go_on_from_the_last_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "BATCH", 2)
    lab = small_lab(only=("ls", "multiscale", "moved-clean"), scale=replace(TINY, points=6))
    whole = go(lab, ["fig-multiscale"], tmp_path / "whole")
    save, seen = tasks.save_file, []

    def broken(tensors, path):
        seen.append(Path(path).name.split(".")[1])
        if seen.count("1") in (1, 22) and seen[-1] == "1":
            seen.append("interrupted")
            raise KeyboardInterrupt
        save(tensors, path)

    monkeypatch.setattr(tasks, "save_file", broken)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            go(lab, ["fig-multiscale"], tmp_path / "broken")
    assert go(lab, ["fig-multiscale"], tmp_path / "broken") == whole
    for place in (place for place, name in enumerate(seen) if name == "interrupted"):
        assert seen[place - 2 : place + 3] == ["0", "1", "interrupted", "1", "2"]       # not from the first batch


def test_another_network_changes_what_depends_on_it(tmp_path: Path):
    computed = []
    other = {"reference": small_network(8, 7), "stamps": {"network": "a", "reference": "c"}}
    for lab in (small_lab(only=ONLY), small_lab(only=ONLY, **other)):
        records = graph.run(load(["table-results"], lab)[0].tasks, lab, Cache(tmp_path), graph.Results())
        computed.append({done.task.kind for done in records if not done.cached})
    assert "samples/ls" in computed[0]
    assert computed[1] == {"samples/reference"}


def test_more_seeds_than_denoisers_in_the_picture(tmp_path: Path):
    lab = small_lab(only=("optimal",), scale=replace(TINY, seeds=4, expensive_seeds=4, shown=4))
    go(lab, ["fig-samples"], tmp_path / "run")
    assert (tmp_path / "run" / "fig-samples.md").read_text().splitlines()[0].count("seed") == 4


def test_no_method_has_more_seeds_than_the_reference(tmp_path: Path):
    lab = small_lab(only=("optimal", "els"), scale=replace(TINY, seeds=2, expensive_seeds=4, shown=8))
    go(lab, ["table-results", "fig-samples"], tmp_path / "run")
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert {row["images"] for row in found["table-results"]} == {2}
    assert {row["seed"] for row in found["fig-samples"]} == {EVALUATION_FROM, EVALUATION_FROM + 1}


def test_no_test_split_means_network_samples(tmp_path: Path):
    lab = small_lab(held_out=None)
    assert [step.name for step in tasks.error(lab, tasks.Method("ls"), lab.grid[10]).inputs[0].inputs] == [
        f"synthetic images/{TINY.held_out} of seed 1"
    ]
    assert len(lab.held_out) == TINY.held_out
    assert not set(lab.held_out.ids.tolist()) & set(lab.synthetic(0.25).ids.tolist())   # others than those that augment
    assert not set(lab.tuning.ids.tolist()) & set(lab.judging.ids.tolist())


def test_names_are_checked_and_put_in_order():
    assert choose(["table-tau", "fig-q"]) == ("fig-q", "table-tau")
    assert choose(["all"]) == tuple(EXPERIMENTS)
    with pytest.raises(ValueError, match="did you mean 'fig-augment'"):
        choose(["fig-augments"])
    with pytest.raises(ValueError, match="at least one"):
        choose([])


def test_durations_as_people_say_them():
    assert [clock(s) for s in (2.25, 300, 7260)] == ["2.2 s", "5 min", "2 h 01 min"]


def test_tables_are_of_seeds_that_nothing_is_chosen_on():
    """Samples of every experiment begin where tuning never goes; synthetic images have seeds of their own."""
    drawn: dict[bool, set[int]] = {True: set(), False: set()}
    for task in tasks_of(load(EXPERIMENTS, small_lab())):
        drawn[task.kind == "synthetic samples"].update(task.settings.get("seeds", ()))
    assert min(drawn[False]) == EVALUATION_FROM > max(TUNING_SEEDS)
    assert max(drawn[False]) < FIRST_SEED == min(drawn[True])


def test_tables_of_samples_have_medians_and_differences_seed_by_seed(tmp_path: Path):
    lab = small_lab(only=("ls", "pspc_flex"), scale=TINY)
    go(lab, ["table-results", "table-pairs"], tmp_path / "run")
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    rows = {row["method"]: row for row in found["table-results"]}
    assert {"r2", "r2_median", "r2_trimmed", "r2_pooled", "mse"} <= set(rows["ls"])
    gain = rows["ls"]["r2"] - rows["pspc_flex"]["r2"]
    assert rows["ls"]["minus"] == "pspc_flex"
    assert rows["ls"]["gain_r2"] == pytest.approx(gain)
    assert "minus" not in rows["pspc_flex"]
    text = (tmp_path / "run" / "index.html").read_text()
    assert f"Seeds {EVALUATION_FROM} to {EVALUATION_FROM + TINY.seeds - 1}" in text
    ours = next(row for row in found["table-pairs"] if {row["method"], row["minus"]} == {"ls", "pspc_flex"})
    assert abs(ours["r2"]) == pytest.approx(abs(gain))
