"""Samples that survive interruptions: the state after every noise level, the images after every batch of seeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from fpmc.errors import InputError
from fpmc.files import remove, verify, write_checked
from fpmc.gate import check_seeds, check_steps
from fpmc.metrics import load_samples, nearest
from fpmc.process import Denoiser
from fpmc.readers.tensors import read_safetensors
from fpmc.report.run import RunDirectory
from fpmc.sampling import Samples, classes_of, initial_noise, integrate, levels_of, of_classes

COPY = 1 / 127.5                                        # rms distance of one grey level: closer than that, it is a copy


def resumed(path: Path, *names: str) -> dict[str, Tensor]:
    """What an interrupted task had kept, with tensors of these names at least."""
    try:
        verify(path)
        found = read_safetensors(path).tensors
    except InputError as error:
        raise InputError(f"cannot resume from {str(path)!r} ({error}); delete it") from error
    if missing := [name for name in names if name not in found]:
        raise InputError(f"cannot resume from {str(path)!r}, which holds no {missing[0]!r}; delete it")
    return found


def sample_batch(
    denoiser: Denoiser,
    seeds: Sequence[int],
    shape: tuple[int, int, int],
    levels: Sequence[float],                            # noise levels, ending in 0
    kept: Path,                                         # where the state after every level goes
    *,
    progress: Callable[[int], object] = lambda _: None,  # called with the levels done
    **settings: Any,                                    # of `integrate`
) -> Samples:
    """Samples of one batch of seeds (App. C.4), resumed from the last noise level that an earlier sitting reached."""
    seeds, began = tuple(seeds), time.perf_counter()
    z, done, nfe, spent = levels[0] * initial_noise(seeds, shape), 0, 0, 0.0
    made_of = {"seeds": torch.tensor(seeds), "levels": torch.tensor(levels, dtype=torch.float64)}
    if kept.exists():
        state = resumed(kept, "z", "done", "nfe", "seconds", *made_of)
        if all(torch.equal(state[name], value) for name, value in made_of.items()):    # else it is another batch's
            z, done, nfe, spent = state["z"], int(state["done"]), int(state["nfe"]), float(state["seconds"])
    for step in integrate(denoiser, z, levels[done:], **settings):
        z, seconds = step.z, spent + time.perf_counter() - began
        numbers = {"done": done + step.index + 1, "nfe": nfe + step.nfe, "seconds": seconds}
        state = {"z": z, **{name: torch.tensor(value) for name, value in numbers.items()}, **made_of}
        write_checked(kept, lambda part, state=state: save_file(state, part))
        progress(done + step.index + 1)
    whole = resumed(kept)
    nfe, spent = int(whole["nfe"]), float(whole["seconds"])
    return Samples(images=z.float(), seeds=seeds, sigmas=tuple(levels), nfe=nfe, seconds=spent, trajectory=None)


def sample_into(
    run: RunDirectory,
    denoiser: Denoiser,
    *,
    seeds: Iterable[int],
    shape: tuple[int, int, int] | None = None,              # (C, H, W), if the denoiser does not know it
    folder: str = ".",                                      # of the run, where samples.npy and seeds.npy go
    batch: int = 64,
    progress: Callable[[int, int], object] = lambda *_: None,   # as for `fpmc.sample`, over all seeds
    device: str | torch.device | None = None,
    solver: Any = "heun",
    classes: Any = None,                                    # as for `fpmc.sample`
    **settings: Any,                                        # of `levels_of`
) -> Samples:
    """Samples for `seeds` (App. C.4), of which those already in the run are read instead of computed.

    Every finished batch rewrites samples.npy, then seeds.npy, each in one step; a kill between the two is harmless,
    because seeds.npy says how many samples count. Seconds add up over all sittings.
    """
    seeds, levels = check_seeds(seeds), levels_of(**settings)
    check_steps(batch, "batch")
    shape = shape or getattr(denoiser, "shape", None)
    if shape is None:
        raise InputError("the denoiser does not say of what shape its images are; give shape=(C, H, W)")
    place, state = run.path / folder, run.path / folder / "unfinished.safetensors"
    there = run.kept(f"{folder}/seeds.npy") and run.kept(f"{folder}/samples.npy")
    images, found = load_samples(place) if there else (torch.empty(0), ())
    known = list(found or ())
    todo = [seed for seed in seeds if seed not in set(known)]
    labels = dict(zip(seeds, classes_of(denoiser, classes, seeds, shape) or ()))
    steps, done = len(levels) - 1, len(seeds) - len(todo)
    for chunk in (todo[i : i + batch] for i in range(0, len(todo), batch)):

        def tell(level: int, done: int = done, count: int = len(chunk)) -> None:
            progress(done * steps + level * count, len(seeds) * steps)

        asked = of_classes(denoiser, [labels[seed] for seed in chunk]) if labels else denoiser
        part = sample_batch(asked, chunk, shape, levels, state, solver=solver, device=device, progress=tell)
        images = torch.cat([images, part.images]) if known else part.images
        known, done = known + chunk, done + len(chunk)
        run.event(folder=folder, seeds=chunk, nfe=part.nfe, seconds=round(part.seconds, 3))
        for name, array in (("samples.npy", images.numpy()), ("seeds.npy", np.array(known))):
            run.write_checked(f"{folder}/{name}", lambda part, array=array: _save(part, array))
        remove(state)
    remove(state)                                       # a kill may have left that of the last batch
    wanted = set(seeds)
    batches = [event for event in run.events() if event.get("folder") == folder and wanted & set(event["seeds"])]
    return Samples(
        images=images[[known.index(seed) for seed in seeds]],
        seeds=seeds,
        sigmas=levels,
        nfe=max((event["nfe"] for event in batches), default=0),
        seconds=sum(event["seconds"] for event in batches),
        trajectory=None,
    )


def _save(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:                       # np.save would add an ending to the name
        np.save(file, array, allow_pickle=False)


def copies(images: Tensor, training: Any) -> tuple[Tensor, str]:
    """The distance of each sample to its nearest training image, and in words how many are copies of one."""
    distance = nearest(images, training).distance
    return distance, f"{int((distance < COPY).sum())} of {len(distance)}"
