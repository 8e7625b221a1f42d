"""Beyond the paper: error to both networks by noise level, every method beside multi-scale collections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fpmc.learn.fit import errors_of
from fpmc.metrics import standard_error
from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import drawing, line, name_levels
from fpmc.report.table import plus_minus
from fpmc.study import tasks
from fpmc.study.graph import Results, Task
from fpmc.study.lab import Lab
from fpmc.study.methods import REFERENCE, Method, table_rows
from fpmc.study.paper import Experiment

BEST = "best group alone"
TARGETS = {"mse": "DDPM++", "mse to the reference": "NCSN++"}


def experiment(lab: Lab) -> Experiment:
    """Errors of every denoiser at every noise level of sampling; the other network is the floor."""
    rows = [row for row in table_rows(lab) if row.preset != "network" and row.augment in (None, "moved")]
    mixtures = [row for row in rows if row.preset == "multiscale"]
    floor = replace(REFERENCE, label="NCSN++ (floor)")
    singles = [row for row in rows if row not in mixtures]
    wants = {(row, sigma): tasks.error(lab, row, sigma) for row in [floor, *singles] for sigma in lab.grid}
    kinds = dict.fromkeys((row.augment == "moved", sigma) for row in mixtures for sigma in lab.grid)
    weights = {(moved, sigma): tasks.fitted(lab, sigma, moved) for moved, sigma in kinds}
    products = {(moved, sigma): tasks.products(lab, sigma, moved) for moved, sigma in kinds}

    def show(results: Results) -> Exhibit:
        def found(row: Method, target: str) -> dict[str, dict[float, Tensor]]:
            return {row.label: {sigma: results[wants[row, sigma]][target] for sigma in lab.grid}}

        errors: dict[str, dict[str, dict[float, Tensor]]] = {"mse": found(floor, "mse"), "mse to the reference": {}}
        for target, by_label in errors.items():
            by_label.update(_mixed(results, mixtures, weights, products, target))
            for row in singles:
                by_label.update(found(row, target))
        ours = errors["mse"]
        cells = [
            (f"{sigma:.3g}", *(plus_minus(1e3 * e[sigma].mean().item(), 1e3 * standard_error(e[sigma]), 2)
                               for e in ours.values()))
            for sigma in lab.grid
        ]
        records = [
            {"method": label, "to": TARGETS[to], "sigma": sigma, "mse": e.mean().item(), "mse_se": standard_error(e),
             "points": len(e)}
            for to, by_label in errors.items()
            for label, by_level in by_label.items() for sigma, e in by_level.items()
        ]
        return Exhibit(
            name="fig-multiscale",
            title="Beyond the paper: multi-scale collections",
            caption="Mean squared error to the networks at noisy held-out images: in the figure divided by the "
            "distance of the networks from each other, in the table ×10³, to DDPM++, ± standard error. Multi-scale "
            "collections have squares of several sizes, the optimal denoiser and the Wiener filter, weighed in closed "
            "form against DDPM++ or clean images; beside them that one of their groups which alone was nearest to "
            "DDPM++ where they were fitted.",
            headers=("σ", *ours),
            rows=cells,
            records=records,
            figure=_figure(lab.grid, errors, ours[floor.label]),
            notes=(f"{tasks.judged(lab)}, none of those that anything was fitted on.",),
        )

    return Experiment([*wants.values(), *weights.values(), *products.values()], show)


def _figure(
    grid: Sequence[float], errors: Mapping[str, Mapping[str, Mapping[float, Tensor]]], floor: Mapping[float, Tensor]
) -> Figure:
    """Errors to each network, divided by the distance of the networks from each other."""
    least = {sigma: e.mean().item() for sigma, e in floor.items()}
    with drawing(9, 5) as figure:
        panels = figure.subplots(1, 2, sharey=True)
        for panel, (target, name) in zip(panels, TARGETS.items()):
            panel.axhline(1, color="0.4", linewidth=1)
            for index, label in enumerate(errors["mse to the reference"]):
                ratios = {sigma: e.mean().item() / least[sigma] for sigma, e in errors[target][label].items()}
                panel.plot(list(ratios), list(ratios.values()), label=label, **line(index))
            name_levels(panel, grid)
            panel.set(yscale="log", ylim=(0.5, 200), xlabel="σ", title=f"to {name}")
        panels[0].set_ylabel("error / distance between the networks")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _mixed(
    results: Results, mixtures: Sequence[Method],
    weights: Mapping[tuple[bool, float], Task], products: Mapping[tuple[bool, float], Task], target: str,
) -> dict[str, dict[float, Tensor]]:
    """{label: {σ: error of each noisy image}} of the mixtures, and of the group that was best alone in their fit."""
    found: dict[str, dict[float, Tensor]] = {}
    for (moved, sigma), task in weights.items():
        fit, tables = results[task], results[products[moved, sigma]]["products"]
        network, reference = tables.shape[1] - 2, tables.shape[1] - 1
        kept = [*range(network), network if target == "mse" else reference]
        tables = tables[:, kept][:, :, kept].numpy()
        alone = torch.zeros(network)
        alone[fit["alone"].argmin()] = 1
        fits = [(row.label, fit[str(row.target)]) for row in mixtures if (row.augment == "moved") == moved]
        for label, shares in [*fits, (f"{BEST}, with copies" if moved else BEST, alone)]:
            found.setdefault(label, {})[sigma] = torch.from_numpy(errors_of(tables, shares.numpy()))
    return found
