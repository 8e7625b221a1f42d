"""Samples with schedules found against our network (App. C.1) against those with the paper's, seed by seed."""

from __future__ import annotations

from dataclasses import replace

from fpmc.report.exhibit import Exhibit
from fpmc.study import tasks
from fpmc.study.graph import Results
from fpmc.study.lab import Lab
from fpmc.study.methods import REFERENCE, table_rows
from fpmc.study.paper import Experiment
from fpmc.study.paper.table_results import FIGURES, against, cells, difference, record, seeds_note


def experiment(lab: Lab) -> Experiment:
    """Samples of every method that has a schedule, with both."""
    rows = [row for row in table_rows(lab) if row.preset in lab.scale.calibrated and not row.soft]
    ours = {row: replace(row, schedule="calibrated") for row in rows}
    batches = {method: tasks.samples(lab, method) for method in (*rows, *ours.values())}
    reference = tasks.samples(lab, REFERENCE)

    def show(results: Results) -> Exhibit:
        judged = against(results, batches, reference)
        return Exhibit(
            name="table-schedules",
            title="Calibrated schedules",
            caption="r² and MSE×10² against NCSN++ as in Table 2, with the paper's schedules and with those that are "
            "closest to DDPM++ here; and the difference, seed by seed.",
            headers=("Denoiser", "schedule", *FIGURES, "seeds"),
            rows=[
                (row.label, name, *cells(one), str(len(one)))
                for row, new in ours.items()
                for name, one in (
                    ("paper's", judged[row]), ("calibrated", judged[new]),
                    ("difference", difference(judged[new], judged[row])),
                )
            ],
            notes=(seeds_note(lab),),
            records=[
                {"schedule": method.schedule or "paper", **record(method, one)} for method, one in judged.items()
            ],
        )

    return Experiment([task for each in [reference, *batches.values()] for task in each], show)
