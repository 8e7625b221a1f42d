"""Beyond the paper: error to both networks by noise level, every method beside multi-scale collections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from fpmc.experiments import steps
from fpmc.experiments.experiment import Experiment
from fpmc.experiments.graph import Results, Step
from fpmc.experiments.lab import Lab
from fpmc.experiments.methods import (
    LS,
    MULTISCALE,
    MULTISCALE_CLEAN,
    OPTIMAL,
    PSPC_FLEX,
    PSPC_SQUARE,
    REFERENCE,
    SOFT,
    WIENER,
    Method,
    lukoianov,
    paper_tau,
    scales,
)
from fpmc.metrics import standard_error
from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import drawing, line, name_levels
from fpmc.report.table import plus_minus

BEST = "best single size of squares"
WHOM = {"mse": "DDPM++", "mse to the reference": "NCSN++"}


def experiment(lab: Lab) -> Experiment:
    """Errors of every denoiser at every noise level of sampling; the other network is the floor."""
    sizes = scales(lab)
    methods = (
        OPTIMAL, WIENER, LS, PSPC_SQUARE, PSPC_FLEX, lukoianov(paper_tau(lab)), SOFT, MULTISCALE, MULTISCALE_CLEAN,
        replace(REFERENCE, label="NCSN++ (floor)"),
    )
    wants = {
        (method, sigma): steps.error(lab, method, sigma) for method in (*methods, *sizes) for sigma in lab.grid
    }

    def show(results: Results) -> Exhibit:
        errors = {whom: _errors(results, wants, methods, sizes, lab.grid, whom) for whom in WHOM}
        with drawing(9, 4.6) as figure:
            panels = figure.subplots(1, 2, sharey=True)
            for panel, (whom, name) in zip(panels, WHOM.items()):
                for index, (label, by_level) in enumerate(errors[whom].items()):
                    mean = [by_level[sigma].mean().item() for sigma in lab.grid]
                    panel.plot(lab.grid, mean, label=label, **line(index))
                name_levels(panel, lab.grid)
                panel.set(yscale="log", xlabel="σ", title=f"MSE to {name}")
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        ours = errors["mse"]
        rows = [
            (f"{sigma:.4g}", *(plus_minus(by_level[sigma].mean().item(), standard_error(by_level[sigma]), 5)
                               for by_level in ours.values()))
            for sigma in lab.grid
        ]
        records = [
            {"method": label, "to": WHOM[whom], "sigma": sigma, "mse": e.mean().item(), "mse_se": standard_error(e),
             "points": len(e)}
            for whom, found in errors.items() for label, by_level in found.items() for sigma, e in by_level.items()
        ]
        return Exhibit(
            name="fig-multiscale",
            title="Beyond the paper: multi-scale collections",
            caption="Mean squared error to the networks at noisy held-out images, ± standard error; the table is "
            "of DDPM++. Multi-scale collections have squares of several sizes, the optimal denoiser and the Wiener "
            "filter, weighed in closed form against DDPM++ or clean images. The distance of NCSN++ is the floor.",
            headers=("σ", *ours),
            rows=rows,
            records=records,
            figure=figure,
            notes=(f"{lab.scale.points} noisy images per level, none of those that anything was fitted on.",),
        )

    return Experiment(list(wants.values()), show)




def _errors(
    results: Results, wants: Mapping[tuple[Method, float], Step], methods: Sequence[Method], sizes: Sequence[Method],
    grid: Sequence[float], whom: str,
) -> dict[str, dict[float, Tensor]]:
    """{label: {σ: error of each noisy image}}, with the best of the single sizes at each level."""
    found = {
        method.label: {sigma: results[wants[method, sigma]][whom] for sigma in grid}
        for method in methods if whom == "mse" or method.preset != "reference"
    }
    alone = {sigma: [results[wants[size, sigma]][whom] for size in sizes] for sigma in grid}
    found[BEST] = {sigma: min(each, key=lambda one: one.mean().item()) for sigma, each in alone.items()}
    return found
