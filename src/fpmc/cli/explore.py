"""fpmc explore: a page to look into denoisers with, served on this machine or written as one file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fpmc.cli.denoisers import Spec, parse_specs
from fpmc.cli.options import SourceOptions, parse
from fpmc.networks.shipped import MAPS, SHIPPED

if TYPE_CHECKING:
    from fpmc.core.sources import Source
    from fpmc.networks.maps import SensitivityMaps
    from fpmc.process import Denoiser


@dataclass(frozen=True, kw_only=True)
class Config(SourceOptions):
    """Look into denoisers in a browser: what they make of noise, and which training images made each pixel.

    The page is served on 127.0.0.1, to whoever knows the printed address, until Ctrl-C. Nothing is asked of any other
    machine.
    """

    denoiser: tuple[str, ...] = ("pspc_flex",)  # one or more: optimal, ls, pspc_square, multiscale, a saved FPMC, …
    network: tuple[str, ...] | None = None      # to compare with, the first judges; by default all shipped for the data
    device: str = "cpu"                     # where networks and denoisers run: cpu, cuda
    port: int = 0                           # 0: any that is free
    no_browser: bool = False                # print the address and open nothing
    export: Path | None = None              # write one file with some views instead, at most 15 MB


def main(args: list[str]) -> None:
    config = parse(Config, args, "explore")
    networks = config.network
    if networks is None:
        networks = tuple(name for name in SHIPPED if name.startswith(f"{config.data}-"))
    specs = parse_specs(config.denoiser)

    from fpmc.explore import explore
    from fpmc.networks import load_maps, load_network

    source = config.source(config.images())
    assert source is not None
    judge = Path(networks[0]).stem if networks else f"{config.data}-ddpmpp"
    maps = load_maps(judge) if (MAPS / f"{judge}.safetensors").is_file() else None
    denoisers = {spec.label(built := _build(spec, source, maps)): built for spec in specs}
    compared = [load_network(name, device=config.device) for name in networks]
    explore(
        list(denoisers.values()), source, compared, port=config.port, export=config.export, maps=maps,
        names=[*denoisers, *(Path(name).stem for name in networks)], device=config.device,
        browser=not config.no_browser, say=partial(print, flush=True),         # whoever reads it through a pipe waits
    )


def _build(spec: Spec, source: Source, maps: SensitivityMaps | None) -> Denoiser:
    """As every command builds it; maps that are here already are not read again, now or when images are left out."""
    if spec.name == "pspc_flex" and "maps" not in spec.options and maps is not None:
        from fpmc.presets import pspc_flex

        return pspc_flex(source, maps=maps, **spec.options)
    return spec.build(source)
