"""What to compute and how: a pure function of the groups, the noise level and the machine, printable and testable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import zip_longest
from typing import Literal
from weakref import WeakKeyDictionary

import torch

from fpmc.core.group import Group
from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import Partition, Response, SameAsQ
from fpmc.core.sources import Gaussian, Translations
from fpmc.engine.sparse import DEEPEST, choose
from fpmc.errors import InputError

Kernel = Literal["affine", "full", "boxes", "rows", "matrix", "shifts"]
Respond = Literal["owned", "means", "mixed"]
Backend = Literal["numba", "torch"]

EXPANSION_ERROR = 1e-4                                  # nats the expanded form of ‖z − x‖² may be off by
TOGETHER = 32                                           # sizes of squares at most: kernels mark them in bits
FEW = 8                                                 # estimators: whole means are kept, dense rows streamed
SHORT_ERROR = 1.5e-4                                    # nats that rows put together from others may be off by
DENSE = 0.3                                             # share of entries from which a matrix product beats sparse rows


@dataclass(frozen=True)
class Settings:
    """What a user may ask of the engine."""

    backend: Literal["auto", "numba", "torch"] = "auto"
    threads: int | None = None                          # None: as many as torch uses
    memory: int = 1 << 30                               # bytes for working arrays, beyond images and results
    chunk: int | None = None                            # images at a time in torch; None: what fits in `memory`
    exact: bool = False                                 # keep every image, however small its posterior
    tolerance: float = 1e-7                             # share of each posterior that may be passed over otherwise
    nats: float = 1e-4                                  # what left-out entries of q may move a logit by otherwise

    def __post_init__(self) -> None:
        if self.backend not in ("auto", "numba", "torch"):
            raise InputError(f"backend {self.backend!r} is unknown; use 'auto', 'numba' or 'torch'")
        if self.backend == "numba" and not has_numba():
            raise InputError("backend 'numba' needs the numba package; install it, or use 'auto' or 'torch'")
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads {self.threads}: at least one is needed")
        if self.memory < 1 << 20:
            raise InputError(f"memory {self.memory} bytes is too little to work in; give at least 1 MiB (1048576)")
        if self.chunk is not None and self.chunk < 1:
            raise InputError(f"chunk {self.chunk}: at least one image at a time")
        if not 0 < self.nats < 1:
            raise InputError(f"nats {self.nats} is not in (0, 1); exact=True leaves out no entry of q")
        if not 0 < self.tolerance < 1:
            raise InputError(f"tolerance {self.tolerance} is not in (0, 1); exact=True keeps everything")


@dataclass(frozen=True)
class Step:
    """How one group is evaluated."""

    kernel: Kernel
    respond: Respond
    backend: Backend
    estimators: int                                     # after merging
    images: int
    work: float                                         # multiply-adds per noisy image
    memory: int                                         # bytes of working arrays
    why: str
    others: tuple[tuple[str, float], ...] = ()          # what else would be exact, and its work
    merged: int = 0                                     # estimators before merging
    chunk: int = 0                                      # torch: images at a time
    expanded: bool = False                              # torch: ‖z‖² − 2z·x + ‖x‖² is good enough here
    kept: int = 0                                       # torch: noisy images whose logits fit in memory, at a time
    threads: int = 1
    short: bool = False                                 # sparse rows: by what they lack, or as differences
    centred: bool = False                               # sparse rows: of (z − x)² − z², smaller where noise is strong
    groups: tuple[int, ...] = (0,)                      # evaluated together: more than one are squares of several sizes
    weighs: bool = False                                # the kernel applies the weights of the groups itself
    cut: float = math.inf                               # nats below the largest logit from which images are passed over

    def __str__(self) -> str:
        count = f"{self.estimators} estimators"
        if self.merged > self.estimators:
            count += f" (merged from {self.merged})"
        amount = f"{self.chunk} at a time" if self.backend == "torch" else f"{self.threads} threads"
        if len(self.groups) > 1:
            count += f" of {len(self.groups)} sizes"
        text = f"{self.kernel}, {self.respond}, {self.backend}: {count}, {self.images} images, {amount}\n    {self.why}"
        if math.isfinite(self.cut):
            text += f"; images {self.cut:.1f} nats below the largest are passed over"
        text += f"\n    {self.work / 1e9:.3g} G multiply-adds per noisy image, {self.memory / 2**20:.0f} MiB"
        for name, work in self.others:
            text += f"\n    instead of {name}: {work / 1e9:.3g} G"
        return text


@dataclass(frozen=True)
class Plan:
    """How a collection is evaluated at one noise level."""

    sigma: float
    batch: int
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"sigma {self.sigma:g}, batch {self.batch}"]
        for step in self.steps:
            several = "s" if len(step.groups) > 1 else ""
            lines.append(f"  group{several} {', '.join(map(str, step.groups))}: {step}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Task:
    """What is asked: noise level, batch, number format, device, and whether gradients are wanted."""

    sigma: float
    batch: int = 1
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    gradients: bool = False


def make_plan(groups: Sequence[Group], task: Task, settings: Settings | None = None) -> Plan:
    """The cheapest exact way for each group; groups are expected to be merged."""
    settings = settings or Settings()
    steps = (replace(_step(group, task, settings), groups=(index,)) for index, group in enumerate(groups))
    joined: dict[object, list[Step]] = {}
    for step in steps:
        joins = step.backend == "numba" and step.kernel == "boxes" and (step.weighs or step.respond == "owned")
        together = (step.respond, step.cut, groups[step.groups[0]].source) if joins else step.groups
        joined.setdefault(together, []).append(step)
    batches = (batch for each in joined.values() for batch in zip_longest(*[iter(each)] * TOGETHER))
    return Plan(task.sigma, task.batch, tuple(_join([step for step in batch if step]) for batch in batches))


def _join(steps: Sequence[Step]) -> Step:
    """Squares of several sizes as one step, which shares the squared differences and, where it weighs, the answer."""
    if len(steps) == 1:
        return steps[0]
    return replace(
        steps[0],
        estimators=sum(step.estimators for step in steps),
        work=sum(step.work for step in steps),
        memory=max(step.memory for step in steps),
        groups=tuple(index for step in steps for index in step.groups),
        others=(),
    )


_counted: WeakKeyDictionary[Precision | Response, dict[bool, int]] = WeakKeyDictionary()


@cache
def has_numba() -> bool:
    """Numba is installed, so that the fused CPU kernels can run."""
    return find_spec("numba") is not None


def _step(group: Group, task: Task, settings: Settings) -> Step:
    channels, height, width = group.shape
    pixels = height * width
    dimension = channels * pixels
    length = len(group)
    boxes = _answers_in_boxes(group)
    respond: Respond = "owned" if isinstance(group.r, Partition) else "mixed" if boxes or length > FEW else "means"
    passes = 2 if respond == "mixed" else 1

    if isinstance(group.source, Gaussian):
        work = 2.0 * dimension**2 if isinstance(group.q, Full) else float(length) * dimension**2
        why = "a Gaussian source makes every estimator affine in z"
        return Step("affine", respond, "torch", length, 0, work, 8 * dimension**2, why)

    images = len(group.source.base) if isinstance(group.source, Translations) else len(group.source)
    members = images                                    # of the largest source, whose posterior is cut
    difference = float(dimension * images)
    others: tuple[tuple[str, float], ...] = ()
    short = weighs = False
    fused = _fused(task, settings)
    if isinstance(group.source, Translations):
        kernel: Kernel = "shifts"
        inner = max(height - group.source.size + 1, 1) * max(width - group.source.size + 1, 1)
        members = images * inner
        work = images * float(inner) ** 2 * (channels + 4)
        row = 4 * dimension
        why = "a fixed displacement turns patch distances into box sums"
        others = (("every translated image on its own", images * float(inner) ** 2 * channels * group.source.size**2),)
    elif isinstance(group.q, Full):
        kernel, work, row, why = "full", 2 * difference, 2 * dimension, "all pixels count"
    elif isinstance(group.q, Squares):
        kernel = "boxes"
        fused = fused and (respond != "mixed" or boxes)
        weighs = fused and boxes and (group.weight is None or len(group.weight) == 1)
        reach = 4 if group.q.stride == 1 else group.q.grid[1] * group.q.size / width
        work = passes * (difference + pixels * images * (reach + (2 if respond == "mixed" else 0)))
        row = 2 * dimension + 3 * pixels
        why = "square patches are box sums of the squared differences, whatever their size"
        others = (("dense rows", passes * float(length) * pixels * images),)
    else:
        span = group.q.channels * pixels
        answered = pixels * (group.q.channels if isinstance(group.r, SameAsQ) else channels)
        dense = float(length) * images * (span * passes + (answered if respond == "mixed" else 0))
        short = _short_is_safe(group, task)
        sparse = float(_entries(group.q, False, short) * passes * images)
        if respond == "mixed":
            sparse += _entries(group.r, True, True) * images
        fused = fused and (sparse < DENSE * dense or length <= FEW)
        kernel, work, other = ("rows", sparse, dense) if fused else ("matrix", dense, sparse)
        row = 2 * dimension + 2 * length
        why = f"{group.q.entries / length:.1f} of {span} entries per row"
        why += ", shared by the channels" if group.q.channels == 1 and channels > 1 else ""
        why += f", {_entries(group.q, False, True) / length:.1f} as differences" if fused and short else ""
        others = (("a matrix product" if fused else "sparse rows", other),)
        work += difference
    if respond == "mixed":
        why += "; two passes, since responses mix normalised posteriors"

    if fused:
        threads = settings.threads or torch.get_num_threads()
        slots = {"owned": dimension, "means": length * dimension, "mixed": dimension}[respond]
        layout = dimension * images if dimension * images <= 1 << 30 else 1 << 28
        memory = threads * (4 * task.batch * (2 * length + slots) + 4 * 16 * (2 * dimension + length)) + layout
        cut = math.inf if settings.exact else math.log(members * passes / settings.tolerance)
        return Step(
            kernel, respond, "numba", length, images, work, memory, why, others,
            threads=threads, short=short, centred=_is_centred(task.sigma), cut=cut, weighs=weighs,
        )

    expanded = isinstance(group.q, Full) and _expanded_is_safe(dimension, group.q.value, task)
    if kernel == "full":
        why += "; one matrix product" if expanded else "; direct differences, since σ is small"
    unit = torch.finfo(task.dtype).bits // 8
    kept = 0
    if kernel == "matrix" and respond == "mixed" and not task.gradients:
        kept = min(max(1, task.batch), settings.memory * 4 // 5 // (images * length * unit))
    if kept:
        why = why.replace("two passes, since responses mix normalised posteriors", "all logits kept, so one pass")
        memory = kept * images * length * unit
        bytes_per_image = 4 * dimension * unit
    else:
        memory, bytes_per_image = 0, (task.batch * row + 2 * dimension) * unit
    most = min(images, 1024) if kept else images        # kept: so few that a chunk stays in the cache
    chunk = settings.chunk or max(1, min(most, (settings.memory - memory) // bytes_per_image))
    return Step(
        kernel, respond, "torch", length, images, work, memory + chunk * bytes_per_image, why, others,
        chunk=chunk, expanded=expanded, kept=kept,
    )


def _fused(task: Task, settings: Settings) -> bool:
    """The fused kernels are for float32 on the CPU, without gradients."""
    able = task.device == "cpu" and task.dtype == torch.float32 and not task.gradients
    return able and settings.backend != "torch" and has_numba()


def _answers_in_boxes(group: Group) -> bool:
    """r is 1 in the patches of q."""
    if not (isinstance(group.r, SameAsQ) and group.r.count is None and isinstance(group.q, Squares)):
        return False
    r = group.r.precision
    return isinstance(r, Squares) and astuple(r) == astuple(group.q.patch)


def _is_centred(sigma: float) -> bool:
    """(z − x)² − z² = x(x − 2z), about σ + 1, is smaller than (z − x)², about σ² + 1/2."""
    return sigma + 1 < sigma**2 + 0.5


def _short_is_safe(group: Group, task: Task) -> bool:
    """Rounding of rows put together from others stays below `SHORT_ERROR` nats, for z within a few σ of [−1, 1]."""
    size = task.sigma + 1 if _is_centred(task.sigma) else task.sigma**2 + 0.5
    logit = group.q.entries / len(group) * size / (2 * task.sigma**2)
    return torch.finfo(task.dtype).eps * math.sqrt(DEEPEST) * logit < SHORT_ERROR


def _entries(part: Precision | Response, by_column: bool, short: bool) -> int:
    """Entries of the sparse form, kept with what they belong to."""
    counts = _counted.setdefault(part, {})
    if short not in counts:
        matrix = (part.values if isinstance(part, Precisions) else part.dense()).flatten(1)
        counts[short] = choose(matrix.T if by_column else matrix, short)[1]
    return counts[short]


def _expanded_is_safe(dimension: int, value: float, task: Task) -> bool:
    """Rounding of ‖z‖² + ‖x‖² in the logit stays below `EXPANSION_ERROR` nats, for z within a few σ of [−1, 1]."""
    norm = dimension * (2.0 + 2.0 * task.sigma**2)      # a bound on the mean of ‖z‖² + ‖x‖²
    rounding = torch.finfo(task.dtype).eps * norm * math.sqrt(math.log2(dimension + 1))
    return rounding * value / (2 * task.sigma**2) < EXPANSION_ERROR
