"""Wiener and Lukoianov at 64×64×3 (d = 12,288), set-up and masks of all levels: seconds and peak memory.

    python benchmarks/wiener64.py [--side 64] [--images 10000] [--levels 40] [--outdir runs/wiener64]

Images are scenes made here. Everything is done twice, each time in a process of its own: the first finds nothing on the
disk, the second everything. What is kept goes to a folder beside the results, which is removed. Run it alone; the aims
are 6 minutes, 20 seconds from the disk, and 4 GiB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scenes import scenes
from timing import peak, spent

from fpmc import presets
from fpmc.sampling import levels_of


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and GiB of each step, in this process."""
    images = scenes(options.images, options.side)
    z = images.scaled(slice(2)) + torch.randn(2, *images.shape, generator=torch.Generator().manual_seed(1))
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "peak GiB of the images": peak(), "steps": {}}
    made: dict[str, Any] = {}

    def told(what: str, work: Callable[[], object]) -> None:
        wall, processors = spent(work)
        found["steps"][what] = {"wall seconds": wall, "processor seconds": processors, "peak GiB": peak()}
        print(f"{what:26} {wall:7.1f} s, {processors:7.1f} s of processors, peak {peak():.2f} GiB", flush=True)

    told("Wiener, set up", lambda: made.update(wiener=presets.wiener(images)))
    told("Wiener, 2 noisy images", lambda: made["wiener"](z, 1.0))
    told("Lukoianov, set up", lambda: made.update(lukoianov=presets.lukoianov(images)))
    levels = [sigma for sigma in levels_of(options.levels) if sigma > 0]

    def masks() -> None:
        for sigma in levels:                            # one after the other: those of all are 40 times 0.15 GB
            made["lukoianov"].at(sigma)

    told(f"masks of {len(levels)} levels", masks)
    steps = [step for name, step in found["steps"].items() if "noisy" not in name]
    found |= {key: sum(step[key] for step in steps) for key in ("wall seconds", "processor seconds")}
    return found | {"peak GiB": peak()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--levels", type=int, default=40)
    parser.add_argument("--outdir", type=Path, default=Path("runs/wiener64"))
    parser.add_argument("--once", type=Path, help="measure in this process, and write to this file")
    options = parser.parse_args()
    if options.once:
        options.once.write_text(json.dumps(measured(options)))
        return
    options.outdir.mkdir(parents=True, exist_ok=True)
    home, part = options.outdir / "home", options.outdir / "part.json"
    shutil.rmtree(home, ignore_errors=True)
    found: dict[str, Any] = {"images": options.images, "side": options.side, "levels": options.levels}
    for name in ("first", "again"):
        print(name, flush=True)
        environment = {**os.environ, "FPMC_HOME": str(home.resolve())}
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--once", str(part)], env=environment, check=True)
        found[name] = json.loads(part.read_text())
    found["GiB on disk"] = sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) / 2**30
    shutil.rmtree(home)
    part.unlink()
    (options.outdir / "wiener64.json").write_text(json.dumps(found, indent=1))
    for name in ("first", "again"):
        print(f"{name}: {found[name]['wall seconds']:.1f} s, peak {found[name]['peak GiB']:.2f} GiB")


if __name__ == "__main__":
    main()
