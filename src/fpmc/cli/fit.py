"""fpmc fit: a multi-scale collection with response weights in closed form."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fpmc.cli.options import ClusterOptions, LevelOptions, SourceOptions, parse, progress_bar
from fpmc.cli.ranks import Crew, RankOptions
from fpmc.errors import InputError
from fpmc.study.methods import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpmc.core.fpmc import FPMC
    from fpmc.images import ImageSet
    from fpmc.learn.fit import Fit, Target
    from fpmc.report.run import RunDirectory
    from fpmc.study.cluster import Work


@dataclass(frozen=True, kw_only=True)
class Config(SourceOptions, LevelOptions, ClusterOptions, RankOptions):
    """Fit how much say each patch size has at each noise level: a denoiser in --outdir/model, a table, a plot.

    Each level is kept as it is done; interrupted, the same command resumes. Levels may be fitted side by side (--jobs,
    --cluster).
    """

    outdir: Path = Path("runs/fit")                 # run directory to write or to resume
    target: str = "clean"                           # clean images, which need no network, or a network's name or file
    shape: tuple[Literal["square", "ls", "flex", "lukoianov"], ...] = ("square",)   # of the patches
    sizes: tuple[float, ...] = ()                   # patch sizes or thresholds of one shape; none: five of each
    gaussian: bool = True                           # the Wiener filter takes part
    temperatures: tuple[float, ...] | None = None   # of whole images beside the optimal denoiser; none: the preset's
    around: tuple[float, ...] | None = None         # q outside of squares, which come again; none: chosen by level
    moved: bool = False                             # copies, moved or turned, join the sources: 6 to 7 times the images
    maps: str | None = None                         # for the shape flex: a file of `fpmc maps`, or "wiener"
    per: Literal["group", "channel", "pixel"] = "group"     # one weight per size, or one for each channel or pixel
    count: int = 512                                # noisy images per level
    seed: int = 0                                   # of everything drawn


def main(args: list[str]) -> None:
    config = parse(Config, args, "fit")

    from fpmc.study.levels import level_file, level_units, weighed

    if config.sizes and len(config.shape) > 1:
        raise InputError(f"--sizes go with one --shape, got {' '.join(config.shape)}; without --sizes each has its own")
    where, ranks = config.where(), config.ranks(seeds=False)
    config = ranks.placed(config)
    images = config.images()
    sigmas = config.chosen(config.policy(images))
    here = _Here(config if config.cluster is None else replace(config, device="cpu"), images, ranks)
    elsewhere = dict.fromkeys(("levels", "outdir", "jobs", "cluster", "cluster_options"))
    identity = {**asdict(config), "sigmas": sigmas, **elsewhere}
    identity["data_checksum"] = images.checksum()
    identity["target_checksum"] = None if config.target == "clean" else Method(config.target).checksum()
    run = ranks.run(config.outdir, identity, command="fit", free=("device",))
    with progress_bar("fit", run) as progress:
        if where.many(run.say):
            waiting = [sigma for sigma in sigmas if not level_file(run.path, sigma, "pt").exists()]
            found = where.run(_fitter, config, level_units(run.path, waiting), run.path, run.say)
            for done, _ in enumerate(found, len(sigmas) - len(waiting) + 1):
                progress(done, len(sigmas))
        fits: list[Fit] = []
        for fit in here.fits(sigmas, run.path):
            fits.append(fit)
            progress(len(fits), len(sigmas))
    weighed(here.base, fits, here.target).save_pretrained(run.path / "model")
    _report(run, here.base, fits)
    run.say(f"saved as {run.path / 'model'}")


class _Here:
    """What fitting takes, in this process."""

    def __init__(self, config: Config, images: ImageSet, ranks: Crew) -> None:
        from fpmc.networks import load_network

        self.config, self.images, self.base = config, images, ranks.sharded(_collections(config, images))
        self.target: Target = "clean" if config.target == "clean" else load_network(config.target, device=config.device)

    def fits(self, sigmas: Sequence[float], folder: Path) -> Iterator[Fit]:
        from fpmc.study.levels import fit_levels

        options = {name: getattr(self.config, name) for name in ("count", "per", "seed", "device")}
        return fit_levels(self.base, self.target, self.images, sigmas, folder=folder, **options)


def _fitter(config: Config, folder: Path) -> Work:
    here = _Here(config, config.images(), Crew())
    return lambda sigma: (fit.sigma for fit in here.fits([sigma], folder))


def _collections(config: Config, images: ImageSet) -> FPMC:
    """The groups to weigh."""
    from fpmc import presets
    from fpmc.methods.multiscale import TEMPERATURES
    from fpmc.networks.mapfile import load_maps

    source = config.source(images)
    assert source is not None
    return presets.multiscale(
        source,
        shape=config.shape,
        sizes=config.sizes or None,
        gaussian=config.gaussian,
        temperatures=TEMPERATURES if config.temperatures is None else config.temperatures,
        around=config.around,
        moved=config.moved,
        maps=config.maps if config.maps in (None, "wiener") else load_maps(config.maps),  # pyright: ignore
    )


def _report(run: RunDirectory, base: FPMC, fits: list[Fit]) -> None:
    """metrics.json, table.md, weights.png, and the table on the terminal."""
    from fpmc.learn.fit import labels
    from fpmc.report.table import markdown, plain, plus_minus

    found = {fit.sigma: fit for fit in fits}
    named = {sigma: labels(base.at(sigma)) for sigma in found}
    weights = {sigma: dict(zip(named[sigma], common(fit), strict=True)) for sigma, fit in found.items()}
    names = sorted({name for each in named.values() for name in each}, key=in_order)
    headers = ("σ", "error", "best alone", "gain", *names)
    rows = [
        (
            f"{sigma:.4g}", plus_minus(fit.error, fit.error_se, 5), f"{fit.singles.min():.5f}",
            plus_minus(fit.gain, fit.gain_se, 5),
            *(f"{weights[sigma][name]:.2f}" if name in weights[sigma] else "" for name in names),
        )
        for sigma, fit in found.items()
    ]
    run.metrics({
        f"{sigma:.6g}": {
            "error": fit.error, "error_se": fit.error_se, "gain": fit.gain, "gain_se": fit.gain_se,
            "weights": weights[sigma], "weights_se": dict(zip(named[sigma], fit.weights_se.tolist())),
            "singles": dict(zip(named[sigma], fit.singles.tolist())),
            "ridge": None if math.isinf(fit.ridge) else fit.ridge,
            "free_sum": fit.free_sum, "free_error": fit.free_error,
        }
        for sigma, fit in found.items()
    })
    run.write_text("table.md", markdown(headers, rows))
    with run.atomic("weights.png") as part:
        figure(found, weights, names).savefig(part, dpi=150)
    run.say(f"\n{plain(headers, rows)}\n\nmean squared error to the target, on noisy images not fitted on")


def common(fit: Fit) -> list[float]:
    """The weights, averaged over channels and pixels where these have their own."""
    return fit.weights.flatten(1).mean(1).tolist() if fit.weights.dim() > 1 else fit.weights.tolist()


def in_order(name: str) -> tuple[int, list[float], str]:
    """Where a group's name stands in the table: by kind, then by size."""
    kinds = ("LS", "square", "masks", "optimal", "T", "Wiener")
    return kinds.index(name.split()[0]), [float(number) for number in re.findall(r"[\d.]+", name)], name


def figure(found: dict[float, Fit], weights: dict[float, dict[str, float]], names: list[str]) -> Figure:
    """Weights by noise level, stacked; the error beside the best single group."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = drawing.subplots(1, 2)
    sigmas = list(found)
    stacked = [[weights[sigma].get(name, 0.0) for sigma in sigmas] for name in names]
    colours = [colormaps["cividis"](place / max(1, len(names) - 1)) for place in range(len(names))]
    left.stackplot(sigmas, stacked, labels=names, colors=colours)
    left.set(xscale="log", xlabel="σ", ylabel="weight", ylim=(0, 1), xlim=(min(sigmas), max(sigmas)))
    left.legend(fontsize="x-small", loc="upper left")
    right.plot(sigmas, [fit.singles.min() for fit in found.values()], "o--", color="0.5", label="best alone")
    right.plot(sigmas, [fit.error for fit in found.values()], "s-", color="black", label="together")
    right.set(xscale="log", yscale="log", xlabel="σ", ylabel="mean squared error to the target")
    right.legend()
    return drawing
