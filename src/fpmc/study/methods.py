"""The denoisers of the experiments as plain records, and how they are made from images, networks and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from fpmc import presets
from fpmc.augmentation import augment, from_recipe
from fpmc.core import storage
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.learn.fit import weigh
from fpmc.methods.table1 import nearest
from fpmc.process import Denoiser
from fpmc.study.graph import Made, Result
from fpmc.study.lab import Lab

Inputs = Mapping[str, Result]
SCHEDULED = ("ls", "els", "pspc_square", "pspc_flex")
SOFT_BYTES = 2 << 30                                    # of soft levels kept in memory


@dataclass(frozen=True)
class Method:
    """A denoiser: a preset, its source, and what of it is learned."""

    name: str                                           # of a row, as paper.json has it
    label: str                                          # as the paper writes it
    preset: str                                         # of fpmc.presets, or "network", "reference"
    tau: float | None = None                            # of Lukoianov
    value: float | None = None                          # one patch size or threshold instead of the schedule
    schedule: str = ""                                  # "calibrated": found here, instead of the paper's
    augment: str | None = None                          # added to the source
    amount: float = 1.0
    soft: str = ""                                      # what is learned: "q", "r" or "qr"
    target: str | None = None                           # of multi-scale weights: "network" or "clean"
    dear: bool = False

    def settings(self) -> dict[str, Any]:
        """What decides the denoiser, as plain values."""
        kept = {name: value for name, value in asdict(self).items() if name not in ("name", "label", "dear")}
        if self.augment is None:
            del kept["amount"]
        return {name: value for name, value in kept.items() if value not in (None, "")}

    @property
    def slug(self) -> str:
        """The settings in short, for names of steps."""
        return " ".join(f"{value:.3g}" if isinstance(value, float) else value for value in self.settings().values())

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Method:
        """The method of `settings`."""
        return cls("", "", **settings)


REFERENCE = Method("ncsnpp", "NCSN++", "reference")
NETWORK = Method("ddpmpp", "DDPM++", "network")
OPTIMAL = Method("optimal", "Optimal", "optimal")
WIENER = Method("wiener", "Wiener", "wiener")
LS = Method("ls", "LS", "ls")
ELS = Method("els", "ELS", "els", dear=True)
PSPC_SQUARE = Method("pspc_square", "PSPC-Square", "pspc_square")
PSPC_FLEX = Method("pspc_flex", "PSPC-Flex", "pspc_flex")

SOFT = replace(PSPC_FLEX, name="soft", label="PSPC-Flex + soft Q/R", soft="qr")
MULTISCALE = Method("multiscale", "Multi-scale, fitted to DDPM++", "multiscale", target="network")
MULTISCALE_CLEAN = replace(
    MULTISCALE, name="multiscale-clean", label="Multi-scale, fitted to clean images", target="clean"
)
MOVED = replace(MULTISCALE, name="moved", label="Multi-scale with copies, fitted to DDPM++", augment="moved")
MOVED_CLEAN = replace(
    MULTISCALE_CLEAN, name="moved-clean", label="Multi-scale with copies, fitted to clean images", augment="moved"
)


def lukoianov(tau: float) -> Method:
    return Method("lukoianov", f"Lukoianov, τ = {tau:g}", "lukoianov", tau=tau, dear=True)


def paper_tau(lab: Lab) -> float:
    """The threshold the paper reports: 0.05 on CIFAR-10, 0.02 on FFHQ and AFHQ (App. C.1)."""
    return 0.02 if lab.dataset in ("ffhq", "afhq") else 0.05


def table_rows(lab: Lab) -> tuple[Method, ...]:
    """The rows of the results table (Table 2) that there are for these data, and ours; the dearest only by name."""
    count = round(lab.added * len(lab.images))
    some = "" if lab.added == 1 else f" ({count:,} images)"
    els = replace(ELS, label=f"ELS ({lab.scale.els_images:,} images)") if fewer(lab) else ELS
    rows = (
        NETWORK, OPTIMAL, WIENER, LS, *([els] if lab.side < 48 else []),
        PSPC_SQUARE, PSPC_FLEX, lukoianov(paper_tau(lab)), SOFT,
        replace(SOFT, name="soft-xflip", label="PSPC-Flex + soft Q/R + x-flip", augment="xflip"),
        replace(
            SOFT, name="soft-synthetic", label=f"PSPC-Flex + soft Q/R + synthetic{some}",
            augment="synthetic", amount=lab.added,
        ),
        MULTISCALE,
        MULTISCALE_CLEAN,
        MOVED,
        MOVED_CLEAN,
    )
    names = [row.name for row in rows]
    if wrong := [name for name in lab.only if name not in names]:
        raise InputError(f"no row {wrong[0]!r} in the results of these data; there are {', '.join(names)}")
    wanted = lab.only or [name for name in names if name not in (MOVED.name, MOVED_CLEAN.name)]
    return tuple(row for row in rows if row.name in wanted)


def fewer(lab: Lab) -> bool:
    """ELS has only some of the images."""
    return lab.scale.els_images is not None and lab.scale.els_images < len(lab.images)


def build(lab: Lab, method: Method, inputs: Inputs) -> Denoiser:
    """The denoiser; `inputs` are the results of the steps that it depends on (`steps.needs`)."""
    if method.preset in ("network", "reference"):
        return lab.network if method.preset == "network" else lab.reference
    if method.preset == "pspc_flex" and method.value is not None:
        return _build(lab, method, inputs)              # masks of a level and threshold that are wanted once
    key = (Method.of(method.settings()), tuple(sorted(str(result.path) for result in inputs.values())))
    return lab.recall(key, lambda: _build(lab, method, inputs))


def _build(lab: Lab, method: Method, inputs: Inputs) -> FPMC:
    if method.soft:
        return _soft(lab, method, inputs)
    if method.preset == "multiscale":
        return _multiscale(lab, method, inputs)
    options: dict[str, Any] = {}
    if method.preset in SCHEDULED:
        found = _levels(inputs, "calibration", best_value) if method.schedule else lab.dataset
        options["schedule"] = found if method.value is None else method.value
    if method.tau is not None:
        options["tau"] = method.tau
    if method.preset == "pspc_flex":
        maps = lab.maps or _levels(inputs, "maps", lambda result: result["maps"])
        options["maps"] = maps or torch.ones(()).expand(2 * lab.images.shape[1:])     # τ = 1 needs no map at all
    return getattr(presets, method.preset)(source_of(lab, method), **options)


def best_value(scores: Result) -> float:
    """The patch size or threshold with the least error (App. C.1)."""
    return min(zip(scores.info["mse"], scores.info["values"]))[1]


def source_of(lab: Lab, method: Method) -> Source:
    """V of a method: the images, fewer of them for ELS, and what is added to them."""
    images = lab.images.subset(slice(lab.scale.els_images)) if method.preset == "els" and fewer(lab) else lab.images
    if method.augment is None:
        return Source(images)
    if method.augment == "synthetic":
        return Source(images) | lab.synthetic(method.amount)
    kind, amount = method.augment, method.amount
    return Source(images) | lab.recall((kind, amount), lambda: augment(images, kind, amount))


def _soft(lab: Lab, method: Method, inputs: Inputs) -> FPMC:
    """Learned collections where there are any, the binary ones elsewhere; the source is the method's own."""
    source = source_of(lab, method)
    binary = build(lab, replace(method, soft=""), {name: inputs[name] for name in inputs if name.startswith("maps")})
    assert isinstance(binary, FPMC)
    levels = _levels(inputs, "soft", lambda result: result)
    largest = max((result.path.stat().st_size for result in levels.values()), default=1)

    @lru_cache(maxsize=max(2, SOFT_BYTES // (8 * largest)))     # files hold packed and 0-free vectors
    def learned(level: float) -> Collection:
        groups = unpack(levels[level], lab).groups
        return Collection.of(*(replace(group, source=source) for group in groups))

    def at(sigma: float) -> Collection:
        level = lab.level(sigma)
        return learned(level) if level in levels else binary.at(sigma)

    return FPMC(at, name=f"{binary.name} + soft {method.soft}")


def _multiscale(lab: Lab, method: Method, inputs: Inputs) -> FPMC:
    """The multi-scale collection of each level with the weights fitted to the target."""
    collections, target = multiscale(lab, method.augment == "moved"), str(method.target)
    fitted = _levels(inputs, "multi-scale", lambda result: result)

    @lru_cache(maxsize=64)
    def at(level: float) -> Collection:
        return weigh(collections.at(level), fitted[level][target])

    return FPMC(lambda sigma: at(nearest(fitted, sigma)), name="Multi-scale")


def multiscale(lab: Lab, moved: bool) -> FPMC:
    """`presets.multiscale` of the images."""
    return lab.recall(("multiscale", moved), lambda: presets.multiscale(lab.images, moved=moved))


def _levels(inputs: Inputs, kind: str, take: Callable[[Result], Any]) -> dict[float, Any]:
    """{σ: something} from the results of one kind."""
    return {result.info["sigma"]: take(result) for name, result in inputs.items() if name.startswith(f"{kind}/")}


def pack(collection: Collection, **info: Any) -> Made:
    """A collection as a result."""
    writer = storage.Writer()
    groups = [writer.group(group) for group in collection.groups]
    return Made(writer.tensors, {"groups": groups, "sources": writer.sources, **info})


def unpack(result: Result, lab: Lab) -> Collection:
    """The collection of a result of `pack`."""

    def find(recipe: dict[str, Any]) -> ImageSet:
        return lab.recall(str(recipe), lambda: from_recipe(recipe, lab.images))

    tensors = {name: result[name] for name in result.names}
    reader = storage.Reader(tensors, result.info["sources"], find)
    return Collection.of(*map(reader.group, result.info["groups"]))
