"""fpmc maps: sensitivity maps of a network, for PSPC-Flex, level by level and draw by draw; interrupted, it resumes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from fpmc.cli.options import DataOptions, DeviceOptions, LevelOptions, check_sigmas, parse, progress_bar


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions, LevelOptions, DeviceOptions):
    """Average a network's absolute gradients over noisy images: maps.safetensors and maps.png in --outdir."""

    outdir: Path = Path("runs/maps")        # run directory to write or to resume
    network: str | None = None              # a shipped name or a network's file; none: the one for the data
    sigmas: tuple[float, ...] = ()          # noise levels; none: those at which PSPC-Flex has a mask (τ < 1)
    draws: int = 16                         # noisy images per level
    seed: int = 0                           # of the draws
    chunk: int = 64                         # gradients computed together


def main(args: list[str]) -> None:
    config = parse(Config, args, "maps")

    import torch

    from fpmc.methods.schedules import resolve
    from fpmc.networks import load_network, save_maps, sensitivity_maps
    from fpmc.report.grid import image_grid
    from fpmc.report.run import RunDirectory
    from fpmc.report.table import plain

    policy = config.policy()
    images, name = policy.images, policy.network(config.network)
    net = load_network(name, device=config.device)
    taus = resolve(policy.dataset, "pspc_flex", images.shape)
    wanted = config.sigmas or config.levels
    sigmas = config.chosen(policy) if wanted else check_sigmas(sigma for sigma, tau in taus.items() if tau < 1)
    identity = {key: value for key, value in asdict(config).items() if key != "outdir"}
    run = RunDirectory(config.outdir, identity, command="maps", free=("sigmas", "levels", "draws", "chunk", "device"))
    with progress_bar("maps", run) as progress:
        maps = sensitivity_maps(
            net,
            images,
            sigmas,
            draws=config.draws,
            seed=config.seed,
            chunk=config.chunk,
            device=config.device,
            checkpoint=run.path / "draws",
            progress=progress,
        )
    target = run.path / "maps.safetensors"
    save_maps(maps, target)

    _, height, width = images.shape
    pixels = {"centre": (height // 2, width // 2), "quarter": (height // 4, width // 4), "corner": (0, 0)}
    # Square roots of the share of the largest value: the faint surroundings of a map are what the masks are about.
    rows = {
        label: torch.stack([2 * (maps[sigma][at] / maps[sigma][at].max()).sqrt()[None] - 1 for sigma in sigmas])
        for label, at in pixels.items()
    }
    title = f"Sensitivity of {Path(name).stem}, {config.draws} draws"
    picture = image_grid(rows, columns=[f"{sigma:g}" for sigma in sigmas], title=title, corner="σ")
    run.picture("maps.png", picture)
    run.metrics({"draws": maps.draws, "relative_standard_error": maps.errors, "bytes": target.stat().st_size})
    lines = [[f"{sigma:g}", str(maps.draws[sigma]), f"{maps.errors[sigma]:.3f}"] for sigma in sigmas]
    run.say(plain(["σ", "draws", "relative standard error"], lines))
    run.say(f"{target} ({target.stat().st_size / 1e6:.2f} MB), {run.path / 'maps.png'}")
