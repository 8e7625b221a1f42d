"""Table 1 of the paper, one short function per row: every method as a choice of (Q, R, V)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any, Literal

import torch
from torch import Tensor

from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.gaussian import Gaussian, fit_gaussian
from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import SameAsQ, one_hot, pixel
from fpmc.core.sources import Source, Translations, as_source
from fpmc.errors import InputError
from fpmc.gate import whole
from fpmc.images import ImageSet
from fpmc.methods.schedules import Schedule, resolve
from fpmc.methods.wiener import check_masking, gains, lukoianov_masks, varies
from fpmc.networks import load_maps
from fpmc.networks.shipped import MAPS, data_of

Images = ImageSet | Source
Maps = Tensor | Mapping[float, Tensor]
LEVELS, MASKS = 64, 1 << 30                             # noise levels and bytes of masks that are kept at hand
BLOCK = 512                                             # rows of a symmetric matrix at a time


def of_source(method: Callable[..., FPMC]) -> Callable[..., FPMC]:
    """A preset: made of images or a source, and made again of other images where some are left out."""

    @wraps(method)
    def preset(images: Images, **options: Any) -> FPMC:
        source = as_source(images)
        return replace(method(source, **options), remake=lambda change: preset(change(source), **options))

    return preset


@of_source
def optimal(source: Source) -> FPMC:
    """The posterior mean of the data (Eq. "emp_pmean"): q = r = 1, ν = p_D."""
    full = Full(*source.shape[1:])
    return FPMC(Collection(full, SameAsQ(full), source), name="Optimal")


@of_source
def wiener(source: Source) -> FPMC:
    """The optimal linear denoiser (App. A.3): q = r = 1, ν = N(μ, Σ) with the data's mean and covariance."""
    full = Full(*source.shape[1:])
    return FPMC(Collection(full, SameAsQ(full), fit_gaussian(source)), name="Wiener")


@of_source
def ls(source: Source, *, schedule: Schedule = None) -> FPMC:
    """The local score machine (App. A.2.1): squares cut at the border, each answering for its centre pixel."""
    respond = pixel(*source.shape[1:])
    return _by_size("LS", "ls", source, schedule, False, lambda q: Collection(q, respond, source))


@of_source
def els(source: Source, *, schedule: Schedule = None) -> FPMC:
    """The boundary-broken equivariant local score machine (App. A.2.2): LS with translated sources."""
    respond = pixel(*source.shape[1:])

    def make(q: Squares) -> Collection:
        return Collection(q, respond, Translations(source, q.size))

    return _by_size("ELS", "els", source, schedule, False, make)


@of_source
def pspc_square(source: Source, *, schedule: Schedule = None, stride: int = 1, around: float = 0.0) -> FPMC:
    """PSPC-Square (App. A.1.1): all squares inside the image, r = q.

    Beyond the paper: with a stride only every stride-th of them; with `around`, q is that much outside the square.
    """

    largest = max(resolve(schedule, "pspc_square", source.shape).values())
    if whole(stride) is None or not 1 <= stride <= largest:
        raise InputError(f"stride {stride}: beyond the largest patch are gaps; use a whole number, 1 to {largest:g}")

    def make(q: Squares) -> Collection:
        q = replace(q, stride=min(stride, q.size), around=around)
        return Collection(q, SameAsQ(q.patch), source)

    return _by_size("PSPC-Square", "pspc_square", source, schedule, True, make)


@of_source
def pspc_flex(source: Source, *, maps: Maps | Literal["wiener"] | None = None, schedule: Schedule = None) -> FPMC:
    """PSPC-Flex (App. A.1.2): the pixels that hold a share τ(t) of each sensitivity map, r = q.

    maps: (H, W, H, W), maps[y, x] for output pixel (y, x), or {σ: that}; "wiener" takes the Wiener filter's own
    sensitivities, which need no network. None: those of the DDPM++ shipped for these very images, else "wiener".
    """
    if maps is None:
        shipped = f"{data_of(source.parts[0])}-ddpmpp"
        maps = load_maps(shipped) if (MAPS / f"{shipped}.safetensors").is_file() else "wiener"
    taus = resolve(schedule, "pspc_flex", source.shape)
    if (most := max(taus.values())) > 1:
        raise InputError(f"schedule {most:g}: a threshold τ is a share of the sensitivity, 0 to 1")
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
            q = Precisions(flex_masks(wiener_maps(gaussian, level), tau))
        else:
            q = Precisions(flex_masks(maps[level] if isinstance(maps, Mapping) else maps, tau))  # pyright: ignore
        return Collection(q, SameAsQ(q), source)

    def at(sigma: float) -> Collection:
        level = sigma if gaussian is not None else nearest(maps, sigma) if isinstance(maps, Mapping) else None
        return make(level, taus[nearest(taus, sigma)])

    return FPMC(at, name="PSPC-Flex" + (" (Wiener maps)" if gaussian is not None else ""))


@of_source
def lukoianov(
    source: Source,
    *,
    tau: Schedule = 0.05,
    rule: Literal["paper", "official"] = "paper",
) -> FPMC:
    """Lukoianov et al. (App. A.3): thresholded rows of the Wiener filter, each answering for its own dimension."""
    taus = resolve(tau, "lukoianov", source.shape)
    for threshold in taus.values():
        check_masking(threshold, rule)
    gaussian = fit_gaussian(source)
    respond = one_hot(*source.shape)

    @lru_cache(maxsize=max(1, min(LEVELS, MASKS // math.prod(source.shape) ** 2)))
    def make(sigma: float) -> Collection:
        masks = lukoianov_masks(gaussian, sigma, taus[nearest(taus, sigma)], rule)
        return Collection(Precisions(masks), respond, source)

    return FPMC(make, name="Lukoianov" + (" (official rule)" if rule == "official" else ""))


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
    gain, maps = gains(gaussian, sigma), torch.zeros(height * width, height * width, dtype=torch.float64)
    for basis in gaussian.eigenvectors.view(channels, height * width, -1):     # never the whole of W, and half of each
        for end in range(BLOCK, height * width + BLOCK, BLOCK):                # of its blocks, which are symmetric
            maps[end - BLOCK : end, :end] += ((basis[end - BLOCK : end] * gain) @ basis[:end].T).abs_()
    maps = maps.tril() + maps.tril(-1).T
    maps = maps.view(height, width, height, width)
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
