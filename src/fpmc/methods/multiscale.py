"""Several patch sizes, whole images and the Wiener filter in one collection (beyond the paper)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from fpmc import augmentation
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Full
from fpmc.core.response import SameAsQ
from fpmc.core.sources import Source
from fpmc.errors import InputError
from fpmc.methods.table1 import LEVELS, Maps, ls, lukoianov, of_source, optimal, pspc_flex, pspc_square, wiener

Shape = Literal["square", "ls", "flex", "lukoianov"]
THRESHOLDS: dict[str, tuple[float, ...]] = {
    "flex": (0.3, 0.5, 0.7, 0.85, 0.95), "lukoianov": (0.2, 0.1, 0.05, 0.02, 0.01)
}

Member = tuple[FPMC, Callable[[float], bool]]           # a denoiser, and at which noise levels it takes part
TEMPERATURES = (1.25, 1.5, 2.0)
AROUND = (0.01, 0.03, 0.08, 0.2, 0.45, 0.7)
HALF = 12.0                                             # σ² at which surroundings do best with q about a half
FINE = 0.2                                              # noise level below which masks do better than small squares
FINE_MASKS = (0.1, 0.2)                                 # with these thresholds of Lukoianov's
MOVING = 2.5                                            # noise level below which small squares ask moved images, too
TURNING = 16.0                                          # and from there to here copies have squares of their own


@of_source
def multiscale(
    source: Source,
    *,
    sizes: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    shape: Shape | Sequence[Shape] = "square",
    gaussian: bool = True,
    temperatures: Sequence[float] = TEMPERATURES,
    around: Sequence[float] | None = None,
    stride: int | None = None,
    moved: bool = False,
    maps: Maps | Literal["wiener"] | None = None,
) -> FPMC:
    """Beyond the paper: one collection with several patch sizes, whole images, and the Wiener filter.

    All have the same say until `fit_response` gives each its weight. sizes: patch sizes for "square" and "ls",
    thresholds τ for "flex" and "lukoianov"; with several shapes a mapping {shape: sizes}. temperatures: beside the
    optimal denoiser, whole images weighed as if the noise were so many times as strong, q = 1/T². around: squares of 4
    pixels to a third of the image come again with q this much outside them. What is not given is chosen for each noise
    level: squares, surroundings, and thresholded rows of the Wiener filter where there is little noise. stride: of the
    squares; None takes a quarter of their size, which costs a fraction and answers nearly alike. moved: below σ = 2.5
    squares of up to a third of the image come again with images moved by one pixel each way in their source, and above,
    up to 16, these squares and whole images come again with copies alone: moved ones, and ones turned by 4° each way.
    Six to seven times as many images take part.
    """
    shapes = (shape,) if isinstance(shape, str) else tuple(shape)
    if unknown := [each for each in shapes or ("none",) if each not in ("square", "ls", "flex", "lukoianov")]:
        raise InputError(f"shape {unknown[0]!r} is unknown; use square, ls, flex or lukoianov")
    if len(shapes) > 1 and sizes is not None and not isinstance(sizes, Mapping):
        raise InputError(f"sizes {list(sizes)} for shapes {list(shapes)}: give a mapping {{shape: sizes}}")
    others: list[tuple[Source, float, float]] = []      # sources of copies, and the noise levels they are for
    if moved:
        others.append((augmentation.moved(source), 0.0, MOVING))
        kinds = (augmentation.MOVES, augmentation.TURNS)
        others += [(augmentation.copies(source, each), MOVING, TURNING) for each in kinds]
    members: list[Member] = []
    for each in shapes:
        given = sizes[each] if isinstance(sizes, Mapping) else sizes
        ladder = _sizes(each, given, source.shape)
        if each == "square":
            members += _ladder(source, ladder, given is None, others, around, stride)
        elif each == "ls":
            members += [(ls(source, schedule=size), _always) for size in ladder]
        elif each == "flex":
            members += [(pspc_flex(source, maps=maps, schedule=size), _always) for size in ladder]
        else:
            members += [(lukoianov(source, tau=size), _always) for size in ladder]
    members += [(whole, _always) for whole in _whole(source, temperatures)]
    for other, low, high in others:
        if low >= MOVING:
            members += [(whole, _between(low, high, _always)) for whole in _whole(other, temperatures)]
    if gaussian:
        members.append((wiener(source), _always))
        if sizes is None and "lukoianov" not in shapes:
            members += [(lukoianov(source, tau=tau), lambda sigma: sigma < FINE) for tau in FINE_MASKS]
    mix = _mixer()

    def at(sigma: float) -> Collection:
        return mix(*(member.at(sigma) for member, wanted in members if wanted(sigma)))

    return FPMC(at, name=f"Multi-scale {'/'.join(shapes)}")


def _ladder(
    source: Source, sizes: Sequence[float], chosen: bool, others: Sequence[tuple[Source, float, float]],
    around: Sequence[float] | None, stride: int | None,
) -> list[Member]:
    """Squares of all sizes, the small ones again with each source of copies."""
    found: list[Member] = []
    for size in sizes:
        steps = sizes if chosen else None
        found += _squares(source, size, steps, around, stride)
        if size <= max(3, min(source.shape[1:]) / 3):
            for other, low, high in others:
                again = _squares(other, size, steps, around, stride)
                found += [(square, _between(low, high, wanted)) for square, wanted in again]
    return found


def _always(sigma: float) -> bool:
    return True


def _between(low: float, high: float, wanted: Callable[[float], bool]) -> Callable[[float], bool]:
    return lambda sigma: low <= sigma < high and wanted(sigma)


def _whole(source: Source, temperatures: Sequence[float]) -> list[FPMC]:
    """The optimal denoiser, and the same with images weighed as if the noise were stronger or weaker."""
    found = [optimal(source)]
    for temperature in temperatures:
        if not (math.isfinite(temperature) and temperature > 0):
            raise InputError(f"temperature {temperature} is not positive and finite; 1 is the optimal denoiser")
        full = Full(*source.shape[1:], 1 / temperature**2)
        found.append(FPMC(Collection(full, SameAsQ(full), source), name=f"Optimal, T = {temperature:g}"))
    return found


def _squares(
    source: Source, size: float, ladder: Sequence[float] | None, around: Sequence[float] | None, stride: int | None
) -> list[Member]:
    """Squares of one size, with nothing and with something around them, and the noise levels at which they take part.

    Those of a `ladder` do so where squares of about their size have a say, surroundings that are not given likewise
    (docs/multiscale.md has the weights this is read from).
    """
    side = min(source.shape[1:])
    step = max(1, int(size) // 4) if stride is None else stride

    def useful(sigma: float) -> bool:
        if ladder is None:
            return True
        share = size / side
        return (share <= 1.7 * sigma or size == min(ladder)) and (2 * share >= _half(sigma) or size == max(ladder))

    def surrounded(share: float) -> Callable[[float], bool]:
        return lambda sigma: _half(sigma) / 4 <= share <= 4 * _half(sigma) and _half(sigma) < 0.97

    def make(share: float) -> FPMC:
        return pspc_square(source, schedule=size, stride=step, around=share)

    found = [(make(0.0), useful)]
    if 4 <= size <= side / 3:
        found += [
            (make(share), surrounded(share) if around is None else _always)
            for share in (AROUND if around is None else around)
        ]
    return found


def _half(sigma: float) -> float:
    """The q around a square that does best at a noise level, roughly."""
    return sigma**2 / (sigma**2 + HALF)


def mixture(*denoisers: FPMC, name: str = "Mixture") -> FPMC:
    """One collection of the estimators of several denoisers, each denoiser with the same say at every pixel."""
    mix = _mixer()
    return FPMC(lambda sigma: mix(*(denoiser.at(sigma) for denoiser in denoisers)), name=name)


def _mixer() -> Callable[..., Collection]:
    @lru_cache(maxsize=LEVELS)
    def mix(*collections: Collection) -> Collection:
        totals = [collection.total for collection in collections]
        totals = [total[:1] if bool((total == total[:1]).all()) else total for total in totals]  # alike in all channels
        return Collection.of(*(
            group.scaled(1 / total) for total, collection in zip(totals, collections) for group in collection.groups
        ))

    return mix


def _sizes(shape: str, given: Sequence[float] | None, image: tuple[int, int, int]) -> Sequence[float]:
    """Those given, or five from 3 pixels up in equal ratios, the whole image being the sixth."""
    if given is not None:
        if not given:
            raise InputError(f"no sizes for shape {shape!r}; give at least one")
        return given
    if shape in THRESHOLDS:
        return THRESHOLDS[shape]
    side = min(image[1:])
    ladder = [round(3 * (side / 3) ** (k / 5)) for k in range(5)]
    return sorted({size - size % 2 + 1 if shape == "ls" else min(size, side) for size in ladder})
