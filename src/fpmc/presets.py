"""Table 1 of the paper, one short function per row: every method as a choice of (Q, R, V)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from fpmc import augmentation
from fpmc.collection import FPMC, Collection
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.networks import load_maps
from fpmc.networks.shipped import MAPS
from fpmc.precision import Full, Precision, Squares, Vectors
from fpmc.response import SameAsQ, one_hot, pixel
from fpmc.schedules import Schedule, resolve
from fpmc.sources import Gaussian, Source, Translations, as_source
from fpmc.wiener import check_masking, fit_gaussian, lukoianov_masks, varies, wiener_matrix

Images = ImageSet | Source
Maps = Tensor | Mapping[float, Tensor]
LEVELS = 64                                             # noise levels whose masks are kept


def optimal(images: Images) -> FPMC:
    """The posterior mean of the data (Eq. "emp_pmean"): q = r = 1, ν = p_D."""
    source = as_source(images)
    full = Full(*source.shape[1:])
    return FPMC(Collection(full, SameAsQ(full), source), name="Optimal")


def wiener(images: Images) -> FPMC:
    """The optimal linear denoiser (App. A.3): q = r = 1, ν = N(μ, Σ) with the data's mean and covariance."""
    source = as_source(images)
    full = Full(*source.shape[1:])
    return FPMC(Collection(full, SameAsQ(full), fit_gaussian(source)), name="Wiener")


def ls(images: Images, *, schedule: Schedule = None) -> FPMC:
    """The local score machine (App. A.2.1): squares cut at the border, each answering for its centre pixel."""
    source = as_source(images)
    respond = pixel(*source.shape[1:])
    return _by_size("LS", "ls", source, schedule, False, lambda q: Collection(q, respond, source))


def els(images: Images, *, schedule: Schedule = None) -> FPMC:
    """The boundary-broken equivariant local score machine (App. A.2.2): LS with translated sources."""
    source = as_source(images)
    respond = pixel(*source.shape[1:])

    def make(q: Squares) -> Collection:
        return Collection(q, respond, Translations(source, q.size))

    return _by_size("ELS", "els", source, schedule, False, make)


def pspc_square(images: Images, *, schedule: Schedule = None, stride: int = 1, around: float = 0.0) -> FPMC:
    """PSPC-Square (App. A.1.1): all squares inside the image, r = q.

    Beyond the paper: with a stride only every stride-th of them; with `around`, q is that much outside the square.
    """
    source = as_source(images)

    def make(q: Squares) -> Collection:
        q = replace(q, stride=min(stride, q.size), around=around)
        return Collection(q, SameAsQ(q.patch), source)

    return _by_size("PSPC-Square", "pspc_square", source, schedule, True, make)


def pspc_flex(images: Images, *, maps: Maps | Literal["wiener"] | None = None, schedule: Schedule = None) -> FPMC:
    """PSPC-Flex (App. A.1.2): the pixels that hold a share τ(t) of each sensitivity map, r = q.

    maps: (H, W, H, W), maps[y, x] for output pixel (y, x), or {σ: that}; "wiener" takes the Wiener filter's own
    sensitivities, which need no network. None: those of the DDPM++ shipped for images of this name, else "wiener".
    """
    source = as_source(images)
    if maps is None:
        shipped = f"{source.parts[0].name}-ddpmpp"
        maps = load_maps(shipped) if (MAPS / f"{shipped}.safetensors").is_file() else "wiener"
    taus = resolve(schedule, "pspc_flex", source.shape)
    if isinstance(maps, str) and maps != "wiener":
        raise InputError(f"maps {maps!r} is unknown; give a tensor (H, W, H, W), a dict {{sigma: tensor}} or 'wiener'")
    if not isinstance(maps, str):
        _check_maps(maps, source.shape)
    gaussian = fit_gaussian(source) if isinstance(maps, str) else None

    @lru_cache(maxsize=LEVELS)
    def make(level: float | None, tau: float) -> Collection:
        if tau >= 1:
            q: Precision = Full(*source.shape[1:])
        elif gaussian is not None and level is not None:
            q = Vectors(flex_masks(wiener_maps(gaussian, level), tau))
        else:
            q = Vectors(flex_masks(maps[level] if isinstance(maps, Mapping) else maps, tau))  # pyright: ignore
        return Collection(q, SameAsQ(q), source)

    def at(sigma: float) -> Collection:
        level = sigma if gaussian is not None else nearest(maps, sigma) if isinstance(maps, Mapping) else None
        return make(level, taus[nearest(taus, sigma)])

    return FPMC(at, name="PSPC-Flex" + (" (Wiener maps)" if gaussian is not None else ""))


def lukoianov(
    images: Images,
    *,
    tau: Schedule = 0.05,
    rule: Literal["paper", "official"] = "paper",
) -> FPMC:
    """Lukoianov et al. (App. A.3): thresholded rows of the Wiener filter, each answering for its own dimension."""
    source = as_source(images)
    taus = resolve(tau, "lukoianov", source.shape)
    for threshold in taus.values():
        check_masking(threshold, rule)
    gaussian = fit_gaussian(source)
    respond = one_hot(*source.shape)

    @lru_cache(maxsize=LEVELS)
    def make(sigma: float) -> Collection:
        masks = lukoianov_masks(gaussian, sigma, taus[nearest(taus, sigma)], rule)
        return Collection(Vectors(masks), respond, source)

    return FPMC(make, name="Lukoianov" + (" (official rule)" if rule == "official" else ""))


Shape = Literal["square", "ls", "flex", "lukoianov"]
THRESHOLDS: dict[str, tuple[float, ...]] = {
    "flex": (0.3, 0.5, 0.7, 0.85, 0.95), "lukoianov": (0.2, 0.1, 0.05, 0.02, 0.01)
}

TEMPERATURES = (1.25, 1.5, 2.0)
AROUND = (0.01, 0.03, 0.08, 0.2, 0.45, 0.7)
HALF = 12.0                                             # σ² at which surroundings do best with q about a half
FINE = 0.2                                              # noise level below which masks do better than small squares
FINE_MASKS = (0.1, 0.2)                                 # with these thresholds of Lukoianov's
MOVING = 2.5                                            # noise level below which small squares ask moved images, too
TURNING = 16.0                                          # and from there to here copies have squares of their own


def multiscale(
    images: Images,
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
    source = as_source(images)
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
    members: list[tuple[FPMC, Callable[[float], bool]]] = []                   # and at which noise levels
    for each in shapes:
        given = sizes[each] if isinstance(sizes, Mapping) else sizes
        ladder = _sizes(each, given, source.shape)
        for size in ladder:
            if each == "square":
                steps = ladder if given is None else None
                members += _squares(source, size, steps, around, stride)
                if size <= max(3, min(source.shape[1:]) / 3):
                    for other, low, high in others:
                        again = _squares(other, size, steps, around, stride)
                        members += [(square, _between(low, high, wanted)) for square, wanted in again]
            elif each == "ls":
                members.append((ls(source, schedule=size), _always))
            elif each == "flex":
                members.append((pspc_flex(source, maps=maps, schedule=size), _always))
            else:
                members.append((lukoianov(source, tau=size), _always))
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
) -> list[tuple[FPMC, Callable[[float], bool]]]:
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


def flex_masks(maps: Tensor, tau: float) -> Tensor:
    """1(Ĝ(x, y) < τ) (App. A.1.2): for each output pixel those that hold a share τ of its map, bool (HW, 1, H, W).

    Pixels are taken in descending order while the share taken before them is at most τ. A pixel that is then in no mask
    at all (a border pixel that hardly varies) joins its own, since somebody must answer for it.
    """
    rows = maps.double().reshape(maps.shape[0] * maps.shape[1], -1)
    if tau >= 1:
        return torch.ones(len(rows), 1, *maps.shape[2:], dtype=torch.bool)
    values, order = (rows / rows.sum(1, keepdim=True)).sort(dim=1, descending=True, stable=True)
    kept = values.cumsum(1) - values <= tau
    masks = torch.zeros_like(kept).scatter_(1, order, kept)
    masks |= torch.diag(~masks.any(0))
    return masks.view(-1, 1, *maps.shape[2:])


def _check_maps(maps: Maps, shape: tuple[int, int, int]) -> None:
    levels = maps if isinstance(maps, Mapping) else {1.0: maps}
    if not levels:
        raise InputError("there are no maps; give at least one noise level")
    _, height, width = shape
    for sigma, each in levels.items():
        if not (isinstance(sigma, (int, float)) and math.isfinite(sigma) and sigma > 0):
            raise InputError(f"maps for sigma {sigma}: a noise level is positive and finite")
        if not isinstance(each, Tensor) or tuple(each.shape) != (height, width, height, width):
            got = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
            size = (height, width, height, width)
            raise InputError(f"sensitivity maps must be a tensor (H, W, H, W) = {size} for these images, got {got}")
        if not bool(torch.isfinite(each).all()) or bool((each < 0).any()) or bool((each.sum((2, 3)) <= 0).any()):
            raise InputError("sensitivity maps must be finite and non-negative, and not all 0 for any output pixel")


def wiener_maps(gaussian: Gaussian, sigma: float) -> Tensor:
    """The sensitivity maps of the Wiener filter (App. A.1.2 with D linear): Σ_c abs W[(c,y,x), (c,·)], (H, W, H, W)."""
    channels, height, width = gaussian.shape
    filter_ = wiener_matrix(gaussian, sigma).view(channels, height, width, channels, height, width)
    maps = filter_.diagonal(dim1=0, dim2=3).abs().sum(-1)
    dead = ~varies(gaussian).any(0)                     # a pixel that never varies sees only itself
    own = torch.eye(height * width, dtype=maps.dtype).view(height, width, height, width)
    return torch.where(dead[..., None, None], own, maps)


def nearest(levels: Mapping[float, object], sigma: float) -> float:
    """The noise level nearest to σ in log scale."""
    return min(levels, key=lambda level: abs(math.log(level / sigma)))


def _by_size(
    name: str, method: str, source: Source, schedule: Schedule, inside: bool, make: Callable[[Squares], Collection]
) -> FPMC:
    sizes = resolve(schedule, method, source.shape)
    if bad := [size for size in sizes.values() if size != int(size)]:
        raise InputError(f"patch size {bad[0]} is not a whole number")
    squares = {sigma: Squares(int(size), *source.shape[1:], inside=inside) for sigma, size in sizes.items()}
    by_size: dict[int, Collection] = {}
    for q in squares.values():
        by_size.setdefault(q.size, make(q))
    return FPMC({sigma: by_size[q.size] for sigma, q in squares.items()}, name=name)
