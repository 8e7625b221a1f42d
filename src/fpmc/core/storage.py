"""Groups as plain data and tensors, so that an FPMC can be saved and loaded without pickles.

Structures are a few numbers; vectors are stored as they are, as packed bits where they are binary, or as packed bits
and values where most of them are 0. Images are not stored: a source is its recipe (name and checksum), and what it is
made of is loaded again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fpmc.core import precision, response
from fpmc.core.group import Group
from fpmc.core.precision import Full, Precision, Squares
from fpmc.core.response import Partition, Response, SameAsQ
from fpmc.core.sources import Gaussian, Source, Translations
from fpmc.images import ImageSet

SQUARES = ("size", "height", "width", "inside", "stride", "around")
SPARSE = 0.7                                            # share of zeros from which only the rest is stored
FindImages = Callable[[dict[str, Any]], ImageSet]       # a recipe to its images


class Writer:
    """Collects tensors under short names; the same object is stored once."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.sources: list[dict[str, Any]] = []
        self._names: dict[int, Any] = {}
        self._alive: list[object] = []                  # ids stay unique while their objects live
        self._dtype = dtype

    def group(self, group: Group) -> dict[str, Any]:
        q, r = self._precision(group.q), self._response(group.r, group.q)
        weight = None if group.weight is None else self._put(group.weight)
        return {"q": q, "r": r, "source": self._source(group.source), "weight": weight}

    def _once(self, thing: object, make: Callable[[], Any]) -> Any:
        if id(thing) not in self._names:
            self._alive.append(thing)
            self._names[id(thing)] = make()
        return self._names[id(thing)]

    def _put(self, tensor: Tensor) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = tensor.detach().cpu().contiguous().clone()
        return name

    def _vectors(self, values: Tensor) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            shape = list(values.shape)
            on = values.detach() != 0
            if values.dtype == torch.bool:
                return {"kind": "bits", "shape": shape, "bits": self._put(_pack(on))}
            if on.float().mean().item() < 1 - SPARSE:
                kept = values.detach()[on].to(self._dtype)
                return {"kind": "sparse", "shape": shape, "bits": self._put(_pack(on)), "values": self._put(kept)}
            return {"kind": "dense", "shape": shape, "values": self._put(values.to(self._dtype))}

        return self._once(values, make)

    def _precision(self, q: Precision) -> dict[str, Any]:
        if isinstance(q, Full):
            return {"kind": "full", "height": q.height, "width": q.width, "value": q.value}
        if isinstance(q, Squares):
            return {"kind": "squares"} | {name: getattr(q, name) for name in SQUARES}
        assert isinstance(q, precision.Precisions)
        return {"kind": "vectors", "vectors": self._vectors(q.values)}

    def _response(self, r: Response, q: Precision) -> dict[str, Any]:
        if isinstance(r, Partition):
            return {"kind": "partition", "owner": self._once(r.owner, lambda: self._put(r.owner)), "length": r.length}
        if isinstance(r, SameAsQ) and r.precision is q and r.count is None:
            return {"kind": "same"}
        if isinstance(r, SameAsQ) and isinstance(r.precision, Squares) and r.count is None:
            return self._precision(r.precision)
        values = r.values if isinstance(r, response.Responses) else r.dense()
        return {"kind": "vectors", "vectors": self._vectors(values)}

    def _source(self, source: Source | Translations | Gaussian) -> int:
        def make() -> int:
            if isinstance(source, Translations):
                entry = {"kind": "translations", "base": self._source(source.base), "size": source.size}
            elif isinstance(source, Gaussian):
                names = ("mean", "eigenvalues", "eigenvectors")
                entry = {"kind": "gaussian"} | {name: self._put(getattr(source, name).float()) for name in names}
            else:
                weights = None if source.log_weights is None else self._put(source.log_weights)
                entry = {"kind": "images", "parts": [part.recipe() for part in source.parts], "log_weights": weights}
            self.sources.append(entry)
            return len(self.sources) - 1

        return self._once(source, make)


class Reader:
    """Groups from what a `Writer` made."""

    def __init__(self, tensors: dict[str, Tensor], sources: list[dict[str, Any]], find: FindImages) -> None:
        self._tensors, self._find = tensors, find
        self._groups: dict[str, Group] = {}             # levels that share a structure share the object
        self._sources: list[Source | Translations | Gaussian] = []
        for entry in sources:
            self._sources.append(self._source(entry))

    def group(self, entry: dict[str, Any]) -> Group:
        key = json.dumps([entry["q"], entry["r"], entry["source"]])
        if key not in self._groups:
            q = self._precision(entry["q"])
            self._groups[key] = Group(q, self._response(entry["r"], q), self._sources[entry["source"]])
        weight = None if entry.get("weight") is None else self._tensors[entry["weight"]]
        return replace(self._groups[key], weight=weight)

    def _vectors(self, entry: dict[str, Any]) -> Tensor:
        shape = tuple(entry["shape"])
        if entry["kind"] == "dense":
            return self._tensors[entry["values"]].float().view(shape)
        on = _unpack(self._tensors[entry["bits"]], shape)
        if entry["kind"] == "bits":
            return on
        return torch.zeros(shape).masked_scatter_(on, self._tensors[entry["values"]].float())

    def _precision(self, entry: dict[str, Any]) -> Precision:
        if entry["kind"] == "full":
            return Full(entry["height"], entry["width"], entry.get("value", 1.0))
        if entry["kind"] == "squares":
            return Squares(**{name: entry[name] for name in SQUARES if name in entry})
        return precision.Precisions(self._vectors(entry["vectors"]))

    def _response(self, entry: dict[str, Any], q: Precision) -> Response:
        if entry["kind"] == "partition":
            return Partition(self._tensors[entry["owner"]], entry["length"])
        if entry["kind"] == "squares":
            return SameAsQ(self._precision(entry))
        return SameAsQ(q) if entry["kind"] == "same" else response.Responses(self._vectors(entry["vectors"]))

    def _source(self, entry: dict[str, Any]) -> Source | Translations | Gaussian:
        if entry["kind"] == "translations":
            base = self._sources[entry["base"]]
            assert isinstance(base, Source)
            return Translations(base, entry["size"])
        if entry["kind"] == "gaussian":
            return Gaussian(*(self._tensors[entry[name]].double() for name in ("mean", "eigenvalues", "eigenvectors")))
        weights = None if entry["log_weights"] is None else self._tensors[entry["log_weights"]]
        return Source([self._find(part) for part in entry["parts"]], weights)


def _pack(on: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(on.cpu().numpy().ravel()))


def _unpack(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    count = int(np.prod(shape))
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=count).astype(bool)).view(shape)
