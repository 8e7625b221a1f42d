"""Figure 2: error to the network by noise level, binary against soft Q (top) and soft R (bottom)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.figure import Figure
from torch import Tensor

from fpmc.learn.finetune import Tuning
from fpmc.metrics import standard_error
from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import BLACK, BLUE, GREEN, ORANGE, drawing, name_levels
from fpmc.report.table import plus_minus
from fpmc.study import tasks
from fpmc.study.graph import Results
from fpmc.study.lab import Lab
from fpmc.study.methods import PSPC_FLEX, PSPC_SQUARE, Method, lukoianov
from fpmc.study.paper import Experiment

LOOKS = {
    "": {"color": BLACK, "marker": "o", "linestyle": "-", "label": "binary"},
    "q": {"color": BLUE, "marker": "s", "linestyle": "--", "label": "soft Q"},
    "r": {"color": ORANGE, "marker": "^", "linestyle": "-.", "label": "soft R"},
    "qr": {"color": GREEN, "marker": "D", "linestyle": ":", "label": "soft Q and R"},
}

SOFT = ("q", "r", "qr")


def experiment(lab: Lab) -> Experiment:
    """Errors of three methods, each as it is, with Q learned, with R learned, and with both."""
    wanted = lab.grid if lab.scale.tuned is None else lab.scale.tuned
    sigmas = list(dict.fromkeys(lab.level(sigma) for sigma in wanted))
    every = (PSPC_SQUARE, PSPC_FLEX, lukoianov(lab.policy.tau))
    methods = [method for method in every if method.name in lab.only] or every
    wants = {
        (method, soft, sigma): tasks.error(lab, replace(method, soft=tasks.learned(lab, method, soft)), sigma)
        for method in methods for soft in LOOKS for sigma in sigmas
    }

    def show(results: Results) -> Exhibit:
        errors = {key: results[task]["mse"] for key, task in wants.items()}
        rows, records = [], []
        for method in methods:
            for sigma in sigmas:
                found = {soft: errors[method, soft, sigma] for soft in LOOKS}
                changes = {soft: 100 * (e - found[""]) / found[""].mean() for soft, e in found.items()}
                rows.append((
                    method.label, f"{sigma:.3g}",
                    *(_error(e.mean().item(), standard_error(e)) for e in found.values()),
                    *(plus_minus(changes[soft].mean().item(), standard_error(changes[soft]), 1) for soft in SOFT),
                ))
                records += [
                    {"method": method.name, "soft": soft or "no", "sigma": sigma, "mse": e.mean().item(),
                     "mse_se": standard_error(e), "change_percent": changes[soft].mean().item(),
                     "change_percent_se": standard_error(changes[soft]), "points": len(e)}
                    for soft, e in found.items()
                ]
        return Exhibit(
            name="fig-finetuning",
            title="Figure 2: soft Q and soft R",
            caption="Mean squared error to DDPM++ at noisy held-out images: binary Q and R (black) against soft Q "
            "(blue, top), soft R (orange, bottom) and both (green), learned separately at each noise level; ± standard "
            "error, of changes that of the paired difference.",
            headers=("Denoiser", "σ", "binary", "soft Q", "soft R", "both", "by Q, %", "by R, %", "by both, %"),
            rows=rows,
            records=records,
            figure=_figure(methods, sigmas, errors),
            notes=(
                f"{tasks.judged(lab)}, none of those that anything was chosen on; {how(lab.scale.tuning)}.",
                *(["Zeros of r stay 0: where each estimator answers for one pixel (Lukoianov), r cancels and soft R is "
                   "the binary R."] if tasks.learned(lab, methods[-1], "r") == "" else []),
            ),
        )

    return Experiment(list(wants.values()), show)


def _error(mean: float, se: float) -> str:
    """Errors go from 1e-6 to 1e-1: with as many digits as show two of the standard error."""
    return plus_minus(mean, se, max(5, 1 - math.floor(math.log10(se))) if se > 0 else 5)


def how(tuning: Tuning) -> str:
    """What was done, in short."""
    if tuning.recipe == "templates":
        return f"learned by templates from {tuning.pool} noisy images per level, with the whole source"
    return f"{tuning.steps} steps of {tuning.batch} images"


def _figure(
    methods: Sequence[Method], sigmas: Sequence[float], errors: Mapping[tuple[Method, str, float], Tensor]
) -> Figure:
    """A column per method; soft Q above, soft R below."""
    with drawing(8.5, 4.8) as figure:
        panels = figure.subplots(2, len(methods), sharex=True, sharey="row", squeeze=False)
        for column, method in enumerate(methods):
            for panel, soft in zip(panels[:, column], ("q", "r")):
                for which in ("", soft, "qr"):
                    mean = [errors[method, which, sigma].mean().item() for sigma in sigmas]
                    panel.plot(sigmas, mean, markersize=4, linewidth=1.4, **LOOKS[which])
                name_levels(panel, sigmas)
                panel.set_yscale("log")
                panel.legend()
            panels[0, column].set_title(method.label)
            panels[1, column].set_xlabel("σ")
        for panel in panels[:, 0]:
            panel.set_ylabel("MSE to DDPM++")
    return figure
