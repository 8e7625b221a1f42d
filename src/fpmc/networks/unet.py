"""EDM's U-Net (Karras et al. 2022, Table 1, App. C): DDPM++ and NCSN++, the networks the paper compares with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fpmc.errors import InputError
from fpmc.networks.layers import (
    SKIP_SCALE,
    Conv2d,
    FourierEmbedding,
    GroupNorm,
    Linear,
    PositionalEmbedding,
    UNetBlock,
)

# What tells the two architectures of the paper apart, in the words of EDM's configurations.
ARCHITECTURES: dict[str, dict[str, object]] = {
    "ddpmpp": {
        "embedding_type": "positional",
        "encoder_type": "standard",
        "decoder_type": "standard",
        "channel_mult_noise": 1,
        "resample_filter": (1, 1),
    },
    "ncsnpp": {
        "embedding_type": "fourier",
        "encoder_type": "residual",
        "decoder_type": "standard",
        "channel_mult_noise": 2,
        "resample_filter": (1, 3, 3, 1),
    },
}


Block = Callable[..., UNetBlock]                        # (inputs, outputs, attention, resample)


class Residual(NamedTuple):
    """NCSN++ adds the image itself, brought down, at each resolution."""

    channels: int
    taps: tuple[int, ...]


def _check_built(embedding: str, encoder: str, decoder: str, taps: tuple[int, ...]) -> None:
    for name, value, known in (
        ("embedding_type", embedding, ("positional", "fourier")),
        ("encoder_type", encoder, ("standard", "residual")),
        ("decoder_type", decoder, ("standard",)),
        ("resample_filter", taps, ((1, 1), (1, 3, 3, 1))),
    ):
        if value not in known:
            raise InputError(f"{name}={value!r} is not built; use one of {', '.join(map(repr, known))}")


def _check_halving(resolution: int, channel_mult: Sequence[int]) -> None:
    levels = len(channel_mult)
    if levels < 1 or resolution % 2 ** (levels - 1):
        raise InputError(
            f"images of {resolution}×{resolution} cannot be halved {levels - 1} times, "
            f"as channel_mult={list(channel_mult)} asks; use fewer resolutions"
        )


def _encoder(
    block: Block, sizes: Sequence[tuple[int, int]], in_channels: int, width: int, blocks: int,
    attention: Sequence[int], residual: Residual | None,
) -> tuple[nn.ModuleDict, list[int]]:
    """The layers on the way down, and the width of each of their answers."""
    layers, skips = nn.ModuleDict(), []
    for level, (size, wide) in enumerate(sizes):
        res = f"{size}x{size}"
        if level == 0:
            layers[f"{res}_conv"] = Conv2d(in_channels, width, 3)
        else:
            layers[f"{res}_down"] = block(width, width, resample="down")
            if residual is not None:
                layers[f"{res}_aux_residual"] = Conv2d(
                    residual.channels, width, 3, resample="down", taps=residual.taps, convolve_first=True
                )
                residual = residual._replace(channels=width)
        skips.append(width)
        for index in range(blocks):
            layers[f"{res}_block{index}"] = block(width, wide, size in attention)
            width = wide
            skips.append(width)
    return layers, skips


def _decoder(
    block: Block, sizes: Sequence[tuple[int, int]], out_channels: int, skips: Sequence[int], blocks: int,
    attention: Sequence[int],
) -> nn.ModuleDict:
    """The layers on the way up."""
    layers, skips, width = nn.ModuleDict(), list(skips), skips[-1]
    for level, (size, wide) in reversed(list(enumerate(sizes))):
        res = f"{size}x{size}"
        if level == len(sizes) - 1:
            layers[f"{res}_in0"] = block(width, width, attention=True)
            layers[f"{res}_in1"] = block(width, width)
        else:
            layers[f"{res}_up"] = block(width, width, resample="up")
        for index in range(blocks + 1):
            layers[f"{res}_block{index}"] = block(width + skips.pop(), wide, index == blocks and size in attention)
            width = wide
    res = f"{sizes[0][0]}x{sizes[0][0]}"
    layers[f"{res}_aux_norm"] = GroupNorm(width)
    layers[f"{res}_aux_conv"] = Conv2d(width, out_channels, 3, gain=1e-5)
    return layers


class SongUNet(nn.Module):
    """A U-Net over noisy images and the noise label; argument, parameter and buffer names are EDM's."""

    def __init__(
        self,
        img_resolution: int,
        in_channels: int,
        out_channels: int,
        label_dim: int = 0,  # number of classes, 0: unconditional
        augment_dim: int = 0,  # inputs of augmentation labels (accepted from EDM's checkpoints, always zero here)
        model_channels: int = 128,
        channel_mult: Sequence[int] = (1, 2, 2, 2),  # width of each resolution
        channel_mult_emb: int = 4,
        num_blocks: int = 4,  # per resolution
        attn_resolutions: Sequence[int] = (16,),
        dropout: float = 0.10,
        label_dropout: float = 0.0,  # probability of forgetting the class in training
        embedding_type: str = "positional",
        channel_mult_noise: int = 1,
        encoder_type: str = "standard",
        decoder_type: str = "standard",
        resample_filter: Sequence[int] = (1, 1),
    ) -> None:
        super().__init__()
        taps = tuple(int(tap) for tap in resample_filter)
        _check_built(embedding_type, encoder_type, decoder_type, taps)
        _check_halving(img_resolution, channel_mult)
        self.label_dropout = label_dropout
        noise, embedding = model_channels * channel_mult_noise, model_channels * channel_mult_emb

        self.map_noise = (PositionalEmbedding if embedding_type == "positional" else FourierEmbedding)(noise)
        self.map_label = Linear(label_dim, noise) if label_dim else None
        self.map_augment = Linear(augment_dim, noise, bias=False) if augment_dim else None
        self.map_layer0 = Linear(noise, embedding)
        self.map_layer1 = Linear(embedding, embedding)

        def block(inputs: int, outputs: int, attention: bool = False, resample: str = "") -> UNetBlock:
            return UNetBlock(
                inputs, outputs, embedding, attention=attention, resample=resample, taps=taps, dropout=dropout
            )

        residual = Residual(in_channels, taps) if encoder_type == "residual" else None
        sizes = [(img_resolution >> level, model_channels * mult) for level, mult in enumerate(channel_mult)]
        self.enc, skips = _encoder(block, sizes, in_channels, model_channels, num_blocks, attn_resolutions, residual)
        self.dec = _decoder(block, sizes, out_channels, skips, num_blocks, attn_resolutions)

    def forward(self, x: Tensor, c_noise: Tensor, class_labels: Tensor | None = None) -> Tensor:
        """The raw network F: x (B, C, H, W), c_noise (B,), one-hot labels (B, label_dim) -> (B, C, H, W)."""
        (_, first), *encoder = self.enc.items()
        with torch.autocast(x.device.type, enabled=False):  # in full: they cost little, and the least noise is in them
            embedding = self._embed(c_noise, class_labels)
            image, x = x, first(x)
        skips = [x]
        for name, layer in encoder:
            if name.endswith("_aux_residual"):
                x = skips[-1] = image = (x + layer(image)) * SKIP_SCALE
            else:
                x = layer(x, embedding)
                skips.append(x)
        for name, layer in self.dec.items():
            if isinstance(layer, UNetBlock):
                if "_block" in name:
                    x = torch.cat([x, skips.pop()], dim=1)
                x = layer(x, embedding)
            elif isinstance(layer, GroupNorm):
                x = layer.silu(x)
            else:
                x = layer(x)
        return x

    def _embed(self, c_noise: Tensor, class_labels: Tensor | None) -> Tensor:
        embedding = self.map_noise(c_noise)
        if self.map_label is not None and class_labels is not None:
            if self.training and self.label_dropout:
                keep = torch.rand(len(class_labels), 1, device=class_labels.device) >= self.label_dropout
                class_labels = class_labels * keep
            # One-hot rows times √classes have unit variance, which is what the layers expect.
            embedding = embedding + self.map_label(class_labels * math.sqrt(self.map_label.in_features))
        elif self.map_label is not None:
            embedding = embedding + self.map_label(embedding.new_zeros(1, self.map_label.in_features))
        return F.silu(self.map_layer1(F.silu(self.map_layer0(embedding))))
