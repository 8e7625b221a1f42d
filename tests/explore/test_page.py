"""The page as a person uses it, in Chromium: on a desk and on a phone, no error, nothing asked of other machines."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from fpmc.explore import requests as ask
from fpmc.explore.shares import region_mask

WIDTHS = pytest.mark.parametrize("width", [1280, 390])


def shares_on_screen(page) -> tuple[list[float], float, float]:
    """Shares of the listed images, of all others, and of Gaussians, as printed."""
    numbers = [float(text.split()[0]) / 100 for text in page.locator(".people .share").all_text_contents()]
    rest = [page.locator(place).text_content().split()[-2] for place in ("#others", "#gaussian")]
    return numbers, float(rest[0]) / 100, float(rest[1]) / 100


def wait_for_shares(page, where: str) -> None:
    page.wait_for_function(
        "where => document.querySelector('#shares-where')?.textContent.includes(where)"
        " && !document.querySelector('#shares').classList.contains('busy')",
        arg=where,
    )


def level(page, number: int) -> None:
    page.locator("#level").fill(str(number))


def attributed(session, denoiser: int, level: int, seed: int, region=None):
    path = session.path(ask.Way(denoiser=denoiser, start=ask.Start(seed=seed)))
    z, _ = path.upto(level)
    return session.denoisers[denoiser].attribute(z, path.levels[level], 16, mask=region_mask(region, session.shape))


def same_shares(page, session, denoiser: int, level: int, seed: int, region=None) -> None:
    found = attributed(session, denoiser, level, seed, region)
    listed, others, gaussian = shares_on_screen(page)
    assert sum(listed) + others + gaussian == pytest.approx(1, abs=1e-9)
    expected = [weight for weight in found.weights[0].tolist() if weight >= 1e-4 * found.weights.max()]
    assert listed == pytest.approx(expected, abs=5e-4)
    assert gaussian == pytest.approx(found.gaussian[0].item(), abs=5e-4)
    assert others == pytest.approx(found.rest[0].item() - found.gaussian[0].item(), abs=1e-3)
    ids = [int(re.search(r"id (\d+)", text)[1]) for text in page.locator(".people .who").all_text_contents()]
    assert ids == found.ids[0, : len(expected)].tolist()
    effective = float(page.locator("#effective").text_content().split()[0])
    assert effective == pytest.approx(found.effective[0].item(), rel=6e-3)


def click_pixel(page, frame: int, y: int, x: int, size: int = 10) -> None:
    box = page.locator(".frame[tabindex]").nth(frame)
    box.scroll_into_view_if_needed()
    where = box.bounding_box()
    box.click(position={"x": (x + 0.5) * where["width"] / size, "y": (y + 0.5) * where["height"] / size})


@WIDTHS
def test_slide_hover_click(opened, address, session, width):
    page = opened(address, width)
    assert "token" not in page.url
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out to the right"
    level(page, 13)
    wait_for_shares(page, f"σ = {session.about()['levels'][13]:.3g}")
    same_shares(page, session, 0, 13, 0)

    page.locator(".frame[tabindex]").nth(1).hover(position={"x": 20, "y": 20})
    page.wait_for_selector("#pixel-words")
    assert page.locator("#pixel canvas").count() == 3, "q, r and the sensitivity map"

    click_pixel(page, 1, 4, 6)
    wait_for_shares(page, "row 4, column 6")
    same_shares(page, session, 0, 13, 0, (4, 6, 4, 6))

    click_pixel(page, 3, 2, 2)                                      # the multi-scale denoiser, with a Gaussian in it
    wait_for_shares(page, "row 2, column 2")
    same_shares(page, session, 1, 13, 0, (2, 2, 2, 2))
    assert shares_on_screen(page)[2] > 0
    page.wait_for_selector("#weights svg")

    click_pixel(page, 5, 2, 2)                                      # and a network
    page.wait_for_selector("#no-shares")
    page.wait_for_selector("#errors svg")


def test_a_box_and_a_seed_and_the_keyboard(opened, address, session):
    page = opened(address)
    page.locator(".frame[tabindex]").nth(1).scroll_into_view_if_needed()
    where = page.locator(".frame[tabindex]").nth(1).bounding_box()
    unit = where["width"] / 10
    page.mouse.move(where["x"] + 2.5 * unit, where["y"] + 3.5 * unit)
    page.mouse.down()
    page.mouse.move(where["x"] + 5.5 * unit, where["y"] + 6.5 * unit, steps=4)
    page.mouse.up()
    wait_for_shares(page, "rows 3 to 6, columns 2 to 5")
    same_shares(page, session, 0, 11, 0, (3, 2, 6, 5))
    page.locator("h1").click()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#seed").input_value() == "1"
    assert page.locator("#sigma").text_content().endswith("level 14 of 18")
    wait_for_shares(page, f"σ = {session.about()['levels'][13]:.3g}")
    same_shares(page, session, 0, 13, 1, (3, 2, 6, 5))
    page.locator("#whole").click()
    wait_for_shares(page, "the whole answer")
    frame = page.locator(".frame[tabindex]").nth(1)
    frame.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    wait_for_shares(page, "row 6, column 5")
    page.locator("#play").click()
    page.wait_for_function("() => document.querySelector('#level').value !== '13'")
    page.locator("#play").click()


class Finger:
    """One finger on the glass, as the browser gets it: what scrolls and what draws is for the page to say."""

    def __init__(self, page) -> None:
        self.page, self.session = page, page.context.new_cdp_session(page)

    def send(self, kind: str, *points: tuple[float, float]) -> None:
        places = [{"x": x, "y": y} for x, y in points]
        self.session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    def drag(self, frame: int, start: tuple[float, float], end: tuple[float, float], steps: int = 8) -> None:
        """From a pixel (y, x) to another, and up."""
        box = self.page.locator(".frame[tabindex]").nth(frame).bounding_box()
        unit = box["width"] / 10
        for step in range(steps + 1):
            y, x = (a + (b - a) * step / steps + 0.5 for a, b in zip(start, end))
            self.send("touchMove" if step else "touchStart", (box["x"] + x * unit, box["y"] + y * unit))
            self.page.wait_for_timeout(16)
        self.send("touchEnd")


@pytest.mark.parametrize("end", [(6, 5), (7, 2)])                   # aslant, and straight down as one scrolls
def test_a_box_with_a_finger(opened, address, session, end):
    page = opened(address, 390, touch=True)
    finger = Finger(page)
    frame = page.locator(".frame[tabindex]").nth(3)                 # the answer of the second denoiser, not chosen yet
    frame.evaluate("frame => scrollTo(0, scrollY + frame.getBoundingClientRect().top - 400)")
    before = page.evaluate("scrollY")
    finger.drag(3, (7, 2), (1, 2))
    page.wait_for_function("before => scrollY > before + 20", arg=before)
    assert "whole answer" in page.locator("#shares-where").text_content(), "a finger that scrolls past asks nothing"

    frame.tap(position={"x": 60, "y": 60})
    wait_for_shares(page, "row 3, column 3")
    page.wait_for_timeout(300)
    before = page.evaluate("scrollY")
    finger.drag(3, (3, 2), end)
    wait_for_shares(page, f"rows 3 to {end[0]}, columns 2 to {end[1]}")
    same_shares(page, session, 1, 11, 0, (3, 2, *end))
    assert page.evaluate("scrollY") == before, "the page stays where it is"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_box_may_end_outside_of_its_picture(opened, address, session):
    page = opened(address)
    frame = page.locator(".frame[tabindex]").nth(1)
    frame.scroll_into_view_if_needed()
    where = frame.bounding_box()
    unit = where["width"] / 10
    page.mouse.move(where["x"] + 6.5 * unit, where["y"] + 5.5 * unit)
    page.mouse.down()
    page.mouse.move(where["x"] + 14 * unit, where["y"] + 7.5 * unit, steps=4)
    page.mouse.up()
    wait_for_shares(page, "rows 5 to 7, columns 6 to 9")


@WIDTHS
def test_knock_out_and_the_link_that_brings_it_back(opened, address, session, width):
    page = opened(address, width)
    level(page, 12)
    wait_for_shares(page, f"σ = {session.about()['levels'][12]:.3g}")
    top = attributed(session, 0, 12, 0).ids[0, :2].tolist()
    for box in page.locator(".people input").all()[:2]:
        box.check()
    assert page.locator("#leave-out").text_content() == "Leave out 2 ticked images"
    page.locator("#leave-out").click()
    page.wait_for_selector("#change")
    page.wait_for_function("() => document.querySelectorAll('#knocked canvas').length === 4")
    expected = session.answer(ask.Answer(denoiser=0, level=12, without=tuple(top)))["change"]
    said = float(re.search(r"moves by ([\d.e-]+)", page.locator("#change").text_content())[1])
    assert said == pytest.approx(expected, rel=6e-3)
    click_pixel(page, 1, 4, 6)
    wait_for_shares(page, "row 4, column 6")
    page.locator("#copy-link").click()
    link = page.url
    assert "#" in link

    again = page.context.new_page()
    again.goto(link)
    again.wait_for_selector("#change")
    wait_for_shares(again, "row 4, column 6")
    assert shares_on_screen(again) == shares_on_screen(page)
    assert again.locator("#change").text_content() == page.locator("#change").text_content()
    assert again.url == link


def test_paint_and_drop(opened, address, session, images):
    page = opened(address)
    level(page, 9)
    wait_for_shares(page, f"σ = {session.about()['levels'][9]:.3g}")
    page.locator("#brush").click()
    click_pixel(page, 0, 3, 4)
    page.wait_for_function("() => document.querySelector('#sigma').textContent.includes('level 1 of 9')")
    page.wait_for_timeout(300)
    assert "paint=0.9_3.4.100" in page.url
    page.locator("#brush").click()
    page.locator("#back-to-seed").click()
    page.wait_for_function("() => document.querySelector('#sigma').textContent.includes('of 18')")

    z = images.scaled([3])[0, 0] + 0.2 * torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    buffer = io.BytesIO()
    Image.fromarray((127.5 + 127.5 * z).round().clamp(0, 255).byte().numpy()).save(buffer, "PNG")
    page.set_input_files("#file", {"name": "z.png", "mimeType": "image/png", "buffer": buffer.getvalue()})
    page.wait_for_function("() => !document.querySelector('#own-sigma').disabled")
    assert float(page.locator("#own-sigma").input_value()) == pytest.approx(0.2, rel=0.3)
    wait_for_shares(page, f"σ = {float(page.locator('#own-sigma').input_value()):.3g}")
    page.locator("#own-sigma").fill("1.5")
    page.locator("#own-noise").check()
    wait_for_shares(page, "σ = 1.50")
    page.set_input_files("#file", {"name": "no.png", "mimeType": "image/png", "buffer": b"no picture"})
    page.wait_for_selector("#error:not([hidden])")
    assert "no PNG or JPEG" in page.locator("#error p").text_content()
    opened.problems[:] = [text for text in opened.problems if "status of 400" not in text]     # the browser's own words


def test_saving_the_picture_and_the_data(opened, address, tmp_path):
    page = opened(address, dark=True)
    for name, kind in (("png", b"\x89PNG"), ("svg", b"<svg"), ("json", b"{")):
        page.locator("#save").evaluate("menu => { menu.open = true; }")
        with page.expect_download() as download:
            page.locator(f"#save-{name}").click()
        path = tmp_path / f"view.{name}"
        download.value.save_as(path)
        assert path.read_bytes().startswith(kind)
    data = json.loads((tmp_path / "view.json").read_text())
    printed = sum(row["shown"] for row in data["shares"]["images"])
    assert printed + data["shares"]["shown_others"] + data["shares"]["shown_gaussian"] == pytest.approx(1)
    assert np.asarray(Image.open(tmp_path / "view.png")).std() > 10
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 249)"


def test_hint_alt_texts_and_names(opened, address):
    page = opened(address, 390)
    assert page.locator("#hint").is_visible()
    assert page.locator("#hint p").text_content().count(".") == 3, "three sentences"
    page.locator("#hint-close").click()
    page.reload()
    page.wait_for_selector(".people li")
    assert not page.locator("#hint").is_visible()
    nameless = page.evaluate(
        "[...document.querySelectorAll('[role=img]')].filter(each => !each.getAttribute('aria-label')).length"
    )
    assert nameless == 0
    small = page.evaluate(
        "[...document.querySelectorAll('button, summary')].filter(each => each.offsetParent"
        " && each.getBoundingClientRect().height < 32).length"
    )
    assert small == 0, "a thumb can hit every button"
