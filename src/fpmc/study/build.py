"""Denoisers of a study from their descriptions: its images, networks and maps, and the results of other tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from fpmc import presets
from fpmc.augmentation import augment, from_recipe
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.record import Reader, Writer
from fpmc.core.sources import Source
from fpmc.images import ImageSet
from fpmc.learn.fit import weigh
from fpmc.methods.schedules import resolve
from fpmc.methods.table1 import nearest
from fpmc.process import Denoiser
from fpmc.study.code import dispatches
from fpmc.study.graph import Made, Result
from fpmc.study.lab import Lab, There
from fpmc.study.methods import NETWORKS, SCHEDULED, Method

Inputs = Mapping[str, Result]
SOFT_BYTES = 2 << 30                                    # of soft levels kept in memory


@dispatches
def build(lab: Lab, method: Method, inputs: Inputs) -> Denoiser:
    """The denoiser; `inputs` are the results of the tasks that it depends on (`tasks.needs`)."""
    if method.preset in NETWORKS:
        return getattr(lab, method.preset)
    maker, *_ = makers(lab, method)
    if method.preset == "pspc_flex" and method.option("schedule") is not None:
        return maker(lab, method, inputs)               # masks of a level and threshold that are wanted once
    key = (Method.of(method.settings()), tuple(sorted(str(result.path) for result in inputs.values())))
    return lab.recall(key, lambda: maker(lab, method, inputs))


def makers(lab: Lab, method: Method) -> tuple[Any, ...]:
    """The function that makes a denoiser, and the code it picks by name: what decides the denoiser."""
    if method.preset in NETWORKS:
        network = getattr(lab, method.preset)
        return (type(network.network if isinstance(network, There) else network),)
    if method.soft:
        return _soft, *makers(lab, replace(method, soft=""))
    return (_weighed if method.preset == "multiscale" else _preset), getattr(presets, method.preset)


def made_of(lab: Lab, method: Method, *more: str) -> dict[str, Any]:
    """Keywords of a task: what decides a method's results besides its settings; `more` names files of the study."""
    networks = [part for name in more if name in NETWORKS for part in makers(lab, Method(name))]
    return {"stamps": _stamps(lab, method, *more), "code": (*makers(lab, method), *networks)}


def _stamps(lab: Lab, method: Method, *more: str) -> dict[str, str]:
    """Files, the schedule, the size of ELS's source."""
    if method.preset in NETWORKS:
        return lab.stamped(method.preset, *more) | {"shape": str(lab.images.shape)}
    found = lab.stamped("data", *more)
    if method.preset == "pspc_flex":
        found |= lab.stamped("maps")
    if method.preset in SCHEDULED and method.option("schedule") is None and not method.schedule:
        found["schedule"] = str(resolve(lab.dataset, method.preset, lab.images.shape))
    if method.preset == "els":
        found["images"] = str(lab.scale.els_images)
    return found


def _preset(lab: Lab, method: Method, inputs: Inputs) -> Denoiser:
    """A preset with the study's schedule and maps, found or calibrated."""
    if method.preset in SCHEDULED and method.option("schedule") is None:
        found = _levels(inputs, "calibration", best_value) if method.schedule else lab.dataset
        method = method.with_option("schedule", found)
    if method.preset == "pspc_flex":
        maps = lab.maps or _levels(inputs, "maps", lambda result: result["maps"])
        method = method.with_option("maps", maps or torch.ones(()).expand(2 * lab.images.shape[1:]))    # where τ = 1
    return method.build(source_of(lab, method))


def best_value(scores: Result) -> float:
    """The patch size or threshold with the least error (App. C.1)."""
    return min(zip(scores.info["mse"], scores.info["values"]))[1]


def source_of(lab: Lab, method: Method) -> Source:
    """V of a method: the images, fewer of them for ELS, and what is added to them."""
    images = lab.images.subset(slice(lab.scale.els_images)) if method.preset == "els" and lab.few_els else lab.images
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


def _weighed(lab: Lab, method: Method, inputs: Inputs) -> FPMC:
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
    writer = Writer()
    groups = [writer.structure(group) for group in collection.groups]
    return Made(writer.tensors, {"groups": groups, "structures": writer.structures, **info})


def unpack(result: Result, lab: Lab) -> Collection:
    """The collection of a result of `pack`."""

    def find(recipe: dict[str, Any]) -> ImageSet:
        return lab.recall(str(recipe), lambda: from_recipe(recipe, lab.images))

    tensors = {name: result[name] for name in result.names}
    reader = Reader(tensors, result.info["structures"], find)
    return Collection.of(*map(reader.structure, result.info["groups"]))  # pyright: ignore[reportArgumentType]
