"""Figure 1: response, Wiener row, Lukoianov's q and fine-tuned q of one output value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fpmc.core.gaussian import fit_gaussian
from fpmc.core.sources import Source
from fpmc.methods.wiener import lukoianov_masks, wiener_matrix
from fpmc.report.exhibit import Exhibit
from fpmc.report.figure import drawing
from fpmc.study import predict, tasks
from fpmc.study.build import Inputs, unpack
from fpmc.study.graph import Made, Results, Task
from fpmc.study.lab import Lab
from fpmc.study.methods import lukoianov
from fpmc.study.paper import Experiment
from fpmc.study.paper.fig_finetuning import how

SIGMA = 3.26
PANELS = {
    "response": "response weight r", "wiener": "Wiener filter row", "binary": "Lukoianov q", "soft": "fine-tuned q",
}


def experiment(lab: Lab) -> Experiment:
    """The four vectors, from the fine-tuned Q of Lukoianov's method at one noise level."""
    sigma, method = lab.level(SIGMA), replace(lukoianov(lab.policy.tau), soft="q")
    tuned = tasks.soft(lab, method, sigma)
    vectors = Task(
        f"vectors/σ {sigma:.4g}", gather, {"sigma": sigma, "tau": method.option("tau")}, inputs=(tuned,),
        stamps=lab.stamped("data"), predict=lambda: predict.calls(lab, method, [], 0),
    )

    def show(results: Results) -> Exhibit:
        found = {name: results[vectors][name] for name in PANELS}
        with drawing(8.5, 2.6) as figure:
            for place, (name, title) in enumerate(PANELS.items()):
                axes = figure.add_subplot(1, 4, place + 1)
                picture = found[name].movedim(0, -1).squeeze(-1).numpy()
                axes.imshow(picture / max(picture.max(), 1e-30), cmap="gray", vmin=0, vmax=1)
                axes.set(title=title, xticks=[], yticks=[])
                axes.grid(False)
        rows = [
            (title, f"{int((found[name] > 0).sum()):,}", f"{_participation(found[name]):.1f}")
            for name, title in PANELS.items()
        ]
        return Exhibit(
            name="fig-q",
            title="Figure 1: q of one output value",
            caption=f"Lukoianov's estimator for the value in the middle, σ = {sigma:.3g}, each picture scaled to its "
            "own maximum: what it answers for, the row of the Wiener filter, its threshold, and q after fine-tuning. "
            "The table counts entries above 0, and how many equal entries would weigh as much, (Σ q)² / Σ q².",
            headers=("Vector", "entries above 0", "effective entries"),
            rows=rows,
            records=[
                {"vector": name, "positive": int((found[name] > 0).sum()), "effective": _participation(found[name])}
                for name in PANELS
            ],
            figure=figure,
            notes=(f"Fine-tuned q: {how(lab.scale.tuning)}.",),
        )

    return Experiment([vectors], show)


def gather(lab: Lab, inputs: Inputs, scratch: Path, *, sigma: float, tau: float) -> Made:
    """The vectors of the middle pixel's first channel, (C, H, W) each."""
    shape = lab.images.shape
    middle = (shape[1] // 2) * shape[2] + shape[2] // 2
    gaussian = fit_gaussian(Source(lab.images))
    (soft,) = (unpack(result, lab) for result in inputs.values())
    response = torch.zeros(lab.dimension)
    response[middle] = 1
    return Made(
        {
            "response": response.view(shape),
            "wiener": wiener_matrix(gaussian, sigma)[middle].clamp(min=0).float().view(shape),
            "binary": lukoianov_masks(gaussian, sigma, tau)[middle].float(),
            "soft": soft.groups[0].q.dense()[middle].clone(),
        },
        {"sigma": sigma},
    )


def _participation(vector: Tensor) -> float:
    return (vector.double().sum() ** 2 / vector.double().square().sum()).item()
