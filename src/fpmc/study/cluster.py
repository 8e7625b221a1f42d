"""Where units of work run: in this process, or through Dask on a local cluster, a running one, or Slurm.

A unit is a noise level or a task; what it finds are files in a folder. Where the workers see that folder they write
there themselves, elsewhere files travel as bytes and this process writes them. Files are whole or absent and known by
name, so a unit can be cut, repeated and given to another worker. Dask is imported only where it is used.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fpmc.errors import InputError, in_short
from fpmc.readers.text import read_yaml

EXTRA = "pip install 'fpmc[cluster]'"
FAILURES = 10                                           # workers that may die of one unit on a local cluster
SLOT, MEMORY, GPU = "fpmc", "MEMORY", "GPU"             # what a worker offers: one unit at a time, bytes, devices
CONNECT = 10                                            # seconds to reach a scheduler
SPARE = 0.8                                             # of the machine's memory is for workers


Say = Callable[[str], object]
Work = Callable[[Any], Iterator[Any]]                   # does a unit by its value, and tells plain values as it goes
Make = Callable[[Any, Path], Work]                      # from a command's settings and the folder where files go


class Unit(NamedTuple):
    """One piece of work, which leaves files in a folder."""

    key: str                                            # equal keys, equal files
    value: Any                                          # what it is, as plain values: a noise level, a task's key
    files: tuple[str, ...]                              # names within the folder
    kind: str = "level"                                 # for the dashboard
    inputs: tuple[Unit, ...] = ()                       # units whose files it reads
    memory: float = 0.0                                 # bytes at its peak, predicted
    checked: bool = True                                # its files have their checksums beside them


@dataclass(frozen=True)
class Where:
    """A place for units: `jobs` processes of this machine, a scheduler's address, or "slurm" with its options."""

    jobs: int = 1
    cluster: str | None = None
    options: Path | None = None                         # YAML: keywords of dask_jobqueue.SLURMCluster
    threads: int = 1                                    # of each process of this machine
    gpu: bool = False                                   # a unit takes a GPU

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InputError(f"jobs {self.jobs}: at least 1 is needed")
        if self.cluster is not None and self.cluster != "slurm" and "://" not in self.cluster:
            raise InputError(f"--cluster {self.cluster!r}: give slurm, or a scheduler's address like tcp://host:8786")
        if self.options is not None and self.cluster != "slurm":
            raise InputError(f"--cluster_options {str(self.options)!r} go with --cluster slurm")
        if self.cluster is not None and not installed():
            raise InputError(f"--cluster {self.cluster} needs dask.distributed; {EXTRA}")

    def many(self, say: Say) -> bool:
        """Whether units go to other processes; says what that takes where it was asked for and cannot be."""
        if self.cluster is None and self.jobs > 1 and not installed():
            say(f"one process instead of {self.jobs}, which would need dask.distributed; {EXTRA}")
            return False
        return self.cluster is not None or self.jobs > 1

    def run(
        self, make: Make, config: Any, units: Sequence[Unit], folder: Path, say: Say
    ) -> Iterator[Any]:
        """What `make(config, folder)(unit.value)` tells of every unit, as it comes; then all files are in the folder.

        Units come after their inputs; inputs that are not among them are in the folder already.
        """
        if units:
            with _client(self, units, say) as client:
                from fpmc.study.remote import Session

                yield from Session(self, client, make, config, folder, say).run(units)


def installed() -> bool:
    """Whether the extra is there."""
    return find_spec("distributed") is not None


# Clusters


@contextmanager
def _client(where: Where, units: Sequence[Unit], say: Say) -> Iterator[Any]:
    """Dask's client; what was started for it ends with the block, at once and without a word."""
    import dask

    names = ("distributed", "distributed.client", "distributed.nanny", "distributed.worker", "tornado", "asyncio")
    dask.config.set({"logging": dict.fromkeys(names, "critical"), "distributed.nanny.pre-spawn-environ": {}})
    from distributed import Client

    for name in names:                                  # had Dask been imported before
        logging.getLogger(name).setLevel(logging.CRITICAL)
    cluster = client = None
    try:
        if where.cluster is None:
            cluster = _local(where, units)
        elif where.cluster == "slurm":
            cluster = _slurm(where)
        client = Client(cluster or where.cluster, timeout=CONNECT, set_as_default=False)
        if find_spec("bokeh") is not None:
            say(f"dashboard: {client.dashboard_link}")
    except BaseException as error:                      # Ctrl-C, too
        _end(client, cluster)
        if isinstance(error, InputError) or not isinstance(error, OSError | TypeError | ValueError | RuntimeError):
            raise
        reachable = "; is it running, and can it be reached from here?" if cluster is None else ""
        raise InputError(f"no cluster {where.cluster or 'of processes'}: {in_short(error)}{reachable}") from error
    try:
        yield client
    finally:
        _end(client, cluster)


def _local(where: Where, units: Sequence[Unit]) -> Any:
    """Processes that only this machine can reach; as many as its memory has room for."""
    import dask
    import psutil
    from distributed import LocalCluster

    memory, largest = SPARE * psutil.virtual_memory().total, max(1.0, *(unit.memory for unit in units))
    count = max(1, min(where.jobs, len(units), int(memory // largest)))
    dask.config.set({
        "distributed.scheduler.allowed-failures": FAILURES,
        "distributed.deploy.lost-worker-timeout": "1 hour",     # a slow machine starts them slowly
    })
    # Ctrl-C is for this process only: the thread that starts the others does not take it, so they do not either.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        cluster = LocalCluster(
            n_workers=0, host="127.0.0.1", silence_logs=logging.CRITICAL, threads_per_worker=where.threads,
            memory_limit=0,                             # Dask would pause a worker that keeps its images
            dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": find_spec("bokeh") is not None},
            resources={MEMORY: memory / count} | ({GPU: 1} if where.gpu else {}),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    cluster.scale(count)
    return cluster


def _slurm(where: Where) -> Any:
    """Jobs of Slurm, with a scheduler in this process."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise InputError(f"--cluster slurm needs dask-jobqueue; {EXTRA}") from error
    options = {} if where.options is None else read_yaml(where.options, kind=dict)
    usual = {"silence_logs": "critical", "scheduler_options": {"dashboard_address": ":0"}}
    cluster = SLURMCluster(**{**usual, **options})
    cluster.scale(jobs=where.jobs)
    return cluster


def _end(client: Any, cluster: Any) -> None:
    """Processes of this machine are killed, as files are whole at any moment; jobs of Slurm are cancelled."""
    for nanny in getattr(cluster, "workers", {}).values():
        if hasattr(nanny, "close_gracefully"):
            nanny.close_gracefully()                    # which here means: do not start it again
    for child in multiprocessing.active_children() if cluster is not None else ():
        if child.name.startswith("Dask Worker process"):
            child.kill()
    for each in (client, cluster):
        with suppress(Exception):                       # whatever is still under way is of no interest
            if each is not None:
                each.close(timeout=2)
