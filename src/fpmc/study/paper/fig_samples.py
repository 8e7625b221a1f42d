"""Figure 4: samples of every denoiser, the same seed in the same row."""

from __future__ import annotations

import textwrap

import torch
from torch import Tensor

from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import drawing
from fpmc.sampling import EVALUATION_FROM
from fpmc.study import tasks
from fpmc.study.graph import Results
from fpmc.study.lab import Lab
from fpmc.study.methods import NETWORK, REFERENCE, table_rows
from fpmc.study.paper import Experiment
from fpmc.study.paper.table_results import against

GAP = 2                                                 # white pixels between pictures


def experiment(lab: Lab) -> Experiment:
    """Samples of all denoisers, networks last; the first batches are enough."""
    methods = [method for method in table_rows(lab) if method != NETWORK] + [REFERENCE, NETWORK]
    shown = min(lab.scale.shown, *(tasks.seeds_of(lab, method) for method in methods))
    seeds = range(EVALUATION_FROM, EVALUATION_FROM + shown)
    enough = -(-shown // lab.scale.batch)
    batches = {method: tasks.samples(lab, method)[:enough] for method in methods}

    def show(results: Results) -> Exhibit:
        images = {method: tasks.drawn(results, each)[:shown] for method, each in batches.items()}
        judged = against(results, {m: each for m, each in batches.items() if m != REFERENCE}, batches[REFERENCE])
        labels = [method.label.replace("PSPC-Flex + soft", "soft").replace(" = ", "=") for method in methods]
        side = lab.side + GAP
        with drawing(0.85 * len(methods) + 0.6, 0.85 * shown + 0.5) as figure:
            axes = figure.add_subplot()
            axes.imshow(_mosaic(list(images.values())).numpy(), cmap="gray", vmin=-1, vmax=1, interpolation="nearest")
            middles = [lab.side / 2 + side * place for place in range(max(shown, len(methods)))]
            axes.set_xticks(middles[: len(methods)], [textwrap.fill(label, 12) for label in labels], fontsize=7)
            axes.set_yticks(middles[:shown], [f"seed {seed}" for seed in seeds], fontsize=7)
            axes.xaxis.tick_top()
            axes.tick_params(length=0)
            axes.grid(False)
            axes.spines[:].set_visible(False)
        rows = [
            (method.label, *(f"{value:.2f}" for value in one.r2_per_image[:shown].tolist()))
            for method, one in judged.items()
        ]
        return Exhibit(
            name="fig-samples",
            title="Figure 4: samples from the same noise",
            caption="The same seed in the same row, a column per denoiser; clipped to the range of images. The table "
            "has the r² of every picture against NCSN++.",
            headers=("Denoiser", *(f"seed {seed}" for seed in seeds)),
            rows=rows,
            records=[
                {"method": method.name, "seed": seed, "r2": value}
                for method, one in judged.items() for seed, value in zip(seeds, one.r2_per_image.tolist())
            ],
            figure=figure,
        )

    return Experiment([task for each in batches.values() for task in each], show)


def _mosaic(columns: list[Tensor]) -> Tensor:  # each (n, C, H, W) -> (rows, columns, C or none)
    """Columns of images, clipped, with gaps between them."""
    tiles = [torch.nn.functional.pad(column.clamp(-1, 1), (0, GAP, 0, GAP), value=1.0) for column in columns]
    page = torch.cat([torch.cat(list(column), dim=1) for column in tiles], dim=2)[:, :-GAP, :-GAP]
    return page[0] if len(page) == 1 else (page.movedim(0, -1) + 1) / 2
