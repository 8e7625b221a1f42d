"""Two ranks of one thread each against one rank of one thread, and the bytes that a call sends.

    python benchmarks/ranks.py [--outdir runs/ranks] [--ranks 2] [--images 50000] [--batch 8] [--repeats 5]

Run it alone, on a machine with a core for each rank. Ranks are processes over gloo on the loopback interface, images
CIFAR-10's. Calls alternate: all ranks together, then the first of them alone while the others wait, and so on; the
median of the ratios of neighbours counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fpmc import load_images, presets
from fpmc.core.fpmc import FPMC

SIGMAS = (5.3, 1.1, 0.3)
METHODS = {"PSPC-Square": presets.pspc_square, "PSPC-Flex": presets.pspc_flex}


def timed(call) -> float:
    dist.barrier()
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(alone: FPMC, z: torch.Tensor, sigma: float, repeats: int) -> dict:
    """Seconds of a call of all ranks and of the first rank alone, and what travels."""
    together, first = alone.sharded(), dist.get_rank() == 0
    traffic = together.team.traffic  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    answers = together(z, sigma), alone(z, sigma) if first else None           # compile, lay out
    before, many, one = (traffic.messages, traffic.received), [], []
    for _ in range(repeats):
        many.append(timed(lambda: together(z, sigma)))
        one.append(timed(lambda: alone(z, sigma) if first else None))
        dist.barrier()
    off = 0.0 if answers[1] is None else (answers[0] - answers[1]).abs().max().item()
    return {
        "sigma": sigma, "one": statistics.median(one), "many": statistics.median(many),
        "speed_up": statistics.median(a / b for a, b in zip(one, many)), "difference": off,
        "messages_per_call": (traffic.messages - before[0]) // repeats,
        "bytes_received_per_call": (traffic.received - before[1]) // repeats,
        "bytes_per_noisy_image": (traffic.received - before[1]) // repeats // len(z),
    }


def work(rank: int, options: argparse.Namespace, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=store, rank=rank, world_size=options.ranks, timeout=timedelta(hours=1)
    )
    images = load_images("cifar10").subset(slice(options.images))
    x = images.scaled(slice(options.batch))
    found = []
    for name, method in METHODS.items():
        denoiser = method(images)
        for sigma in SIGMAS:
            z = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
            row = {"method": name, **measure(denoiser, z, sigma, options.repeats)}
            found.append(row)
            if rank == 0:
                print(f"{name} σ = {sigma}: one {row['one']:.3f} s, {options.ranks} ranks {row['many']:.3f} s, "
                      f"{row['speed_up']:.2f} times as fast, {row['bytes_per_noisy_image']} bytes per noisy image",
                      flush=True)
    if rank == 0:
        options.outdir.mkdir(parents=True, exist_ok=True)
        about = {"ranks": options.ranks, "images": len(images), "batch": options.batch, "cores": os.cpu_count()}
        (options.outdir / "ranks.json").write_text(json.dumps({**about, "calls": found}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", type=Path, default=Path("runs/ranks"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (options, f"file://{folder}/store"), nprocs=options.ranks)


if __name__ == "__main__":
    main()
