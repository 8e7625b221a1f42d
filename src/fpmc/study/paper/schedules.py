"""Schedules s(t), τ(t) found against our network, beside the paper's (App. C.1)."""

from __future__ import annotations

from fpmc.methods.schedules import resolve
from fpmc.methods.table1 import nearest
from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import drawing, line, name_levels
from fpmc.study import tasks
from fpmc.study.build import best_value
from fpmc.study.graph import Results
from fpmc.study.lab import Lab
from fpmc.study.methods import ELS, LS, PSPC_FLEX, PSPC_SQUARE
from fpmc.study.paper import Experiment

METHODS = {method.preset: method for method in (PSPC_SQUARE, LS, ELS, PSPC_FLEX)}


def experiment(lab: Lab) -> Experiment:
    """Every candidate of every method at every level of the grid."""
    methods = [METHODS[name] for name in lab.scale.calibrated if name != "els" or not lab.policy.large]
    wants = {
        (method, sigma): tasks.scores(lab, method, sigma)
        for method in methods for sigma in lab.grid
    }

    def show(results: Results) -> Exhibit:
        best = {key: best_value(results[task]) for key, task in wants.items()}
        paper = {method: resolve(lab.dataset, method.preset, lab.images.shape) for method in methods}
        theirs = {(m, sigma): paper[m][nearest(paper[m], sigma)] for m, sigma in wants}
        with drawing(8.5, 2.8) as figure:
            panels = figure.subplots(1, len(methods), squeeze=False)[0]
            for panel, method in zip(panels, methods):
                for index, (label, values) in enumerate((("ours", best), ("paper", theirs))):
                    column = [values[method, sigma] for sigma in lab.grid]
                    panel.plot(lab.grid, column, label=label, **line(index))
                name_levels(panel, lab.grid)
                panel.set(xlabel="σ", title=method.label)
                panel.legend()
        rows = [
            (str(step), f"{sigma:.3g}", *(f"{v[method, sigma]:g}" for method in methods for v in (best, theirs)))
            for step, sigma in enumerate(lab.grid)
        ]
        scaled = lab.dataset is None and lab.side not in (32, 64)
        return Exhibit(
            name="schedules",
            title="Schedules: patch sizes and thresholds by noise level",
            caption="The patch size s(t) or threshold τ(t) with the least error to DDPM++ at noisy held-out images, "
            "and the paper's.",
            headers=("Step", "σ", *(h for m in methods for h in (m.label, f"{m.label}, paper"))),
            rows=rows,
            records=[
                {"method": m.name, "sigma": sigma, "ours": best[m, sigma], "paper": theirs[m, sigma]}
                for m, sigma in wants
            ],
            grey=tuple(range(3, 3 + 2 * len(methods), 2)),
            figure=figure,
            notes=(
                *(("The paper's patch sizes are those of CIFAR-10, scaled to this resolution.",) if scaled else ()),
                f"{lab.scale.calibration} noisy images per level.",
            ),
        )

    return Experiment(list(wants.values()), show)
