"""The running sums: cut anywhere, merged in any order, they are the posterior's (Eq. "mod_posterior")."""

from __future__ import annotations

from functools import reduce

import pytest
import torch
from torch import Tensor

from fpmc.engine.state import State

IMAGES, ESTIMATORS = 9, 3
OWNER = torch.tensor([0, 0, 1, 2, 2, 2])


def rand(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOGITS, X = rand(2, IMAGES, ESTIMATORS, scale=30.0), rand(IMAGES, len(OWNER), seed=1)


def stretch(begin: int, end: int, owner: Tensor | None = OWNER) -> State:
    """The sums over some images."""
    empty = State.empty(LOGITS[:, 0], ESTIMATORS, owner)
    if owner is None:
        return empty.add(LOGITS[:, begin:end])

    def moments(weights: Tensor) -> Tensor:
        return torch.einsum("bns,ns->bs", weights[:, :, owner], X[begin:end])

    return empty.add(LOGITS[:, begin:end], moments)


def check(state: State) -> None:
    torch.testing.assert_close(state.log_mass, LOGITS.logsumexp(1))
    assert torch.equal(state.top, LOGITS.amax(1))
    torch.testing.assert_close(state.mass, (LOGITS - LOGITS.amax(1, keepdim=True)).exp().sum(1))
    means = torch.einsum("bns,ns->bs", torch.softmax(LOGITS, 1)[:, :, OWNER], X)
    torch.testing.assert_close(state.finish(), means)


@pytest.mark.parametrize("cuts", [(), (4,), (1, 5), (1, 2, 3, 4, 5, 6, 7, 8)])
def test_cut_anywhere_and_merged_in_any_order(cuts: tuple[int, ...]) -> None:
    parts = [stretch(*ends) for ends in zip((0, *cuts), (*cuts, IMAGES))]
    check(reduce(State.merge, parts))
    check(reduce(State.merge, parts[::-1]))
    check(reduce(State.merge, [State.empty(LOGITS[:, 0], ESTIMATORS, OWNER), *parts]))


def test_added_one_after_the_other() -> None:
    state = State.empty(LOGITS[:, 0], ESTIMATORS, OWNER)
    for n in range(IMAGES):
        state = state.add(LOGITS[:, n : n + 1], lambda w, n=n: w[:, 0, OWNER] * X[n])
    check(state)


def test_nothing_yet_is_no_mass_and_no_number_that_is_none() -> None:
    empty = State.empty(torch.zeros(2, 1), ESTIMATORS, OWNER)
    assert (empty.top.shape, empty.mass.shape, empty.moment.shape) == ((2, 3), (2, 3), (2, 6))
    assert bool((empty.top == -torch.inf).all())
    assert not bool(empty.mass.any())
    assert not bool(empty.moment.any())
    both = empty.merge(empty)
    assert not bool(both.mass.isnan().any())
    assert bool((both.top == -torch.inf).all())
    assert both.top.dtype == both.mass.dtype == torch.float32
    assert State.empty(torch.zeros(2, 1), ESTIMATORS).moment is None


def test_without_slots_only_the_mass_is_kept() -> None:
    state = stretch(0, 4, None).merge(stretch(4, IMAGES, None))
    torch.testing.assert_close(state.log_mass, LOGITS.logsumexp(1))
    assert state.moment is None


def test_images_without_weight_add_nothing() -> None:
    logits = LOGITS.clone()
    logits[:, :4] = -torch.inf
    state = State.empty(LOGITS[:, 0], ESTIMATORS).add(logits[:, :5]).add(logits[:, 5:])
    torch.testing.assert_close(state.log_mass, LOGITS[:, 4:].logsumexp(1))


def test_one_estimator_needs_no_owner() -> None:
    state = State.empty(torch.zeros(2, 1, dtype=torch.float64), 1, torch.zeros(6, dtype=torch.long))
    state = state.add(LOGITS[:, :, :1], lambda w: (w.mT @ X).flatten(1))
    torch.testing.assert_close(state.finish(), torch.softmax(LOGITS[:, :, 0], 1) @ X)


def test_gradients_ignore_the_largest_logit() -> None:
    logits = LOGITS[:, :4].clone().requires_grad_()
    state = State.empty(LOGITS[:, 0], ESTIMATORS).add(logits)
    assert not state.top.requires_grad
    (state.log_mass * rand(2, ESTIMATORS, seed=3)).sum().backward()
    expected = torch.softmax(LOGITS[:, :4], 1) * rand(2, ESTIMATORS, seed=3)[:, None]
    torch.testing.assert_close(logits.grad, expected)
