"""Sensitivity maps in compact files: 6 bits a value, compressed; one noise level of 28×28 images takes some 0.2 MB.

A map is kept relative to its largest value, by square roots, so that small values keep their order; the masks of
PSPC-Flex made from it differed in about one pixel of 20 from those of the exact map (28×28, three noise levels).
"""

from __future__ import annotations

import json
import lzma
import math
import os
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fpmc.errors import InputError
from fpmc.files import atomic
from fpmc.networks.maps import SensitivityMaps
from fpmc.networks.shipped import MAPS

LEVELS = 63


def save_maps(maps: SensitivityMaps, path: str | os.PathLike[str]) -> None:
    """Write the maps of all noise levels to one safetensors file."""
    state: dict[str, Tensor] = {}
    for index, values in enumerate(maps.values()):
        largest = values.amax((2, 3), keepdim=True)
        codes = (LEVELS * (values / largest.clamp(min=1e-30)).sqrt()).round().to(torch.uint8)
        packed = lzma.compress(codes.numpy().tobytes(), preset=9)
        state[f"codes.{index}"] = torch.from_numpy(np.frombuffer(packed, np.uint8).copy())
        state[f"largest.{index}"] = largest[..., 0, 0].contiguous()
    levels = [[sigma, maps.draws[sigma], maps.errors[sigma]] for sigma in maps]
    with atomic(path) as part:
        save_file(state, part, {"fpmc-maps": json.dumps(levels)})


def load_maps(source: str | os.PathLike[str]) -> SensitivityMaps:
    """Maps from a file of `save_maps`, or those that come with a shipped network, by its name."""
    shipped = MAPS / f"{source}.safetensors"
    path = shipped if shipped.is_file() else Path(source)
    maps: dict[float, Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            levels = json.loads((file.metadata() or {})["fpmc-maps"])
            for index, (sigma, _, _) in enumerate(levels):
                largest = file.get_tensor(f"largest.{index}")
                maps[float(sigma)] = _unpack(file.get_tensor(f"codes.{index}"), largest)
        draws, errors = ({float(level[0]): level[k] for level in levels} for k in (1, 2))
    except OSError as error:
        known = ", ".join(sorted(file.stem for file in MAPS.glob("*.safetensors"))) or "none"
        raise InputError(f"no maps {str(source)!r}; give a file of fpmc maps, or a shipped name ({known})") from error
    except (SafetensorError, lzma.LZMAError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{str(path)!r} is no file of sensitivity maps ({error}); make it with fpmc maps") from error
    return SensitivityMaps(maps, draws, errors)


def _unpack(packed: Tensor, largest: Tensor) -> Tensor:  # (bytes,), (H, W) -> (H, W, H, W)
    size = math.prod(largest.shape) ** 2
    # One byte more than there should be would show a file that lies about its size, without unpacking all of it.
    content = lzma.LZMADecompressor().decompress(packed.numpy().tobytes(), max_length=size + 1)
    codes = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(*largest.shape, *largest.shape)
    return (codes.float() / LEVELS).square() * largest[..., None, None]
