"""Weights, inputs and answers of the golden networks."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fpmc.networks.precond import EDMPrecond

GOLDEN = Path(__file__).parent / "golden"
ARCHITECTURES = json.loads((GOLDEN / "edm_architectures.json").read_text())
OUTPUTS = np.load(GOLDEN / "edm_outputs.npz")
TINY = ("tiny-vp", "tiny-ve", "tiny-vp-grey-cond")


def golden_network(name: str) -> EDMPrecond:
    """The network of a configuration, its weights filled by name and position."""
    net = EDMPrecond(**ARCHITECTURES[name]["config"]).eval()
    state = net.state_dict()
    for key, value in state.items():
        if not key.endswith("resample_filter"):
            value.copy_(_values(key, tuple(value.shape)))
    return net


def golden_call(name: str) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """z, sigma, labels and the answer D(z, sigma)."""
    config = ARCHITECTURES[name]["config"]
    shape = (config["img_channels"], config["img_resolution"], config["img_resolution"])
    sigma = OUTPUTS[f"{name}/sigma"]
    index = np.arange(np.prod(shape))
    z = np.stack([np.sin(0.37 * index + b) * np.sqrt(0.25 + float(s) ** 2) for b, s in enumerate(sigma)])
    labels = torch.eye(10)[[0, 3, 7, 9]] if "label_dim" in config else None
    z = torch.from_numpy(z.reshape(-1, *shape).astype(np.float32))
    return z, torch.from_numpy(sigma), labels, torch.from_numpy(OUTPUTS[name])


def kept(name: str, x0: Tensor) -> Tensor:
    """The rows and columns of an answer that the golden file has."""
    return x0[..., ::8, ::8] if ARCHITECTURES[name]["config"]["img_resolution"] > 16 else x0


def _values(name: str, shape: tuple[int, ...]) -> Tensor:
    u = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()))
    for factor, shift in ((0x9E3779B1, 16), (0x85EBCA6B, 13), (0xC2B2AE35, 16)):
        u = (u & np.uint64(0xFFFFFFFF)) * np.uint64(factor) & np.uint64(0xFFFFFFFF)
        u ^= u >> np.uint64(shift)
    v = u / 2.0**31 - 1
    if name.endswith("freqs"):
        v = 3 * v
    elif len(shape) >= 2:
        v = v * np.sqrt(3 / np.prod(shape[1:]))
    elif name.endswith("weight"):
        v = 1 + 0.1 * v
    else:
        v = 0.1 * v
    return torch.from_numpy(v.reshape(shape).astype(np.float32))
