"""Every structure of Q against its dense form."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fpmc.core.precision import Full, Precision, Precisions, Squares, check_weights
from fpmc.errors import InputError

sides = st.integers(1, 7)


@given(height=sides, width=sides)
def test_full_is_one_all_ones_vector(height: int, width: int) -> None:
    q = Full(height, width)
    assert len(q) == 1
    assert torch.equal(q.dense(), torch.ones(1, 1, height, width))


@given(height=sides, width=sides, k=st.integers(0, 8))
def test_centred_squares_follow_the_indicator(height: int, width: int, k: int) -> None:
    """p(x, y, s) of the paper, pixel by pixel, cut at the border (Eq. "sq_patch_indicator")."""
    q = Squares(2 * k + 1, height, width)
    assert (len(q), q.grid) == (height * width, (height, width))
    dense = q.dense().view(height, width, height, width)
    for y, x in torch.cartesian_prod(torch.arange(height), torch.arange(width)).view(-1, 2).tolist():
        for j, i in torch.cartesian_prod(torch.arange(height), torch.arange(width)).view(-1, 2).tolist():
            assert dense[y, x, j, i] == (x - k <= i <= x + k and y - k <= j <= y + k)


@given(height=sides, width=sides, data=st.data())
def test_inner_squares_are_all_that_fit(height: int, width: int, data: st.DataObject) -> None:
    """Anchored at the upper-left corner, even sizes too (App. A.1.1)."""
    size = data.draw(st.integers(1, min(height, width)))
    q = Squares(size, height, width, inside=True)
    assert len(q) == (height - size + 1) * (width - size + 1)
    dense = q.dense()
    for estimator, corner in enumerate((y, x) for y in range(height - size + 1) for x in range(width - size + 1)):
        expected = torch.zeros(1, height, width)
        expected[0, corner[0] : corner[0] + size, corner[1] : corner[1] + size] = 1
        assert torch.equal(dense[estimator], expected)


@given(height=sides, width=sides, data=st.data())
def test_a_stride_takes_some_of_the_inner_squares_and_covers_the_image(height: int, width: int, data: st.DataObject):
    size = data.draw(st.integers(1, min(height, width)))
    stride = data.draw(st.integers(1, size))
    some, every = (Squares(size, height, width, inside=True, stride=step).dense() for step in (stride, 1))
    corners = [
        sorted({*range(0, length - size + 1, stride), length - size}) for length in (height, width)
    ]
    chosen = [y * (width - size + 1) + x for y in corners[0] for x in corners[1]]
    assert torch.equal(some, every[chosen])
    assert bool((some.sum(0) > 0).all())


@given(height=st.integers(2, 7), width=st.integers(2, 7), inside=st.booleans(), around=st.floats(0, 0.99))
def test_around_its_patch_a_square_has_a_weaker_say(height: int, width: int, inside: bool, around: float):
    q = Squares(1 if min(height, width) < 3 else 3, height, width, inside=inside, around=around)
    patch = q.patch.dense(torch.float64)
    assert set(patch.unique().tolist()) <= {0.0, 1.0}
    torch.testing.assert_close(q.dense(torch.float64), patch + around * (1 - patch), atol=1e-7, rtol=0)


@pytest.mark.parametrize("around", [-0.1, 1.0, float("nan")])
def test_impossible_surroundings(around: float) -> None:
    with pytest.raises(InputError, match="around"):
        Squares(3, 8, 8, around=around)


@pytest.mark.parametrize(("stride", "inside"), [(0, True), (4, True), (2, False)])
def test_impossible_strides(stride: int, inside: bool) -> None:
    with pytest.raises(InputError, match=f"stride {stride}"):
        Squares(3, 8, 8, inside=inside, stride=stride)


def test_the_square_of_the_whole_image_is_one_estimator() -> None:
    assert torch.equal(Squares(4, 4, 4, inside=True).dense(), Full(4, 4).dense())


@pytest.mark.parametrize(
    "q",
    [
        Full(3, 4),
        Full(3, 4, 0.25),
        Squares(3, 3, 4),
        Squares(2, 3, 4, inside=True),
        Squares(9, 3, 4),
        Precisions(torch.rand(5, 1, 3, 4) < 0.5),
        Precisions(torch.rand(5, 2, 3, 4)),
        Precisions(torch.ones(5, 2, 3, 4)),
        Precisions(torch.ones(3, 1, 3, 4, dtype=torch.bool)),
        Precisions(torch.rand(3, 2, 3, 4)[[0, 1, 0, 2, 1, 0]]),
    ],
)
class TestEveryPrecision:
    def test_dense(self, q: Precision) -> None:
        dense = q.dense(torch.float64)
        assert dense.dtype == torch.float64
        assert tuple(dense.shape) == (len(q), q.channels, q.height, q.width)
        assert q.entries == int((dense != 0).sum())

    def test_merging_keeps_every_vector_once(self, q: Precision) -> None:
        merged, representative = q.merge()
        assert representative.shape == (len(q),)
        dense = merged.dense().expand(-1, q.channels, -1, -1)
        assert torch.equal(dense[representative], q.dense())
        assert len(dense.flatten(1).unique(dim=0)) == len(merged)
        assert set(representative.tolist()) == set(range(len(merged)))


def test_patches_that_cover_the_image_merge_into_the_full_one() -> None:
    ones = Precisions(torch.ones(7, 3, 4, 5)), Precisions(torch.ones(2, 1, 4, 5, dtype=torch.bool))
    for q in (Squares(9, 4, 5), *ones):
        merged, representative = q.merge()
        assert isinstance(merged, Full)
        assert not representative.any()


def test_what_is_learned_is_not_merged() -> None:
    q = Precisions(torch.ones(3, 1, 2, 2, requires_grad=True))
    assert len(q.merge()[0]) == 3


@pytest.mark.parametrize(
    ("size", "inside", "message"),
    [
        (4, False, "use 3 or 5"),
        (0, False, "at least one pixel"),
        (0, True, "at least one pixel"),
        (-3, False, "at least one pixel"),
        (5, True, "does not fit images of 4×6; use at most 4"),
    ],
)
def test_impossible_squares(size: int, inside: bool, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Squares(size, 4, 6, inside=inside)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.rand(3, 4, 5), r"got \(3, 4, 5\)"),
        (torch.rand(0, 1, 4, 5), r"got \(0, 1, 4, 5\)"),
        ([[1.0]], "got list"),
        (-torch.ones(1, 1, 2, 2), "non-negative, got values from -1.0"),
        (torch.tensor([1.0, torch.nan]).view(1, 1, 1, 2), "finite"),
        (torch.tensor([1.0, torch.inf]).view(1, 1, 1, 2), "finite"),
    ],
)
def test_impossible_vectors(values: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Precisions(values)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="r must be"):
        check_weights(values, "r")  # pyright: ignore[reportArgumentType]


def test_pruning_keeps_within_its_budget() -> None:
    q = Precisions(torch.tensor([[1.0, 1e-6, 0.0, 2e-6], [0.5, 0.5, 1e-3, 1e-7]]).view(2, 1, 2, 2))
    kept = q.pruned(2e-6).dense().flatten(1)
    assert torch.equal(kept > 0, torch.tensor([[True, False, False, True], [True, True, True, False]]))
    assert q.pruned(1e-9) is q
    masks = Precisions(torch.ones(2, 1, 2, 2, dtype=torch.bool))
    assert masks.pruned(10.0) is masks


STRUCTURES: list[Precision] = [
    Full(5, 4),
    Full(5, 4, 0.25),
    Squares(3, 5, 4),
    Squares(2, 5, 4, inside=True),
    Squares(3, 5, 4, inside=True, stride=2),
    Squares(3, 5, 4, around=0.3),
    Squares(2, 5, 4, inside=True, stride=2, around=0.3),
    Precisions(torch.rand(6, 1, 5, 4, generator=torch.Generator().manual_seed(0))),
    Precisions(torch.rand(6, 3, 5, 4, generator=torch.Generator().manual_seed(0))),
    Precisions(torch.rand(6, 1, 5, 4, generator=torch.Generator().manual_seed(0)) < 0.4),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("q", STRUCTURES)
def test_distances_and_spreads_are_those_of_the_vectors(q: Precision, dtype: torch.dtype) -> None:
    """Σ q (z − x)² and Σ_ℓ q_ℓ p_ℓ, written out (Eq. "emp_pmean")."""
    random = torch.Generator().manual_seed(1)
    z, x = (torch.randn(n, 3, 5, 4, generator=random, dtype=dtype) for n in (2, 7))
    dense = q.dense(dtype)
    assert dense.dtype == dtype
    expected = (dense * (z[:, None, None] - x[None, :, None]).square()).sum((3, 4, 5))
    found = q.distance(z, x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected)
    p = torch.rand(2, 7, len(q), generator=random, dtype=dtype)
    torch.testing.assert_close(q.spread(p), torch.einsum("bnl,lchw->bnchw", p, dense))
    assert q.entries == int((dense > 0).sum())


def test_channels_that_are_asked_alike_are_asked_once() -> None:
    values = torch.rand(6, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    alike = Precisions(values.expand(6, 3, 5, 4).clone())
    assert torch.equal(alike.shared().dense(), values)
    assert alike.shared().channels == 1
    single = Precisions(values)
    assert single.shared() is single
    other = alike.values.clone()
    other[5, 2, 4, 3] += 0.1
    for kept in (Precisions(other), Precisions(alike.values.clone().requires_grad_())):
        assert kept.shared() is kept
