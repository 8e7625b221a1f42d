"""What collections are made of as plain data and tensors, so that an FPMC is saved and loaded without pickles.

A structure is recorded by the arguments of its constructor: numbers as they are, tensors by name, other structures by
their place in a list, images by their recipe (name and checksum): they are loaded again, not stored. Masks are packed
into bits; vectors that are mostly 0 into bits and values.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fpmc.errors import InputError
from fpmc.images import ImageSet

SPARSE = 0.7                                            # share of zeros from which only the rest is stored
FindImages = Callable[[dict[str, Any]], ImageSet]       # a recipe to its images


class Structure:
    """A part of a collection that can be saved; `class Discs(Precision, kind="discs")` is all it takes."""

    kind: ClassVar[str] = ""
    known: ClassVar[dict[str, type[Structure]]] = {}

    def __init_subclass__(cls, *, kind: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        if kind:
            cls.kind = kind
            Structure.known[kind] = cls

    def arguments(self) -> dict[str, Any]:
        """What the constructor takes to make this again: the fields of a dataclass."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]


class Writer:
    """Collects structures and their tensors; the same object is stored once."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.structures: list[dict[str, Any]] = []
        self._places: dict[int, Any] = {}
        self._alive: list[object] = []                  # ids stay unique while their objects live
        self._dtype = dtype                             # of soft vectors

    def structure(self, thing: Structure) -> int:
        """Its place in `structures`."""
        if type(thing) is not Structure.known.get(thing.kind):
            raise InputError(f"{type(thing).__name__} cannot be saved; declare it with kind=\"…\" as the others do")
        return self._once(thing, lambda: self._add({"kind": thing.kind} | self._encoded(thing.arguments())))

    def _add(self, entry: dict[str, Any]) -> int:
        self.structures.append(entry)
        return len(self.structures) - 1

    def _once(self, thing: object, make: Callable[[], Any]) -> Any:
        if id(thing) not in self._places:
            self._alive.append(thing)
            self._places[id(thing)] = make()
        return self._places[id(thing)]

    def _encoded(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._value(value) for name, value in arguments.items()}

    def _value(self, value: Any) -> Any:
        if isinstance(value, Structure):
            return {"structure": self.structure(value)}
        if isinstance(value, Tensor):
            return self._once(value, lambda: self._tensor(value.detach().cpu()))
        if isinstance(value, ImageSet):
            return {"images": value.recipe()}
        return [self._value(each) for each in value] if isinstance(value, tuple) else value

    def _tensor(self, values: Tensor) -> dict[str, Any]:
        entry: dict[str, Any] = {"shape": list(values.shape)}
        if values.dtype == torch.bool:
            return entry | {"bits": self._put(_pack(values))}
        if values.dtype == torch.float32:
            on = values != 0
            if values.dim() == 4 and on.float().mean().item() < 1 - SPARSE:
                return entry | {"bits": self._put(_pack(on)), "values": self._put(values[on].to(self._dtype))}
            values = values.to(self._dtype) if values.dim() == 4 else values
        return entry | {"values": self._put(values)}

    def _put(self, tensor: Tensor) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = tensor.contiguous().clone()
        return name


class Reader:
    """The structures that a `Writer` wrote; whatever does not fit is refused."""

    def __init__(self, tensors: Mapping[str, Tensor], structures: Sequence[Any], find: FindImages) -> None:
        self._tensors, self._find = tensors, find
        self._made: list[Structure] = []                # an entry refers to earlier ones only
        self._images: dict[str, ImageSet] = {}
        for entry in structures:
            self._made.append(self._structure(entry))

    def structure(self, place: Any) -> Structure:
        """The structure at a place of the list."""
        if type(place) is not int or not 0 <= place < len(self._made):
            raise InputError(f"structure {place!r} is not one of the {len(self._made)} before it")
        return self._made[place]

    def _structure(self, entry: Any) -> Structure:
        kind = entry.get("kind") if isinstance(entry, dict) else entry
        cls = Structure.known.get(kind) if isinstance(kind, str) else None
        if cls is None:
            raise InputError(f"structure {kind!r} is not known; there are {', '.join(sorted(Structure.known))}")
        given = {name: value for name, value in entry.items() if name != "kind"}
        hints = _hints(cls)
        if not _required(cls) <= set(given) <= set(hints):
            raise InputError(f"structure {kind!r} is made of {', '.join(hints)}; got {', '.join(given) or 'nothing'}")
        return cls(**{name: self._value(value, f"{kind}.{name}", hints[name]) for name, value in given.items()})

    def _value(self, value: Any, name: str, hint: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {"structure"}:
            return self.structure(value["structure"])
        if isinstance(value, dict) and value.keys() == {"images"}:
            key = repr(value["images"])
            if key not in self._images:
                self._images[key] = self._find(value["images"])
            return self._images[key]
        if isinstance(value, dict):
            return self._tensor(value, name)
        if isinstance(value, list):
            return tuple(self._value(each, name, None) for each in value)
        if hint in (int, float, bool) and type(value) is not hint and not (hint is float and type(value) is int):
            raise InputError(f"{name} must be {hint.__name__}, got {value!r}")
        return value

    def _tensor(self, entry: dict[str, Any], name: str) -> Tensor:
        shape: Any = entry.get("shape")
        found = {key: self._tensors.get(str(entry[key])) for key in ("bits", "values") if key in entry}
        sizes = isinstance(shape, list) and all(type(size) is int and 0 <= size < 2**40 for size in shape)
        if not sizes or not found or None in found.values() or entry.keys() != {"shape", *found}:
            raise InputError(f"{name} is no record of a tensor: {str(entry)[:100]}")
        count, bits, values = math.prod(shape), found.get("bits"), found.get("values")
        if values is not None and values.dtype == torch.float16:
            values = values.float()
        if bits is None:
            if values is None or values.numel() != count:
                raise InputError(f"{name} has another size than its shape {shape}")
            return values.view(shape)
        if bits.dtype != torch.uint8 or bits.dim() != 1 or len(bits) != -(-count // 8):
            raise InputError(f"{name} has {bits.numel()} bytes of bits for a shape of {shape}")
        on = torch.from_numpy(np.unpackbits(bits.numpy(), count=count).astype(bool)).view(shape)
        if values is None:
            return on
        if values.numel() != int(on.sum()):
            raise InputError(f"{name} has {values.numel()} values for {int(on.sum())} places")
        return torch.zeros(shape).masked_scatter_(on, values.float())


def _pack(on: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(on.numpy().ravel()))


def _required(cls: type[Structure]) -> set[str]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {parameter.name for parameter in parameters if parameter.default is parameter.empty}


@cache
def _hints(cls: type[Structure]) -> dict[str, Any]:
    """The parameters of the constructor with their types."""
    hints = get_type_hints(cls.__init__)
    return {name: hints.get(name) for name in list(inspect.signature(cls.__init__).parameters)[1:]}
