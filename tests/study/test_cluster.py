"""Units on clusters: the same files wherever they are made, whatever dies, and nothing that hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fpmc.errors import InputError
from fpmc.study import cluster
from fpmc.study.cluster import Unit, Where
from study.pieces import Settings, make, units

if not cluster.installed():
    pytest.skip("the extra is not installed: pip install 'fpmc[cluster]'", allow_module_level=True)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes and namespaces as Linux has them")


def total(folder: Path) -> int:
    return int((folder / "100.txt").read_text())


def test_a_local_cluster_loses_a_worker_and_nothing_else(tmp_path: Path):
    import psutil

    out, marks, said, told = tmp_path / "out", tmp_path / "marks", [], []
    marks.mkdir()
    for message in Where(2).run(make, Settings(marks=str(marks), dies=2), units(6), out, said.append):
        told.append(message)
        if len(told) == 1:
            open_to = set()
            for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
                with suppress(psutil.NoSuchProcess):        # one of them is meant to die
                    found = process.net_connections("inet")
                    open_to |= {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN and each.laddr}
    assert total(out) == sum(range(6)) + 100
    assert [line for line in said if "a worker ended" in line]
    runs = sorted(int(mark.name.split("-")[0]) for mark in marks.iterdir())
    assert runs == [0, 1, 2, 2, 3, 4, 5, 100]           # only what was cut came twice
    assert len({message["process"] for message in told}) >= 2
    assert open_to == {"127.0.0.1"}
    assert not [name for name in os.listdir(out) if name.startswith(".cluster")]


def test_bad_input_in_a_worker_is_told_here_and_the_rest_is_kept(tmp_path: Path):
    wrong = Unit("wrong", {"number": 13, "inputs": ()}, ("13.txt",))
    with pytest.raises(InputError, match="13 is no number"):
        list(Where(2).run(make, Settings(), [*units(2), wrong], tmp_path, lambda _: None))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"jobs": 0}, "jobs 0: at least 1"),
        ({"cluster": "host:8786"}, "tcp://host:8786"),
        ({"options": Path("x.yaml")}, "go with --cluster slurm"),
    ],
)
def test_places_that_are_none_are_refused(where, said: str):
    with pytest.raises(InputError, match=said):
        Where(**where)


def test_without_the_extra_there_is_one_process_and_a_line_that_says_so(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(cluster, "installed", lambda: False)
    assert not Where(4).many(said.append)
    assert "fpmc[cluster]" in said[0]
    assert not Where(1).many(said.append)
    assert len(said) == 1
    with pytest.raises(InputError, match=r"fpmc\[cluster\]"):
        Where(cluster="slurm")


def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "CONNECT", 1)
    with pytest.raises(InputError, match="is it running"):
        list(Where(cluster="tcp://127.0.0.1:9").run(make, Settings(), units(1), tmp_path, print))


def test_nothing_imports_dask_before_it_is_used():
    code = "import sys, fpmc.cli.reproduce, fpmc.study.reproduce, fpmc.study.levels; sys.exit('dask' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_needs_more_than_a_worker_has_goes_to_the_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from fpmc.study.remote import Session, device_of

    offers = [{"MEMORY": 100.0}, {"MEMORY": 300.0}]
    session = Session(Where(2), None, make, Settings(), tmp_path, print)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(session, "_workers", lambda: offers)
    session._check_offers([unit._replace(memory=memory) for unit, memory in zip(units(1), (200, 500))])
    assert session.most == 300
    session.where = Where(2, gpu=True)
    with pytest.raises(InputError, match="offers a GPU"):
        session._check_offers(units(1))
    assert [device_of(name, 4) for name in ("0", "5", "SLURMCluster-0")] == ["cuda:0", "cuda:1", "cuda"]


# A running cluster that does not see our folders


def start(*words: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([*filter(None, sys.path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "DASK_LOGGING__DISTRIBUTED": "critical"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(words, env=env, start_new_session=True, **quiet)


class Running:
    """A scheduler and a worker in processes of their own; the worker has nothing in a folder that we have."""

    def __init__(self, hidden: Path, file: Path) -> None:
        self.python, self.hidden, self.file = [sys.executable, "-m"], hidden, file
        self.processes: list[subprocess.Popen[bytes]] = []

    def scheduler(self) -> str:
        self.file.unlink(missing_ok=True)
        arguments = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(self.file)]
        self.processes.append(start(*self.python, "distributed.cli.dask_scheduler", *arguments))
        while not self.file.exists() or not self.file.read_text():
            time.sleep(0.05)
        return json.loads(self.file.read_text())["address"]

    def worker(self, address: str) -> None:
        arguments = f"{address} --host 127.0.0.1 --nthreads 2 --no-dashboard --local-directory /tmp"
        command = " ".join([*self.python, "distributed.cli.dask_worker", arguments])
        hiding = f"mount -t tmpfs none {self.hidden}"
        self.processes.append(start("unshare", "-rm", "sh", "-c", f"{hiding} && exec {command}"))

    def end(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    hidden = tmp_path / "ours"
    hidden.mkdir()
    found = Running(hidden, tmp_path / "scheduler.json")
    yield found
    found.end()


def test_without_a_shared_folder_files_travel_and_a_lost_scheduler_loses_nothing(running: Running):
    address, out, said = running.scheduler(), running.hidden / "out", []
    running.worker(address)
    data = running.hidden / "number.txt"
    data.write_text("1000")
    first, *others, last = units(3)
    assert not list(Where(cluster=address).run(make, Settings(str(data)), [], out, said.append))
    told = list(Where(cluster=address).run(make, Settings(str(data)), [first], out, said.append))
    assert len(told) == 1
    assert "through the network" in said[0]
    assert (out / "0.txt").read_text() == "1000"
    assert (out / ".0.txt.sha256").exists()             # written here, with its checksum
    slow = [unit._replace(value={**unit.value, "seconds": 60}) for unit in others]
    cut = Where(cluster=address).run(make, Settings(str(data)), slow, out, said.append)
    next(cut)
    os.killpg(running.processes[0].pid, signal.SIGKILL)
    with pytest.raises(InputError, match="the same command goes on"):
        list(cut)
    running.end()
    running.processes.clear()
    address = running.scheduler()
    running.worker(address)
    list(Where(cluster=address).run(make, Settings(str(data)), [*others, last], out, said.append))
    assert total(out) == 4 * 1000 + sum(range(3)) + 100


# Slurm, played by two scripts

SBATCH = """#!/bin/sh
cp "$1" {folder}/job.sh
setsid sh {folder}/job.sh > {folder}/job.log 2>&1 &
echo $! > {folder}/pid
echo "Submitted batch job 7"
"""
SCANCEL = """#!/bin/sh
echo "$@" > {folder}/cancelled
kill -9 -$(cat {folder}/pid)
"""


def test_slurm_gets_a_job_and_is_told_to_cancel_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, script in {"sbatch": SBATCH, "scancel": SCANCEL}.items():
        (tmp_path / name).write_text(script.format(folder=tmp_path))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    options = tmp_path / "slurm.yaml"
    options.write_text("cores: 1\nmemory: 2GB\nwalltime: '01:00:00'\nqueue: short\ninterface: lo\n"
                       "job_extra_directives: ['--gres=gpu:1']\nworker_extra_args: ['--resources', 'GPU=1']\n")
    out = tmp_path / "out"
    list(Where(1, "slurm", options).run(make, Settings(), units(2), out, lambda _: None))
    assert total(out) == 101
    job = (tmp_path / "job.sh").read_text()
    for line in ("#SBATCH -p short", "#SBATCH -t 01:00:00", "#SBATCH --cpus-per-task=1", "#SBATCH --gres=gpu:1",
                 "--resources GPU=1"):
        assert line in job
    assert (tmp_path / "cancelled").read_text().strip() == "7"
    options.write_text("cores: 1\nmemory: 2GB\nqueues: short\n")
    with pytest.raises(InputError, match="queues"):
        list(Where(1, "slurm", options).run(make, Settings(), units(1), out, lambda _: None))
