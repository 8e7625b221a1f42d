"""fpmc finetune: soft Q and R of a denoiser, learned against a network, level by level."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fpmc.cli.options import ClusterOptions, DataOptions, LevelOptions, parse, progress_bar
from fpmc.cli.ranks import Crew, RankOptions, rank
from fpmc.errors import InputError
from fpmc.study.methods import Method, parse_method

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from fpmc.learn.finetune import Level
    from fpmc.report.run import RunDirectory
    from fpmc.study.cluster import Where, Work
    from fpmc.study.levels import Finetuning

PAPERS = ("steps", "batch", "monte_carlo", "floor_q", "floor_r")    # what only the paper's recipe has


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions, LevelOptions, ClusterOptions, RankOptions):
    """Learn soft query precisions and response weights: a denoiser in --outdir/model, curves, pictures, a table.

    Each noise level is learned on its own and saved as it goes; interrupted, the same command resumes. At levels that
    are not learned the denoiser stays as it was. Levels may be learned side by side (--jobs, --cluster),
    with the same result.
    """

    outdir: Path = Path("runs/finetune")            # run directory to write or to resume
    denoiser: str = "pspc_flex"                     # where to start, e.g. pspc_square, lukoianov:tau=0.05
    network: str | None = None                      # target: a shipped name or a file; none: the one for the data
    learn: tuple[Literal["q", "r"], ...] = ("q", "r")   # what to learn
    recipe: Literal["templates", "paper"] | None = None  # shared numbers, or AdamW on every entry; none: templates on a
                                                    # CPU, if nothing of the paper's recipe is given
    pool: int | None = None                         # of templates: noisy images to learn from; none: 128
    steps: int | None = None                        # of the paper's recipe; none: 2000
    batch: int | None = None                        # of the paper's recipe; none: 256
    monte_carlo: int | None = None                  # of the paper's recipe: images drawn for each step; none: all
    floor_q: float | None = None                    # of the paper's recipe: zeros of q start here; none: neutral
    floor_r: float | None = None                    # zeros of r likewise
    seed: int = 0                                   # of everything drawn
    threads: int | None = None                      # of each process; none: its share of the cores


def main(args: list[str]) -> None:
    config = parse(Config, args, "finetune")
    if config.recipe == "templates" and rank() is not None:
        raise InputError("templates are learned by one process; under torchrun use --recipe paper, else --cluster")
    if config.threads is not None:
        import torch

        if config.threads < 1:
            raise InputError(f"threads {config.threads}: at least 1 is needed")
        torch.set_num_threads(config.threads)
    where, ranks = config.where(config.threads), config.ranks(seeds=False)
    config = ranks.placed(config)
    job = _job(config if config.cluster is None else replace(config, device="cpu"), config.outdir, ranks)
    policy = job.policy
    sigmas = [policy.known(sigma) for sigma in config.chosen(policy)]

    free = ("sigmas", "levels", "outdir", "jobs", "cluster", "cluster_options", "threads", "device")
    identity = {**asdict(config), "outdir": None, "data_checksum": policy.images.checksum()}
    identity["network_checksum"] = Method(policy.network(config.network)).checksum()
    run = ranks.run(config.outdir, identity, command="finetune", free=free)
    if passed := [f"{sigma:g}" for sigma in sigmas if sigma not in policy.grid]:
        run.say(f"sampling in {policy.steps} steps does not visit σ = {', '.join(passed)}; --levels names its levels")
    _learn(config, where, job, sigmas, run)
    _conclude(config, job, sigmas, run)


def _job(config: Config, folder: Path, ranks: Crew) -> Finetuning:
    """What every process needs to learn a level."""
    from fpmc.core.fpmc import FPMC
    from fpmc.learn.finetune import TEMPLATES, Tuning, recipe_for
    from fpmc.networks import load_network
    from fpmc.study.levels import Finetuning

    given = {name: value for name in (*PAPERS, "pool") if (value := getattr(config, name)) is not None}
    recipe = config.recipe or ("paper" if rank() is not None else recipe_for(config.device, given))
    if wrong := [name for name in given if (name == "pool") == (recipe == "paper")]:
        raise InputError(f"--{wrong[0]} is not a setting of the recipe {recipe!r}; leave it out, or choose --recipe")
    tuning = asdict(TEMPLATES if recipe == "templates" else Tuning()) | given
    method, policy = parse_method(config.denoiser), config.policy()
    network = load_network(policy.network(config.network), device=config.device)
    denoiser = method.build(policy.images, data=config.data)
    if not isinstance(denoiser, FPMC):
        raise InputError(f"{config.denoiser} is a network; fine-tuning starts from an analytic denoiser")
    tuning |= {"learn": config.learn, "seed": config.seed, "decay_from": policy.decay_from}
    return Finetuning.of(ranks.sharded(denoiser), network, policy, device=config.device, folder=folder, **tuning)


def _learner(config: Config, folder: Path) -> Work:
    job = _job(config, folder, Crew())
    return lambda sigma: _level(job, sigma)


def _level(job: Finetuning, sigma: float) -> Iterator[tuple[float, dict[str, float] | str]]:
    """Learn one level, with a record for each step and a line at the end; its file is in the run directory."""
    level = job.start(sigma)
    for record in job.learn(level):
        yield sigma, asdict(record)
    yield sigma, f"σ {level.sigma:.4g}: {level.baseline:.5f} → {level.best:.5f} at step {level.best_step}"


def _learn(config: Config, where: Where, job: Finetuning, sigmas: Sequence[float], run: RunDirectory) -> None:
    """All levels, here or elsewhere, with one bar for all of them."""
    from tqdm import tqdm

    from fpmc.study.levels import level_units

    if where.many(run.say):
        units = level_units(run.path, sigmas, memory=job.tuning.memory)
        messages = where.run(_learner, config, units, run.path, run.say)
    else:
        messages = (message for sigma in sigmas for message in _level(job, sigma))
    done = dict.fromkeys(sigmas, 0.0)
    with progress_bar("noise levels", run) as progress:
        for sigma, message in messages:
            if isinstance(message, str):
                done[sigma] = job.tuning.steps          # it may have stopped early
                with tqdm.external_write_mode():
                    run.say(message)
            else:
                done[sigma] = message["step"]
                run.event(**message)
            progress(sum(done.values()), len(sigmas) * job.tuning.steps)


def _conclude(config: Config, job: Finetuning, sigmas: Sequence[float], run: RunDirectory) -> None:
    """The denoiser and the table of all levels so far, those of earlier sittings too; pictures of the new ones."""
    from statistics import median

    from fpmc.report.table import markdown, plain
    from fpmc.study.levels import level_file

    levels = job.kept()
    for sigma in sigmas:
        start = job.start(sigma)
        with run.atomic(level_file(run.path, sigma, "png").name) as part:
            figure(levels[sigma], (start.log_q.exp().cpu(), start.log_r.exp().cpu())).savefig(part, dpi=120)
    job.model({sigma: level.result for sigma, level in levels.items()}).save_pretrained(run.path / "model")
    times: dict[float, list[float]] = {}
    for event in run.events():
        times.setdefault(event["sigma"], []).append(event["seconds"])
    found = {
        sigma: {
            "baseline": level.baseline, "start": level.history[0][2], "best": level.best, "best_step": level.best_step,
            "steps": level.step, "seconds_per_step": median(times.get(sigma, [math.nan])),
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
    target = job.policy.network(config.network)
    run.say(f"\n{plain(headers, rows)}\n\nmean squared error to {target} on held-out images; "
            "start: with zeros raised to the floors")
    run.say(f"saved as {run.path / 'model'}, at the other levels of sampling as it was")


def figure(level: Level, before: tuple[Tensor, Tensor]) -> Figure:
    """Loss and validation by step; q and r of a middle estimator before and after."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(9, 4), layout="constrained")
    left, right = drawing.subfigures(1, 2, width_ratios=(3, 2), squeeze=False)[0]
    curves = left.subplots()
    steps, losses, validation = zip(*level.history)
    if level.tuning.recipe == "paper":
        curves.plot(steps[1:], losses[1:], color="0.7", label="training batch")
    points = [(s, v) for s, v in zip(steps, validation) if not math.isnan(v)]
    curves.plot(*zip(*points), "o-", color="black", markersize=3, label="held out")
    curves.set(xlabel="step", ylabel="mean squared error to the network", yscale="log", title=f"σ = {level.sigma:.4g}")
    curves.legend()
    middle = len(level.log_q) // 2 + level.log_q.shape[3] // 2 if len(level.log_q) > 1 else 0
    after = level.result.groups[0]                      # a whole-image estimator may have become one for each pixel
    pictures = {
        "q before": before[0], "q after": after.q.dense(), "r before": before[1], "r after": after.r.dense(),
    }
    for axes, (title, values) in zip(right.subplots(2, 2).flat, pictures.items()):
        axes.imshow(values[min(middle, len(values) - 1)].mean(0).numpy(), cmap="magma")
        axes.set(title=title, xticks=[], yticks=[])
    return drawing
