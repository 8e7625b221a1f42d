"""What a device keeps from call to call: images as bytes, and masks. On the CPU nothing is kept: all is there.

Images go over in blocks, so that ranks and sets that do not fit send over again only what is missing. Every device
keeps `Settings.resident` bytes at most. What was used least recently makes room, but never for more of itself: going
through a set that is too large would throw out each block just before it is wanted again. A set is on one device at a
time, and gone from there as soon as nobody has it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Precision, Precisions
from fpmc.core.response import Response, Responses, SameAsQ
from fpmc.core.sources import Chunk, Discrete
from fpmc.images import ImageSet

BLOCK = 1 << 24                                         # bytes of images that go over at once
Held = dict[tuple[torch.device, int], tuple[Any, int]]  # by device and block: what is there, and its bytes
_held: WeakKeyDictionary[Any, Held] = WeakKeyDictionary()  # by whose it is, least recently used first
_lock = Lock()


def chunks(source: Discrete, size: int, begin: int, end: int, like: Tensor, limit: int) -> Iterator[Chunk]:
    """The images from `begin` to `end` in stretches of at most `size`, on the device of `like`, weights like it."""
    device = like.device

    def read(part: ImageSet, first: int, last: int) -> Tensor:
        return _read(part, first, last, device, limit)

    for pixels, log_weights, first in source.chunks(size, begin, end, None if device.type == "cpu" else read):
        yield Chunk(pixels.to(device), None if log_weights is None else log_weights.to(like), first)


class Placed(NamedTuple):
    """What a group is asked and answers, where it is computed."""

    q: Precision
    r: Response


def placed(group: Group, device: torch.device, limit: int) -> Placed:
    """q and r of a group; their tables are on the device."""
    if device.type == "cpu" or group.requires_grad:
        return Placed(group.q, group.r)
    q, r = _placed(group.q, device, limit), group.r
    if isinstance(r, SameAsQ):
        return Placed(q, replace(r, precision=_placed(r.precision, device, limit)))
    return Placed(q, _placed(r, device, limit))


def nbytes(device: torch.device) -> int:
    """Bytes that are kept on a device."""
    return sum(size for held in list(_held.values()) for (place, _), (_, size) in list(held.items()) if place == device)


def _placed(structure: Any, device: torch.device, limit: int) -> Any:
    if not isinstance(structure, Precisions | Responses):
        return structure                                # small: made anew from numbers

    def moved() -> Any:
        return replace(structure, values=structure.values.to(device))

    return _kept(structure, 0, device, limit, structure.values.nbytes, moved) or moved()


def _read(part: ImageSet, begin: int, end: int, device: torch.device, limit: int) -> Tensor:
    each = part.shape[0] * part.shape[1] * part.shape[2]
    size, found = max(1, BLOCK // each), []

    def sent(first: int, last: int) -> Tensor:
        return part.read(slice(first, last)).to(device)

    for number in range(begin // size, -(-end // size)):
        first, last = number * size, min((number + 1) * size, len(part))
        block = _kept(part, number, device, limit, (last - first) * each, partial(sent, first, last))
        here = max(begin, first), min(end, last)
        found.append(sent(*here) if block is None else block[here[0] - first : here[1] - first])
    return found[0] if len(found) == 1 else torch.cat(found)


def _kept(owner: Any, key: int, device: torch.device, limit: int, size: int, make: Callable[[], Any]) -> Any | None:
    """What is kept under a key, made if it must be; None: there is no room for it."""
    with _lock:
        held = {place: each for place, each in _held.pop(owner, {}).items() if place[0] == device}
        _held[owner] = held                             # the last now: it was used most recently
        if (device, key) in held:
            if not _room(owner, device, limit):         # it became lower
                return held.pop((device, key))[0]
        elif _room(owner, device, limit - size):
            held[device, key] = make(), size
        else:
            return None
        return held[device, key][0]


def _room(owner: Any, device: torch.device, most: int) -> bool:
    """Make others go until no more than `most` bytes are kept; whether it could be done."""
    for other in list(_held):
        if nbytes(device) <= most:
            break
        if other is not owner:
            _held[other] = {place: kept for place, kept in _held[other].items() if place[0] != device}
    return nbytes(device) <= most
