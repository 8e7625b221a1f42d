"""fpmc sample: images of one denoiser, seed by seed, in a run directory that can be resumed and extended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from fpmc.cli.options import DeviceOptions, SamplerOptions, SourceOptions, parse, parse_seeds, progress_bar
from fpmc.cli.ranks import RankOptions
from fpmc.errors import InputError
from fpmc.study.methods import parse_method

WIDE = 8  # samples a row of the picture
UNFITTED = (
    "warning: all groups of this multi-scale collection have the same weight, and such samples copy training images; "
    "fit the weights first (fpmc fit), then sample the denoiser it saves (--denoiser runs/fit/model)"
)


@dataclass(frozen=True, kw_only=True)
class Config(SamplerOptions, SourceOptions, DeviceOptions, RankOptions):
    """Generate images with one denoiser: samples.npy (float32, unclipped), grid.png, metrics.json.

    Interrupted, the same command resumes; with more --seeds it adds to what is there.
    """

    outdir: Path = Path("runs/sample")  # run directory to write or to resume
    classes: Annotated[str, tyro.conf.arg(name="class")] = "random"    # of a network of classes: random, or a number
    denoiser: str = "pspc_square"   # optimal, wiener, ls, els, pspc_square, pspc_flex, lukoianov:tau=0.02, a network
    dry_run: bool = False           # print the time and memory it will take, and stop; `fpmc plan` has more


def main(args: list[str]) -> None:
    config = parse(Config, args, "sample")
    seeds, method = parse_seeds(config.seeds), parse_method(config.denoiser)

    from fpmc.report.grid import image_grid
    from fpmc.study.samples import copies, sample_into

    ranks = config.ranks()
    config = ranks.placed(config)
    images = config.images() if method.loaded is None else None
    source = config.source(images)
    denoiser: Any = method.build(source, data=config.data, device=config.device)
    settings: dict[str, Any] = config.settings(denoiser.shape) | {"classes": _classes(config.classes, denoiser)}
    label = method.title(denoiser)
    if config.dry_run:
        from fpmc.cli import plan

        asked = plan.Config(seeds=len(seeds), batch=config.batch, steps=settings["steps"], ranks=1)
        print(plan.page(method, denoiser.shape, 0 if source is None else len(source), asked))
        return
    denoiser = ranks.share(denoiser)
    identity = {key: value for key, value in asdict(config).items() if key not in ("outdir", "dry_run")} | {
        "steps": settings["steps"],
        "data_checksum": images.checksum() if images is not None else None,
        "denoiser_checksum": method.checksum(),
    }
    run = ranks.run(config.outdir, identity, command="sample", free=("seeds", "batch", "device"))
    if config.augment:
        run.say(repr(source))
    if method.preset == "multiscale":
        run.say(UNFITTED)
    with progress_bar(label, run) as progress:
        settings |= dict[str, Any](device=config.device, batch=config.batch)
        out = sample_into(run, denoiser, seeds=seeds, progress=progress, **settings)

    made_of = "" if images is None else ", " + " + ".join([f"{len(images)} images of {images.name}", *config.augment])
    rows = {f"seed {seeds[i]} …": out.images[i : i + WIDE] for i in range(0, len(seeds), WIDE)}
    picture = run.picture("grid.png", image_grid(rows, title=f"{label}{made_of}"))
    run.say(f"{len(seeds)} samples of {label}{made_of}: {out.nfe} evaluations each, {out.seconds:.1f} s in all")
    found: dict[str, Any] = {"images": len(seeds), "nfe": out.nfe, "seconds": out.seconds}
    if images is not None:
        distance, copied = copies(out.images, images)
        found |= {"nearest_training_image": distance, "copies": copied}
        least, mean = distance.min(), distance.mean()
        run.say(f"root mean square distance to the nearest training image: {mean:.4f} on average, {least:.4f} at least")
        run.say(f"copies, samples within one grey level of a training image: {copied}")
    run.metrics(found)
    run.say(f"{picture}")


def _classes(given: str, denoiser: Any) -> str | int | None:
    """A class as `fpmc.sample` takes it; only a network of classes has any."""
    count = getattr(denoiser, "label_dim", 0)
    if given == "random":
        return "random" if count else None
    if not given.isdigit():
        raise InputError(f"--class {given!r} is neither random nor the number of a class")
    if int(given) >= count:
        which = f"classes 0 … {count - 1}" if count else "no classes; leave --class out"
        raise InputError(f"--class {given}: this denoiser has {which}")
    return int(given)
