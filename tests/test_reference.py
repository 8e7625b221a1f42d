"""The oracle against what can be worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from engine.problems import SIGMAS, close
from fpmc import reference

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = (2, 3, 4)
DIMENSION = math.prod(SHAPE)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def soft(length: int, channels: int = SHAPE[0], seed: int = 1) -> Tensor:
    return normal(length, channels, *SHAPE[1:], seed=seed).exp()


@pytest.fixture(scope="module")
def gaussian() -> tuple[Tensor, Tensor]:
    root = normal(DIMENSION, DIMENSION, seed=5) / 4
    return normal(*SHAPE, seed=6) / 3, root @ root.T


def test_a_posterior_worked_out_by_hand() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0]]).view(3, 1, 1, 2)
    z = torch.tensor([1.0, 1.0]).view(1, 1, 1, 2)
    q = torch.tensor([[1.0, 3.0], [2.0, 0.0]]).view(2, 1, 1, 2)
    r = torch.tensor([[1.0, 1.0], [3.0, 0.0]]).view(2, 1, 1, 2)
    # First estimator: squared distances 4, 3, 3; second: 2, 0, 0; sigma² = 1/2, so weights are exp(−distance).
    first, second = math.exp(-1) + 2, math.exp(-2) + 2
    means = reference.posterior_means(z, math.sqrt(0.5), q, x)[0, :, 0, 0]
    close(means, torch.tensor([[2 / first, 2 / first], [2 / second, 2 / second]]).double(), 1e-7)
    result = reference.denoise(z, math.sqrt(0.5), q, r, x)[0, 0, 0]
    close(result, torch.tensor([(2 / first + 3 * 2 / second) / 4, 2 / first]), 1e-7)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_one_image_gives_itself(sigma: float) -> None:
    x = normal(1, *SHAPE)
    result = reference.denoise(3 * normal(4, *SHAPE, seed=2), sigma, soft(5), soft(5, 1), x)
    close(result, x.expand(4, -1, -1, -1), 1e-12)


@pytest.mark.parametrize("sigma", [0.5, 1.1, 5.3, 80.0])
def test_two_images_give_a_logistic(sigma: float) -> None:
    x, z, q = normal(2, *SHAPE), normal(3, *SHAPE, seed=2), soft(4)
    nearer = torch.einsum("lchw,bchw->bl", q, (z - x[1]) ** 2 - (z - x[0]) ** 2)       # (B, L)
    share = torch.sigmoid(nearer / (2 * sigma**2) + 0.5)[..., None, None, None]
    expected = share * x[0] + (1 - share) * x[1]
    close(reference.posterior_means(z, sigma, q, x, torch.tensor([0.5, 0.0])), expected, 1e-12)


def test_all_noise_gives_the_weighted_mean() -> None:
    x, weights = normal(6, *SHAPE), normal(6, seed=3)
    expected = torch.einsum("n,nchw->chw", weights.softmax(0), x).expand(2, -1, -1, -1)
    close(reference.denoise(normal(2, *SHAPE, seed=2), 1e6, soft(5), soft(5), x, weights), expected, 1e-10)


def test_no_noise_gives_the_image_nearest_in_q() -> None:
    x, z, q = normal(6, *SHAPE), normal(4, *SHAPE, seed=2), soft(3, 1)
    distance = (q[None, :, None] * ((z[:, None] - x) ** 2)[:, None]).sum((3, 4, 5))       # (B, L, N)
    close(reference.posterior_means(z, 1e-3, q, x), x[distance.argmin(2)], 1e-12)


def test_an_image_without_weight_is_not_there() -> None:
    x, z, q = normal(6, *SHAPE), normal(2, *SHAPE, seed=2), soft(3)
    weights = normal(6, seed=3)
    dropped = weights.clone()
    dropped[4:] = -torch.inf
    expected = reference.posterior_means(z, 0.7, q, x[:4], weights[:4])
    close(reference.posterior_means(z, 0.7, q, x, dropped), expected, 1e-12)


def test_weights_need_not_be_normalised() -> None:
    x, z, q, weights = normal(6, *SHAPE), normal(2, *SHAPE, seed=2), soft(3), normal(6, seed=3)
    first, second = (reference.posterior_means(z, 0.7, q, x, weights + shift) for shift in (0.0, 40.0))
    close(first, second, 1e-12)


def test_precision_and_noise_level_trade_off() -> None:
    """q/σ² is all the likelihood knows (Eq. "mod_ll")."""
    x, z, q = normal(6, *SHAPE), normal(2, *SHAPE, seed=2), soft(3)
    close(reference.posterior_means(z, 0.7, 4 * q, x), reference.posterior_means(z, 0.35, q, x), 1e-12)


def test_only_the_ratio_of_responses_counts() -> None:
    means, r = normal(2, 5, *SHAPE), soft(5)
    scale = soft(1, seed=9)
    close(reference.combine(means, r * scale), reference.combine(means, r), 1e-12)
    close(reference.combine(means, torch.eye(5)[2].view(5, 1, 1, 1) + torch.zeros(5, *SHAPE)), means[:, 2], 1e-12)


def test_a_shared_precision_is_the_same_in_every_channel() -> None:
    x, z, q = normal(6, *SHAPE), normal(2, *SHAPE, seed=2), soft(3, 1)
    r = soft(3, 1, seed=4)
    wide = reference.denoise(z, 0.7, q.expand(-1, *SHAPE), r.expand(-1, *SHAPE), x)
    close(reference.denoise(z, 0.7, q, r, x), wide, 1e-12)


def test_tweedie() -> None:
    """z + σ² ∇ log p(z) is the optimal denoiser (Eq. "tweedies")."""
    x, z, sigma = normal(6, *SHAPE), normal(2, *SHAPE, seed=2).requires_grad_(), 0.9
    ones = torch.ones(1, 1, *SHAPE[1:])
    density = torch.logsumexp(reference.logits(z, sigma, ones, x), dim=2).sum()
    (score,) = torch.autograd.grad(density, z)
    close(reference.denoise(z, sigma, ones, ones, x), z + sigma**2 * score, 1e-12)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_a_gaussian_is_the_wiener_filter(sigma: float, gaussian: tuple[Tensor, Tensor]) -> None:
    mean, covariance = gaussian
    z = normal(3, *SHAPE, seed=2)
    filter_ = covariance @ torch.linalg.inv(covariance + sigma**2 * torch.eye(DIMENSION, dtype=torch.float64))
    expected = mean + ((z - mean).flatten(1) @ filter_.T).view_as(z)
    ones = torch.ones(1, 1, *SHAPE[1:])
    close(reference.gaussian_means(z, sigma, ones, mean, covariance)[:, 0], expected, 1e-9)


def test_a_gaussian_seen_through_a_patch_is_a_regression(gaussian: tuple[Tensor, Tensor]) -> None:
    """Binary q: what is outside the patch is predicted from the noisy patch."""
    mean, covariance = gaussian
    z, sigma, seen = normal(3, *SHAPE, seed=2), 0.6, normal(DIMENSION, seed=8) > 0.3
    inside = covariance[seen][:, seen] + sigma**2 * torch.eye(int(seen.sum()), dtype=torch.float64)
    regression = covariance[:, seen] @ torch.linalg.inv(inside)
    expected = mean + ((z - mean).flatten(1)[:, seen] @ regression.T).view_as(z)
    close(reference.gaussian_means(z, sigma, seen.view(1, *SHAPE), mean, covariance)[:, 0], expected, 1e-10)


def test_a_soft_q_gives_each_dimension_its_own_noise(gaussian: tuple[Tensor, Tensor]) -> None:
    mean, covariance = gaussian
    z, sigma, q = normal(3, *SHAPE, seed=2), 0.6, soft(2)
    for one, result in zip(q, reference.gaussian_means(z, sigma, q, mean, covariance).unbind(1)):
        filter_ = covariance @ torch.linalg.inv(covariance + torch.diag(sigma**2 / one.flatten()))
        close(result, mean + ((z - mean).flatten(1) @ filter_.T).view_as(z), 1e-10)


def test_a_gaussian_nobody_looks_at_is_its_mean(gaussian: tuple[Tensor, Tensor]) -> None:
    mean, covariance = gaussian
    blind = reference.gaussian_means(normal(2, *SHAPE, seed=2), 0.6, torch.zeros(1, 1, *SHAPE[1:]), mean, covariance)
    close(blind[:, 0], mean.expand(2, -1, -1, -1), 1e-12)


def test_many_samples_of_a_gaussian_come_to_the_gaussian() -> None:
    """The one formula for images and the other for N(μ, Σ) meet, for a full, a partial and a soft q."""
    root = torch.tensor([[0.5, 0.0], [0.3, 0.4]], dtype=torch.float64)
    mean = torch.tensor([0.2, -0.1], dtype=torch.float64).view(1, 1, 2)
    x = mean + (normal(200_000, 2) @ root.T).view(-1, 1, 1, 2)
    z = 0.7 * normal(3, 1, 1, 2, seed=2)
    q = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.3, 2.0]]).view(3, 1, 1, 2)
    exact = reference.gaussian_means(z, 0.5, q, mean, root @ root.T)
    close(reference.posterior_means(z, 0.5, q, x), exact, 0.01)


def test_float32_is_taken_as_float64() -> None:
    x, z, q = (tensor.float() for tensor in (normal(6, *SHAPE), normal(2, *SHAPE, seed=2), soft(3)))
    result = reference.denoise(z, 0.01, q, q, x)
    assert result.dtype == torch.float64
    close(result, reference.denoise(z.double(), 0.01, q.double(), q.double(), x.double()), 0.0)
