"""Every structure of R against its dense form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fpmc.core.precision import Full, Precision, Precisions, Squares
from fpmc.core.response import Partition, Response, Responses, SameAsQ, of, one_hot, pixel
from fpmc.errors import InputError

HEIGHT, WIDTH = 3, 4
ALIKE = [0, 1, 2, 0, 1, 0]


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(len(shape)))


def few(channels: int) -> Precisions:
    return Precisions(rand(3, channels, HEIGHT, WIDTH)[ALIKE])


CASES: list[tuple[Precision, Response]] = [
    (Full(HEIGHT, WIDTH), SameAsQ(Full(HEIGHT, WIDTH))),
    (Squares(3, HEIGHT, WIDTH), pixel(HEIGHT, WIDTH)),
    (Squares(9, HEIGHT, WIDTH), pixel(HEIGHT, WIDTH)),
    (Squares(9, HEIGHT, WIDTH), SameAsQ(Squares(9, HEIGHT, WIDTH))),
    (Squares(2, HEIGHT, WIDTH, inside=True), SameAsQ(Squares(2, HEIGHT, WIDTH, inside=True))),
    (few(1), SameAsQ(few(1))),
    (few(2), SameAsQ(few(2), torch.arange(6, dtype=torch.float64))),
    (few(2), Responses(rand(6, 2, HEIGHT, WIDTH))),
    (few(2), Responses(rand(6, 1, HEIGHT, WIDTH) < 0.5)),
    (few(1), Responses((255 * rand(6, 1, HEIGHT, WIDTH)).byte())),
    (few(1), Partition(torch.arange(24).view(2, HEIGHT, WIDTH) % 6, 6)),
]


@pytest.mark.parametrize(("q", "r"), CASES)
class TestEveryResponse:
    def test_dense(self, q: Precision, r: Response) -> None:
        dense = r.dense(torch.float64)
        assert dense.dtype == torch.float64
        assert len(dense) == len(r) == len(q)
        assert tuple(dense.shape[2:]) == (HEIGHT, WIDTH)

    def test_total(self, q: Precision, r: Response) -> None:
        total = r.total()
        assert total.dtype == torch.float64
        torch.testing.assert_close(total, r.dense(torch.float64).sum(0), atol=1e-6, rtol=0.0)

    def test_merged_estimators_add_their_responses(self, q: Precision, r: Response) -> None:
        merged, representative = q.merge()
        expected = torch.zeros(len(merged), *r.dense().shape[1:], dtype=torch.float64)
        expected.index_add_(0, representative, r.dense(torch.float64))
        result = r.merge(merged, representative).dense(torch.float64)
        torch.testing.assert_close(result.expand_as(expected), expected, atol=1e-6, rtol=0.0)


def test_a_pixel_belongs_to_its_estimator() -> None:
    dense = pixel(HEIGHT, WIDTH).dense()
    assert torch.equal(dense.flatten(1), torch.eye(HEIGHT * WIDTH))
    assert pixel(HEIGHT, WIDTH).is_pixelwise


def test_a_dimension_belongs_to_its_estimator() -> None:
    dense = one_hot(2, HEIGHT, WIDTH).dense()
    assert torch.equal(dense.flatten(1), torch.eye(2 * HEIGHT * WIDTH))
    assert not one_hot(2, HEIGHT, WIDTH).total().sub(1).any()


def test_a_partition_in_another_order_is_not_pixelwise() -> None:
    owner = torch.arange(HEIGHT * WIDTH).flip(0).view(1, HEIGHT, WIDTH)
    assert not Partition(owner, HEIGHT * WIDTH).is_pixelwise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool])
def test_a_tensor_that_is_a_partition_is_found_out(dtype: torch.dtype) -> None:
    expected = Partition(torch.arange(24).view(2, HEIGHT, WIDTH) % 6, 6)
    found = of(expected.dense().to(dtype), few(1))
    assert isinstance(found, Partition)
    assert torch.equal(found.owner, expected.owner)


@pytest.mark.parametrize(
    "values",
    [
        torch.full((6, 1, HEIGHT, WIDTH), 1 / 6),       # sums to 1, but nobody owns anything
        torch.ones(6, 1, HEIGHT, WIDTH),
        torch.ones(6, 1, HEIGHT, WIDTH, dtype=torch.bool),
        Partition(torch.zeros(1, HEIGHT, WIDTH), 6).dense().requires_grad_(),
    ],
)
def test_a_tensor_that_is_none_stays_vectors(values: Tensor) -> None:
    found = of(values, few(1))
    assert isinstance(found, Responses)
    assert found.values is values


def test_one_response_for_each_precision() -> None:
    with pytest.raises(InputError, match="q has 6 estimators, r has 5"):
        of(torch.ones(5, 1, HEIGHT, WIDTH), few(1))


@pytest.mark.parametrize("values", [-torch.ones(6, 1, 3, 4), torch.full((6, 1, 3, 4), torch.nan), torch.ones(6, 3, 4)])
def test_impossible_vectors(values: Tensor) -> None:
    with pytest.raises(InputError, match="r must be"):
        Responses(values)


@pytest.mark.parametrize(("q", "r"), CASES)
def test_mixtures_and_totals_are_those_of_the_vectors(q: Precision, r: Response) -> None:
    """Σ_ℓ r_ℓ p_ℓ and Σ_ℓ r_ℓ, written out (Eq. "fpmc_denoiser")."""
    dense = r.dense(torch.float64)
    p = torch.rand(2, 5, len(r), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(r.mix(p), torch.einsum("bnl,lchw->bnchw", p, dense))
    torch.testing.assert_close(r.total(), dense.sum(0))
    assert r.total().shape == dense.shape[1:]
    assert r.dense(torch.float32).dtype == torch.float32
    assert r.channels == dense.shape[1]
