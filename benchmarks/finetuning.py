"""Both recipes of fine-tuning on a problem where the paper's can be run to its end: error against processor seconds.

    python benchmarks/finetuning.py [--outdir runs/finetuning] [--methods pspc_square pspc_flex lukoianov]
                                    [--sigmas 0.14 0.585 1.92] [--steps 2000] [--polish 20] [--train 200000]
                                    [--threads 1]

Fashion-MNIST averaged to 14×14, 2,000 images as source, one noise level at a time. The network is a small one that is
trained first and kept in --outdir. Errors are those to the network on 500 noisy test images that neither recipe has
seen; seconds are processor time of everything a recipe does, its own validation too, judging left out. With --polish,
some steps of the paper's recipe, at a lower rate, follow the templates. A file for each method and noise level goes to
--outdir, and a table and a plot of all; what is there is not computed again, whatever the other settings were, so that
two processes may share the work once the network is there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

import fpmc
from fpmc.images import ImageSet
from fpmc.learn.calibrate import forward_points
from fpmc.learn.finetune import TEMPLATES, Level, Tuning, train_level
from fpmc.networks import save_network
from fpmc.networks.precond import EDMPrecond
from fpmc.networks.training import Recipe, Training, train
from fpmc.study.policy import halves

SQUARES, SHARES = {0.14: 3, 0.585: 3, 1.92: 5}, {0.14: 0.5, 0.585: 0.6, 1.92: 0.7}     # patch sizes, τ
METHODS = {
    "pspc_square": lambda images: fpmc.presets.pspc_square(images, schedule=SQUARES),
    "pspc_flex": lambda images: fpmc.presets.pspc_flex(images, maps="wiener", schedule=SHARES),
    "lukoianov": lambda images: fpmc.presets.lukoianov(images, tau=0.05),
}
JUDGED = 500                                            # noisy images


def halved(split: str) -> ImageSet:
    """Fashion-MNIST, four pixels averaged to one."""
    pixels = fpmc.load_images("fashion", split=split).pixels.float()
    return ImageSet(torch.nn.functional.avg_pool2d(pixels, 2).round().byte(), name="fashion at 14×14")


def network(images: ImageSet, seen: int, kept: Path) -> Any:
    """A small U-Net, trained on so many images or loaded."""
    if not kept.exists():
        torch.manual_seed(0)
        net = EDMPrecond(
            img_resolution=14, img_channels=1, model_channels=16, channel_mult=[1, 2], num_blocks=1, attn_resolutions=[]
        )
        training = Training(net, Recipe(images=seen, rate=2e-3, warmup=2000, schedule="cosine"))
        for step in train(training, images):
            if step.step % 50 == 0:
                print(f"network: {step.images} images, loss {step.loss:.4f}", flush=True)
        save_network(training.ema, kept)
    return fpmc.load_network(str(kept))


def curve(
    level: Level, net: Any, images: ImageSet, tuning: ImageSet, judge: Any, spent: float = 0.0
) -> Iterator[tuple[float, float]]:
    """Processor seconds so far and the error of the best so far, whenever it was validated."""
    began = time.process_time()
    yield spent, judge(level.origin)
    for record in train_level(level, net, images, tuning):
        spent += time.process_time() - began
        if record.validation is not None:
            yield spent, judge(level.result)
        began = time.process_time()
    yield spent + time.process_time() - began, judge(level.result)


def compare(
    name: str, sigma: float, net: Any, images: ImageSet, test: ImageSet, steps: int, polish: int
) -> dict[str, Any]:
    """The curves of both recipes, and of one after the other."""
    tuning, judging = halves(test)
    z = forward_points(judging, sigma, JUDGED)
    with torch.no_grad():
        target = torch.cat([net(part, sigma) for part in z.split(50)])

    def judge(collection: Any) -> float:
        return float((collection.denoise(z, sigma) - target).square().mean())

    every = max(1, min(25, steps // 4))
    paper = Tuning(steps=max(steps, 1), validate_every=every, validation=200, patience=8)
    found: dict[str, Any] = {"method": name, "sigma": sigma, "steps": steps}
    after = replace(paper, steps=max(polish, 1), rate=0.03, validate_every=max(1, min(5, polish)))
    start = reached = METHODS[name](images).at(sigma)
    spent = 0.0
    for recipe, settings, wanted in (("templates", TEMPLATES, 1), ("polished", after, polish), ("paper", paper, steps)):
        if wanted == 0:
            continue
        goes_on = recipe == "polished"                  # from where templates ended
        level = Level.start(reached if goes_on else start, sigma, settings)
        found[recipe] = []
        for seconds, error in curve(level, net, images, tuning, judge, spent if goes_on else 0.0):
            found[recipe].append((seconds, error))
            print(f"{name}, σ {sigma}, {recipe}, step {level.step}: {error:.5f} after {seconds:.1f} s", flush=True)
        reached, spent = level.result, found[recipe][-1][0]
        found[f"steps of {recipe}"] = level.step
    return found


def draw(found: list[dict[str, Any]]) -> Figure:
    names, sigmas = (list(dict.fromkeys(each[key] for each in found)) for key in ("method", "sigma"))
    figure = Figure(figsize=(3.4 * len(sigmas), 2.6 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), len(sigmas), squeeze=False)
    for each in found:
        panel = panels[names.index(each["method"]), sigmas.index(each["sigma"])]
        for recipe, look in (("paper", "o-"), ("templates", "s-"), ("polished", "^-")):
            if recipe in each:
                panel.plot(*zip(*((max(s, 0.1), e) for s, e in each[recipe])), look, markersize=3, label=recipe)
        panel.set(xscale="log", title=f"{each['method']}, σ = {each['sigma']:g}")
        panel.set(xlabel="processor seconds", ylabel="error to the network")
        panel.legend()
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outdir", type=Path, default=Path("runs/finetuning"))
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--sigmas", nargs="+", type=float, default=list(SQUARES), choices=list(SQUARES))
    parser.add_argument("--steps", type=int, default=2000, help="of the paper's recipe; 0: templates alone")
    parser.add_argument("--polish", type=int, default=20, help="steps of the paper's recipe after templates; 0: none")
    parser.add_argument("--train", type=int, default=200_000, help="images that the network sees")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.outdir.mkdir(parents=True, exist_ok=True)
    everything = halved("train")
    net = network(everything, options.train, options.outdir / "network.safetensors")
    images = everything.subset(slice(2000))
    for sigma in options.sigmas:
        for name in options.methods:
            kept = options.outdir / f"{name}-{sigma:g}.json"
            if not kept.exists():
                case = compare(name, sigma, net, images, halved("test"), options.steps, options.polish)
                kept.write_text(json.dumps(case, indent=1))
    cases = (options.outdir / f"{name}-{sigma:g}.json" for name in METHODS for sigma in SQUARES)
    found = [json.loads(case.read_text()) for case in cases if case.exists()]
    draw(found).savefig(options.outdir / "finetuning.png", dpi=120)
    recipes = ("templates", "polished", "paper")
    heads = [head for recipe in recipes for head in (recipe, f"seconds of {recipe}")]
    rows = [["method", "σ", "binary", *heads, "steps of paper"]]
    for each in found:
        ends = [each.get(recipe, [(float("nan"),) * 2])[-1] for recipe in recipes]
        numbers = [text for seconds, error in ends for text in (f"{error:.5f}", f"{seconds:.0f}")]
        start = f"{each['templates'][0][1]:.5f}"
        rows.append([each["method"], f"{each['sigma']:g}", start, *numbers, str(each.get("steps of paper", ""))])
    text = "".join(",".join(row) + "\n" for row in rows)
    (options.outdir / "finetuning.csv").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
