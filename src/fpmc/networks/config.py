"""The settings of an EDM network as files give them, checked and bounded before anything is built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from torch import Tensor

from fpmc.errors import InputError, in_short, show

Width = Annotated[int, Field(ge=1, le=4096)]
Count = Annotated[int, Field(ge=0, le=4096)]
Share = Annotated[float, Field(ge=0, lt=1)]


class NetworkConfig(BaseModel):
    """Keyword arguments of `EDMPrecond`; unknown ones are refused, since they would change what the weights mean."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    img_resolution: Width
    img_channels: Width
    label_dim: Count = 0
    use_fp16: bool = False
    sigma_min: float = 0.0
    sigma_max: float = float("inf")
    sigma_data: Annotated[float, Field(gt=0, lt=1e3)] = 0.5
    model_type: Literal["SongUNet"] = "SongUNet"
    augment_dim: Count = 0
    model_channels: Width = 128
    channel_mult: Annotated[list[Width], Field(min_length=1, max_length=12)] = [1, 2, 2, 2]
    channel_mult_emb: Width = 4
    num_blocks: Annotated[int, Field(ge=1, le=64)] = 4
    attn_resolutions: Annotated[list[Width], Field(max_length=12)] = [16]
    dropout: Share = 0.10
    label_dropout: Share = 0.0
    embedding_type: Literal["positional", "fourier"] = "positional"
    channel_mult_noise: Width = 1
    encoder_type: Literal["standard", "residual"] = "standard"
    decoder_type: Literal["standard"] = "standard"
    resample_filter: list[int] = [1, 1]

    @field_validator("resample_filter")
    @classmethod
    def _known_filter(cls, taps: list[int]) -> list[int]:
        if taps not in ([1, 1], [1, 3, 3, 1]):
            raise ValueError("must be [1, 1] or [1, 3, 3, 1]")
        return taps


def check_config(settings: object, origin: str) -> dict[str, Any]:
    """The given settings, valid, as `EDMPrecond` takes them."""
    if not isinstance(settings, Mapping):
        raise InputError(f"{origin} holds a network that cannot be built: its settings are {show(settings)}")
    try:
        return NetworkConfig.model_validate(dict(settings)).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))[:60] or "settings"
        why = in_short(ValueError(first["msg"]))
        raise InputError(f"{origin} holds a network that cannot be built: {where}: {why}") from error


def infer_config(state: Mapping[str, Tensor], origin: str) -> dict[str, Any]:
    """The settings that a bare state dict shows by its names and shapes (σ_data cannot be seen: it is EDM's 0.5)."""
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    flat = next((name for name, shape in shapes.items() if name.endswith(".weight") and 0 in (shape or (0,))), None)
    if flat is not None:
        raise InputError(f"{origin} holds weights without values: {flat[:60]!r} has shape {shapes[flat]}")

    def columns(name: str) -> int:  # inputs of a layer that may not be there
        return (*shapes.get(f"model.{name}.weight", (0, 0)), 0)[1]

    levels: dict[int, list[str]] = {}  # the encoder's blocks of each resolution
    for name in shapes:
        if found := re.fullmatch(r"(model\.enc\.(\d+)x\2_block\d+)\.conv1\.weight", name):
            levels.setdefault(int(found[2]), []).append(found[1])
    levels = dict(sorted(levels.items(), reverse=True))
    size = max(levels, default=0)
    if not {f"model.enc.{size}x{size}_conv.weight", "model.map_layer0.weight"} <= shapes.keys():
        raise InputError(f"{origin} holds no DDPM++ or NCSN++ weights: there is no 'model.enc.…_conv.weight' in it")
    first, mapping = shapes[f"model.enc.{size}x{size}_conv.weight"], shapes["model.map_layer0.weight"]
    if (len(first), len(mapping)) != (4, 2):
        raise InputError(f"{origin} holds no DDPM++ or NCSN++ weights: its layers are {first} and {mapping}")
    (width, channels), (embedding, noise) = first[:2], mapping
    wide_filter = any(name.endswith("resample_filter") and shape[-1:] == (4,) for name, shape in shapes.items())
    return {
        "img_resolution": size,
        "img_channels": channels,
        "label_dim": columns("map_label"),
        "augment_dim": columns("map_augment"),
        "model_channels": width,
        "channel_mult": [shapes[f"{blocks[-1]}.conv1.weight"][0] // width for blocks in levels.values()],
        "channel_mult_emb": embedding // width,
        "channel_mult_noise": noise // width,
        "num_blocks": len(levels[size]),
        "attn_resolutions": [size for size, blocks in levels.items() if f"{blocks[-1]}.qkv.weight" in shapes],
        "embedding_type": "fourier" if "model.map_noise.freqs" in shapes else "positional",
        "encoder_type": "residual" if any("_aux_residual." in name for name in shapes) else "standard",
        "resample_filter": [1, 3, 3, 1] if wide_filter else [1, 1],
    }
