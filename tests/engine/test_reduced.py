"""Each reduction on one small collection, from the float64 oracle: answers, shares, weights, masses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fpmc import Collection, Group, ImageSet, Source, reference
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.precision import Full, Precisions, Squares
from fpmc.core.response import Responses, SameAsQ
from fpmc.engine import Call, Mass, Mean, Settings, Shares
from fpmc.engine.reduce import Part, Weights
from fpmc.engine.run import find

SIGMA = 0.9
RANDOM = torch.Generator().manual_seed(0)
IMAGES = ImageSet(torch.randint(0, 256, (7, 2, 4, 5), dtype=torch.uint8, generator=RANDOM))
X = IMAGES.scaled(dtype=torch.float64)
Z = torch.randn(3, 2, 4, 5, generator=RANDOM, dtype=torch.float64)
WEIGHTS = torch.linspace(-2, 0, 7, dtype=torch.float64)
SOFT = Precisions(torch.rand(9, 1, 4, 5, generator=RANDOM, dtype=torch.float64))
ANY = Responses(torch.rand(9, 2, 4, 5, generator=RANDOM, dtype=torch.float64) + 0.1)
SQUARES = Squares(3, 4, 5, inside=True)


def collection(weighted: bool, gaussian: bool = False) -> Collection:
    source = Source(IMAGES, WEIGHTS if weighted else None)
    groups = [Group(SOFT, ANY, source), Group(SQUARES, SameAsQ(SQUARES), source).scaled(0.4)]
    if gaussian:
        groups.append(Group(Full(4, 5), SameAsQ(Full(4, 5)), fit_gaussian(source)).scaled(0.3))
    return Collection.of(*groups)


def posteriors(q: Tensor, weighted: bool) -> Tensor:
    return torch.softmax(reference.logits(Z, SIGMA, q, X, WEIGHTS if weighted else None), 2)   # (B, L, N)


def by_value(weighted: bool) -> Tensor:
    """w_n(j) of both groups of images, before the division by Σ r: (B, N, C, H, W)."""
    parts = ((SOFT.dense(torch.float64), ANY.dense(torch.float64), 1.0), *[
        (SQUARES.dense(torch.float64), SQUARES.dense(torch.float64).expand(-1, 2, -1, -1), 0.4)
    ])
    return sum(s * torch.einsum("bln,lchw->bnchw", posteriors(q, weighted), r) for q, r, s in parts)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("settings", [None, Settings(chunk=2)])
def test_mean(weighted: bool, settings: Settings | None) -> None:
    own = collection(weighted)
    expected = (by_value(weighted) * X).sum(1) / own.total
    torch.testing.assert_close(own.reduce(Mean(), Z, SIGMA, settings), expected)
    apart = own.reduce(Mean(apart=True), Z, SIGMA, settings)
    assert len(apart) == 2
    for group, answer in zip(own.groups, apart):
        torch.testing.assert_close(answer, Collection.of(group).denoise(Z, SIGMA))
    torch.testing.assert_close(own.answers(Z, SIGMA, settings), apart)


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("shape", [(2, 4, 5), (1, 4, 5)])
def test_shares(gaussian: bool, shape: tuple[int, int, int]) -> None:
    own = collection(True, gaussian)
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[:, 1:3, 2:] = True
    inside = mask.expand(2, 4, 5)
    reduction = Shares(mask)
    pixels = reduction.pixels(own.total)
    torch.testing.assert_close(pixels, inside / inside.sum() / own.total)
    spoken, share = own.reduce(reduction, Z, SIGMA)
    found = sum(each.sums for each in spoken)
    expected = (by_value(True) / own.total)[:, :, inside].mean(2)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(1) + share, torch.ones(3, dtype=torch.float64))
    assert (float(share) > 0.01) == gaussian
    assert all(each.state is not None for each in spoken)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("settings", [None, Settings(chunk=2)])
def test_weights(weighted: bool, settings: Settings | None) -> None:
    own = collection(weighted)
    reduction = Weights(len(IMAGES))
    plan = own.plan(Call.of(Z, SIGMA), settings, reduction)
    found = sum(each.sums for each in find(plan, Z, reduction, own.total))
    w = by_value(weighted) / own.total
    assert found.shape == (3, 7, 2, 2, 4, 5)
    torch.testing.assert_close(found[:, :, 0], w)
    torch.testing.assert_close(found[:, :, 1], w * X)
    torch.testing.assert_close(w.sum(1), torch.ones(3, 2, 4, 5, dtype=torch.float64))


def test_weights_of_a_stretch_stand_where_it_is() -> None:
    part = Part(2, X[2:4], torch.full((3, 2, 1, 4, 5), 0.5), X[2:4].expand(3, -1, -1, -1, -1))
    whole = Weights(7).sums(part)
    assert whole.shape == (3, 7, 2, 2, 4, 5)
    assert bool((whole[:, 2:4, 0] == 0.5).all())
    assert torch.equal(whole[:, 2:4, 1], part.wx)
    assert not bool(whole[:, :2].any())
    assert not bool(whole[:, 4:].any())


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("settings", [None, Settings(chunk=2)])
def test_masses(weighted: bool, settings: Settings | None) -> None:
    found = collection(weighted, gaussian=True).reduce(Mass(), Z, SIGMA, settings)
    q = torch.cat([SOFT.dense(torch.float64), SQUARES.dense(torch.float64)])
    normal = WEIGHTS - WEIGHTS.logsumexp(0) if weighted else torch.full((7,), -math.log(7), dtype=torch.float64)
    logits = reference.logits(Z, SIGMA, q, X, normal)
    p = torch.softmax(logits, 2)
    torch.testing.assert_close(found.log_mass, logits.logsumexp(2))
    torch.testing.assert_close(found.effective, 1 / p.square().sum(2))
    torch.testing.assert_close(found.entropy, -torch.xlogy(p, p).sum(2))
