"""diffusers' UNet2DModel folders as denoisers: its VP process and prediction mapped onto (z, sigma)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fpmc.errors import InputError
from fpmc.process import VP, Process

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
        unet = UNet2DModel.from_pretrained(folder, use_safetensors=True, local_files_only=True)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        why = str(error).splitlines()[0][:200]
        raise InputError(f"{str(folder)!r} cannot be read as safetensors weights of a UNet2DModel ({why})") from error
    size = config.get("sample_size") or 32
    height, width = (size, size) if isinstance(size, int) else size
    return DiffusersDenoiser(
        unet,
        (int(config.get("in_channels", 3)), int(height), int(width)),
        prediction or schedule.get("prediction_type", "epsilon"),
        process or _process(schedule),
    )


def _process(schedule: dict[str, Any]) -> VP:
    kind = schedule.get("beta_schedule", "linear")
    if kind not in SCHEDULES or schedule.get("trained_betas") is not None or schedule.get("rescale_betas_zero_snr"):
        raise InputError(f"the noise schedule {kind!r} of this folder is not known; give process=fpmc.process.VP(…)")
    return VP(
        SCHEDULES[kind],  # pyright: ignore[reportArgumentType]
        times=int(schedule.get("num_train_timesteps", 1000)),
        beta_min=float(schedule.get("beta_start", 1e-4)),
        beta_max=float(schedule.get("beta_end", 0.02)),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{str(path)!r} is needed and cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise InputError(f"{str(path)!r} is not a configuration")
    return content
