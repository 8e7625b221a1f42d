"""What the page is told is what the denoisers do: shares add up to 1, answers add up to D, paths are samples."""

from __future__ import annotations

import json

import pytest
import torch

import fpmc
from explore.world import Shrink, smooth
from fpmc.core.response import SameAsQ
from fpmc.explore import requests as ask
from fpmc.explore.pack import pack, smaller, unpack
from fpmc.explore.path import STEPS
from fpmc.explore.pixel import group_weights, name_of, pixel
from fpmc.explore.session import Session
from fpmc.explore.shares import UNIT, in_print


def all_of(session: Session, denoiser: int, level: int, **more):
    asked = ask.WhichImages(denoiser=denoiser, level=level, start=ask.Start(seed=3), top=4096, **more)
    return json.loads(json.dumps(session.shares(asked)))            # as the page gets it


@pytest.mark.parametrize("level", [0, 9, 12, 17])
@pytest.mark.parametrize("region", [None, (2, 3, 2, 3), (1, 1, 6, 4)])
def test_shares_sum_to_one_and_answers_to_the_denoiser(session, level, region):
    found = all_of(session, 0, level, region=region)
    assert sum(row["share"] for row in found["images"]) + found["others"] == pytest.approx(1, abs=1e-5)
    assert found["gaussian"] == 0
    total = sum(unpack(row["answer"]).astype(float) for row in found["images"])
    path = session.path(ask.Way(denoiser=0, start=ask.Start(seed=3)))
    z, answer = path.upto(level)
    direct = session.denoisers[0](z, path.levels[level])
    assert (torch.from_numpy(total) - direct[0]).abs().max() < 1e-5
    assert (answer - direct).abs().max() < 1e-5


def test_a_click_uses_the_answer_that_is_there(session, monkeypatch):
    path = session.path(ask.Way(denoiser=0, start=ask.Start(seed=3)))
    _, answer = path.upto(12)
    monkeypatch.setattr(fpmc.FPMC, "__call__", lambda *given: pytest.fail("worked out once more"))
    found = all_of(session, 0, 12, region=(7, 7, 7, 7))
    assert torch.equal(torch.from_numpy(unpack(found["answer"]).copy()), answer[0])


def test_a_gaussian_share_is_shown_as_such(session):
    found = all_of(session, 1, 10)
    assert 0 < found["gaussian"] < 1
    assert sum(row["share"] for row in found["images"]) + found["gaussian"] == pytest.approx(1, abs=1e-5)
    names = {row["name"] for row in session.weights(ask.Level(denoiser=1, level=10))["groups"]}
    assert "Gaussian (Wiener filter)" in names
    assert {"3×3 patches", "5×5 patches", "whole images"} <= names


@pytest.mark.parametrize("weights", [[0.5, 0.5], [1 / 3] * 3, [0.00005] * 16 + [0.9992], [1.0], [0.123456, 0.2], []])
def test_shares_in_print_sum_to_one(weights):
    shown, others, gaussian = in_print(weights, 0.0 if weights else 1.0)
    assert sum(shown) + others + gaussian == UNIT
    assert min([*shown, others, gaussian]) >= 0
    assert all(abs(a / UNIT - b) < 1e-3 for a, b in zip(shown, weights))


def test_a_path_is_the_sample_of_its_seed(session):
    for denoiser in range(3):
        path = session.path(ask.Way(denoiser=denoiser, start=ask.Start(seed=5)))
        _, last = path.upto(STEPS - 1)
        expected = fpmc.sample(session.denoisers[denoiser], seeds=[5]).images
        assert (last - expected).abs().max() < 1e-5


def test_soft_collections_and_colour_and_copies():
    images = smooth(30, channels=3)
    random = torch.Generator().manual_seed(0)
    q = torch.rand(7, 3, 10, 10, generator=random)
    soft = fpmc.FPMC(fpmc.Collection(q, q, images), name="soft")
    both = fpmc.Source(images) | fpmc.augment(images, "xflip")
    session = Session([soft, fpmc.presets.optimal(both), fpmc.presets.els(images, schedule=3)], both)
    for denoiser in range(3):
        found = all_of(session, denoiser, 11)
        total = sum(unpack(row["answer"]).astype(float) for row in found["images"])
        assert sum(row["share"] for row in found["images"]) + found["others"] == pytest.approx(1, abs=1e-5)
        assert (torch.from_numpy(total) - torch.from_numpy(unpack(found["answer"]).copy())).abs().max() < 2e-5
    sets = {(row["set"], row["copy"]) for row in all_of(session, 1, 2)["images"]}
    assert sets == {("clouds", False), ("clouds+xflip", True)}


def test_large_images():
    images = smooth(12, size=64, channels=3)
    session = Session([fpmc.presets.ls(images, schedule=5)], images)
    found = all_of(session, 0, 12, region=(0, 0, 9, 9))
    assert sum(row["share"] for row in found["images"]) + found["others"] == pytest.approx(1, abs=1e-5)
    assert session.pixel(ask.Pixel(denoiser=0, sigma=0.4, y=63, x=63))["asked"] == 9


def test_what_a_pixel_asks_is_the_dense_sum(session):
    for denoiser in range(2):
        for sigma in (0.05, 1.0, 20.0):
            collection = session.denoisers[denoiser].at(sigma)
            found = pixel(collection, 2, 7)
            asks = speaks = torch.zeros(10, 10, dtype=torch.float64)
            for group in collection.groups:
                weights = group.response(torch.float64)[:, 0, 2, 7] / collection.total[0, 2, 7]
                asks = asks + (weights[:, None, None] * group.q.dense(torch.float64)[:, 0]).sum(0)
                speaks = speaks + (weights[:, None, None] * group.r.dense(torch.float64)[:, 0]).sum(0)
            assert (torch.from_numpy(unpack(found["q"]).copy()) - asks).abs().max() < 1e-5
            assert (torch.from_numpy(unpack(found["r"]).copy()) - speaks).abs().max() < 1e-5
            assert sum(row["share"] for row in group_weights(collection)) == pytest.approx(1)


def test_knocking_out_is_the_denoiser_without(session, images):
    asked = ask.Answer(denoiser=0, level=12, start=ask.Start(seed=3), without=(4, 7))
    found = session.answer(asked)
    path = session.path(ask.Way(denoiser=0, start=ask.Start(seed=3)))
    z, before = path.upto(12)
    expected = session.denoisers[0].without([4, 7])(z, path.levels[12])
    assert (torch.from_numpy(unpack(found["after"]).copy()) - expected[0]).abs().max() < 1e-6
    assert (torch.from_numpy(unpack(found["before"]).copy()) - before[0]).abs().max() < 1e-6


def test_a_network_says_that_it_has_no_images(session):
    with pytest.raises(fpmc.InputError, match="is a network: it holds no training images"):
        all_of(session, 2, 3)


def test_painting_and_own_pictures_begin_a_path(session):
    paint = ask.Paint(denoiser=0, level=10, strokes=((1, 2, 0.5), (3, 3, -1)))
    path = session.path(ask.Way(denoiser=1, start=ask.Start(seed=3, paint=paint)))
    z, _ = path.upto(0)
    assert (z[0, 0, 1, 2], z[0, 0, 3, 3]) == (0.5, -1)
    original, _ = session.path(ask.Way(denoiser=0, start=ask.Start(seed=3))).upto(10)
    assert (z != original).sum() == 2
    assert path.length == STEPS - 10
    with pytest.raises(fpmc.InputError, match="no longer here"):
        session.path(ask.Way(denoiser=0, start=ask.Start(own=ask.Own(picture="0" * 16, sigma=1))))


def test_denoisers_of_other_images_are_refused(images):
    with pytest.raises(fpmc.InputError, match="give some of one shape"):
        Session([fpmc.presets.optimal(smooth(5, size=12))], images)
    with pytest.raises(fpmc.InputError, match="give some of one shape"):
        Session([], images, [Shrink()])


def test_packing():
    values = torch.linspace(-3, 5, 24).view(2, 3, 4)
    assert torch.equal(torch.from_numpy(unpack(pack(values)).copy()), values)
    small = smaller({"a": [pack(values)], "b": 1})["a"][0]
    back = small["low"] + unpack(small) / 255 * (small["high"] - small["low"])
    assert abs(back - values.numpy()).max() < 8 / 255
    assert name_of(fpmc.Group(*(lambda q: (q, SameAsQ(q)))(fpmc.core.precision.Full(3, 3)), fpmc.Source(smooth(3, 3))))
