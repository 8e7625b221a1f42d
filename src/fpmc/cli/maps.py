"""fpmc maps: sensitivity maps of a network, for PSPC-Flex, level by level and draw by draw; interrupted, it resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fpmc.cli.options import ClusterOptions, DataOptions, LevelOptions, check_sigmas, parse, progress_bar

if TYPE_CHECKING:
    from fpmc.networks.maps import SensitivityMaps
    from fpmc.study.cluster import Work
    from fpmc.study.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions, LevelOptions, ClusterOptions):
    """Average a network's absolute gradients over noisy images: maps.safetensors and maps.png in --outdir."""

    outdir: Path = Path("runs/maps")        # run directory to write or to resume
    network: str | None = None              # a shipped name or a network's file; none: the one for the data
    sigmas: tuple[float, ...] = ()          # noise levels; none: those at which PSPC-Flex has a mask (τ < 1)
    draws: int = 16                         # noisy images per level
    probes: int = 0                         # further ones, with many output pixels in one gradient
    spacing: int = 7                        # pixels from one of them to the next
    seed: int = 0                           # of the draws
    chunk: int = 64                         # gradients computed together


def main(args: list[str]) -> None:
    config = parse(Config, args, "maps")

    import torch

    from fpmc.methods.schedules import resolve
    from fpmc.networks import save_maps
    from fpmc.networks.maps import sums_files
    from fpmc.report.grid import image_grid
    from fpmc.report.run import RunDirectory
    from fpmc.report.table import plain
    from fpmc.study.cluster import Unit

    where, policy = config.where(), config.policy()
    images, name = policy.images, policy.network(config.network)
    taus = resolve(policy.dataset, "pspc_flex", images.shape)
    wanted = config.sigmas or config.levels
    sigmas = config.chosen(policy) if wanted else check_sigmas(sigma for sigma, tau in taus.items() if tau < 1)
    identity = {key: value for key, value in asdict(config).items() if key != "outdir"}
    free = ("sigmas", "levels", "draws", "probes", "spacing", "chunk", "device", "jobs", "cluster", "cluster_options")
    run = RunDirectory(config.outdir, identity, command="maps", free=free)
    draws = run.path / "draws"
    with progress_bar("maps", run) as progress:
        if where.many(run.say):
            spacing = config.spacing if config.probes else 0
            files = {sigma: tuple(file.name for file in sums_files(draws, sigma, spacing)) for sigma in sigmas}
            units = [Unit(f"{sigma!r}", sigma, files[sigma], f"σ {sigma:.4g}") for sigma in sigmas]
            for done, _ in enumerate(where.run(_worker, config, units, draws, run.say), 1):
                progress(done, len(sigmas))
        here = config if config.cluster is None else replace(config, device="cpu")
        maps = _maps(here, policy, sigmas, draws, progress=progress)
    target = run.path / "maps.safetensors"
    save_maps(maps, target)

    _, height, width = images.shape
    pixels = {"centre": (height // 2, width // 2), "quarter": (height // 4, width // 4), "corner": (0, 0)}
    # Square roots of the share of the largest value: the faint surroundings of a map are what the masks are about.
    rows = {
        label: torch.stack([2 * (maps[sigma][at] / maps[sigma][at].max()).sqrt()[None] - 1 for sigma in sigmas])
        for label, at in pixels.items()
    }
    title = f"Sensitivity of {Path(name).stem}, {config.draws + config.probes} draws"
    picture = image_grid(rows, columns=[f"{sigma:g}" for sigma in sigmas], title=title, corner="σ")
    run.picture("maps.png", picture)
    run.metrics({"draws": maps.draws, "relative_standard_error": maps.errors, "bytes": target.stat().st_size})
    lines = [[f"{sigma:g}", str(maps.draws[sigma]), f"{maps.errors[sigma]:.3f}"] for sigma in sigmas]
    run.say(plain(["σ", "draws", "relative standard error"], lines))
    run.say(f"{target} ({target.stat().st_size / 1e6:.2f} MB), {run.path / 'maps.png'}")


def _maps(config: Config, policy: Policy, sigmas: Sequence[float], draws: Path, **more: Any) -> SensitivityMaps:
    """The maps at some noise levels, from where the files of their draws are."""
    from fpmc.networks import load_network, sensitivity_maps

    network = load_network(policy.network(config.network), device=config.device)
    options = {name: getattr(config, name) for name in ("draws", "probes", "spacing", "seed", "chunk", "device")}
    return sensitivity_maps(network, policy.images, sigmas, checkpoint=draws, **options, **more)


def _worker(config: Config, folder: Path) -> Work:
    policy = config.policy()

    def work(sigma: float) -> Iterator[float]:
        _maps(config, policy, [sigma], folder)
        yield sigma

    return work
