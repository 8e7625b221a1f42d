"""Networks from and to files: told apart by content, read without executing anything."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fpmc.errors import InputError, in_short, show
from fpmc.files import atomic
from fpmc.networks.config import check_config, infer_config
from fpmc.networks.precond import EDMPrecond
from fpmc.networks.reader import read_edm_pickle
from fpmc.networks.shipped import SHIPPED, weights_of
from fpmc.readers.source import is_there, open_file, reading
from fpmc.readers.tensors import read_safetensors, write_safetensors
from fpmc.readers.torches import is_torch, read_torch

if TYPE_CHECKING:
    from fpmc.process import Denoiser, Process

HEADER = "fpmc"  # the key of the configuration in a safetensors header


def load_network(
    source: str | os.PathLike[str] | Callable[..., Tensor],
    *,
    device: str | torch.device = "cpu",
    prediction: str | None = None,  # of a diffusers network: epsilon, v_prediction or sample, if its folder is silent
    process: Process | None = None,  # that a diffusers network was trained for, if its folder is silent
) -> Denoiser:
    """A network denoiser (z, sigma) -> x0 (Sec. 4: the paper's DDPM++ and NCSN++), ready for evaluation.

    source: a shipped name, an EDM `.pkl`, a `.safetensors`, a state dict of `torch.save`, a diffusers folder, or
    anything that can be called as (z, sigma), which is given back as it is.
    """
    if callable(source):
        return source
    _check_source(source)
    path = weights_of(source) if source in SHIPPED else Path(source)
    if is_there(path) and path.is_dir():
        from fpmc.networks.diffusers import load_diffusers

        net: nn.Module = load_diffusers(path, prediction=prediction, process=process)
    else:
        net = _read(path)
    net.name = path.stem  # pyright: ignore[reportArgumentType]
    return net.to(device).eval().requires_grad_(False)


def save_network(net: EDMPrecond, path: str | os.PathLike[str], *, dtype: torch.dtype = torch.float32) -> None:
    """Write weights and configuration as one safetensors file; float16 halves it (loading returns to float32)."""
    if not isinstance(net, EDMPrecond):
        raise InputError(f"only fpmc's own networks (EDMPrecond) have a safetensors form, not {type(net).__name__}")
    if dtype not in (torch.float16, torch.float32):
        raise InputError(f"weights are saved as torch.float16 or torch.float32, not {dtype}")
    # Buffers keep their precision: the Fourier frequencies are phases of many turns.
    state = {name: value.detach().to("cpu", dtype).contiguous() for name, value in net.named_parameters()}
    state |= {name: value.cpu().contiguous() for name, value in net.named_buffers()}
    with atomic(path) as part:
        write_safetensors(part, state, {"format": "pt", HEADER: json.dumps(net.config)})


def _check_source(source: object) -> None:
    """Refuse what is no name and no path, with the recipe of what it most likely is."""
    if isinstance(source, Mapping):
        raise InputError(
            f"load_network takes a name, a file or something callable; got a {type(source).__name__} of "
            f"{len(source)} entries: write it with torch.save(state, 'net.pt') and give that file"
        )
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"load_network takes a name, a file or something callable as (z, sigma); got {show(source)}")


def _read(path: Path) -> EDMPrecond:
    origin = show(str(path), 200)
    if not is_there(path):
        raise InputError(f"no network {origin}; give a file or one of: {', '.join(SHIPPED)}")
    with reading(path), open_file(path) as file:
        head = file.read(16)
    config: object = None
    if is_torch(head):
        config, state = _torch_file(path)
    elif head.startswith(b"\x80"):
        config, state = read_edm_pickle(path)
    elif head[8:9] == b"{":
        found = read_safetensors(path)
        state = found.tensors
        with reading(path):
            config = found.config(HEADER)
    else:
        raise InputError(f"{origin} is no network: neither an EDM pickle, nor safetensors, nor a file of torch.save")
    state = {name if name.startswith("model.") else f"model.{name}": value.float() for name, value in state.items()}
    return assemble(check_config(infer_config(state, origin) if config is None else config, origin), state, origin)


def assemble(config: Mapping[str, Any], state: Mapping[str, Tensor], origin: str) -> EDMPrecond:
    """The network of a configuration around the given tensors."""
    with torch.device("meta"):  # no memory for weights that are replaced, or that a wrong configuration invents
        net = EDMPrecond(**config)
    try:
        net.load_state_dict(state, assign=True)
    except RuntimeError as error:
        why = in_short(RuntimeError(" ".join(str(error).split("\n\t")[1:2])), 300)
        raise InputError(f"the weights in {origin} do not fit their configuration: {why}") from error
    return net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _torch_file(path: Path) -> tuple[object, dict[str, Tensor]]:
    content = read_torch(path)
    config = content.get("config") if isinstance(content, dict) else None
    for key in ("ema", "state_dict", "model"):  # the moving average of a training checkpoint, or a wrapped state dict
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
            break
    if not isinstance(content, dict) or not content:
        raise InputError(f"{str(path)!r} holds no state dict (names and tensors)")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(f"{str(path)!r} holds no state dict (names and tensors): {show(name)} is {show(value)}")
    return config, content
