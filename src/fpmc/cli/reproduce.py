"""fpmc reproduce: figures and tables of the paper, from cached tasks, on one page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from fpmc.cli.options import ClusterOptions, DataOptions, parse, progress_bar
from fpmc.errors import InputError
from fpmc.study.paper import EXPERIMENTS, choose

if TYPE_CHECKING:
    from fpmc.report.run import RunDirectory
    from fpmc.study.cluster import Where, Work
    from fpmc.study.graph import Cache
    from fpmc.study.lab import Lab
    from fpmc.study.paper import Experiment
    from fpmc.study.reproduce import Forecast

MOST_JOBS = 8                                       # a task may take a gigabyte
BAR = "{l_bar}{bar}| {elapsed} gone, {remaining} left"      # in seconds of predicted work
OWN = ("names", "list", "dry_run", "outdir", "cache", "jobs", "cluster", "cluster_options")  # these decide no number


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions, ClusterOptions):
    """Figures and tables of the paper, with its published values beside ours: --outdir/index.html and files.

    Interrupted, the same command resumes; what exists is not computed again, what changed is. Tasks run in one process
    per core, or on a cluster.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()   # experiments, or all; --list names them
    list: bool = False                              # only list the experiments
    scale: Literal["quick", "laptop", "paper"] = "laptop"   # a look, sized for two CPU cores, or the paper's numbers
    network: str | None = None                      # DDPM++, fitted to: a name or a file; none: the one for the data
    reference: str | None = None                    # NCSN++, whose samples judge: likewise
    held_out: str | None = None                     # images in no source; none: the test split, or network samples
    maps: str | None = None                         # sensitivity maps of the network; none: shipped or computed
    dataset: Literal["cifar10", "ffhq", "afhq"] | None = None   # whose schedules and values; none: told by the name
    methods: tuple[str, ...] = ()                   # only these rows of the results, e.g. ls pspc_flex soft
    points: int | None = None                       # noisy images per level in figures of errors, not the scale's
    seeds: int | None = None                        # samples of each denoiser, not the scale's
    expensive_points: int | None = None             # of --points at most so many for ELS and Lukoianov
    expensive_seeds: int | None = None              # samples of these two
    synthetic: int | None = None                    # synthetic images at most, not the scale's
    fit: int | None = None                          # noisy images per level that multi-scale weights are fitted on
    outdir: Path = Path("runs/reproduce")           # run directory to write or to resume
    cache: Path | None = None                       # where results of tasks are kept; none: --outdir/cache
    jobs: int | None = None                         # processes side by side; none: one per core, 8 at most; GPU: one
    dry_run: bool = False                           # print the tasks, their time and memory, and stop


def main(args: list[str]) -> None:
    config = parse(Config, args, "reproduce")
    if config.list:
        width = max(map(len, EXPERIMENTS))
        print("\n".join(f"{name.ljust(width)}  {what}" for name, what in EXPERIMENTS.items()))
        return
    names = choose(config.names)
    if config.max_size is not None and config.max_size < 1:
        raise InputError(f"max_size must be at least 1, got {config.max_size}")

    import torch

    from fpmc.report.run import RunDirectory
    from fpmc.report.table import plain
    from fpmc.study.graph import Cache
    from fpmc.study.reproduce import forecast, reproduce

    cores = torch.get_num_threads()
    if config.jobs is None and config.cluster is None and config.device == "cpu":
        config = replace(config, jobs=min(cores, MOST_JOBS))
    where = config.where()
    many = where.many(print)
    torch.set_num_threads(where.threads if many else cores)     # speed is measured as the processes will have it
    lab, experiments = _open(config if config.cluster is None else replace(config, device="cpu"))
    if config.dry_run:
        print(table_of(forecast(lab, experiments, Cache(_place(config), print)), where.jobs if many else 1))
        return
    settings = {name: value for name, value in asdict(config).items() if name not in OWN}
    free = tuple(name for name in settings if name not in ("data", "scale"))
    run = RunDirectory(config.outdir, settings | {"names": names}, command="reproduce", free=(*free, "names"))
    cache = Cache(_place(config), run.say)
    with progress_bar("reproduce", run, bar_format=BAR) as progress:
        if many:
            _elsewhere(config, where, lab, experiments, cache, run, progress)
        exhibits = reproduce(lab, experiments, run, cache, command=command_of(config), progress=progress)
    for exhibit in exhibits:
        run.say(f"\n{exhibit.title}\n{plain(exhibit.headers, exhibit.rows)}")
    run.say(f"\n{run.path / 'index.html'}")


def _open(config: Config) -> tuple[Lab, list[Experiment]]:
    """What the settings ask for; what cannot be used is refused here."""
    from fpmc.learn.fit import FOLDS
    from fpmc.study.lab import Lab
    from fpmc.study.paper import load
    from fpmc.study.scale import SCALES

    counted = ("points", "seeds", "expensive_points", "expensive_seeds", "synthetic")
    least = dict.fromkeys(counted, 2) | {"fit": 2 * FOLDS}
    changes = {name: value for name in least if (value := getattr(config, name)) is not None}
    if wrong := [name for name, value in changes.items() if value < least[name]]:
        raise InputError(f"{wrong[0]} {changes[wrong[0]]}: at least {least[wrong[0]]} are needed")
    lab = Lab.open(
        config.data, replace(SCALES[config.scale], **changes), network=config.network, reference=config.reference,
        held_out=config.held_out, maps=config.maps, dataset=config.dataset, max_size=config.max_size,
        only=config.methods, device=config.device,
    )
    return lab, load(choose(config.names), lab)


def _place(config: Config) -> Path:
    return config.cache or config.outdir / "cache"


def _elsewhere(
    config: Config, where: Where, lab: Lab, experiments: Sequence[Experiment], cache: Cache, run: RunDirectory,
    progress: Callable[[float, float, str], object],
) -> None:
    """Compute all tasks in other processes."""
    from fpmc.study.graph import units_of
    from fpmc.study.reproduce import predicted, tasks_of

    tasks = tasks_of(experiments)
    seconds, done = predicted(lab, tasks, cache), 0.0
    for key, name, spent in where.run(_worker, config, units_of(tasks, cache), cache.path, run.say):
        done += seconds.get(key, 0.0)
        run.note(f"{name}: {spent:.1f} s")
        progress(done, sum(seconds.values()), name)


def _worker(config: Config, folder: Path) -> Work:
    from fpmc.study.graph import Cache, working
    from fpmc.study.reproduce import tasks_of

    lab, experiments = _open(config)
    return working(tasks_of(experiments), lab, Cache(folder))


def table_of(kinds: list[Forecast], jobs: int) -> str:
    """The forecast as a table: each kind of task in one process, and all of them in so many processes."""
    from fpmc.report.table import clock, plain

    rows = [
        (each.kind, str(each.units), str(each.cached), clock(each.seconds), f"{each.memory / 2**20:,.0f} MiB")
        for each in kinds
    ]
    units, cached = sum(each.units for each in kinds), sum(each.cached for each in kinds)
    memory = max((each.memory for each in kinds), default=0.0)
    together, seconds = f"all, in {jobs} processes" if jobs > 1 else "all", sum(each.seconds for each in kinds) / jobs
    rows.append((together, str(units), str(cached), clock(seconds), f"{jobs * memory / 2**20:,.0f} MiB"))
    note = "predicted from speeds measured just now; other work on this machine makes them longer than they will be"
    return f"{plain(('tasks', 'units', 'done', 'predicted', 'memory'), rows)}\n{note}"


def command_of(config: Config) -> str:
    """The line that asks for the same."""
    words = ["fpmc", "reproduce", *config.names]
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name not in OWN and value != field.default:
            words += [f"--{field.name}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return shlex.join(words)
