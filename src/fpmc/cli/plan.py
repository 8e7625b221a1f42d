"""fpmc plan: what sampling will take on ranks that one does not have yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fpmc.cli.options import parse
from fpmc.errors import InputError
from fpmc.study.methods import Method, parse_method


@dataclass(frozen=True, kw_only=True)
class Config:
    """Print time, memory of a rank, traffic of a call and speed-up of sampling, split by source, by seeds or by both.

    With --images and --shape the data need not be there. Times are those of processors like this machine's, from the
    costs that plans are made by.
    """

    data: str = "fashion"                           # training images, as everywhere
    images: int | None = None                       # how many there are; none: as many as the data has
    shape: tuple[int, int, int] | None = None       # channels, height, width; none: the data's
    denoiser: str = "pspc_square"                   # optimal, ls, els, pspc_square, pspc_flex or lukoianov
    seeds: int = 1000                               # samples
    batch: int = 16                                 # of a call
    steps: int | None = None                        # noise levels; none: 18 below 48 pixels a side, 40 from there on
    ranks: int = 8                                  # processes, on as many machines as you like
    threads: int | None = None                      # of a rank; none: the cores of this machine
    bandwidth: float = 1.25                         # between ranks, GB/s; 10 Gbit/s is 1.25
    latency: float = 50.0                           # of a message, microseconds


def main(args: list[str]) -> None:
    config = parse(Config, args, "plan")
    for name in ("images", "seeds", "batch", "ranks", "threads", "bandwidth", "latency", "steps"):
        if (value := getattr(config, name)) is not None and not 0 < value < math.inf:
            raise InputError(f"{name} {value:g}: more than 0 is needed")
    shape, images = _size(config)
    print(page(parse_method(config.denoiser), shape, images, config))


def _size(config: Config) -> tuple[tuple[int, int, int], int]:
    """(C, H, W) and the number of images, as given or as the data has them."""
    if config.shape is not None and min(config.shape) < 1:
        raise InputError(f"shape {config.shape}: channels, height and width must be at least 1")
    if config.shape is not None and config.images is not None:
        return config.shape, config.images
    from fpmc.data import load_images
    from fpmc.readers.source import is_there

    if ("." in Path(config.data).name or "/" in config.data) and not is_there(config.data):
        raise InputError(f"{config.data!r} is not there; give --images and --shape, e.g. --shape 3 64 64")
    found = load_images(config.data)
    return config.shape or found.shape, config.images or len(found)


def meshes(ranks: int) -> dict[str, tuple[int, int]]:
    """Ways to split sampling: (ranks for the source, ranks for the seeds)."""
    side = max(part for part in range(1, math.isqrt(ranks) + 1) if ranks % part == 0)
    found = {"nothing": (1, 1), "seeds": (1, ranks), "both": (ranks // side, side), "source": (ranks, 1)}
    return {name: mesh for name, mesh in found.items() if name == "nothing" or ranks > 1}


def page(method: Method, shape: Sequence[int], images: int, config: Config) -> str:
    """The table, and what it assumes."""
    import torch

    from fpmc.process import edm_grid
    from fpmc.report.table import clock, plain
    from fpmc.study.policy import steps_for
    from fpmc.study.predict import Link, over_ranks

    channels, height, width = shape
    grid = edm_grid(config.steps or steps_for((channels, height, width))).tolist()
    sigmas, threads = [*grid, *grid[1:]], config.threads or torch.get_num_threads()
    link, rows, alone = Link(1e9 * config.bandwidth, 1e-6 * config.latency), [], 0.0
    for name, mesh in meshes(config.ranks).items():
        found = over_ranks(
            method, (channels, height, width), images, sigmas, config.seeds, mesh, batch=config.batch, threads=threads,
            link=link,
        )
        alone = alone or found.seconds
        rows.append((
            name, str(math.prod(mesh)), f"{found.images:,}", f"{found.seeds:,}", f"{found.memory / 2**30:,.2f} GiB",
            f"{found.traffic / 2**20:,.2f} MiB in {found.collectives}" if found.traffic else "–",
            clock(found.seconds), f"{alone / found.seconds:,.1f}",
        ))
    headers = ("split", "ranks", "images each", "seeds each", "memory each", "traffic of a call", "time", "speed-up")
    return (
        f"{method.preset}, {images:,} images of {channels}×{height}×{width}, {config.seeds:,} seeds of {len(sigmas)} "
        f"evaluations, {threads} threads a rank\n{plain(headers, rows)}\n"
        f"predicted for processors like this one's, {config.bandwidth:g} GB/s and {config.latency:g} µs between ranks; "
        "other work on this machine makes times longer than they will be"
    )
