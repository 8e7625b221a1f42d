"""The model card of a shipped network, from its data NAME.json alone: text NAME.md, learning curve NAME-curve.png."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fpmc.report.figure import drawing, line
from fpmc.report.table import markdown, plus_minus

TITLES = {"ddpmpp": "DDPM++", "ncsnpp": "NCSN++"}
JUDGED = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # noise levels by which two networks are told apart


def text(card: dict[str, Any], curve: bool) -> str:
    """The card as Markdown."""
    name, seen, images = card["name"], card["images_seen"], card["training_images"]
    columns = {"network": card["validation"], "Wiener": card["wiener"], "optimal": card["optimal"]}
    rows = [[f"{float(sigma):g}", *(f"{each[sigma]:.4f}" for each in columns.values())] for sigma in card["validation"]]
    sittings = "\n".join(
        f"- images {each['from']:,} to {each['to']:,}, {each['hours']:.1f} hours: {each['how']}"
        for each in card["sittings"]
    )
    drawn = f"\n![learning curve]({name}-curve.png)\n" if curve else ""
    return f"""# {name}

{TITLES[card["arch"]]} in EDM's preconditioning, {card["parameters"]:,} parameters, for images of
{"×".join(map(str, card["shape"]))}, trained on the {images:,} images of `{card["data"]}` without augmentation.

{seen:,} images seen ({seen / images:.1f} epochs) in {card["hours"]:.1f} hours of processor time, in these sittings:

{sittings}

The weights are the moving average, kept in float16. Noise levels in training are
ln σ ~ N({card["p_mean"]}, {card["p_std"]}²); EDM's are N(−1.2, 1.2²). {_limits(card)}
{card.get("note", "")}

{_agreement(card)}

Mean squared error on {card["held_out"]:,} held-out test images by noise level, beside those of the best linear denoiser
(Wiener) and of the optimal denoiser of the training images:

{markdown(["σ", *columns], rows)}
{drawn}
![samples]({name}.png)
"""


def _limits(card: dict[str, Any]) -> str:
    below = {float(s): 100 * (1 - error / card["wiener"][s]) for s, error in card["validation"].items()}
    middle = [below[sigma] for sigma in (0.5, 1.0, 2.0)]
    worse = [f"σ = {sigma:g} ({-value:.1f} %)" for sigma, value in below.items() if value < -0.05]
    above = f" It is above the linear denoiser's at {', '.join(worse)}." if worse else ""
    return (
        f"What limits it is time: the error is {min(middle):.0f} to {max(middle):.0f} % below the linear denoiser's "
        f"from σ = 0.5 to 2.{above}"
    )


def _agreement(card: dict[str, Any]) -> str:
    found = card.get("agreement")
    if found is None:
        return ""
    return (
        f"Samples of `{card['name']}` and `{found['with']}` from the same {found['seeds']} seeds, "
        f"{found.get('from', 0)} and up, agree with r² "
        f"{plus_minus(found['r2'], found['r2_se'])} (median {found['r2_median']:.3f}), "
        f"MSE {plus_minus(found['mse'], found['mse_se'], 4)}."
    )


def draw_curve(card: dict[str, Any], path: Path) -> bool:
    """Errors in percent of Wiener's by images seen, a line for each noise level; nothing with fewer than two points."""
    points = card["curve"]["points"]
    if len(points) < 2:
        return False
    seen = [point["images_seen"] / 1000 for point in points]
    with drawing(5, 3.2) as figure:
        axes = figure.subplots()
        for index, sigma in enumerate(JUDGED):
            linear = card["curve"]["wiener"][str(sigma)]
            errors = [100 * point["validation"][str(sigma)] / linear for point in points]
            axes.plot(seen, errors, label=f"σ = {sigma:g}", **line(index))
        axes.set_xlabel("images seen, thousands")
        axes.set_ylabel("error, % of the linear denoiser's")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(path, dpi=110)
    return True
