"""One thread that computes, the most urgent job first; jobs that a newer request has overtaken are dropped."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

CHANNELS = 512                                          # whose latest request is remembered
NOW, SOON, THEN, LATER = range(4)                       # a click; a strip; the strip of a network; a curve


class OvertakenError(Exception):
    """A newer request of the same kind has come; nobody waits for this one."""


@dataclass(order=True)
class Job:
    urgency: int
    number: int
    work: Callable[[], Any] = field(compare=False)
    wanted: Callable[[], bool] = field(compare=False)
    done: Callable[[Any, BaseException | None], None] = field(compare=False)


class Worker:
    """Runs jobs one at a time: kernels use all cores already, and a session is not made for two threads."""

    def __init__(self) -> None:
        self.jobs: queue.PriorityQueue[Job] = queue.PriorityQueue()
        self.numbers = itertools.count()
        self.latest: OrderedDict[str, int] = OrderedDict()
        self.closed = False
        self.thread = threading.Thread(target=self._work, daemon=True, name="explore")
        self.thread.start()

    def close(self) -> None:
        """Let the present job end, start none after it; Python must not end while a kernel still runs in its thread."""
        self.closed = True
        self.jobs.put(Job(-1, -1, lambda: None, lambda: False, lambda result, error: None))
        self.thread.join()

    def arrived(self, channel: str, sequence: int) -> Callable[[], bool]:
        """Note a request; returns what tells whether it is still the newest of its channel."""
        if sequence >= self.latest.get(channel, -1):
            self.latest[channel] = sequence
            self.latest.move_to_end(channel)
            while len(self.latest) > CHANNELS:
                self.latest.popitem(last=False)
        return lambda: sequence >= self.latest.get(channel, -1)

    async def run(self, work: Callable[[], Any], urgency: int, wanted: Callable[[], bool]) -> Any:
        """The result of `work`, or `OvertakenError` if it is no longer wanted when its turn comes."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_exception(error) if error is not None else future.set_result(result)

        def done(result: Any, error: BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, result, error)

        self.jobs.put(Job(urgency, next(self.numbers), work, lambda: wanted() and not future.cancelled(), done))
        return await future

    def _work(self) -> None:
        while not self.closed:
            job = self.jobs.get()
            if self.closed or not job.wanted():
                job.done(None, OvertakenError())
                continue
            try:
                result = job.work()
            except BaseException as error:              # the request fails, the worker goes on
                job.done(None, error)
            else:
                job.done(result, None)
