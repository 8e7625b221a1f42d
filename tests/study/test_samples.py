"""Sampling into a run directory: the same samples as in memory, whatever the batches and interruptions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fpmc.errors import InputError
from fpmc.metrics import load_samples
from fpmc.report.run import RunDirectory
from fpmc.sampling import sample
from fpmc.study.samples import sample_into


class Shrink:
    """The posterior mean of N(0, 1/4), counting its calls; it can be told to stop like a user."""

    shape = (1, 3, 4)

    def __init__(self, stop_after: float = float("inf")) -> None:
        self.calls, self.stop_after = 0, stop_after

    def __call__(self, z, sigma):
        self.calls += 1
        if self.calls > self.stop_after:
            raise KeyboardInterrupt
        return z / (1 + 4 * sigma**2)


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "run", {}, command="sample")


def test_equal_to_sampling_in_memory(run):
    stored = sample_into(run, Shrink(), seeds=[5, 2, 9], batch=2, steps=4)
    direct = sample(Shrink(), seeds=[5, 2, 9], steps=4)
    assert torch.equal(stored.images, direct.images)
    assert (stored.seeds, stored.nfe, stored.sigmas) == (direct.seeds, direct.nfe, direct.sigmas)
    images, seeds = load_samples(run.path)
    assert torch.equal(images, direct.images)
    assert seeds == (5, 2, 9)


def test_an_interruption_loses_one_noise_level_at_most(run):
    with pytest.raises(KeyboardInterrupt):
        sample_into(run, Shrink(stop_after=2 * 7 + 3), seeds=range(8), batch=2, steps=4)
    assert load_samples(run.path)[1] == (0, 1, 2, 3)
    rest = Shrink()
    stored = sample_into(run, rest, seeds=range(8), batch=2, steps=4)
    assert rest.calls == 7 - 2 + 7                      # the third batch goes on behind its first level
    assert torch.equal(stored.images, sample(Shrink(), seeds=range(8), steps=4).images)
    assert stored.nfe == 7


def test_a_kill_between_the_two_files_is_harmless(run):
    sample_into(run, Shrink(), seeds=range(4), steps=4)
    run.write_checked("seeds.npy", lambda part: np.save(part.open("wb"), np.array([0, 1])))
    assert torch.equal(
        sample_into(run, Shrink(), seeds=range(4), steps=4).images, sample(Shrink(), seeds=range(4), steps=4).images
    )


def test_more_seeds_later_and_nothing_twice(run):
    sample_into(run, Shrink(), seeds=[3, 1], steps=4)
    more = Shrink()
    stored = sample_into(run, more, seeds=[0, 1, 2, 3], steps=4)
    assert more.calls == 7
    assert torch.equal(stored.images, sample(Shrink(), seeds=range(4), steps=4).images)
    again = Shrink()
    sample_into(run, again, seeds=[2, 3], steps=4)
    assert again.calls == 0


def test_folders_of_one_run_are_apart(run):
    sample_into(run, Shrink(), seeds=[0], steps=4, folder="a")
    other = Shrink()
    sample_into(run, other, seeds=[0], steps=4, folder="b/c")
    assert other.calls == 7
    assert load_samples(run.path / "b" / "c")[1] == (0,)


def test_progress_counts_what_was_there(run):
    sample_into(run, Shrink(), seeds=[0], steps=3)
    calls = []
    sample_into(run, Shrink(), seeds=[0, 1, 2], steps=3, batch=1, progress=lambda *counts: calls.append(counts))
    assert calls == [(4, 9), (5, 9), (6, 9), (7, 9), (8, 9), (9, 9)]


@pytest.mark.parametrize("wrong", [{"seeds": []}, {"seeds": [0], "batch": 0}, {"seeds": [0], "steps": 0}])
def test_bad_settings_write_nothing(run, wrong):
    before = sorted(p.name for p in run.path.iterdir())
    with pytest.raises(InputError):
        sample_into(run, Shrink(), **wrong)
    assert sorted(p.name for p in run.path.iterdir()) == before


def test_what_a_kill_leaves_after_the_last_batch_is_swept(run):
    whole = sample_into(run, Shrink(), seeds=[0, 1], steps=4)
    place = run.path / "seeds.npy"
    sums = place.with_name(".seeds.npy.sha256")
    before = sums.read_bytes()
    run.write_checked("unfinished.safetensors", b"of the last batch")
    sums.write_bytes(b"0" * 64 + b"\n" + before)            # the sum of the file before is forgotten last
    again = sample_into(run, Shrink(), seeds=[0, 1], steps=4)
    assert torch.equal(again.images, whole.images)
    assert not list(run.path.glob("*unfinished*"))
    assert sums.read_bytes() == before
