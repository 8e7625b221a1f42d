"""Drive the fused CPU kernels: lay images out in lanes, share blocks among threads, merge their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from fpmc.core.group import Group
from fpmc.core.precision import Precisions, Squares
from fpmc.core.response import Partition
from fpmc.core.sources import Source, Translations
from fpmc.engine import lanes
from fpmc.engine.plan import Step
from fpmc.engine.sparse import Sparse, build
from fpmc.engine.vector import LANES
from fpmc.images import ImageSet

KEEP = 1 << 30                                          # bytes of images up to which their lane layout is kept
STRETCH = 1 << 28                                       # bytes of images laid out at a time beyond that
UNIT = 127.5                                            # bytes per unit of the images
POSTERIOR: dict[str, Callable] = {
    "full": lanes.full_posterior,
    "boxes": lanes.boxes_posterior,
    "rows": lanes.rows_posterior,
    "shifts": lanes.shifts_posterior,
}
RESPOND: dict[str, Callable] = {"boxes": lanes.boxes_respond, "rows": lanes.rows_respond}


class Stretch(NamedTuple):
    """Images in lanes, and their weights."""

    blocks: np.ndarray                                  # uint8 (blocks, d·LANES)
    log_weights: np.ndarray                             # float32 (blocks·LANES,)


_blocks: WeakKeyDictionary[ImageSet, np.ndarray] = WeakKeyDictionary()
_rows: WeakKeyDictionary[Group, tuple[bool, Sparse]] = WeakKeyDictionary()
_columns: WeakKeyDictionary[Group, Sparse] = WeakKeyDictionary()


def numerators(groups: Sequence[Group], step: Step, z: Tensor, sigma: float, *, apart: bool = False) -> list[Tensor]:
    """Σ_ℓ r_ℓ ⊙ μ̂_ℓ of each group, (B, C, H, W) (Eq. "fpmc_denoiser"): one group, or squares of several sizes.

    Where the step weighs them, their weighted sum alone, unless they are wanted apart.
    """
    group = groups[0]
    scaled = (z.detach().double() * UNIT).float().flatten(1).numpy()
    common = (scaled, np.float32(0.5 / (sigma * UNIT) ** 2), np.float32(step.cut))
    if isinstance(group.source, Translations):
        return [_shifts(group.source, step, common, z)]
    assert isinstance(group.source, Source)
    source = group.source
    length = sum(len(each) for each in groups)
    slot_ends, slots = _slots(groups, length, step)
    arguments = _arguments(groups, step)
    stretches = list(_stretches(source)) if _kept(source) else None
    sums = [_sums(len(z), length, len(slots)) for _ in range(step.threads)]
    alive = []
    kernel = POSTERIOR[step.kernel]
    for stretch in stretches or _stretches(source):
        seen = np.zeros((len(z), len(stretch.blocks)), np.uint32)
        alive.append(seen)

        def run(sums, first, last, stretch=stretch, seen=seen):
            kernel(*stretch, first, last, *common, slot_ends, slots, *sums, seen, *arguments)

        _share(run, sums, stretch)
    top, mass, moment = _merge(sums, slot_ends)
    if step.respond == "mixed":
        norm = top.astype(np.float32), (1 / mass).astype(np.float32)
        again = stretches or _stretches(source)
        return _mixed(groups, step, common, arguments, again, alive, norm, z, apart or not step.weighs)
    means = torch.from_numpy(moment / np.repeat(mass, np.diff(slot_ends), axis=1) / UNIT).to(z.dtype)
    if step.respond == "owned":
        results = []
        for part, place in zip(means.chunk(len(groups), 1), torch.from_numpy(slots).chunk(len(groups))):
            results.append(torch.empty_like(part).index_copy_(1, place, part).view_as(z))
        return results
    return [(group.r.dense(z.dtype) * means.view(len(z), len(group), *group.shape)).sum(1)]


def _mixed(
    groups: Sequence[Group], step: Step, common, arguments, stretches, alive, norm, z: Tensor, apart: bool
) -> list[Tensor]:
    """The second pass: normalised posteriors, mixed by their responses."""
    count = len(groups) if apart else 1
    results = [np.zeros((count, len(z), z[0].numel()), np.float32) for _ in range(step.threads)]
    kernel = RESPOND[step.kernel]
    if step.kernel == "rows":
        arguments = (*arguments, *_sparse_columns(groups[0]))
    else:
        weights = torch.ones(len(groups), *z.shape[2:])
        for row, group in zip(weights, groups):
            if not apart and group.weight is not None:
                row *= group.weight[0]
        arguments = (*arguments, weights.flatten(1).numpy())
    for stretch, seen in zip(stretches, alive):

        def run(result, first, last, stretch=stretch, seen=seen):
            kernel(*stretch, first, last, *common, *norm, seen, result, *arguments)

        _share(run, results, stretch)
    summed = torch.from_numpy(np.sum(results, axis=0, dtype=np.float64) / UNIT).to(z.dtype)
    return [each.view_as(z) for each in summed]


def _shifts(source: Translations, step: Step, common, z: Tensor) -> Tensor:
    channels, height, width = source.shape
    pixels = height * width
    sums = [_sums(len(z), pixels, channels * pixels) for _ in range(step.threads)]
    shape, kernel = (channels, height, width, source.size), POSTERIOR[step.kernel]
    for stretch in _stretches(source.base):
        _share(lambda s, a, b, st=stretch: kernel(*st, a, b, *common, *s, *shape), sums, stretch)
    _, mass, moment = _merge(sums, None)
    means = moment.reshape(len(z), channels, pixels) / mass[:, None] / UNIT
    return torch.from_numpy(means).to(z.dtype).view_as(z)


def _arguments(groups: Sequence[Group], step: Step) -> tuple:
    """What the kernel needs to know about q."""
    group = groups[0]
    if step.kernel == "boxes":
        scales, around, start = [], [], 0
        for q in (group.q for group in groups):
            assert isinstance(q, Squares)
            scales.append((0 if q.inside else -(q.size // 2), q.size, q.stride, *q.grid, start))
            around.append(q.around)
            start += len(q)
        return *group.shape[1:], np.array(scales), np.array(around, np.float32)
    if step.kernel == "rows":
        return group.q.channels * group.q.height * group.q.width, step.centred, *_sparse_rows(group, step.short)
    return ()


def _slots(groups: Sequence[Group], length: int, step: Step) -> tuple[np.ndarray, np.ndarray]:
    """For each estimator the output dimensions whose moments it keeps."""
    dimension = int(np.prod(groups[0].shape))
    if step.respond == "mixed":
        return np.zeros(length + 1, np.int64), np.zeros(0, np.int64)
    if step.respond == "means":
        return np.arange(length + 1) * dimension, np.tile(np.arange(dimension), length)
    counts, slots = [np.zeros(1, np.int64)], []
    for group in groups:
        assert isinstance(group.r, Partition)
        owner = group.r.owner.expand(group.shape).flatten().numpy()
        counts.append(np.bincount(owner, minlength=len(group)))
        slots.append(np.argsort(owner, kind="stable"))
    return np.concatenate(counts).cumsum(), np.concatenate(slots)


def _sparse_rows(group: Group, short: bool) -> Sparse:
    """q by estimator."""
    if (kept := _rows.get(group)) is None or kept[0] != short:
        q = group.q
        _rows[group] = short, build((q.values if isinstance(q, Precisions) else q.dense()).flatten(1), short)
    return _rows[group][1]


def _sparse_columns(group: Group) -> Sparse:
    """r by output dimension; posteriors are at most 1, so differences lose nothing."""
    if group not in _columns:
        _columns[group] = build(group.r.dense().flatten(1).T, True)
    return _columns[group]


def _kept(source: Source) -> bool:
    return all(len(part) * math.prod(part.shape) <= KEEP for part in source.parts)


def _stretches(source: Source) -> Iterator[Stretch]:
    """The source in lanes; what is small enough is laid out once and kept with its images."""
    start = 0
    for part in source.parts:
        dimension = math.prod(part.shape)
        size = len(part) if len(part) * dimension <= KEEP else max(LANES, STRETCH // dimension)
        for first in range(0, len(part), size):
            count = min(size, len(part) - first)
            if size < len(part):
                blocks = _lay_out(part.read(slice(first, first + count)))
            elif part in _blocks:
                blocks = _blocks[part]
            else:
                blocks = _blocks[part] = _lay_out(part.read(slice(None)))
            log_weights = np.full(len(blocks) * LANES, lanes.NOTHING, np.float32)
            log_weights[:count] = 0.0
            if source.log_weights is not None:
                given = source.log_weights[start + first : start + first + count]
                log_weights[:count] = given.clamp(min=lanes.NOTHING).numpy()
            yield Stretch(blocks, log_weights)
        start += len(part)


def _lay_out(pixels: Tensor) -> np.ndarray:
    """(n, C, H, W) to (blocks, d·LANES); the last block is filled up with zeros, which get no weight."""
    flat = np.ascontiguousarray(pixels.flatten(1).numpy())
    blocks = np.empty((-(-len(flat) // LANES), flat.shape[1] * LANES), np.uint8)
    lanes.lay_out(flat, blocks)
    return blocks


def _sums(batch: int, estimators: int, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        np.full((batch, estimators), lanes.BOTTOM, np.float32),
        np.zeros((batch, estimators), np.float32),
        np.zeros((batch, slots), np.float32),
    )


def _share(kernel: Callable, sums: list, stretch: Stretch) -> None:
    """Run the kernel in as many threads as there are sums, each over its share of the blocks."""
    bounds = np.linspace(0, len(stretch.blocks), len(sums) + 1).astype(int)
    if len(sums) == 1:
        kernel(sums[0], 0, len(stretch.blocks))
        return
    with ThreadPoolExecutor(len(sums)) as pool:
        for future in [pool.submit(kernel, s, a, b) for s, a, b in zip(sums, bounds, bounds[1:])]:
            future.result()


def _merge(sums: list, slot_ends: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The threads' sums on one scale, in float64."""
    tops, masses, moments = (np.stack(part).astype(np.float64) for part in zip(*sums))
    top = tops.max(0)
    fade = np.exp(tops - top)
    if slot_ends is None:                               # one slot per channel and estimator, channel by channel
        per_slot = np.tile(fade, (1, 1, moments.shape[2] // fade.shape[2]))
    else:
        per_slot = np.repeat(fade, np.diff(slot_ends), axis=2)
    return top, (masses * fade).sum(0), (moments * per_slot).sum(0)
