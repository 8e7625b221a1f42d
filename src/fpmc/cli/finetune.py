"""fpmc finetune: soft Q and R of a denoiser, learned against a network, level by level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fpmc.cli.denoisers import parse_spec
from fpmc.cli.jobs import share
from fpmc.cli.options import DataOptions, parse, progress_bar
from fpmc.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from fpmc.core.fpmc import FPMC
    from fpmc.images import ImageSet
    from fpmc.learn.finetune import Level, Progress, Recipe
    from fpmc.process import Denoiser
    from fpmc.report.run import RunDirectory


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions):
    """Learn soft query precisions and response weights: a denoiser in --outdir/model, curves, pictures, a table.

    Each noise level is learned on its own and saved as it goes; interrupted, the same command goes on. --jobs shares
    the levels among processes, and changes nothing about the result.
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
    jobs: int = 1                                   # processes that learn levels side by side
    threads: int | None = None                      # of each process; none: all cores for one process, else one each
    device: str = "cpu"                             # of the network and the matrix products


def main(args: list[str]) -> None:
    config = parse(Config, args, "finetune")
    indices = parse_steps(config.sigmas)
    for name in ("jobs", "threads"):
        if (count := getattr(config, name)) is not None and count < 1:
            raise InputError(f"{name} {count}: at least 1 is needed")
    if config.threads is not None:
        import torch

        torch.set_num_threads(config.threads)
    setting = Setting.of(config)

    from fpmc.report.run import RunDirectory

    free = ("sigmas", "outdir", "jobs", "threads", "device")
    run = RunDirectory(config.outdir, {**asdict(config), "outdir": None}, command="finetune", free=free)
    _learn(config, setting, indices, run)
    _conclude(config, setting, run)


@dataclass(frozen=True)
class Setting:
    """What every process needs to learn a level."""

    path: Path
    recipe: Recipe
    denoiser: FPMC
    network: Denoiser
    training: ImageSet
    held_out: ImageSet
    device: str

    @classmethod
    def of(cls, config: Config) -> Setting:
        from fpmc.core.fpmc import FPMC
        from fpmc.data import load_images
        from fpmc.learn.finetune import LAPTOP, Recipe
        from fpmc.networks import load_network

        recipe = replace(LAPTOP if config.preset == "laptop" else Recipe(), learn=config.learn, seed=config.seed)
        chosen = {name: getattr(config, name) for name in ("steps", "batch", "monte_carlo", "floor_q", "floor_r")}
        recipe = replace(recipe, **{name: value for name, value in chosen.items() if value is not None})
        spec, images = parse_spec(config.denoiser), config.images()
        network = load_network(config.network, device=config.device)
        try:
            held_out, training = load_images(config.data, split="test"), images
        except InputError:                          # no test split: every tenth image is held out
            tenth = [index for index in range(len(images)) if index % 10 == 9]
            rest = [index for index in range(len(images)) if index % 10 != 9]
            held_out, training = images.subset(tenth), images.subset(rest)
        denoiser = spec.build(images)
        if not isinstance(denoiser, FPMC):
            raise InputError(f"{config.denoiser} is a network; fine-tuning starts from an analytic denoiser")
        return cls(config.outdir, recipe, denoiser, network, training, held_out, config.device)

    def checkpoint(self, index: int) -> Path:
        return self.path / f"level-{index:02}.pt"

    def start(self, index: int) -> Level:
        from fpmc.learn.finetune import Level
        from fpmc.process import edm_grid

        sigma = edm_grid()[index].item()
        return Level.start(self.denoiser.at(sigma), sigma, self.recipe, self.device)

    def learn(self, index: int) -> Iterator[tuple[int, Progress | str]]:
        """Learn one level, with a record for each step and a line at the end; its files are in the run directory."""
        from fpmc.files import atomic
        from fpmc.learn.finetune import train_level

        level = self.start(index)
        before = level.log_q.exp().cpu(), level.log_r.exp().cpu()
        for record in train_level(level, self.network, self.training, self.held_out, self.checkpoint(index)):
            yield index, record
        with atomic(self.path / f"level-{index:02}.png") as part:
            figure(level, before).savefig(part, dpi=120)
        yield index, f"σ {level.sigma:.4g}: {level.baseline:.5f} → {level.best:.5f} at step {level.best_step}"


def _learner(config: Config):
    return Setting.of(config).learn


def _learn(config: Config, setting: Setting, indices: list[int], run: RunDirectory) -> None:
    """All levels, in this process or in several, with one bar for all of them."""
    from tqdm import tqdm

    if config.jobs == 1:
        messages = (message for index in indices for message in setting.learn(index))
    else:
        messages = share(_learner, config, indices, jobs=config.jobs, threads=config.threads or 1)
    done = dict.fromkeys(indices, 0)
    label = f"{len(indices)} noise levels" if len(indices) > 1 else "1 noise level"
    with progress_bar(label) as progress:
        for index, message in messages:
            if isinstance(message, str):
                done[index] = setting.recipe.steps      # it may have stopped early
                with tqdm.external_write_mode():
                    run.say(message)
            else:
                done[index] = message.step
                run.event(**asdict(message))
            progress(sum(done.values()), len(indices) * setting.recipe.steps)


def _conclude(config: Config, setting: Setting, run: RunDirectory) -> None:
    """The denoiser and the table of all levels so far, those of earlier sittings too."""
    from math import nan
    from statistics import median

    from fpmc.core.fpmc import FPMC
    from fpmc.process import edm_grid
    from fpmc.report.table import markdown, plain

    levels: dict[float, Level] = {}
    for index in range(len(edm_grid())):
        if setting.checkpoint(index).exists():
            level = setting.start(index)
            level.load(setting.checkpoint(index))
            levels[level.sigma] = level
    name = f"{setting.denoiser.name} + soft {'/'.join(name.upper() for name in setting.recipe.learn)}"
    soft = FPMC({sigma: level.result for sigma, level in levels.items()}, name=name)
    soft.save_pretrained(run.path / "model")
    times: dict[float, list[float]] = {}
    for event in run.events():
        times.setdefault(event["sigma"], []).append(event["seconds"])
    found = {
        sigma: {
            "baseline": level.baseline, "start": level.history[0][2], "best": level.best, "best_step": level.best_step,
            "steps": level.step, "seconds_per_step": median(times.get(sigma, [nan])),
        }
        for sigma, level in levels.items()
    }
    run.metrics({f"{sigma:.6g}": values for sigma, values in found.items()})
    headers = ("σ", "baseline", "start", "soft", "change", "steps", "best at", "s/step")
    rows = [
        (f"{sigma:.4g}", f"{level['baseline']:.5f}", f"{level['start']:.5f}", f"{level['best']:.5f}",
         f"{100 * (level['best'] / level['baseline'] - 1):+.1f} %", str(level["steps"]), str(level["best_step"]),
         f"{level['seconds_per_step']:.3g}")
        for sigma, level in found.items()
    ]
    run.write_text("table.md", markdown(headers, rows))
    run.say(f"\n{plain(headers, rows)}\n\nmean squared error to {config.network} on held-out images; "
            "start: with zeros raised to the floors")
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
