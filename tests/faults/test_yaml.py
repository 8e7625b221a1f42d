"""YAML of strangers: plain values, or one line that says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fpmc.errors import InputError
from fpmc.readers.text import read_yaml


def test_plain_values_are_read(tmp_path: Path):
    (tmp_path / "x.yaml").write_text("cores: 4\nmemory: 8GB\nextra: ['--gres=gpu:1', {a: 1}]\n")
    assert read_yaml(tmp_path / "x.yaml", kind=dict) == {
        "cores": 4, "memory": "8GB", "extra": ["--gres=gpu:1", {"a": 1}],
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\na: 2", "twice"),
        ("a: &x 1\nb: *x", "tag or an anchor"),
        ("a: !!python/object/apply:os.system ['touch canary']", "tag or an anchor"),
        ("[" * 60, "nested more than"),
        ("- 1", "an object"),
        ("a: [", "cannot be read"),
        ("a: \0", "cannot be read"),
        ("a: " + "x" * 2**16, "at most 65,536 are read"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str, why: str):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InputError, match=why) as caught:
        read_yaml(tmp_path / "x.yaml", kind=dict)
    assert "x.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)
