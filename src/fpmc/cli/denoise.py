"""fpmc denoise: what denoisers make of noisy images, along the noise levels."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from fpmc.cli.options import DeviceOptions, LevelOptions, SourceOptions, parse, progress_bar
from fpmc.cli.ranks import RankOptions
from fpmc.errors import InputError
from fpmc.study.methods import need_images, parse_methods

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from fpmc.images import ImageSet
    from fpmc.study.policy import Policy

USUAL = ("optimal", "wiener", "ls", "pspc_square")
LEVELS = (5.3, 3.3, 1.9, 1.1, 0.58, 0.3, 0.14, 0.06)


@dataclass(frozen=True, kw_only=True)
class Config(SourceOptions, LevelOptions, DeviceOptions, RankOptions):
    """Noise test images and denoise them: denoised.png along sigma, outputs.npz, a table of mean squared errors.

    Given noisy images, a file or a folder, it denoises these instead: their noise level is estimated unless --sigmas
    tells it, and by default a multi-scale collection is fitted to the training images for that level, without any
    network.
    """

    noisy: tyro.conf.Positional[str | None] = None  # images that are noisy already
    outdir: Path = Path("runs/denoise")     # run directory to write
    denoiser: tuple[str, ...] = ()  # one or more; none: optimal wiener ls pspc_square, or for noisy images multi-scale
    sigmas: tuple[float, ...] = ()  # noise levels; none: eight from 5.3 to 0.06, or for noisy images an estimate
    count: int = 4                  # how many images
    seed: int = 0                   # of the noise: image i has the noise of seed + i at every level
    input: str | None = None        # clean images to noise and denoise; by default the data's test split


def main(args: list[str]) -> None:
    config = parse(Config, args, "denoise")
    if config.count < 1 or config.seed < 0:
        raise InputError(f"count must be at least 1 and seed at least 0, got {config.count} and {config.seed}")
    ranks = config.ranks()
    config = ranks.placed(config)
    if config.noisy is not None:
        from fpmc.cli.noisy import denoise_noisy

        denoise_noisy(config, config.noisy, ranks)
        return
    methods = parse_methods(config.denoiser or USUAL)
    policy = config.policy() if need_images(methods) or config.input is None or config.levels else None
    sigmas = config.chosen(policy, LEVELS)

    import numpy as np
    import torch

    from fpmc.metrics import load_samples
    from fpmc.sampling import initial_noise

    clean = load_samples(config.input)[0] if config.input else _test(policy).scaled(slice(config.count))
    clean = clean[: config.count]
    source = config.source(policy.images if policy is not None and need_images(methods) else None)
    built = [method.build(source, data=config.data, device=config.device) for method in methods]
    denoisers = {method.title(denoiser): ranks.share(denoiser) for method, denoiser in zip(methods, built)}
    channels, height, width = clean.shape[1:]
    noise = initial_noise(range(config.seed, config.seed + len(clean)), (channels, height, width)).float()
    noisy = torch.stack([clean + sigma * noise for sigma in sigmas])  # (levels, n, C, H, W)

    run = ranks.run(config.outdir, {**asdict(config), "outdir": None}, command="denoise", free=("device",))
    if config.augment:
        run.say(repr(source))
    outputs: dict[str, Tensor] = {}
    with progress_bar("denoise", run) as tell, torch.no_grad():
        for name, denoiser in denoisers.items():
            answers = []
            for z, sigma in zip(noisy, sigmas):
                answers.append(denoiser(z.to(config.device), sigma).cpu())
                tell(len(outputs) * len(sigmas) + len(answers), len(denoisers) * len(sigmas))
            outputs[name] = torch.stack(answers)

    with run.atomic("outputs.npz") as part:
        arrays = {"noisy": noisy, "clean": clean, **outputs}
        numbers = {name: tensor.numpy() for name, tensor in arrays.items()}
        np.savez_compressed(part, allow_pickle=False, sigmas=np.array(sigmas), **numbers)
    picture = run.picture("denoised.png", picture_of(clean, noisy, outputs, sigmas))
    _report_errors(run, clean, outputs, sigmas)
    run.say(f"{picture}")


def _test(policy: Policy | None) -> ImageSet:
    assert policy is not None
    if policy.test is None:
        raise InputError(f"{policy.data} has no test split to denoise; give clean images as --input")
    return policy.test


def picture_of(clean: Tensor, noisy: Tensor, outputs: dict[str, Tensor], sigmas: tuple[float, ...]) -> Image:
    """A block per image, a column per noise level, a row per denoiser."""
    from fpmc.report.grid import image_grid, stack

    blocks = []
    for i in range(noisy.shape[1]):
        rows = {"clean": clean[i].expand_as(noisy[:, i])}
        rows["noisy"] = dimmed(noisy[:, i])
        rows |= {name: output[:, i] for name, output in outputs.items()}
        blocks.append(image_grid(rows, columns=[f"{sigma:g}" for sigma in sigmas], corner="σ"))
    return stack(blocks)


def dimmed(noisy: Tensor) -> Tensor:
    """Noisy images (n, C, H, W) darkened to fit into [−1, 1]."""
    return noisy / noisy.abs().amax((1, 2, 3), keepdim=True).clamp(min=1)


def _report_errors(run, clean: Tensor, outputs: dict[str, Tensor], sigmas: tuple[float, ...]) -> None:
    """Mean squared error ± standard error over images, by denoiser and noise level."""
    from fpmc.metrics import standard_error
    from fpmc.report.table import markdown, plain, plus_minus

    rows, found = [], {}
    for name, output in outputs.items():
        errors = (output - clean).double().square().mean((2, 3, 4))  # (levels, n)
        values = [(error.mean().item(), standard_error(error)) for error in errors]
        rows.append((name, *(plus_minus(mean, se, 4) for mean, se in values)))
        found[name] = {f"{sigma:g}": {"mse": mean, "mse_se": se} for sigma, (mean, se) in zip(sigmas, values)}
    headers = ("MSE at σ =", *(f"{sigma:g}" for sigma in sigmas))
    run.metrics(found)
    run.write_text("table.md", markdown(headers, rows))
    run.say(plain(headers, rows))
