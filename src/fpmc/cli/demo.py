"""fpmc demo: every method of the paper's Table 1 on the embedded images, from the same noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpmc.cli.options import DataOptions, DeviceOptions, SamplerOptions, parse, parse_seeds, progress_bar
from fpmc.errors import InputError
from fpmc.networks.shipped import SHIPPED, quality_line
from fpmc.study.methods import TABLE1, Method, parse_methods

if TYPE_CHECKING:
    from torch import Tensor

    from fpmc.images import ImageSet
    from fpmc.metrics import Comparison
    from fpmc.report.run import RunDirectory
    from fpmc.sampling import Samples

# Far fewer images than values per image (784) would be another experiment: the covariance behind the Wiener filter,
# Lukoianov's masks and the Wiener maps of PSPC-Flex is then singular, masks grow, and PSPC-Flex copies training images.


@dataclass(frozen=True, kw_only=True)
class Config(SamplerOptions, DataOptions, DeviceOptions):
    """Samples of every analytic denoiser from the same noise: grid.png (a seed per column) and a table.

    Interrupted, the same command resumes.
    """

    outdir: Path = Path("runs/demo")    # run directory to write or to resume
    max_size: int | None = 3000         # use only the first so many training images
    els_size: int = 500                 # and only so many for ELS, an image of which costs a hundred times more
    denoiser: tuple[str, ...] = TABLE1      # rows of the picture
    networks: tuple[str, ...] | None = None     # more rows, the last one judges; by default all shipped for the data


def main(args: list[str]) -> None:
    config = parse(Config, args, "demo")
    if config.els_size < 1:
        raise InputError(f"els_size must be at least 1, got {config.els_size}")
    seeds, images = parse_seeds(config.seeds), config.images()
    settings = config.settings(images.shape)
    networks = config.policy(images).networks if config.networks is None else config.networks
    methods = parse_methods([*config.denoiser, *networks])

    from fpmc.metrics import compare
    from fpmc.report.grid import image_grid
    from fpmc.report.run import RunDirectory
    from fpmc.report.table import markdown, plain
    from fpmc.study.samples import copies

    identity = {key: value for key, value in asdict(config).items() if key != "outdir"}
    identity |= {"steps": settings["steps"], "data_checksum": images.checksum()}
    free = ("seeds", "batch", "denoiser", "networks", "device")
    run = RunDirectory(config.outdir, identity, command="demo", free=free)
    run.say(f"{len(seeds)} samples of each denoiser, {len(images)} images of {images.name}")
    samples = dict(_sampled(config, run, method, images, seeds, settings) for method in methods)
    closest = {label: copies(out.images, images) for label, out in samples.items()}
    judged: dict[str, Comparison] = {}
    if networks:
        *others, last = samples
        judged = {label: compare(samples[label].images, samples[last].images) for label in others}
    run.metrics(
        {
            label: {
                "seconds": out.seconds,
                "nfe": out.nfe,
                "nearest_training_image": closest[label][0],
                **(judged[label].summary() if label in judged else {}),
            }
            for label, out in samples.items()
        }
    )
    headers, rows = table(samples, closest, judged)
    run.write_text("table.md", markdown(headers, rows))
    grid = image_grid(
        {label: out.images for label, out in samples.items()},
        columns=[str(seed) for seed in seeds],
        corner="seed",
        title=f"Samples from the same noise: {len(images)} images of {images.name}, {settings['steps']} steps",
    )
    picture = run.picture("grid.png", grid)
    run.say(f"\n{plain(headers, rows)}\n")
    run.say("distance: root mean square to the nearest training image; copies: samples within one grey level of it")
    for name in (method.preset for method in methods if method.preset in SHIPPED):
        run.say(quality_line(name))
    run.say(f"{picture}")


def _sampled(
    config: Config, run: RunDirectory, method: Method, images: ImageSet, seeds: Sequence[int], settings: dict[str, Any]
) -> tuple[str, Samples]:
    """A row: its label and its samples."""
    from fpmc.study.samples import sample_into

    fewer = method.preset == "els" and config.els_size < len(images)
    source = images.subset(slice(config.els_size)) if fewer else images
    denoiser = method.build(source, data=config.data, device=config.device)
    label = method.title(denoiser) + (f" ({config.els_size} images)" if fewer else "")
    with progress_bar(label, run) as progress:
        out = sample_into(
            run, denoiser, seeds=seeds, folder=method.folder, batch=config.batch, progress=progress,
            device=config.device, **settings,
        )
    run.say(f"  {label}: {out.seconds:.1f} s")
    return label, out


def table(
    samples: dict[str, Samples], closest: dict[str, tuple[Tensor, str]], judged: dict[str, Comparison]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and rows: time, distance to the training images, and r² and MSE where there is a network to judge by."""
    from fpmc.report.table import plus_minus

    rows = []
    for label, out in samples.items():
        distance, copied = closest[label]
        row = (label, f"{out.seconds:.1f}", f"{distance.mean():.3f}", copied)
        if label in judged:
            one = judged[label]
            row += (plus_minus(one.r2, one.r2_se), plus_minus(100 * one.mse, 100 * one.mse_se, 2))
        elif judged:
            row += ("–", "–")
        rows.append(row)
    return ("denoiser", "seconds", "distance", "copies") + (("r²", "MSE×10²") if judged else ()), rows
