"""EDM preconditioning (Karras et al. 2022, Table 1): a network F becomes a denoiser D(z, σ)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fpmc.errors import InputError
from fpmc.networks.unet import SongUNet

LEAST_SIGMA, MOST_SIGMA = 1e-6, 1e6  # beyond these, squares of σ and of differences leave float32


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
        _check(z, sigma, self.shape)
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


def _check(z: Any, sigma: Any, shape: tuple[int, int, int]) -> None:
    """Refuse what is no batch of images or no noise level, in words."""
    if not isinstance(z, Tensor) or not z.dtype.is_floating_point:
        what = str(z.dtype).removeprefix("torch.") if isinstance(z, Tensor) else type(z).__name__
        raise InputError(f"z must be a float tensor around [−1, 1]; got {what}; make bytes (z.float() − 127.5) / 127.5")
    if z.ndim != 4 or len(z) == 0 or tuple(z.shape[1:]) != shape:
        raise InputError(f"z must be images of shape {shape}; got a batch of {tuple(z.shape)}")
    if not isinstance(sigma, int | float | Tensor) or isinstance(sigma, bool):
        raise InputError(f"sigma must be a number or one for each image, (B,); got {type(sigma).__name__}")
    if isinstance(sigma, Tensor) and (sigma.ndim > 1 or sigma.numel() not in (1, len(z))):
        raise InputError(
            f"sigma must be a number or one for each image, (B,); got shape {tuple(sigma.shape)} for {len(z)} images"
        )
    values = torch.as_tensor(sigma, dtype=torch.float64).detach()
    wrong = values[~((values >= LEAST_SIGMA) & (values <= MOST_SIGMA))]  # NaN is neither
    if wrong.numel():
        raise InputError(f"sigma must be a noise level, {LEAST_SIGMA:g} to {MOST_SIGMA:g}; got {wrong.flatten()[0]:g}")
    if not bool(z.isfinite().all()):
        raise InputError("z holds NaN or infinite values; look at where it came from")
