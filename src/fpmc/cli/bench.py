"""fpmc bench: what every method costs at every noise level, on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fpmc import __version__
from fpmc.cli.options import DataOptions, DeviceOptions, LevelOptions, parse
from fpmc.cli.ranks import RankOptions
from fpmc.errors import InputError
from fpmc.study.methods import TABLE1, parse_methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fpmc.study.bench import Cost

LEVELS = (80, 8.4, 3.26, 1.09, 0.296, 0.06, 0.002)
HEADERS = ("method", "sigma", "kernel", "L", "s/image", "predicted", "GEMMs", "error", "MiB", "GFLOP/s", "× dense")


@dataclass(frozen=True, kw_only=True)
class Config(DataOptions, LevelOptions, DeviceOptions, RankOptions):
    """Seconds per noisy image and call, error against float64, memory, and what the machine could do, as a table.

    Run it alone: another busy process spoils the times. All ratios are measured in this one run. table.md says which
    machine it was, ready to be sent in.
    """

    outdir: Path = Path("runs/bench")       # run directory to write
    denoiser: tuple[str, ...] = TABLE1      # methods, e.g. ls lukoianov:tau=0.02
    sigmas: tuple[float, ...] = ()          # noise levels; none: seven from 80 to 0.002
    batch: int = 8                          # noisy images per call
    repeats: int = 2                        # calls, of which the best counts
    checked: int = 1000                     # images on which errors and the dense evaluation are measured


def main(args: list[str]) -> None:
    config = parse(Config, args, "bench")
    methods = parse_methods(config.denoiser)
    if networks := [method.preset for method in methods if method.loaded is not None]:
        raise InputError(f"{networks[0]} is a network; bench measures analytic denoisers")

    from fpmc.gate import check_steps
    from fpmc.report.table import markdown
    from fpmc.study.bench import benchmark, measure_machine

    for name in ("batch", "repeats", "checked"):
        check_steps(getattr(config, name), name)
    ranks = config.ranks()
    config = ranks.placed(config)
    policy = config.policy()
    images, sigmas = policy.training, config.chosen(policy, LEVELS)
    run = ranks.run(config.outdir, config, command="bench", free=tuple(asdict(config)))
    machine = measure_machine(config.device)
    product = f"a 2048×2048 product takes {machine.gemm_seconds:.2g} s"
    head = (
        f"{len(images)} images of {images.name}, batch {config.batch}, {machine.threads} threads; "
        f"{product} ({machine.gemm_gflops:.0f} GFLOP/s), copying runs at {machine.copy_gb:.1f} GB/s\n"
        f"{machine.name}, device {config.device}, fpmc {__version__}, torch {machine.torch}; {said(config.device)}"
    )
    run.say(head)
    run.say(line(HEADERS))
    costs: list[Cost] = []
    for method in methods:
        for cost in benchmark(
            lambda part, method=method: ranks.share(method.build(part, data=config.data)),
            images, policy.held_out, list(sigmas), machine=machine, batch=config.batch, repeats=config.repeats,
            checked=config.checked, device=config.device,
        ):
            costs.append(cost)
            run.say(line(row(cost)))
    run.metrics({"machine": asdict(machine), "costs": [asdict(cost) for cost in costs]})
    run.write_text("table.md", f"{head}\n\n{markdown(HEADERS, [row(cost) for cost in costs])}")
    with run.atomic("costs.png") as part:
        figure(costs).savefig(part, dpi=150)
    run.say(f"{run.path / 'costs.png'}")


def said(device: str) -> str:
    """What the predicted times are for."""
    from fpmc.engine import cost

    kind = device.partition(":")[0]
    return f"times are predicted for {'this machine' if kind == 'cpu' else cost.of(kind).machine}"


def line(cells: tuple[str, ...]) -> str:
    """Cells as wide as rows are found to be, so that each can be printed when it is measured."""
    widths = (22, 7, 30, 6, 10, 10, 8, 8, 7, 8, 8)
    return "".join(cell.rjust(width) if place > 2 else cell.ljust(width) for place, (cell, width) in
                   enumerate(zip(cells, widths))).rstrip()


def row(cost: Cost) -> tuple[str, ...]:
    """One line of the table."""
    memory = "–" if cost.peak_memory is None else f"{cost.peak_memory:.0f}"
    ratio = "–" if cost.dense_ratio is None else f"{cost.dense_ratio:.0f}"
    return (
        cost.method, f"{cost.sigma:g}", cost.kernel, str(cost.estimators), f"{cost.seconds:.3g}",
        f"{cost.predicted:.3g}", f"{cost.gemms:.2f}", f"{cost.error:.1e}", memory, f"{cost.gflops:.0f}", ratio,
    )


def figure(costs: list[Cost]) -> Figure:
    """Seconds per image by noise level, a line per method, told apart by marker as well as by colour."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(7, 4.2), layout="constrained")
    axes = drawing.add_subplot()
    methods = list(dict.fromkeys(cost.method for cost in costs))
    for method, marker in zip(methods, "osD^vP*Xhd<>" * len(methods)):
        points = [(cost.sigma, cost.seconds) for cost in costs if cost.method == method]
        axes.loglog(*zip(*points), marker=marker, label=method)
    axes.set(xlabel="noise level σ", ylabel="seconds per noisy image")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", ncols=2)
    return drawing
