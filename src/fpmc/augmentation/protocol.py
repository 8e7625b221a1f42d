"""Which copies of which images, with which parameters: the paper's protocol (App. B)."""

from __future__ import annotations

import hashlib
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

from fpmc.augmentation.kinds import Kind
from fpmc.errors import InputError

DRAWS = 20                                              # per image, as the paper


def size_of(count: int, amount: float, seed: int) -> int:
    """How many images `amount` times `count` are, both numbers checked."""
    if not (isinstance(amount, Real) and 0 < amount <= DRAWS):
        raise InputError(f"amount must be above 0 and at most {DRAWS} (0.2 is 20 % of the images), got {amount!r}")
    if not (isinstance(seed, Integral) and 0 <= seed < 2**63):
        raise InputError(f"seed must be a whole number from 0 to 2^63 − 1, got {seed!r}")
    size = round(float(amount) * count)
    if size == 0:
        raise InputError(f"amount {amount} of {count} images is none; give at least {1 / count:.3g}")
    return size


def choose(kind: Kind, ids: Tensor, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """The image each of `size` copies is made of (size,), and its parameters, float64 (size, P).

    Each image has up to 20 draws, less those that repeat an earlier one. As many copies as come out even are made of
    every image, the rest of a random subset, one each. A larger set holds all of a smaller one: draws and subset depend
    on the seed, the kind and the image's id alone.
    """
    names = ids.cpu().numpy()
    drawn = np.stack([_parameters(kind, names, draw, seed) for draw in range(DRAWS)])          # (draws, N, P)
    fresh = np.stack([~(drawn[:k] == drawn[k]).all(2).any(0) for k in range(DRAWS)])           # (draws, N)
    each, rest = divmod(size, len(names))
    possible = int(fresh.sum(0).min())
    if each + (rest > 0) > possible:
        raise InputError(
            f"{kind.name!r} makes only {possible} different image{'s' * (possible > 1)} of each, so the amount is at "
            f"most {possible}.0, got {size / len(names):g}"
        )
    rows, parameters, rank = [], [], fresh.cumsum(0)
    everyone = np.arange(len(names))
    some = np.sort(np.argsort(_uniform(kind.name, names, DRAWS, 0, seed), kind="stable")[:rest])
    for copy, chosen in enumerate([everyone] * each + [some] * (rest > 0)):
        draw = (fresh & (rank == copy + 1)).argmax(0)
        rows.append(chosen)
        parameters.append(drawn[draw[chosen], chosen])
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(np.concatenate(parameters))


def _parameters(kind: Kind, ids: np.ndarray, draw: int, seed: int) -> np.ndarray:              # float64 (N, P)
    values = [
        distribution(torch.from_numpy(_uniform(kind.name, ids, draw, number, seed))).double().numpy()
        for number, distribution in enumerate(kind.distributions)
    ]
    return np.stack(values, 1) if values else np.empty((len(ids), 0))


def _uniform(kind: str, ids: np.ndarray, draw: int, number: int, seed: int) -> np.ndarray:     # float64 (N,)
    """Uniform in (0, 1), a function of its arguments and nothing else, so that any copy can be made on its own."""
    text = f"{kind} {seed} {draw} {number}".encode()
    salt = np.frombuffer(hashlib.sha256(text).digest()[:8], "<u8").astype(np.uint64)
    return ((_mix(_mix(ids.astype(np.uint64)) ^ salt) >> np.uint64(11)) + 0.5) / 2**53


def _mix(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64: neighbouring numbers in, independent-looking bits out."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
