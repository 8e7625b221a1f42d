"""fpmc evaluate: how close samples are to reference samples that began as the same noise."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from fpmc.cli.options import parse
from fpmc.errors import InputError

if TYPE_CHECKING:
    from fpmc.metrics import Comparison


@dataclass(frozen=True, kw_only=True)
class Config:
    """r², MSE and Pearson's r ± standard error of samples against reference samples, and their paired differences.

    Samples are run directories (float32), .npy files, or folders of images (8-bit and clipped, so a little off). They
    are paired by seed where both know theirs, else by order.
    """

    samples: tyro.conf.Positional[tuple[str, ...]]  # what to judge, and the reference as the last one
    reference: str | None = None    # the reference by name; then all of the others are judged
    outdir: Path = Path("runs/evaluate")   # run directory to write: metrics.json, table.md
    json: bool = False              # print JSON instead of a table


def evaluate(samples: dict[str, Any], reference: Any) -> dict[str, Comparison]:
    """Each of `samples` against the reference (Table 2), over the seeds that all of them have."""
    from fpmc.metrics import compare, load_samples

    loaded = {name: load_samples(source) for name, source in samples.items()}
    truth, seeds = load_samples(reference)
    known = [s for _, s in loaded.values() if s is not None]
    if seeds is None or len(known) < len(loaded):  # somebody does not know their seeds: by order
        return {name: compare(images, truth) for name, (images, _) in loaded.items()}
    common = [seed for seed in seeds if all(seed in s for s in known)]
    if not common:
        raise InputError(f"no seed is in all of {', '.join(samples)} and the reference; sample the same seeds first")
    truth = truth[[seeds.index(seed) for seed in common]]
    return {
        name: compare(images[[own.index(seed) for seed in common]], truth)
        for name, (images, own) in loaded.items()
        if own is not None
    }


def table_rows(results: dict[str, Comparison]) -> list[tuple[str, ...]]:
    """Rows of the table: r², MSE×10², Pearson's r, and the paired difference in MSE to the best row."""
    from fpmc.metrics import paired
    from fpmc.report.table import plus_minus

    best = min(results, key=lambda name: results[name].mse)
    rows = []
    for name, result in results.items():
        gap = paired(result, results[best])
        rows.append(
            (
                name,
                plus_minus(result.r2, result.r2_se),
                plus_minus(100 * result.mse, 100 * result.mse_se, 2),
                plus_minus(result.pearson, result.pearson_se),
                "best" if name == best else plus_minus(100 * gap.mse, 100 * gap.mse_se, 2),
            )
        )
    return rows


HEADERS = ("samples", "r²", "MSE×10²", "Pearson r", "MSE×10² above best")


def main(args: list[str]) -> None:
    config = parse(Config, args, "evaluate")
    *judged, reference = config.samples if config.reference is None else (*config.samples, config.reference)
    if not judged:
        raise InputError("nothing to judge: give samples and a reference, e.g. fpmc evaluate runs/ls runs/network")
    if len(set(judged)) != len(judged):
        raise InputError(f"the same samples are given twice: {' '.join(judged)}")

    from fpmc.metrics import paired
    from fpmc.report.run import RunDirectory
    from fpmc.report.table import markdown, plain

    results = evaluate({name: name for name in judged}, reference)
    rows = table_rows(results)
    count = len(next(iter(results.values())))
    found = {
        "reference": reference,
        "images": count,
        "results": {name: result.summary() for name, result in results.items()},
        "paired": [
            {"a": a, "b": b, **paired(results[a], results[b]).summary()}
            for i, a in enumerate(judged)
            for b in judged[i + 1 :]
        ],
    }
    text = f"{plain(HEADERS, rows)}\n{count} images, against {reference}; ± is the standard error over images"
    print(json.dumps(found, indent=2) if config.json else text)
    settings = {key: value for key, value in asdict(config).items() if key not in ("outdir", "json")}
    run = RunDirectory(config.outdir, settings, command="evaluate", free=tuple(settings))
    run.metrics(found)
    run.note(text)
    run.write_text("table.md", markdown(HEADERS, rows))
