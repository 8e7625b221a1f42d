"""A small world to look into: smooth images of 10×10, two analytic denoisers, and a network that is none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
import torch

import fpmc
from explore.world import SIZE, Shrink, smooth
from fpmc.explore.serve import running
from fpmc.explore.session import Session


@pytest.fixture(scope="session")
def images() -> fpmc.ImageSet:
    return smooth(60)


@pytest.fixture(scope="session")
def session(images) -> Session:
    square = fpmc.presets.pspc_square(images, schedule=5)
    several = fpmc.presets.multiscale(images, sizes=(3, 5), around=())
    random = torch.Generator().manual_seed(1)
    maps = {sigma: torch.rand(SIZE, SIZE, SIZE, SIZE, generator=random) for sigma in (0.1, 10.0)}
    return Session([square, several], images, [Shrink()], maps=maps)


@pytest.fixture(scope="session")
def address(session) -> Iterator[str]:
    with running(session) as address:
        yield address


@pytest.fixture(scope="module")
def chromium():
    """A browser, driven by Playwright; for one file of tests, since its event loop would be in the way of others."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on the path; install it, e.g. with apt-get install chromium")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; pip install fpmc[test]")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Open a page of some width; at the end nothing may have gone wrong or out."""
    problems: list[str] = []
    contexts = []

    def guard(route):
        where = route.request.url
        if where.startswith(("http://127.0.0.1:", "data:", "blob:", f"file://{tmp_path}")):
            route.continue_()
        else:
            problems.append(f"asked for {where}")
            route.abort()

    def listen(page):
        page.on("console", lambda message: message.type == "error" and problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.set_default_timeout(20_000)

    def open_page(address: str, width: int = 1280, *, dark: bool = False, touch: bool = False):
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", accept_downloads=True,
            has_touch=touch, is_mobile=touch,
        )
        context.route("**/*", guard)
        context.on("page", listen)
        contexts.append(context)
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("body[data-ready=yes]")
        page.wait_for_selector(".people li, #no-shares")
        return page

    open_page.problems = problems
    yield open_page
    if folder := os.environ.get("FPMC_SCREENSHOTS"):
        for number, context in enumerate(contexts):
            context.pages[0].evaluate("scrollTo(0, 0)")
            context.pages[0].screenshot(path=f"{folder}/{tmp_path.name}-{number}.png", full_page=True)
    for context in contexts:
        context.close()
    assert problems == []


