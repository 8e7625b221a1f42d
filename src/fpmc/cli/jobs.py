"""Work shared among processes: each takes one item after the other and tells what it does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, TypeVar

from fpmc.errors import InputError

Config = TypeVar("Config")
Item = TypeVar("Item")
Message = TypeVar("Message")
Work = Callable[[Item], Iterator[Message]]


def share(
    make: Callable[[Config], Work[Item, Message]], config: Config, items: Iterable[Item], *, jobs: int, threads: int
) -> Iterator[Message]:
    """What `make(config)(item)` yields for every item, as it comes, from `jobs` processes of so many threads each.

    Each process calls `make` once. All of them end with this one, whatever ends it.
    """
    context = multiprocessing.get_context("spawn")      # threads of torch do not survive a fork
    waiting = list(items)[::-1]
    workers: dict[Any, Any] = {}                        # connections to processes
    try:
        for _ in range(min(jobs, len(waiting))):
            ours, theirs = context.Pipe()
            workers[ours] = context.Process(target=_serve, args=(make, config, threads, theirs), daemon=True)
            workers[ours].start()
            theirs.close()                              # so that its end is heard
            ours.send(waiting.pop())
        while workers:
            for ours in list[Any](wait(list(workers))):
                try:
                    message, is_last = ours.recv()
                except EOFError:
                    workers[ours].join()
                    code = workers[ours].exitcode
                    raise InputError(f"a process ended with code {code}; see above, or use fewer --jobs") from None
                if isinstance(message, InputError):
                    raise message
                if not is_last:
                    yield message
                elif waiting:
                    ours.send(waiting.pop())
                else:
                    ours.close()
                    workers.pop(ours).join()
    finally:
        for process in workers.values():
            process.terminate()
            process.join()


def _serve(make: Callable[[Config], Work], config: Config, threads: int, parent: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)        # Ctrl-C goes to all; the parent ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    try:
        work = make(config)
        while True:
            for message in work(parent.recv()):
                parent.send((message, False))
            parent.send((None, True))
    except InputError as error:
        parent.send((error, True))
    except (EOFError, BrokenPipeError):                 # nothing is left to do
        pass


def _end_with_parent() -> None:
    """A killed parent cannot tell; files are whole at any moment, so this process may just end."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
