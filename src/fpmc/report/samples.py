"""Sampling into a run directory, batch by batch, so that an interruption loses at most one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from fpmc.errors import InputError
from fpmc.metrics import load_samples
from fpmc.process import Denoiser
from fpmc.report.run import RunDirectory
from fpmc.sampling import Samples, check_seeds, levels_of, sample

LEVEL_SETTINGS = {"steps", "sigma_min", "sigma_max", "rho", "process"}


def sample_into(
    run: RunDirectory,
    denoiser: Denoiser,
    *,
    seeds: Iterable[int],
    folder: str = ".",                                      # of the run, where samples.npy and seeds.npy go
    batch: int = 64,
    progress: Callable[[int, int], object] | None = None,   # as for `sample`, over all seeds
    **settings: Any,                                        # of `sample`
) -> Samples:
    """Samples for `seeds` (App. C.4), of which those already in the run are read instead of computed.

    Every finished batch rewrites samples.npy, then seeds.npy, each in one step; a kill between the two is harmless,
    because seeds.npy says how many samples count. Seconds add up over all sittings.
    """
    seeds = check_seeds(seeds)
    levels = levels_of(**{key: value for key, value in settings.items() if key in LEVEL_SETTINGS})
    if batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    place = run.path / folder
    images, found = load_samples(place) if (place / "seeds.npy").is_file() else (torch.empty(0), ())
    known = list(found or ())
    todo = [seed for seed in seeds if seed not in set(known)]
    steps, done = len(levels) - 1, len(seeds) - len(todo)

    def tell(image_steps: int, _: int) -> None:
        if progress is not None:
            progress(done * steps + image_steps, len(seeds) * steps)

    for chunk in (todo[i : i + batch] for i in range(0, len(todo), batch)):
        part = sample(denoiser, seeds=chunk, batch=batch, progress=tell, **settings)
        images = torch.cat([images, part.images]) if known else part.images
        known, done = known + chunk, done + len(chunk)
        run.event(folder=folder, seeds=chunk, nfe=part.nfe, seconds=round(part.seconds, 3))
        for name, array in (("samples.npy", images.numpy()), ("seeds.npy", np.array(known))):
            with run.atomic(f"{folder}/{name}") as temporary:
                np.save(temporary, array, allow_pickle=False)
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
