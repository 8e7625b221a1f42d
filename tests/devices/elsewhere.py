"""A device that is not the CPU in the eyes of torch, so that a forgotten `.to(device)` fails a test without a GPU.

Tensors "elsewhere" hold a CPU tensor that nobody else sees: every operation is carried out on it, so that values are
the CPU's. As with CUDA, tensors of two devices do not mix. What CUDA allows is allowed: numbers in tensors without
dimensions in elementwise operations, indices that are still on the CPU, and copies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "elsewhere"
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class Mixed(RuntimeError):
    """Tensors of two devices in one operation."""


class Elsewhere(torch.Tensor):
    """A tensor on the other device."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device(NAME, 0), requires_grad=held.requires_grad,
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def tolist(self) -> Any:
        return self.held.tolist()                       # which torch has for plain tensors only

    def __format__(self, how: str) -> str:
        return format(self.held, how)                   # likewise

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        refuse_mixtures(func, args, kwargs)
        here = {id(each.held): each for each in tree_leaves((args, kwargs)) if isinstance(each, Elsewhere)}
        asked = kwargs.get("device")
        stays = asked is None or torch.device(asked).type == NAME
        inner = {**_held(kwargs), **({"device": torch.device("cpu")} if asked is not None else {})}
        found = func(*_held(args), **inner)
        if not stays or (not isinstance(args[0] if args else None, Elsewhere) and func in COPIES):
            return found                                # a copy on the CPU

        def wrap(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return here[id(value)] if id(value) in here else Elsewhere(value)

        return return_and_correct_aliasing(func, args, kwargs, tree_map(wrap, found))


def _held(values: Any) -> Any:
    return tree_map(lambda each: each.held if isinstance(each, Elsewhere) else each, values)


def refuse_mixtures(func: Any, args: Any, kwargs: Any) -> None:
    """What CUDA refuses."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    strangers = [each for each in tensors if not isinstance(each, Elsewhere)]
    if torch.Tag.pointwise in func.tags:
        strangers = [each for each in strangers if each.ndim]
    if func in INDEXED and isinstance(args[0], Elsewhere):
        strangers = [each for each in args[2:3] if isinstance(each, torch.Tensor) and not isinstance(each, Elsewhere)]
    if strangers and func not in COPIES:
        shapes = ", ".join(str(tuple(each.shape)) for each in strangers)
        raise Mixed(f"{func}: expected all tensors to be on {NAME}, found {shapes} on {strangers[0].device}")
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type == "cpu":
        raise Mixed(f"{func}: expected a generator on {NAME}, found one on the CPU")


class Module(_DummyBackendModule):
    """`torch.elsewhere`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def _empty(size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    return Elsewhere(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What `torch.as_tensor` copies with, past `__torch_dispatch__`."""
    _held(target).copy_(_held(source))
    return target


def register() -> str:
    """Make the device known to torch; its name."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, Module())
        library = torch.library.Library("aten", "IMPL")
        library.impl("empty.memory_format", _empty, "PrivateUse1")
        library.impl("empty_strided", _empty_strided, "PrivateUse1")
        library.impl("_copy_from", _copy_from, "PrivateUse1")
        register.library = library                      # or it is undone with the object
    return NAME
