"""Tasks: what decides their keys, what is computed again, what an interruption costs."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fpmc.errors import InputError
from fpmc.study.graph import Cache, Made, Results, Task, ordered, run, units_of, working

CALLS: list[str] = []


def double(lab, inputs, scratch, *, value: float) -> Made:
    CALLS.append(f"double {value}")
    if lab == "interrupted" and value == 3:
        raise KeyboardInterrupt
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "half-way").write_text("kept until the task is done")
    return Made({"x": torch.full((3,), 2.0 * value)}, {"value": value, "pair": (1, 2)})


def total(lab, inputs, scratch) -> Made:
    CALLS.append("total")
    return Made({"x": torch.stack([result["x"] for result in inputs.values()]).sum(0)}, {})


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def tasks(*values: float, **changes) -> Task:
    parts = tuple(Task(f"parts/{value}", double, {"value": value}, **changes) for value in values)
    return Task("total", total, {}, inputs=parts)


def execute(task: Task, cache: Cache, lab: str = "lab") -> tuple[Results, list[bool]]:
    results = Results()
    return results, [done.cached for done in run([task], lab, cache, results)]


def test_inputs_come_first_and_shared_steps_once():
    task = tasks(1, 2)
    both = Task("both", total, {}, inputs=(task, tasks(1)))
    assert [each.name for each in ordered([task, both])] == ["parts/1", "parts/2", "total", "total", "both"]
    assert task.kind == "total"
    assert task.inputs[0].kind == "parts"


@pytest.mark.parametrize(
    "other",
    [
        tasks(1, 3), tasks(1), tasks(1, 2, stamps={"data": "changed"}), tasks(1, 2, code=(total,)),
        replace(tasks(1, 2), name="other"), replace(tasks(1, 2), stamps={"network": "new"}),
    ],
)
def test_the_key_knows_all_that_decides_a_result(other):
    assert tasks(1, 2).key == tasks(1, 2).key
    assert other.key != tasks(1, 2).key


def test_what_exists_is_not_computed_again_and_what_changed_is(tmp_path: Path):
    task = tasks(1, 2)
    results, cached = execute(task, Cache(tmp_path))
    assert cached == [False, False, False]
    assert results[task]["x"].tolist() == [6, 6, 6]
    assert not (tmp_path / "unfinished" / task.inputs[0].key[:24]).exists()
    results, cached = execute(task, Cache(tmp_path))
    assert cached == [True, True, True]
    assert results[task]["x"].tolist() == [6, 6, 6]
    assert results[task.inputs[0]].info == {"value": 1, "pair": [1, 2]}
    _, cached = execute(tasks(1, 5), Cache(tmp_path))
    assert cached == [True, False, False]
    assert CALLS == ["double 1", "double 2", "total", "double 5", "total"]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_damaged_result_is_computed_again_with_a_note(tmp_path: Path, damage: str):
    task, notes = tasks(1, 2), []
    execute(task, Cache(tmp_path))
    one, two = (next(tmp_path.glob(f"parts_{value}-*")) for value in (1, 2))
    content = bytearray(one.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    one.write_bytes({"flip": content, "cut": content[:-4], "empty": b"", "swap": two.read_bytes()}[damage])
    results, cached = execute(task, Cache(tmp_path, notes.append))
    assert cached == [False, True, True]
    assert len(notes) == 1
    assert "parts_1" in notes[0]
    assert results[task.inputs[0]]["x"].tolist() == [2, 2, 2]


def test_an_interruption_loses_one_unit(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        execute(tasks(1, 2, 3, 4), Cache(tmp_path), "interrupted")
    _, cached = execute(tasks(1, 2, 3, 4), Cache(tmp_path))
    assert cached == [True, True, False, False, False]


def mark(lab: Path, inputs, scratch, *, value: int) -> Made:
    (lab / f"{value}-{time.monotonic_ns()}").touch()
    time.sleep(0.05)
    return Made({"x": torch.full((1,), float(value))}, {})


def many() -> Task:
    return Task("total", total, {}, inputs=tuple(Task(f"marks/{v}", mark, {"value": v}) for v in range(12)))


def work_along(folder: Path, told: multiprocessing.Queue) -> None:
    results = Results()
    each = run([many()], folder / "marks", Cache(folder / "cache"), results)
    own = [done.task.name for done in each if not done.cached]
    told.put((own, results[many()]["x"].item()))


def test_processes_with_the_same_folder_share_the_work(tmp_path: Path):
    (tmp_path / "marks").mkdir()
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    workers = [context.Process(target=work_along, args=(tmp_path, told)) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [told.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert [value for _, value in found] == [66, 66]
    assert sorted(name for own, _ in found for name in own) == sorted(["total", *(f"marks/{v}" for v in range(12))])
    assert len(list((tmp_path / "marks").iterdir())) == 12  # each once
    assert not list((tmp_path / "cache" / "unfinished").iterdir())


def test_what_a_process_left_that_was_stopped_after_its_result_is_swept(tmp_path: Path):
    task = tasks(1, 2)
    execute(task, Cache(tmp_path))
    left = Cache(tmp_path).scratch(task)
    left.mkdir(parents=True)
    left.with_suffix(".lock").touch()
    assert execute(task, Cache(tmp_path))[1] == [True, True, True]
    assert not list((tmp_path / "unfinished").iterdir())


def test_a_step_that_another_process_is_at_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task, cache = tasks(1, 2), Cache(tmp_path)
    elsewhere = cache.claim(task.inputs[0])
    assert elsewhere.__enter__()

    def other_process(_: float) -> None:
        assert CALLS == ["double 2"]                    # what is free comes first
        cache.put(task.inputs[0], double("lab", {}, cache.scratch(task.inputs[0]), value=1), 0.0)
        elsewhere.__exit__(None, None, None)

    monkeypatch.setattr(time, "sleep", other_process)
    results, cached = execute(task, Cache(tmp_path))
    assert cached == [False, True, False]
    assert results[task]["x"].tolist() == [6, 6, 6]


def test_tasks_as_units_for_other_processes(tmp_path: Path):
    task, cache = tasks(1, 2), Cache(tmp_path)
    units = units_of([task], cache)
    assert [unit.kind for unit in units] == ["parts", "parts", "total"]
    assert [other.key for other in units[2].inputs] == [other.key for other in task.inputs]
    work = working([task], "lab", cache)
    with pytest.raises(InputError, match="the result of parts/1 is gone"):
        list(work(task.key))
    assert [name for unit in units for _, name, _ in work(unit.value)] == ["parts/1", "parts/2", "total"]
    assert all((tmp_path / unit.files[0]).exists() for unit in units)
    assert not units_of([task], cache)                  # nothing is left to do
    assert not list(working([task], "lab", Cache(tmp_path))(task.key))      # and what is there tells nothing
    with pytest.raises(InputError, match="other code, data or weights"):
        list(work(tasks(1, 3).key))
