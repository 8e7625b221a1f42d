"""Rows whose distances stay in memory between the passes: the same answers, whatever part of a batch has room."""

from __future__ import annotations

import random

import pytest
import torch

from engine.contract import ROUNDING, VALUES, Cut
from engine.problems import close
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source
from fpmc.engine import Call, Settings
from fpmc.engine.kernels.rows import SparseRows
from fpmc.images import ImageSet

pytestmark = pytest.mark.usefixtures("one_thread")
SIDE, COUNT = 12, 2000                                 # distances of one noisy image take more than 1 MiB


def soft(values: torch.Tensor) -> Collection:
    generator = torch.Generator().manual_seed(0)
    images = ImageSet(torch.randint(256, (COUNT, 1, SIDE, SIDE), generator=generator).byte())
    r = torch.rand(SIDE**2, 1, SIDE, SIDE, generator=generator)
    return Collection(values, r * (r > 0.6) + torch.eye(SIDE**2).view_as(r), Source(images))


DRAWN = torch.rand(SIDE**2, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
QUERIES = {"soft": DRAWN * (DRAWN > 0.3), "masks": (DRAWN > 0.7).float(), "nearly full": (DRAWN > 0.05).float()}


def step_of(collection: Collection, call: Call, settings: Settings) -> SparseRows:
    (step,) = collection.plan(call, settings).steps
    assert isinstance(step, SparseRows)
    return step


@pytest.mark.parametrize("sigma", [0.05, 0.6, 8.0])
@pytest.mark.parametrize("name", QUERIES)
def test_answers_are_the_same_whatever_has_room(name: str, sigma: float) -> None:
    collection = soft(QUERIES[name])
    source = collection.groups[0].source
    assert isinstance(source, Source)
    noise = torch.randn(5, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    z = source.parts[0].scaled(slice(5)) + sigma * noise
    truth = FPMC(collection, settings=Settings(backend="torch"))(z.double(), sigma).float()
    one = 4 * SIDE**2 * (COUNT + 16)                    # bytes that a noisy image takes
    rest = step_of(collection, Call.of(z, sigma), Settings(backend="numba", kernels=("rows",))).memory - 5 * one
    for memory, at_once in ((1 << 30, 5), (int(rest + 2.5 * one), 2), (1 << 20, None)):
        settings = Settings(backend="numba", kernels=("rows",), memory=memory)
        step = step_of(collection, Call.of(z, sigma), settings)
        assert (step.keeps, step.batch) == (at_once is not None, at_once)
        found = FPMC(collection, settings=settings)(z, sigma)
        close(found, truth, VALUES)
        cut = FPMC(collection, settings=settings, team=Cut(random.Random(0)))
        close(cut(z, sigma), found, ROUNDING)
        weights = FPMC(collection, settings=settings).attribute(z, sigma, top=COUNT).weights
        close(weights.sum(1), torch.ones(5), 1e-5)
