"""Sensitivity maps in compact files: 6 bits a value, compressed; one noise level of 28×28 images takes some 0.2 MB.

A map is kept relative to its largest value, by square roots, so that small values keep their order; the masks of
PSPC-Flex made from it differed in about one pixel of 20 from those of the exact map (28×28, three noise levels).
"""

from __future__ import annotations

import json
import lzma
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from fpmc.errors import InputError, in_short, show
from fpmc.files import atomic
from fpmc.networks.maps import SensitivityMaps
from fpmc.networks.shipped import MAPS
from fpmc.readers.source import is_there
from fpmc.readers.tensors import read_safetensors
from fpmc.readers.text import parse_json

LEVELS = 63
BELIEVED = 2**26            # values of all maps, from which they must not be a hundred times the size of their file
MOST_MEMORY = 256 * 2**20   # of the decoder; preset 9 takes 65 MiB


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
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"load_maps takes a file of fpmc maps or a shipped name; got {show(source)}")
    shipped = MAPS / f"{source}.safetensors"
    path = shipped if is_there(shipped) else Path(source)
    if not is_there(path):
        known = ", ".join(sorted(file.stem for file in MAPS.glob("*.safetensors"))) or "none"
        raise InputError(f"no maps {show(str(source), 200)}; give a file of fpmc maps, or a shipped name ({known})")
    try:
        found = read_safetensors(path, least_dimensions=1)
        levels = [_level(entry) for entry in parse_json(found.metadata.get("fpmc-maps", "null"), kind=list)]
        _check_sizes(found.tensors, len(levels))
        maps = {
            sigma: _unpack(found.tensors[f"codes.{index}"], found.tensors[f"largest.{index}"])
            for index, (sigma, _, _) in enumerate(levels)
        }
    except InputError as error:
        why = str(error).removeprefix(f"{str(path)!r}: ")
        raise InputError(f"{str(path)!r} is no file of sensitivity maps ({why}); make it with fpmc maps") from error
    return SensitivityMaps(maps, {level[0]: level[1] for level in levels}, {level[0]: level[2] for level in levels})


def _level(entry: Any) -> tuple[float, int, float]:
    """σ, draws, relative standard error."""
    if type(entry) is not list or [type(value) for value in entry] not in ([float, int, float], [int, int, float]):
        raise InputError(f"a noise level is described as {json.dumps(entry)[:60]}")
    sigma, draws, error = entry
    if not (0 < sigma < 1e6 and 0 < draws < 2**40 and (error >= 0 or math.isnan(error))):
        raise InputError(f"a noise level is described as {json.dumps(entry)[:60]}")
    return float(sigma), draws, error


def _check_sizes(tensors: Mapping[str, Tensor], levels: int) -> None:
    """All maps together are bounded before one of them is unpacked: compressed, they do not show their size."""
    if not levels or tensors.keys() != {f"{what}.{index}" for what in ("codes", "largest") for index in range(levels)}:
        raise InputError(f"it announces {levels} noise levels and holds {len(tensors)} tensors")
    total = packed = 0
    for index in range(levels):
        codes, largest = tensors[f"codes.{index}"], tensors[f"largest.{index}"]
        if codes.dtype != torch.uint8 or codes.ndim != 1 or largest.dtype != torch.float32 or largest.ndim != 2:
            raise InputError(f"level {index} has codes {tuple(codes.shape)} and largest values {tuple(largest.shape)}")
        if 0 in largest.shape or not bool(largest.isfinite().all()):
            raise InputError(f"level {index} has no largest values, or infinite ones")
        total, packed = total + largest.numel() ** 2, packed + len(codes)
    if total > max(BELIEVED, 100 * packed):
        raise InputError(f"it announces {total:,} values inside {packed:,} bytes: a decompression bomb or damage")


def _unpack(packed: Tensor, largest: Tensor) -> Tensor:  # (bytes,), (H, W) -> (H, W, H, W)
    size = largest.numel() ** 2
    try:
        decoder = lzma.LZMADecompressor(memlimit=MOST_MEMORY)
        # One byte more than there should be would show a file that lies about its size, without unpacking all of it.
        content = decoder.decompress(packed.numpy().tobytes(), max_length=size + 1)
    except lzma.LZMAError as error:
        raise InputError(f"its codes are damaged, {in_short(error)}") from error
    if len(content) != size or not decoder.eof:  # its own checksum stands at the end
        raise InputError(f"its codes are not {size:,} as its sizes say")
    codes = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(*largest.shape, *largest.shape)
    return codes.float().div_(LEVELS).square_().mul_(largest[..., None, None])
