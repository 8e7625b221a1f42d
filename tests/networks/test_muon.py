"""Orthogonal steps for matrices, Adam's for the rest."""

from __future__ import annotations

import pytest
import torch

from fpmc.networks.muon import LIKE_ADAM, Muon, is_matrix, orthogonal


@pytest.mark.parametrize("shape", [(8, 8), (16, 72), (72, 16)])
def test_a_step_has_all_directions_alike(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape, generator=generator, dtype=torch.float64), full_matrices=False)
    matrix = (u * torch.logspace(0, -2, min(shape), dtype=torch.float64)) @ v
    inside = u.T @ orthogonal(matrix) @ v.T                 # diagonal: the same directions, other lengths
    assert inside.diagonal().min() > 0.6
    assert inside.diagonal().max() < 1.3
    assert (inside - inside.diagonal().diag()).abs().max() < 1e-6


def test_filters_are_matrices_and_vectors_are_left_to_adam() -> None:
    torch.manual_seed(0)
    filters, bias = torch.nn.Parameter(torch.randn(16, 8, 3, 3)), torch.nn.Parameter(torch.randn(16))
    twin = torch.nn.Parameter(bias.detach().clone())
    ours, adam, before = Muon([filters, bias], lr=0.01), torch.optim.Adam([twin], lr=0.01), filters.detach().clone()
    assert [is_matrix(each) for each in (filters, bias, torch.zeros(4, 100))] == [True, False, False]
    for _ in range(3):
        for parameter in (filters, bias):
            parameter.grad = torch.randn(parameter.shape)
        twin.grad = bias.grad.clone()                       # pyright: ignore[reportOptionalMemberAccess]
        ours.step()
        adam.step()
    torch.testing.assert_close(bias, twin)
    moved = (filters - before).square().mean().sqrt()
    assert 0.5 * LIKE_ADAM < moved / 0.03 < 3 * LIKE_ADAM   # three steps of about the size of Adam's
