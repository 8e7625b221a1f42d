"""Table 2: samples of every denoiser against those of NCSN++ from the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fpmc.metrics import Comparison, Difference, compare, paired
from fpmc.report.exhibit import Exhibit
from fpmc.report.table import plus_minus
from fpmc.sampling import EVALUATION_FROM, TUNING_SEEDS
from fpmc.study import tasks
from fpmc.study.graph import Results, Task
from fpmc.study.lab import Lab
from fpmc.study.methods import REFERENCE, Method, table_rows
from fpmc.study.paper import Experiment, published

BASELINE = "pspc_flex"                                  # the row that all others are subtracted from
FIGURES = ("r² ↑", "median ↑", "pooled ↑", "MSE×10² ↓")


def experiment(lab: Lab) -> Experiment:
    """Samples of all rows and of the reference."""
    batches = {method: tasks.samples(lab, method) for method in table_rows(lab)}
    reference = tasks.samples(lab, REFERENCE)

    def show(results: Results) -> Exhibit:
        theirs = published.TITLES[lab.policy.like]
        judged = against(results, batches, reference)
        base = next((method for method in judged if method.name == BASELINE), None)
        rows, records = [], []
        for method, one in judged.items():
            gain = None if base is None or method == base else difference(one, judged[base])
            shown = ("–", "–") if gain is None else cells(gain)[:2]
            theirs_here = published.results(lab.policy.like, method.name)
            rows.append((method.label, *cells(one), *shown, *theirs_here, str(len(one))))
            records.append(record(method, one) | ({} if gain is None else {"minus": BASELINE, **prefixed(gain)}))
        return Exhibit(
            name="table-results",
            title="Table 2: samples against NCSN++ from the same seeds",
            caption=f"r² and MSE×10² of {lab.steps}-step Heun samples against NCSN++ samples that began as the same "
            "noise, ± standard error over images: the mean r² per image, which is the paper's, its median, and "
            "1 − Σ MSE / Σ variance; then r² minus that of PSPC-Flex seed by seed, mean and median.",
            headers=(
                "Denoiser", *FIGURES, "r² − Flex", "median of it", f"r², paper, {theirs}", f"MSE×10², paper, {theirs}",
                "seeds",
            ),
            rows=rows,
            records=records,
            grey=(7, 8),
            notes=(seeds_note(lab), *notes(lab)),
        )

    return Experiment([task for each in [reference, *batches.values()] for task in each], show)


def against(
    results: Results, batches: Mapping[Method, Sequence[Task]], reference: Sequence[Task]
) -> dict[Method, Comparison]:
    """Each method's samples against the reference's, over the seeds it has."""
    truth = tasks.drawn(results, reference)
    found = {method: tasks.drawn(results, each) for method, each in batches.items()}
    return {method: compare(images, truth[: len(images)]) for method, images in found.items()}


def difference(a: Comparison, b: Comparison) -> Difference:
    """a − b, seed by seed, over the seeds that both have."""
    shared = min(len(a), len(b))
    return paired(a.first(shared), b.first(shared))


def cells(one: Comparison) -> tuple[str, str, str, str]:
    """`FIGURES`, each ± its standard error."""
    return (
        plus_minus(one.r2, one.r2_se), plus_minus(one.r2_median, one.r2_median_se),
        plus_minus(one.r2_pooled, one.r2_pooled_se), plus_minus(100 * one.mse, 100 * one.mse_se, 2),
    )


def record(method: Method, one: Comparison) -> dict[str, Any]:
    """The numbers of a row in full."""
    return {"method": method.name, **{name: value for name, value in method.options if name == "tau"}, **one.summary()}


def prefixed(gain: Difference) -> dict[str, Any]:
    """A difference beside the row's own figures."""
    return {f"gain_{name}": value for name, value in gain.summary().items()}


def seeds_note(lab: Lab) -> str:
    """Which seeds, and that nothing was chosen on them."""
    first, count = EVALUATION_FROM, lab.scale.seeds
    return (
        f"Seeds {first} to {first + count - 1}, on which nothing was chosen: whatever is tuned is tuned on seeds below "
        f"{TUNING_SEEDS.stop} and other noise."
    )


def notes(lab: Lab) -> tuple[str, ...]:
    """Where a row is not what its name would say at full size."""
    found = []
    if lab.dataset is None:
        found.append(f"{lab.images.name} is none of the paper's data sets, whose values are there for the order.")
    if lab.scale.name == "quick":
        found.append("A quick look: few seeds and noisy images; no claim rests on it.")
    if lab.scale.expensive_seeds < lab.scale.seeds:
        found.append(f"ELS and Lukoianov have the first {lab.scale.expensive_seeds} of the {lab.scale.seeds} seeds.")
    if not lab.scale.retune:
        found.append("Soft Q and R were learned once, on the data alone, and used as they are with augmented sources.")
    if lab.scale.tuning.floor_q == 0:
        found.append("Soft Q and R keep the support of the binary masks: zeros stay 0.")
    return tuple(found)
