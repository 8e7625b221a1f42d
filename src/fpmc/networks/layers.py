"""The layers of EDM's U-Nets, with the parameter names of EDM's checkpoints."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fpmc.errors import InputError

SKIP_SCALE = math.sqrt(0.5)  # a sum of two signals of equal variance keeps that variance


def _initialise(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    nn.init.xavier_uniform_(layer.weight, gain=gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class Linear(nn.Linear):
    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias=bias)
        _initialise(self, 1.0)


class Conv2d(nn.Conv2d):
    """A convolution that keeps the size, or halves or doubles it with a low-pass filter.

    Filter first, then convolve, so that the convolution of a halving runs at the low resolution; `convolve_first` is
    the other order, which NCSN++ has in its residual input path and which differs at the border.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        resample: str = "",  # "", "down" or "up"
        taps: tuple[int, ...] = (1, 1),  # of the separable low-pass filter
        convolve_first: bool = False,
        gain: float = 1.0,
    ) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        _initialise(self, gain)
        self.resample, self.convolve_first = resample, convolve_first
        self.resample_filter: Tensor | None
        # Numbers, not tensors: on the device of tensors without memory a product would import torch's compiler, 1.4 s.
        square = [[[[a * b / sum(taps) ** 2 for b in taps] for a in taps]]]
        self.register_buffer("resample_filter", torch.tensor(square, dtype=torch.float32) if resample else None)
        self.margin = (len(taps) - 1) // 2

    def forward(self, input: Tensor) -> Tensor:
        x = input  # (B, C, H, W)
        if self.convolve_first:
            x = F.conv2d(x, self.weight, self.bias, padding=self.padding[0] + self.margin)  # pyright: ignore
            return self._filter(x, 0)
        return super().forward(self._filter(x, self.margin))

    def _filter(self, x: Tensor, margin: int) -> Tensor:
        if self.resample_filter is None:
            return x
        if self.resample_filter.shape[-1] == 2:  # average pooling and pixel repetition are this filter, and faster
            return F.avg_pool2d(x, 2) if self.resample == "down" else F.interpolate(x, scale_factor=2, mode="nearest")
        # Convolving channel by channel takes ten times as long as a product of small matrices along each axis.
        b, c, height, width = x.shape
        x = x.permute(0, 2, 3, 1)  # pixels, then channels: a view, if that is how they lie
        x = self._along(height, margin, x).expand(b, -1, -1) @ x.reshape(b, height, width * c)
        x = x.reshape(-1, width, c)  # every row of every image
        x = self._along(width, margin, x).expand(len(x), -1, -1) @ x
        return x.view(b, len(x) // b, -1, c).permute(0, 3, 1, 2)

    def _along(self, length: int, margin: int, like: Tensor) -> Tensor:  # (1, new length, length)
        """The filter along one axis of `length` pixels as a matrix."""
        f = self.resample_filter.sum(-1)  # pyright: ignore[reportOptionalMemberAccess] (1, 1, taps), adding up to 1
        pixels = torch.eye(length, dtype=f.dtype, device=f.device)[:, None]  # each pixel alone
        if self.resample == "down":
            answers = F.conv1d(pixels, f, stride=2, padding=margin)
        else:
            answers = F.conv_transpose1d(pixels, 2 * f, stride=2, padding=margin)
        return answers.permute(1, 2, 0).to(like.dtype)


class GroupNorm(nn.GroupNorm):
    """At least four channels a group, at most 32 groups."""

    def __init__(self, channels: int) -> None:
        groups = min(32, channels // 4)
        if groups == 0 or channels % groups:
            raise InputError(f"{channels} channels do not form {groups or 1} groups of 4 or more; change the widths")
        super().__init__(groups, channels, eps=1e-6)

    def silu(self, x: Tensor, shift: Tensor | None = None) -> Tensor:  # (B, C, H, W), (B, C)
        """SiLU(norm(x + shift)); training on a CPU does it in one pass."""
        if self.training and x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16):
            from fpmc.networks.fused import norm_silu

            return norm_silu(x, shift, self)
        return F.silu(self(x if shift is None else x + shift[:, :, None, None]))


class PositionalEmbedding(nn.Module):
    """Sines and cosines at geometric frequencies from 1 to 1/10000: the noise embedding of DDPM++."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.count = channels // 2

    def forward(self, c_noise: Tensor) -> Tensor:  # (B,) -> (B, channels)
        k = torch.arange(self.count, device=c_noise.device, dtype=c_noise.dtype)
        angles = c_noise[:, None] * 10_000 ** (-k / (self.count - 1))
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class FourierEmbedding(nn.Module):
    """Sines and cosines at fixed random frequencies: the noise embedding of NCSN++."""

    SCALE = 16.0
    freqs: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        # In place: on the device of tensors without memory another product would import torch's compiler, 1 s.
        self.register_buffer("freqs", torch.randn(channels // 2).mul_(self.SCALE))

    def forward(self, c_noise: Tensor) -> Tensor:  # (B,) -> (B, channels)
        angles = c_noise[:, None] * (2 * math.pi * self.freqs)
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class UNetBlock(nn.Module):
    """Two normalised convolutions around the noise embedding, beside a skip, then self-attention if asked for."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        embedding: int,
        *,
        attention: bool = False,
        resample: str = "",
        taps: tuple[int, ...] = (1, 1),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.dropout = inputs, outputs, dropout
        self.norm0 = GroupNorm(inputs)
        self.conv0 = Conv2d(inputs, outputs, 3, resample=resample, taps=taps)
        self.affine = Linear(embedding, outputs)
        self.norm1 = GroupNorm(outputs)
        self.conv1 = Conv2d(outputs, outputs, 3, gain=1e-5)  # a new block starts as its skip
        project = inputs != outputs or resample
        self.skip = Conv2d(inputs, outputs, 1, resample=resample, taps=taps) if project else None
        self.norm2 = GroupNorm(outputs) if attention else None
        if attention:
            self.qkv = Conv2d(outputs, 3 * outputs, 1, gain=math.sqrt(0.2))
            self.proj = Conv2d(outputs, outputs, 1, gain=1e-5)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:  # (B, C, H, W), (B, E)
        h = self.norm1.silu(self.conv0(self.norm0.silu(x)), self.affine(embedding))
        h = self.conv1(F.dropout(h, self.dropout, self.training))
        x = (h + (x if self.skip is None else self.skip(x))) * SKIP_SCALE
        if self.norm2 is None:
            return x
        normed = self.norm2(x.to(self.norm2.weight.dtype))  # torch's own in bfloat16 takes eight times as long
        return (x + self._attend(normed)) * SKIP_SCALE

    def _attend(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        q, k, v = self.qkv(x).view(b, c, 3, height * width).permute(2, 0, 3, 1)  # each (B, HW, C)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(b, c, height, width))
