"""Options that several commands share, and how they are read. Nothing here imports torch."""

from __future__ import annotations

import inspect
import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from fpmc.cli.ranks import rank
from fpmc.errors import InputError
from fpmc.report.table import clock
from fpmc.study.methods import read_value

if TYPE_CHECKING:
    from fpmc.core.sources import Source
    from fpmc.images import ImageSet
    from fpmc.report.run import RunDirectory
    from fpmc.study.cluster import Where
    from fpmc.study.policy import Policy

C = TypeVar("C")
MOST_SEEDS = 1_000_000
MINUTE = 60                         # seconds between lines where there is no terminal


def parse(config: type[C], args: list[str], command: str) -> C:
    """A frozen dataclass from the command line; its docstring and trailing comments are the help."""
    description = inspect.getdoc(config)
    found = tyro.cli(config, args=args, prog=f"fpmc {command}", description=description, use_underscores=True)
    elsewhere = getattr(found, "cluster", None) is not None     # whose devices are not ours
    plans = command == "explain"                        # and computes nothing
    if (device := getattr(found, "device", "cpu")) not in ("cpu", "auto") and not elsewhere and not plans:
        from fpmc.gate import check_device  # with torch, which takes a second to import

        check_device(device)
    return found


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    data: str = "fashion"           # training images: fashion, cifar10, an EDM zip, a folder, .npy or .npz
    max_size: int | None = None     # use only the first so many of them

    def images(self) -> ImageSet:
        """The training images."""
        from fpmc.data import load_images

        if self.max_size is not None and self.max_size < 1:
            raise InputError(f"max_size must be at least 1, got {self.max_size}")
        images = load_images(self.data)
        return images if self.max_size is None else images.subset(slice(self.max_size))

    def policy(self, images: ImageSet | None = None) -> Policy:
        """What is settled for the training images."""
        from fpmc.study.policy import Policy

        return Policy(self.images() if images is None else images, self.data)


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    device: str = "cpu"             # where networks and denoisers compute, e.g. cuda


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(DeviceOptions):
    jobs: int | None = None         # processes side by side, each with its share of the cores; Slurm: jobs; none: one
    cluster: str | None = None      # where else: tcp://host:8786 (a scheduler of Dask) or slurm
    cluster_options: Path | None = None     # of Slurm: a YAML file with cores, memory, walltime, queue, …

    def where(self, threads: int | None = None) -> Where:
        """Where noise levels or tasks are computed; threads: of each process of this machine, else its share."""
        from fpmc.study.cluster import Where

        jobs = 1 if self.jobs is None else self.jobs
        if threads is None:
            import torch

            threads = max(1, torch.get_num_threads() // max(1, jobs))
        return Where(jobs, self.cluster, self.cluster_options, threads, self.device.startswith("cuda"))


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    sigmas: tuple[float, ...] = ()  # noise levels; none: those of sampling
    levels: str | None = None       # or their numbers among those of sampling, 0 being the noisiest, e.g. 7-12

    def chosen(self, policy: Policy | None, usual: Sequence[float] = ()) -> tuple[float, ...]:
        """The noise levels asked for, else the usual ones, else those of sampling, noisiest first."""
        if self.levels is None or policy is None:
            return check_sigmas(self.sigmas or usual or (policy.grid if policy is not None else ()))
        if self.sigmas:
            raise InputError(f"give --sigmas or --levels, not both; got {self.sigmas} and {self.levels!r}")
        return check_sigmas(policy.numbered(parse_numbers(self.levels, "levels")))


@dataclass(frozen=True, kw_only=True)
class SourceOptions(DataOptions):
    # added to them: xflip, yflip, translate, rotate:amount=2,seed=1, scale, synthetic:network=NAME
    augment: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()

    def source(self, images: ImageSet | None) -> Source | None:
        """The training images and what is added to them; None if no denoiser is made of them."""
        if images is None:
            if self.augment:
                raise InputError(f"--augment {self.augment[0]} adds to training images, and no denoiser here uses them")
            return None
        from fpmc.augmentation import Augmented, augment
        from fpmc.core.sources import Source

        source = Source(images)
        for text in self.augment:
            kind, _, rest = text.partition(":")
            pairs = [part.partition("=") for part in filter(None, rest.split(","))]
            if wrong := ["".join(pair) for pair in pairs if not pair[1]]:
                raise InputError(f"augmentation {text!r}: write settings like {kind}:amount=2,seed=1; got {wrong[0]!r}")
            made = augment(images, kind, **{key: read_value(value) for key, _, value in pairs})
            if isinstance(made, Augmented) and made.kind.distributions:  # a reflection is quicker made than read
                made.stored()
            source = source | made
        return source


@dataclass(frozen=True, kw_only=True)
class SamplerOptions:
    seeds: str = "0-15"             # one sample each, e.g. 0-63,70
    batch: int = 16                 # samples computed together and saved together
    steps: int | None = None        # noise levels visited; none: 18 below 48 pixels a side, 40 from there on
    sigma_min: float = 0.002        # lowest noise level
    sigma_max: float = 80           # highest noise level, where sampling starts
    rho: float = 7                  # how the levels crowd at the low end
    solver: Literal["heun", "euler", "ddim"] = "heun"   # of the ODE; ddim is euler by its other name
    process: Literal["edm", "vp-linear", "vp-cosine", "flow"] = "edm"   # whose times to visit; the above are EDM's

    def settings(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """The keyword arguments of `fpmc.sample` that decide a sample of this shape, checked."""
        from fpmc.process import VP, Flow
        from fpmc.sampling import levels_of
        from fpmc.study.policy import steps_for

        processes = {"edm": None, "vp-linear": VP("linear"), "vp-cosine": VP("cosine"), "flow": Flow()}
        levels = {
            "steps": steps_for(shape) if self.steps is None else self.steps,
            "sigma_min": self.sigma_min,
            "sigma_max": self.sigma_max,
            "rho": self.rho,
            "process": processes[self.process],
        }
        levels_of(**levels)
        if self.batch < 1:
            raise InputError(f"batch must be at least 1, got {self.batch}")
        return {**levels, "solver": self.solver}


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as EDM writes them: "0-63,70" is 0 … 63 and 70."""
    from fpmc.gate import check_seeds

    return check_seeds(parse_numbers(text, "seeds"))


def parse_numbers(text: str, what: str) -> list[int]:
    """Whole numbers and ranges of them, separated by commas."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if found is None:
            raise InputError(f"cannot read {what} {text!r} at {part!r}; write them like 0-63,70")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first >= MOST_SEEDS:
            raise InputError(f"{what} {part!r} must go up, and by less than {MOST_SEEDS:,}")
        numbers += range(first, last + 1)
    return numbers


def check_sigmas(sigmas: Iterable[float]) -> tuple[float, ...]:
    """Noise levels in descending order, refusing none at all and those that are no levels."""
    sigmas = tuple(sorted(set(sigmas), reverse=True))
    if not sigmas:
        raise InputError("no noise levels given; name at least one, e.g. --sigmas 1.1")
    for sigma in sigmas:
        if not 0 < sigma < math.inf:
            raise InputError(f"sigma {sigma:g} is not a noise level; it must be positive and finite")
    return sigmas


@contextmanager
def progress_bar(label: str, run: RunDirectory | None = None, **look: Any) -> Iterator[Callable[..., None]]:
    """A bar with the time left on a terminal, a line a minute elsewhere and in the log of the run.

    Yields what long work calls with (done, total), and perhaps what it is at; look: settings of the bar.
    """
    from tqdm import tqdm

    if rank():                                          # the first one speaks
        yield lambda *_: None
        return
    logged = [] if run is None else [run.note]
    if not sys.stderr.isatty():
        yield _lines(label, lambda line: print(line, file=sys.stderr, flush=True), *logged)
        return
    log = _lines(label, *logged)
    with tqdm(desc=label, file=sys.stderr, dynamic_ncols=True, **{"unit": "step", **look}) as bar:

        def tell(done: float, total: float, at: str = label) -> None:
            if bar.total != total:  # what an earlier sitting has done does not count for the speed
                bar.reset(total)
                bar.initial = bar.n = max(0, done - 1)
            bar.set_description(at, refresh=False)
            bar.update(done - bar.n)
            log(done, total, at)

        yield tell


def _lines(label: str, *says: Callable[[str], object]) -> Callable[..., None]:
    """Progress for whoever does not watch: a line a minute."""
    began = said = time.monotonic()
    first: float | None = None

    def tell(done: float, total: float, at: str = label) -> None:
        nonlocal first, said
        now, first = time.monotonic(), done if first is None else first
        if now >= said + MINUTE and done > first:
            left = (now - began) * (total - done) / (done - first)
            for say in says:
                say(f"{at}: {done / total:.0%} after {clock(now - began)}, about {clock(left)} left")
            said = now

    return tell
