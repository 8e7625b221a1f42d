"""The gate every call of a denoiser or a sampler passes: one set of words for what was wrong and what to do.

Analytic and neural denoisers take the same z and σ, so they refuse the same mistakes in the same words.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from fpmc.errors import InputError, in_short, show

LEAST_SIGMA, MOST_SIGMA = 1e-6, 1e6     # beyond these, squares of σ and of differences leave float32
MOST_STEPS = 100_000
SEEDS = 2**32                           # torch's CPU generator looks at 32 bits


def check_batch(z: Any, shape: Sequence[int] | None = None, *, name: str = "z") -> Tensor:
    """z, if it is a batch of finite float images (B, C, H, W), of this (C, H, W) if one is given."""
    if not isinstance(z, Tensor):
        hint = "; make it with torch.as_tensor(z)" if hasattr(z, "__array__") or isinstance(z, list | tuple) else ""
        raise InputError(f"{name} must be a float tensor (B, C, H, W); got {_what(z)}{hint}")
    if not z.dtype.is_floating_point:
        hint = " from bytes with (z.float() − 127.5) / 127.5" if z.dtype == torch.uint8 else " with z.float()"
        raise InputError(f"{name} must be a float tensor around [−1, 1]; got {_what(z)}; make it{hint}")
    if z.ndim != 4 or 0 in z.shape:
        hint = "; for one image give z[None]" if z.ndim == 3 else "; for one grey image give z[None, None]"
        hint = hint if z.ndim in (2, 3) and 0 not in z.shape else "; give at least one image"
        raise InputError(f"{name} must be a batch of images (B, C, H, W); got shape {tuple(z.shape)}{hint}")
    if shape is not None and tuple(z.shape[1:]) != tuple(shape):
        turned = tuple(z.shape[1:]) == (*shape[1:], shape[0])
        hint = "; channels are last: give z.permute(0, 3, 1, 2)" if turned else "; resize or crop it"
        raise InputError(f"{name} must be images of shape {tuple(shape)}; got {tuple(z.shape[1:])}{hint}")
    if not bool(z.isfinite().all()):
        raise InputError(f"{name} holds NaN or infinite values; look at where it came from")
    return z


def check_sigma(sigma: Any, batch: int | None = None) -> Tensor | float:
    """σ as a float or a tensor (B,), every entry a noise level."""
    if type(sigma) is float and LEAST_SIGMA <= sigma <= MOST_SIGMA:            # as it mostly is
        return sigma
    if isinstance(sigma, int) and abs(sigma) > MOST_SIGMA:  # it may not fit a float
        raise InputError(f"sigma must be a noise level, {LEAST_SIGMA:g} to {MOST_SIGMA:g}; got {show(sigma)}")
    if isinstance(sigma, bool) or not isinstance(sigma, int | float | Tensor):
        try:
            sigma = torch.as_tensor(sigma)  # numpy numbers and arrays, lists
        except Exception as error:  # texts, None, ragged lists
            raise InputError(f"sigma must be a number or one for each image; got {show(sigma)}") from error
    if isinstance(sigma, Tensor):
        if sigma.dtype == torch.bool or sigma.dtype.is_complex:
            raise InputError(f"sigma must be a number or one for each image; got {_what(sigma)}")
        if sigma.numel() == 0:
            raise InputError("sigma is empty; give a noise level for each image")
        if sigma.ndim > 1 or (sigma.ndim == 1 and batch is not None and len(sigma) not in (1, batch)):
            many = "" if batch is None else f" for {batch} images"
            shape = tuple(sigma.shape)
            raise InputError(f"sigma must be a number or one for each image, (B,); got shape {shape}{many}")
    values = sigma.detach().double() if isinstance(sigma, Tensor) else torch.tensor(float(sigma), dtype=torch.float64)
    wrong = values[~((values >= LEAST_SIGMA) & (values <= MOST_SIGMA))]  # NaN is neither
    if wrong.numel():
        raise InputError(f"sigma must be a noise level, {LEAST_SIGMA:g} to {MOST_SIGMA:g}; got {wrong.flatten()[0]:g}")
    return sigma if isinstance(sigma, Tensor) and sigma.ndim else float(values)


def check_seeds(seeds: Any) -> tuple[int, ...]:
    """The seeds as a tuple of different whole numbers, at least one."""
    if isinstance(seeds, str | bytes):
        raise InputError(f"seeds are whole numbers, e.g. seeds=range(4); got the text {show(seeds)}")
    if not isinstance(seeds, Iterable) or (isinstance(seeds, Tensor) and seeds.ndim == 0):
        count = whole(seeds)
        hint = "range(16)" if count is None or count < 1 else f"range({count}) for {count} samples, [{count}] for one"
        raise InputError(f"seeds are several whole numbers; got {show(seeds)}; give seeds={hint}")
    found = []
    for seed in seeds:
        number = whole(seed)
        if number is None:
            raise InputError(f"seeds are whole numbers; got {_what(seed)}; give e.g. seeds=[0, 1, 2] or range(16)")
        found.append(number)
        if not 0 <= number < SEEDS:
            raise InputError(f"seeds lie in 0 … 2^32−1; got {number}; choose others")
    if not found:
        raise InputError("no seeds given; name at least one, e.g. seeds=range(16)")
    if len(set(found)) < len(found):
        twice = next(seed for index, seed in enumerate(found) if seed in found[:index])
        raise InputError(f"seed {twice} is given twice; a seed is one sample")
    return tuple(found)


def check_steps(steps: Any, name: str = "steps", most: int = MOST_STEPS) -> int:
    """A whole number from 1 on: steps of a sampler, a batch size, draws."""
    number = whole(steps)
    if number is None or not 1 <= number <= most:
        raise InputError(f"{name} must be a whole number from 1 to {most:,}; got {_what(steps)}")
    return number


def check_device(device: Any) -> torch.device:
    """A device that is there."""
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except Exception as error:  # unknown names are RuntimeErrors, builds without CUDA AssertionErrors
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        there = f"cpu, or cuda:0 to cuda:{count - 1}" if count else "cpu, or install a torch that is built for your GPU"
        why = in_short(error, 80).rstrip(".")
        raise InputError(f"device {show(device)} cannot be used here ({why}); use {there}") from error
    return found


def check_denoiser(denoiser: Any) -> Any:
    """Something to call as d(z, sigma)."""
    if not callable(denoiser):
        hint = "fpmc.presets makes them of images, fpmc.load_network reads networks"
        raise InputError(f"a denoiser is called as d(z, sigma); got {_what(denoiser)}; {hint}")
    return denoiser


def check_numbers(values: Any, name: str) -> Tensor:
    """Whole numbers (n,), from a list, a range, an array or a tensor."""
    try:
        found = torch.as_tensor(values if isinstance(values, Tensor) else list(values)).cpu().flatten()
    except Exception as error:  # texts, None, ragged lists
        raise InputError(f"{name} are whole numbers, e.g. [0, 3]; got {show(values)}") from error
    if found.numel() and (found.dtype.is_floating_point or found.dtype.is_complex or found.dtype == torch.bool):
        raise InputError(f"{name} are whole numbers, e.g. [0, 3]; got {_what(found[0])}")
    return found.long()


def whole(value: Any) -> int | None:
    """The whole number that a value is (Python's, NumPy's, torch's); booleans and 0.7 are none."""
    if isinstance(value, bool) or (isinstance(value, Tensor) and (value.ndim or value.dtype == torch.bool)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _what(value: Any) -> str:
    if isinstance(value, Tensor) or hasattr(value, "__array__"):
        shape, kind = tuple(value.shape), str(value.dtype).removeprefix("torch.")
        return f"{type(value).__name__} of {kind}, shape {shape}" if shape else f"{show(value.item())} of {kind}"
    return show(value)
