"""fpmc demo: every method of the paper's Table 1 on the embedded images, from the same noise."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpmc.cli.denoisers import TABLE1, Spec, parse_specs
from fpmc.cli.options import DataOptions, SamplerOptions, parse, parse_seeds, progress_bar
from fpmc.errors import InputError
from fpmc.networks.shipped import SHIPPED

if TYPE_CHECKING:
    from fpmc.metrics import Comparison, Nearest
    from fpmc.sampling import Samples

COPY = 1 / 127.5  # rms distance of one grey level: closer than that, a sample is a training image

# Far fewer images than values per image (784) would be another experiment: the covariance behind the Wiener filter,
# Lukoianov's masks and the Wiener maps of PSPC-Flex is then singular, masks grow, and PSPC-Flex copies training images.


@dataclass(frozen=True, kw_only=True)
class Config(SamplerOptions, DataOptions):
    """Samples of every analytic denoiser from the same noise: grid.png (a seed per column) and a table.

    Interrupted, the same command goes on.
    """

    outdir: Path = Path("runs/demo")    # run directory to write or to go on with
    max_size: int | None = 3000         # use only the first so many training images
    els_size: int = 500                 # and only so many for ELS, an image of which costs a hundred times more
    denoiser: tuple[str, ...] = TABLE1      # rows of the picture
    networks: tuple[str, ...] | None = None     # more rows, the last one judges; by default all shipped for the data


def main(args: list[str]) -> None:
    config = parse(Config, args, "demo")
    networks = config.networks
    if networks is None:
        networks = [name for name in SHIPPED if name.startswith(f"{config.data}-")]  # ddpmpp, then ncsnpp
    specs = parse_specs([*config.denoiser, *networks])
    seeds, settings = parse_seeds(config.seeds), config.settings()
    if config.els_size < 1:
        raise InputError(f"els_size must be at least 1, got {config.els_size}")

    from fpmc.metrics import compare, nearest
    from fpmc.report.grid import image_grid
    from fpmc.report.run import RunDirectory
    from fpmc.report.samples import sample_into
    from fpmc.report.table import markdown, plain

    images = config.images()
    identity = {key: value for key, value in asdict(config).items() if key != "outdir"}
    identity["data_checksum"] = images.checksum()
    run = RunDirectory(config.outdir, identity, command="demo", free=("seeds", "batch", "denoiser", "networks"))
    run.say(f"{len(seeds)} samples of each denoiser, {len(images)} images of {images.name}")
    samples: dict[str, Samples] = {}
    for spec in specs:
        fewer = spec.name == "els" and config.els_size < len(images)
        denoiser = spec.build(images.subset(slice(config.els_size)) if fewer else images)
        label = spec.label(denoiser) + (f" ({config.els_size} images)" if fewer else "")
        with progress_bar(label) as progress:
            samples[label] = sample_into(
                run, denoiser, seeds=seeds, folder=_folder(spec), batch=config.batch, progress=progress, **settings
            )
        run.say(f"  {label}: {samples[label].seconds:.1f} s")

    closest = {label: nearest(out.images, images) for label, out in samples.items()}
    judged: dict[str, Comparison] = {}
    if networks:
        *others, last = samples
        judged = {label: compare(samples[label].images, samples[last].images) for label in others}
    run.metrics(
        {
            label: {
                "seconds": out.seconds,
                "nfe": out.nfe,
                "nearest_training_image": closest[label].distance,
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
        title=f"Samples from the same noise: {len(images)} images of {images.name}, {config.steps} steps",
    )
    picture = run.picture("grid.png", grid)
    run.say(f"\n{plain(headers, rows)}\n")
    run.say("distance: root mean square to the nearest training image; copies: samples within one grey level of it")
    run.say(f"{picture}")


def table(
    samples: dict[str, Samples], closest: dict[str, Nearest], judged: dict[str, Comparison]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and rows: time, distance to the training images, and r² and MSE where there is a network to judge by."""
    from fpmc.report.table import plus_minus

    rows = []
    for label, out in samples.items():
        distance = closest[label].distance
        copies = f"{int((distance < COPY).sum())} of {len(distance)}"
        row = (label, f"{out.seconds:.1f}", f"{distance.mean():.3f}", copies)
        if label in judged:
            one = judged[label]
            row += (plus_minus(one.r2, one.r2_se), plus_minus(100 * one.mse, 100 * one.mse_se, 2))
        elif judged:
            row += ("–", "–")
        rows.append(row)
    return ("denoiser", "seconds", "distance", "copies") + (("r²", "MSE×10²") if judged else ()), rows


def _folder(spec: Spec) -> str:
    """Where a denoiser's samples go; other weights under the same name go elsewhere."""
    checksum = spec.checksum()
    return re.sub(r"[^\w.=-]+", "_", spec.text) + (f"-{checksum[:8]}" if checksum else "")
