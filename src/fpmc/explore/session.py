"""What the page asks about: some denoisers, their images, a network, and what has been worked out already."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fpmc.core.fpmc import FPMC
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.sources import Source, as_source
from fpmc.errors import InputError
from fpmc.explore import requests as ask
from fpmc.explore.kept import Kept
from fpmc.explore.pack import pack
from fpmc.explore.path import GRID, Path, below, from_seed
from fpmc.explore.pixel import group_weights, pixel
from fpmc.explore.shares import region_mask, shares
from fpmc.explore.upload import read_picture
from fpmc.images import ImageSet
from fpmc.methods.wiener import estimate_sigma
from fpmc.process import Denoiser
from fpmc.sampling import initial_noise

KNOCKED = 3                                             # denoisers without some images that are kept; images are shared


class Session:
    """The answers behind the page. One worker asks it, one thing at a time; only `pixel` may be asked beside that."""

    def __init__(
        self,
        denoisers: Sequence[Denoiser],
        images: ImageSet | Source,
        networks: Sequence[Denoiser] = (),
        maps: Mapping[float, Tensor] | None = None,     # sensitivity maps {σ: (H, W, H, W)}, to be shown beside q
        names: Sequence[str] | None = None,             # of the denoisers, then of the networks
        device: str = "cpu",
    ) -> None:
        self.denoisers = [*denoisers, *networks]
        self.networks = len(networks)
        self.source = as_source(images)
        self.maps, self.device = maps, device
        # Hovering has a thread of its own, and a denoiser keeps the level it blended last: so it has copies of its own.
        self.looked_at = [replace(each) if isinstance(each, FPMC) else each for each in self.denoisers]
        self.names = list(names) if names else _names(self.denoisers)
        self.kept = Kept()
        self.knocked: dict[tuple[int, tuple[int, ...]], FPMC] = {}      # the last used is the last
        shapes = {tuple(getattr(each, "shape", self.shape)) for each in self.denoisers}
        if not denoisers or shapes != {self.shape}:
            raise InputError(f"denoisers of images {sorted(shapes)}, images of {self.shape}; give some of one shape")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.source.shape

    def is_network(self, index: int) -> bool:
        return index >= len(self.denoisers) - self.networks

    def about(self) -> dict[str, Any]:
        """What there is to look at."""
        rows = [
            {"name": name, "analytic": isinstance(each, FPMC)} for name, each in zip(self.names, self.denoisers)
        ]
        return {
            "denoisers": rows, "reference": len(rows) - self.networks if self.networks else None,
            "shape": self.shape, "levels": GRID[:-1], "maps": self.maps is not None,
            "data": f"{len(self.source):,} images of {' | '.join(part.name for part in self.source.parts)}",
        }

    def path(self, asked: ask.Way) -> Path:
        """The path of a denoiser, as far as it has been worked out."""

        def make() -> Path:
            z, levels = self._begin(asked.start)
            denoiser = self._without(asked.denoiser, asked.without)
            return Path(denoiser, z, levels, self.device)

        return self.kept.get(("path", self._index(asked.denoiser), asked.start, asked.without), make)

    def step(self, asked: ask.Way, level: int) -> dict[str, Any]:
        """z and D(z, σ) at a level of a path."""
        path = self.path(asked)
        z, answer = path.upto(self._level(path, level))
        return {
            "level": level, "sigma": path.levels[level], "levels": path.levels[:-1],
            "z": pack(z[0]), "x": pack(answer[0]),
        }

    def answer(self, asked: ask.Answer) -> dict[str, Any]:
        """D(z, σ) with all images and without some, for the same z."""
        path = self.path(ask.Way(denoiser=asked.denoiser, start=asked.start))
        z, before = path.upto(self._level(path, asked.level))
        sigma = path.levels[asked.level]
        with torch.no_grad():
            after = self._without(asked.denoiser, asked.without)(z.to(self.device), sigma).cpu()
        change = float((after - before).square().mean().sqrt())
        return {"sigma": sigma, "before": pack(before[0]), "after": pack(after[0]), "change": change}

    def shares(self, asked: ask.WhichImages) -> dict[str, Any]:
        """The images that made an answer."""

        def find() -> dict[str, Any]:
            path = self.path(ask.Way(denoiser=asked.denoiser, start=asked.start, without=asked.without))
            self._attributable(asked.denoiser)
            z, answer = path.upto(self._level(path, asked.level))
            mask = region_mask(asked.region, self.shape)
            denoiser = self._without(asked.denoiser, asked.without)
            return shares(denoiser, z.to(self.device), answer, path.levels[asked.level], mask, asked.top)

        return self.kept.get(("shares", asked), find)

    def pixel(self, asked: ask.Pixel) -> dict[str, Any]:
        """What answers for a pixel."""
        denoiser, (_, height, width) = self.looked_at[self._index(asked.denoiser)], self.shape
        if asked.y >= height or asked.x >= width:
            raise InputError(f"pixel ({asked.y}, {asked.x}) is outside images of {height}×{width}")
        found: dict[str, Any] = {"y": asked.y, "x": asked.x, "map": None}
        if isinstance(denoiser, FPMC):
            found |= pixel(denoiser.at(asked.sigma), asked.y, asked.x)
        if self.maps:
            level = min(self.maps, key=lambda sigma: abs(math.log(sigma / asked.sigma)))
            found |= {"map": pack(self.maps[level][asked.y, asked.x]), "map_sigma": level}
        return found

    def weights(self, asked: ask.Level) -> dict[str, Any]:
        """How much each group of a denoiser has to say at a level."""
        denoiser = self.denoisers[self._index(asked.denoiser)]
        if not isinstance(denoiser, FPMC):
            return {"level": asked.level, "groups": []}
        sigma = GRID[asked.level]
        found = self.kept.get(("weights", asked.denoiser, sigma), lambda: group_weights(denoiser.at(sigma)))
        return {"level": asked.level, "groups": found}

    def error(self, asked: ask.Level) -> dict[str, Any]:
        """Mean squared distance of D(z, σ) from the network's answer, at the network's own states for this seed."""
        if not self.networks:
            raise InputError("there is no network to compare with; start the explorer with --network")

        def find() -> float:
            reference = ask.Way(denoiser=len(self.denoisers) - self.networks, start=ask.Start(seed=asked.seed))
            z, target = self.path(reference).upto(asked.level)
            with torch.no_grad():
                answer = self.denoisers[self._index(asked.denoiser)](z.to(self.device), GRID[asked.level]).cpu()
            return float((answer - target).square().mean())

        return {"level": asked.level, "error": self.kept.get(("error", asked), find)}

    def upload(self, data: bytes) -> dict[str, Any]:
        """Take a picture, under a name made of its bytes, with the noise level it most likely has."""
        name = hashlib.sha256(data).hexdigest()[:16]
        picture = self.kept.get(("picture", name), lambda: read_picture(data, self.shape))
        sigma = float(estimate_sigma(fit_gaussian(self.source), picture)[0])
        return {"picture": name, "sigma": min(max(sigma, 2e-3), 80.0), "pixels": pack(picture[0])}

    def _begin(self, start: ask.Start) -> tuple[Tensor, Sequence[float]]:
        """The state that sampling starts from, and its noise levels."""
        if start.paint is not None:
            paint, before = start.paint, ask.Start(seed=start.seed, own=start.own)
            path = self.path(ask.Way(denoiser=paint.denoiser, start=before))
            z, _ = path.upto(self._level(path, paint.level))
            z, (_, height, width) = z.clone(), self.shape
            for y, x, value in paint.strokes:
                if y >= height or x >= width:
                    raise InputError(f"painted pixel ({y}, {x}) is outside images of {height}×{width}")
                z[..., y, x] = value
            return z, path.levels[paint.level :]
        if start.own is None:
            return from_seed(start.seed, self.shape)
        picture = self.kept.known(("picture", start.own.picture))
        if picture is None:
            raise InputError("the picture of this link is no longer here; drop it on the page again")
        noise = start.own.sigma * initial_noise([start.seed], self.shape) if start.own.noise else 0.0
        return picture.double() + noise, below(start.own.sigma)

    def _without(self, index: int, ids: tuple[int, ...]) -> Denoiser:
        if not ids:
            return self.denoisers[self._index(index)]
        denoiser = self._attributable(index)
        made = self.knocked.pop((index, ids), None) or denoiser.without(list(ids))
        if len(self.knocked) == KNOCKED:                # the oldest goes, and the paths that would keep it
            gone = self.knocked.pop(next(iter(self.knocked)))
            self.kept.drop_if(lambda kept: isinstance(kept, Path) and kept.denoiser is gone)
        self.knocked[index, ids] = made
        return made

    def _attributable(self, index: int) -> FPMC:
        denoiser = self.denoisers[self._index(index)]
        if not isinstance(denoiser, FPMC):
            raise InputError(
                f"{self.names[index]} is a network: it holds no training images, so none can be credited or left out; "
                "choose an analytic denoiser"
            )
        return denoiser

    def _index(self, index: int) -> int:
        if index >= len(self.denoisers):
            raise InputError(f"there is no denoiser {index}; there are {len(self.denoisers)}, counted from 0")
        return index

    def _level(self, path: Path, level: int) -> int:
        if level >= path.length:
            raise InputError(f"there is no level {level} on this path; it has {path.length}, counted from 0")
        return level


def _names(denoisers: Sequence[Denoiser]) -> list[str]:
    """What each calls itself, numbered where two say the same."""
    plain = [str(getattr(each, "name", None) or type(each).__name__) for each in denoisers]
    return [name if plain.count(name) == 1 else f"{name} {plain[: i + 1].count(name)}" for i, name in enumerate(plain)]
