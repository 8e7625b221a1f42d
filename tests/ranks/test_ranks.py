"""One call over 1, 2, 3 and 5 ranks is the call of one process, and all ranks have the same answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from engine.problems import close, truth
from ranks import cases
from ranks.world import World

SAME = 1e-6                                             # one world and another
VALUES = 1e-4                                           # float32 against the float64 truth, as for one process
WORLDS = (1, 2, 3, 5)


@pytest.fixture(scope="module", params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param)
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone() -> dict:
    """What one process answers, computed once."""
    return {}


def once(alone: dict, case, *args) -> dict[object, Tensor]:
    if (case, args) not in alone:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        found = case(*args)
        alone[case, args] = found if isinstance(found, dict) else dict(enumerate(found))
        torch.set_num_threads(before)
    return alone[case, args]


def check(world: World, alone: dict, case, *args, cut: str, relative: bool = False, within: float = SAME) -> None:
    """All ranks answer the same to the last bit, and what one process answers but for rounding."""
    first, *others = world.run(case, *args, cut)
    first, *others = (each if isinstance(each, dict) else dict(enumerate(each)) for each in (first, *others))
    expected = once(alone, case, *args, None)
    assert first.keys() == expected.keys()
    for key, found in first.items():
        assert all(torch.equal(each[key], found) for each in others), f"ranks differ in {key}"
        size = max(1.0, expected[key].abs().max().item()) if relative else 1.0
        try:
            close(found, expected[key], within * size)
        except AssertionError as error:
            raise AssertionError(f"{case.__name__} {args} {key}: {error}") from error


@pytest.mark.parametrize("name", cases.DENOISERS)
def test_answers(world: World, alone: dict, name: str) -> None:
    check(world, alone, cases.answers, name, cut="even")


@pytest.mark.parametrize("name", ["mixed", "pspc_square", "in torch", "few images"])
def test_answers_of_uneven_and_empty_stretches(world: World, alone: dict, name: str) -> None:
    check(world, alone, cases.answers, name, cut="uneven")


@pytest.mark.parametrize("name", cases.DENOISERS)
def test_one_process_equals_the_reference(alone: dict, name: str) -> None:
    made = cases.denoiser(name, None)
    for sigma, found in once(alone, cases.answers, name, None).items():
        close(found, truth(made.at(sigma), cases.noisy(sigma), sigma), VALUES)  # pyright: ignore


@pytest.mark.parametrize("name", ["mixed", "copies", "els", "few images", "in torch"])
def test_attribution(world: World, alone: dict, name: str) -> None:
    check(world, alone, cases.attributions, name, cut="even", relative=True)


def test_masses(world: World, alone: dict) -> None:
    check(world, alone, cases.masses, cut="uneven", relative=True)


@pytest.mark.parametrize("cut", ["even", "uneven"])
def test_gradients(world: World, alone: dict, cut: str) -> None:
    check(world, alone, cases.gradients, cut=cut)


def test_fine_tuning(world: World, alone: dict) -> None:
    check(world, alone, cases.tuned, cut="even", relative=True, within=1e-5)     # Adam divides by small gradients


def test_fit(world: World, alone: dict) -> None:
    check(world, alone, cases.fitted, cut="even")


def test_seeds_give_the_same_samples(world: World, alone: dict) -> None:
    check(world, alone, cases.samples, (3, 8, 1), cut="even", within=1e-5)      # over six noise levels
    (one, *_) = world.run(cases.samples, (8,), "even")
    close(one[0], once(alone, cases.samples, (3, 8, 1), None)[1], 1e-5)


def test_two_small_messages_a_call(world: World) -> None:
    """One where one pass is enough; the first call of a kind agrees on it in one more, of one number."""
    batch, estimators, values, head = 3, 12, 90, 8 * 3
    for name, messages, size in (("pspc_square", 2, 16 * estimators + 4 * values), ("ls", 1, 16 * 30 + 8 * values)):
        for first, received, second, again in world.run(cases.bytes_of_a_call, name):
            assert (first, second) == (messages + 1, messages)
            assert again == (world.size - 1) * (messages * head + batch * size)
            assert received == again + (world.size - 1) * 8


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("another z", "asked something else"), ("another sigma", "asked something else"),
        ("another denoiser", "asked something else"), ("autograd", "not differentiable"),
    ],
)
def test_ranks_that_are_not_asked_alike_are_refused(world: World, kind: str, words: str) -> None:
    if world.size == 1 and kind != "autograd":
        return
    for said in world.run(cases.misuse, kind):
        assert said.startswith("InputError")
        assert words in said


def test_without_a_process_group_it_says_what_to_do() -> None:
    from fpmc import InputError

    with pytest.raises(InputError, match="torchrun"):
        cases.denoiser("optimal", "even")
