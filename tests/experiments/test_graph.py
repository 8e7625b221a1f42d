"""Steps: what decides their keys, what is computed again, what an interruption costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fpmc.experiments.graph import Cache, Made, Results, Step, ordered, run

CALLS: list[str] = []


def double(lab, inputs, scratch, *, value: float) -> Made:
    CALLS.append(f"double {value}")
    if lab == "interrupted" and value == 3:
        raise KeyboardInterrupt
    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "half-way").write_text("kept until the step is done")
    return Made({"x": torch.full((3,), 2.0 * value)}, {"value": value, "pair": (1, 2)})


def total(lab, inputs, scratch) -> Made:
    CALLS.append("total")
    return Made({"x": torch.stack([result["x"] for result in inputs.values()]).sum(0)}, {})


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


def steps(*values: float, **changes) -> Step:
    parts = tuple(Step(f"parts/{value}", double, {"value": value}, **changes) for value in values)
    return Step("total", total, {}, inputs=parts)


def execute(step: Step, cache: Cache, lab: str = "lab") -> tuple[Results, list[bool]]:
    results = Results()
    return results, [done.cached for done in run([step], lab, cache, results)]


def test_inputs_come_first_and_shared_steps_once():
    step = steps(1, 2)
    both = Step("both", total, {}, inputs=(step, steps(1)))
    assert [each.name for each in ordered([step, both])] == ["parts/1", "parts/2", "total", "total", "both"]
    assert step.kind == "total"
    assert step.inputs[0].kind == "parts"


@pytest.mark.parametrize(
    "other",
    [
        steps(1, 3), steps(1), steps(1, 2, stamps={"data": "changed"}), steps(1, 2, version=2),
        replace(steps(1, 2), name="other"), replace(steps(1, 2), stamps={"network": "new"}),
    ],
)
def test_the_key_knows_all_that_decides_a_result(other):
    assert steps(1, 2).key == steps(1, 2).key
    assert other.key != steps(1, 2).key


def test_what_exists_is_not_computed_again_and_what_changed_is(tmp_path: Path):
    step = steps(1, 2)
    results, cached = execute(step, Cache(tmp_path))
    assert cached == [False, False, False]
    assert results[step]["x"].tolist() == [6, 6, 6]
    assert not (tmp_path / "unfinished" / step.inputs[0].key[:24]).exists()
    results, cached = execute(step, Cache(tmp_path))
    assert cached == [True, True, True]
    assert results[step]["x"].tolist() == [6, 6, 6]
    assert results[step.inputs[0]].info == {"value": 1, "pair": [1, 2]}
    _, cached = execute(steps(1, 5), Cache(tmp_path))
    assert cached == [True, False, False]
    assert CALLS == ["double 1", "double 2", "total", "double 5", "total"]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "swap"])
def test_a_damaged_result_is_computed_again_with_a_note(tmp_path: Path, damage: str):
    step, notes = steps(1, 2), []
    execute(step, Cache(tmp_path))
    one, two = (next(tmp_path.glob(f"parts_{value}-*")) for value in (1, 2))
    content = bytearray(one.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    one.write_bytes({"flip": content, "cut": content[:-4], "empty": b"", "swap": two.read_bytes()}[damage])
    results, cached = execute(step, Cache(tmp_path, notes.append))
    assert cached == [False, True, True]
    assert len(notes) == 1
    assert "parts_1" in notes[0]
    assert results[step.inputs[0]]["x"].tolist() == [2, 2, 2]


def test_an_interruption_loses_one_unit(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        execute(steps(1, 2, 3, 4), Cache(tmp_path), "interrupted")
    _, cached = execute(steps(1, 2, 3, 4), Cache(tmp_path))
    assert cached == [True, True, False, False, False]
