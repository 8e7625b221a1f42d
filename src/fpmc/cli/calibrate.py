"""fpmc calibrate: the patch sizes or thresholds at which a method comes closest to a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fpmc.cli.options import ClusterOptions, DataOptions, LevelOptions, parse, progress_bar
from fpmc.study.methods import Method

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpmc.core.fpmc import FPMC
    from fpmc.learn.calibrate import Calibration, Score
    from fpmc.study.cluster import Work
    from fpmc.study.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions, LevelOptions, ClusterOptions):
    """Try values of a schedule at each noise level: schedule.json, which presets accept, a table and a plot.

    Each level is kept as it is done; interrupted, the same command resumes. Levels may be tried side by side (--jobs,
    --cluster).
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

    from fpmc.learn.calibrate import calibration
    from fpmc.report.run import RunDirectory
    from fpmc.report.table import markdown, plain
    from fpmc.study.levels import level_file, level_units

    where, policy = config.where(), config.policy()
    sigmas = config.chosen(policy)
    try_levels = _trying(config if config.cluster is None else replace(config, device="cpu"), policy)
    elsewhere = dict.fromkeys(("levels", "outdir", "jobs", "cluster", "cluster_options"))
    identity = {**asdict(config), "sigmas": sigmas, **elsewhere}
    identity["data_checksum"] = policy.images.checksum()
    identity["network_checksum"] = Method(policy.network(config.network)).checksum()
    run = RunDirectory(config.outdir, identity, command="calibrate", free=("device",))
    scores: list[Score] = []
    with progress_bar(config.method, run) as progress:
        if config.criterion == "mse" and where.many(run.say):   # a trajectory passes all levels at once
            waiting = [sigma for sigma in sigmas if not level_file(run.path, sigma, "json").exists()]
            found = where.run(_worker, config, level_units(run.path, waiting, "json"), run.path, run.say)
            for done, _ in enumerate(found, len(sigmas) - len(waiting) + 1):
                progress(done, len(sigmas))
        for score in try_levels(sigmas, run.path):
            scores.append(score)
            progress(sigmas.index(score.sigma) + 1, len(sigmas))
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


def _trying(config: Config, policy: Policy) -> Callable[[Sequence[float], Path], Iterator[Score]]:
    """What scores all values at some noise levels, with a file for each level in a folder."""
    from fpmc import presets
    from fpmc.core.sources import Source
    from fpmc.networks import load_network
    from fpmc.study.levels import calibrate

    network, held_out = load_network(policy.network(config.network), device=config.device), policy.tuning
    values = config.values or default_values(config.method, policy.images.shape[1])
    option, source = "tau" if config.method == "lukoianov" else "schedule", Source(policy.training)

    def make(value: float) -> FPMC:
        return getattr(presets, config.method)(source, **{option: value})

    options = {name: getattr(config, name) for name in ("count", "criterion", "seed", "device")}
    return lambda sigmas, folder: calibrate(make, values, network, held_out, sigmas=sigmas, folder=folder, **options)


def _worker(config: Config, folder: Path) -> Work:
    try_levels = _trying(config, config.policy())

    def work(sigma: float) -> Iterator[float]:
        for _ in try_levels([sigma], folder):
            pass
        yield sigma

    return work


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
