"""EDM preconditioning (Karras et al. 2022, Table 1): a network F becomes a denoiser D(z, σ)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fpmc.errors import InputError
from fpmc.gate import check_batch, check_sigma
from fpmc.networks.unet import SongUNet


class EDMPrecond(nn.Module):
    """D(z, σ) = c_skip z + c_out F(c_in z, ln σ / 4): what F sees and what it learns have unit variance at every σ."""

    def __init__(
        self,
        img_resolution: int,
        img_channels: int,
        label_dim: int = 0,
        use_fp16: bool = False,  # this and the next two come with EDM's checkpoints and decide nothing here:
        sigma_min: float = 0.0,  # the network computes in the type of its weights, at any noise level
        sigma_max: float = float("inf"),
        sigma_data: float = 0.5,
        model_type: str = "SongUNet",
        **model_kwargs: object,
    ) -> None:
        super().__init__()
        if model_type != "SongUNet":
            raise InputError(f"model_type={model_type!r} is not built; DDPM++ and NCSN++ are 'SongUNet'")
        self.img_resolution, self.img_channels, self.label_dim = img_resolution, img_channels, label_dim
        self.sigma_data = sigma_data
        try:
            self.model = SongUNet(img_resolution, img_channels, img_channels, label_dim, **model_kwargs)  # pyright: ignore
        except TypeError as error:
            raise InputError(f"a network configuration fpmc cannot build: {error}") from error
        # What rebuilds this network: goes into checkpoints and safetensors headers.
        self.config: dict[str, object] = {
            "img_resolution": img_resolution,
            "img_channels": img_channels,
            "label_dim": label_dim,
            "sigma_data": sigma_data,
            **model_kwargs,
        }

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.img_channels, self.img_resolution, self.img_resolution

    def forward(self, z: Tensor, sigma: Tensor | float, class_labels: Tensor | int | None = None) -> Tensor:
        """x0 (B, C, H, W) from z (B, C, H, W) and sigma, a number or (B,).

        class_labels: a class for all, whole numbers (B,), or one-hot rows (B, label_dim). Without them a network of
        classes gets rows of zeros, as in EDM; it has learned what that means only if it was trained with label_dropout.
        """
        check_batch(z, self.shape)
        sigma = check_sigma(sigma, len(z))
        labels = None if class_labels is None else self._rows(class_labels, len(z))
        dtype = self.model.map_layer0.weight.dtype
        x = z.to(dtype)
        sigma = torch.as_tensor(sigma, dtype=dtype, device=z.device).reshape(-1, 1, 1, 1)
        variance = sigma**2 + self.sigma_data**2
        c_in = variance.rsqrt()
        c_skip, c_out = self.sigma_data**2 / variance, sigma * self.sigma_data * c_in
        c_noise = (sigma.log() / 4).flatten().expand(len(z))
        labels = None if labels is None else labels.to(z.device, dtype)
        return (c_skip * x + c_out * self.model(c_in * x, c_noise, labels)).to(z.dtype)

    def _rows(self, labels: Any, batch: int) -> Tensor:  # one-hot (B or 1, label_dim)
        if not self.label_dim:
            raise InputError("this network knows no classes; call it without class_labels")
        given = torch.as_tensor(labels)
        whole = not given.dtype.is_floating_point and given.dtype != torch.bool
        if given.ndim == 1 and not whole:
            given = given[None]
        if given.ndim < 2 and whole:
            given = given.reshape(-1)
            if given.numel() and not 0 <= int(given.min()) <= int(given.max()) < self.label_dim:
                raise InputError(f"classes are 0 … {self.label_dim - 1}; got {given.tolist()}")
            given = torch.eye(self.label_dim, device=given.device)[given.long()]
        if given.ndim != 2 or given.shape[1] != self.label_dim or len(given) not in (1, batch):
            raise InputError(
                f"class_labels of {batch} images are whole numbers ({batch},) or rows ({batch}, {self.label_dim}); "
                f"got shape {tuple(torch.as_tensor(labels).shape)}"
            )
        return given
