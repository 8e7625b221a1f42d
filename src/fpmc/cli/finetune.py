"""fpmc finetune: soft Q and R of a denoiser, learned against a network, level by level."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fpmc.cli.denoisers import parse_spec
from fpmc.cli.options import DataOptions, parse, progress_bar
from fpmc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from fpmc.finetuning import Level


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions):
    """Learn soft query precisions and response weights: a denoiser in --outdir/model, curves, pictures, a table.

    Each noise level is learned on its own and saved as it goes; interrupted, the same command goes on. Several
    processes may share one --outdir, each with its own --sigmas.
    """

    outdir: Path                                    # run directory to write or to go on with
    denoiser: str = "pspc_flex"                     # where to start, e.g. pspc_square, lukoianov:tau=0.05
    network: str = "fashion-ddpmpp"                 # whom to approach: a shipped name or a network's file
    learn: tuple[Literal["q", "r"], ...] = ("q", "r")   # what to learn
    sigmas: str = "0-17"                            # steps of the 18-step EDM grid, e.g. 7-12
    preset: Literal["paper", "laptop"] = "paper"    # settings as in the paper, or sized for two CPU cores
    steps: int | None = None                        # instead of the preset's
    batch: int | None = None                        # instead of the preset's
    monte_carlo: int | None = None                  # instead of the preset's: images drawn for each step
    floor_q: float | None = None                    # zeros of q start here; 0 keeps them 0; none: neutral
    floor_r: float | None = None                    # zeros of r likewise
    seed: int = 0


def main(args: list[str]) -> None:
    config = parse(Config, args, "finetune")
    spec = parse_spec(config.denoiser)
    indices = parse_steps(config.sigmas)

    from fpmc.collection import FPMC
    from fpmc.data import load_images
    from fpmc.finetuning import LAPTOP, Level, Recipe, train_level
    from fpmc.networks import load_network
    from fpmc.process import edm_grid
    from fpmc.report.run import RunDirectory
    from fpmc.report.table import markdown, plain

    recipe = replace(LAPTOP if config.preset == "laptop" else Recipe(), learn=config.learn, seed=config.seed)
    chosen = {name: getattr(config, name) for name in ("steps", "batch", "monte_carlo", "floor_q", "floor_r")}
    recipe = replace(recipe, **{name: value for name, value in chosen.items() if value is not None})
    images, network = config.images(), load_network(config.network)
    try:
        held_out, training = load_images(config.data, split="test"), images
    except InputError:                              # no test split: every tenth image is held out
        tenth = [index for index in range(len(images)) if index % 10 == 9]
        rest = [index for index in range(len(images)) if index % 10 != 9]
        held_out, training = images.subset(tenth), images.subset(rest)
    denoiser = spec.build(images)
    if not isinstance(denoiser, FPMC):
        raise InputError(f"{config.denoiser} is a network; fine-tuning starts from an analytic denoiser")
    run = RunDirectory(config.outdir, {**asdict(config), "outdir": None}, command="finetune", free=("sigmas", "outdir"))
    grid = edm_grid().tolist()
    for index in indices:
        sigma = grid[index]
        level = Level.start(denoiser.at(sigma), sigma, recipe)
        before = level.log_q.exp(), level.log_r.exp()
        with progress_bar(f"σ {sigma:.3g}") as progress:
            for record in train_level(level, network, training, held_out, run.path / f"level-{index:02}.pt"):
                progress(record.step, recipe.steps)
                run.event(**asdict(record))
        with run.atomic(f"level-{index:02}.png") as part:
            figure(level, before).savefig(part, dpi=120)
        run.say(f"σ {sigma:.4g}: {level.history[0][2]:.5f} → {level.best:.5f} at step {level.best_step}")

    levels: dict[float, Level] = {}
    for index, sigma in enumerate(grid):                # those of other processes too
        path = run.path / f"level-{index:02}.pt"
        if path.exists():
            levels[sigma] = Level.start(denoiser.at(sigma), sigma, recipe)
            levels[sigma].load(path)
    name = f"{denoiser.name} + soft {'/'.join(name.upper() for name in recipe.learn)}"
    soft = FPMC({sigma: level.result for sigma, level in levels.items()}, name=name)
    soft.save_pretrained(run.path / "model")
    headers = ("σ", "start", "soft", "change", "steps", "best at")
    rows = [
        (f"{sigma:.4g}", f"{level.history[0][2]:.5f}", f"{level.best:.5f}",
         f"{100 * (level.best / level.history[0][2] - 1):+.1f} %", str(level.step), str(level.best_step))
        for sigma, level in levels.items()
    ]
    run.metrics({f"{sigma:.6g}": {"start": level.history[0][2], "best": level.best} for sigma, level in levels.items()})
    run.write_text("table.md", markdown(headers, rows))
    run.say(f"\n{plain(headers, rows)}\n\nmean squared error to {config.network} on held-out images")
    run.say(f"saved as {run.path / 'model'}")


def parse_steps(text: str) -> list[int]:
    """Steps of the 18-step grid: "7-12" or "3,5-8"."""
    from fpmc.cli.options import parse_seeds

    steps = sorted(parse_seeds(text))
    if steps[-1] > 17:
        raise InputError(f"sigmas {text!r}: the grid has steps 0 to 17, from σ = 80 to 0.002")
    return steps


def figure(level: Level, before: tuple[Tensor, Tensor]) -> Figure:
    """Loss and validation by step; q and r of a middle estimator before and after."""
    import math

    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9, 4), layout="constrained")
    curves = drawing.add_subplot(1, 2, 1)
    steps, losses, validation = zip(*level.history)
    curves.plot(steps[1:], losses[1:], color="0.7", label="training batch")
    points = [(s, v) for s, v in zip(steps, validation) if not math.isnan(v)]
    curves.plot(*zip(*points), "o-", color="black", markersize=3, label="held out")
    curves.set(xlabel="step", ylabel="mean squared error to the network", yscale="log", title=f"σ = {level.sigma:.4g}")
    curves.legend()
    middle = len(level.log_q) // 2 + level.log_q.shape[3] // 2 if len(level.log_q) > 1 else 0
    middle = min(middle, len(level.log_q) - 1)
    after = level.result.groups[0]
    pictures = {
        "q before": before[0], "q after": after.q.dense(), "r before": before[1], "r after": after.r.dense(),
    }
    for place, (title, values) in zip((3, 4, 7, 8), pictures.items()):
        axes = drawing.add_subplot(2, 4, place)
        axes.imshow(values[middle].mean(0).numpy(), cmap="magma")
        axes.set(title=title, xticks=[], yticks=[])
    return drawing
