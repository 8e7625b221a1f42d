"""Figure 4: samples of every denoiser, the same seed in the same row."""

from __future__ import annotations

import textwrap

from fpmc.experiments import steps
from fpmc.experiments.experiment import Experiment
from fpmc.experiments.graph import Results
from fpmc.experiments.lab import Lab
from fpmc.experiments.methods import NETWORK, REFERENCE, table_rows
from fpmc.experiments.table_results import against
from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import drawing
from fpmc.report.grid import to_picture


def experiment(lab: Lab) -> Experiment:
    """Samples of all denoisers, networks last; the first batches are enough."""
    methods = [method for method in table_rows(lab) if method != NETWORK] + [REFERENCE, NETWORK]
    shown = min(lab.scale.shown, lab.scale.dear_seeds)
    enough = -(-shown // lab.scale.batch)
    batches = {method: steps.samples(lab, method)[:enough] for method in methods}

    def show(results: Results) -> Exhibit:
        images = {method: steps.drawn(results, each)[:shown] for method, each in batches.items()}
        judged = against(results, {m: each for m, each in batches.items() if m != REFERENCE}, batches[REFERENCE])
        with drawing(0.82 * len(methods), 0.78 * shown + 0.7) as figure:
            cells = figure.subplots(shown, len(methods), squeeze=False)
            for column, (method, samples) in enumerate(images.items()):
                for row, image in enumerate(samples):
                    axes = cells[row, column]
                    axes.imshow(to_picture(image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                    axes.set(xticks=[], yticks=[])
                    axes.spines[:].set_visible(False)
                label = method.label.replace("PSPC-Flex + soft", "soft").replace(" = ", "=")
                cells[0, column].set_title(textwrap.fill(label, 11), fontsize=7, verticalalignment="bottom")
            for row in range(shown):
                cells[row, 0].set_ylabel(f"seed {row}", fontsize=7)
        rows = [
            (method.label, *(f"{value:.2f}" for value in one.r2_per_image[:shown].tolist()))
            for method, one in judged.items()
        ]
        return Exhibit(
            name="fig-samples",
            title="Figure 4: samples from the same noise",
            caption="The same seed in the same row, a column per denoiser; clipped to the range of images. The table "
            "has the r² of every picture against NCSN++.",
            headers=("Denoiser", *(f"seed {seed}" for seed in range(shown))),
            rows=rows,
            records=[
                {"method": method.name, "seed": seed, "r2": value}
                for method, one in judged.items() for seed, value in enumerate(one.r2_per_image[:shown].tolist())
            ],
            figure=figure,
        )

    return Experiment([step for each in batches.values() for step in each], show)
