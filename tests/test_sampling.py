"""The PF-ODE samplers: closed forms, order of accuracy, diffusers' DDIM and flow matching, seeds, bad settings."""

from __future__ import annotations

import math
from itertools import pairwise
from time import perf_counter

import diffusers
import numpy as np
import pytest
import torch

from fpmc.errors import InputError
from fpmc.networks.precond import EDMPrecond
from fpmc.process import VP, Flow, flow_grid
from fpmc.sampling import EVALUATION_FROM, TUNING_SEEDS, initial_noise, integrate, levels_of, sample

SHAPE = (2, 3, 4)


class Gaussian:
    """The posterior mean for x ~ N(m, s²): its PF-ODE has the solution z(σ) = m + (z_T − m)·√((s²+σ²)/(s²+σ_T²))."""

    shape = SHAPE
    mean, std = 0.2, 0.5

    def __call__(self, z, sigma):
        sigma = torch.as_tensor(sigma, dtype=z.dtype).reshape(-1, 1, 1, 1)
        return self.mean + self.std**2 / (self.std**2 + sigma**2) * (z - self.mean)

    def solution(self, z, sigma_from, sigma_to):
        return self.mean + (z - self.mean) * math.sqrt(
            (self.std**2 + sigma_to**2) / (self.std**2 + sigma_from**2)
        )


def error(solver: str, steps: int) -> float:
    """Error at sigma = 0.1 after `steps` equal steps down from 1, where every step is a full one."""
    z = initial_noise(range(4), SHAPE)
    levels = np.linspace(1, 0.1, steps + 1).tolist()
    last = list(integrate(lambda z, s: Gaussian()(z.double(), s), z, levels, solver=solver))[-1]  # pyright: ignore
    return (last.z - Gaussian().solution(z, 1, 0.1)).abs().max().item()


@pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("heun", 2)])
def test_order_of_accuracy(solver, order):
    """Halving the step divides the error by 2^order (the state is float64, only z is rounded to float32)."""
    ratio = error(solver, 16) / error(solver, 32)
    assert ratio == pytest.approx(2**order, rel=0.1)


def test_the_paper_sampler_solves_the_gaussian_case():
    z = 80 * initial_noise(range(8), SHAPE)
    out = sample(Gaussian(), seeds=range(8), steps=200)
    np.testing.assert_allclose(out.images, Gaussian().solution(z, 80, 0), atol=2e-3)


@pytest.mark.parametrize(("steps", "nfe"), [(18, 35), (40, 79), (1, 1)])
def test_evaluations_are_the_papers(steps, nfe):
    calls = []
    out = sample(lambda z, s: calls.append(s) or Gaussian()(z, s), shape=SHAPE, seeds=[3], steps=steps)
    assert out.nfe == len(calls) == nfe
    assert calls[0] == 80
    assert min(calls) == (0.002 if steps > 1 else 80)
    assert sample(Gaussian(), seeds=[3], steps=steps, solver="euler").nfe == steps


def test_one_constant_image_gives_itself():
    image = torch.rand(SHAPE)
    out = sample(lambda z, s: image.expand_as(z), shape=SHAPE, seeds=range(3))
    np.testing.assert_allclose(out.images, image.expand(3, *SHAPE), atol=1e-6)


def test_a_sample_belongs_to_its_seed():
    seeds = [5, 0, 17, 2**32 - 1, 3]
    together = sample(Gaussian(), seeds=seeds)
    apart = sample(Gaussian(), seeds=reversed(seeds), batch=2)
    assert together.seeds == tuple(seeds)
    assert together.nfe == apart.nfe == 35
    assert torch.equal(together.images, apart.images.flip(0))
    assert not torch.equal(together.images[0], together.images[1])


def test_noise_is_that_of_one_generator_per_seed():
    expected = torch.randn(SHAPE, generator=torch.Generator().manual_seed(17))
    assert torch.equal(initial_noise([3, 17], SHAPE)[1].float(), expected)


def test_seeds_end_where_two_of_them_would_be_one():
    """torch's CPU generator takes 32 bits of a seed: 2^32 would give the image of seed 0 under another name."""
    numbers = [torch.randn(4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 2**32 - 1, 2**32)]
    assert torch.equal(numbers[0], numbers[2])
    assert not torch.equal(numbers[0], numbers[1])


def test_state_is_float64_and_the_denoiser_sees_float32():
    seen = []

    def denoiser(z, sigma):
        seen.append((z.dtype, type(sigma), z.requires_grad))
        return Gaussian()(z, sigma)

    steps = list(integrate(denoiser, initial_noise([0], SHAPE).requires_grad_(), levels_of(3)))
    assert set(seen) == {(torch.float32, float, False)}
    assert all(step.z.dtype == step.denoised.dtype == torch.float64 for step in steps)
    out = sample(Gaussian(), seeds=[0])
    assert out.images.dtype == torch.float32


def test_images_are_not_clipped():
    assert sample(Gaussian(), seeds=range(64)).images.abs().max() > 1


def test_trajectory_holds_the_state_at_every_level():
    out = sample(Gaussian(), seeds=range(5), batch=2, trajectory=True)
    assert out.trajectory is not None
    assert out.trajectory.shape == (19, 5, *SHAPE)
    assert len(out.sigmas) == 19
    np.testing.assert_allclose(out.trajectory[0], 80 * initial_noise(range(5), SHAPE), rtol=1e-6)
    assert torch.equal(out.trajectory[-1], out.images)
    assert sample(Gaussian(), seeds=[0]).trajectory is None


def test_steps_can_be_watched_and_stopped():
    z = 80 * initial_noise([1, 2], SHAPE)
    walk = integrate(Gaussian(), z, levels_of(18))
    first = next(walk)
    assert (first.index, first.nfe) == (0, 2)
    assert first.sigma == pytest.approx(57.6, abs=0.05)
    np.testing.assert_allclose(first.z, Gaussian().solution(z, 80, first.sigma), rtol=1e-3)
    walk.close()


def test_progress_counts_image_steps():
    calls = []
    sample(Gaussian(), seeds=range(5), steps=3, batch=2, progress=lambda *counts: calls.append(counts))
    assert calls == [(2, 15), (4, 15), (6, 15), (8, 15), (10, 15), (12, 15), (13, 15), (14, 15), (15, 15)]


@pytest.mark.parametrize(("schedule", "name"), [("linear", "linear"), ("cosine", "squaredcos_cap_v2")])
def test_ddim_is_diffusers_ddim(schedule, name):
    """Euler in σ/α against DDIMScheduler, both asking the same denoiser, started from the same noise."""
    process, steps, denoiser = VP(schedule), 20, Gaussian()
    ours = sample(denoiser, seeds=range(4), steps=steps, solver="ddim", process=process)

    theirs = diffusers.DDIMScheduler(beta_schedule=name, timestep_spacing="trailing", clip_sample=False)
    theirs.alphas_cumprod = process.alpha(torch.arange(1000)) ** 2  # theirs is a float32 product
    theirs.set_timesteps(steps)
    z = process.sigma(999) * initial_noise(range(4), SHAPE)
    for t in theirs.timesteps:
        eps = process.epsilon(process.denoise(denoiser, z, t.item()), z, t.item())
        z = theirs.step(eps, t, z, eta=0.0).prev_sample
    np.testing.assert_allclose(ours.images, z, atol=1e-4)


def test_flow_euler_is_diffusers_flow_matching():
    process, steps, denoiser = Flow(), 20, Gaussian()
    ours = sample(denoiser, seeds=range(4), steps=steps, solver="euler", process=process)

    theirs = diffusers.FlowMatchEulerDiscreteScheduler()
    theirs.set_timesteps(sigmas=flow_grid(steps).numpy())
    z = process.sigma(flow_grid(steps)[0]) * initial_noise(range(4), SHAPE)
    for t, time in zip(theirs.timesteps, flow_grid(steps).tolist(), strict=True):
        velocity = process.velocity(process.denoise(denoiser, z, time), z, time)
        z = theirs.step(velocity, t, z).prev_sample
    np.testing.assert_allclose(ours.images, z, atol=1e-4)


def test_heun_works_along_any_process():
    z = initial_noise(range(4), SHAPE)
    for process in (VP("linear"), Flow()):
        out = sample(Gaussian(), seeds=range(4), steps=400, process=process)
        np.testing.assert_allclose(out.images, Gaussian().solution(z * out.sigmas[0], out.sigmas[0], 0), atol=2e-2)
        assert out.nfe == 799


def test_a_solver_may_be_a_function():
    def midpoint(slope, z, sigma, target):
        middle = (sigma + target) / 2
        return z + (target - sigma) * slope(z + (middle - sigma) * slope(z, sigma), middle)

    out = sample(Gaussian(), seeds=range(2), steps=100, solver=midpoint)
    z = 80 * initial_noise(range(2), SHAPE)
    np.testing.assert_allclose(out.images, Gaussian().solution(z, 80, 0), atol=5e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"sigma_min": 0},
        {"sigma_min": -1},
        {"sigma_min": 90},
        {"sigma_max": 0.001},
        {"rho": 0},
        {"seeds": []},
        {"seeds": [1, 2, 1]},
        {"seeds": [-1]},
        {"seeds": [2**32]},
        {"batch": 0},
        {"solver": "rk4"},
        {"shape": (1, 2)},
        {"shape": (3, 3, 4)},
        {"process": VP(), "steps": 1001},
    ],
    ids=str,
)
def test_bad_settings_are_refused_before_work(wrong):
    class Untouched(Gaussian):
        def __call__(self, z, sigma):
            raise AssertionError("the denoiser was called")

    with pytest.raises(InputError):
        sample(Untouched(), **wrong)


def test_a_denoiser_without_shape_needs_one():
    with pytest.raises(InputError, match="shape"):
        sample(lambda z, s: z)


@pytest.mark.parametrize("answer", [lambda z, s: z[:, :1], lambda z, s: z * float("nan")])
def test_a_broken_denoiser_is_named(answer):
    with pytest.raises(InputError, match="denoiser answered"):
        sample(answer, shape=SHAPE, seeds=[0])


def test_seeds_to_choose_on_and_seeds_to_report_on_are_apart():
    assert min(TUNING_SEEDS) == 0
    assert max(TUNING_SEEDS) < EVALUATION_FROM


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"seeds": 4}, r"got 4; give seeds=range\(4\) for 4 samples, \[4\] for one"),
        ({"seeds": "0-3"}, r"e.g. seeds=range\(4\); got the text '0-3'"),
        ({"seeds": [0.7]}, "seeds are whole numbers; got 0.7"),
        ({"seeds": [True]}, "seeds are whole numbers; got True"),
        ({"seeds": torch.tensor(3)}, "seeds"),
        ({"seeds": None}, "got None"),
        ({"process": "vp"}, r"VP\(\).*got 'vp'"),
        ({"classes": 3}, "knows no classes"),
    ],
    ids=str,
)
def test_what_to_write_instead_is_said(wrong, named):
    with pytest.raises(InputError, match=named):
        sample(Gaussian(), **wrong)


def test_seeds_of_numpy_and_torch_are_seeds():
    assert sample(Gaussian(), seeds=np.arange(2), steps=1).seeds == (0, 1)
    assert sample(Gaussian(), seeds=torch.arange(2), steps=1).seeds == (0, 1)


def test_a_denoiser_that_answers_no_tensor_is_named():
    with pytest.raises(InputError, match="answered ndarray; it must give a torch tensor"):
        sample(lambda z, s: z.numpy(), shape=SHAPE, seeds=[0])


class Classes(Gaussian):
    """Remembers the labels it was called with; its images have the brightness of their class."""

    label_dim = 10

    def __init__(self):
        self.seen = []

    def __call__(self, z, sigma, class_labels):
        self.seen.append(class_labels)
        return (class_labels / 10).reshape(-1, 1, 1, 1).expand_as(z)


class StackedGenerator:
    """EDM's rule, written anew: a generator per sample of a batch; whatever is drawn comes from all of them in turn."""

    def __init__(self, seeds):
        self.generators = [torch.Generator().manual_seed(int(seed) % (1 << 32)) for seed in seeds]

    def randn(self, size):
        return torch.stack([torch.randn(size[1:], generator=each) for each in self.generators])

    def randint(self, most, size):
        return torch.stack([torch.randint(most, size=size[1:], generator=each) for each in self.generators])


def test_random_classes_are_those_of_edms_generate():
    seeds = [0, 1, 17, 2**32 - 1, 5, 3]
    rule = StackedGenerator(seeds)
    latents = rule.randn([len(seeds), *SHAPE])
    expected = rule.randint(10, [len(seeds)])
    for classes in (None, "random"):
        net = Classes()
        out = sample(net, seeds=seeds, classes=classes, steps=2, batch=4)
        assert out.classes == tuple(expected.tolist())
        assert torch.equal(net.seen[0], expected[:4])
        assert torch.equal(net.seen[-1], expected[4:])
        np.testing.assert_allclose(out.images[:, 0, 0, 0], expected / 10, atol=1e-6)
    assert torch.equal(initial_noise(seeds, SHAPE).float(), latents)
    assert len(set(expected.tolist())) > 2


def test_a_network_of_classes_samples_as_edms_loop_does():
    """Bit for bit against EDM's sampler, rewritten: Heun in float64, the network in float32, one-hot rows."""
    torch.manual_seed(0)
    net = EDMPrecond(8, 1, 3, model_channels=8, channel_mult=(1,), num_blocks=1).eval()
    for parameter in net.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape))
    seeds = range(4)
    rule = StackedGenerator(seeds)
    x_next = rule.randn([4, 1, 8, 8]).double()
    labels = torch.eye(3)[rule.randint(3, [4])]
    levels = levels_of(4)
    x_next = x_next * levels[0]
    with torch.no_grad():
        for now, after in pairwise(levels):
            x = x_next
            d = (x - net(x.float(), now, labels).double()) / now
            x_next = x + (after - now) * d
            if after > 0:
                d2 = (x_next - net(x_next.float(), after, labels).double()) / after
                x_next = x + (after - now) * (0.5 * d + 0.5 * d2)
    drawn = sample(net, seeds=seeds, steps=4)
    assert torch.equal(drawn.images, x_next.float())
    assert drawn.classes == tuple(labels.argmax(1).tolist())
    assert not torch.allclose(sample(net, seeds=seeds, steps=4, classes=0).images, drawn.images)


def test_classes_are_one_for_all_or_one_each():
    assert sample(Classes(), seeds=range(3), classes=7, steps=1).classes == (7, 7, 7)
    assert sample(Classes(), seeds=range(3), classes=[1, 9, 0], steps=1).classes == (1, 9, 0)
    assert sample(Classes(), seeds=range(3), classes=np.array([1, 9, 0]), steps=1).classes == (1, 9, 0)
    assert sample(Gaussian(), seeds=range(3), steps=1).classes is None


@pytest.mark.parametrize(
    ("classes", "named"),
    [
        (10, "0 … 9; got 10"),
        ([0, 1], "2 classes are given for 3 seeds"),
        ("cat", "'cat'"),
        (0.5, "got 0.5"),
        ([0, 1, 2.5], "whole number"),
    ],
)
def test_classes_that_are_not_there_are_refused(classes, named):
    with pytest.raises(InputError, match=named):
        sample(Classes(), seeds=range(3), classes=classes)


def test_seconds_are_those_of_the_call() -> None:
    began = perf_counter()
    out = sample(lambda z, _: z, seeds=[0], steps=2, shape=(1, 4, 4))
    assert 0 < out.seconds <= perf_counter() - began
