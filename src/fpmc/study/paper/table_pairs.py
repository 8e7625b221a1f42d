"""Table 2, row against row: differences seed by seed, which say more of an order than two standard errors do."""

from __future__ import annotations

from itertools import pairwise

from fpmc.report.exhibit import Exhibit
from fpmc.study import tasks
from fpmc.study.graph import Results
from fpmc.study.lab import Lab
from fpmc.study.methods import REFERENCE, table_rows
from fpmc.study.paper import Experiment
from fpmc.study.paper.table_results import FIGURES, against, cells, difference, seeds_note

BUILT_ON = {
    "els": "ls", "pspc_flex": "pspc_square", "soft": "pspc_flex", "soft-xflip": "soft", "soft-synthetic": "soft",
    "moved": "multiscale", "moved-clean": "multiscale-clean",
}


def experiment(lab: Lab) -> Experiment:
    """The samples of table-results."""
    batches = {method: tasks.samples(lab, method) for method in table_rows(lab)}
    reference = tasks.samples(lab, REFERENCE)

    def show(results: Results) -> Exhibit:
        judged = against(results, batches, reference)
        named = {method.name: method for method in judged}
        order = sorted(judged, key=lambda method: -judged[method].r2)
        improved = [(named[new], named[old]) for new, old in BUILT_ON.items() if new in named and old in named]
        pairs = improved + [pair for pair in pairwise(order) if not {pair, pair[::-1]} & {*improved}]
        rows, records = [], []
        for a, b in pairs:
            one = difference(judged[a], judged[b])
            rows.append((a.label, b.label, *cells(one), str(len(one))))
            records.append({"method": a.name, "minus": b.name, **one.summary()})
        return Exhibit(
            name="table-pairs",
            title="Table 2, row against row",
            caption="What r² and MSE×10² gain by each improvement, then each row against the next one by r²: "
            "differences seed by seed, ± their standard error; the median is that of the differences.",
            headers=("Denoiser", "minus", *FIGURES, "seeds"),
            rows=rows,
            records=records,
            notes=(seeds_note(lab),),
        )

    return Experiment([task for each in [reference, *batches.values()] for task in each], show)
