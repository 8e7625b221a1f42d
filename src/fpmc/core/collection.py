"""The model class: collections of filtered posterior means, and the denoiser they make (Section 3)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fpmc import engine
from fpmc.augmentation import from_recipe
from fpmc.core import storage
from fpmc.core.group import Group
from fpmc.core.precision import Precision, Precisions
from fpmc.core.response import Response, SameAsQ
from fpmc.core.response import of as response_of
from fpmc.core.sources import Gaussian, Source, Translations, as_source
from fpmc.engine import Plan, Settings, Task
from fpmc.errors import InputError
from fpmc.files import atomic
from fpmc.images import ImageSet

FORMAT = "fpmc 1"
AnySource = ImageSet | Source | Translations | Gaussian


class Collection:
    """(Q, R, V): L estimators μ̂(z, t; q_ℓ, ν_ℓ) and their response weights (Eq. "fpmc_denoiser").

    q, r: tensors (L, C or 1, H, W) or structures; source: one for all estimators, or a sequence with one for each.
    """

    def __init__(self, q: Precision | Tensor, r: Response | Tensor, source: AnySource | Sequence[AnySource]) -> None:
        precision = q if isinstance(q, Precision) else Precisions(q)
        response = SameAsQ(precision) if r is q else r if isinstance(r, Response) else response_of(r, precision)
        if isinstance(source, Sequence) and not isinstance(source, ImageSet):
            self.groups = _by_source(precision, response, source)
        else:
            self.groups = (Group(precision, response, _as_member(source)),)
        self._check()

    @classmethod
    def of(cls, *groups: Group) -> Collection:
        """A collection of groups with different structures or sources."""
        self = cls.__new__(cls)
        self.groups = groups
        self._check()
        return self

    def _check(self) -> None:
        if len({group.shape for group in self.groups}) != 1:
            shapes = [group.shape for group in self.groups]
            raise InputError(f"the groups of a collection share one image shape, got {shapes or 'none'}")
        if bool((self.total <= 0).any()):
            where = tuple((self.total <= 0).nonzero()[0].tolist())
            raise InputError(f"no estimator responds at (channel, row, column) {where}: Σ r is 0 there; give r a value")

    def __len__(self) -> int:
        """The number of estimators L."""
        return sum(len(group) for group in self.groups)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        return self.groups[0].shape

    @cached_property
    def total(self) -> Tensor:
        """Σ_ℓ r_ℓ over all groups, float64 (C, H, W)."""
        return torch.stack([group.total().expand(self.shape) for group in self.groups]).sum(0)

    @cached_property
    def merged(self) -> tuple[Group, ...]:
        """The groups with identical estimators merged."""
        return tuple(group.merged() for group in self.groups)

    def plan(self, task: Task, settings: Settings | None = None) -> Plan:
        """How this collection is evaluated."""
        plan = engine.make_plan(self.merged, task, settings)
        sizes = [len(group) for group in self.groups]
        steps = (replace(step, merged=sum(sizes[index] for index in step.groups)) for step in plan.steps)
        return replace(plan, steps=tuple(steps))

    def denoise(self, z: Tensor, sigma: float, settings: Settings | None = None) -> Tensor:
        """D_FPMC(z, σ) (Eq. "fpmc_denoiser") for one noise level, z (B, C, H, W)."""
        gradients = torch.is_grad_enabled() and (z.requires_grad or any(group.requires_grad for group in self.groups))
        groups, plan = self._planned(z, sigma, settings or Settings(), gradients)
        with torch.set_grad_enabled(gradients):         # or a graph would be kept that nobody asked for
            return engine.denoise(groups, plan, z, self.total)

    def answers(self, z: Tensor, sigma: float, settings: Settings | None = None) -> list[Tensor]:
        """What each group would answer alone, as if it were the whole collection: K times (B, C, H, W)."""
        groups, plan = self._planned(z, sigma, settings or Settings(), False)
        with torch.no_grad():
            return engine.answers(groups, plan, z)

    def _planned(
        self, z: Tensor, sigma: float, settings: Settings, gradients: bool
    ) -> tuple[tuple[Group, ...], Plan]:
        groups = self.merged
        if z.dtype == torch.float32 and not gradients and not settings.exact and len(z):
            reach = (1.0 + z.abs().max().item()) ** 2   # (z − x)² is nowhere larger
            groups = self._pruned(math.floor(math.log2(settings.nats * 2 * sigma**2 / reach)))
        return groups, engine.make_plan(groups, Task(sigma, len(z), z.dtype, z.device.type, gradients), settings)

    def _pruned(self, exponent: int) -> tuple[Group, ...]:
        """The merged groups without entries of q that do not matter: they sum up to at most 2^exponent."""
        if exponent not in self._pruned_groups:
            self._pruned_groups.clear()                 # one noise level at a time
            self._pruned_groups[exponent] = tuple(group.pruned(2.0**exponent) for group in self.merged)
        return self._pruned_groups[exponent]

    @cached_property
    def _pruned_groups(self) -> dict[int, tuple[Group, ...]]:
        return {}


def _as_member(source: AnySource) -> Source | Translations | Gaussian:
    return source if isinstance(source, (Translations, Gaussian)) else as_source(source)


def _by_source(precision: Precision, response: Response, sources: Sequence[AnySource]) -> tuple[Group, ...]:
    if len(sources) != len(precision):
        raise InputError(f"{len(sources)} sources for {len(precision)} estimators; give one, or one for each")
    q, r = precision.dense(torch.float64), response.dense(torch.float64)
    members: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        members.setdefault(id(source), []).append(index)
    groups = []
    for indices in members.values():
        part = Precisions(q[indices])
        groups.append(Group(part, response_of(r[indices], part), _as_member(sources[indices[0]])))
    return tuple(groups)


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

    def __post_init__(self) -> None:
        if isinstance(self.collections, Mapping):
            if not self.collections:
                raise InputError("there are no collections; give at least one noise level: {sigma: collection}")
            for sigma in self.collections:
                _check_sigma(sigma)

    def at(self, sigma: float) -> Collection:
        """The collection used at noise level σ."""
        _check_sigma(sigma)
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
            self._blended[sigma] = _blend(self.collections[low], self.collections[high], share)
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

    def explain(self, sigma: float, batch: int = 1) -> str:
        """How the denoiser is evaluated at noise level σ: kernel, reason, predicted work and memory."""
        return str(self.at(sigma).plan(Task(float(sigma), batch), self.settings))

    def __call__(self, z: Tensor, sigma: float | Tensor) -> Tensor:
        """x0 = D_FPMC(z, σ) (Eq. "fpmc_denoiser"): z (B, C, H, W), sigma one number or (B,)."""
        if not isinstance(z, Tensor) or z.dim() != 4 or tuple(z.shape[1:]) != self.shape or not z.is_floating_point():
            got = f"{z.dtype} {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
            raise InputError(f"z must be a float tensor (B, {', '.join(map(str, self.shape))}), got {got}")
        if not bool(torch.isfinite(z).all()):
            raise InputError("z holds NaN or infinite values")
        levels = torch.as_tensor(sigma, dtype=torch.float64).flatten().tolist()
        if len(levels) not in (1, len(z)):
            raise InputError(f"sigma must be one number or ({len(z)},), one for each z, got {len(levels)}")
        if len(z) == 0:
            return z.clone()
        work = z if z.dtype == torch.float64 else z.float()
        if len(set(levels)) == 1:
            return self.at(levels[0]).denoise(work, levels[0], self.settings).to(z.dtype)
        result = torch.empty_like(work)
        for level in dict.fromkeys(levels):
            chosen = torch.tensor([other == level for other in levels], device=z.device)
            result[chosen] = self.at(level).denoise(work[chosen], level, self.settings)
        return result.to(z.dtype)

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
        writer = storage.Writer(dtype)
        entries = []
        for sigma in [None] if levels is None else levels:
            collection = self.at(1.0 if sigma is None else sigma)
            entries.append({"sigma": sigma, "groups": [writer.group(group) for group in collection.groups]})
        config = {
            "format": FORMAT, "name": self.name, "blend": self.blend, "levels": entries, "sources": writer.sources
        }
        with atomic(Path(path) / "model.safetensors") as part:
            save_file(writer.tensors, part)
        with atomic(Path(path) / "config.json") as part:
            part.write_text(json.dumps(config, indent=1), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | PathLike[str], *, images: ImageSet | None = None) -> FPMC:
        """Read what `save_pretrained` wrote, from a folder or a repository of the Hugging Face hub.

        images: those it was made with, if their name alone does not find them; their checksum is compared.
        """
        folder = Path(path)
        if not folder.is_dir():
            folder = _from_hub(str(path))
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            if not isinstance(config, dict) or config.get("format") != FORMAT:
                raise InputError(f"config.json of {str(path)!r} does not say {FORMAT!r}; is it an fpmc folder?")
            tensors = load_file(folder / "model.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise InputError(f"{str(path)!r} is not a saved FPMC: {error}") from error

        try:
            reader = storage.Reader(tensors, config["sources"], lambda recipe: from_recipe(recipe, images))
            levels = {
                entry["sigma"]: Collection.of(*map(reader.group, entry["groups"])) for entry in config["levels"]
            }
        except (KeyError, TypeError, IndexError, RuntimeError) as error:
            raise InputError(f"{str(path)!r} is damaged: {type(error).__name__} {error}; save it again") from error
        return cls(levels.get(None, levels), name=config["name"], blend=bool(config.get("blend", False)))


def _blend(low: Collection, high: Collection, share: float) -> Collection:
    """Both collections with 1 − share and share of the say; what they have in common is there once."""
    members: dict[tuple[int, int, int], Group] = {}
    weights: dict[tuple[int, int, int], Tensor | float] = {}
    for collection, part in ((low, 1 - share), (high, share)):
        for group in collection.groups:
            key = id(group.q), id(group.r), id(group.source)
            weight = part if group.weight is None else part * group.weight.double()
            members[key], weights[key] = replace(group, weight=None), weights.get(key, 0.0) + weight
    return Collection.of(*(group.scaled(weights[key]) for key, group in members.items()))


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["config.json", "model.safetensors"]))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(f"{name!r} is neither a folder nor a repository that can be reached") from error


def _check_sigma(sigma: float) -> None:
    if not (math.isfinite(sigma) and sigma > 0):
        raise InputError(f"sigma {sigma} is not a noise level; it must be positive and finite")
