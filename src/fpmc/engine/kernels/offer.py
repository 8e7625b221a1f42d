"""An offer: one exact way to evaluate some groups at one noise level, with its cost and its error; and its run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.response import Partition
from fpmc.engine import cost
from fpmc.engine import settings as machine
from fpmc.engine.reduce import Reduction, Want
from fpmc.engine.settings import Call, Settings
from fpmc.engine.state import State

if TYPE_CHECKING:
    from fpmc.core.sources import Discrete

Respond = Literal["owned", "means", "mixed"]
FEW = 8                                                 # estimators whose whole means are kept
Members = tuple[Group, ...]


@dataclass(frozen=True, kw_only=True)
class Offer(ABC):
    """How some groups can be evaluated. A kernel is a subclass with `offers`, `start` and a name."""

    kernel: ClassVar[str]
    backend: ClassVar[Literal["numba", "torch"]]
    supplies: ClassVar[frozenset[Want]]
    known: ClassVar[dict[str, type[Offer]]] = {}        # every kernel by its name

    respond: Respond                                    # owned, means: one pass; mixed: two
    sigma: float                                        # as the kernel sees it: a temperature changes it
    estimators: int
    images: int
    counts: Mapping[str, float] = field(compare=False)  # operations per noisy image, by kind
    memory: float                                       # bytes of working arrays
    why: str
    error: float = 0.0                                  # of logits, in nats, beyond the rounding of plain sums
    threads: int = 1
    device: str = "cpu"                                 # type of the device
    batch: int | None = None                            # noisy images at a time; None: all
    groups: tuple[int, ...] = (0,)                      # which of the collection
    merged: int = 0                                     # estimators before merging
    others: tuple[tuple[str, float], ...] = ()          # other exact offers, and their seconds

    def __init_subclass__(cls, **others) -> None:
        super().__init_subclass__(**others)
        if "kernel" in cls.__dict__:
            Offer.known[f"{cls.backend} {cls.kernel}"] = cls

    @classmethod
    @abstractmethod
    def offers(cls, groups: Members, call: Call, settings: Settings, reduction: Reduction) -> Iterator[Offer]:
        """The ways this kernel has, none if it cannot."""

    @abstractmethod
    def start(self, groups: Members, z: Tensor, reduction: Reduction, total: Tensor) -> Run:
        """Set to work; `total` is Σ_ℓ r_ℓ over the collection (C, H, W)."""

    @property
    def joins(self) -> Hashable | None:
        """Offers of a kernel with the same value are evaluated together; None: each alone."""
        return None

    @property
    def work(self) -> float:
        """Multiply-adds per noisy image."""
        return sum(self.counts.values())

    @property
    def seconds(self) -> float:
        """Per noisy image, on the machine that the costs of the device were measured on or are predicted for."""
        return cost.seconds(self.counts, self.device) / self.threads

    @property
    def amount(self) -> str:
        return f"{self.threads} threads"

    def __str__(self) -> str:
        count = f"{self.estimators} estimators"
        if self.merged > self.estimators:
            count += f" (merged from {self.merged})"
        if len(self.groups) > 1:
            count += f" of {len(self.groups)} sizes"
        costs = cost.of(self.device)
        about = "about" if costs.measured else f"on {costs.machine}, predicted and not measured,"
        lines = [
            f"{self.kernel}, {self.respond}, {self.backend}: {count}, {self.images} images, {self.amount}",
            self.why,
            f"{self.work / 1e9:.3g} G multiply-adds and {about} {self.seconds:.2g} s per noisy image, "
            f"{self.memory / 2**20:.0f} MiB",
            *(f"instead of {name}: {seconds:.2g} s" for name, seconds in self.others),
        ]
        return "\n    ".join(lines)


class Run(ABC):
    """A kernel at work on one batch: a first pass over stretches of the source, and where it must be a second."""

    count = 0                                           # images of the source; 0: there is nothing to stream
    passes = 1

    def first(self, begin: int, end: int) -> State:
        """The sums over the images from `begin` to `end`."""
        raise NotImplementedError

    def second(self, begin: int, end: int, state: State) -> Tensor:
        """What these images add, given the merged state of all; sums of stretches are added."""
        raise NotImplementedError

    @abstractmethod
    def close(self, state: State | None, sums: Tensor | None) -> Sequence[Tensor] | Tensor:
        """What the reduction gets: Σ_ℓ r_ℓ μ̂_ℓ of each group, weighted where they are wanted together, or the sums."""


def respond_of(group: Group, reduction: Reduction, *, few: int = FEW, mixes: bool = False) -> Respond:
    """One pass where output values have one estimator each, or few estimators are wanted whole; else two."""
    if reduction.wants != "answers":
        return "mixed"
    if isinstance(group.r, Partition):
        return "owned"
    return "mixed" if mixes or len(group) > few else "means"


def fits(cls: type[Offer], call: Call, settings: Settings, reduction: Reduction) -> bool:
    """A kernel may be asked: its backend, its name, and what it supplies."""
    if reduction.wants not in cls.supplies or (settings.kernels is not None and cls.kernel not in settings.kernels):
        return False
    return cls.backend == "torch" or (
        settings.backend != "torch"
        and call.device == "cpu"
        and call.dtype == torch.float32
        and not call.gradients
        and machine.has_numba()
    )


def weight_of(group: Group, total: Tensor) -> Tensor:
    """What posteriors mixed by r are multiplied with to be weights: weight / Σ r, (C, H, W)."""
    return (1 / total) if group.weight is None else group.weight.to(total) / total


def cut_of(source: Discrete, passes: int, settings: Settings, copies: float = 1) -> float:
    """Nats below the largest logit from which images are passed over: they hold a share below the tolerance."""
    return math.inf if settings.exact else math.log(len(source) * copies * passes / settings.tolerance)


def weighted(groups: Sequence[Group], answers: Sequence[Tensor], reduction: Reduction) -> list[Tensor]:
    """Σ_ℓ r_ℓ μ̂_ℓ times the groups' weights, unless they are wanted apart."""
    if reduction.apart:
        return list(answers)
    return [a if g.weight is None else g.weight.to(a) * a for g, a in zip(groups, answers)]
