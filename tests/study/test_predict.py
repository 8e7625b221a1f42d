"""Predictions: counted work in the right proportions, and a speed for every kind of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fpmc.core.fpmc import FPMC
from fpmc.engine import Call, cost
from fpmc.learn.finetune import TEMPLATES, Tuning
from fpmc.study import predict, tasks
from fpmc.study.build import build
from fpmc.study.graph import Cache, Made, Task, Work, ordered
from fpmc.study.lab import Lab
from fpmc.study.methods import LS, NETWORK, PSPC_FLEX, lukoianov
from fpmc.study.paper import EXPERIMENTS, load
from fpmc.study.reproduce import predicted
from study.tiny import TINY, small_lab


def test_a_sample_is_an_evaluation_at_the_ends_and_two_in_between(lab: Lab):
    assert predict.samples(lab, NETWORK, 3).amounts == {"network": 3 * 35}
    assert predict.synthetic(lab, 10).amounts == {"network": 350}


def test_work_is_the_plans(lab: Lab):
    sigma = lab.level(1.09)
    denoiser = build(lab, LS, {})
    assert isinstance(denoiser, FPMC)
    step = denoiser.at(sigma).plan(Call(sigma, predict.BATCH)).steps[0]
    found = predict.calls(lab, LS, [sigma], 7).amounts
    assert found == pytest.approx({kind: 7 * count for kind, count in step.counts.items()})


def test_more_images_more_work(lab: Lab):
    sigma = lab.level(1.09)
    alone = predict.per_image(lab, PSPC_FLEX, sigma)
    twice = predict.per_image(lab, replace(PSPC_FLEX, augment="xflip"), sigma)
    assert twice == pytest.approx({kind: 2 * amount for kind, amount in alone.items()})


def test_soft_zeros_make_products(lab: Lab):
    soft, sigma = replace(PSPC_FLEX, soft="qr"), lab.level(1.09)
    dense = small_lab(scale=replace(TINY, tuning=Tuning()))
    assert {"product", "network"} <= set(predict.tuning(dense, soft, sigma).amounts)
    for tuning in (TEMPLATES, Tuning(floor_q=0, floor_r=0)):
        sparse = small_lab(scale=replace(TINY, tuning=tuning))
        assert {"tile.entry", "network"} <= set(predict.tuning(sparse, soft, sigma).amounts)
        assert predict.tuning(sparse, soft, sigma).amounts["tile.entry"] > 0


def test_what_cannot_change_is_not_learned():
    sparse = small_lab(scale=replace(TINY, tuning=Tuning(floor_q=0, floor_r=0)))
    assert [tasks.learned(sparse, lukoianov(0.05), soft) for soft in ("", "q", "r", "qr")] == ["", "q", "", "q"]
    assert tasks.learned(sparse, PSPC_FLEX, "qr") == "qr"
    for tuning in (Tuning(), TEMPLATES):
        free = small_lab(scale=replace(TINY, tuning=tuning))
        assert tasks.learned(free, lukoianov(0.05), "qr") == "qr"


def test_a_fit_asks_every_group(lab: Lab):
    asked = predict.groups(lab, 1.0, lab.scale.fit, False)
    assert tasks.fitted(lab, 1.0, False).predict().amounts == asked.amounts
    wider = tasks.fitted(lab, 1.0, True).predict()
    assert cost.seconds(wider.amounts) > 2 * cost.seconds(asked.amounts)
    assert wider.memory > asked.memory


def test_seconds_are_costs_and_what_networks_take(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cost, "machine_factor", lambda: 2.0)
    work = Work({"product": 1e9, "network": 4.0})
    expected = 2 * cost.nanoseconds()["product"] / torch.get_num_threads() + 4 * 0.5
    assert predict.seconds(work, {"network": 0.5}) == pytest.approx(expected)


def test_what_was_measured_corrects_what_is_predicted(lab: Lab, tmp_path):
    jobs = [
        Task(f"kind/{k}", _nothing, {"k": k}, predict=lambda: Work({"product": 1e9})) for k in range(3)
    ]
    cache = Cache(tmp_path)
    plain = predicted(lab, jobs, cache)[jobs[2].key]
    for job in jobs[:2]:
        cache.put(job, Made({}, {}), 3 * plain)
    assert predicted(lab, jobs, cache) == pytest.approx({jobs[2].key: 3 * plain})


def _nothing(lab: Lab, inputs, scratch, k: int) -> Made:
    return Made({}, {})


def test_every_task_can_be_predicted(lab: Lab):
    works = [task.predict() for task in ordered(task for one in load(EXPERIMENTS, lab) for task in one.tasks)]
    kinds = {kind for work in works for kind in work.amounts}
    assert {"network", "reference", "fused.element", "fused.entry"} <= kinds
    assert kinds - set(predict.TIMED) <= set(cost.nanoseconds())
    timed = predict.measure(lab, sorted(kinds))
    assert min(timed.values()) > 0
    assert all(predict.seconds(work, timed) >= 0 and work.memory > 0 for work in works)
    assert tasks.maps(lab, 1.0).predict().amounts["gradient"] >= lab.dimension
