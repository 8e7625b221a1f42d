"""Seconds per noisy image and call on CIFAR-10, all 50,000 images, batch 8: every method, beside a matrix product.

    python benchmarks/cifar10.py [--only ls] [--images 50000] [--json out.json] [--table docs/results/costs.csv]

Run it alone. The error is against the float64 engine on the first 1,000 images, for ELS on the first 50.
--table writes what was measured into the rows of a table, which keeps what official codes take.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fpmc import presets
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Precisions
from fpmc.core.response import Partition, Responses, SameAsQ
from fpmc.data import load_images
from fpmc.images import ImageSet
from fpmc.study.bench import benchmark, best_of, measure_machine


def discs(images: ImageSet, radius: float) -> FPMC:
    """PSPC-Flex with round masks."""
    _, height, width = images.shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    distance = (y.flatten()[:, None, None] - y) ** 2 + (x.flatten()[:, None, None] - x) ** 2
    q = Precisions((distance <= radius**2)[:, None])
    return FPMC(Collection(q, SameAsQ(q), images), name=f"PSPC-Flex, {q.entries / len(q):.0f} pixels")


def products(images: ImageSet) -> float:
    """Seconds of the two matrix products that soft Q and R contain for one noisy image, alone."""
    pixels = images.shape[1] * images.shape[2]
    a, b = torch.rand(len(images), pixels), torch.rand(pixels, pixels)
    return 2 * best_of(lambda: a @ b, 3)


def soft(images: ImageSet, uneven: float = 0.1) -> FPMC:
    """Dense soft Q and R, as fine-tuning makes them; not uneven: the same for mirrored pixels."""
    _, height, width = images.shape
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    distance = (y.flatten()[:, None, None] - y) ** 2 + (x.flatten()[:, None, None] - x) ** 2
    q = torch.exp(-distance / 20.0)[:, None] + 1e-3
    q = q * (1 + uneven * torch.rand(q.shape, generator=torch.Generator().manual_seed(0)))
    return FPMC(Collection(Precisions(q), Responses(q.sqrt()), images), name="soft Q and R")


def soft_whole(images: ImageSet) -> FPMC:
    """One soft q that answers for all, as fine-tuning makes it where the noise is strong."""
    _, height, width = images.shape
    q = Precisions(torch.rand(1, 1, height, width, generator=torch.Generator().manual_seed(0)) + 0.5)
    whole = Partition(torch.zeros(1, height, width, dtype=torch.long), 1)
    return FPMC(Collection(q, whole, images), name="soft Q, whole images")


Case = tuple[str, Callable[[ImageSet], FPMC], list[float]]
CASES: list[Case] = [("optimal", presets.optimal, [80, 1.09, 0.14, 0.002])]
for size, sigma in ((3, 0.14), (7, 1.09), (15, 3.26), (31, 12.9)):
    CASES.append((f"ls{size}", partial(presets.ls, schedule=size), [sigma]))
for size, sigma in ((3, 0.14), (7, 1.09), (15, 3.26)):
    CASES.append((f"square{size}", partial(presets.pspc_square, schedule=size), [sigma]))
for radius, sigma in ((1.0, 0.14), (2.3, 0.585), (4.3, 1.92), (7.2, 3.26)):
    CASES.append((f"flex{radius}", partial(discs, radius=radius), [sigma]))
CASES.append(("lukoianov", presets.lukoianov, [0.14, 3.26, 12.9, 80]))
for size, sigmas in ((3, [0.14, 0.296]), (5, [0.296, 0.55]), (9, [1.09]), (19, [3.26])):
    CASES.append((f"els{size}", partial(presets.els, schedule=size), sigmas))
CASES.append(("soft", soft, [1.09]))
CASES.append(("soft, mirrored", partial(soft, uneven=0.0), [1.09]))
CASES.append(("whole", soft_whole, [40.8]))


TITLES = {
    "optimal": "optimal", "ls3": "LS, k = 3", "ls7": "LS, k = 7", "ls15": "LS, k = 15", "ls31": "LS, k = 31",
    "square3": "PSPC-Square, s = 3", "square7": "PSPC-Square, s = 7", "square15": "PSPC-Square, s = 15",
    "flex1.0": "PSPC-Flex, discs of 5 pixels", "flex2.3": "PSPC-Flex, discs of about 20",
    "flex4.3": "PSPC-Flex, discs of about 60", "flex7.2": "PSPC-Flex, discs of about 160",
    "lukoianov": "Lukoianov, τ = 0.05", "els3": "ELS, k = 3 (batch 2)", "els5": "ELS, k = 5 (batch 2)",
    "els9": "ELS, k = 9 (batch 2)", "els19": "ELS, k = 19 (batch 2)", "soft": "dense soft Q and R, L = 1,024",
    "whole": "soft Q of whole images, L = 1",
}


def short(value: float, digits: int) -> str:
    """So many digits that count, and none before the point lost."""
    return f"{value:.0f}" if value >= 10**digits else f"{value:#.{digits}g}".rstrip(".")


def tabulate(path: Path, costs: list[dict[str, Any]]) -> None:
    """Renew the rows of a table that were measured."""
    with path.open(encoding="utf-8", newline="") as file:
        headers, *rows = csv.reader(file)
    found = {(TITLES.get(cost["case"]), f"{cost['sigma']:g}"): cost for cost in costs}
    for row in rows:
        if (cost := found.get((row[0], row[1]))) is not None:
            dense = "" if cost["dense_ratio"] is None else f"{cost['dense_ratio']:.0f} ×"
            row[2:] = [short(cost["seconds"], 3), row[3], short(cost["gemms"], 2), f"{cost['error']:.1e}", dense]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([headers, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names that begin like this")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--checked", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    images, held_out = load_images("cifar10").subset(slice(options.images)), load_images("cifar10", split="test")
    machine = measure_machine()
    product = f"2048×2048 product {machine.gemm_seconds:.3f} s ({machine.gemm_gflops:.0f} GFLOP/s)"
    batch = f"batch {options.batch}, {machine.threads} threads"
    print(f"{len(images)} images, {batch}, {product}, copy {machine.copy_gb:.1f} GB/s", flush=True)
    costs = []
    for name, make, sigmas in CASES:
        if options.only and not any(name.startswith(prefix) for prefix in options.only):
            continue
        slow = name.startswith("els")
        for cost in benchmark(
            make, images, held_out, sigmas, machine=machine, batch=2 if slow else options.batch,
            repeats=1 if slow else options.repeats, checked=50 if slow else options.checked, compare_dense=not slow,
        ):
            costs.append(asdict(cost) | {"case": name})
            ratio = "" if cost.dense_ratio is None else f", dense takes {cost.dense_ratio:.0f} times as long"
            memory = "" if cost.peak_memory is None else f", {cost.peak_memory:.0f} MiB"
            speed = f"{cost.seconds:8.4f} s/image  {cost.gemms:6.2f} GEMMs  {cost.gflops:5.0f} GFLOP/s"
            if name.startswith("soft"):
                ratio += f", {cost.seconds / products(images):.2f} times its matrix products alone"
            how = f"{cost.kernel}{memory}{ratio}"
            print(f"{name:10} σ {cost.sigma:<6g} {speed}  error {cost.error:.1e} ({how})", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"machine": asdict(machine), "costs": costs}, indent=1))
    if options.table:
        tabulate(options.table, costs)


if __name__ == "__main__":
    main()
