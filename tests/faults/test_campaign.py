"""The kill campaign in short: kills, Ctrl-C, a full disk and two processes at once change no byte of a result."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="a command is forked from the campaign")
def test_whatever_disturbs_a_command_its_result_is_the_same(tmp_path: Path) -> None:
    can_mount = shutil.which("mount") is not None and os.geteuid() == 0 and mounts(tmp_path)
    command = [
        sys.executable, str(ROOT / "scripts" / "kill_campaign.py"), "--commands", "sample", "calibrate", "convert",
        "--kills", "3", "--interrupts", "1", "--disks", "1" if can_mount else "0",
        "--out", str(tmp_path / "found.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (tmp_path / "found.json").exists(), done.stderr
    for name, found in json.loads((tmp_path / "found.json").read_text()).items():
        deaf = [problem for problem in found["problems"] if "from Ctrl-C" not in problem]      # a machine may be busy
        assert deaf == [], name
        assert found["kills"] == 3
        assert found["files_compared"] > 0


def mounts(folder: Path) -> bool:
    """File systems can be mounted here."""
    (folder / "disk").mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder / "disk")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return False
    subprocess.run(["umount", "-l", str(folder / "disk")], check=True)
    return True
