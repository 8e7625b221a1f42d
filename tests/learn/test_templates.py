"""Fine-tuning by templates: its Jacobian is the reference's, its start the baseline, its end no worse (Eq. "obj")."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fpmc import presets, reference
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.sources import Source
from fpmc.engine.simd import moments
from fpmc.errors import InputError
from fpmc.images import ImageSet
from fpmc.learn import mixing, templates
from fpmc.learn.finetune import TEMPLATES, Level, Tuning, train_level
from fpmc.learn.newton import Estimators, lean
from fpmc.learn.places import Places
from fpmc.study.levels import finetune

pytestmark = pytest.mark.usefixtures("one_thread")
SIGMA = 0.5
NOTHING = -np.inf                                      # may be given away
QUICK = {"recipe": "templates", "steps": 3, "pool": 48, "validation": 32}


def smooth(channels: int = 1, side: int = 8, count: int = 150) -> ImageSet:
    """Neighbouring pixels are correlated, so that there is something to learn."""
    random = torch.Generator().manual_seed(0)
    grey = torch.nn.functional.avg_pool2d(torch.randn(count, channels, side + 3, side + 3, generator=random), 4, 1)
    return ImageSet((127.5 + 160 * grey).clip(0, 255).byte())


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return smooth()


@pytest.fixture(scope="module")
def network(images: ImageSet) -> FPMC:
    return presets.wiener(images)


METHODS = {
    "square": lambda images: presets.pspc_square(images, schedule=3),
    "even square": lambda images: presets.pspc_square(images, schedule=4),
    "flex": lambda images: presets.pspc_flex(images, maps="wiener", schedule=0.6),
    "lukoianov": lambda images: presets.lukoianov(images, tau=0.3),
    "whole image": presets.optimal,
}


def begin(collection: Collection, network, images: ImageSet, pool: int = 6) -> templates.Draft:
    return templates.Draft.begin(
        Places.of(collection), SIGMA, network, images, images, pool=pool, check=4,
        generator=torch.Generator().manual_seed(0),
    )


def others(draft: templates.Draft, index: int) -> torch.Tensor:
    """log ν without the noisy image's own."""
    ids = draft.places.source.ids
    return torch.where(ids == draft.fit.ids[index], -torch.inf, 0.0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_the_jacobian_is_autograds_of_the_reference(method: str, channels: int, monkeypatch) -> None:
    monkeypatch.setattr(moments, "LEFT_OUT", 1e-9)
    monkeypatch.setattr(moments, "DRAWS", 1 << 20)
    images = smooth(channels, side=6, count=70)
    draft = begin(METHODS[method](images).at(SIGMA), lambda z, sigma: 0.5 * z, images, pool=2)
    random = np.random.default_rng(0)
    theta = random.random(len(draft.q_classes)) / 3
    r = draft.r_classes.values(0.1 + random.random(len(draft.r_classes)))
    draft.q, draft.r = draft.q_classes.values(theta), r
    masks = draft.blocks(2)
    problem = draft.problem(draft.fit, masks)
    found = list(problem.equations(draft.estimators(), range(2)))
    shape = draft.places.shape
    for index, part in enumerate(found):
        answer = _reference(draft, torch.from_numpy(r), index, shape)
        mask = torch.from_numpy(masks[index])
        target = torch.from_numpy(draft.fit.target[index])
        jacobian = torch.autograd.functional.jacobian(answer, torch.from_numpy(theta))[mask]
        error = (answer(torch.from_numpy(theta)) - target)[mask]
        scale = float((jacobian.T @ jacobian).abs().max())
        assert part.error == pytest.approx(float(error @ error), rel=1e-4)
        np.testing.assert_allclose(part.matrix, jacobian.T @ jacobian, atol=1e-3 * scale)
        limit = 1e-3 * float((jacobian.abs().T @ error.abs()).max())
        np.testing.assert_allclose(part.vector, jacobian.T @ error, atol=limit)


def _reference(draft: templates.Draft, r: torch.Tensor, index: int, shape):
    z = torch.from_numpy(draft.fit.z[index]).view(1, *shape)
    x = draft.places.source.parts[0].scaled().double()

    def answer(theta: torch.Tensor) -> torch.Tensor:
        q, first = torch.zeros(draft.q.shape, dtype=torch.float64), 0
        for label, size in zip(draft.q_classes.labels, draft.q_classes.sizes):
            own = torch.cat([theta[first : first + size], torch.zeros(1, dtype=torch.float64)])
            q, first = q + own[torch.from_numpy(label.astype(np.int64))], first + size
        q, response = (part.view(len(part), -1, *shape[1:]) for part in (q, r))
        return reference.denoise(z, SIGMA, q, response, x, others(draft, index)).flatten()

    return answer


@pytest.mark.parametrize("left_out", [1e-3, 0.3])
def test_what_is_left_out_of_a_posterior_is_bounded(images: ImageSet, network: FPMC, left_out: float, monkeypatch):
    monkeypatch.setattr(moments, "LEFT_OUT", left_out)
    draft = begin(METHODS["square"](images).at(SIGMA), network, images)
    q, shape = torch.from_numpy(draft.q), draft.places.shape
    asked = Estimators.of(draft.q, np.ones_like(draft.r), draft.dimension)
    pairs = moments.Rows(np.arange(len(q) + 1) * draft.dimension, asked.places)
    for index in range(3):
        log_weights = draft.tiled.without(draft.fit.ids[index])
        means, _ = draft.tiled.moments(draft.fit.z[index], SIGMA, log_weights, asked.q, asked.span, pairs)
        z = torch.from_numpy(draft.fit.z[index]).view(1, *shape)
        x = images.scaled().double()
        exact = reference.posterior_means(z, SIGMA, q.view(-1, *shape), x, others(draft, index))
        off = np.abs(means - exact.flatten().numpy()).max()
        assert off <= 2 * left_out * float(x.abs().max()) + 1e-5
        assert off > 0


@pytest.mark.parametrize("method", METHODS)
def test_it_starts_as_the_baseline_and_ends_no_worse(method: str, images: ImageSet, network: FPMC) -> None:
    source, held_out = images.subset(slice(100)), images.subset(slice(100, None))
    denoiser = METHODS[method](source)
    level = Level.start(denoiser.at(SIGMA), SIGMA, Tuning(**QUICK))
    records = list(train_level(level, network, source, held_out))
    z = held_out.scaled() + SIGMA * torch.randn(50, 1, 8, 8, generator=torch.Generator().manual_seed(1))

    def error(collection: Collection) -> float:
        return float((collection.denoise(z, SIGMA) - network(z, SIGMA)).square().mean())

    assert level.baseline == pytest.approx(error(level.origin), rel=0.2)       # other noise, the same denoiser
    assert [record.validation for record in records][-1] == level.best < 0.9 * level.baseline
    assert error(level.result) < 0.95 * error(level.origin)


def test_estimators_that_are_alike_answer_as_one(images: ImageSet, network: FPMC) -> None:
    """Full masks: the error is that of all of them, and no r is looked for, since none would change anything."""
    draft = begin(METHODS["whole image"](images).at(SIGMA), network, images)
    everything = draft.problem(draft.check, np.ones((4, 64), bool))
    for scale in (1.0, 0.7):
        draft.q = draft.q * scale
        assert draft.full_error() == pytest.approx(everything.errors(draft.estimators()).mean(), rel=1e-5)
        before = draft.r.copy()
        draft.mix()
        np.testing.assert_array_equal(draft.r, before)
        assert draft.error == draft.full_error()
    draft.q[3, 5] = 2.0
    assert not draft.alike


def test_r_for_each_pixel_is_what_least_squares_says(images: ImageSet, network: FPMC) -> None:
    draft = begin(METHODS["lukoianov"](images).at(SIGMA), network, images, pool=24)
    answers = mixing.Answers.of(draft.tiled, draft.fit, draft.q, draft.r_classes)
    start = answers.errors(draft.r_classes.start()).mean()
    np.testing.assert_allclose(start, draft.problem(
        draft.fit, np.ones((24, 64), bool)).errors(draft.estimators()).mean(), rtol=1e-5)
    shared = mixing.common(answers, draft.r_classes.start())
    best = answers.errors(shared).mean()
    assert best < start
    random = np.random.default_rng(0)
    for _ in range(20):                                 # no template near it is better
        near = shared * np.exp(0.1 * random.standard_normal(len(shared)))
        assert answers.errors(near).mean() > best * 0.999
    strong, weak = mixing.by_pixel(answers, shared, (1e6, 1e-3), 64)
    assert answers.errors(strong).mean() == pytest.approx(best, rel=1e-3)
    assert answers.errors(weak).mean() < 0.9 * best
    draft.r = templates.response(draft.r_classes, weak)
    everything = draft.problem(draft.fit, np.ones((24, 64), bool))
    np.testing.assert_allclose(everything.errors(draft.estimators()), answers.errors(weak), rtol=1e-4)


def test_a_step_solves_its_bounded_least_squares() -> None:
    random = np.random.default_rng(0)
    jacobian, error, theta = random.standard_normal((40, 5)), random.standard_normal(40), random.random(5)
    damping = np.full(5, 0.1)
    found = lean(jacobian.T @ jacobian, jacobian.T @ error, theta, damping, np.ones(5), NOTHING)

    def cost(u: np.ndarray) -> float:
        return float(np.square(error + jacobian @ (u - theta)).sum() + damping @ np.square(u - theta))

    assert found.min() >= 0
    for _ in range(200):
        assert cost(np.abs(found + 0.05 * random.standard_normal(5))) >= cost(found)


def test_a_lean_step_gives_away_what_costs_little_and_no_more_than_allowed() -> None:
    random = np.random.default_rng(0)
    jacobian, damping, prices = random.standard_normal((60, 6)), np.full(6, 1e-3), np.array([1, 1, 1, 1, 9, 9])
    wanted = np.array([1.0, 1.0, 1.0, 1.0, 0.01, 0.01])
    error = -jacobian @ wanted                          # θ = 0 is off by what `wanted` would mend
    equations = jacobian.T @ jacobian, jacobian.T @ error, np.zeros(6), damping

    def cost(u: np.ndarray) -> float:
        return float(np.square(error + jacobian @ u).sum() + damping @ np.square(u))

    whole = lean(*equations, prices, NOTHING)
    assert (lean(*equations, prices, 0.0) > 0).all()    # nothing may be given away
    found = lean(*equations, prices, 0.1)
    assert cost(found) <= cost(whole) + 0.1
    assert ((found == 0) == (wanted < 0.1)).all()       # dear and worth little


def test_the_same_seed_gives_the_same_bits_and_a_checkpoint_is_the_level(images, network, tmp_path: Path) -> None:
    source, held_out = images.subset(slice(100)), images.subset(slice(100, None))

    def learn(seed: int, checkpoint: Path | None = None) -> tuple[Level, int]:
        level = Level.start(METHODS["even square"](source).at(SIGMA), SIGMA, Tuning(**QUICK, seed=seed))
        return level, len(list(train_level(level, network, source, held_out, checkpoint)))

    first, steps = learn(0, tmp_path / "level.pt")
    again, none = learn(0, tmp_path / "level.pt")       # the level as it was kept
    assert (steps, none) == (3, 0)
    for other, same in ((again, True), (learn(0)[0], True), (learn(1)[0], False)):
        assert torch.equal(first.result.groups[0].q.dense(), other.result.groups[0].q.dense()) is same
    assert (first.best, first.baseline, len(first.history)) == (again.best, again.baseline, len(again.history))


@pytest.mark.parametrize("learn", [("q",), ("r",)])
def test_what_is_not_learned_stays(learn, images: ImageSet, network: FPMC) -> None:
    denoiser = METHODS["square"](images)
    level = Level.start(denoiser.at(SIGMA), SIGMA, Tuning(**QUICK, learn=learn))
    list(train_level(level, network, images, images))
    before, after = level.origin.groups[0], level.result.groups[0]
    assert torch.equal(before.q.dense(), after.q.dense()) == ("q" not in learn)
    assert torch.equal(before.response(), after.response()) == ("r" not in learn)


def test_templates_are_the_default_on_a_cpu(images: ImageSet, network: FPMC, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr("fpmc.study.levels.train_level", lambda level, *_: seen.append(level.tuning) or iter(()))
    start = METHODS["square"](images)
    finetune(start, network, images, sigmas=[SIGMA], pool=7)
    finetune(start, network, images, sigmas=[SIGMA], steps=3)
    finetune(start, network, images, sigmas=[SIGMA], recipe="paper")
    assert [tuning.recipe for tuning in seen] == ["templates", "paper", "paper"]
    assert (seen[0].pool, seen[0].validation, seen[2].steps) == (7, TEMPLATES.validation, 2000)


def test_the_error_says_what_templates_need(images: ImageSet) -> None:
    soft = Collection(torch.full((64, 1, 8, 8), 0.5), torch.eye(64).view(64, 1, 8, 8), images)
    some = Collection(torch.ones(3, 1, 8, 8) * torch.tensor([1, 1, 0])[:, None, None, None] + 0, torch.ones(3, 1, 8, 8),
                      images)
    two = Collection.of(*presets.optimal(images).at(1.0).groups, *presets.wiener(images).at(1.0).groups)
    for collection, wrong in ((soft, "binary q"), (some, "3 for images"), (two, "Source, Gaussian")):
        with pytest.raises(InputError, match=wrong):
            Places.of(collection)
    with pytest.raises(InputError, match="templates' or 'paper"):
        Tuning(recipe="quick")  # pyright: ignore[reportArgumentType]


def test_copies_of_an_image_are_left_out_with_it(images: ImageSet) -> None:
    tiled = moments.Tiled(Source(images) | images.subset(slice(5)))
    weights = tiled.without(3)
    assert (np.flatnonzero(weights[: len(tiled.ids)] < -1e29) == [3, len(images) + 3]).all()
