"""Lukoianov's threshold: τ = 0.02 against 0.05 (App. C.1)."""

from __future__ import annotations

from dataclasses import replace

from fpmc.report.exhibit import Exhibit
from fpmc.study import tasks
from fpmc.study.graph import Results
from fpmc.study.lab import Lab
from fpmc.study.methods import REFERENCE, lukoianov
from fpmc.study.paper import Experiment, published
from fpmc.study.paper.table_results import FIGURES, against, cells, difference, notes, record, seeds_note

TAUS = (0.02, 0.05)
PAPER = ("ffhq", "afhq")


def experiment(lab: Lab) -> Experiment:
    """Samples with both thresholds."""
    reference = tasks.samples(lab, replace(REFERENCE, expensive=True))
    batches = {lukoianov(tau): tasks.samples(lab, lukoianov(tau)) for tau in TAUS}

    def show(results: Results) -> Exhibit:
        judged = against(results, batches, reference)
        theirs = [f"{what}, paper, {published.TITLES[name]}" for name in PAPER for what in ("r²", "MSE×10²")]
        rows = [
            (
                method.label, *cells(one),
                *(cell for name in PAPER for cell in published.tau(name, method.option("tau"))), str(len(one)),
            )
            for method, one in judged.items()
        ]
        return Exhibit(
            name="table-tau",
            title="Table 3: Lukoianov's threshold",
            caption="The same comparison with NCSN++ samples, for the two thresholds of the paper's appendix.",
            headers=("Denoiser", *FIGURES, *theirs, "seeds"),
            rows=rows,
            records=[record(method, one) for method, one in judged.items()],
            grey=(5, 6, 7, 8),
            notes=(
                seeds_note(lab),
                *(notes(lab)[:1] if lab.dataset is None else ()),
                "{} minus {}, seed by seed: r² {}, median {}, pooled {}, MSE×10² {}.".format(
                    *TAUS, *cells(difference(*judged.values()))
                ),
            ),
        )

    return Experiment([task for each in [reference, *batches.values()] for task in each], show)
