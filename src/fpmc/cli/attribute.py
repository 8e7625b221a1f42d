"""fpmc attribute: which training images made a sample or a denoised image, and where each of them speaks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpmc.cli.options import DeviceOptions, SourceOptions, check_sigmas, parse, progress_bar
from fpmc.errors import InputError
from fpmc.study.methods import parse_method

if TYPE_CHECKING:
    from torch import Tensor

    from fpmc.core.fpmc import FPMC
    from fpmc.core.sources import Source
    from fpmc.explore.path import Path as Way


@dataclass(frozen=True, kw_only=True)
class Config(SourceOptions, DeviceOptions):
    """Who made this pixel: attribution.png (the answer, the images behind it, where each speaks), attribution.json.

    A sample of a seed is attributed at its last call, and along its path; a noisy image (--input) at its noise level,
    which is estimated unless --sigma tells it. Shares are exact and add up to 1.
    """

    outdir: Path = Path("runs/attribute")   # run directory to write
    denoiser: str = "pspc_flex"     # optimal, ls, els, pspc_square, pspc_flex, lukoianov, multiscale, a saved FPMC
    seed: int = 0                   # of the sample
    input: str | None = None        # a noisy image instead: a picture, .npy or a folder, of which the first is taken
    sigma: float | None = None      # noise level of --input, or the level of the path at which to ask
    pixel: tuple[int, int] | None = None    # row and column; none: the whole image
    top: int = 16                   # how many images to name


def main(args: list[str]) -> None:
    config = parse(Config, args, "attribute")
    method = parse_method(config.denoiser)
    if config.sigma is not None:
        check_sigmas([config.sigma])
    if config.top < 1:
        raise InputError(f"top must be at least 1, got {config.top}")

    from fpmc.core.fpmc import FPMC
    from fpmc.explore.shares import in_effect, region_mask, shares
    from fpmc.explore.sheet import along, over_path, picture, summary
    from fpmc.report.run import RunDirectory

    source = config.source(config.images())
    assert source is not None
    denoiser = method.build(source, data=config.data, device=config.device)
    if not isinstance(denoiser, FPMC):
        raise InputError(f"{config.denoiser} is a network: it holds no training images; name an analytic denoiser")
    y, x = config.pixel or (0, 0)
    mask = region_mask((y, x, y, x) if config.pixel else None, denoiser.shape)
    path = way(config, denoiser, source)
    identity = {key: value for key, value in asdict(config).items() if key != "outdir"}
    run = RunDirectory(config.outdir, identity | {"data_checksum": source.parts[0].checksum()}, command="attribute")
    level = nearest_level(path, config)
    z, answer = path.upto(level)
    found = shares(denoiser, z, answer, path.levels[level], mask, config.top)
    result = {"denoiser": method.title(denoiser), "pixel": config.pixel, **summary(found)}
    if config.input is None:
        result["path"] = []
        with progress_bar("attribute", run) as progress:
            for each in along(path, mask, config.top):
                result["path"].append(each)
                progress(len(result["path"]), path.length)
        result["over_path"] = over_path(result["path"])[: config.top]
    run.write_json("attribution.json", result)
    title = f"{method.title(denoiser)}, σ = {path.levels[level]:.3g}: {in_effect(found['effective'])} images in effect"
    shown = run.picture("attribution.png", picture(found, z[0], mask, title))
    report(run, found)
    run.say(f"{shown}")


def way(config: Config, denoiser: FPMC, source: Source) -> Way:
    """The path of the sample, or the noisy image as the beginning of one."""
    from fpmc.explore.path import Path as Way
    from fpmc.explore.path import below, from_seed
    from fpmc.gate import check_seeds

    if config.input is None:
        return Way(denoiser, *from_seed(check_seeds([config.seed])[0], denoiser.shape))
    from fpmc.core.gaussian import fit_gaussian
    from fpmc.methods.wiener import estimate_sigma
    from fpmc.metrics import load_samples

    z: Tensor = load_samples(config.input)[0][:1]
    if tuple(z.shape[1:]) != denoiser.shape:
        raise InputError(f"{config.input} holds images of {tuple(z.shape[1:])}, the denoiser takes {denoiser.shape}")
    sigma = config.sigma if config.sigma is not None else float(estimate_sigma(fit_gaussian(source), z)[0])
    return Way(denoiser, z, below(sigma))


def nearest_level(path: Way, config: Config) -> int:
    """Which call of the path to attribute: the one at σ, or the last; of a noisy image the first."""
    if config.input is not None:
        return 0
    if config.sigma is None:
        return path.length - 1
    sigma = config.sigma
    return min(range(path.length), key=lambda k: abs(path.levels[k] / sigma - 1) + abs(sigma / path.levels[k] - 1))


def report(run, found: dict) -> None:
    """The shares as a table."""
    from fpmc.explore.shares import in_effect
    from fpmc.report.table import plain

    rows = [
        (f"{100 * row['shown']:.2f} %", str(row["id"]), row["word"] or "–", row["set"])
        for row in found["images"] if row["speaks"]
    ]
    rows.append((f"{100 * found['shown_others']:.2f} %", "–", "all other images", ""))
    rows.append((f"{100 * found['shown_gaussian']:.2f} %", "–", "Gaussian", ""))
    run.say(plain(("share", "id", "class", "set"), rows))
    run.say(f"{in_effect(found['effective'])} of {found['count']:,} images in effect")
