"""EDM's `.pkl` checkpoints, without executing anything: settings and weights by the pickle machine without calls.

The Python source inside the file is never looked at.
"""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np
from torch import Tensor

from fpmc.errors import InputError, in_short
from fpmc.readers.pickles import Bounded, Maker, Record, Refused, expect, interpret, key, make_bytes, make_dtype
from fpmc.readers.source import open_file, size_of
from fpmc.readers.torches import Storage, make_parameter, make_tensor, read_stream

MOST_ENTRIES = 100_000      # modules, parameters and buffers of one network
LONGEST_NAME = 500          # of a parameter, with those of the modules around it


def read_edm_pickle(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The network `ema` of an EDM checkpoint: constructor settings of `EDMPrecond`, and its state by name."""
    try:
        with open_file(path) as file:
            content = interpret(Bounded(file, size_of(file)), MAKERS)
        net = content.get("ema") if isinstance(content, dict) else content
        if not isinstance(net, Record) or net.name != "EDMPrecond":
            found = net.name[:60] if isinstance(net, Record) else type(net).__name__
            raise Refused(f"its network is {found}; only EDM's preconditioning (EDMPrecond) can be read")
        attributes = expect(net.state, dict)
        settings = attributes.get("_init_kwargs")
        if attributes.get("_init_args") or not isinstance(settings, dict):
            raise Refused("its constructor settings (_init_kwargs) are missing")
        return settings, _state(net)
    except Exception as error:
        if isinstance(error, OSError):
            raise InputError(f"cannot read {os.fspath(path)!r}: {error.strerror}; give an EDM .pkl") from error
        why = in_short(error if isinstance(error, InputError) else Refused(f"it is damaged, {error}"))
        raise InputError(f"{os.fspath(path)!r} is refused: {why}; nothing in it was executed") from error


def _state(net: Record) -> dict[str, Tensor]:
    """Parameters and buffers by dotted name, as `state_dict` has them."""
    state: dict[str, Tensor] = {}
    count, pending = 0, [("", net)]
    while pending:
        prefix, module = pending.pop()
        for kind, wanted in (("_parameters", Tensor), ("_buffers", Tensor), ("_modules", Record)):
            for name, value in expect(expect(module.state, dict).get(kind, {}), dict).items():
                count += 1
                path = f"{prefix}{expect(name, str)}"
                if count > MOST_ENTRIES or len(path) > LONGEST_NAME:  # modules may hold each other, in circles
                    raise Refused("its modules have no end")
                if value is not None and type(value) is not wanted:
                    raise Refused(f"{path} is {type(value).__name__}, not one of its {kind}")
                if isinstance(value, Record):
                    pending.append((f"{path}.", value))
                elif value is not None:
                    state[path] = value
    return state


# The makers: what a checkpoint is made of, from the arguments the file gives.


def _persistent(source: Bounded, meta: Any) -> Record:
    meta = expect(meta, dict)
    return Record(expect(meta.get("class_name"), str), expect(meta.get("state"), dict))


def _storage(source: Bounded, content: Any) -> Storage:
    source.spend(expect(content, bytes))
    return expect(read_stream(io.BytesIO(content), len(content)), Storage)


def _set(source: Bounded, items: Any) -> set[str | int | float | bytes]:
    source.spend(expect(items, list))
    return set(map(key, items))


def _scalar(source: Bounded, dtype: Any, content: Any) -> bool | int | float:
    if not isinstance(dtype, np.dtype):
        raise Refused("one of its NumPy numbers has no type")
    return np.frombuffer(expect(content, bytes), dtype, count=1)[0].item()


MAKERS: dict[str, Maker] = {
    "torch_utils.persistence._reconstruct_persistent_obj": _persistent,
    "torch._utils._rebuild_tensor_v2": make_tensor,
    "torch._utils._rebuild_parameter": make_parameter,
    "torch.storage._load_from_bytes": _storage,
    "torch.nn.modules.container.ModuleDict": lambda source: Record("ModuleDict", {}),
    "collections.OrderedDict": lambda source: {},
    "dnnlib.util.EasyDict": lambda source: {},
    "builtins.set": _set,
    "__builtin__.set": _set,
    "numpy.dtype": make_dtype,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
    "_codecs.encode": make_bytes,
}
