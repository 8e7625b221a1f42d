"""Units on a Dask cluster: what the command does, and what a worker does. Imported only where there is Dask."""

from __future__ import annotations

import math
import os
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from distributed import Client, KilledWorker, Worker, WorkerPlugin, get_worker
from distributed.scheduler import NoValidWorkerError

from fpmc.errors import InputError, in_short
from fpmc.files import atomic, write_checked
from fpmc.readers.source import is_there, read_bytes
from fpmc.study.cluster import GPU, MEMORY, SLOT, Make, Say, Unit, Where, Work

PATIENCE = 120                                          # seconds without a worker
TICK = 1.0                                              # seconds between looks at the workers
LARGEST = 2**30                                         # bytes of a file that goes through the network
OURS = ("outdir", "cache", "cluster", "cluster_options")     # options that no worker reads

Files = Mapping[str, bytes]


# The command's side


class Order(NamedTuple):
    """What a worker is told of a command."""

    token: str                                          # the command's own: its messages, its mark in the folder
    folder: Path
    config: Any
    threads: int | None                                 # of a unit; None: as many as the worker has
    paths: dict[str, str]                               # options that name files, which a worker may not have
    travel: bool = False                                # files go through the network


class Session:
    """One command on a cluster."""

    def __init__(self, where: Where, client: Client, make: Make, config: Any, folder: Path, say: Say) -> None:
        self.where, self.client, self.make, self.folder, self.say = where, client, make, folder, say
        paths = {
            field.name: os.path.abspath(value) for field in fields(config)
            if field.name not in OURS and isinstance(value := getattr(config, field.name), str) and is_there(value)
        }
        threads = where.threads if where.cluster is None else None
        self.order = Order(secrets.token_hex(8), folder.resolve(), replace(config, **paths), threads, paths)
        self.arrived: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.held: dict[str, Any] = {}                  # files that travel, on their way
        self.most = 0.0                                 # bytes that a unit takes
        self.seen = time.monotonic()                    # when there was a worker for it

    def run(self, units: Sequence[Unit]) -> Iterator[Any]:
        """What units tell, as it comes; each one's files are in the folder when it is done."""
        with self._known(), self._heard():
            self._check_offers(units)
            futures = {unit.key: None for unit in units}
            needs = {unit.key: {other.key for other in unit.inputs if other.key in futures} for unit in units}
            waiting = {unit.key: unit for unit in units}
            while waiting:
                # A unit is handed on when its inputs are in the folder, and not before: of results that only a worker
                # holds, Dask would compute those again that die with it.
                for key, unit in waiting.items():
                    if futures[key] is None and not needs[key] & waiting.keys():
                        futures[key] = self._submitted(unit)
                try:
                    kind, found = self.arrived.get(timeout=TICK)
                except queue.Empty:
                    self._workers()
                    continue
                if kind == "told":
                    yield found
                elif kind == "lost":
                    self.say(f"a worker ended ({found}); another does what it was at")
                elif found in waiting:
                    self._settle(waiting.pop(found), futures.pop(found))

    @contextmanager
    def _known(self) -> Iterator[None]:
        """Workers that are there, and all that come later, know the command and have its files."""
        self._first_worker()
        with self._mark(), self._reached():
            answers: list[tuple[bool, list[str]]] = [*dict(self.client.run(_lacks, self.order)).values()]  # pyright: ignore
        self.order = self.order._replace(travel=any(lacks_folder for lacks_folder, _ in answers))
        missing = {option for _, options in answers for option in options}
        if self.order.travel:
            self.say("workers do not see the folder of results: files go through the network")
        sent = {option: _sendable(option, Path(self.order.paths[option])) for option in sorted(missing)}
        name = f"fpmc-{self.order.token}"
        with self._reached():
            self.client.register_plugin(Furnish(self.order.token, sent), name=name)
        try:
            with self._mark():
                yield
        finally:
            if self.client.cluster is None:             # others end with the command, and soon
                with suppress(Exception):               # it may be gone
                    self.client.unregister_worker_plugin(name)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Something that all workers are asked at the start."""
        try:
            yield
        except ImportError as error:
            raise InputError(f"workers of {self._place} lack what this command has: {in_short(error)}") from error
        except OSError as error:
            raise InputError(f"{self._lost()} ({in_short(error)})") from error

    @contextmanager
    def _mark(self) -> Iterator[None]:
        """A file by which a worker knows the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = _mark_of(self.order)
        mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Messages of units and losses of workers arrive in the queue."""

        def lost(event: tuple[float, Any]) -> None:
            if event[1].get("action") == "remove-worker" and not event[1].get("expected"):
                self.arrived.put(("lost", event[1].get("worker")))

        topics = {self.order.token: lambda event: self.arrived.put(("told", event[1])), "all": lost}
        for topic, handler in topics.items():
            self.client.subscribe_topic(topic, handler)
        try:
            yield
        finally:
            for topic in topics:
                with suppress(Exception):
                    self.client.unsubscribe_topic(topic)

    def _first_worker(self) -> None:
        if self.where.cluster == "slurm":
            self.say("waiting for Slurm to start a job")
        while not self._workers():
            time.sleep(TICK)

    def _workers(self) -> list[dict[str, float]]:
        """What each worker offers; having none for long is refused."""
        try:
            found = self.client.scheduler_info(n_workers=-1)["workers"].values()
        except (OSError, RuntimeError) as error:        # Dask's name for a closed connection is an OSError
            raise InputError(self._lost()) from error
        if self.client.status != "running":
            raise InputError(self._lost())
        offers = [each["resources"] for each in found]
        roomy = [each for each in offers if each.get(MEMORY, math.inf) >= self.most]
        if self.where.cluster == "slurm" or any(each.get(GPU, 0) >= self.where.gpu for each in roomy):
            self.seen = time.monotonic()                # Slurm's queue may be long
        elif time.monotonic() > self.seen + PATIENCE:
            raise InputError(f"{self._place} has had no worker for this for {PATIENCE} s; {_start(self.where)}")
        if self.where.cluster is None:
            self._mend()
        return offers

    def _mend(self) -> None:
        """Dask starts a local worker again that dies at work, but not one that dies while it starts."""
        cluster: Any = self.client.cluster

        def mend() -> None:
            for name, nanny in list(cluster.workers.items()):
                if nanny.status.name in ("closed", "failed"):
                    del cluster.workers[name]
            cluster.scale(len(cluster.worker_spec))

        if any(nanny.status.name in ("closed", "failed") for nanny in [*cluster.workers.values()]):
            cluster.loop.add_callback(mend)

    @property
    def _place(self) -> str:
        return f"the cluster {self.where.cluster or 'of processes'}"

    def _check_offers(self, units: Sequence[Unit]) -> None:
        """What takes more memory than any worker has, by prediction, is given one of the largest."""
        offers = self._workers()
        room = max((each.get(MEMORY, math.inf) for each in offers), default=math.inf)
        self.most = min(room, max(unit.memory for unit in units))
        if self.where.gpu and not any(each.get(GPU) for each in offers):
            raise InputError(f"no worker of {self._place} offers a GPU; start workers with --resources GPU=1")

    def _submitted(self, unit: Unit) -> Any:
        given, travel = [], self.order.travel
        resources = {SLOT: 1, MEMORY: min(unit.memory, self.most)} | ({GPU: 1} if self.where.gpu else {})
        needed = [name for other in unit.inputs for name in other.files]
        for other in unit.inputs if travel else ():
            if other.key not in self.held:
                name = f"held-{self.order.token}-{other.key}"
                self.held[other.key] = self.client.submit(_hold, self._there(other), key=name)
            given.append(self.held[other.key])
        future = self.client.submit(
            _work, self.make, self.order, unit._replace(inputs=()), needed, self._there(unit) if travel else {}, given,
            key=f"{unit.kind}-{self.order.token}-{unit.key}", resources=resources, pure=False,
        )
        future.add_done_callback(lambda _: self.arrived.put(("done", unit.key)))
        return future

    def _there(self, unit: Unit) -> Files:
        """Files of a unit that are in the folder: of an input, or of an earlier sitting."""
        places = {name: self.folder / name for name in unit.files}
        return {name: read_bytes(place, LARGEST) for name, place in places.items() if place.exists()}

    def _settle(self, unit: Unit, future: Any) -> None:
        """Take what a unit found."""
        try:
            found = future.result(timeout=PATIENCE)
        except KilledWorker as error:
            raise InputError(
                f"{unit.kind}: several workers ended at it, perhaps of memory; give them more, or use fewer --jobs"
            ) from error
        except NoValidWorkerError as error:
            raise InputError(f"{self._place} has no worker for {unit.kind}; {_start(self.where)}") from error
        except Exception as error:                      # Dask's own have no base of their own
            if future.status == "error" and not isinstance(error, TimeoutError | OSError):
                raise
            raise InputError(self._lost()) from error
        _write(self.folder, {name: found[name] for name in unit.files if name in found}, unit.checked)
        _appear(self.folder, unit.files)

    def _lost(self) -> str:
        return f"the connection to {self._place} is lost; what is done is kept, and the same command goes on with it"


def _start(where: Where) -> str:
    return f"start one: dask worker {where.cluster}" if where.cluster else "see whether this machine is out of memory"


def _sendable(option: str, path: Path) -> tuple[str, bytes]:
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise InputError(
            f"workers do not see --{option} {str(path)!r}, and only files of up to {LARGEST >> 30} GiB are sent; "
            "copy it to the same place on their machines"
        )
    return path.name, read_bytes(path, LARGEST)


# A worker's side


def _mark_of(order: Order) -> Path:
    return order.folder / f".cluster-{order.token}"


def _lacks(order: Order) -> tuple[bool, list[str]]:
    """Whether this worker does not see the folder, and the options whose files it does not see."""
    return not _mark_of(order).exists(), [option for option, path in order.paths.items() if not is_there(path)]


def _hold(files: Files) -> Files:
    return files


def _own_folder(token: str) -> Path:
    return Path(get_worker().local_directory) / f"fpmc-{token}"


class Furnish(WorkerPlugin):
    """Dask's plugin for workers: files of the command, and what a worker offers."""

    def __init__(self, token: str, sent: dict[str, tuple[str, bytes]]) -> None:
        self.token, self.sent = token, sent

    async def setup(self, worker: Worker) -> None:
        for option, (name, content) in self.sent.items():
            with atomic(Path(worker.local_directory) / f"fpmc-{self.token}" / option / name) as part:
                part.write_bytes(content)
        worker.memory_manager.memory_pause_fraction = False     # images that stay would pause it for ever
        memory = worker.memory_manager.memory_limit or psutil.virtual_memory().total
        await worker.set_resources(**{MEMORY: memory, **worker.state.total_resources, SLOT: 1})


def _work(
    make: Make, order: Order, unit: Unit, needed: Sequence[str], own: Files, given: Sequence[Files]
) -> Files:
    """Do a unit on a worker; its files, where they travel."""
    worker = get_worker()
    folder = _own_folder(order.token) if _lacks(order)[0] else order.folder
    if folder != order.folder and not order.travel:
        raise InputError(
            f"the worker {worker.address} does not see {str(order.folder)!r}, which others do; give it that folder, "
            "or start it before the command"
        )
    for files in (own, *given):
        _write(folder, {name: files[name] for name in files if not (folder / name).exists()}, unit.checked)
    _appear(folder, needed)
    for message in _ready(make, order, folder, str(worker.name))(unit.value):
        worker.log_event(order.token, message)
    return {name: read_bytes(folder / name, LARGEST) for name in unit.files} if order.travel else {}


_READY: dict[str, Work] = {}                            # of the latest command


def _ready(make: Make, order: Order, folder: Path, worker: str) -> Work:
    """What does the units of a command, made once in each process."""
    if order.token not in _READY:
        import torch
        from tqdm import tqdm

        tqdm.set_lock(threading.RLock())                # its own is a semaphore, which a killed process leaves behind
        torch.set_num_threads(order.threads or get_worker().state.nthreads)
        _READY.clear()
        sent = {
            option: next((str(file) for file in (_own_folder(order.token) / option).glob("*")), path)
            for option, path in order.paths.items() if not is_there(path)
        }
        config = replace(order.config, **sent)
        if getattr(config, "device", None) == "cuda":
            config = replace(config, device=device_of(worker, torch.cuda.device_count()))
        _READY[order.token] = make(config, folder)
    return _READY[order.token]


def device_of(worker: str, devices: int) -> str:
    """The GPU of a worker: local ones are numbered and take one each, others have theirs to themselves."""
    return f"cuda:{int(worker) % devices}" if worker.isdigit() and devices > 1 else "cuda"


def _write(folder: Path, files: Files, checked: bool) -> None:
    for name, content in files.items():
        if checked:
            write_checked(folder / name, content)
        else:
            with atomic(folder / name) as part:
                part.write_bytes(content)


def _appear(folder: Path, names: Sequence[str]) -> None:
    """Wait until files of another machine are seen here: network file systems take their time."""
    began = time.monotonic()
    while missing := [name for name in names if not (folder / name).exists()]:
        if time.monotonic() > began + PATIENCE:
            raise InputError(f"another machine wrote {missing[0]!r}, which is not in {str(folder)!r}; is that shared?")
        time.sleep(TICK / 10)
