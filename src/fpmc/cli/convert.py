"""fpmc convert: a network checkpoint into safetensors with its configuration, executing nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fpmc.cli.options import parse
from fpmc.errors import InputError


@dataclass(frozen=True)
class Config:
    """Turn an EDM .pkl, a state dict or a training checkpoint into one safetensors file."""

    source: Annotated[Path, tyro.conf.Positional]           # network to read
    target: Annotated[Path, tyro.conf.Positional]           # file to write, ending in .safetensors
    dtype: Literal["float32", "float16"] = "float32"        # of the weights in the file


def main(args: list[str]) -> None:
    config = parse(Config, args, "convert")
    if config.target.suffix != ".safetensors":
        raise InputError(f"the target {str(config.target)!r} must end in .safetensors")

    import torch

    from fpmc.networks.checkpoint import load_network, save_network

    net = load_network(config.source)
    save_network(net, config.target, dtype=getattr(torch, config.dtype))  # pyright: ignore[reportArgumentType]
    count = sum(parameter.numel() for parameter in net.parameters())  # pyright: ignore[reportFunctionMemberAccess]
    print(f"{config.target}: {count:,} parameters in {config.target.stat().st_size / 1e6:.1f} MB")
