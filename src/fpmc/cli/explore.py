"""fpmc explore: a page to look into denoisers with, served on this machine or written as one file."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fpmc.cli.options import DeviceOptions, SourceOptions, parse, progress_bar
from fpmc.study.methods import parse_methods


@dataclass(frozen=True, kw_only=True)
class Config(SourceOptions, DeviceOptions):
    """Look into denoisers in a browser: what they make of noise, and which training images made each pixel.

    The page is served on 127.0.0.1, to whoever knows the printed address, until Ctrl-C. Nothing is asked of any other
    machine.
    """

    denoiser: tuple[str, ...] = ("pspc_flex",)  # one or more: optimal, ls, pspc_square, multiscale, a saved FPMC, …
    network: tuple[str, ...] | None = None      # to compare with, the first judges; by default all shipped for the data
    port: int = 0                           # 0: any that is free
    no_browser: bool = False                # print the address and open nothing
    export: Path | None = None              # write one file with some views instead, at most 15 MB


def main(args: list[str]) -> None:
    config = parse(Config, args, "explore")
    methods = parse_methods(config.denoiser)

    from fpmc.explore import explore
    from fpmc.networks import load_network

    images = config.images()
    source, policy = config.source(images), config.policy(images)
    assert source is not None
    networks = policy.networks if config.network is None else config.network
    maps = policy.maps(Path(networks[0]).stem if networks else None)
    built = [method.build(source, data=config.data, device=config.device) for method in methods]
    denoisers = {method.title(each): each for method, each in zip(methods, built)}
    compared = [load_network(name, device=config.device) for name in networks]
    with progress_bar("views") if config.export else nullcontext() as progress:
        explore(
            list(denoisers.values()), source, compared, port=config.port, export=config.export, maps=maps,
            names=[*denoisers, *(Path(name).stem for name in networks)], device=config.device,
            browser=not config.no_browser, say=partial(print, flush=True),     # whoever reads it through a pipe waits
            **({"progress": progress} if progress else {}),
        )
