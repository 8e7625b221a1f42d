"""Processes and grids: the paper's tables, diffusers' schedulers, and the exact reduction to alpha = 1."""

from __future__ import annotations

import diffusers
import numpy as np
import pytest
import torch

from fpmc.errors import InputError
from fpmc.process import EDM, VP, Flow, ddim_grid, edm_grid, flow_grid

PROCESSES = [EDM(), VP("linear"), VP("cosine"), Flow()]

# The t columns of the appendix: 18 steps for CIFAR-10, 40 steps for FFHQ and AFHQ (one and the same column).
TABLES = {
    18: "80.0 57.6 40.8 28.4 19.4 12.9 8.40 5.32 3.26 1.92 1.09 0.585 0.296 0.140 0.060 0.023 0.008 0.002",
    40: "80 69.5 60.1 51.9 44.6 38.3 32.7 27.8 23.6 19.9 16.8 14.1 11.7 9.72 8.03 6.59 5.38 4.37 3.52 2.82 2.24 1.77 "
    "1.38 1.07 0.823 0.625 0.470 0.349 0.256 0.185 0.131 0.092 0.063 0.042 0.028 0.018 0.011 0.006 0.004 0.002",
}


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


def some_times(process) -> torch.Tensor:
    return process.grid(7)


@pytest.mark.parametrize("steps", TABLES)
def test_edm_grid_is_the_t_column_of_the_tables(steps):
    for printed, t in zip(TABLES[steps].split(), edm_grid(steps).tolist(), strict=True):
        decimals = len(printed.partition(".")[2])
        assert abs(float(printed) - t) <= 0.5 * 10**-decimals, (printed, t)


def test_edm_grid_is_diffusers_karras_grid():
    theirs = diffusers.EDMEulerScheduler()
    theirs.set_timesteps(18)
    np.testing.assert_allclose(edm_grid(18), theirs.sigmas[:-1], rtol=1e-5)
    assert edm_grid(18)[0] == 80
    assert edm_grid(18)[-1] == 0.002
    assert edm_grid(1).tolist() == [80]


@pytest.mark.parametrize(("schedule", "name"), [("linear", "linear"), ("cosine", "squaredcos_cap_v2")])
@pytest.mark.parametrize("scheduler", [diffusers.DDPMScheduler, diffusers.DDIMScheduler])
def test_vp_coefficients_are_diffusers(schedule, name, scheduler):
    bar = scheduler(beta_schedule=name).alphas_cumprod.double()
    t = torch.arange(1000)
    process = VP(schedule)
    np.testing.assert_allclose(process.alpha(t), bar.sqrt(), rtol=1e-5, atol=1e-7)  # theirs is a float32 product
    np.testing.assert_allclose(process.sigma(t), (1 - bar).sqrt(), rtol=1e-3)  # 1 - 0.99996 in float32
    np.testing.assert_allclose(process.alpha(t) ** 2 + process.sigma(t) ** 2, 1, rtol=1e-12)


@pytest.mark.parametrize("spacing", ["trailing", "leading", "linspace"])
@pytest.mark.parametrize("steps", [1, 7, 20, 50, 1000])
def test_ddim_grid_is_diffusers(spacing, steps):
    theirs = diffusers.DDIMScheduler(timestep_spacing=spacing)
    theirs.set_timesteps(steps)
    expected = theirs.timesteps.tolist()
    assert ddim_grid(steps, spacing=spacing).tolist() == expected


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_flow_grid_is_diffusers(shift):
    theirs = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
    theirs.set_timesteps(sigmas=np.linspace(1, 0.001, 12))
    np.testing.assert_allclose(flow_grid(12, t_max=1, t_min=0.001, shift=shift), theirs.sigmas[:-1], rtol=1e-5)


def test_noise_is_diffusers():
    x, eps = torch.randn(2, 3, 3, 4, 4).double()
    t = torch.tensor([0, 500, 999])
    theirs = diffusers.DDPMScheduler().add_noise(x, eps, t)
    np.testing.assert_allclose(VP("linear").noise(x, t, eps), theirs, atol=1e-5)
    flow = diffusers.FlowMatchEulerDiscreteScheduler()
    flow.set_timesteps(sigmas=[0.75])
    theirs = flow.scale_noise(x, flow.timesteps[:1].expand(3), eps)
    np.testing.assert_allclose(Flow().noise(x, 0.75, eps), theirs, atol=1e-6)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_reduction_is_exact_for_gaussian_data(process):
    """For x ~ N(m, s²) the posterior mean under (alpha, sigma) is known; the core's D(z, sigma) has alpha = 1."""
    mean, variance = 0.3, 0.25

    def core(z, sigma):
        sigma = torch.as_tensor(sigma, dtype=z.dtype).reshape(-1, 1, 1, 1)
        return mean + variance / (variance + sigma**2) * (z - mean)

    t = some_times(process)
    alpha, sigma = (value.reshape(-1, 1, 1, 1) for value in (process.alpha(t), process.sigma(t)))
    z = torch.randn(7, 1, 2, 3, dtype=torch.float64)
    truth = mean + alpha * variance / (alpha**2 * variance + sigma**2) * (z - alpha * mean)
    np.testing.assert_allclose(process.denoise(core, z, t), truth, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(process.denoise(core, z[:1], t[0].item()), truth[:1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_epsilon_and_score_undo_noise(process):
    x, eps = torch.randn(2, 7, 1, 2, 3).double()
    t = some_times(process)
    z = process.noise(x, t, eps)
    np.testing.assert_allclose(process.epsilon(x, z, t), eps, rtol=1e-6, atol=1e-7)
    # Eq. 4, and the score of N(z; alpha x, sigma²) by autograd
    z = z.requires_grad_()
    alpha, sigma = (value.reshape(-1, 1, 1, 1) for value in (process.alpha(t), process.sigma(t)))
    (-((z - alpha * x) ** 2) / (2 * sigma**2)).sum().backward()
    np.testing.assert_allclose(process.score(x, z.detach(), t), z.grad, rtol=1e-6, atol=1e-6)


def test_velocities():
    x, eps = torch.randn(2, 3, 1, 2, 2).double()
    t = torch.tensor([10.0, 400, 990])
    vp = VP("linear")
    theirs = diffusers.DDPMScheduler().get_velocity(x, eps, t.long())
    np.testing.assert_allclose(vp.velocity(x, vp.noise(x, t, eps), t), theirs, atol=1e-5)
    flow, t = Flow(), torch.tensor([0.1, 0.5, 0.9]).double()
    slope = (flow.noise(x, t + 0.05, eps) - flow.noise(x, t - 0.05, eps)) / 0.1  # straight lines: exact
    np.testing.assert_allclose(flow.velocity(x, flow.noise(x, t, eps), t), slope, atol=1e-12)


@pytest.mark.parametrize("process", PROCESSES, ids=str)
def test_time_inverts_level(process):
    t = some_times(process)
    np.testing.assert_allclose(process.time(process.level(t)), t, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(process.time(2.5), process.time(torch.tensor([2.5]))[0])


def test_vp_levels_between_times_are_between():
    vp = VP("cosine")
    low, middle, high = vp.level(torch.tensor([500, 500.5, 501]))
    assert low < middle < high
    assert middle**2 == pytest.approx(low * high)


def test_float32_images_stay_float32():
    seen = {}

    def core(z, sigma):
        seen["z"], seen["sigma"] = z.dtype, sigma
        return z

    z = torch.zeros(2, 1, 2, 2)
    VP().denoise(core, z, torch.tensor([3, 4]))
    assert seen["z"] == seen["sigma"].dtype == torch.float32
    assert seen["sigma"].shape == (2,)
    VP().denoise(core, z, 3)
    assert isinstance(seen["sigma"], float)
    assert VP().noise(z, 3, z).dtype == torch.float32


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: VP("quadratic"),  # pyright: ignore[reportArgumentType]
        lambda: VP(beta_min=0),
        lambda: VP(times=1),
        lambda: VP().alpha(1000),
        lambda: VP().alpha(-1),
        lambda: VP().time(1e9),
        lambda: Flow().sigma(1.5),
        lambda: Flow().denoise(lambda z, sigma: z, torch.zeros(1, 1, 1, 1), 1.0),
        lambda: edm_grid(0),
        lambda: edm_grid(sigma_min=0),
        lambda: edm_grid(sigma_min=-1),
        lambda: edm_grid(sigma_min=2, sigma_max=1),
        lambda: edm_grid(sigma_max=float("inf")),
        lambda: edm_grid(sigma_min=float("nan")),
        lambda: edm_grid(rho=0),
        lambda: ddim_grid(1001),
        lambda: ddim_grid(spacing="zigzag"),  # pyright: ignore[reportArgumentType]
        lambda: flow_grid(t_max=2),
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(InputError):
        wrong()
