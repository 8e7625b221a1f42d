"""Samples by the probability-flow ODE (Eq. 2), from the same noise for every denoiser (App. C.4)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from fpmc.errors import InputError
from fpmc.gate import check_denoiser, check_device, check_seeds, check_steps, whole
from fpmc.process import Denoiser, Process, edm_grid

# Choose on one, report on the other: settings are tuned on the first seeds, tables begin where those never go.
TUNING_SEEDS = range(1000)
EVALUATION_FROM = 10_000

Slope = Callable[[Tensor, float], Tensor]                  # (z, sigma) -> dz/dsigma
Solver = Callable[[Slope, Tensor, float, float], Tensor]   # (slope, z, sigma, target) -> z at the target level


def euler(slope: Slope, z: Tensor, sigma: float, target: float) -> Tensor:
    """One Euler step; in σ/α this *is* DDIM (for VP) and the Euler step of flow matching."""
    return z + (target - sigma) * slope(z, sigma)


def heun(slope: Slope, z: Tensor, sigma: float, target: float) -> Tensor:
    """One step of Heun's second-order method; the slope does not exist at σ = 0, so the last step is Euler."""
    first = slope(z, sigma)
    ahead = z + (target - sigma) * first
    if target == 0:
        return ahead
    return z + (target - sigma) * (first + slope(ahead, target)) / 2


SOLVERS: dict[str, Solver] = {"heun": heun, "euler": euler, "ddim": euler}


@dataclass(frozen=True)
class Step:
    """Where the ODE stands after a step."""

    index: int          # 0 … steps−1
    sigma: float        # the noise level reached
    z: Tensor           # the state there, float64 (B, C, H, W)
    denoised: Tensor    # the last denoiser output on the way, float64 (B, C, H, W)
    nfe: int            # denoiser evaluations so far


@dataclass(frozen=True)
class Samples:
    """Generated images and what they cost."""

    images: Tensor                  # float32 (B, C, H, W), around [−1, 1], unclipped
    seeds: tuple[int, ...]          # image i began as the noise of seeds[i]
    sigmas: tuple[float, ...]       # the noise levels visited, ending in 0
    nfe: int                        # denoiser evaluations per image
    seconds: float
    trajectory: Tensor | None       # float32 (steps+1, B, C, H, W), the state at each of `sigmas`
    classes: tuple[int, ...] | None = None      # of each image, where the network has classes


def sample(
    denoiser: Denoiser,
    *,
    seeds: Iterable[int] = range(16),
    steps: int = 18,
    sigma_min: float = 0.002,
    sigma_max: float = 80,
    rho: float = 7,
    solver: Literal["heun", "euler", "ddim"] | Solver = "heun",
    process: Process | None = None,                     # visit the times of this process instead of EDM's levels
    classes: Literal["random"] | int | Sequence[int] | None = None,     # for networks of classes, see `classes_of`
    shape: tuple[int, int, int] | None = None,          # (C, H, W), if the denoiser does not know it
    batch: int = 64,                                    # images per denoiser call
    device: str | torch.device | None = None,           # where the denoiser is called; none: where it is
    trajectory: bool = False,
    progress: Callable[[int, int], object] | None = None,   # called with (image steps done, image steps in all)
) -> Samples:
    """Solve the PF-ODE from pure noise to images (Eq. 2, App. C.4); 18 Heun steps are 35 evaluations.

    A sample belongs to its seed, whatever the batch or device. With `process` the levels are σ(t)/α(t) on its own time
    grid (`sigma_min`, `sigma_max` and `rho` then have no part in it): `process=VP(), solver="ddim"` is DDIM.
    """
    seeds, shape = check_seeds(seeds), _shape_of(check_denoiser(denoiser), shape)
    labels = classes_of(denoiser, classes, seeds, shape)
    levels = levels_of(steps, sigma_min=sigma_min, sigma_max=sigma_max, rho=rho, process=process)
    check_steps(batch, "batch")
    device = check_device(device or device_of(denoiser))
    began, done, nfe, images, states = time.perf_counter(), 0, 0, [], []
    for part in (slice(i, i + batch) for i in range(0, len(seeds), batch)):
        chunk = seeds[part]
        z = levels[0] * initial_noise(chunk, shape)
        path = [z.float()]
        asked = denoiser if labels is None else of_classes(denoiser, labels[part])
        for step in integrate(asked, z, levels, solver=solver, device=device):
            z, nfe, done = step.z, step.nfe, done + len(chunk)
            if trajectory:
                path.append(z.float())
            if progress is not None:
                progress(done, steps * len(seeds))
        images.append(z.float())
        states.append(torch.stack(path))
    return Samples(
        images=torch.cat(images),
        seeds=seeds,
        sigmas=levels,
        nfe=nfe,
        seconds=time.perf_counter() - began,
        trajectory=torch.cat(states, dim=1) if trajectory else None,
        classes=labels,
    )


def classes_of(
    denoiser: Denoiser,
    classes: Literal["random"] | int | Sequence[int] | None,
    seeds: Sequence[int],
    shape: tuple[int, int, int],
) -> tuple[int, ...] | None:
    """The class of each seed: one for all, one each, or (a network's default) "random", drawn as EDM does.

    EDM's generate.py has one generator per seed, which gives the noise first and then the class.
    """
    count = getattr(denoiser, "label_dim", 0)
    if not count:
        if classes is not None:
            raise InputError(f"classes={classes!r} are asked for, but this denoiser knows no classes; leave them out")
        return None
    if classes is None or (isinstance(classes, str) and classes == "random"):
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for generator in generators:
            torch.randn(shape, generator=generator)
        return tuple(int(torch.randint(count, size=[], generator=generator)) for generator in generators)
    chosen: list[Any] = list(classes) if isinstance(classes, Iterable) else [classes] * len(seeds)
    if any(whole(each) is None for each in chosen):
        raise InputError(f'classes are "random", a whole number, or one for each seed; got {classes!r}')
    found = tuple(map(int, chosen))
    if len(found) != len(seeds):
        raise InputError(f"{len(found)} classes are given for {len(seeds)} seeds; give one for each, or one for all")
    if not 0 <= min(found) <= max(found) < count:
        raise InputError(f"classes are 0 … {count - 1}; got {next(each for each in found if not 0 <= each < count)}")
    return found


def of_classes(denoiser: Denoiser, classes: Sequence[int]) -> Denoiser:
    """The denoiser of a batch of these classes."""
    labels = torch.tensor(classes)
    return lambda z, sigma: denoiser(z, sigma, labels)  # pyright: ignore[reportCallIssue]


def integrate(
    denoiser: Denoiser,
    z: Tensor,                          # (B, C, H, W), the state at levels[0]
    levels: Sequence[float],            # decreasing noise levels
    *,
    solver: Literal["heun", "euler", "ddim"] | Solver = "heun",
    device: str | torch.device | None = None,
) -> Iterator[Step]:
    """Yield the PF-ODE's state after every step (Eq. 2 with α = 1: dz/dσ = (z − D(z, σ))/σ).

    The state stays in float64 on the CPU, so that rounding does not depend on the device; the denoiser sees float32.
    """
    take = SOLVERS.get(solver) if isinstance(solver, str) else solver
    if take is None:
        raise InputError(f"no solver {solver!r}; choose one of {', '.join(SOLVERS)}")
    device = device or device_of(denoiser)
    z = z.detach().to("cpu", torch.float64)
    nfe, denoised = 0, z

    def slope(z: Tensor, sigma: float) -> Tensor:
        nonlocal nfe, denoised
        with torch.no_grad():
            x0 = denoiser(z.to(device, torch.float32), sigma)
        if not isinstance(x0, Tensor):
            raise InputError(f"the denoiser answered {type(x0).__name__}; it must give a torch tensor like z")
        if x0.shape != z.shape or not bool(x0.isfinite().all()):
            what = f"shape {tuple(x0.shape)}" if x0.shape != z.shape else "NaN or infinite values"
            raise InputError(f"the denoiser answered {what} to z of shape {tuple(z.shape)} at sigma={sigma:g}")
        nfe, denoised = nfe + 1, x0.to("cpu", torch.float64)
        return (z - denoised) / sigma

    for index, (sigma, target) in enumerate(pairwise(levels)):
        z = take(slope, z, sigma, target)
        yield Step(index, target, z, denoised, nfe)


def levels_of(
    steps: int = 18,
    *,
    sigma_min: float = 0.002,
    sigma_max: float = 80,
    rho: float = 7,
    process: Process | None = None,
) -> tuple[float, ...]:  # steps + 1
    """The noise levels σ/α a sampler visits, from the noisiest to 0: EDM's grid (App. C.4) or a process' own."""
    if process is not None and not isinstance(process, Process):
        raise InputError(f"process must be EDM(), VP() or Flow() of fpmc.process, or none; got {process!r}")
    if process is None:
        grid = edm_grid(steps, sigma_min=sigma_min, sigma_max=sigma_max, rho=rho)
    else:
        grid = process.level(process.grid(steps))
    return (*grid.tolist(), 0.0)


def initial_noise(seeds: Sequence[int], shape: tuple[int, int, int]) -> Tensor:  # float64 (B, C, H, W)
    """Unit noise, one CPU generator per seed, drawn in float32 as EDM does: seed 17 is the same in any batch."""
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]).double()


def device_of(denoiser: Denoiser) -> torch.device:
    """Where a denoiser says it is, or where its weights are; else the CPU."""
    known = getattr(denoiser, "device", None)
    weights = denoiser.parameters() if isinstance(denoiser, torch.nn.Module) else iter(())
    return torch.device(known) if known is not None else next(weights, torch.empty(0)).device


def _shape_of(denoiser: Denoiser, shape: tuple[int, int, int] | None) -> tuple[int, int, int]:
    shape = shape or getattr(denoiser, "shape", None)
    if not isinstance(shape, Sequence) or len(shape) != 3 or min(shape) < 1:
        raise InputError(f"the images' shape is {shape}; give shape=(C, H, W), or a denoiser with .shape")
    known = getattr(denoiser, "shape", None) or shape
    if tuple(known) != tuple(shape):
        raise InputError(f"shape={tuple(shape)} is asked for, but the denoiser makes images of shape {tuple(known)}")
    return (shape[0], shape[1], shape[2])
