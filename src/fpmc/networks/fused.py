"""GroupNorm and SiLU in one pass over memory, forward and backward: a fifth of a training step becomes a twentieth.

Only training on a CPU uses it; everywhere else the layers are torch's. Activations are float32 or bfloat16 (as uint16,
which numba knows), pixels × channels, one sample after another; sums and statistics are float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import float32, njit, types, uint16, uint32
from numba.extending import intrinsic, overload
from torch import Tensor
from torch.autograd.function import once_differentiable

KERNEL: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}
SAFE = 9.0  # beyond ±2·SAFE a sigmoid is 0 or 1 to float32


@intrinsic
def _float_of(context, bits):  # uint32 -> the float32 of these bits
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _bits_of(context, value):  # float32 -> its bits
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), generate


def _widen(value: Any) -> Any:
    """An activation as float32."""


def _narrow(value: Any, like: Any) -> Any:
    """A float32 as an activation of the type of `like`, rounded to even."""


@overload(_widen, inline="always")
def _widen_typed(value):
    if value == types.uint16:
        return lambda value: _float_of(uint32(value) << uint32(16))  # pyright: ignore[reportCallIssue]
    return lambda value: value


@overload(_narrow, inline="always")
def _narrow_typed(value, like):
    if like == types.uint16:
        def rounded(value, like):
            bits = _bits_of(value)  # pyright: ignore[reportCallIssue]
            return uint16((bits + uint32(0x7FFF) + ((bits >> uint32(16)) & uint32(1))) >> uint32(16))
        return rounded
    return lambda value, like: value


@njit(inline="always")
def _sigmoid(u):
    """½ + ½ tanh(u/2) by a rational function, right to 1e-7; arithmetic alone, so that it vectorises."""
    t = min(max(float32(0.5) * u, float32(-SAFE)), float32(SAFE))
    s = t * t
    p = float32(-2.76076847742355e-16)
    p = p * s + float32(2.00018790482477e-13)
    p = p * s + float32(-8.60467152213735e-11)
    p = p * s + float32(5.12229709037114e-08)
    p = p * s + float32(1.48572235717979e-05)
    p = p * s + float32(6.37261928875436e-04)
    p = p * s + float32(4.89352455891786e-03)
    q = float32(1.19825839466702e-06)
    q = q * s + float32(1.18534705686654e-04)
    q = q * s + float32(2.26843463243900e-03)
    q = q * s + float32(4.89352518554385e-03)
    return float32(0.5) + float32(0.5) * t * p / q


@njit(**KERNEL)
def _forward(gain, bias, groups, eps, x, shift, y, sums, mean, rstd):
    """y = SiLU(GroupNorm(x + shift)); keeps Σ x per channel and the statistics of each group."""
    batch, pixels, channels = x.shape
    size = channels // groups
    count = float32(pixels * size)
    for b in range(batch):
        total, squares = np.zeros(channels, np.float32), np.zeros(channels, np.float32)
        for p in range(pixels):
            for c in range(channels):
                v = _widen(x[b, p, c])
                total[c] += v
                squares[c] += v * v
        scale, offset = np.empty(channels, np.float32), np.empty(channels, np.float32)
        for g in range(groups):
            one, two = float32(0), float32(0)
            for c in range(g * size, (g + 1) * size):
                s = shift[b, c]
                one += total[c] + pixels * s
                two += squares[c] + s * (2 * total[c] + pixels * s)
            m = one / count
            r = float32(1) / np.sqrt(max(two / count - m * m, float32(0)) + eps)
            mean[b, g], rstd[b, g] = m, r
            for c in range(g * size, (g + 1) * size):
                sums[b, c] = total[c]
                scale[c] = r * gain[c]
                offset[c] = bias[c] + (shift[b, c] - m) * scale[c]
        for p in range(pixels):
            for c in range(channels):
                u = _widen(x[b, p, c]) * scale[c] + offset[c]
                y[b, p, c] = _narrow(u * _sigmoid(u), y[b, p, c])


@njit(**KERNEL)
def _backward(gain, bias, groups, dy, x, shift, sums, mean, rstd, dx, dshift, dgain, dbias):
    """The gradients of `_forward`; those of gain and bias per sample."""
    batch, pixels, channels = x.shape
    size = channels // groups
    count = float32(pixels * size)
    for b in range(batch):
        scale, offset = np.empty(channels, np.float32), np.empty(channels, np.float32)
        for c in range(channels):
            scale[c] = rstd[b, c // size] * gain[c]
            offset[c] = bias[c] + (shift[b, c] - mean[b, c // size]) * scale[c]
        plain, product = np.zeros(channels, np.float32), np.zeros(channels, np.float32)
        du = np.empty((pixels, channels), np.float32)
        for p in range(pixels):
            for c in range(channels):
                v = _widen(x[b, p, c])
                u = v * scale[c] + offset[c]
                s = _sigmoid(u)
                d = _widen(dy[b, p, c]) * s * (float32(1) + u * (float32(1) - s))
                du[p, c] = d
                plain[c] += d
                product[c] += d * v
        slope, level = np.empty(channels, np.float32), np.empty(channels, np.float32)
        for g in range(groups):
            m, r = mean[b, g], rstd[b, g]
            along, across = float32(0), float32(0)
            for c in range(g * size, (g + 1) * size):
                dbias[b, c] = plain[c]
                dgain[b, c] = r * (product[c] + (shift[b, c] - m) * plain[c])
                across += gain[c] * plain[c]
                along += gain[c] * dgain[b, c]
            for c in range(g * size, (g + 1) * size):
                slope[c] = -r * r * along / count
                level[c] = -r * across / count + slope[c] * (shift[b, c] - m)
                dshift[b, c] = scale[c] * plain[c] + slope[c] * sums[b, c] + pixels * level[c]
        for p in range(pixels):
            for c in range(channels):
                v = scale[c] * du[p, c] + slope[c] * _widen(x[b, p, c]) + level[c]
                dx[b, p, c] = _narrow(v, dx[b, p, c])


def _rows(x: Tensor) -> np.ndarray:
    """The memory of a tensor as an array: float32 or uint16, channels-last images (B, C, H, W) as (B, H·W, C)."""
    x = x.detach()
    x = x.permute(0, 2, 3, 1).flatten(1, 2) if x.ndim == 4 else x
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def _run(kernel: Callable[..., None], shared: Sequence[Any], batched: Sequence[Tensor]) -> None:
    """Call a kernel on all samples, a part of them in each of torch's threads."""
    arrays = [_rows(value) for value in batched]
    threads = min(torch.get_num_threads(), len(arrays[0]))
    if threads == 1:
        kernel(*shared, *arrays)
        return
    with ThreadPoolExecutor(threads) as pool:
        parts = zip(*(np.array_split(array, threads) for array in arrays))
        list(pool.map(lambda part: kernel(*shared, *part), parts))


class _NormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, shift: Tensor, gain: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        low = torch.is_autocast_enabled("cpu")
        y, sums = torch.empty_like(x, dtype=torch.bfloat16 if low else x.dtype), torch.empty_like(shift)
        mean, rstd = torch.empty(2, len(x), groups)
        _run(_forward, (_rows(gain), _rows(bias), groups, np.float32(eps)), (x, shift, y, sums, mean, rstd))
        ctx.save_for_backward(x, shift, gain, bias, sums, mean, rstd)
        ctx.groups = groups
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, shift, gain, bias, *statistics = ctx.saved_tensors
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx, (dshift, dgain, dbias) = torch.empty_like(x), (torch.empty_like(shift) for _ in range(3))
        shared = _rows(gain), _rows(bias), ctx.groups
        _run(_backward, shared, (dy, x, shift, *statistics, dx, dshift, dgain, dbias))
        return dx, dshift, dgain.sum(0), dbias.sum(0), None, None


def norm_silu(x: Tensor, shift: Tensor | None, norm: torch.nn.GroupNorm) -> Tensor:
    """SiLU(norm(x + shift)): x float32 or bfloat16 (B, C, H, W) on the CPU, shift (B, C) or none.

    The answer has the type of x; under autocast it is bfloat16, as the convolution that follows wants it.
    """
    shift = x.new_zeros(x.shape[:2], dtype=torch.float32) if shift is None else shift.float()
    return _NormSiLU.apply(x, shift, norm.weight, norm.bias, norm.num_groups, norm.eps)  # pyright: ignore
