"""fpmc sample: images of one denoiser, seed by seed, in a run directory that can be resumed and extended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fpmc.cli.denoisers import parse_spec
from fpmc.cli.options import SamplerOptions, SourceOptions, parse, parse_seeds, progress_bar

WIDE = 8  # samples a row of the picture


@dataclass(frozen=True, kw_only=True)
class Config(SamplerOptions, SourceOptions):
    """Generate images with one denoiser: samples.npy (float32, unclipped), grid.png, metrics.json.

    Interrupted, the same command goes on; with more --seeds it adds to what is there.
    """

    outdir: Path                    # run directory to write or to go on with
    denoiser: str = "pspc_square"   # optimal, wiener, ls, els, pspc_square, pspc_flex, lukoianov:tau=0.02, a network


def main(args: list[str]) -> None:
    config = parse(Config, args, "sample")
    seeds, spec, settings = parse_seeds(config.seeds), parse_spec(config.denoiser), config.settings()

    from fpmc.metrics import nearest
    from fpmc.report.grid import image_grid
    from fpmc.report.run import RunDirectory
    from fpmc.report.samples import sample_into

    images = config.images() if spec.loaded is None else None
    source = config.source(images)
    denoiser = spec.build(source)
    label = spec.label(denoiser)
    identity = {key: value for key, value in asdict(config).items() if key != "outdir"} | {
        "data_checksum": images.checksum() if images is not None else None,
        "denoiser_checksum": spec.checksum(),
    }
    run = RunDirectory(config.outdir, identity, command="sample", free=("seeds", "batch"))
    if config.augment:
        run.say(repr(source))
    with progress_bar(label) as progress:
        out = sample_into(run, denoiser, seeds=seeds, batch=config.batch, progress=progress, **settings)

    made_of = "" if images is None else ", " + " + ".join([f"{len(images)} images of {images.name}", *config.augment])
    rows = {f"seed {seeds[i]} …": out.images[i : i + WIDE] for i in range(0, len(seeds), WIDE)}
    picture = run.picture("grid.png", image_grid(rows, title=f"{label}{made_of}"))
    run.say(f"{len(seeds)} samples of {label}{made_of}: {out.nfe} evaluations each, {out.seconds:.1f} s in all")
    found: dict[str, Any] = {"images": len(seeds), "nfe": out.nfe, "seconds": out.seconds}
    if images is not None:
        distance = nearest(out.images, images).distance
        found["nearest_training_image"] = distance
        least, mean = distance.min(), distance.mean()
        run.say(f"root mean square distance to the nearest training image: {mean:.4f} on average, {least:.4f} at least")
    run.metrics(found)
    run.say(f"{picture}")
