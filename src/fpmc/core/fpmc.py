"""The denoiser that collections make: one for each noise level (Section 3), and what can be asked of it."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fpmc.core.collection import Collection, blend
from fpmc.core.group import Group
from fpmc.core.record import Reader, Writer
from fpmc.core.sources import Source
from fpmc.engine import Alone, Call, Settings
from fpmc.engine.attribution import Attribution, attribute
from fpmc.errors import InputError, in_short, show
from fpmc.files import atomic
from fpmc.gate import check_batch, check_numbers, check_sigma, check_steps
from fpmc.images import ImageSet
from fpmc.readers.tensors import read_safetensors
from fpmc.readers.text import read_json

FORMAT = "fpmc 2"
FILES = ("config.json", "model.safetensors")
Change = Callable[[Source], Source]


@dataclass(frozen=True, eq=False)
class FPMC:
    """A denoiser: a collection for each noise level (Section 3). Call it as `d(z, sigma)`.

    `collections` is one collection for all noise levels, a mapping {σ: collection} of which the nearest σ in log scale
    is taken, or a function that makes the collection for any σ. With `blend`, a mapping is interpolated: between two
    levels both collections respond, in proportion to how near they are in log scale.
    """

    collections: Collection | Mapping[float, Collection] | Callable[[float], Collection]
    name: str = "FPMC"
    settings: Settings = field(default_factory=Settings)
    blend: bool = False
    remake: Callable[[Change], FPMC] | None = None      # makes it of changed images, where they decide more than V
    team: Alone | None = None                           # who shares the source; None: nobody

    def __post_init__(self) -> None:
        if isinstance(self.collections, Mapping):
            if not self.collections:
                raise InputError("there are no collections; give at least one noise level: {sigma: collection}")
            for sigma in self.collections:
                check_sigma(sigma)
            first = self.collections[next(iter(self.collections))]
        else:
            first = None if callable(self.collections) else self.collections
        if not isinstance(first, Collection | None) or self.collections is None:
            raise InputError(f"an FPMC is made of Collections; got {show(first)}; give one, or {{sigma: collection}}")

    def __repr__(self) -> str:
        """Name, images, levels and groups."""
        if isinstance(self.collections, Collection):
            levels = "one collection for all noise levels"
        elif isinstance(self.collections, Mapping):
            low, high = min(self.collections), max(self.collections)
            levels = f"{len(self.collections)} noise levels from {low:g} to {high:g}" if low < high else f"σ = {low:g}"
        else:
            levels = "a collection for any noise level"
        levels += ", blended" if self.blend else ""
        lines = [f"{self.name}: images of {'×'.join(map(str, self.shape))}, {levels}"]
        groups = self.at(1.0).groups
        for group in groups[:6]:
            kind = f"{type(group.q).__name__} / {type(group.r).__name__}"
            lines.append(f"  at σ = 1: {len(group)} estimators, {kind}, {group.source!r:.120}")
        return "\n".join(lines + ([f"  and {len(groups) - 6} more groups"] if len(groups) > 6 else []))

    def at(self, sigma: float) -> Collection:
        """The collection used at noise level σ."""
        check_sigma(sigma)
        if isinstance(self.collections, Collection):
            return self.collections
        if not isinstance(self.collections, Mapping):
            return self.collections(sigma)
        nearest = min(self.collections, key=lambda s: abs(math.log(s / sigma)))
        lower, upper = ([s for s in self.collections if s < sigma], [s for s in self.collections if s > sigma])
        if not self.blend or not lower or not upper or abs(math.log(nearest / sigma)) < 1e-6:
            return self.collections[nearest]
        if sigma not in self._blended:
            low, high = max(lower), min(upper)
            share = math.log(sigma / low) / math.log(high / low)
            self._blended.clear()                       # one noise level at a time
            self._blended[sigma] = blend(self.collections[low], self.collections[high], share)
        return self._blended[sigma]

    @cached_property
    def _blended(self) -> dict[float, Collection]:
        return {}

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        return self.at(1.0).shape

    def using(self, **settings) -> FPMC:
        """The same denoiser with other engine settings, e.g. `d.using(memory=2**31)`."""
        return replace(self, settings=replace(self.settings, **settings))

    def sharded(self, group: Any = None) -> FPMC:
        """The same denoiser with its source split over the ranks of a torch.distributed group, by default all ranks.

        Every rank calls it alike, with the same z and σ, and gets the same answer; each reads its own stretch of the
        images. Attribution, fine-tuning and `without` work as before; autograd does not.
        """
        from fpmc.engine.ranks import Ranks  # nobody else needs torch.distributed

        return replace(self, team=Ranks(group))

    def explain(self, sigma: float, batch: int = 1, device: str = "cpu") -> str:
        """How the denoiser is evaluated at noise level σ: kernel, reason, predicted work and memory.

        device: "cpu", "cuda", …; it need not be there.
        """
        check_steps(batch, "batch")
        return str(self.at(sigma).plan(Call(float(sigma), batch, device=device), self.settings))

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        """x0 = D_FPMC(z, σ) (Eq. "fpmc_denoiser"): z (B, C, H, W), sigma one number or (B,)."""
        levels = self._check(z, sigma)
        if len(z) == 0:
            return z.clone()
        work = z if z.dtype == torch.float64 else z.float()
        if len(set(levels)) == 1:
            return self.at(levels[0]).denoise(work, levels[0], self.settings, self.team).to(z.dtype)
        result = torch.empty_like(work)
        for level in dict.fromkeys(levels):
            chosen = torch.tensor([other == level for other in levels], device=z.device)
            result[chosen] = self.at(level).denoise(work[chosen], level, self.settings, self.team)
        return result.to(z.dtype)

    @torch.no_grad()
    def attribute(
        self,
        z: Tensor,
        sigma: float,
        top: int = 16,
        *,
        pixel: tuple[int, int] | None = None,
        mask: Tensor | None = None,
    ) -> Attribution:
        """The `top` training images that made D(z, σ), exactly: whole image, one pixel (y, x), or a mask (H, W)."""
        level, *others = dict.fromkeys(self._check(z, sigma))
        if others:
            raise InputError(f"attribution asks at one noise level; got {level:g} and {others[0]:g}; call it for each")
        if not isinstance(top, int) or top < 1:
            raise InputError(f"top {top!r}: ask for at least one image")
        if len(z) == 0:
            raise InputError("z holds no images; there is nothing to attribute")
        collection = self.at(level)
        chosen = _mask(self.shape, pixel, mask)
        work = z if z.dtype == torch.float64 else z.float()
        return attribute(collection.groups, work, level, collection.total, chosen, top, self.settings, self.team)

    def without(self, ids: Tensor | Sequence[int]) -> FPMC:
        """The same denoiser as if the images with these source ids, and their copies, had never been there.

        What the images decided is made again (Wiener filters, masks); what was learned or fitted stays as it is.
        """
        names = check_numbers(ids, "ids")
        return self.changed(lambda source: source.without(names))

    def changed(self, change: Change) -> FPMC:
        """The same denoiser of changed images."""
        if self.remake is not None:
            return replace(self.remake(change), settings=self.settings, team=self.team)
        made: dict[int, Collection] = {}

        def changed(collection: Collection) -> Collection:
            if id(collection) not in made:
                made[id(collection)] = collection.changed(change)
            return made[id(collection)]

        if isinstance(self.collections, Collection):
            return replace(self, collections=changed(self.collections))
        if isinstance(self.collections, Mapping):
            return replace(self, collections={sigma: changed(each) for sigma, each in self.collections.items()})
        at = self.collections
        return replace(self, collections=lambda sigma: changed(at(sigma)))

    def _check(self, z: Tensor, sigma: float | Tensor) -> list[float]:
        """Refuse what is no batch of noisy images; the noise levels as numbers."""
        if not (isinstance(z, Tensor) and z.shape == (0, *self.shape) and z.is_floating_point()):
            check_batch(z, self.shape)                  # no noisy images have no answers, which is fine
        return torch.as_tensor(check_sigma(sigma, len(z)), dtype=torch.float64).flatten().tolist()

    def save_pretrained(
        self, path: str | PathLike[str], *, sigmas: Sequence[float] | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        """Write config.json and model.safetensors; images stay out, their name and checksum go in.

        dtype: float16 halves soft vectors, at a relative error of 5e-4 in each entry. A denoiser that makes collections
        for any σ is written at `sigmas`.
        """
        if isinstance(self.collections, Mapping):
            levels: list[float] | None = list(self.collections)
        else:
            levels = None if isinstance(self.collections, Collection) else list(sigmas or [])
        if levels is not None and not levels:
            raise InputError(f"{self.name} has a collection for every sigma; say at which to save it: sigmas=[...]")
        _check_path(path)
        writer = Writer(dtype)
        entries = []
        for sigma in [None] if levels is None else levels:
            groups = self.at(1.0 if sigma is None else sigma).groups
            entries.append({"sigma": sigma, "groups": [writer.structure(group) for group in groups]})
        config = {
            "format": FORMAT, "name": self.name, "blend": self.blend, "levels": entries, "structures": writer.structures
        }
        with atomic(Path(path) / "model.safetensors") as part:
            save_file(writer.tensors, part)
        with atomic(Path(path) / "config.json") as part:
            part.write_text(json.dumps(config, indent=1), encoding="utf-8")

    def push_to_hub(self, name: str, *, private: bool = False, sigmas: Sequence[float] | None = None) -> str:
        """Save to a repository of the Hugging Face hub, made if it is not there; returns its address."""
        from huggingface_hub import HfApi

        api = HfApi()
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, sigmas=sigmas)
            address = str(api.create_repo(name, private=private, exist_ok=True))
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"{self.name}, saved by fpmc")
        return address

    @classmethod
    def from_pretrained(cls, path: str | PathLike[str], *, images: ImageSet | None = None) -> FPMC:
        """Read what `save_pretrained` wrote, from a folder or a repository of the Hugging Face hub.

        images: those it was made with, if their name alone does not find them; their checksum is compared.
        """
        from fpmc.augmentation import from_recipe

        _check_path(path)
        folder = Path(path) if Path(path).is_dir() else _from_hub(str(path))
        try:
            config = read_json(folder / "config.json", kind=dict)
            if config.get("format") != FORMAT:
                raise InputError(f"config.json does not say {FORMAT!r}; save it with this version")
            tensors = read_safetensors(folder / "model.safetensors").tensors
            reader = Reader(tensors, config["structures"], lambda recipe: from_recipe(recipe, images))
            levels = [(_level(entry["sigma"]), _collection(reader, entry["groups"])) for entry in config["levels"]]
            name, blended = config["name"], config["blend"]
        except InputError as error:
            raise InputError(f"{str(path)!r}: {error}") from error
        except (ValueError, KeyError, TypeError, IndexError, RuntimeError, AttributeError, OverflowError) as error:
            raise InputError(f"{str(path)!r} is not a saved FPMC: {type(error).__name__} {in_short(error)}") from error
        if not isinstance(name, str) or type(blended) is not bool:
            raise InputError(f"{str(path)!r}: name {name!r} and blend {blended!r} must be text and true or false")
        every = [collection for sigma, collection in levels if sigma is None]
        if every and len(levels) > 1:
            raise InputError(f"{str(path)!r} has a collection for all noise levels beside others; save it again")
        return cls(every[0] if every else dict(levels), name=name, blend=blended)  # pyright: ignore[reportArgumentType]


def check_fpmc(denoiser: object) -> FPMC:
    """An analytic denoiser, whose collections can be learned."""
    if not isinstance(denoiser, FPMC):
        raise InputError(f"this needs an FPMC, whose collections it changes; got {show(denoiser)}; see fpmc.presets")
    return denoiser


def _check_path(path: object) -> None:
    if not isinstance(path, str | PathLike):
        raise InputError(f"a saved FPMC is a folder, or a name on the hub; got {show(path)}")


def _collection(reader: Reader, places: Sequence[int]) -> Collection:
    groups = [reader.structure(place) for place in places]
    if wrong := [type(each).__name__ for each in groups if not isinstance(each, Group)]:
        raise InputError(f"a collection is made of groups, got {wrong[0]}")
    return Collection.of(*groups)  # pyright: ignore[reportArgumentType]


def _level(sigma: object) -> float | None:
    if sigma is None:
        return None
    if type(sigma) not in (int, float):
        raise InputError(f"sigma {sigma!r} is not a noise level")
    check_sigma(float(sigma))  # pyright: ignore[reportArgumentType]
    return float(sigma)  # pyright: ignore[reportArgumentType]


def _mask(shape: tuple[int, int, int], pixel: tuple[int, int] | None, mask: Tensor | None) -> Tensor:
    """The pixels asked for, bool (H, W)."""
    _, height, width = shape
    if pixel is not None and mask is not None:
        raise InputError("give pixel=(y, x) or mask=, not both")
    if mask is not None:
        if not isinstance(mask, Tensor) and not hasattr(mask, "__array__"):
            raise InputError(f"mask must be bool ({height}, {width}), a tensor or an array; got {show(mask)}")
        mask = torch.as_tensor(mask)
        if mask.dtype != torch.bool or tuple(mask.shape) != (height, width) or not bool(mask.any()):
            got = f"{mask.dtype} {tuple(mask.shape)} with {int(mask.sum())} pixels"
            raise InputError(f"mask must be bool ({height}, {width}) with at least one pixel, got {got}")
        return mask.cpu()
    if pixel is None:
        return torch.ones(height, width, dtype=torch.bool)
    found = torch.zeros(height, width, dtype=torch.bool)
    inside = isinstance(pixel, Sequence) and len(pixel) == 2 and all(
        isinstance(at, int) and 0 <= at < size for at, size in zip(pixel, (height, width))
    )
    if not inside:
        raise InputError(f"pixel {pixel!r} is not (y, x) inside images of {height}×{width}")
    found[pixel] = True
    return found


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(f"{name!r} is neither a folder nor a repository that can be reached") from error
