"""Whatever computes can do so on a device that is not the CPU: nothing is forgotten there, and values are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import fpmc
from devices.elsewhere import Elsewhere, Mixed
from fpmc import FPMC, Collection, Group, ImageSet, Source, presets
from fpmc.core.gaussian import fit_gaussian
from fpmc.core.precision import Full, Precisions, Squares
from fpmc.core.response import Responses, SameAsQ
from fpmc.engine import Call, Mass, run
from fpmc.learn.calibrate import forward_points, score_level
from fpmc.learn.fit import fit_level
from fpmc.networks.precond import EDMPrecond
from fpmc.study.bench import Machine, benchmark

SIGMA = 0.7


def blobs(channels: int = 1, count: int = 40) -> ImageSet:
    random = torch.Generator().manual_seed(channels)
    smooth = torch.nn.functional.avg_pool2d(torch.randn(count, channels, 10, 10, generator=random), 3, 1)
    return ImageSet((127.5 + 160 * smooth).clip(0, 255).byte())


GREY, COLOUR = blobs(), blobs(3)
WEIGHTED = Source(COLOUR, torch.linspace(-3, 0, len(COLOUR))).without([3, 4])


def soft(images: ImageSet = COLOUR, seed: int = 0) -> FPMC:
    random = torch.Generator().manual_seed(seed)
    q, r = torch.rand(2, 12, 3, 8, 8, generator=random)
    return FPMC(Collection(q, r, images), name="soft")


def gaussian_group() -> FPMC:
    normal = fit_gaussian(Source(GREY))
    whole, square = Full(8, 8), Squares(3, 8, 8, inside=True)
    parts = Group(square, SameAsQ(square), normal), Group(whole, SameAsQ(whole), Source(GREY))
    return FPMC(Collection.of(*(part.scaled(0.3 + place) for place, part in enumerate(parts))))


def few() -> FPMC:
    """Few estimators, whose whole means are kept."""
    q = Precisions(torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(2)))
    return FPMC(Collection(q, Responses(torch.ones(3, 3, 8, 8)), COLOUR))


DENOISERS: dict[str, Callable[[], FPMC]] = {
    "optimal": lambda: presets.optimal(COLOUR),
    "optimal, weighted": lambda: presets.optimal(WEIGHTED),
    "optimal, direct": lambda: presets.optimal(COLOUR).using(kernels=("direct",)),
    "wiener": lambda: presets.wiener(GREY),
    "ls": lambda: presets.ls(COLOUR, schedule=3),
    "ls, weighted": lambda: presets.ls(WEIGHTED, schedule=3),
    "els": lambda: presets.els(GREY, schedule=3),
    "els, weighted": lambda: presets.els(WEIGHTED, schedule=5),
    "pspc_square": lambda: presets.pspc_square(COLOUR, schedule=4),
    "pspc_square, around": lambda: presets.pspc_square(COLOUR, schedule=4, stride=2, around=0.1),
    "pspc_flex": lambda: presets.pspc_flex(COLOUR, maps="wiener", schedule=0.2),
    "lukoianov": lambda: presets.lukoianov(GREY, tau=0.05),
    "multiscale": lambda: presets.multiscale(GREY, sizes=(3, 5)),
    "union": lambda: presets.pspc_square(Source(GREY) | fpmc.augment(GREY, "xflip"), schedule=3),
    "soft": soft,
    "soft, exact": lambda: soft().using(exact=True),
    "soft, streamed": lambda: soft().using(kernels=("direct",), chunk=7),
    "few": few,
    "Gaussian group": gaussian_group,
    "blended": lambda: FPMC({0.5: soft().at(1.0), 1.0: soft(seed=1).at(1.0)}, blend=True),
}


def noisy(d: FPMC, count: int = 2) -> Tensor:
    return torch.randn(count, *d.shape, generator=torch.Generator().manual_seed(1))


def same(there: Tensor, here: Tensor, tolerance: float = 2e-5) -> None:
    assert isinstance(there, Elsewhere)
    torch.testing.assert_close(there.cpu(), here, atol=tolerance, rtol=tolerance)


def small_network(label_dim: int = 0) -> EDMPrecond:
    torch.manual_seed(0)
    return EDMPrecond(
        img_resolution=8, img_channels=1, model_channels=8, channel_mult=[1, 1], channel_mult_emb=1, num_blocks=1,
        attn_resolutions=[4], label_dim=label_dim,
    ).eval()


def test_the_device_refuses_what_a_gpu_refuses(device: str) -> None:
    here = torch.ones(2, 3)
    there = here.to(device)
    assert there.device.type == device
    for mixed in (
        lambda: there + here, lambda: here + there, lambda: there @ here.T, lambda: torch.cat([here, there]),
        lambda: here[torch.tensor([0]).to(device)], lambda: torch.where(here > 0, there, there),
        lambda: there.index_add_(0, torch.tensor([0]), there[:1]), lambda: there.normal_(generator=torch.Generator()),
        lambda: there.matmul(torch.tensor(2.0)[None].expand(3)),
    ):
        with pytest.raises((Mixed, RuntimeError), match=r"expected|on"):
            mixed()
    with pytest.raises((TypeError, RuntimeError)):
        there.numpy()
    assert torch.equal((there * torch.tensor(2.0)).cpu(), 2 * here)            # as a GPU does
    assert torch.equal(there[:, torch.tensor([0, 2])].cpu(), here[:, [0, 2]])
    there[0] = 5.0
    assert there.cpu().tolist() == [[5.0] * 3, [1.0] * 3]


@pytest.mark.parametrize("name", DENOISERS)
def test_denoisers(name: str, device: str) -> None:
    d = DENOISERS[name]()
    z = noisy(d)
    same(d(z.to(device), SIGMA), d(z, SIGMA))
    levels = torch.tensor([0.4, 2.0])
    same(d(z.to(device), levels.to(device)), d(z, levels))
    double = d(z.double().to(device), SIGMA)
    assert double.dtype == torch.float64
    same(double, d(z.double(), SIGMA), 1e-10)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("optimal, weighted", "double"), ("ls", "attention"), ("ls, weighted", "attention"), ("pspc_square", "attention")],
)
def test_products(name: str, kernel: str, device: str) -> None:
    d = DENOISERS[name]().using(kernels=(kernel,), backend="torch")
    z = noisy(d)
    same(d(z.to(device), SIGMA), d(z, SIGMA))
    same(d.using(memory=1 << 20)(z.to(device), SIGMA), d(z, SIGMA))


@pytest.mark.parametrize("newer", [False, True])
def test_products_are_not_rounded_to_ten_bits(newer: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lets networks be quick and rough does not get rough posteriors."""
    matmul, seen, passes = torch.backends.cuda.matmul, [], run.passes

    def spied(*args: object) -> list:
        seen.append(matmul.allow_tf32)
        return passes(*args)

    monkeypatch.setattr(run, "passes", spied)
    if newer and not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has the older name only")
    try:
        if newer:
            matmul.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("high")
        d = DENOISERS["optimal"]()
        d(noisy(d).to(device), SIGMA)
        assert seen == [False]
        assert matmul.fp32_precision == "tf32" if newer else torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", ["optimal", "wiener", "ls", "els", "pspc_square", "few", "soft", "Gaussian group"])
def test_gradients(name: str, device: str) -> None:
    d, slopes = DENOISERS[name](), []
    z = noisy(d)
    for place in (device, "cpu"):
        asked = z.to(place).requires_grad_()
        d(asked, SIGMA).square().sum().backward()
        slopes.append(asked.grad)
    same(slopes[0], slopes[1], 1e-4)


@pytest.mark.parametrize(
    "name", ["optimal, weighted", "ls", "els, weighted", "pspc_square", "soft", "multiscale", "Gaussian group", "union"]
)
def test_attribution(name: str, device: str) -> None:
    d = DENOISERS[name]()
    z = noisy(d)
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[2:5, 3:] = True
    for part in ({}, {"pixel": (2, 3)}, {"mask": mask}, {"mask": mask.to(device)}):
        there = d.attribute(z.to(device), SIGMA, top=3, **part)
        here = d.attribute(z, SIGMA, top=3, **{key: mask if key == "mask" else value for key, value in part.items()})
        same(there.weights, here.weights)
        assert torch.equal(there.ids, here.ids)
        same(there.maps, here.maps)
        same(there.rest, here.rest)
        same(there.effective, here.effective, 1e-3)
        same(there.gaussian, here.gaussian)
        assert torch.equal(there.patches(), here.patches())
        if len(there.gallery) == 1:
            assert torch.equal(there.patches(d_images(d)), here.patches())
        assert repr(there)


def d_images(d: FPMC) -> ImageSet:
    return COLOUR if d.shape[0] == 3 else GREY


def test_masses(device: str) -> None:
    collection = soft().at(1.0)
    z = noisy(soft())
    for there, here in zip(collection.reduce(Mass(), z.to(device), SIGMA), collection.reduce(Mass(), z, SIGMA)):
        same(there, here, 1e-3)


@pytest.mark.parametrize("name", ["pspc_square", "soft", "Gaussian group"])
def test_samples(name: str, device: str) -> None:
    d = DENOISERS[name]()
    there = fpmc.sample(d, seeds=range(3), steps=3, batch=2, device=device, trajectory=True)
    here = fpmc.sample(d, seeds=range(3), steps=3, batch=2, trajectory=True)
    assert there.images.device.type == "cpu"            # the state stays there
    torch.testing.assert_close(there.images, here.images, atol=1e-4, rtol=1e-4)
    moved = replace(there, images=there.images.to(device))
    assert fpmc.compare(moved, here).mse < 1e-8
    assert fpmc.compare(here.images.to(device), here.images.to(device)).r2 == pytest.approx(1)


@pytest.mark.parametrize("classes", [0, 3])
def test_networks(classes: int, device: str) -> None:
    net, z = small_network(classes), torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        here = net(z, SIGMA), net(z, torch.tensor([0.4, 2.0]))
    sampled = fpmc.sample(net, seeds=range(2), steps=2).images
    moved = small_network(classes).to(device)
    with torch.no_grad():
        same(moved(z.to(device), SIGMA), here[0])
        same(moved(z.to(device), torch.tensor([0.4, 2.0]).to(device)), here[1])
    torch.testing.assert_close(fpmc.sample(moved, seeds=range(2), steps=2).images, sampled, atol=1e-3, rtol=1e-3)
    if not classes:
        there = fpmc.sensitivity_maps(moved, GREY, [SIGMA], draws=2, device=device)
        torch.testing.assert_close(
            there[SIGMA], fpmc.sensitivity_maps(net, GREY, [SIGMA], draws=2)[SIGMA], atol=1e-4, rtol=1e-3
        )


@pytest.mark.parametrize("learn", [("q",), ("q", "r")])
@pytest.mark.parametrize("name", ["pspc_square", "soft", "Gaussian group"])
def test_finetuning(name: str, learn: tuple[str, ...], device: str) -> None:
    d = DENOISERS[name]()
    images, found = d_images(d), []
    for place in (device, "cpu"):
        seen: list[float] = []
        tuned = fpmc.finetune(
            d, presets.wiener(images), images, learn=learn, sigmas=[SIGMA], steps=3, batch=6, validate_every=1,
            validation=8, device=place, progress=lambda step, seen=seen: seen.append(step.loss),
        )
        found.append((seen, tuned(noisy(d), SIGMA)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("per", ["group", "pixel"])
def test_fits_and_scores(per: str, device: str) -> None:
    collection, network = presets.multiscale(GREY, sizes=(3, 5)).at(SIGMA), presets.wiener(GREY)
    there, here = (
        fit_level(collection, SIGMA, network, GREY, count=16, per=per, device=place) for place in (device, "cpu")
    )
    torch.testing.assert_close(there.weights, here.weights, atol=1e-3, rtol=1e-3)
    values = {float(size): presets.ls(GREY, schedule=size) for size in (3, 5)}
    z = forward_points(GREY, SIGMA, 4)
    for a, b in zip(score_level(values, network, z.to(device), SIGMA), score_level(values, network, z, SIGMA)):
        assert (a.mse, a.cosine) == pytest.approx((b.mse, b.cosine), rel=1e-4)


def test_bench(device: str) -> None:
    images, machine = blobs(3), Machine(1.0, 1.0, 1.0, 1, "a GPU", "2.0")
    (found,) = benchmark(
        lambda part: presets.ls(part, schedule=3), images, blobs(3, 4), [SIGMA], machine=machine, batch=2, repeats=1,
        device=device,
    )
    assert found.kernel.startswith("torch")
    assert found.error < 1e-4
    assert found.predicted == presets.ls(images, schedule=3).at(SIGMA).plan(Call(SIGMA, 2, device="cuda")).seconds / 2
