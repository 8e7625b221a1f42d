"""Fine-tuning (Sections 4.1, 4.2, App. C.3): it learns, resumes bit for bit, and needs the leave-out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fpmc import presets, reference
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.gaussian import Gaussian
from fpmc.core.group import Group
from fpmc.core.precision import Full, Squares
from fpmc.core.response import Partition, SameAsQ
from fpmc.core.sources import Source
from fpmc.engine.gradients import loss_and_gradients
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.learn.finetune import Level, Tuning, train_level
from fpmc.study.levels import finetune

pytestmark = pytest.mark.usefixtures("one_thread")    # bits depend on how sums are shared
SMALL = {"steps": 30, "batch": 8, "validate_every": 5, "validation": 24, "patience": 99}


@pytest.fixture(scope="module")
def images() -> ImageSet:
    """Smooth images: neighbouring pixels are correlated, so that there is something to learn."""
    random = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.avg_pool2d(torch.randn(150, 1, 11, 11, generator=random), 4, 1)
    return ImageSet((127.5 + 160 * smooth).clip(0, 255).byte())


@pytest.fixture(scope="module")
def network(images: ImageSet) -> FPMC:
    """The Wiener filter stands for the network: smooth, differentiable, better than any collection of so few images."""
    return presets.wiener(images)


def halves(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    return images.subset(slice(100)), images.subset(slice(100, None))


@pytest.mark.parametrize("learn", [("q",), ("r",), ("q", "r")])
def test_soft_is_closer_to_the_network_than_its_baseline(images: ImageSet, network: FPMC, learn) -> None:
    source, held_out = halves(images)
    level = Level.start(presets.pspc_square(source, schedule=3).at(0.5), 0.5, Tuning(learn=learn, **SMALL))
    records = list(train_level(level, network, source, held_out))
    assert [record.step for record in records] == list(range(1, 31))
    baseline = level.history[0][2]
    assert level.best < 0.98 * baseline
    assert not torch.isnan(level.log_q).any()
    changed = {name: not torch.equal(getattr(level, f"log_{name}"), start) for name, start in _start(source, learn)}
    assert changed == {"q": "q" in learn, "r": "r" in learn}


def test_r_is_not_learned_where_it_cancels(images: ImageSet, network: FPMC, tmp_path: Path) -> None:
    source, held_out = halves(images)
    alone, z = presets.ls(source, schedule=3).at(0.5), torch.randn(4, 1, 8, 8)
    kept = SMALL | {"floor_q": 0.0, "floor_r": 0.0}
    r = Level.start(alone, 0.5, Tuning(learn=("r",), **kept))
    assert r.free == ()
    assert list(train_level(r, network, source, held_out, tmp_path / "r.pt")) == []
    assert (tmp_path / "r.pt").exists()
    torch.testing.assert_close(r.result.denoise(z, 0.5), alone.denoise(z, 0.5))
    found = {}
    for learn in (("q",), ("q", "r")):
        level = Level.start(alone, 0.5, Tuning(learn=learn, **kept))
        assert level.free == ("q",)
        assert len(list(train_level(level, network, source, held_out))) == 30
        assert isinstance(level.result.groups[0].r, Partition)             # so that it costs one pass
        found[learn] = level.log_q
    assert torch.equal(*found.values())
    raised = Level.start(alone, 0.5, Tuning(learn=("r",), **(SMALL | {"floor_r": 1e-3})))
    assert raised.free == ("r",)                        # estimators that may answer for each other's pixels


def _start(source: ImageSet, learn: tuple[str, ...]) -> list[tuple[str, Tensor]]:
    level = Level.start(presets.pspc_square(source, schedule=3).at(0.5), 0.5, Tuning(learn=learn, **SMALL))
    return [("q", level.log_q), ("r", level.log_r)]


@pytest.mark.parametrize("sigma", [0.06, 1.0, 20.0])
@pytest.mark.parametrize("preset", ["ls", "pspc_square"])
def test_the_default_floor_is_neutral_and_the_papers_is_not(images: ImageSet, preset: str, sigma: float) -> None:
    denoiser = getattr(presets, preset)(images, schedule=3)
    z = images.scaled(slice(8)) + sigma * torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    exact = denoiser(z, sigma)

    def moved(**floors: float) -> float:
        level = Level.start(denoiser.at(sigma), sigma, Tuning(**floors))
        return (level.collection.denoise(z, sigma) - exact).square().mean().sqrt().item()

    assert moved() < 0.02
    assert moved(floor_q=0, floor_r=0) < 1e-6
    assert moved(floor_q=1e-3, floor_r=1e-3) > moved()


def test_a_floor_of_zero_freezes_the_support(images: ImageSet, network: FPMC) -> None:
    source, held_out = halves(images)
    start = presets.pspc_square(source, schedule=3).at(0.5)
    level = Level.start(start, 0.5, Tuning(floor_q=0, floor_r=0, decay_from=0, **SMALL))
    list(train_level(level, network, source, held_out))
    outside = start.groups[0].q.dense() == 0
    assert (level.log_q.exp()[outside] == 0).all()
    assert (level.log_r.exp()[outside] == 0).all()
    assert level.best < level.history[0][2]


def test_a_killed_run_goes_on_as_if_it_had_not_been(images: ImageSet, network: FPMC, tmp_path: Path) -> None:
    source, held_out = halves(images)

    def level() -> Level:
        start = presets.pspc_square(source, schedule=3).at(0.5)
        return Level.start(start, 0.5, Tuning(monte_carlo=50, **SMALL))

    whole = level()
    list(train_level(whole, network, source, held_out, tmp_path / "whole.pt"))
    first = level()
    for record in train_level(first, network, source, held_out, tmp_path / "part.pt"):
        if record.step == 17:                           # between two checkpoints
            break
    again = level()
    list(train_level(again, network, source, held_out, tmp_path / "part.pt"))
    for name in ("log_q", "log_r", "best_log_q", "best_log_r"):
        assert torch.equal(getattr(again, name), getattr(whole, name))
    assert [h[:2] for h in again.history[1:]] == [h[:2] for h in whole.history[1:]]


def test_a_damaged_checkpoint_is_refused_by_name(images: ImageSet, network: FPMC, tmp_path: Path) -> None:
    (tmp_path / "level.pt").write_bytes(b"PK\x03\x04 torn")
    level = Level.start(presets.pspc_square(images, schedule=3).at(0.5), 0.5, Tuning(**SMALL))
    with pytest.raises(InputError, match=r"level\.pt.*delete it"):
        next(train_level(level, network, images, images, tmp_path / "level.pt"))


def test_without_the_leave_out_precisions_grow_and_held_out_error_rises(images: ImageSet) -> None:
    """The trivial solution (Section 4.1): at low noise every image of the batch finds itself in the source."""
    source, held_out = halves(images)
    knows_all = presets.optimal(images)                 # at low noise it gives back the clean image, held out or not
    mass, before, after = {}, {}, {}
    for leave_out in (True, False):
        tuning = Tuning(learn=("q",), leave_out=leave_out, floor_q=0, **{**SMALL, "steps": 60})
        level = Level.start(presets.pspc_square(source, schedule=3).at(0.2), 0.2, tuning)
        list(train_level(level, knows_all, source, held_out))
        mass[leave_out] = level.log_q.exp().sum().item()
        before[leave_out], after[leave_out] = level.history[0][2], level.history[-1][2]
    assert mass[False] > 1.2 * 36 * 9                   # 36 patches of 9 ones at the start
    assert mass[True] < 1.05 * 36 * 9
    assert after[False] > 1.01 * before[False]
    assert after[True] < 0.99 * before[True]


def test_finetune_makes_a_denoiser_of_the_levels_asked_for(images: ImageSet, network: FPMC, tmp_path: Path) -> None:
    source, _ = halves(images)
    denoiser = presets.pspc_square(source, schedule=3)
    seen: list[float] = []
    soft = finetune(
        denoiser, network, source, sigmas=[0.5, 2.0], steps=4, batch=8, validation=8, validate_every=2,
        progress=lambda record: seen.append(record.sigma),
    )
    assert seen == [0.5] * 4 + [2.0] * 4
    assert soft.name == "PSPC-Square + soft Q/R"
    z = images.scaled(slice(3))
    soft.save_pretrained(tmp_path / "soft")
    again = FPMC.from_pretrained(tmp_path / "soft", images=source)
    assert torch.equal(again(z, 0.5), soft(z, 0.5))
    half = tmp_path / "half"
    soft.save_pretrained(half, dtype=torch.float16)
    assert (FPMC.from_pretrained(half, images=source)(z, 0.5) - soft(z, 0.5)).abs().max() < 5e-3
    with pytest.raises(InputError, match="others"):
        FPMC.from_pretrained(half, images=images)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"learn": ()}, "learn"), ({"learn": ("v",)}, "learn"), ({"steps": 0}, "steps 0"), ({"rate": -1.0}, "rate")],
)
def test_tunings_that_make_no_sense_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Tuning(**settings)


def several(images: ImageSet, source: Source | None = None) -> Collection:
    """Squares of two sizes and a Gaussian that answers for half as much."""
    source = source or Source(images)
    small, large = Squares(2, 8, 8, inside=True), Squares(5, 8, 8, inside=True)
    gaussian = presets.wiener(images).at(1.0).groups[0].source
    return Collection.of(
        Group(small, SameAsQ(small), source),
        Group(large, SameAsQ(large), source).scaled(torch.linspace(0.1, 2, 8)[None, None]),
        Group(Full(8, 8), SameAsQ(Full(8, 8)), gaussian).scaled(0.5),
    )


def test_groups_of_one_source_are_joined_and_a_gaussian_stays(images: ImageSet, network: FPMC) -> None:
    source, held_out = halves(images)
    start = several(source)
    z = held_out.scaled(slice(4)) + 0.5 * torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    level = Level.start(start, 0.5, Tuning(floor_q=0, floor_r=0, **SMALL))
    assert (level.collection.denoise(z, 0.5) - start.denoise(z, 0.5)).abs().max() < 1e-5
    list(train_level(level, network, source, held_out))
    learned, gaussian = level.result.groups
    assert len(learned) == 49 + 16
    assert gaussian is start.groups[2]
    assert level.best < 0.99 * level.history[0][2]


def test_a_fixed_gaussian_is_part_of_the_gradient(images: ImageSet) -> None:
    start = several(images)
    level = Level.start(start, 0.5, Tuning(floor_q=1e-3, floor_r=1e-3))
    gaussian = start.groups[2].source
    assert isinstance(gaussian, Gaussian)
    z = images.scaled(slice(3), torch.float64) + 0.5
    target = torch.zeros_like(z)
    logs = [t.double().requires_grad_() for t in (level.log_q, level.log_r)]
    q, r = (t.exp() for t in logs)
    means = reference.posterior_means(z, 0.5, q, images.scaled(dtype=torch.float64))
    filtered = reference.gaussian_means(z, 0.5, torch.ones(1, 1, 8, 8), gaussian.mean, gaussian.covariance())
    loss = (reference.combine(torch.cat([means, filtered], 1), torch.cat([r, r.new_full((1, 1, 8, 8), 0.5)])) - target)
    loss = loss.square().mean()
    truths = torch.autograd.grad(loss, logs)
    found = loss_and_gradients(
        z, target, 0.5, q.detach(), r.detach(), Source(images), fixed=level.answer_of_fixed(z)
    )
    assert abs(found.loss - loss.item()) < 1e-10
    for ours, exact in zip((found.log_q, found.log_r), truths):
        assert ours is not None
        assert (ours - exact).abs().max() <= 1e-8 * exact.abs().max()


def test_what_has_no_one_source_of_images_is_refused(images: ImageSet) -> None:
    mixed = Collection.of(*several(images).groups, *several(images, Source(images.subset(slice(9)))).groups)
    for collection in (presets.wiener(images).at(1.0), mixed, presets.els(images, schedule=3).at(1.0)):
        with pytest.raises(InputError, match="one source of images"):
            Level.start(collection, 1.0, Tuning())
