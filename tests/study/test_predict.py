"""Predictions: counted work in the right proportions, and a speed for every kind of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fpmc.core.fpmc import FPMC
from fpmc.engine import Call
from fpmc.learn.finetune import LAPTOP, Tuning
from fpmc.study import predict, tasks
from fpmc.study.build import build
from fpmc.study.graph import Work, ordered
from fpmc.study.lab import Lab
from fpmc.study.methods import LS, MULTISCALE, NETWORK, PSPC_FLEX, lukoianov
from fpmc.study.paper import EXPERIMENTS, load
from study.tiny import TINY, small_lab


def test_a_sample_is_an_evaluation_at_the_ends_and_two_in_between(lab: Lab):
    assert predict.samples(lab, NETWORK, 3).amounts == {"network": 3 * 35}
    assert predict.synthetic(lab, 10).amounts == {"network": 350}


def test_work_is_the_plans_where_it_is_cheap_to_plan(lab: Lab):
    sigma = lab.level(1.09)
    denoiser = build(lab, LS, {})
    assert isinstance(denoiser, FPMC)
    step = denoiser.at(sigma).plan(Call(sigma, predict.BATCH)).steps[0]
    assert predict.calls(lab, LS, [sigma], 7).amounts == {step.kernel: 7 * step.work}


def test_more_images_more_work(lab: Lab):
    sigma = lab.level(1.09)
    amount = predict.per_image(lab, PSPC_FLEX, sigma)["rows"]
    assert predict.per_image(lab, replace(PSPC_FLEX, augment="xflip"), sigma) == {"rows": 2 * amount}
    assert list(predict.per_image(lab, PSPC_FLEX, 80.0)) == ["full"]


def test_soft_zeros_make_matrices(lab: Lab):
    soft, sigma = replace(PSPC_FLEX, soft="qr"), lab.level(1.09)
    dense = small_lab(scale=replace(TINY, tuning=Tuning()))
    assert list(predict.per_image(dense, soft, sigma)) == ["matrix"]
    assert set(predict.tuning(dense, soft, sigma).amounts) == {"matrix", "network"}
    sparse = small_lab(scale=replace(TINY, tuning=LAPTOP))
    assert set(predict.tuning(sparse, soft, sigma).amounts) == {"rows", "network"}


def test_what_cannot_change_is_not_learned():
    sparse = small_lab(scale=replace(TINY, tuning=LAPTOP))
    assert [tasks.learned(sparse, lukoianov(0.05), soft) for soft in ("", "q", "r", "qr")] == ["", "q", "", "q"]
    assert tasks.learned(sparse, PSPC_FLEX, "qr") == "qr"
    raised = small_lab(scale=replace(TINY, tuning=Tuning()))
    assert tasks.learned(raised, lukoianov(0.05), "qr") == "qr"


def test_a_fit_asks_every_group(lab: Lab):
    one = predict.calls(lab, MULTISCALE, [1.0], lab.scale.fit).amounts
    asked = predict.groups(lab, 1.0, lab.scale.fit, False)
    assert asked.amounts == pytest.approx(
        {kind: amount / predict.LEFT for kind, amount in one.items()}
    )
    assert tasks.fitted(lab, 1.0, False).predict().amounts == asked.amounts
    wider = tasks.fitted(lab, 1.0, True).predict()
    assert wider.amounts["boxes"] > 2 * asked.amounts["boxes"]
    assert wider.memory > asked.memory


def test_seconds_are_work_over_speed():
    assert predict.seconds(Work({"rows": 10.0, "network": 4.0}), {"rows": 5.0, "network": 8.0}) == pytest.approx(2.5)


def test_every_task_can_be_predicted(lab: Lab):
    works = [task.predict() for task in ordered(task for one in load(EXPERIMENTS, lab) for task in one.tasks)]
    kinds = {kind for work in works for kind in work.amounts}
    assert {"network", "reference", "affine", "full", "boxes", "rows", "shifts"} <= kinds
    speeds = predict.measure(lab, sorted(kinds | {"matrix"}))
    assert min(speeds.values()) > 0
    assert all(work.memory > 0 for work in works)
    assert tasks.maps(lab, 1.0).predict().amounts["network"] > lab.dimension
