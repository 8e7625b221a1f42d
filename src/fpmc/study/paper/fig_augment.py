"""Figure 3: how augmented sources change the error of PSPC-Flex."""

from __future__ import annotations

from dataclasses import replace

from fpmc.metrics import standard_error
from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import drawing, line, name_levels
from fpmc.report.table import plus_minus
from fpmc.study import tasks
from fpmc.study.graph import Results
from fpmc.study.lab import Lab
from fpmc.study.methods import PSPC_FLEX
from fpmc.study.paper import Experiment

TITLES = {
    "xflip": "x-flip", "yflip": "y-flip", "translate": "translation", "rotate": "rotation", "scale": "scaling",
    "synthetic": "synthetic",
}


def experiment(lab: Lab) -> Experiment:
    """Errors with and without every augmentation, amount and noise level."""
    sigmas = list(dict.fromkeys(lab.level(sigma) for sigma in lab.scale.augmented))
    base = {sigma: tasks.error(lab, PSPC_FLEX, sigma) for sigma in sigmas}
    wants = {
        (kind, amount, sigma): tasks.error(lab, replace(PSPC_FLEX, augment=kind, amount=amount), sigma)
        for kind in lab.scale.kinds for amount in _amounts(lab, kind) for sigma in sigmas
    }

    def show(results: Results) -> Exhibit:
        plain = {sigma: results[task]["mse"] for sigma, task in base.items()}
        change = {
            (kind, amount, sigma): 100 * (results[task]["mse"] - plain[sigma]) / plain[sigma].mean()
            for (kind, amount, sigma), task in wants.items()
        }
        with drawing(8.5, 3.4) as figure:
            panels = figure.subplots(1, len(sigmas), squeeze=False)[0]
            for panel, sigma in zip(panels, sorted(sigmas)):
                for index, kind in enumerate(lab.scale.kinds):
                    amounts = _amounts(lab, kind)
                    mean = [change[kind, amount, sigma].mean().item() for amount in amounts]
                    error = [standard_error(change[kind, amount, sigma]) for amount in amounts]
                    percent = [100 * amount for amount in amounts]
                    panel.errorbar(percent, mean, error, capsize=2, label=TITLES[kind], **line(index))
                panel.axhline(0, color="0.4", linewidth=0.8)
                name_levels(panel, [100 * amount for amount in lab.scale.amounts])
                panel.set(xlabel="added images, % of the data", title=f"σ = {sigma:.3g}")
            panels[0].set_ylabel("change of MSE, %")
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
        rows, records = [], []
        for kind in lab.scale.kinds:
            for amount in _amounts(lab, kind):
                values = [change[kind, amount, sigma] for sigma in sorted(sigmas)]
                rows.append((
                    TITLES[kind], f"{100 * amount:.3g} %",
                    *(plus_minus(v.mean().item(), standard_error(v), 1) for v in values),
                ))
                records += [
                    {"kind": kind, "amount": amount, "sigma": sigma, "change_percent": v.mean().item(),
                     "change_percent_se": standard_error(v)}
                    for sigma, v in zip(sorted(sigmas), values)
                ]
        return Exhibit(
            name="fig-augment",
            title="Figure 3: augmented sources",
            caption="Change of PSPC-Flex's mean squared error to DDPM++ when images are added to its source, in "
            "percent of the error without them, ± standard error of the paired difference. Below 0 is better.",
            headers=("Added", "amount", *(f"σ = {sigma:.3g}" for sigma in sorted(sigmas))),
            rows=rows,
            records=records,
            figure=figure,
            notes=(f"{lab.scale.points} noisy images per level, the same for all.",),
        )

    return Experiment([*base.values(), *wants.values()], show)


def _amounts(lab: Lab, kind: str) -> list[float]:
    """There is one reflection of an image; where fewer synthetic images are wanted, all amounts of them are smaller."""
    amounts, once = lab.scale.amounts, [amount for amount in lab.scale.amounts if amount <= 1]
    if kind in ("xflip", "yflip"):
        return once
    if kind == "synthetic" and lab.scale.synthetic is not None:
        return [amount * lab.added / once[-1] for amount in once]
    return list(amounts)
