"""diffusers' UNet2DModel folders as denoisers: its VP process and prediction mapped onto (z, sigma)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpmc.errors import InputError, in_short, show
from fpmc.process import VP, Process
from fpmc.readers.text import read_json

PREDICTIONS = ("epsilon", "v_prediction", "sample")
SCHEDULES = {"linear": "linear", "squaredcos_cap_v2": "cosine"}  # diffusers' names and ours


class DiffusersDenoiser(nn.Module):
    """x0 from a network that predicts ε, v or x0 at discrete times of a VP process: D(z, σ) with α = 1."""

    def __init__(self, unet: nn.Module, shape: tuple[int, int, int], prediction: str, process: Process) -> None:
        super().__init__()
        if prediction not in PREDICTIONS:
            raise InputError(f"prediction {prediction!r} is not known; it is one of {', '.join(PREDICTIONS)}")
        if not isinstance(process, VP):
            raise InputError(f"diffusers' networks are trained for a VP process, not {type(process).__name__}")
        self.unet, self.shape, self.prediction, self.process = unet, shape, prediction, process

    def forward(self, z: Tensor, sigma: Tensor | float) -> Tensor:  # (B, C, H, W), number or (B,)
        dtype = next(self.unet.parameters()).dtype
        level = torch.as_tensor(sigma, dtype=torch.float64, device="cpu").expand(len(z))
        # Beyond the times it was trained for the network is asked at the nearest one; z keeps its own level.
        first, last = self.process.log_levels[0], self.process.log_levels[-1]
        time = self.process.time(level.log().clamp(first, last).exp())
        alpha, noise = (part.to(z).reshape(-1, 1, 1, 1) for part in (torch.rsqrt(1 + level**2), level))
        scaled = alpha * z  # the VP state αx + αLε at noise level L = σ/α
        out = self.unet(scaled.to(dtype), time.to(z.device, dtype)).sample.to(z.dtype)
        if self.prediction == "sample":
            return out
        if self.prediction == "epsilon":
            return z - noise * out
        return alpha * scaled - alpha * noise * out  # v = αε − σx0, so x0 = αz − σv


def load_diffusers(path: Path, *, prediction: str | None = None, process: Process | None = None) -> DiffusersDenoiser:
    """A pipeline folder (unet/, scheduler/) or a bare UNet folder; a silent one is taken for DDPM's own training."""
    try:
        from diffusers import UNet2DModel
    except ImportError as error:
        raise InputError(f"{str(path)!r} is a diffusers folder; install fpmc[diffusers] to read it") from error
    folder = path / "unet" if (path / "unet").is_dir() else path
    config = _json(folder / "config.json")
    if config.get("_class_name") != "UNet2DModel":
        raise InputError(f"{str(folder)!r} holds {config.get('_class_name')}; only diffusers' UNet2DModel can be used")
    schedules = [p / "scheduler_config.json" for p in (path / "scheduler", path, path.parent / "scheduler")]
    schedule = next((_json(file) for file in schedules if file.is_file()), {})
    try:
        _check_size(UNet2DModel, config, folder)
        unet = UNet2DModel.from_pretrained(folder, use_safetensors=True, local_files_only=True)
    except InputError:
        raise
    except Exception as error:  # whatever its constructor makes of odd settings
        why = in_short(error)
        raise InputError(f"{str(folder)!r} cannot be read as safetensors weights of a UNet2DModel ({why})") from error
    return DiffusersDenoiser(
        unet,
        _shape(config, folder),
        prediction or schedule.get("prediction_type", "epsilon"),
        process or _process(schedule),
    )


def _check_size(model: Any, config: dict[str, Any], folder: Path) -> None:
    """Refuse settings of a network larger than its weights, before memory is taken for it."""
    blocks, layers = config.get("block_out_channels", []), config.get("layers_per_block", 2)
    if type(blocks) is not list or len(blocks) > 12 or type(layers) is not int or not 1 <= layers <= 64:
        raise InputError(f"{str(folder)!r} has block_out_channels {str(blocks)[:60]}, layers_per_block {show(layers)}")
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in model.from_config(config).parameters())
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if 2 * count > size:  # two bytes each at least
        raise InputError(f"{str(folder)!r} describes {count:,} parameters and its safetensors have {size:,} bytes")


def _process(schedule: dict[str, Any]) -> VP:
    kind = schedule.get("beta_schedule", "linear")
    odd = schedule.get("trained_betas") is not None or schedule.get("rescale_betas_zero_snr")
    if odd or not isinstance(kind, str) or kind not in SCHEDULES:
        raise InputError(f"the noise schedule {show(kind)} of the folder is unknown; give process=fpmc.process.VP(…)")
    times = schedule.get("num_train_timesteps", 1000)
    betas = schedule.get("beta_start", 1e-4), schedule.get("beta_end", 0.02)
    if type(times) is not int or not 1 <= times <= 10**6 or any(type(b) not in (int, float) for b in betas):
        raise InputError(f"the schedule has {show(times)} times, betas {show(betas[0])} to {show(betas[1])}")
    return VP(SCHEDULES[kind], times=times, beta_min=betas[0], beta_max=betas[1])  # pyright: ignore[reportArgumentType]


def _shape(config: dict[str, Any], folder: Path) -> tuple[int, int, int]:
    channels, size = config.get("in_channels", 3), config.get("sample_size") or 32
    sides = [size, size] if isinstance(size, int) else size
    if type(sides) is not list or len(sides) != 2 or any(type(n) is not int or n < 1 for n in (channels, *sides)):
        raise InputError(f"{str(folder)!r} says in_channels {show(channels)}, sample_size {show(size)}; not an image")
    return channels, sides[0], sides[1]


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{str(path)!r} is needed and is not there; give a diffusers folder")
    return read_json(path, kind=dict)
