"""The torch engine keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from engine.contract import PARTITION, VALUES, Cut, DifferentiableContract, EngineContract
from engine.problems import Maker, close, truth
from fpmc import Collection, ImageSet, presets
from fpmc.core.fpmc import FPMC
from fpmc.core.group import Group
from fpmc.core.precision import Squares
from fpmc.core.response import SameAsQ, pixel
from fpmc.engine import Call, Mean, Settings
from fpmc.engine.kernels import streaming
from fpmc.engine.kernels.attention import Attention, nats
from fpmc.engine.plan import EXACT


class TestTorch(EngineContract, DifferentiableContract):
    settings: ClassVar = {"backend": "torch"}


class TestProducts(EngineContract):
    """Posteriors from products: attention and the expanded form in float64, taken wherever they are exact enough."""

    settings: ClassVar = {"backend": "torch"}

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _cost_nothing(cls) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for kernel in (Attention, streaming.Double):
                patch.setattr(kernel, "seconds", property(lambda _: 0.0))
            yield

    @pytest.mark.parametrize("source", ["images", "weighted", "union"])
    @pytest.mark.parametrize("query", ["inside", "centred"])
    @examples(max_examples=25)
    @given(data=st.data())
    def test_squares_in_any_partition(self, query: str, source: str, data: st.DataObject) -> None:
        maker = Maker(data.draw, (0.6, 1.1, 5.3, 80.0))
        q = maker.query(query)
        r = SameAsQ(q) if data.draw(st.booleans()) or query == "inside" else pixel(maker.height, maker.width)
        problem = maker.problem(Group(q, r, maker.source(source), maker.weight()))
        settings = Settings(backend="torch")
        whole = problem.collection.denoise(problem.z, problem.sigma, settings)
        close(whole, problem.truth(), VALUES)
        cut = Cut(data.draw(st.randoms(use_true_random=False)))
        close(problem.collection.denoise(problem.z, problem.sigma, settings, cut), whole, PARTITION)

    @pytest.mark.parametrize("sigma", [0.5, 3.0])
    @pytest.mark.parametrize("r", ["pixel", "patch"])
    def test_attention_is_what_runs(self, r: str, sigma: float) -> None:
        q = Squares(3, 6, 6, inside=r == "patch")
        images = ImageSet(torch.randint(256, (20, 3, 6, 6), dtype=torch.uint8))
        collection = Collection(q, pixel(6, 6) if r == "pixel" else SameAsQ(q), images)
        (step,) = collection.plan(Call(sigma, 2), Settings(backend="torch")).steps
        assert isinstance(step, Attention)
        close(collection.denoise(torch.zeros(2, 3, 6, 6), sigma, Settings(backend="torch", memory=1 << 20)),
              truth(collection, torch.zeros(2, 3, 6, 6), sigma), VALUES)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("ground", [0, 128])
def test_where_attention_is_allowed_it_is_good_enough(size: int, ground: int) -> None:
    """At the smallest σ that gets it: copies a few grey levels apart, so that every nat shows; logits, too."""
    random = torch.Generator().manual_seed(3)
    steps = torch.randint(-40, 41, (300, 3, 12, 12), generator=random)
    images = ImageSet((ground + steps).clip(0, 255).byte())
    levels = [0.002 * 1.1**i for i in range(120)]
    sigma = next(sigma for sigma in levels if nats(3 * size**2, Call(sigma)) <= EXACT)
    q = Squares(size, 12, 12, inside=True)
    collection = Collection(q, SameAsQ(q), images)
    z = images.scaled(slice(8))
    z = z + sigma * torch.randn(z.shape, generator=random)
    only = Settings(backend="torch", kernels=("attention",))
    close(collection.denoise(z, sigma, only), truth(collection, z, sigma), VALUES)
    (step,) = collection.plan(Call(sigma, 8), only).steps
    run = step.start(collection.groups, z, Mean(), collection.total)
    half = run.first(0, 150).merge(run.first(150, 300))
    distance = (z[:, None] - images.scaled()).double().square()[..., :size, :size].sum((2, 3, 4))
    patch = z[..., :size, :size].double().square().sum((1, 2, 3))
    expected = torch.logsumexp((patch[:, None] - distance) / (2 * sigma**2), 1)
    close(half.log_mass[:, 0], expected, EXACT)


def test_only_gradients_that_are_wanted_are_prepared_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def checkpoint(function, *args, **_):
        calls.append(function)
        return function(*args)

    monkeypatch.setattr(streaming, "checkpoint", checkpoint)
    images, z = ImageSet(torch.arange(36).byte().view(4, 1, 3, 3)), torch.zeros(1, 1, 3, 3)
    denoiser = presets.ls(images, schedule=3).using(backend="torch")
    assert not denoiser(z, 1.0).requires_grad
    assert not calls
    assert denoiser(z.clone().requires_grad_(), 1.0).requires_grad
    assert len(calls) == 1
    learned = torch.ones(9, 1, 3, 3, requires_grad=True)
    assert FPMC(Collection(learned, learned, images))(z, 1.0).requires_grad
    with torch.no_grad():
        assert not FPMC(Collection(learned, learned, images))(z, 1.0).requires_grad
