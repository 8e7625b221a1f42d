"""The tasks that experiments share: maps, fine-tuning by level, samples by seeds, errors by level, calibration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fpmc.augmentation.synthetic import draw_pixels, sampling_seeds
from fpmc.core.fpmc import FPMC
from fpmc.engine import Call
from fpmc.files import write_checked
from fpmc.learn.calibrate import BATCH, forward_points, score_level
from fpmc.learn.finetune import Level, Tuning, train_level
from fpmc.learn.fit import Moments, fit_targets, labels
from fpmc.methods.multiscale import AROUND, FINE, FINE_MASKS, HALF, MOVING, TEMPERATURES, TURNING
from fpmc.methods.schedules import resolve
from fpmc.methods.table1 import nearest
from fpmc.networks import sensitivity_maps
from fpmc.sampling import EVALUATION_FROM, levels_of
from fpmc.study import predict
from fpmc.study.build import Inputs, build, made_of, multiscale, pack
from fpmc.study.graph import Made, Result, Results, Task
from fpmc.study.lab import HELD_OUT_SEED, Lab
from fpmc.study.methods import NETWORK, Method
from fpmc.study.samples import resumed, sample_batch

DRAWN = 250                                             # synthetic images that are drawn, and kept, together
DENSE = 11                                              # patch sizes up to here are all tried


def needs(lab: Lab, method: Method, sigmas: Iterable[float]) -> tuple[Task, ...]:
    """The tasks a method depends on at these noise levels: maps, scores, soft levels, weights, synthetic images."""
    sigmas, found = list(sigmas), []
    if method.schedule:
        plain = replace(method, schedule="", soft="", augment=None)
        found += [scores(lab, plain, sigma) for sigma in sigmas]
    if method.preset == "pspc_flex" and lab.maps is None:
        found += [maps(lab, sigma) for sigma in sigmas if _threshold(lab, method, sigma) < 1]
    if method.soft:
        joint = lab.grid if lab.scale.joint is None else [lab.level(sigma) for sigma in lab.scale.joint]
        levels = sigmas if method.soft != "qr" else [sigma for sigma in sigmas if sigma in joint]
        found += [soft(lab, method, sigma) for sigma in levels]
    if method.preset == "multiscale":
        found += [fitted(lab, sigma, method.augment == "moved") for sigma in sigmas]
    if method.augment == "synthetic":
        found.append(synthetic(lab, round(method.amount * len(lab.images)), 0))
    return tuple(found)


def _threshold(lab: Lab, method: Method, sigma: float) -> float:
    if method.schedule:
        return 0.0                                      # not known before it is calibrated
    if method.option("schedule") is not None:
        return method.option("schedule")
    taus = resolve(lab.dataset, "pspc_flex", lab.images.shape)
    return taus[nearest(taus, sigma)]


def _held_out(lab: Lab) -> tuple[Task, ...]:
    return () if lab.given_held_out is not None else (synthetic(lab, lab.scale.held_out, HELD_OUT_SEED),)


# Sensitivity maps (App. A.1.2)


def maps(lab: Lab, sigma: float) -> Task:
    """The maps of the network at one noise level."""
    settings = {"sigma": sigma, "draws": lab.scale.draws}
    return Task(
        f"maps/σ {sigma:.4g}", compute_maps, settings, **made_of(lab, NETWORK, "data"),
        predict=lambda: predict.maps(lab),
    )


def compute_maps(lab: Lab, inputs: Inputs, scratch: Path, *, sigma: float, draws: int) -> Made:
    found = sensitivity_maps(lab.network, lab.images, [sigma], draws=draws, checkpoint=scratch)
    return Made({"maps": found[sigma]}, {"sigma": sigma, "error": found.errors[sigma]})


# Synthetic images (App. B)


def synthetic(lab: Lab, count: int, seed: int) -> Task:
    """Samples of the network, which keep themselves in the cache folder; the result says only which."""
    batches = [range(start, min(start + DRAWN, count)) for start in range(0, count, DRAWN)]
    return Task(
        f"synthetic images/{count:,} of seed {seed}", keep_synthetic, {"count": count, "seed": seed},
        inputs=tuple(_drawn(lab, sampling_seeds(seed, batch[0], batch[-1] + 1)) for batch in batches),
        **made_of(lab, NETWORK), predict=lambda: predict.asking(lab, 1),
    )


def keep_synthetic(lab: Lab, inputs: Inputs, scratch: Path, *, count: int, seed: int) -> Made:
    pixels, first = torch.cat([each["pixels"] for each in inputs.values()]).numpy(), sampling_seeds(seed, 0, 1)[0]
    found = lab.synthetic(count / len(lab.images), seed, lambda seeds: pixels[seeds[0] - first : seeds[-1] + 1 - first])
    return Made({}, {"checksum": found.checksum()})


def _drawn(lab: Lab, seeds: range) -> Task:
    """Some of them: processes draw them side by side."""
    return Task(
        f"synthetic samples/seeds {seeds[0]}-{seeds[-1]}", draw_synthetic,
        {"seeds": [seeds[0], seeds[-1] + 1], "steps": lab.steps}, **made_of(lab, NETWORK),
        predict=lambda: predict.synthetic(lab, len(seeds)),
    )


def draw_synthetic(lab: Lab, inputs: Inputs, scratch: Path, *, seeds: list[int], steps: int) -> Made:
    made = draw_pixels(
        lab.network, range(*seeds), steps=steps, batch=BATCH, shape=lab.images.shape, device=lab.device
    )
    return Made({"pixels": torch.from_numpy(made)}, {})


# Fine-tuning (Sections 4.1, 4.2, App. C.3)


def learned(lab: Lab, method: Method, names: str) -> str:
    """Which of Q and R have tasks of their own: Lukoianov's r cancels while zeros stay 0 (`Level.free`)."""
    cancels = method.preset == "lukoianov" and lab.scale.tuning.recipe == "paper" and lab.scale.tuning.floor_r == 0
    return names.replace("r", "") if cancels else names


def soft(lab: Lab, method: Method, sigma: float) -> Task:
    """Q, R or both of a method, learned at one noise level; on its own source if the scale says so."""
    if not lab.scale.retune:
        method = replace(method, augment=None)
    tuning = asdict(replace(lab.scale.tuning, learn=tuple(method.soft), decay_from=lab.policy.decay_from))
    binary = replace(method, soft="")
    return Task(
        f"soft/{method.slug}/σ {sigma:.4g}",
        tune,
        {"method": method.settings(), "sigma": sigma, "tuning": tuning},
        inputs=(*needs(lab, binary, [sigma]), *_held_out(lab)),
        **made_of(lab, binary, "network", "held_out"),
        predict=lambda: predict.tuning(lab, method, sigma),
    )


def tune(
    lab: Lab, inputs: Inputs, scratch: Path, *, method: dict[str, Any], sigma: float, tuning: dict[str, Any]
) -> Made:
    binary = build(lab, replace(Method.of(method), soft=""), inputs)
    assert isinstance(binary, FPMC)
    settings: dict[str, Any] = {**tuning, "learn": tuple(tuning["learn"])}
    level = Level.start(binary.at(sigma), sigma, Tuning(**settings), lab.device)
    for _ in train_level(level, lab.network, lab.images, lab.tuning, scratch / "level.pt"):
        pass
    return pack(level.result, sigma=sigma, start=level.history[0][2], best=level.best, steps=level.step)


# Multi-scale collections (beyond the paper)


def chosen(sigma: float, moved: bool) -> dict[str, Any]:
    """What decides the groups at a noise level."""
    masks = {"masks": list(FINE_MASKS)} if sigma < FINE else {}
    wider = {"moved": [MOVING, TURNING]} if moved and sigma < TURNING else {}
    return {"temperatures": list(TEMPERATURES), "around": list(AROUND), "half": HALF, **masks, **wider}


def fitted(lab: Lab, sigma: float, moved: bool) -> Task:
    """Weights of the multi-scale collection at one noise level, fitted to the network and fitted to clean images."""
    settings = {"sigma": sigma, "count": lab.scale.fit, **chosen(sigma, moved)}
    return Task(
        f"multi-scale/{_name(settings)}", fit_weights, settings,
        **made_of(lab, NETWORK, "data"),
        predict=lambda: predict.groups(lab, sigma, lab.scale.fit, moved),
    )


def _name(settings: dict[str, Any]) -> str:
    return f"{'moved/' if 'moved' in settings else ''}σ {settings['sigma']:.4g}"


def fit_weights(
    lab: Lab, inputs: Inputs, scratch: Path, *, sigma: float, count: int, moved: Sequence[float] = (), **_: object
) -> Made:
    collection = multiscale(lab, bool(moved)).at(sigma)
    network, clean = fit_targets(collection, sigma, [lab.network, "clean"], lab.images, count=count)
    info = {"sigma": sigma, "groups": labels(collection), "errors": {"network": network.error, "clean": clean.error}}
    return Made({"network": network.weights, "clean": clean.weights, "alone": network.singles}, info)


def products(lab: Lab, sigma: float, moved: bool) -> Task:
    """⟨D_g, D_h⟩ of the groups' answers at noisy held-out images, and of the networks', which stand last.

    The error of any mixture of the groups to either network follows from them.
    """
    asked = answers(lab, sigma, lab.scale.points)
    settings = {"sigma": sigma, "count": lab.scale.points, **chosen(sigma, moved)}
    return Task(
        f"groups/{_name(settings)}", multiply, settings,
        inputs=(asked,), stamps=lab.stamped("data", "held_out"),
        predict=lambda: predict.groups(lab, sigma, lab.scale.points, moved),
    )


def multiply(
    lab: Lab, inputs: Inputs, scratch: Path, *, sigma: float, count: int, moved: Sequence[float] = (), **_: object
) -> Made:
    (asked,) = inputs.values()
    collection = multiscale(lab, bool(moved)).at(sigma)

    def compare(z: torch.Tensor, network: torch.Tensor, reference: torch.Tensor) -> dict[str, torch.Tensor]:
        moments = Moments.empty("group")
        moments.add([*(answer.cpu() for answer in collection.answers(z, sigma)), network], reference)
        return {"products": moments.by_image}

    return Made(_judge(lab, asked, compare, sigma, count, scratch), {"sigma": sigma, "groups": labels(collection)})


# Samples (App. C.4)


def seeds_of(lab: Lab, method: Method) -> int:
    """How many seeds a denoiser has samples of, from `EVALUATION_FROM` on."""
    return min(lab.scale.seeds, lab.scale.expensive_seeds) if method.expensive else lab.scale.seeds


def samples(lab: Lab, method: Method) -> list[Task]:
    """Samples of a denoiser, a task for each batch of seeds, resumed from the last noise level it reached."""
    count = seeds_of(lab, method)
    inputs = needs(lab, method, lab.grid)

    def batch(seeds: range) -> Task:
        return Task(
            f"samples/{method.slug}/seeds {seeds[0]}-{seeds[-1]}",
            draw,
            {"method": method.settings(), "seeds": list(seeds), "steps": lab.steps},
            inputs=inputs,
            **made_of(lab, method),
            predict=lambda: predict.samples(lab, method, len(seeds)),
        )

    seeds = range(EVALUATION_FROM, EVALUATION_FROM + count)
    return [batch(seeds[start : start + lab.scale.batch]) for start in range(0, count, lab.scale.batch)]


def draw(
    lab: Lab, inputs: Inputs, scratch: Path, *, method: dict[str, Any], seeds: list[int], steps: int
) -> Made:
    denoiser, kept = build(lab, Method.of(method), inputs), scratch / "state.safetensors"
    found = sample_batch(denoiser, seeds, lab.images.shape, levels_of(steps), kept, device=lab.device)
    return Made({"images": found.images}, {"seeds": seeds})


def drawn(results: Results, batches: Sequence[Task]) -> torch.Tensor:
    """The samples of all batches, (n, C, H, W)."""
    return torch.cat([results[task]["images"] for task in batches])


# Errors by noise level (Sections 4.1 to 4.3)


def points_of(lab: Lab, method: Method) -> int:
    """Noisy images per noise level that a method is judged on."""
    return min(lab.scale.points, lab.scale.expensive_points) if method.expensive else lab.scale.points


def answers(lab: Lab, sigma: float, count: int) -> Task:
    """What the two networks answer to noisy held-out images, asked once for all methods."""
    fewer = "" if count == lab.scale.points else f" to {count}"
    return Task(
        f"networks' answers{fewer}/σ {sigma:.4g}", ask, {"sigma": sigma, "count": count},
        inputs=_held_out(lab), **made_of(lab, NETWORK, "reference", "held_out"),
        predict=lambda: predict.asking(lab, count),
    )


def ask(lab: Lab, inputs: Inputs, scratch: Path, *, sigma: float, count: int) -> Made:
    z = forward_points(lab.judging, sigma, count)
    with torch.no_grad():
        found = {
            which: torch.cat([getattr(lab, which)(part, sigma) for part in z.split(BATCH)])
            for which in ("network", "reference")
        }
    return Made(found, {"sigma": sigma})


def error(lab: Lab, method: Method, sigma: float) -> Task:
    """Mean squared error of a denoiser to each network at one noise level, one number per noisy image."""
    count = points_of(lab, method)
    asked = answers(lab, sigma, count)
    return Task(
        f"errors/{method.slug}/σ {sigma:.4g}",
        measure,
        {"method": method.settings(), "sigma": sigma, "count": count, "asked": asked.name},
        inputs=(*needs(lab, method, [sigma]), asked),
        **made_of(lab, method, "held_out"),
        predict=lambda: predict.calls(lab, method, [sigma], count),
    )


def measure(
    lab: Lab, inputs: Inputs, scratch: Path, *, method: dict[str, Any], sigma: float, count: int, asked: str
) -> Made:
    denoiser = build(lab, Method.of(method), {name: result for name, result in inputs.items() if name != asked})

    def compare(z: torch.Tensor, network: torch.Tensor, reference: torch.Tensor) -> dict[str, torch.Tensor]:
        answer, targets = denoiser(z, sigma).cpu(), {"mse": network, "mse to the reference": reference}
        return {name: (answer - target).double().square().flatten(1).mean(1) for name, target in targets.items()}

    return Made(_judge(lab, inputs[asked], compare, sigma, count, scratch), {"sigma": sigma})


def _judge(
    lab: Lab, asked: Result, compare: Callable[..., dict[str, torch.Tensor]], sigma: float, count: int, scratch: Path
) -> dict[str, torch.Tensor]:
    """compare(z, the networks' two answers) for all noisy held-out images; each batch of them is kept as it is done."""
    found, points = [], forward_points(lab.judging, sigma, count)
    for index, batch in enumerate(zip(*(each.split(BATCH) for each in (points, asked["network"], asked["reference"])))):
        kept = scratch / f"{index}.safetensors"
        if kept.exists():
            found.append(resumed(kept))
            continue
        z, network, reference = batch
        with torch.no_grad():
            found.append(compare(z.to(lab.device), network, reference))
        write_checked(kept, lambda part, done=found[-1]: save_file(done, part))
    return {name: torch.cat([part[name] for part in found]) for name in found[0]}


def judged(lab: Lab) -> str:
    """How many noisy images there are, for the notes of a figure."""
    fewer = min(lab.scale.points, lab.scale.expensive_points)
    some = f" ({fewer} for ELS and Lukoianov)" if fewer < lab.scale.points else ""
    return f"{lab.scale.points} noisy images per level{some}"


# Schedules (App. C.1)


def scores(lab: Lab, method: Method, sigma: float) -> Task:
    """The error of a method with each of some patch sizes or thresholds, at one noise level."""
    values = candidates(lab, method.preset)
    tried = method.with_option("schedule", min(values))
    return Task(
        f"calibration/{method.preset}/σ {sigma:.4g}",
        score,
        {"preset": method.preset, "sigma": sigma, "values": values, "count": lab.scale.calibration},
        inputs=(*needs(lab, tried, [sigma]), *_held_out(lab)),
        **made_of(lab, tried, "network", "held_out"),
        predict=lambda: predict.calls(lab, method, [sigma], lab.scale.calibration * len(values)),
    )


def score(
    lab: Lab, inputs: Inputs, scratch: Path, *, preset: str, sigma: float, values: list[float], count: int
) -> Made:
    tried: dict[float, Any] = {value: build(lab, Method(preset, (("schedule", value),)), inputs) for value in values}
    found = score_level(tried, lab.network, forward_points(lab.tuning, sigma, count), sigma)
    return Made({}, {"sigma": sigma, "values": values, "mse": [each.mse for each in found]})


def candidates(lab: Lab, preset: str) -> list[float]:
    """Odd patch sizes up to the whole image, or thresholds in steps of 0.05; the scale may leave some out."""
    every, side = lab.scale.every, lab.side
    if preset == "pspc_flex":
        return [round(0.05 * k, 2) for k in range(2, 21, every)]
    sizes = [*range(3, min(DENSE, side), 2), *range(DENSE, side, 2 * every)]
    whole = side if preset == "pspc_square" else side + 1 - side % 2
    return [*map(float, sizes), float(whole)]


# Plans (Table 1)


def plan(lab: Lab, method: Method, sigma: float) -> Task:
    """What a method is at one noise level, and how it is evaluated."""
    return Task(
        f"plans/{method.slug}/σ {sigma:.4g}", describe, {"method": method.settings(), "sigma": sigma},
        inputs=needs(lab, method, [sigma]), **made_of(lab, method),
        predict=lambda: predict.calls(lab, method, [], 0),
    )


def describe(lab: Lab, inputs: Inputs, scratch: Path, *, method: dict[str, Any], sigma: float) -> Made:
    denoiser = build(lab, Method.of(method), inputs)
    assert isinstance(denoiser, FPMC)
    collection = denoiser.at(sigma)
    steps = collection.plan(Call(sigma, 1, device=lab.device), replace(denoiser.settings, threads=1)).steps
    return Made(
        {},
        {
            "estimators": len(collection),
            "distinct": sum(step.estimators for step in steps),
            "kernels": list(dict.fromkeys(step.kernel for step in steps)),
            "images": max(step.images for step in steps),
            "work": sum(step.work for step in steps),
            "memory": max(step.memory for step in steps),
        },
    )
