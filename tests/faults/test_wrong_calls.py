"""Wrong calls of the public functions: each one `InputError` that names what was received and the way out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fpmc
from faults.test_misuse import refused
from fpmc import FPMC, Collection, Gaussian, Group, ImageSet, Source, Translations, presets
from fpmc.core.precision import Full, Precisions, Squares
from fpmc.core.response import Responses, SameAsQ, pixel
from fpmc.engine import Settings
from fpmc.learn.finetune import Tuning
from fpmc.metrics import load_samples, nearest, paired
from fpmc.networks.training import Recipe
from fpmc.process import VP, edm_grid

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 1, 8, 8), dtype=np.uint8)
IMAGES = ImageSet(PIXELS)
SOURCE = Source(IMAGES)
FULL = Full(8, 8)
Z = torch.zeros(2, 1, 8, 8)
D: FPMC = presets.ls(IMAGES, schedule=3)
X = torch.rand(4, 1, 8, 8)
Wrong = list[tuple[Callable[[], Any], str]]


class Zero:
    """A denoiser that answers something it should not."""

    shape = (1, 8, 8)

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, z: Any, sigma: Any) -> Any:
        return self.answer


PRESETS: Wrong = [
    (lambda: presets.ls(PIXELS), "ndarray.*ImageSet"),
    (lambda: presets.ls("fashion"), r"'fashion'.*load_images"),
    (lambda: presets.ls(None), "NoneType"),
    (lambda: presets.optimal([IMAGES]), "list"),
    (lambda: presets.ls(IMAGES, schedule=4), "4.*odd"),
    (lambda: presets.ls(IMAGES, schedule=-3), "-3"),
    (lambda: presets.ls(IMAGES, schedule=0), "0"),
    (lambda: presets.ls(IMAGES, schedule=2.5), "2.5"),
    (lambda: presets.ls(IMAGES, schedule="cifar"), "'cifar'.*cifar10"),
    (lambda: presets.ls(IMAGES, schedule="cifar10"), "32×32.*8×8"),
    (lambda: presets.ls(IMAGES, schedule={}), "empty"),
    (lambda: presets.ls(IMAGES, schedule={0: 3}), "0"),
    (lambda: presets.ls(IMAGES, schedule={-1.0: 3}), "-1"),
    (lambda: presets.ls(IMAGES, schedule={"a": 3}), "'a'"),
    (lambda: presets.ls(IMAGES, schedule=[3, 5]), r"\[3, 5\].*dict"),
    (lambda: presets.ls(IMAGES, schedule=float("nan")), "nan"),
    (lambda: presets.ls(IMAGES, schedule=True), "True"),
    (lambda: presets.els(IMAGES, schedule=6), "6.*odd"),
    (lambda: presets.els(IMAGES, schedule=torch.ones(2)), "Tensor|tensor"),
    (lambda: presets.pspc_square(IMAGES, schedule=9), "9.*at most 8"),
    (lambda: presets.pspc_square(IMAGES, schedule=3, stride=0), "stride 0"),
    (lambda: presets.pspc_square(IMAGES, schedule=3, stride=99), "stride 99"),
    (lambda: presets.pspc_square(IMAGES, schedule=3, stride=1.5), "stride 1.5"),
    (lambda: presets.pspc_square(IMAGES, schedule=3, around=1.5), "around 1.5"),
    (lambda: presets.pspc_square(IMAGES, schedule=3, around=-0.1), "around -0.1"),
    (lambda: presets.pspc_square(IMAGES, schedule=3, around="wide"), "'wide'"),
    (lambda: presets.pspc_flex(IMAGES, schedule=2.0), "2"),
    (lambda: presets.pspc_flex(IMAGES, schedule=-0.1), "-0.1"),
    (lambda: presets.pspc_flex(IMAGES, maps="fashion"), "'fashion'.*'wiener'"),
    (lambda: presets.pspc_flex(IMAGES, maps=torch.ones(3, 3), schedule=0.5), r"\(3, 3\)"),
    (lambda: presets.pspc_flex(IMAGES, maps=-torch.ones(8, 8, 8, 8), schedule=0.5), "-1|negative"),
    (lambda: presets.pspc_flex(IMAGES, maps=torch.full((8, 8, 8, 8), torch.nan), schedule=0.5), "nan|NaN|finite"),
    (lambda: presets.pspc_flex(IMAGES, maps={}, schedule=0.5), "empty|no noise level|no map|none"),
    (lambda: presets.pspc_flex(IMAGES, maps=5, schedule=0.5), "5|int"),
    (lambda: presets.lukoianov(IMAGES, tau=1.5), "1.5"),
    (lambda: presets.lukoianov(IMAGES, tau=-1), "-1"),
    (lambda: presets.lukoianov(IMAGES, tau="x"), "'x'"),
    (lambda: presets.lukoianov(IMAGES, rule="mine"), "'mine'.*official"),
    (lambda: presets.multiscale(IMAGES, shape="round"), "'round'.*square"),
    (lambda: presets.multiscale(IMAGES, shape=()), "none"),
    (lambda: presets.multiscale(IMAGES, sizes=(3,), shape=("square", "ls")), "mapping"),
    (lambda: presets.multiscale(IMAGES, sizes=(0,)).at(1.0), "0"),
    (lambda: presets.multiscale(IMAGES, sizes=(99,)).at(1.0), "99"),
    (lambda: presets.multiscale(IMAGES, temperatures=(0.0,)).at(1.0), "0"),
    (lambda: presets.multiscale(IMAGES, temperatures=(-1.0,)).at(1.0), "-1"),
]
CALLS: Wrong = [
    (lambda: D(Z.numpy(), 1.0), "ndarray.*torch.as_tensor"),
    (lambda: D(Z[0], 1.0), r"\(1, 8, 8\).*z\[None\]"),
    (lambda: D(Z.byte(), 1.0), "uint8.*127.5"),
    (lambda: D(Z.permute(0, 2, 3, 1), 1.0), "channels are last"),
    (lambda: D(torch.zeros(2, 3, 8, 8), 1.0), r"\(3, 8, 8\)"),
    (lambda: D(torch.zeros(2, 1, 9, 9), 1.0), r"\(1, 9, 9\)"),
    (lambda: D(Z * torch.nan, 1.0), "NaN"),
    (lambda: D(Z, 0.0), "got 0"),
    (lambda: D(Z, -1), "got -1"),
    (lambda: D(Z, torch.ones(3)), r"shape \(3,\) for 2 images"),
    (lambda: D(Z, None), "None"),
    (lambda: D(Z, "1"), "'1'"),
    (lambda: D.at(0), "got 0"),
    (lambda: D.at("high"), "'high'"),
    (lambda: D.explain(-2), "-2"),
    (lambda: D.explain(1.0, batch=0), "batch.*0"),
    (lambda: D.attribute(Z, torch.tensor([1.0, 2.0])), "one noise level|2"),
    (lambda: D.attribute(Z, 1.0, top=0), "top 0"),
    (lambda: D.attribute(Z, 1.0, top=1.5), "top 1.5"),
    (lambda: D.attribute(Z[:0], 1.0), "no images"),
    (lambda: D.attribute(Z, 1.0, pixel=(8, 0)), r"\(8, 0\).*8×8"),
    (lambda: D.attribute(Z, 1.0, pixel=(-1, 0)), r"\(-1, 0\)"),
    (lambda: D.attribute(Z, 1.0, pixel=3), "3"),
    (lambda: D.attribute(Z, 1.0, pixel="centre"), "'centre'"),
    (lambda: D.attribute(Z, 1.0, mask=torch.ones(8, 8)), "float32"),
    (lambda: D.attribute(Z, 1.0, mask=torch.zeros(8, 8).bool()), "0 pixels"),
    (lambda: D.attribute(Z, 1.0, mask=torch.ones(9, 9).bool()), r"\(9, 9\)"),
    (lambda: D.attribute(Z, 1.0, mask="left"), "'left'"),
    (lambda: D.attribute(Z, 1.0, pixel=(0, 0), mask=torch.ones(8, 8).bool()), "not both"),
    (lambda: D.attribute(Z, 1.0).patches(ImageSet(PIXELS[:2], ids=[70, 71])), "image id"),
    (lambda: D.without(range(12)), "leaves nothing"),
    (lambda: D.without("all"), "'all'"),
    (lambda: D.without([0.5]), "0.5"),
    (lambda: D.using(backend="cuda"), "'cuda'.*'torch'"),
    (lambda: D.using(memory=100), "100.*1 MiB"),
    (lambda: D.using(memory="1G"), "'1G'"),
    (lambda: D.using(chunk=0), "chunk 0"),
    (lambda: D.using(threads=0), "threads 0"),
    (lambda: D.using(threads=1.5), "threads 1.5"),
    (lambda: D.using(tolerance=2), "tolerance 2"),
    (lambda: D.using(nats=0), "nats 0"),
    (lambda: D.using(kernels=("fast",))(Z, 1.0), "fast|no kernel"),
    (lambda: FPMC({}), "at least one"),
    (lambda: FPMC({0.0: D.at(1.0)}), "got 0"),
    (lambda: FPMC({"a": D.at(1.0)}), "'a'"),
    (lambda: FPMC({1.0: 5}), "5|int"),
    (lambda: FPMC(None), "None"),
    (lambda: FPMC.from_pretrained("nowhere"), "'nowhere'"),
    (lambda: FPMC.from_pretrained(None), "None"),
    (lambda: D.save_pretrained(None), "None"),
]
PARTS: Wrong = [
    (lambda: Collection(torch.ones(2, 1, 8, 8), torch.ones(3, 1, 8, 8), IMAGES), "2 estimators, r has 3"),
    (lambda: Collection(torch.ones(1, 8, 8), torch.ones(1, 1, 8, 8), IMAGES), r"\(1, 8, 8\)"),
    (lambda: Collection(-torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 8), IMAGES), "from -1"),
    (lambda: Collection(torch.ones(1, 1, 8, 8), -torch.ones(1, 1, 8, 8), IMAGES), "^r must be .*from -1"),
    (lambda: Collection(torch.ones(1, 1, 8, 8), torch.ones(8, 8), IMAGES), r"^r must be .*\(8, 8\)"),
    (lambda: Collection(torch.ones(1, 1, 8, 8), torch.zeros(1, 1, 8, 8), IMAGES), "Σ r is 0"),
    (lambda: Collection(torch.ones(1, 1, 9, 9), torch.ones(1, 1, 9, 9), IMAGES), "1×9×9.*1×8×8"),
    (lambda: Collection(torch.ones(1, 1, 8, 8) * torch.nan, torch.ones(1, 1, 8, 8), IMAGES), "nan"),
    (lambda: Collection(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 8), [IMAGES, IMAGES]), "2 sources for 1"),
    (lambda: Collection(torch.ones(1, 1, 8, 8), torch.ones(1, 1, 8, 8), PIXELS), "ndarray"),
    (lambda: Collection("q", "r", IMAGES), "str"),
    (lambda: Collection(PIXELS.astype("f4")[:1], PIXELS.astype("f4")[:1], IMAGES), "ndarray"),
    (lambda: Collection.of(), "none"),
    (lambda: Collection.of(5), "5|int"),
    (lambda: Group(FULL, SameAsQ(FULL), SOURCE, weight=torch.ones(3)), r"\(3,\)"),
    (lambda: Group(FULL, SameAsQ(FULL), SOURCE, weight=-torch.ones(1, 1, 1)), "from -1"),
    (lambda: Group(FULL, Responses(torch.ones(2, 1, 8, 8)), SOURCE), "1 estimators, r has 2"),
    (lambda: Group(Full(9, 9), SameAsQ(Full(9, 9)), SOURCE), "1×9×9"),
    (lambda: Group(FULL, SameAsQ(FULL), Translations(SOURCE, 3)), "translations go with"),
    (lambda: Group(Squares(3, 8, 8), pixel(8, 8), Translations(SOURCE, 5)), "translations go with"),
    (lambda: Full(8, 8, 0.0), "0.0"),
    (lambda: Full(8, 8, float("inf")), "inf"),
    (lambda: Full(0, 8), "0"),
    (lambda: Squares(0, 8, 8), "0"),
    (lambda: Squares(2, 8, 8), "2.*odd"),
    (lambda: Squares(9, 8, 8, inside=True), "9.*at most 8"),
    (lambda: Squares(3, 8, 8, stride=2), "stride 2.*inside=True"),
    (lambda: Squares(3, 8, 8, inside=True, stride=4), "stride 4"),
    (lambda: Squares(3, 8, 8, around=1.0), "around 1.0"),
    (lambda: Precisions(PIXELS), "ndarray"),
    (lambda: Responses(torch.ones(8, 8)), r"\(8, 8\)"),
    (lambda: Source(PIXELS), "ndarray|uint8"),
    (lambda: Source([]), "none"),
    (lambda: Source([IMAGES, PIXELS]), "ndarray"),
    (lambda: Source([IMAGES, ImageSet(PIXELS[..., :6])]), r"\(1, 8, 6\)"),
    (lambda: Source(IMAGES, torch.zeros(3)), r"\(12,\).*\(3,\)"),
    (lambda: Source(IMAGES, torch.full((12,), torch.nan)), "NaN"),
    (lambda: Source(IMAGES, torch.full((12,), -torch.inf)), "all weights"),
    (lambda: Source(IMAGES, "uniform"), "'uniform'"),
    (lambda: SOURCE | PIXELS, "ndarray"),
    (lambda: SOURCE.without(range(12)), "leaves nothing"),
    (lambda: SOURCE.without("all"), "'all'"),
    (lambda: SOURCE.subset(torch.tensor([12])), "12"),
    (lambda: SOURCE.subset(torch.tensor([0.5])), "float"),
    (lambda: SOURCE.subset("all"), "'all'"),
    (lambda: Gaussian(torch.zeros(1, 8, 8), torch.ones(3), torch.ones(64, 4)), r"\(64, 4\)|3"),
    (lambda: Settings(backend="gpu"), "'gpu'"),
    (lambda: fpmc.augment(IMAGES, "flip"), "'flip'.*yflip"),
    (lambda: fpmc.augment(IMAGES, "xflip", amount=-1), "-1"),
    (lambda: fpmc.augment(IMAGES, "rotate", amount=1e9), r"1e\+09|1000000000"),
    (lambda: fpmc.augment(IMAGES, "rotate", amount=float("nan")), "nan"),
    (lambda: fpmc.augment(IMAGES, "rotate", seed=-1), "-1"),
    (lambda: fpmc.augment(PIXELS, "xflip"), "ndarray"),
    (lambda: fpmc.augment(IMAGES, "xflip", degrees=3), "degrees"),
    (lambda: fpmc.augment(IMAGES, "synthetic"), "network"),
]
WORK: Wrong = [
    (lambda: fpmc.sample(D, seeds=4), r"range\(4\)"),
    (lambda: fpmc.sample(D, seeds="0-3"), "'0-3'"),
    (lambda: fpmc.sample(D, steps=0), "0"),
    (lambda: fpmc.sample(D, steps=2.5), "2.5"),
    (lambda: fpmc.sample(D, sigma_min=0), "0"),
    (lambda: fpmc.sample(D, sigma_min=90), "90"),
    (lambda: fpmc.sample(D, sigma_max=float("inf")), "inf"),
    (lambda: fpmc.sample(D, rho=0), "0"),
    (lambda: fpmc.sample(D, solver="rk4"), "'rk4'.*heun"),
    (lambda: fpmc.sample(D, process="vp"), "VP.*'vp'"),
    (lambda: fpmc.sample(D, classes=3), "3.*no classes"),
    (lambda: fpmc.sample(D, batch=0), "batch.*0"),
    (lambda: fpmc.sample(D, shape=(3, 8, 8)), r"\(3, 8, 8\)"),
    (lambda: fpmc.sample(D, shape=8), "8"),
    (lambda: fpmc.sample(D, device="cuda:7", steps=2), "'?cuda:7'?.*cpu"),
    (lambda: fpmc.sample(D, device="gpu", steps=2), "'gpu'.*cpu"),
    (lambda: fpmc.sample(lambda z, s: z), "shape"),
    (lambda: fpmc.sample(None, shape=(1, 8, 8), steps=2), "None"),
    (lambda: fpmc.sample("ls", shape=(1, 8, 8), steps=2), "'ls'"),
    (lambda: fpmc.sample(Zero(np.zeros((1, 1, 8, 8))), seeds=[0], steps=2), "ndarray"),
    (lambda: fpmc.sample(Zero(torch.zeros(1, 1, 4, 4)), seeds=[0], steps=2), r"\(1, 1, 4, 4\)"),
    (lambda: fpmc.sample(Zero(torch.full((1, 1, 8, 8), torch.nan)), seeds=[0], steps=2), "NaN"),
    (lambda: fpmc.compare(X, X[:2]), "4×1×8×8.*2×1×8×8"),
    (lambda: fpmc.compare(X, "runs/a"), "str.*load_samples"),
    (lambda: fpmc.compare(X[0], X[0]), r"\(1, 8, 8\)"),
    (lambda: fpmc.compare(X[:0], X[:0]), r"\(0, 1, 8, 8\)"),
    (lambda: fpmc.compare(X.long(), X), "int64"),
    (lambda: fpmc.compare(X * torch.nan, X), "NaN"),
    (lambda: fpmc.compare(None, X), "NoneType"),
    (lambda: fpmc.compare(X, torch.zeros(4, 1, 8, 8)), "constant|vary|0"),
    (lambda: paired(fpmc.compare(X, X.flip(0)), fpmc.compare(X[:2], X[2:])), "4.*2"),
    (lambda: nearest(X, PIXELS), "ndarray"),
    (lambda: nearest(X[..., :4], IMAGES), r"\(1, 8, 8\)|8×8"),
    (lambda: load_samples("nowhere"), "'nowhere'"),
    (lambda: load_samples(5), "5|int"),
    (lambda: edm_grid(0), "0"),
    (lambda: edm_grid(18, sigma_min=2, sigma_max=1), "2"),
    (lambda: VP("square"), "'square'"),
    (lambda: fpmc.sensitivity_maps(D, IMAGES, []), "0 sigmas"),
    (lambda: fpmc.sensitivity_maps(D, IMAGES, [-1.0]), "-1"),
    (lambda: fpmc.sensitivity_maps(D, IMAGES, [1.0], draws=0), "0"),
    (lambda: fpmc.sensitivity_maps(D, IMAGES, 1.0), "1.0"),
    (lambda: fpmc.sensitivity_maps(D, PIXELS, [1.0]), "ndarray"),
    (lambda: fpmc.sensitivity_maps(D, IMAGES, [1.0], device="cuda:7"), "cuda:7.*cpu"),
    (lambda: fpmc.finetune(D, D, IMAGES, learn=("p",)), "'p'"),
    (lambda: fpmc.finetune(D, D, IMAGES, learn=()), "learn"),
    (lambda: fpmc.finetune(D, D, IMAGES, steps=0), "steps 0"),
    (lambda: fpmc.finetune(D, D, IMAGES, batch=0), "batch 0"),
    (lambda: fpmc.finetune(D, D, IMAGES, rate=float("nan")), "nan"),
    (lambda: fpmc.finetune(D, D, IMAGES, patience=0), "patience 0"),
    (lambda: fpmc.finetune(D, D, IMAGES, sigmas=[0.0], steps=1), "got 0"),
    (lambda: fpmc.finetune(D, D, IMAGES, sigmas=[1.0], steps=1, device="cuda:7"), "cuda:7.*cpu"),
    (lambda: fpmc.finetune(D, D, PIXELS), "ndarray"),
    (lambda: fpmc.finetune(Zero(X), D, IMAGES), "Zero"),
    (lambda: fpmc.finetune(D, "net", IMAGES, sigmas=[1.0], steps=1), "'net'"),
    (lambda: fpmc.finetune(presets.els(IMAGES, schedule=3), D, IMAGES, sigmas=[1.0], steps=1), "Translations"),
    (lambda: Tuning(decay=-1.0), "-1"),
    (lambda: Tuning(monte_carlo=0), "monte_carlo 0"),
    (lambda: fpmc.fit_response(D, "dirty", IMAGES, sigmas=[1.0]), "'dirty'.*'clean'"),
    (lambda: fpmc.fit_response(D, "clean", IMAGES, sigmas=[1.0], count=3), "count 3"),
    (lambda: fpmc.fit_response(D, "clean", IMAGES, sigmas=[1.0], per="image"), "'image'.*pixel"),
    (lambda: fpmc.fit_response(D, "clean", IMAGES, sigmas=[]), "noise level"),
    (lambda: fpmc.fit_response(D, "clean", ImageSet(PIXELS[..., :6]), sigmas=[1.0]), r"\(1, 8, 6\)"),
    (lambda: fpmc.fit_response(D, "clean", PIXELS, sigmas=[1.0]), "ndarray"),
    (lambda: fpmc.fit_response(D, "clean", IMAGES, sigmas=[1.0], device="gpu"), "'gpu'.*cpu"),
    (lambda: fpmc.fit_response(Zero(X), "clean", IMAGES, sigmas=[1.0]), "Zero"),
    (lambda: Recipe(batch=0), "0"),
    (lambda: Recipe(schedule="step"), "'step'"),
    (lambda: Recipe(rate=-1), "-1"),
    (lambda: fpmc.explore(D, PIXELS, export="x.html"), "ndarray"),
]


@pytest.mark.parametrize(("call", "says"), [*PRESETS, *CALLS, *PARTS, *WORK])
def test_wrong_calls(call: Callable[[], Any], says: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(call, says)
