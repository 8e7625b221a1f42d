"""fpmc calibrate: the patch sizes or thresholds at which a method comes closest to a network."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fpmc.cli.options import DataOptions, DeviceOptions, LevelOptions, parse, progress_bar
from fpmc.study.methods import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpmc.learn.calibrate import Calibration


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions, LevelOptions, DeviceOptions):
    """Try values of a schedule at each noise level: schedule.json, which presets accept, a table and a plot.

    Each level is kept as it is done; interrupted, the same command resumes.
    """

    outdir: Path = Path("runs/calibrate")           # run directory to write or to resume
    method: Literal["ls", "els", "pspc_square", "pspc_flex", "lukoianov"] = "pspc_square"   # whose schedule
    network: str | None = None                      # target: a shipped name or a file; none: the one for the data
    values: tuple[float, ...] = ()                  # to choose from; none: a dense range
    count: int = 1000                               # noisy images per level
    criterion: Literal["mse", "trajectory"] = "mse"     # error at noisy images, or cosine along the network's sampling
    seed: int = 0                                   # of everything drawn


def main(args: list[str]) -> None:
    config = parse(Config, args, "calibrate")

    from fpmc import presets
    from fpmc.core.sources import Source
    from fpmc.learn.calibrate import calibration
    from fpmc.networks import load_network
    from fpmc.report.run import RunDirectory
    from fpmc.report.table import markdown, plain
    from fpmc.study.levels import calibrate

    policy = config.policy()
    network, held_out = load_network(policy.network(config.network), device=config.device), policy.tuning
    values, sigmas = config.values or default_values(config.method, policy.images.shape[1]), config.chosen(policy)
    option, source = "tau" if config.method == "lukoianov" else "schedule", Source(policy.training)

    def make(value: float):
        return getattr(presets, config.method)(source, **{option: value})

    identity = {**asdict(config), "sigmas": sigmas, "levels": None, "outdir": None}
    identity["data_checksum"] = policy.images.checksum()
    identity["network_checksum"] = Method(policy.network(config.network)).checksum()
    run = RunDirectory(config.outdir, identity, command="calibrate", free=("device",))
    scores = []
    with progress_bar(config.method) as progress:
        for score in calibrate(
            make, values, network, held_out, sigmas=sigmas, count=config.count, criterion=config.criterion,
            seed=config.seed, device=config.device, folder=run.path,
        ):
            scores.append(score)
            progress(len(scores), len(values) * len(sigmas))
    found = calibration(config.method, policy.images.shape[1], config.criterion, scores)
    found.save(run.path / "schedule.json")
    best = found.schedule
    headers = ("σ", "best", "MSE", "± se", "cosine")
    rows = [
        (f"{s.sigma:.4g}", f"{s.value:g}", f"{s.mse:.5f}", f"{s.mse_se:.5f}", f"{s.cosine:.4f}")
        for s in scores if best[s.sigma] == s.value
    ]
    run.metrics({
        "schedule": {f"{sigma:.6g}": value for sigma, value in best.items()},
        "scores": [asdict(score) for score in scores],
    })
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
    what = "threshold τ" if found.method in ("pspc_flex", "lukoianov") else "patch size s, pixels"
    axes.set(xlabel=what, ylabel="mean squared error to the network", title=found.method)
    axes.legend(fontsize="x-small", ncols=2)
    return drawing
