"""Pictures, numbers and the explorer's page of "Who made this pixel?": `python docs/make_story.py`.

Needs CIFAR-10 (`fpmc data get cifar10`) and some ten minutes of two cores. Writes `figures/story-*.png`,
`figures/explorer-cifar10.html` and `results/story*.csv`; then `python docs/quotes.py` renews the page.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch
from PIL import Image, ImageOps
from torch import Tensor

import fpmc
from fpmc.explore.export import export_page
from fpmc.explore.session import Session
from fpmc.explore.shares import CLASSES, in_effect
from fpmc.explore.sheet import heat
from fpmc.files import atomic
from fpmc.metrics import Nearest, nearest
from fpmc.report.grid import PAPER, image_grid, stack
from fpmc.sampling import Samples, levels_of

DOCS = Path(__file__).parent
SEED, PIXEL = 12, (5, 24)                               # picked: see the page
SEEDS = range(32)                                       # those that they were picked from
TURN = 6                                                # the level at which a training image can be seen, σ = 8.4
SHOWN = (3, 5, TURN, 7, 8, 9, 11, 13, 17)               # levels in the picture of the path
CLICKED = (TURN, 8, 10, 12, 15)                         # levels in the picture of the pixel
NAMED = 64                                              # images whose shares are looked through for one of them
ROUNDS = 6                                              # images left out, one after the other
VIEWS = (TURN, 8, 10, 12, 15)                           # levels of the exported page
MOST = 5_000_000                                        # bytes of it

images = fpmc.load_images("cifar10")
flex = fpmc.presets.pspc_flex(images, maps="wiener")    # no network has a part in this
optimal = fpmc.presets.optimal(images)


def main() -> None:
    every = fpmc.sample(flex, seeds=SEEDS, trajectory=True)
    copies = nearest(fpmc.sample(optimal, seeds=SEEDS).images, images)
    along(every, int(copies.index[SEED]))
    typical(every, copies)
    knocked_out()
    pixel_picture(every)
    session = Session([flex, optimal], images, names=["PSPC-Flex", "Optimal"])
    export_page(session, DOCS / "figures" / "explorer-cifar10.html", seeds=[SEED], levels=VIEWS, most=MOST, say=print)


def state(out: Samples, level: int, seed: int = SEED) -> Tensor:  # (1, C, H, W)
    assert out.trajectory is not None
    return out.trajectory[level][seed : seed + 1].float()


def along(every: Samples, copied: int) -> None:
    """Shares along the path of the seed, of the whole image and of the pixel, beside those of all seeds."""
    rows = []
    for level, sigma in enumerate(every.sigmas[:-1]):
        found = flex.attribute(every.trajectory[level].float(), sigma, 1)
        one = flex.attribute(state(every, level), sigma, NAMED)
        pixel = flex.attribute(state(every, level), sigma, 1, pixel=PIXEL)
        of_copied = one.weights[0, one.ids[0] == copied].tolist()
        effective = found.effective.tolist()
        rows.append([
            f"{sigma:.3g}", in_effect(found.effective[SEED].item()), named(found.ids[SEED, 0]),
            percent(found.weights[SEED, 0]), percent(of_copied[0]) if of_copied else "–",
            in_effect(pixel.effective[0].item()), named(pixel.ids[0, 0]), percent(pixel.weights[0, 0]),
            *(in_effect(of(effective)) for of in (min, median, max)),
        ])
        print(*rows[-1], sep=" · ", flush=True)
    write("story.csv", [
        "σ", "images in effect", "first", "its share %", f"share of {copied} %", "of the pixel", "its first",
        "with share %", "least of 32 seeds", "median of 32 seeds", "most of 32 seeds",
    ], rows)


def typical(every: Samples, copies: Nearest) -> None:
    """How the seed compares with the others, and what each looks like at the turning point."""
    sigma = every.sigmas[TURN]
    z = every.trajectory[TURN].float()
    found = flex.attribute(z, sigma, 1)
    shares = found.weights[:, 0]
    write("story-seeds.csv", ["of 32 seeds", "count"], [
        ["the optimal denoiser's sample is a training image", int((copies.distance < 1 / 127.5).sum())],
        ["that image has the largest share at the turn", int((found.ids[:, 0] == copies.index).sum())],
        ["one image has half of the answer at the turn", int((shares > 0.5).sum())],
        ["median of the largest share at the turn, %", percent(median(shares.tolist()))],
        ["largest share of the picked seed at the turn, %", percent(shares[SEED])],
    ])
    answers, wide = flex(z, sigma), 8
    save("story-seeds.png", aligned([
        image_grid({f"{first} to {first + wide - 1}": answers[first : first + wide]},
                   columns=[f"{100 * share:.0f} %" for share in shares[first : first + wide]], corner="seeds")
        for first in range(0, len(z), wide)
    ]))


def knocked_out() -> None:
    """The seed again, each time without the image that the optimal denoiser gave back as well."""
    samples: dict[str, list[Tensor]] = {"Optimal": [], "PSPC-Flex": []}
    paths: dict[str, Tensor] = {}
    gone: list[int] = []
    rows = []
    for count in range(ROUNDS + 1):
        row = [str(count)]
        for name, whole in (("Optimal", optimal), ("PSPC-Flex", flex)):
            denoiser = whole.without(gone) if gone else whole
            out = fpmc.sample(denoiser, seeds=[SEED], trajectory=True)
            samples[name].append(out.images)
            moved = (out.images - samples[name][0]).square().mean().sqrt().item()
            row.append(f"{moved:.3f}")
            if count < 2:
                label = f"{name}, without {gone[0]}" if gone else name
                paths[label] = torch.cat([denoiser(state(out, k, 0), out.sigmas[k]) for k in SHOWN])
            if whole is optimal:
                found = denoiser.attribute(state(out, -2, 0), out.sigmas[-2], 1)
        distance = (images.scaled(found.ids[0]) - samples["Optimal"][-1]).square().mean().sqrt().item()
        row += [named(found.ids[0, 0]), percent(found.weights[0, 0]), f"{distance:.4f}"]
        gone.append(int(found.ids[0, 0]))
        rows.append(row)
        print(*row, sep=" · ", flush=True)
    headers = [
        "left out", "Optimal moved by", "PSPC-Flex moved by", "Optimal gives back", "its share %", "at a distance of"
    ]
    write("story-knock-out.csv", headers, rows)
    order = sorted(paths, key=lambda label: label.startswith("PSPC"))
    sigmas = [f"{sigma:.3g}" for sigma in levels_of(18)]
    picture = image_grid({label: paths[label] for label in order}, columns=[sigmas[k] for k in SHOWN], corner="σ")
    save("story-path.png", picture)
    save("story-knock-out.png", image_grid(
        {name: torch.cat(each) for name, each in samples.items()}, columns=[str(k) for k in range(ROUNDS + 1)],
        corner="left out",
    ))


def pixel_picture(every: Samples) -> None:
    """The answer with the pixel in a cross, the images that made it, and where each of them speaks."""
    pages = []
    for level in CLICKED:
        sigma, z = every.sigmas[level], state(every, level)
        found = flex.attribute(z, sigma, 6, pixel=PIXEL)
        columns = ["answer", *(f"{100 * share:.2g} %" for share in found.weights[0])]
        where = torch.stack([torch.ones(3, 32, 32), *(heat(each) for each in found.maps[0])])
        shown = torch.cat([crossed(flex(z, sigma)), images.scaled(found.ids[0].tolist())])
        pages.append(image_grid({f"σ = {sigma:.3g}": shown, "": where}, columns=columns, cell=96))
    save("story-pixel.png", aligned(pages))


def aligned(pages: Sequence[Image.Image]) -> Image.Image:
    """Grids below each other, at the right edge, so that their columns are as well."""
    width = max(page.width for page in pages)
    return stack([ImageOps.expand(page, (width - page.width, 0, 0, 0), PAPER) for page in pages])


def crossed(image: Tensor) -> Tensor:  # (1, 3, H, W)
    shown, (y, x) = image.clone(), PIXEL
    for step in (2, 3):
        for at in ((y - step, x), (y + step, x), (y, x - step), (y, x + step)):
            shown[..., at[0], at[1]] = 1
    return shown


def named(image: Tensor | int) -> str:
    return f"{int(image)} {CLASSES['cifar10'][int(images.labels[int(image)])]}"


def percent(share: Tensor | float) -> str:
    return f"{100 * float(share):.3g}"


def write(name: str, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with atomic(DOCS / "results" / name) as part, open(part, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([headers, *rows])


def save(name: str, page: Image.Image) -> None:
    with atomic(DOCS / "figures" / name) as part:
        page.quantize(256).save(part, format="png", optimize=True)


if __name__ == "__main__":
    main()
