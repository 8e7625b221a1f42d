"""fpmc explore, fpmc attribute, fpmc.explore, and the page as one file."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import pytest
from PIL import Image

import fpmc
from explore.world import smooth
from fpmc.cli import main
from fpmc.explore import export
from fpmc.explore.export import export_page


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.npy"
    np.save(path, smooth(25).pixels.numpy())
    return str(path)


def run(tmp_path, data, *args) -> dict:
    code = main(["attribute", "--data", data, "--outdir", str(tmp_path / "run"), *map(str, args)])
    assert code == 0
    return json.loads((tmp_path / "run" / "attribution.json").read_text())


def test_attribute_a_sample(tmp_path, data, capsys):
    found = run(tmp_path, data, "--denoiser", "pspc_square:schedule=5", "--seed", 4, "--pixel", 3, 7, "--top", 5)
    images = fpmc.load_images(data)
    d = fpmc.presets.pspc_square(images, schedule=5)
    path = fpmc.sample(d, seeds=[4], trajectory=True)
    expected = d.attribute(path.trajectory[-2], path.sigmas[-2], 5, pixel=(3, 7))
    assert [row["id"] for row in found["images"]] == expected.ids[0].tolist()
    assert [row["share"] for row in found["images"]] == pytest.approx(expected.weights[0].tolist(), abs=1e-5)
    assert len(found["path"]) == 18
    assert found["path"][-1]["images"] == found["images"]
    assert sum(row["mean_share"] for row in found["over_path"]) <= 1
    assert Image.open(tmp_path / "run" / "attribution.png").height > 200
    assert "all other images" in capsys.readouterr().out


def test_attribute_a_noisy_image(tmp_path, data):
    np.save(tmp_path / "z.npy", np.random.default_rng(0).normal(size=(2, 1, 10, 10)).astype(np.float32))
    args = ("--denoiser", "multiscale:sizes=[3]", "--input", tmp_path / "z.npy", "--sigma", 0.9)
    found = run(tmp_path, data, *args)
    assert found["sigma"] == 0.9
    assert 0 < found["gaussian"] < 1
    listed = sum(row["share"] for row in found["images"])
    assert listed + found["others"] + found["gaussian"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--denoiser", "fashion-ddpmpp"), "is a network: it holds no training images"),
        (("--pixel", 99, 0), "does not lie inside"),
        (("--top", 0), "top must be at least 1"),
        (("--sigma", -1), "is not a noise level"),
        (("--seed", -1), "seeds lie in"),
        (("--denoiser", "psbc"), "no denoiser"),
    ],
)
def test_attribute_refuses_in_words(tmp_path, data, capsys, args, words):
    usual = ("--denoiser", "optimal") if "--denoiser" not in args else ()
    assert main(["attribute", "--data", data, "--outdir", str(tmp_path / "run"), *usual, *map(str, args)]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_explore_writes_one_file_that_needs_no_server(tmp_path, data, opened, capsys, monkeypatch):
    monkeypatch.setattr(export, "export_page", partial(export_page, seeds=[0, 1], levels=[11]))
    page_file = tmp_path / "page.html"
    args = ["--denoiser", "ls:schedule=5", "multiscale:sizes=[3]", "--data", data, "--export", str(page_file)]
    assert main(["explore", *args]) == 0
    assert page_file.stat().st_size < 15_000_000
    assert "page.html" in capsys.readouterr().out
    page = opened(f"file://{page_file}", 390)
    before = page.locator(".people .share").all_text_contents()
    assert before
    page.locator(".frame[tabindex]").nth(1).click(position={"x": 40, "y": 40})
    page.wait_for_function("() => document.querySelector('#shares-where').textContent.includes('row')")
    printed = [float(text.split()[0]) for text in page.locator(".people .share").all_text_contents()]
    for place in ("#others", "#gaussian"):
        printed.append(float(page.locator(place).text_content().split()[-2]))
    assert sum(printed) == pytest.approx(100, abs=1e-6)
    page.locator("h1").click()
    page.keyboard.press("ArrowUp")
    page.wait_for_function("() => document.querySelector('#seed').value === '1'")
    assert not page.locator("#knock-section").is_visible()
    assert page.locator("#hint .live, #pictures-title + p .live").first.is_hidden(), "nothing about boxes"
    page.locator("#level").fill("9")
    page.get_by_text("it knows who made what at σ = 0.585.").wait_for()


def test_an_export_stops_when_the_file_is_full(session, tmp_path):
    said = []
    size = export_page(session, tmp_path / "small.html", seeds=[0], levels=[11], most=300_000, say=said.append)
    assert size < 300_000
    assert "full" in said[-1]
    with pytest.raises(fpmc.InputError, match="needs seeds"):
        export_page(session, tmp_path / "none.html", seeds=[])


def test_an_export_has_each_picture_once(session, tmp_path):
    export_page(session, tmp_path / "page.html", seeds=[0], levels=[11, 17])
    written = re.search(r'id="record">(.*?)</script>', (tmp_path / "page.html").read_text(), re.DOTALL)[1]
    record = json.loads(written)
    rows = [row for answer in record["answers"].values() if "images" in answer for row in answer["images"]]
    pictures = list(record["pictures"].values())
    assert all(row["speaks"] for row in rows)
    assert {row[part] for row in rows for part in ("pixels", "map")} == set(record["pictures"])
    assert all(pictures.count(each) == 1 for each in pictures)
    assert sum(each["shape"] == [1, 10, 10] for each in pictures) <= 60, "as many as there are training images"


def test_the_function_and_the_package_have_one_name(images, tmp_path, monkeypatch):
    import fpmc.explore.session

    monkeypatch.setattr(export, "export_page", partial(export_page, seeds=[0], levels=[11]))
    fpmc.explore(fpmc.presets.optimal(images), images, export=tmp_path / "page.html", say=lambda text: None)
    assert (tmp_path / "page.html").stat().st_size < 15_000_000
