"""Write checkpoints as EDM does: every network object is a call of `_reconstruct_persistent_obj` on one dict."""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from fpmc.networks.precond import EDMPrecond

SOURCE = "raise SystemExit('the source in the file was executed')"


class EasyDict(dict[str, Any]):
    """Stands in for `dnnlib.util.EasyDict`."""


EasyDict.__module__, EasyDict.__qualname__ = "dnnlib.util", "EasyDict"


def _reconstruct_persistent_obj(meta: dict[str, Any]) -> Any:
    raise AssertionError("only its name goes into the file")


_reconstruct_persistent_obj.__module__ = "torch_utils.persistence"


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, nn.Module) and not isinstance(obj, nn.ModuleDict):
            state = dict(obj.__dict__)
            state.pop("config", None)
            settings = getattr(obj, "settings", {})
            state |= {"_init_args": (), "_init_kwargs": EasyDict(settings), "skip_scale": np.float64(0.5) ** 0.5}
            meta = {"type": "class", "version": 6, "module_src": SOURCE}
            return _reconstruct_persistent_obj, ({**meta, "class_name": type(obj).__name__, "state": state},)
        return NotImplemented


@contextmanager
def edm_modules() -> Iterator[None]:
    """The modules that pickle looks the two names up in while writing."""
    util, persistence = types.ModuleType("dnnlib.util"), types.ModuleType("torch_utils.persistence")
    util.EasyDict, persistence._reconstruct_persistent_obj = EasyDict, _reconstruct_persistent_obj  # pyright: ignore
    names = {"dnnlib": types.ModuleType("dnnlib"), "torch_utils": types.ModuleType("torch_utils")}
    names |= {"dnnlib.util": util, "torch_utils.persistence": persistence}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def edm_pickle(net: EDMPrecond, settings: dict[str, Any], *, protocol: int = 4, **more: Any) -> bytes:
    """The bytes of a checkpoint of `net`, whose constructor got `settings`."""
    net.settings = settings  # pyright: ignore[reportArgumentType]
    content = {"ema": net, "loss_fn": EasyDict(P_mean=-1.2), "dataset_kwargs": EasyDict(path="x", use_labels=False)}
    content["augment_pipe"] = OrderedDict(p=np.float32(0.12), flags={1, 2}, nothing=None)
    file = io.BytesIO()
    with edm_modules():
        _Pickler(file, protocol=protocol).dump(content | more)
    return file.getvalue()
