"""Denoisers of the experiments: which rows there are, what decides them, what they are made of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fpmc import presets
from fpmc.core.collection import Collection
from fpmc.core.fpmc import FPMC
from fpmc.core.precision import Precisions
from fpmc.core.response import Responses
from fpmc.core.sources import Source
from fpmc.errors import InputError
from fpmc.study import tasks
from fpmc.study.build import build, multiscale, pack, unpack
from fpmc.study.graph import Cache, Results, Task, run
from fpmc.study.lab import Lab
from fpmc.study.methods import ELS, LS, MOVED, PSPC_FLEX, Method, lukoianov, table_rows
from fpmc.study.paper import published
from study.tiny import TINY, small_lab, small_network, smooth_images


def inputs_of(lab: Lab, method: Method, sigmas: list[float], folder: Path):
    wanted, results = tasks.needs(lab, method, sigmas), Results()
    for _ in run(wanted, lab, Cache(folder), results):
        pass
    return {task.name: results[task] for task in wanted}


def test_rows_are_the_papers_and_ours(lab: Lab):
    names = [method.name for method in table_rows(lab)]
    theirs = json.loads((Path(published.__file__).parent / "paper.json").read_text())["results"]
    assert set(theirs["cifar10"]) == set(names) - {"multiscale", "multiscale-clean"}
    assert set(theirs["ffhq"]) == set(theirs["afhq"]) == set(theirs["cifar10"]) - {"els"}
    labels = {method.name: method.label for method in table_rows(lab)}
    assert labels["els"] == "ELS (12 images)"
    assert labels["soft-synthetic"].endswith("synthetic (10 images)")
    assert len(set(labels.values())) == len(labels)
    assert [method.name for method in table_rows(small_lab(only=("moved", "ls")))] == ["ls", "moved"]


def test_moved_images_take_part_where_they_are_asked_for(tmp_path: Path):
    """Above their noise level the two collections are one, so that nothing is fitted twice."""
    lab = small_lab()
    assert tasks.fitted(lab, 20.0, True).key == tasks.fitted(lab, 20.0, False).key
    assert tasks.fitted(lab, 0.5, True).key != tasks.fitted(lab, 0.5, False).key
    task = tasks.fitted(lab, 0.5, True)
    sizes = {len(group.source) for group in multiscale(lab, True).at(0.5).groups if isinstance(group.source, Source)}
    assert sizes == {len(lab.images), 5 * len(lab.images)}
    denoiser = build(lab, MOVED, inputs_of(lab, MOVED, [0.5], tmp_path))
    assert denoiser(torch.zeros(1, *lab.images.shape), 0.5).isfinite().all()
    assert task.name == "multi-scale/moved/σ 0.5"


def test_published_values_are_the_papers():
    assert published.results("cifar10", "pspc_flex") == ("0.67 ± 0.01", "4.18 ± 0.08")
    assert published.results("afhq", "optimal") == ("-0.23 ± 0.01", "22.06 ± 0.22")
    assert published.results("ffhq", "els") == ("–", "–")
    assert published.tau("afhq", 0.05) == ("0.67 ± 0.00", "5.12 ± 0.06")


def test_the_paper_at_64_has_no_els_and_its_own_threshold():
    images = smooth_images(4, 64)
    lab = Lab(images, small_network(64, 0), small_network(64, 1), TINY, stamps={}, held_out=images, dataset="ffhq")
    methods = {method.name: method for method in table_rows(lab)}
    assert "els" not in methods
    assert methods["lukoianov"].option("tau") == 0.02
    assert (lab.steps, len(lab.grid), lab.policy.decay_from) == (40, 40, 4.37)


def test_settings_decide_a_method_and_its_label_does_not():
    assert Method.of(lukoianov(0.02).settings()).settings() == lukoianov(0.02).settings()
    assert replace(LS, label="other").settings() == LS.settings()
    assert lukoianov(0.02).slug != lukoianov(0.05).slug
    assert replace(PSPC_FLEX, augment="xflip", amount=0.2).slug == "pspc_flex xflip 0.2"


def test_tasks_change_with_what_they_depend_on(lab: Lab):
    first = tasks.samples(lab, ELS)[0].key
    assert tasks.samples(small_lab(scale=replace(TINY, els_images=13)), ELS)[0].key != first
    assert tasks.samples(small_lab(stamps={"network": "new", "reference": "b"}), ELS)[0].key == first
    flex = tasks.samples(lab, PSPC_FLEX)[0].key
    assert tasks.samples(small_lab(stamps={"network": "new", "reference": "b"}), PSPC_FLEX)[0].key != flex
    assert tasks.samples(small_lab(scale=replace(TINY, draws=3)), PSPC_FLEX)[0].key != flex


def test_els_has_its_own_few_images(lab: Lab):
    z = torch.randn(1, 1, 8, 8)
    expected = presets.els(lab.images.subset(slice(12)))(z, 0.5)
    assert torch.equal(build(lab, ELS, {})(z, 0.5), expected)


def test_flex_needs_no_map_where_it_sees_the_whole_image(lab: Lab):
    assert tasks.needs(lab, PSPC_FLEX, [80.0]) == ()
    z = 80 * torch.randn(1, 1, 8, 8)
    torch.testing.assert_close(build(lab, PSPC_FLEX, {})(z, 80.0), presets.optimal(lab.images)(z, 80.0))


@pytest.mark.parametrize(("retune", "learned_on"), [(True, "pspc_flex xflip 1 qr"), (False, "pspc_flex qr")])
def test_soft_levels_have_the_source_of_their_row_and_binary_ones_stand_in(
    tmp_path: Path, retune: bool, learned_on: str
):
    lab = small_lab(scale=replace(TINY, retune=retune))
    sigmas = [lab.level(1.09), lab.level(0.585)]
    soft = replace(PSPC_FLEX, soft="qr", augment="xflip")
    inputs = inputs_of(lab, soft, sigmas, tmp_path)
    assert [name for name in inputs if name.startswith("soft")] == [f"soft/{learned_on}/σ {sigmas[0]:.4g}"]
    denoiser = build(lab, soft, inputs)
    assert isinstance(denoiser, FPMC)
    (group,) = denoiser.at(sigmas[0]).groups
    assert isinstance(group.q, Precisions)
    assert group.q.values.is_floating_point()           # learned
    assert len(group.source) == 80                      # with the flipped ones
    (group,) = denoiser.at(sigmas[1]).groups
    assert isinstance(group.q, Precisions)
    assert group.q.values.dtype == torch.bool           # not a joint level


def test_a_collection_survives_its_file(lab: Lab, tmp_path: Path):
    q, r = torch.rand(3, 1, 8, 8), torch.rand(3, 1, 8, 8)
    collection = Collection(Precisions(q), Responses(r), lab.images)
    task = Task("test", lambda *_: pack(collection, sigma=1.0), {})
    ((_, result, _),) = run([task], lab, Cache(tmp_path), Results())
    z = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(unpack(result, lab).denoise(z, 1.0), collection.denoise(z, 1.0))


def test_impossible_laboratories_are_refused(lab: Lab):
    with pytest.raises(InputError, match="no row 'best'"):
        table_rows(small_lab(only=("best",)))
    with pytest.raises(InputError, match=r"reference makes images of shape \(1, 16, 16\)"):
        small_lab(reference=small_network(16, 0))
    with pytest.raises(InputError, match="32×32"):
        small_lab(dataset="cifar10")
