"""fpmc explain: how a denoiser is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fpmc.cli.options import DataOptions, LevelOptions, parse
from fpmc.errors import InputError
from fpmc.study.methods import need_images, parse_methods

LEVELS = (80, 5.3, 1.1, 0.3, 0.06, 0.002)


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions, LevelOptions):
    """Print which kernel evaluates a denoiser at each noise level, why, and the predicted work and memory."""

    denoiser: tuple[str, ...] = ("pspc_square",)    # one or more, e.g. ls lukoianov:tau=0.02
    sigmas: tuple[float, ...] = ()                  # noise levels; none: six from 80 to 0.002
    batch: int = 1                                  # noisy images per call
    device: Literal["cpu", "cuda"] = "cpu"          # where; it need not be there


def main(args: list[str]) -> None:
    config = parse(Config, args, "explain")
    methods = parse_methods(config.denoiser)
    images = config.images() if need_images(methods) or config.levels else None
    sigmas = config.chosen(None if images is None else config.policy(images), LEVELS)
    for text, method in zip(config.denoiser, methods):
        denoiser = method.build(images, data=config.data)
        if not hasattr(denoiser, "explain"):
            raise InputError(f"{text} is a network; only analytic denoisers have a plan to explain")
        print(method.title(denoiser) + (f", {len(images)} images of {images.name}" if images is not None else ""))
        for sigma in sigmas:
            explained = denoiser.explain(sigma, config.batch, config.device)  # pyright: ignore[reportFunctionMemberAccess]
            print(explained)
