"""One call over the ranks of a torch.distributed group: each has a stretch of every set of images.

A call gathers twice: the log-sums of all ranks, then what each adds to the answer; once where one pass is enough. Every
rank merges what it got in the order of the ranks, so all have the same answer, and the number of ranks changes nothing
beyond rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fpmc.engine.run import Alone
from fpmc.errors import InputError, in_short

ALIKE = 1e-4                                            # z of two ranks: processors differ in the last digits


@dataclass
class Traffic:
    """What a rank has received from the others, and sent to each of them."""

    messages: int = 0
    received: int = 0                                   # bytes
    sent: int = 0                                       # bytes, to each of the others


class Ranks(Alone):
    """The members of a process group, each with one stretch of every set; those of more ranks than images are empty."""

    def __init__(self, group: Any = None) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InputError(
                "there is no process group of torch.distributed to share a source; start with torchrun and call "
                "torch.distributed.init_process_group first"
            )
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise InputError("this process is not in the group that is to share the source; leave it out of the call")
        nccl = dist.get_backend(group) == "nccl"
        self.device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")
        self.traffic, self._agreed = Traffic(), set[int]()
        self.asked("hello")
        (counts,) = zip(*self.gathered([torch.tensor(torch.get_num_threads())]))
        self._threads = int(torch.stack(counts).min())

    def stretches(self, count: int) -> list[tuple[int, int]]:
        return [self.stretch(self.rank, count)]

    def stretch(self, rank: int, count: int) -> tuple[int, int]:
        """Where the part of one of the ranks begins and ends."""
        return count * rank // self.size, count * (rank + 1) // self.size

    def threads(self) -> int:
        return self._threads

    def asked(self, what: str, *tensors: Tensor) -> None:
        """Goes in front of every message, so that ranks that were asked different things notice.

        What decides how long messages are is agreed upon first, once for all calls of its kind.
        """
        what += " ".join(f"{tuple(each.shape)} {each.dtype}" for each in tensors)
        name = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=6).digest(), "big")
        seals = [number for each in tensors for number in _seal(each)]
        if name not in self._agreed:
            self._question = torch.tensor([name], dtype=torch.float64)
            self._exchange([])
            self._agreed.add(name)
        self._question = torch.tensor([name, *seals], dtype=torch.float64)

    def gathered(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        if not tensors:
            return [[] for _ in range(self.size)]
        if any(each.requires_grad for each in tensors):
            raise InputError(
                "a denoiser over several ranks is not differentiable; use it under torch.no_grad(), the gradients of "
                "`finetune`, or the denoiser before .sharded()"
            )
        return self._exchange(tensors)

    def _exchange(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        parts = [self._question, *tensors]
        mine = torch.cat([part.contiguous().flatten().view(torch.uint8).to(self.device) for part in parts])
        every = [torch.empty_like(mine) for _ in range(self.size)]
        try:
            dist.all_gather(every, mine, group=self.group)
        except RuntimeError as error:
            raise InputError(
                f"rank {self.rank} of {self.size}: another rank has ended, cannot be reached or did not answer in time "
                f"({in_short(error, 120)}); see what it says itself, then start all of them again"
            ) from error
        self.traffic.messages += 1
        self.traffic.received += (self.size - 1) * len(mine)
        self.traffic.sent += len(mine)
        found = [_split(each, parts) for each in every]
        self._check([question for question, *_ in found])
        return [rest for _, *rest in found]

    def _check(self, questions: list[Tensor]) -> None:
        first = questions[0]
        slack = ALIKE * first[1::2].abs().repeat_interleave(2)                 # of Σ|t|, for both numbers of a seal
        for rank, other in enumerate(questions):
            if other[0] != first[0] or bool(((other - first)[1:].abs() > slack).any()):
                raise InputError(
                    f"rank {rank} was asked something else than rank 0; all ranks make the same calls with the same "
                    "images, z and sigma, and with the same versions of fpmc and numba"
                )


def _seal(tensor: Tensor) -> tuple[float, float]:
    """Two numbers that tell a tensor from others but for rounding: Σ|t|, and Σ t along a ramp."""
    flat = tensor.detach().flatten().double()
    return float(flat.abs().sum()), float(flat @ torch.linspace(-1, 1, len(flat), dtype=flat.dtype, device=flat.device))


def _split(message: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The tensors of a message."""
    pieces = message.split([each.numel() * each.element_size() for each in like])
    return [
        piece.clone().view(each.dtype).view(each.shape).to(each.device) for piece, each in zip(pieces, like)
    ]                                                   # copied, since numbers lie where their size divides the place
