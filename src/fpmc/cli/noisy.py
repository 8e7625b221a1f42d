"""fpmc denoise NOISY: a training-free denoiser for images like those of a given collection."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from fpmc.errors import InputError
from fpmc.study.methods import parse_methods

if TYPE_CHECKING:
    from torch import Tensor

    from fpmc.cli.denoise import Config
    from fpmc.cli.ranks import Crew
    from fpmc.core.sources import Source
    from fpmc.process import Denoiser
    from fpmc.report.run import RunDirectory

STEP = 1.6                          # ratio of neighbouring noise levels the weights are fitted at
FITTED_ON = 128                     # training images noised for the fit, at each level


def denoise_noisy(config: Config, path: str, ranks: Crew) -> None:
    """Denoise the images of a file or folder, at a noise level told or estimated: denoised.png, one PNG each."""
    import numpy as np
    import torch

    from fpmc.cli.denoise import dimmed
    from fpmc.core.gaussian import fit_gaussian
    from fpmc.methods.wiener import estimate_sigma
    from fpmc.metrics import load_samples
    from fpmc.report.grid import image_grid, to_picture

    if config.input is not None:
        raise InputError(f"give noisy images ({path}) or clean ones (--input {config.input}), not both")
    methods, images = parse_methods(config.denoiser) if config.denoiser else None, config.images()
    told = config.chosen(config.policy(images)) if config.sigmas or config.levels else ()
    if len(told) > 1:
        raise InputError(f"noisy images have one noise level, got {' '.join(map(str, told))}")
    source = config.source(images)
    assert source is not None
    z = load_samples(path)[0][: config.count]
    if tuple(z.shape[1:]) != source.shape:
        raise InputError(f"{path} holds images of shape {tuple(z.shape[1:])}, the training images have {source.shape}")
    run = ranks.run(config.outdir, {**asdict(config), "outdir": None}, command="denoise", free=("device",))
    if not told:
        sigmas = estimate_sigma(fit_gaussian(source), z)
        run.say("estimated noise levels: " + " ".join(f"{sigma:.3g}" for sigma in sigmas.tolist()))
    else:
        sigmas = torch.full((len(z),), told[0], dtype=torch.float64)
    if methods is None:
        denoisers: dict[str, Denoiser] = {"multi-scale": fitted(source, sigmas.tolist(), run, config.device, ranks)}
    else:
        built = [method.build(source, data=config.data, device=config.device) for method in methods]
        denoisers = {method.title(denoiser): ranks.share(denoiser) for method, denoiser in zip(methods, built)}
    outputs: dict[str, Tensor] = {}
    with torch.no_grad():
        for name, denoiser in denoisers.items():
            outputs[name] = denoiser(z.to(config.device), sigmas).cpu()
            for index, answer in enumerate(outputs[name]):
                run.picture(f"{name}-{index}.png", to_picture(answer))
    with run.atomic("outputs.npz") as part:
        numbers = {name: answer.numpy() for name, answer in outputs.items()}
        np.savez_compressed(part, allow_pickle=False, sigmas=sigmas.numpy(), noisy=z.numpy(), **numbers)
    columns = [f"{sigma:.2g}" for sigma in sigmas.tolist()]
    grid = image_grid({"noisy": dimmed(z), **outputs}, columns=columns, corner="σ")
    run.say(f"{run.picture('denoised.png', grid)}")


def fitted(source: Source, sigmas: Sequence[float], run: RunDirectory, device: str, ranks: Crew) -> Denoiser:
    """A multi-scale collection for these noise levels, its weights fitted on the training images themselves."""
    from fpmc.learn.fit import NONE, Fit, labels
    from fpmc.presets import multiscale
    from fpmc.study.levels import fit_response

    low, high = min(sigmas), max(sigmas)
    steps = math.ceil(math.log(high / low) / math.log(STEP)) if high > low else 0
    levels = [low * (high / low) ** (step / max(steps, 1)) for step in range(steps + 1)]

    collections, images = ranks.sharded(multiscale(source)), source.parts[0]

    def tell(found: Fit) -> None:
        named = sorted(zip(found.weights.tolist(), labels(collections.at(found.sigma))), reverse=True)
        weights = ", ".join(f"{name} {weight:.2f}" for weight, name in named if weight > NONE)
        run.say(f"σ {found.sigma:.3g}: expected error {found.error:.4f} ± {found.error_se:.4f}; weights: {weights}")

    count = min(FITTED_ON, len(images))
    found = fit_response(collections, "clean", images, sigmas=levels, count=count, progress=tell, device=device)
    return ranks.rows(found)
