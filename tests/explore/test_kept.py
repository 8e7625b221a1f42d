"""What the server keeps is bounded in bytes, however much is asked."""

from __future__ import annotations

import gc
import json
import pickle
import tracemalloc
import weakref

import pytest
import torch

import fpmc
from explore.world import Shrink, smooth
from fpmc.explore import requests as ask
from fpmc.explore.kept import MOST, Kept, size
from fpmc.explore.path import Path, from_seed
from fpmc.explore.session import KNOCKED, Session

BOUND = 400_000


@pytest.fixture
def small() -> Session:
    images = smooth(30)
    session = Session([fpmc.presets.ls(images, schedule=3)], images, [Shrink()])
    session.kept = Kept(BOUND)
    return session


def weighed(kept: Kept) -> int:
    """Bytes of what is really there, counted in another way than the cache does."""
    total = 0
    for value, _ in kept.entries.values():
        arrays = [*value.states, *value.answers] if isinstance(value, Path) else None
        total += sum(each.nbytes for each in arrays) if arrays else len(pickle.dumps(value))
    return total


def test_all_that_is_kept_stays_within_the_bound(small):
    for seed in range(12):
        for denoiser in range(2):
            small.step(ask.Way(denoiser=denoiser, start=ask.Start(seed=seed)), 17)
            small.error(ask.Level(denoiser=denoiser, level=9, seed=seed))
        for y in range(6):
            small.shares(ask.WhichImages(denoiser=0, start=ask.Start(seed=seed), level=12, region=(y, 3, y, 3)))
        assert weighed(small.kept) <= BOUND
        assert small.kept.bytes <= BOUND
    assert small.kept.bytes == sum(count for _, count in small.kept.entries.values()) > BOUND / 2


def test_what_was_used_last_stays_and_what_is_too_large_is_given_all_the_same(small):
    first = ask.Way(denoiser=1, start=ask.Start(seed=0))
    kept = small.path(first)
    for seed in range(1, 40):
        small.step(ask.Way(denoiser=1, start=ask.Start(seed=seed)), 17)
        assert small.path(first) is kept
    small.kept = Kept(100)
    found = small.shares(ask.WhichImages(denoiser=0, level=12))
    assert sum(row["share"] for row in found["images"]) + found["others"] == pytest.approx(1, abs=1e-5)
    assert (len(small.kept.entries), small.kept.bytes) == (0, 0)


def test_denoisers_without_some_images_go_with_their_paths(small):
    made = []
    for name in range(3 * KNOCKED):
        way = ask.Way(denoiser=0, without=(name,))
        small.step(way, 0)
        made.append(weakref.ref(small.path(way).denoiser))
        assert len(small.knocked) <= KNOCKED
    gc.collect()
    assert sum(each() is not None for each in made) == KNOCKED


def test_sizes_are_those_of_the_arrays(small):
    path = Path(Shrink(), *from_seed(0, (1, 10, 10)))
    before = size(path)
    path.upto(17)
    assert size(path) == before == sum(each.nbytes for each in [*path.states, *path.answers])
    assert size(torch.zeros(1000)) == pytest.approx(4000, rel=0.05)
    written = json.dumps(small.shares(ask.WhichImages(denoiser=0, level=12)))
    tracemalloc.start()
    found = json.loads(written)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < size(found) < 2 * taken
    assert MOST == 2**29, "as the manual says"
