"""Table 1: every method as (Q, R, V), how many of its estimators are distinct, and what a call costs."""

from __future__ import annotations

from fpmc.report.exhibit import Exhibit
from fpmc.study import tasks
from fpmc.study.graph import Results
from fpmc.study.lab import Lab
from fpmc.study.methods import table_rows
from fpmc.study.paper import Experiment

SIGMA = 1.09
WORDS = {
    "optimal": ("all ones", "all ones", "data"),
    "wiener": ("all ones", "all ones", "N(μ, Σ)"),
    "ls": ("squares cut at the border", "pixel", "data"),
    "els": ("squares cut at the border", "pixel", "translated data"),
    "pspc_square": ("squares inside", "= Q", "data"),
    "pspc_flex": ("share τ of sensitivity maps", "= Q", "data"),
    "lukoianov": ("thresholded Wiener rows", "one-hot", "data"),
    "soft": ("fine-tuned", "fine-tuned", "data"),
    "soft-xflip": ("fine-tuned", "fine-tuned", "data ∪ flipped"),
    "soft-synthetic": ("fine-tuned", "fine-tuned", "data ∪ synthetic"),
    "multiscale": ("squares of several sizes, all ones", "fitted", "data, N(μ, Σ)"),
    "multiscale-clean": ("squares of several sizes, all ones", "fitted", "data, N(μ, Σ)"),
}


def experiment(lab: Lab) -> Experiment:
    """A plan of every method at one noise level in the middle."""
    sigma = lab.level(SIGMA)
    plans = {method: tasks.plan(lab, method, sigma) for method in table_rows(lab) if method.name in WORDS}

    def show(results: Results) -> Exhibit:
        rows, records = [], []
        for method, task in plans.items():
            found, words = results[task].info, WORDS[method.name]
            rows.append((
                method.label, *words, f"{found['estimators']:,}", f"{found['distinct']:,}", f"{found['images']:,}",
                ", ".join(found["kernels"]), f"{found['work'] / 1e9:.3g}",
            ))
            records.append({"method": method.name, **dict(zip("QRV", words)), **found, "sigma": sigma})
        return Exhibit(
            name="table1",
            title="Table 1: the methods as (Q, R, V)",
            caption="Every method is a choice of query precisions, response weights and sources. Here at "
            f"σ = {sigma:.3g}: L estimators, how many of them are distinct, images in the source, the kernel of the "
            "plan, and billions of multiply-adds per noisy image and call.",
            headers=("Denoiser", "Q", "R", "V", "L", "distinct", "images", "kernel", "G mult-adds"),
            rows=rows,
            records=records,
        )

    return Experiment(list(plans.values()), show)
