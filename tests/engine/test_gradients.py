"""The closed-form gradients of fine-tuning equal autograd through the float64 reference (Eq. "obj")."""

from __future__ import annotations

import random as chance
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from engine.contract import Cut
from fpmc import reference
from fpmc.core.precision import Squares
from fpmc.core.response import one_hot, pixel
from fpmc.core.sources import Source
from fpmc.engine import Alone, gradients
from fpmc.engine import settings as machine
from fpmc.engine.gradients import Fixed, loss_and_gradients, route
from fpmc.engine.simd import gradients as sparse_gradients
from fpmc.images import ImageSet

CHANNELS, HEIGHT, WIDTH = 3, 5, 4
KINDS = {
    "soft": lambda r: (_soft(r, 7, 1), _soft(r, 7, 1)),
    "soft per channel": lambda r: (_soft(r, 7, CHANNELS), _soft(r, 7, CHANNELS)),
    "q per channel": lambda r: (_soft(r, 7, CHANNELS), _soft(r, 7, 1)),
    "r per channel": lambda r: (_soft(r, 7, 1), _soft(r, 7, CHANNELS)),
    "ls": lambda r: (Squares(3, HEIGHT, WIDTH).dense() + 1e-3, pixel(HEIGHT, WIDTH).dense() + 1e-3),
    "pspc": lambda r: (Squares(2, HEIGHT, WIDTH, inside=True).dense(),) * 2,
    "one-hot": lambda r: (_soft(r, 60, CHANNELS), one_hot(CHANNELS, HEIGHT, WIDTH).dense()),
    "one estimator": lambda r: (_soft(r, 1, 1), _soft(r, 1, 1)),
}
SOURCES = {
    "all": lambda images: Source(images),
    "left out": lambda images: Source(images).without([0, 1, 2]),
    "monte carlo": lambda images: Source(images).without([0, 1, 2]).subset(torch.tensor([3, 9, 11, 5, 20, 21])),
    "weighted": lambda images: Source(images, torch.linspace(-2, 2, len(images))),
}


def _soft(random: torch.Generator, length: int, channels: int) -> Tensor:
    return torch.randn(length, channels, HEIGHT, WIDTH, generator=random).exp()


class Problem(NamedTuple):
    """What to differentiate, in float64, and what autograd says about log q and log r."""

    z: Tensor
    target: Tensor
    q: Tensor
    r: Tensor
    source: Source
    fixed: Fixed
    loss: float
    truths: tuple[Tensor, ...]

    def single(self) -> tuple:
        return self.z.float(), self.target.float(), self.q.float(), self.r.float(), self.source, self.fixed


def problem(kind: str, source: str, sigma: float, share: float = 0.0) -> Problem:
    """share: of the response of estimators that are not learned."""
    random = torch.Generator().manual_seed(1)
    values = 127.5 + 80 * torch.randn(25, 1, 1, 1, generator=random) / 2
    values = values + 40 * torch.randn(25, CHANNELS, HEIGHT, WIDTH, generator=random)
    images = ImageSet(values.clip(0, 255).byte())
    chosen = SOURCES[source](images)
    q, r = (t.double().requires_grad_() for t in KINDS[kind](random))
    z = (images.scaled(slice(4)) + sigma * torch.randn(4, *images.shape, generator=random)).double()
    target = torch.randn(z.shape, generator=random).double()
    x = torch.cat([part.scaled(dtype=torch.float64) for part in chosen.parts])
    beside = torch.randn(z.shape, generator=random).double(), torch.rand(r[0].shape, generator=random).double()
    fixed = Fixed(share * beside[0], share * beside[1])
    means = reference.posterior_means(z, sigma, q, x, chosen.log_weights)
    denoised = ((r * means).sum(1) + fixed.numerator) / (r.sum(0) + fixed.total)
    loss = (denoised - target).square().mean()
    truths = tuple(t.detach() * g for t, g in zip((q, r), torch.autograd.grad(loss, (q, r))))
    return Problem(z, target, q.detach(), r.detach(), chosen, fixed, loss.item(), truths)


def close(found: gradients.Gradients, truths: tuple[Tensor, ...], relative: float) -> None:
    for ours, exact in zip((found.log_q, found.log_r), truths):
        assert ours is not None
        assert ours.shape == exact.shape
        assert (ours - exact).norm() <= relative * exact.norm() + 1e-6


@pytest.mark.parametrize("sigma", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_autograd(kind: str, source: str, sigma: float) -> None:
    p = problem(kind, source, sigma)
    for memory in (1 << 28, 20_000):                    # posteriors kept, and computed again in small parts
        found = loss_and_gradients(p.z, p.target, sigma, p.q, p.r, p.source, memory=memory)
        assert abs(found.loss - p.loss) < 1e-10
        for ours, exact in zip((found.log_q, found.log_r), p.truths):
            assert ours is not None
            assert (ours - exact).abs().max() <= 1e-8 * exact.abs().max() + 1e-15
        z, target, q, r, *_ = p.single()
        close(loss_and_gradients(z, target, sigma, q, r, p.source, memory=memory), p.truths, 1e-3)


@pytest.mark.parametrize("sigma", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_sparse_gradients_equal_autograd(kind: str, source: str, sigma: float) -> None:
    p = problem(kind, source, sigma, share=0.5)
    z, target, q, r, chosen, fixed = p.single()
    found = sparse_gradients.loss_and_gradients(z, target, sigma, q, r, chosen, fixed, ("q", "r"))
    assert abs(found.loss - p.loss) < 1e-4 * p.loss
    close(found, p.truths, 1e-3)
    again = sparse_gradients.loss_and_gradients(z, target, sigma, q, r, chosen, fixed, ("q", "r"))
    for first, second in zip(found[1:], again[1:]):
        assert first is not None
        assert second is not None
        assert torch.equal(first, second)


@pytest.mark.parametrize("sigma", [0.1, 10.0])
@pytest.mark.parametrize("source", ["all", "left out"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_do_not_depend_on_how_the_source_is_cut(kind: str, source: str, sigma: float) -> None:
    """In stretches of one member, and with members that have a stretch each, one of them empty."""
    p = problem(kind, source, sigma, share=0.5)
    z, target, q, r, chosen, fixed = p.single()

    def both(team: Alone) -> tuple[gradients.Gradients, gradients.Gradients]:
        exact = loss_and_gradients(p.z, p.target, sigma, p.q, p.r, p.source, fixed=p.fixed, team=team)
        return exact, sparse_gradients.loss_and_gradients(z, target, sigma, q, r, chosen, fixed, ("q", "r"), team)

    for exact, single in (both(Cut(chance.Random(1))), *Member.together((0, 9, 9, 25), both)):
        assert abs(exact.loss - p.loss) < 1e-10
        close(exact, p.truths, 1e-9)
        close(single, p.truths, 1e-3)


class Member(Alone):
    """One of several threads that stand for ranks."""

    def __init__(self, number: int, shares: list[float], table: list, meeting: Barrier) -> None:
        self.number, self.shares, self.table, self.meeting = number, shares, table, meeting

    @classmethod
    def together(cls, ends: tuple[int, ...], call: Callable[[Alone], Any]) -> list[Any]:
        """What each member finds; `ends` are where the stretches end, were there as many images as the last one."""
        size, shares = len(ends) - 1, [end / ends[-1] for end in ends]
        table, meeting = [None] * size, Barrier(size, timeout=60)
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(call, [cls(number, shares, table, meeting) for number in range(size)]))

    def stretches(self, count: int) -> list[tuple[int, int]]:
        return [(round(self.shares[self.number] * count), round(self.shares[self.number + 1] * count))]

    def gathered(self, tensors):
        self.table[self.number] = tensors
        self.meeting.wait()
        found = [[each.clone() for each in member] for member in self.table]
        self.meeting.wait()
        return found


def test_estimators_that_are_not_learned_count() -> None:
    p = problem("q per channel", "left out", 1.0, share=0.5)
    found = loss_and_gradients(p.z, p.target, 1.0, p.q, p.r, p.source, fixed=p.fixed)
    assert abs(found.loss - p.loss) < 1e-10
    close(found, p.truths, 1e-9)


def test_several_tiles_of_images_and_several_threads_give_the_same() -> None:
    random = torch.Generator().manual_seed(2)
    images = ImageSet(torch.randint(0, 256, (150, CHANNELS, HEIGHT, WIDTH), generator=random, dtype=torch.uint8))
    q = Squares(3, HEIGHT, WIDTH, inside=True).dense()
    z = images.scaled(slice(5)) + torch.randn(5, *images.shape, generator=random)
    fixed = Fixed(torch.zeros_like(z), torch.zeros(1, HEIGHT, WIDTH))
    arguments = z, torch.zeros_like(z), 1.0, q, q, Source(images), fixed, ("q", "r")
    dense = gradients.dense_gradients(*(t.double() if isinstance(t, Tensor) else t for t in arguments), 1 << 28)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            close(sparse_gradients.loss_and_gradients(*arguments), (dense.log_q, dense.log_r), 1e-5)  # pyright: ignore
    finally:
        torch.set_num_threads(threads)


def test_the_sparse_way_is_taken_where_it_is_cheaper_and_open() -> None:
    q = Squares(5, 28, 28, inside=True).dense()
    way = route(q, q, 2000, 1)
    assert way.takes_sparse
    assert way.sparse < way.dense / 5
    assert not route(q + 1e-6, q + 1e-6, 2000, 1).takes_sparse
    assert not route(q.double(), q.double(), 2000, 1).takes_sparse
    assert not route(q, q, 2000, 1, memory=1 << 20).takes_sparse
    assert not route(q, q, 2000, 1, numba=False).takes_sparse


def test_without_numba_the_dense_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem("pspc", "all", 1.0)
    z, target, q, r, *_ = p.single()

    def absent(*_) -> None:
        raise AssertionError("the sparse way was taken")

    monkeypatch.setattr(machine, "has_numba", lambda: False)
    monkeypatch.setattr(sparse_gradients, "loss_and_gradients", absent)
    close(loss_and_gradients(z, target, 1.0, q, r, p.source), p.truths, 1e-3)


def test_only_what_is_learned_is_computed() -> None:
    images = ImageSet(torch.arange(180, dtype=torch.uint8).view(3, CHANNELS, HEIGHT, WIDTH))
    z = images.scaled()
    for q in (torch.ones(2, 1, HEIGHT, WIDTH), Squares(1, HEIGHT, WIDTH, inside=True).dense()):      # dense, sparse
        assert loss_and_gradients(z, z, 1.0, q, q, Source(images), learn=("q",)).log_r is None
        assert loss_and_gradients(z, z, 1.0, q, q, Source(images), learn=("r",)).log_q is None
