"""fpmc calibrate: the patch sizes or thresholds at which a method comes closest to a network."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fpmc.cli.options import DataOptions, check_sigmas, parse, progress_bar
from fpmc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpmc.learn.calibrate import Calibration


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions):
    """Try values of a schedule at each noise level: schedule.json, which presets accept, a table and a plot."""

    outdir: Path                                    # run directory to write
    method: Literal["ls", "els", "pspc_square", "pspc_flex", "lukoianov"] = "pspc_square"   # whose schedule
    network: str = "fashion-ddpmpp"                 # whom to approach: a shipped name or a network's file
    values: tuple[float, ...] = ()                  # to choose from; none: a dense range
    sigmas: tuple[float, ...] = ()                  # noise levels; none: the 18-step EDM grid
    count: int = 1000                               # noisy images per level
    criterion: Literal["mse", "trajectory"] = "mse"     # error at noisy images, or cosine along the network's sampling
    seed: int = 0


def main(args: list[str]) -> None:
    config = parse(Config, args, "calibrate")

    from fpmc import presets
    from fpmc.core.sources import Source
    from fpmc.data import load_images
    from fpmc.learn.calibrate import calibrate, calibration
    from fpmc.networks import load_network
    from fpmc.process import edm_grid
    from fpmc.report.run import RunDirectory
    from fpmc.report.table import markdown, plain

    images, network = config.images(), load_network(config.network)
    try:
        held_out = load_images(config.data, split="test")
    except InputError as error:
        raise InputError("calibration needs held-out images, and this data has no test split") from error
    values = config.values or default_values(config.method, images.shape[1])
    sigmas = check_sigmas(config.sigmas or edm_grid().tolist())
    option = "tau" if config.method == "lukoianov" else "schedule"

    source = Source(images)

    def make(value: float):
        return getattr(presets, config.method)(source, **{option: value})

    run = RunDirectory(config.outdir, {**asdict(config), "outdir": None}, command="calibrate")
    scores = []
    with progress_bar(config.method) as progress:
        for score in calibrate(
            make, values, network, held_out,
            sigmas=sigmas, count=config.count, criterion=config.criterion, seed=config.seed,
        ):
            scores.append(score)
            run.event(**asdict(score))
            progress(len(scores), len(values) * len(sigmas))
    found = calibration(config.method, images.shape[1], config.criterion, scores)
    found.save(run.path / "schedule.json")
    best = found.schedule
    headers = ("σ", "best", "MSE", "± se", "cosine")
    rows = [
        (f"{s.sigma:.4g}", f"{s.value:g}", f"{s.mse:.5f}", f"{s.mse_se:.5f}", f"{s.cosine:.4f}")
        for s in scores if best[s.sigma] == s.value
    ]
    run.metrics({"schedule": {f"{sigma:.6g}": value for sigma, value in best.items()}})
    run.write_text("table.md", markdown(headers, rows))
    with run.atomic("scores.png") as part:
        figure(found).savefig(part, dpi=150)
    run.say(f"\n{plain(headers, rows)}\n\n{run.path / 'schedule.json'}, {run.path / 'scores.png'}")


def default_values(method: str, resolution: int) -> tuple[float, ...]:
    """All odd sizes, or thresholds in steps of 0.05."""
    if method == "lukoianov":
        return (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
    if method == "pspc_flex":
        return tuple(round(0.05 * k, 2) for k in range(2, 21))
    sizes = tuple(range(3, resolution, 2))
    return (*sizes, resolution) if method == "pspc_square" else (*sizes, resolution + 1 - resolution % 2)


def figure(found: Calibration) -> Figure:
    """Error by value, a line per noise level from dark (noisy) to light, the best marked."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7, 4.2), layout="constrained")
    axes = drawing.add_subplot()
    best = found.schedule
    for place, sigma in enumerate(best):
        colour = colormaps["viridis"](place / max(1, len(best) - 1))
        points = [(s.value, s.mse) for s in found.scores if s.sigma == sigma]
        axes.semilogy(*zip(*points), color=colour, label=f"σ {sigma:.3g}")
        axes.plot(best[sigma], dict(points)[best[sigma]], "o", color=colour)
    axes.set(xlabel="value", ylabel="mean squared error to the network", title=found.method)
    axes.legend(fontsize="x-small", ncols=2)
    return drawing
